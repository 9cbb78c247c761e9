// Products of a block of one_launch_card.cu, whose operands lie in shared memory: warps partition
// tiles of 16 by 16 of a result, or of weights' gradients tiles of 16 by 8. Operands are the
// block's, in rows 8 times an odd number apart; sums are the warp's own.
#pragma once

#include "resident/layout/card_shapes.cuh"

// Operands B: 16 of k by 16 columns n, as two fragments, of a matrix with columns along n.
template <class Of>
struct Columns {
    Of& matrix;

    __device__ void load(unsigned (&b)[2][2], int k, int n) const {
        const int lane = threadIdx.x % 32;
        ldmatrix_x4_trans(b[0][0], b[0][1], b[1][0], b[1][1],
                          matrix.at(k * 16 + lane % 16, n * 16 + lane / 16 * 8));
    }
};

// Likewise with rows along n.
template <class Of>
struct TransposedColumns {
    Of& matrix;

    __device__ void load(unsigned (&b)[2][2], int k, int n) const {
        const int lane = threadIdx.x % 32;
        ldmatrix_x4(b[0][0], b[0][1], b[1][0], b[1][1],
                    matrix.at(n * 16 + lane % 8 + lane / 16 * 8, k * 16 + lane / 8 % 2 * 8));
    }
};

template <class Of>
__device__ inline Columns<Of> columns(Of& matrix) {
    return {matrix};
}
template <class Of>
__device__ inline TransposedColumns<Of> transposed_columns(Of& matrix) {
    return {matrix};
}

