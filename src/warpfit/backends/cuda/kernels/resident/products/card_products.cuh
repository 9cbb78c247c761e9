// Products of a block of one_launch_card.cu, whose operands lie in shared memory: warps partition
// tiles of 16 by 16 of a result, or of weights' gradients tiles of 16 by 8. Operands are the
// block's, in rows 8 times an odd number apart; sums are the warp's own.
// Users: one_launch_card.cu.
#pragma once

#include "resident/layout/card_shapes.cuh"

// Operands A: 16 rows m and 16 columns k. Rows of shared memory go along k.
struct Rows {
    const T* first;
    int stride;

    __device__ void load(unsigned (&a)[4], int m, int k) const {
        load_a(a, first + m * 16 * stride + k * 16, stride);
    }
};

// Operands B: 16 of k by 16 columns n of layer L's weights, as two fragments. Forward, inputs are
// along k, and back, units.
template <int L>
struct ForwardWeights {
    const T* first;

    __device__ void load(unsigned (&b)[2][2], int k, int n) const {
        const int lane = threadIdx.x % 32;
        ldmatrix_x4_trans(b[0][0], b[0][1], b[1][0], b[1][1],
                          first + WeightTile<L>::place(k * 16 + lane % 16, n * 16 + lane / 16 * 8));
    }
};
template <int L>
struct BackwardWeights {
    const T* first;

    __device__ void load(unsigned (&b)[2][2], int k, int n) const {
        const int lane = threadIdx.x % 32;
        const int input = lane % 8 + lane / 16 * 8, unit = lane / 8 % 2 * 8;
        ldmatrix_x4(b[0][0], b[0][1], b[1][0], b[1][1],
                    first + WeightTile<L>::place(n * 16 + input, k * 16 + unit));
    }
};

// f(sums, row, column) for each 16 by 8 that falls to this warp of a product of M_TILES by N_TILES
// tiles of 16 by 16.
template <int M_TILES, int N_TILES, int K_TILES, class B, class F>
__device__ inline void each_tile(const Rows& a, const B& b, F f) {
#pragma unroll 1
    for (int i = threadIdx.x / 32; i < M_TILES * N_TILES; i += WARPS) {
        const int m = i % M_TILES, n = i / M_TILES;
        float sums[2][4] = {};
#pragma unroll
        for (int k = 0; k < K_TILES; ++k) {
            unsigned of_a[4], of_b[2][2];
            a.load(of_a, m, k);
            b.load(of_b, k, n);
#pragma unroll
            for (int half = 0; half < 2; ++half)
                TensorCore<T>::multiply(sums[half], of_a, of_b[half]);
        }
#pragma unroll
        for (int half = 0; half < 2; ++half) f(sums[half], m * 16, n * 16 + half * 8);
    }
}

// Four numbers of a row of a tile of 16 by 8, which two lanes have as pairs of two rows: the even
// one gets the upper row.
struct Quad {
    int row, column;
    float numbers[4];

    __device__ explicit Quad(const float (&sums)[4]) {
        const int lane = threadIdx.x % 32;
        const bool is_lower = lane % 2;
        const float first = __shfl_xor_sync(FULL_WARP, is_lower ? sums[0] : sums[2], 1);
        const float second = __shfl_xor_sync(FULL_WARP, is_lower ? sums[1] : sums[3], 1);
        row = lane / 4 + (is_lower ? 8 : 0);
        column = lane % 4 / 2 * 4;
        numbers[0] = is_lower ? first : sums[0];
        numbers[1] = is_lower ? second : sums[1];
        numbers[2] = is_lower ? sums[2] : first;
        numbers[3] = is_lower ? sums[3] : second;
    }
};

// How warps partition the gradients of M_TILES by N_TILES tiles of 16 by 8 weights: adjacent ones
// of a row to a warp, which takes what they share once.
template <int M_TILES, int N_TILES>
struct Gradients {
    __device__ static constexpr int in_a_row() {
        int count = smaller(N_TILES, (M_TILES * N_TILES + WARPS - 1) / WARPS);
        while (N_TILES % count) ++count;
        return count;
    }
    static constexpr int IN_A_ROW = in_a_row(), ITEMS_OF_ROW = N_TILES / IN_A_ROW,
                         ITEMS = M_TILES * ITEMS_OF_ROW, TURNS = (ITEMS + WARPS - 1) / WARPS,
                         TILES_OF_WARP = TURNS * IN_A_ROW;

    // f(turn, m, n) for each item of this warp and its first tile; indices of registers follow from
    // turns if these are UNROLLED.
    template <bool UNROLLED, class F>
    __device__ static void each_item(F f) {
#pragma unroll(UNROLLED ? TURNS : 1)
        for (int turn = 0; turn < TURNS; ++turn) {
            const int item = turn * WARPS + static_cast<int>(threadIdx.x) / 32;
            if (item < ITEMS) f(turn, item / ITEMS_OF_ROW, item % ITEMS_OF_ROW * IN_A_ROW);
        }
    }

    // f(sums, i, row, column) for each tile of inputs' transpose times dz, both ROWS long, that
    // falls to this warp as its i-th.
    template <bool UNROLLED, class F>
    __device__ static void each_tile(const Rows& inputs, const T* dz, int stride, F f) {
        each_item<UNROLLED>([&](int turn, int m, int first_n) {
            unsigned of_a[ROW_TILES][4];
#pragma unroll
            for (int k = 0; k < ROW_TILES; ++k)
                load_a_transposed(of_a[k], inputs.first + k * 16 * inputs.stride + m * 16,
                                  inputs.stride);
#pragma unroll(UNROLLED || SLOTS == 0 ? IN_A_ROW : 1)
            for (int i = 0; i < IN_A_ROW; ++i) {
                float sums[4] = {};
                multiply(sums, of_a, dz + (first_n + i) * 8, stride);
                f(sums, turn * IN_A_ROW + i, m * 16, (first_n + i) * 8);
            }
        });
    }

  private:
    // By 8 columns of dz, 32 rows at a time.
    __device__ static void multiply(float (&sums)[4], const unsigned (&of_a)[ROW_TILES][4],
                                    const T* dz, int stride) {
        const int lane = threadIdx.x % 32;
#pragma unroll
        for (int k = 0; k < ROW_TILES; k += 2) {
            unsigned b[2][2];
            ldmatrix_x4_trans(b[0][0], b[0][1], b[1][0], b[1][1],
                              dz + smaller(k * 16 + lane, ROWS - 1) * stride);
            TensorCore<T>::multiply(sums, of_a[k], b[0]);
            if (k + 1 < ROW_TILES)
                TensorCore<T>::multiply(sums, of_a[k + 1 < ROW_TILES ? k + 1 : k], b[1]);
        }
    }
};
