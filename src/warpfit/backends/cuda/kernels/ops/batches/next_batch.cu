// Computes: what a captured step needs of its own: with s = read(first_step) + offset, numbers =
//           table[s], and of every window target[i] = source[order[s · rows_per_step + i]] for the
//           rows i of the batch, converted.
// Layout:   table (steps, num_numbers) float64, numbers (num_numbers,) float64; order (N,) int64;
//           sources (N, row_size) and targets (rows, row_size), contiguous, of any alignment: of
//           the first window SOURCE0 and TARGET0, and so on.
// Launch:   grid (blocks over rows, windows), 1-D blocks of 256 threads, of which a window's
//           `lanes` have a row; rows in strides of the grid; at least one window; no shared memory.
//           Defines SOURCE0, TARGET0, to 2 (any element types).
// Numerics: rounds to the nearest even; a byte that becomes a float is divided by 255.
// Cost:     rows · row_size · (sizeof SOURCE + sizeof TARGET) bytes of each window.
// Reference: the rows that the engine layerwise takes.
#include "base/scalar.cuh"
#include "ops/batches/copy_row.cuh"

constexpr int MAX_WINDOWS = 3;
constexpr int THREADS = 256;

struct Window {
    const void* source;
    void* target;
    int row_size;
    int lanes;  // a power of two, at most THREADS
};

struct Windows {
    Window windows[MAX_WINDOWS];
};

template <class From, class To>
__device__ inline void take_rows(const Window& window, const int64* order, int64 num_rows) {
    const From* source = static_cast<const From*>(window.source);
    To* target = static_cast<To*>(window.target);
    const int size = window.row_size, lanes = window.lanes, rows_of_block = THREADS / lanes;
    const bool by_units = has_units(source, target, size);
    const int64 stride = static_cast<int64>(gridDim.x) * rows_of_block;
    for (int64 row = static_cast<int64>(blockIdx.x) * rows_of_block + threadIdx.x / lanes;
         row < num_rows; row += stride) {
        copy_row(source + order[row] * size, target + row * size, size, by_units,
                 threadIdx.x % lanes, lanes);
    }
}

extern "C" __global__ void __launch_bounds__(THREADS)
    next_batch(const __grid_constant__ Windows list, const int64* order, const double* table,
               double* numbers, int num_numbers, Scalar first_step, int64 offset,
               int64 rows_per_step, int64 num_rows) {
    take_turn();
    const int64 step = static_cast<int64>(read(first_step)) + offset;
    if (blockIdx.x == 0 && blockIdx.y == 0) {
        for (int i = threadIdx.x; i < num_numbers; i += THREADS)
            numbers[i] = table[step * num_numbers + i];
    }
    const Window& window = list.windows[blockIdx.y];
    const int64* own_order = order + step * rows_per_step;
    if (blockIdx.y == 0) {
        take_rows<SOURCE0, TARGET0>(window, own_order, num_rows);
    } else if (blockIdx.y == 1) {
        take_rows<SOURCE1, TARGET1>(window, own_order, num_rows);
    } else {
        take_rows<SOURCE2, TARGET2>(window, own_order, num_rows);
    }
}
