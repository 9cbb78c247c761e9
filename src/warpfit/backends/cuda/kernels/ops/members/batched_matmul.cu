// Computes: c[e] (m, n) = op(a[e]) (m, k) @ op(b[e]) (k, n) for every e.
// Layout:   row-major and contiguous; a[e] stored (m, k), or (k, m) with TRANSPOSE_A = 1; b[e]
//           stored (k, n), or (n, k) with TRANSPOSE_B = 1. A block computes a tile of 32 by 32, a
//           thread four elements of it, 16 apart.
// Launch:   grid (ceil(n / 32), ceil(m / 32), E), block (16, 16), static shared memory; defines
//           DTYPE, TRANSPOSE_A, TRANSPOSE_B.
// Numerics: sums in float (double for float64), k ascending, one rounding of the result.
// Cost:     2 E m n k FLOP; each element of a is read n / 32 times, each of b m / 32 times.
// Reference: batched_matmul of backends/numpy/members.py.
#include "base/types.cuh"

using T = DTYPE;
using Acc = accumulator<T>;

constexpr int TILE = 32;
constexpr int SIDE = 16;
constexpr int STEP = 16;  // of k

// Copies op(X)[first_row + i, first_column + j] to tile[i][j], 0 outside of (rows, columns).
template <bool TRANSPOSED, int HEIGHT, int WIDTH>
__device__ inline void fill(Acc (&tile)[HEIGHT][WIDTH + 1], const T* x, int first_row,
                            int first_column, int rows, int columns) {
    for (int at = threadIdx.y * SIDE + threadIdx.x; at < HEIGHT * WIDTH; at += SIDE * SIDE) {
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

extern "C" __global__ void __launch_bounds__(256)
    batched_matmul(const T* __restrict__ a, const T* __restrict__ b, T* __restrict__ c, int m,
                   int n, int k) {
    take_turn();
    __shared__ Acc tile_a[TILE][STEP + 1];
    __shared__ Acc tile_b[STEP][TILE + 1];
    const int64 batch = blockIdx.z;
    a += batch * m * k;
    b += batch * k * n;
    c += batch * m * n;
    const int first_row = blockIdx.y * TILE;
    const int first_column = blockIdx.x * TILE;
    Acc sums[2][2] = {};
    for (int first_k = 0; first_k < k; first_k += STEP) {
        fill<TRANSPOSE_A, TILE, STEP>(tile_a, a, first_row, first_k, m, k);
        fill<TRANSPOSE_B, STEP, TILE>(tile_b, b, first_k, first_column, k, n);
        __syncthreads();
#pragma unroll
        for (int i = 0; i < STEP; ++i) {
#pragma unroll
            for (int row = 0; row < 2; ++row) {
#pragma unroll
                for (int column = 0; column < 2; ++column) {
                    sums[row][column] += tile_a[threadIdx.y + row * SIDE][i] *
                                         tile_b[i][threadIdx.x + column * SIDE];
                }
            }
        }
        __syncthreads();
    }
#pragma unroll
    for (int row = 0; row < 2; ++row) {
#pragma unroll
        for (int column = 0; column < 2; ++column) {
            const int i = first_row + threadIdx.y + row * SIDE;
            const int j = first_column + threadIdx.x + column * SIDE;
            if (i < m && j < n) c[static_cast<int64>(i) * n + j] = store<T>(sums[row][column]);
        }
    }
}