// f(sums, row, column) for each 16 by 8 that falls to this warp of a product of M_TILES by N_TILES
// tiles of 16 by 16; A is a matrix from `first_row` on.
template <int M_TILES, int N_TILES, int K_TILES, class A, class B, class F>
__device__ inline void each_tile(A& a, int first_row, const B& b, F f) {
    const int lane = this_thread() % 32;
#pragma unroll 1
    for (int i = this_thread() / 32; i < M_TILES * N_TILES; i += WARPS) {
        const int m = i % M_TILES, n = i / M_TILES;
        float sums[2][4] = {};
#pragma unroll
        for (int k = 0; k < K_TILES; ++k) {
            unsigned of_a[4], of_b[2][2];
            ldmatrix_x4(of_a[0], of_a[1], of_a[2], of_a[3],
                        a.at(first_row + m * 16 + lane % 16, k * 16 + lane / 16 * 8));
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

// All threads meet, and what they wrote to shared memory can be multiplied.
__device__ inline void meet_for_products() {
    if constexpr (APART) fence_async();
    __syncthreads();
}

// f(quad, column, first row) for each quad of a warp's sums of columns from `first` on.
template <class F>
__device__ inline void each_quad_of(const float (&sums)[ROWS / 2], int first, F f) {
#pragma unroll
    for (int i = 0; i < ROWS / 8; ++i) {
        const float part[4] = {sums[4 * i], sums[4 * i + 1], sums[4 * i + 2], sums[4 * i + 3]};
        const Quad quad(part);
        f(quad, first + quad.row, i * 8 + quad.column);
    }
}

// f(quad, column, first row) for each quad that falls to this warpgroup of a product of COLUMNS
// columns of weights by the rows of a batch, over DEPTH numbers of both, in panels: four rows of a
// column. In memory columns lie side by side if they are ACROSS; the rows' numbers go along k.
template <int COLUMNS, int DEPTH, bool ACROSS, class A, class B, class F>
__device__ inline void each_quad(A& weights, B& rows, F f) {
    static_assert(COLUMNS % 64 == 0 && DEPTH % 16 == 0 && WARPS % 4 == 0, "warpgroups take tiles");
    constexpr int HEIGHT = ACROSS ? DEPTH : COLUMNS, ROWS_PANEL = ROWS * LINE_BYTES;
    const int warp = this_thread() / 32;
#pragma unroll 1
    for (int tile = warp / 4; tile < COLUMNS / 64; tile += WARPS / 4) {
        const unsigned from = shared_address(weights.numbers) +
                              (ACROSS ? tile * HEIGHT * LINE_BYTES : tile * 64 * LINE_BYTES);
        const uint64 a = matrix_descriptor(from, HEIGHT * LINE_BYTES),
                     b = matrix_descriptor(shared_address(rows.numbers), ROWS_PANEL);
        float sums[ROWS / 2] = {};
        wgmma_fence();
#pragma unroll
        for (int slice = 0; slice < DEPTH / 16; ++slice) {
            const int panel = slice / SLICES, in_panel = slice % SLICES * SLICE_BYTES;
            const int of_a =
                ACROSS ? slice * 16 * LINE_BYTES : panel * HEIGHT * LINE_BYTES + in_panel;
            SliceProduct<T, ACROSS, false>::add_to(sums, moved(a, of_a),
                                                   moved(b, panel * ROWS_PANEL + in_panel), true);
        }
        wgmma_commit();
        wgmma_wait<0>();
        each_quad_of(sums, tile * 64 + warp % 4 * 16, f);
    }
}

// 16 inputs of all rows, transposed.
template <class Inputs>
__device__ inline void load_inputs(unsigned (&of_a)[ROW_TILES][4], Inputs& inputs, int m,
                                   int lane) {
#pragma unroll
    for (int k = 0; k < ROW_TILES; ++k)
        ldmatrix_x4_trans(of_a[k][0], of_a[k][1], of_a[k][2], of_a[k][3],
                          inputs.at(k * 16 + lane % 8 + lane / 16 * 8, m * 16 + lane / 8 % 2 * 8));
}

// sums += these times 8 columns of dz, 32 rows at a time.
template <class Dz>
__device__ inline void multiply_rows(float (&sums)[4], const unsigned (&of_a)[ROW_TILES][4], Dz& dz,
                                     int n, int lane) {
#pragma unroll
    for (int k = 0; k < ROW_TILES; k += 2) {
        unsigned b[2][2];
        ldmatrix_x4_trans(b[0][0], b[0][1], b[1][0], b[1][1],
                          dz.at(smaller(k * 16 + lane, ROWS - 1), n * 8));
        TensorCore<T>::multiply(sums, of_a[k], b[0]);
        if (k + 1 < ROW_TILES)
            TensorCore<T>::multiply(sums, of_a[k + 1 < ROW_TILES ? k + 1 : k], b[1]);
    }
}

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

    // f(turn, m, n) for each item of this warp, of those from a turn on, and its first tile;
    // indices of registers follow from turns if these are UNROLLED.
    template <bool UNROLLED, int FIRST = 0, int END = TURNS, class F>
    __device__ static void each_item(F f) {
#pragma unroll(UNROLLED ? END - FIRST : 1)
        for (int turn = FIRST; turn < END; ++turn) {
            const int item = turn * WARPS + this_thread() / 32;
            if (item < ITEMS) f(turn, item / ITEMS_OF_ROW, item % ITEMS_OF_ROW * IN_A_ROW);
        }
    }

    // f(sums, i, row, column) for each tile of inputs' transpose times dz, both ROWS long, that
    // falls to this warp as its i-th.
    template <bool UNROLLED, int FIRST = 0, int END = TURNS, class Inputs, class Dz, class F>
    __device__ static void each_tile(Inputs& inputs, Dz& dz, F f) {
        const int lane = this_thread() % 32;
        each_item<UNROLLED, FIRST, END>([&](int turn, int m, int first_n) {
            unsigned of_a[ROW_TILES][4];
            load_inputs(of_a, inputs, m, lane);
            constexpr int AT_ONCE = UNROLLED || SLOTS == 0 ? IN_A_ROW : 1;
#pragma unroll AT_ONCE
            for (int i = 0; i < IN_A_ROW; ++i) {
                float sums[4] = {};
                multiply_rows(sums, of_a, dz, first_n + i, lane);
                f(sums, turn * IN_A_ROW + i, m * 16, (first_n + i) * 8);
            }
        });
    }
};
