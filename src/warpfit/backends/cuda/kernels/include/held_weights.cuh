// The weights of a layer in the registers of a block, which multiplies by them and updates them there.
//
// The block's warps form GROUPS_K groups along the INPUTS features and GROUPS_U along the COLUMNS units. A warp holds tiles of
// 16 units by 16 features, as the accumulators of two mma: what is added to a weight is a product that lands
// on it. The same registers, rounded to 16 bits, are the B fragments of the product with the features, so that
// weights never lie in shared memory.
//
// Weights are held times a power of two, in float32.
#pragma once

#include "fragments.cuh"

template <class T, int INPUTS, int COLUMNS, int GROUPS_K, int GROUPS_U>
struct HeldWeights {
    static constexpr int FEATURE_TILES = (INPUTS + 15) / 16, UNIT_TILES = (COLUMNS + 15) / 16;
    // Tiles of a warp: `own_features` along the features, GROUPS_K apart, and MINE_U adjacent ones.
    static constexpr int MINE_K = (FEATURE_TILES + GROUPS_K - 1) / GROUPS_K;
    static constexpr int MINE_U = UNIT_TILES / GROUPS_U;
    static_assert(UNIT_TILES % GROUPS_U == 0, "the groups along the units have as many tiles each");

    float tiles[MINE_U][MINE_K][2][4];

    __device__ static int warp_k() { return static_cast<int>(threadIdx.x) / 32 % GROUPS_K; }
    __device__ static int first_unit_tile() { return static_cast<int>(threadIdx.x) / 32 / GROUPS_K * MINE_U; }
    __device__ static int feature_tile(int j) { return warp_k() + j * GROUPS_K; }

    // f(unit, feature, weight) for each weight of this thread below these numbers.
    template <class F>
    __device__ void each(int num_units, int num_features, F f) {
        const int lane = threadIdx.x % 32;
#pragma unroll
        for (int i = 0; i < MINE_U; ++i) {
#pragma unroll
            for (int j = 0; j < MINE_K; ++j) {
#pragma unroll
                for (int part = 0; part < 8; ++part) {
                    const int unit = (first_unit_tile() + i) * 16 + lane / 4 + part % 4 / 2 * 8;
                    const int feature = feature_tile(j) * 16 + part / 4 * 8 + lane % 4 * 2 + part % 2;
                    if (unit < num_units && feature < num_features) {
                        f(unit, feature, tiles[i][j][part / 4][part % 4]);
                    }
                }
            }
        }
    }

    // Reads weights (num_features, num_units), whose rows lie `stride` numbers apart, times `scale`; what pads
    // the tiles is 0.
    __device__ void read(const float* weights, int stride, int num_units, int num_features, float scale) {
#pragma unroll
        for (int i = 0; i < MINE_U * MINE_K * 8; ++i) (&tiles[0][0][0][0])[i] = 0;
        each(num_units, num_features, [&](int unit, int feature, float& held) {
            held = weights[static_cast<int64>(feature) * stride + unit] * scale;
        });
    }

    __device__ void write(float* weights, int stride, int num_units, int num_features, float scale) {
        each(num_units, num_features, [&](int unit, int feature, float& held) {
            weights[static_cast<int64>(feature) * stride + unit] = held * scale;
        });
    }

    // Writes x w over this group's features, for `row_tiles` tiles of 16 rows of x, to sums[group][row][unit], whose rows lie
    // `sums_stride` numbers apart. `scale` takes the weights' own out again.
    __device__ void multiply(const T* x, int x_stride, int row_tiles, float scale, float* sums,
                             int sums_stride) const {
        unsigned b[MINE_U][MINE_K][2][2];
#pragma unroll
        for (int i = 0; i < MINE_U; ++i) {
#pragma unroll
            for (int j = 0; j < MINE_K; ++j) {
#pragma unroll
                for (int part = 0; part < 4; ++part) {
                    const int half = part / 2, slice = part % 2;
                    const float* pair = &tiles[i][j][slice][2 * half];
                    b[i][j][half][slice] = packed<T>(pair[0] * scale, pair[1] * scale);
                }
            }
        }
        const int lane = threadIdx.x % 32;
        float* part_sums = sums + warp_k() * row_tiles * 16 * sums_stride;
        for (int r = 0; r < row_tiles; ++r) {
            float z[MINE_U][2][4] = {};
#pragma unroll
            for (int j = 0; j < MINE_K; ++j) {
                if (feature_tile(j) < FEATURE_TILES) {
                    unsigned a[4];
                    load_a(a, x + r * 16 * x_stride + feature_tile(j) * 16, x_stride);
#pragma unroll
                    for (int i = 0; i < MINE_U; ++i) {
                        TensorCore<T>::multiply(z[i][0], a, b[i][j][0]);
                        TensorCore<T>::multiply(z[i][1], a, b[i][j][1]);
                    }
                }
            }
#pragma unroll
            for (int i = 0; i < MINE_U * 4; ++i) {
                const int half = i % 4 / 2, below = i % 2;
                const int unit = (first_unit_tile() + i / 4) * 16 + half * 8 + lane % 4 * 2;
                const float* pair = &z[i / 4][half][2 * below];
                float* to = part_sums + (r * 16 + lane / 4 + below * 8) * sums_stride + unit;
                to[0] = pair[0];
                to[1] = pair[1];
            }
        }
    }

    // f(i, s, c) for each weight tiles[i][j][s][c] of a tile j of features.
    template <class F>
    __device__ static void each_of_tile(F f) {
#pragma unroll
        for (int part = 0; part < MINE_U * 8; ++part) f(part / 8, part % 8 / 4, part % 4);
    }

    // Adds dzᵀ x over `row_tiles` tiles of 16 rows to tile j of features; dz is [row][unit].
    __device__ void add_product(int j, const T* dz, int dz_stride, const T* x, int x_stride, int row_tiles) {
        if (feature_tile(j) >= FEATURE_TILES) return;
        for (int r = 0; r < row_tiles; ++r) {
            unsigned low[2], high[2];
            load_b_pair_transposed(low, high, x + r * 16 * x_stride + feature_tile(j) * 16, x_stride);
#pragma unroll
            for (int i = 0; i < MINE_U; ++i) {
                unsigned a[4];
                load_a_transposed(a, dz + r * 16 * dz_stride + (first_unit_tile() + i) * 16, dz_stride);
                TensorCore<T>::multiply(tiles[i][j][0], a, low);
                TensorCore<T>::multiply(tiles[i][j][1], a, high);
            }
        }
    }
};
