// The weights of a layer in the registers of a block, which multiplies by them and updates them
// there.
//
// The first GROUPS_K GROUPS_U warps of the block form GROUPS_K groups along the INPUTS features and
// GROUPS_U along the COLUMNS units. A warp holds tiles of 16 units by 16 features, laid out as the
// accumulators of two mma: what is added to a weight is a product in the same lane. The same
// registers, rounded to 16 bits, are the B fragments of the product with the features, so that
// weights never lie in shared memory.
//
// Weights are held times a power of two, in float32.
#pragma once

#include "mma/fragments.cuh"

template <class T, int INPUTS, int COLUMNS, int GROUPS_K, int GROUPS_U>
struct HeldWeights {
    static constexpr int FEATURE_TILES = (INPUTS + 15) / 16, UNIT_TILES = (COLUMNS + 15) / 16;
    // Tiles of a warp: MINE_K along the features, GROUPS_K apart, and MINE_U adjacent ones along
    //   the units.
    static constexpr int MINE_K = (FEATURE_TILES + GROUPS_K - 1) / GROUPS_K;
    static constexpr int MINE_U = UNIT_TILES / GROUPS_U;
    static_assert(UNIT_TILES % GROUPS_U == 0, "the groups along the units have as many tiles each");
    static constexpr int MINE = MINE_U * MINE_K;
    // Tiles of 8 units. Of a warp's, the last may be there for the sake of 16 only.
    static constexpr int HALF_TILES = GROUPS_U == 1 ? (COLUMNS + 7) / 8 : 2 * UNIT_TILES;
    __device__ static constexpr bool has_half(int half) {
        return GROUPS_U > 1 || half < HALF_TILES;
    }

    using Sums = float[MINE_U][2][4];
    // As B fragments of the product with the features: of each tile the halves of its units, each
    // two words.
    using Fragments = unsigned[MINE_U][MINE_K][2][2];

    float tiles[MINE_U][MINE_K][2][4];

    __device__ static int warp_k() { return static_cast<int>(threadIdx.x) / 32 % GROUPS_K; }
    __device__ static int first_unit_tile() {
        return static_cast<int>(threadIdx.x) / 32 / GROUPS_K * MINE_U;
    }
    __device__ static int feature_tile(int j) { return warp_k() + j * GROUPS_K; }

    // Whether this warp has a tile j; all have, but perhaps the last.
    __device__ static bool has_tile(int j) {
        return (j + 1) * GROUPS_K <= FEATURE_TILES || feature_tile(j) < FEATURE_TILES;
    }
    __device__ static int num_feature_tiles() { return MINE_K - !has_tile(MINE_K - 1); }

    // f(weight) for each that this thread holds.
    template <class F>
    __device__ void each(F f) {
#pragma unroll
        for (int i = 0; i < MINE * 8; ++i) f((&tiles[0][0][0][0])[i]);
    }

    // f(weight, velocity) likewise, of two layers of the same shape.
    template <class F>
    __device__ void each_with(HeldWeights& velocities, F f) {
#pragma unroll
        for (int i = 0; i < MINE * 8; ++i) {
            f((&tiles[0][0][0][0])[i], (&velocities.tiles[0][0][0][0])[i]);
        }
    }

    // The unit and the feature of each of the eight numbers that a thread has of tile (i, j).
    __device__ static int unit_of(int i, int part) {
        const int lane = threadIdx.x % 32;
        return (first_unit_tile() + i) * 16 + lane / 4 + part % 4 / 2 * 8;
    }
    __device__ static int feature_of(int j, int part) {
        const int lane = threadIdx.x % 32;
        return feature_tile(j) * 16 + part / 4 * 8 + lane % 4 * 2 + part % 2;
    }

    // f(unit, feature, weight) for each weight of this thread below these numbers.
    template <class F>
    __device__ void each_below(int num_units, int num_features, F f) {
#pragma unroll
        for (int i = 0; i < MINE_U; ++i) {
#pragma unroll
            for (int j = 0; j < MINE_K; ++j) {
#pragma unroll
                for (int part = 0; part < 8; ++part) {
                    const int unit = unit_of(i, part), feature = feature_of(j, part);
                    if (unit < num_units && feature < num_features) {
                        f(unit, feature, tiles[i][j][part / 4][part % 4]);
                    }
                }
            }
        }
    }

    // Reads weights (num_features, num_units), whose rows lie `stride` numbers apart, times
    // `scale`; what pads the tiles is 0.
    __device__ void read(const float* weights, int stride, int num_units, int num_features,
                         float scale) {
        each([](float& held) { held = 0; });
        each_below(num_units, num_features, [&](int unit, int feature, float& held) {
            held = weights[static_cast<int64>(feature) * stride + unit] * scale;
        });
    }

    __device__ void write(float* weights, int stride, int num_units, int num_features,
                          float scale) {
        each_below(num_units, num_features, [&](int unit, int feature, float& held) {
            weights[static_cast<int64>(feature) * stride + unit] = held * scale;
        });
    }

