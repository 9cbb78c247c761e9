// Computes: C (m, n) = EPILOGUE(op(A) (m, k) @ op(B) (k, n)); the first rung: one thread, one sum.
// Layout:   row-major with leading dimensions in elements; A stored (m, k), or (k, m) with
//           TRANSPOSE_A = 1; B stored (k, n), or (n, k) with TRANSPOSE_B = 1; partials and arrivals
//           are not used.
// Launch:   grid (ceil(n / 16), ceil(m / 16)), block (16, 16), no shared memory; defines DTYPE,
//           OUT, TRANSPOSE_A, TRANSPOSE_B and those of gemm/epilogue.cuh.
// Numerics: sums in float (double for float64), k ascending, one rounding of the result.
// Cost:     2 m n k FLOP; every thread reads a row and a column: 2 m n k elements, most of them
//   from caches.
// Reference: matmul of backends/numpy/dense.py.
#include "gemm/epilogue.cuh"

extern "C" __global__ void matmul_naive(const T* a, const T* b, Out* c, const T* bias,
                                        const T* saved, Out* z, double alpha, double slope,
                                        Acc* partials, unsigned* arrivals, int m, int n, int k,
                                        int lda, int ldb, int ldc) {
    take_turn();
    const int row = blockIdx.y * 16 + threadIdx.y;
    const int col = blockIdx.x * 16 + threadIdx.x;
    if (row >= m || col >= n) return;
    Acc sums[1] = {Acc(0)};
    for (int i = 0; i < k; ++i) {
        const int64 a_at =
            TRANSPOSE_A ? static_cast<int64>(i) * lda + row : static_cast<int64>(row) * lda + i;
        const int64 b_at =
            TRANSPOSE_B ? static_cast<int64>(col) * ldb + i : static_cast<int64>(i) * ldb + col;
        sums[0] += load(a[a_at]) * load(b[b_at]);
    }
    const Epilogue epilogue{c, bias, saved, z, static_cast<Acc>(alpha), static_cast<Acc>(slope),
                            m, n,    ldc};
    write_sums(epilogue, row, col, sums);
}
