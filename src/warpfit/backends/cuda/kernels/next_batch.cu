// Computes: what a captured step needs of its own: with s = read(first_step) + offset, numbers = table[s], and of
//           every window target[i] = source[s · rows_per_step + i] for the rows i of the batch.
// Layout:   table (steps, num_numbers) float64, numbers (num_numbers,) float64; sources (N, row_bytes) and targets
//           (rows, row_bytes) of bytes, contiguous, of any alignment.
// Launch:   grid (blocks along a window, windows), 1-D blocks of 256 threads that take units in strides of the grid;
//           at least one window; no shared memory.
// Numerics: exact.
// Cost:     2 · rows · row_bytes of each window.
// Reference: the slices that the engine layerwise takes.
#include "include/scalar.cuh"
#include "include/types.cuh"

constexpr int MAX_WINDOWS = 3;

struct Window {
    const uint8* source;
    uint8* target;
    int64 row_bytes;
};

struct Windows {
    Window windows[MAX_WINDOWS];
};

static_assert(sizeof(Windows) == 72, "launch.py packs this struct");

template <class Unit>
__device__ inline void copy_window(const uint8* source, uint8* target, int64 num_bytes) {
    const Unit* from = reinterpret_cast<const Unit*>(source);
    Unit* to = reinterpret_cast<Unit*>(target);
    const int64 stride = static_cast<int64>(gridDim.x) * blockDim.x;
    for (int64 i = static_cast<int64>(blockIdx.x) * blockDim.x + threadIdx.x;
         i < num_bytes / static_cast<int64>(sizeof(Unit)); i += stride) {
        to[i] = from[i];
    }
}

extern "C" __global__ void __launch_bounds__(256)
    next_batch(const __grid_constant__ Windows list, const double* table, double* numbers, int num_numbers,
               Scalar first_step, int64 offset, int64 rows_per_step, int64 num_rows) {
    take_turn();
    const int64 step = static_cast<int64>(read(first_step)) + offset;
    if (blockIdx.x == 0 && blockIdx.y == 0) {
        for (int i = threadIdx.x; i < num_numbers; i += blockDim.x) {
            numbers[i] = table[step * num_numbers + i];
        }
    }
    const Window& window = list.windows[blockIdx.y];
    const uint8* source = window.source + step * rows_per_step * window.row_bytes;
    const int64 num_bytes = num_rows * window.row_bytes;
    const uint64 places = reinterpret_cast<uint64>(source) | reinterpret_cast<uint64>(window.target);
    const uint64 alignment = places | static_cast<uint64>(num_bytes);
    if (alignment % 16 == 0) {
        copy_window<uint4>(source, window.target, num_bytes);
    } else if (alignment % 4 == 0) {
        copy_window<uint32>(source, window.target, num_bytes);
    } else {
        copy_window<uint8>(source, window.target, num_bytes);
    }
}