    // Rounds f(weight, velocity) of each weight.
    template <class F>
    __device__ void round(Fragments& b, const HeldWeights& velocities, F f) const {
#pragma unroll
        for (int i = 0; i < MINE_U; ++i) {
#pragma unroll
            for (int j = 0; j < MINE_K; ++j) {
#pragma unroll
                for (int part = 0; part < 4; ++part) {
                    const int half = part / 2, slice = part % 2;
                    const float *pair = &tiles[i][j][slice][2 * half],
                                *velocity = &velocities.tiles[i][j][slice][2 * half];
                    b[i][j][half][slice] =
                        packed<T>(f(pair[0], velocity[0]), f(pair[1], velocity[1]));
                }
            }
        }
    }

    // Takes fragments from words(tile, pair): two weights, rounded, that lie next to each other.
    template <class F>
    __device__ static void set_fragments(Fragments& b, F words) {
#pragma unroll
        for (int i = 0; i < MINE * 4; ++i)
            b[i / 4 / MINE_K][i / 4 % MINE_K][i % 2][i % 4 / 2] = words(i / 4, i % 4);
    }

    // The products of tiles of 16 rows of x with the weights, over this warp's features and units.
    // load(a, t, tile) gives the fragment of tile t of rows and a tile of features.
    template <int TILES, class F>
    __device__ static void multiply(const Fragments& b, Sums (&z)[TILES], F load) {
        // Two sums where there are few: an mma need not wait for the one before.
        constexpr int CHAINS = MINE_U * TILES == 1 && MINE_K > 1 ? 2 : 1;
        float sums[CHAINS][TILES][MINE_U][2][4] = {};
#pragma unroll
        for (int j = 0; j < MINE_K; ++j) {
            if (!has_tile(j)) break;
            unsigned a[TILES][4];
#pragma unroll
            for (int t = 0; t < TILES; ++t) load(a[t], t, feature_tile(j));
#pragma unroll
            for (int i = 0; i < TILES * MINE_U * 2; ++i) {
                const int t = i / 2 / MINE_U, u = i / 2 % MINE_U, half = i % 2;
                if (!has_half(2 * u + half)) continue;
                TensorCore<T>::multiply(sums[j % CHAINS][t][u][half], a[t], b[u][j][half]);
            }
        }
#pragma unroll
        for (int i = 0; i < TILES * MINE_U * 8; ++i) {
            const int t = i / 8 / MINE_U, u = i / 8 % MINE_U, half = i % 8 / 4, part = i % 4;
            z[t][u][half][part] = sums[0][t][u][half][part];
            if (CHAINS > 1) z[t][u][half][part] += sums[CHAINS - 1][t][u][half][part];
        }
    }

    // The gradients of tiles of 16 rows, as A fragments; dz is [row][unit], tile after tile.
    template <int TILES>
    __device__ static void load_gradients(unsigned (&a)[TILES][MINE_U][4], const T* dz,
                                          int dz_stride) {
#pragma unroll
        for (int i = 0; i < TILES * MINE_U; ++i) {
            const int t = i / MINE_U, u = i % MINE_U;
            load_a_transposed(a[t][u], dz + t * 16 * dz_stride + (first_unit_tile() + u) * 16,
                              dz_stride);
        }
    }

    // dzᵀ x over tiles of 16 rows, as far as this warp's tile j along the features goes.
    template <int TILES>
    __device__ static void find_product(Sums& sums, const unsigned (&a)[TILES][MINE_U][4],
                                        const T* const (&x)[TILES], int x_stride, int j) {
#pragma unroll
        for (int i = 0; i < MINE_U * 8; ++i) sums[i / 8][i % 8 / 4][i % 4] = 0;
#pragma unroll
        for (int t = 0; t < TILES; ++t) {
            unsigned low[2], high[2];
            load_b_pair_transposed(low, high, x[t] + feature_tile(j) * 16, x_stride);
#pragma unroll
            for (int u = 0; u < MINE_U; ++u) {
                TensorCore<T>::multiply(sums[u][0], a[t][u], low);
                TensorCore<T>::multiply(sums[u][1], a[t][u], high);
            }
        }
    }

    // Adds dzᵀ x over tiles of 16 rows to the weights. The sum over the tiles is added in float32:
    // tensor cores cut off what is small beside the number that they add to, product by product.
    // finish(tile, numbers) for each tile that is done.
    template <int TILES, class F>
    __device__ void add_product(const T* dz, int dz_stride, const T* const (&x)[TILES],
                                int x_stride, F finish) {
        unsigned a[TILES][MINE_U][4];
        load_gradients(a, dz, dz_stride);
#pragma unroll
        for (int j = 0; j < MINE_K; ++j) {
            if (!has_tile(j)) {
#pragma unroll
                for (int u = 0; u < MINE_U; ++u) finish(u * MINE_K + j, tiles[u][j]);
                break;
            }
            Sums sums;
            find_product(sums, a, x, x_stride, j);
#pragma unroll
            for (int i = 0; i < MINE_U * 8; ++i)
                tiles[i / 8][j][i % 8 / 4][i % 4] += sums[i / 8][i % 8 / 4][i % 4];
#pragma unroll
            for (int u = 0; u < MINE_U; ++u) finish(u * MINE_K + j, tiles[u][j]);
        }
    }
};
