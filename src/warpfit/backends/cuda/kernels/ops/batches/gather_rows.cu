// Computes: out[i] = x[rows[i]], converted from SOURCE to DTYPE; a byte that becomes a float is
//   divided by 255.
// Layout:   x (N, row_size), rows (num_rows,) int64 in [0, N), out (num_rows, row_size), all
//   contiguous.
// Launch:   2-D blocks: x runs along a row, y over rows; grid.x blocks of blockDim.y rows; no
//           shared memory; defines SOURCE, DTYPE (any element types).
// Numerics: rounds to the nearest even.
// Cost:     num_rows · row_size · (sizeof SOURCE + sizeof DTYPE) + 8 · num_rows bytes.
// Reference: gather_rows of backends/numpy/arrays.py.
#include "ops/batches/copy_row.cuh"

extern "C" __global__ void gather_rows(const SOURCE* x, const int64* rows, DTYPE* out, int num_rows,
                                       int row_size) {
    take_turn();
    const int row = blockIdx.x * blockDim.y + threadIdx.y;
    if (row >= num_rows) return;
    copy_row(x + rows[row] * row_size, out + static_cast<int64>(row) * row_size, row_size,
             has_units(x, out, row_size), threadIdx.x, blockDim.x);
}
