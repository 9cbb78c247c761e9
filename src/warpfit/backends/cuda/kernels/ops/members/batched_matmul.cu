// Computes: c[e] (m, n) = op(a[e]) (m, k) @ op(b[e]) (k, n) for every e.
// Layout:   row-major and contiguous; a[e] stored (m, k), or (k, m) with TRANSPOSE_A = 1; b[e]
//           stored (k, n), or (n, k) with TRANSPOSE_B = 1. A block computes a tile of 32 by 32, or,
//           with IS_THIN = 1, of 128 by 8; a thread four elements of it.
// Launch:   grid (tiles along n, tiles along m, E), block 256, static shared memory; defines DTYPE,
//           TRANSPOSE_A, TRANSPOSE_B, IS_THIN.
// Numerics: sums in float (double for float64), k ascending, one rounding of the result.
// Cost:     2 E m n k FLOP; each element of a is read once for each tile along n, each of b for
//           each along m.
// Reference: batched_matmul of backends/numpy/members.py.
#include "base/block.cuh"

using T = DTYPE;
using Acc = accumulator<T>;

constexpr int THREADS = 256;
constexpr int ROWS = IS_THIN ? 4 : 2;  // of a thread
constexpr int COLUMNS = IS_THIN ? 1 : 2;
constexpr int ACROSS = IS_THIN ? 8 : 16;  // threads
constexpr int DOWN = THREADS / ACROSS;
constexpr int TILE_M = DOWN * ROWS;
constexpr int TILE_N = ACROSS * COLUMNS;
constexpr int STEP = 16;  // of k

// Copies op(X)[first_row + i, first_column + j] to tile[i][j], 0 outside of (rows, columns).
template <bool TRANSPOSED, int HEIGHT, int WIDTH>
__device__ inline void fill(Acc (&tile)[HEIGHT][WIDTH + 1], const T* x, int first_row,
                            int first_column, int rows, int columns) {
    for (int at = threadIdx.x; at < HEIGHT * WIDTH; at += THREADS) {
        // Neighbouring threads read neighbouring addresses, whichever way the operand is stored.
        const int i = TRANSPOSED ? at % HEIGHT : at / WIDTH;
        const int j = TRANSPOSED ? at / HEIGHT : at % WIDTH;
        const int row = first_row + i;
        const int column = first_column + j;
        const int64 place = TRANSPOSED ? static_cast<int64>(column) * rows + row
                                       : static_cast<int64>(row) * columns + column;
        tile[i][j] = row < rows && column < columns ? load(x[place]) : Acc(0);
    }
}

extern "C" __global__ void __launch_bounds__(256, 4)
    batched_matmul(const T* __restrict__ a, const T* __restrict__ b, T* __restrict__ c, int m,
                   int n, int k) {
    take_turn();
    know_threads<THREADS>();
    __shared__ Acc tile_a[TILE_M][STEP + 1];
    __shared__ Acc tile_b[STEP][TILE_N + 1];
    const int64 batch = blockIdx.z;
    a += batch * m * k;
    b += batch * k * n;
    c += batch * m * n;
    const int first_row = blockIdx.y * TILE_M;
    const int first_column = blockIdx.x * TILE_N;
    const int x = threadIdx.x % ACROSS;
    const int y = threadIdx.x / ACROSS;
    Acc sums[ROWS][COLUMNS] = {};
    for (int first_k = 0; first_k < k; first_k += STEP) {
        fill<TRANSPOSE_A, TILE_M, STEP>(tile_a, a, first_row, first_k, m, k);
        fill<TRANSPOSE_B, STEP, TILE_N>(tile_b, b, first_k, first_column, k, n);
        __syncthreads();
        const int depth = k - first_k < STEP ? k - first_k : STEP;
#pragma unroll 4
        for (int i = 0; i < depth; ++i) {
#pragma unroll
            for (int row = 0; row < ROWS; ++row) {
#pragma unroll
                for (int column = 0; column < COLUMNS; ++column) {
                    sums[row][column] += tile_a[y + row * DOWN][i] * tile_b[i][x + column * ACROSS];
                }
            }
        }
        __syncthreads();
    }
#pragma unroll
    for (int row = 0; row < ROWS; ++row) {
#pragma unroll
        for (int column = 0; column < COLUMNS; ++column) {
            const int i = first_row + y + row * DOWN;
            const int j = first_column + x + column * ACROSS;
            if (i < m && j < n) c[static_cast<int64>(i) * n + j] = store<T>(sums[row][column]);
        }
    }
}
