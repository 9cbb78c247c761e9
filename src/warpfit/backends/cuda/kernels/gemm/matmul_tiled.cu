// Computes: C (m, n) = EPILOGUE(op(A) (m, k) @ op(B) (k, n)); the second rung: tiles in shared
//   memory.
// Layout:   row-major with leading dimensions in elements; A stored (m, k), or (k, m) with
//           TRANSPOSE_A = 1; B stored (k, n), or (n, k) with TRANSPOSE_B = 1; partials and arrivals
//           are not used.
// Launch:   grid ceil(m / 16) ceil(n / 16), block (16, 16), static shared memory; defines DTYPE,
//           OUT, TRANSPOSE_A, TRANSPOSE_B and those of gemm/epilogue.cuh.
// Numerics: sums in float (double for float64), k ascending, one rounding of the result.
// Cost:     2 m n k FLOP; each element of A is read n / 16 times, each of B m / 16 times.
// Reference: matmul of backends/numpy/dense.py.
#include "gemm/epilogue.cuh"

constexpr int TILE = 16;

// Element (row, col) of op(X), stored as it is or transposed; 0 outside of (rows, cols).
template <bool TRANSPOSED>
__device__ inline Acc element(const T* x, int row, int col, int rows, int cols, int ld) {
    if (row >= rows || col >= cols) return Acc(0);
    return load(
        x[TRANSPOSED ? static_cast<int64>(col) * ld + row : static_cast<int64>(row) * ld + col]);
}

extern "C" __global__ void matmul_tiled(const T* a, const T* b, Out* c, const T* bias,
                                        const T* saved, Out* z, double alpha, double slope,
                                        Acc* partials, unsigned* arrivals, int m, int n, int k,
                                        int lda, int ldb, int ldc) {
    take_turn();
    // One more column than is used: threads that write down a column then hit different banks.
    __shared__ Acc tile_a[TILE][TILE + 1];
    __shared__ Acc tile_b[TILE][TILE + 1];
    const int x = threadIdx.x;
    const int y = threadIdx.y;
    const int tiles_n = (n + TILE - 1) / TILE;
    const int first_row = blockIdx.x / tiles_n * TILE;
    const int first_col = blockIdx.x % tiles_n * TILE;
    Acc sums[1] = {Acc(0)};
    for (int first_k = 0; first_k < k; first_k += TILE) {
        // Neighbouring threads (x) read neighbouring addresses, whichever way the operand is
        // stored.
        if (TRANSPOSE_A) {
            tile_a[x][y] = element<true>(a, first_row + x, first_k + y, m, k, lda);
        } else {
            tile_a[y][x] = element<false>(a, first_row + y, first_k + x, m, k, lda);
        }
        if (TRANSPOSE_B) {
            tile_b[x][y] = element<true>(b, first_k + x, first_col + y, k, n, ldb);
        } else {
            tile_b[y][x] = element<false>(b, first_k + y, first_col + x, k, n, ldb);
        }
        __syncthreads();
#pragma unroll
        for (int i = 0; i < TILE; ++i) sums[0] += tile_a[y][i] * tile_b[i][x];
        __syncthreads();
    }
    const Epilogue epilogue{c, bias, saved, z, static_cast<Acc>(alpha), static_cast<Acc>(slope),
                            m, n,    ldc};
    if (first_col + x < n) write_sums(epilogue, first_row + y, first_col + x, sums);
}
