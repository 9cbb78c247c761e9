// Computes: y = x, converted from SOURCE to DTYPE; a byte that becomes a float is divided by 255.
// Layout:   x and y of one shape (n elements), with strides of their own, given by a Layout each; y repeats
//           nothing. is_tiled: x's memory runs along the last axis but one, y's along the last, and both
//           Layouts have the same axes.
// Launch:   256 threads; n · max(sizeof SOURCE, sizeof DTYPE) / 8192 blocks, rounded up; is_tiled: a block
//           for every 64 x 64 tile of the last two axes. Static shared memory of one tile, padded; defines
//           SOURCE, DTYPE (any element types).
// Numerics: rounds to the nearest even; floats become integers by truncation.
// Cost:     n · (sizeof SOURCE + sizeof DTYPE) bytes; no FLOP.
// Reference: asarray, copy and assign of backends/numpy/arrays.py.
#include "include/convert.cuh"
#include "include/strided.cuh"

constexpr int EDGE = 64;
constexpr int STEP = 256 / EDGE;
// Rows of shared memory are an odd number of banks apart.
constexpr int PITCH = EDGE + (sizeof(SOURCE) < 4 ? 4 / sizeof(SOURCE) : 1);

__device__ inline int at_most_edge(int64 count) { return count < EDGE ? static_cast<int>(count) : EDGE; }

// Turns over one tile: rows lie along x's memory, columns along y's.
__device__ inline void copy_tile(const SOURCE* x, const Layout& x_layout, DTYPE* y, const Layout& y_layout) {
    __shared__ SOURCE tile[EDGE][PITCH];
    const int down = static_cast<int>(x_layout.ndim) - 2, across = down + 1;
    const int64 num_rows = x_layout.shape[down], num_columns = x_layout.shape[across];
    const int64 tiles_down = (num_rows + EDGE - 1) / EDGE, tiles_across = (num_columns + EDGE - 1) / EDGE;
    const int64 matrix = blockIdx.x / (tiles_down * tiles_across);
    const int64 first_row = blockIdx.x / tiles_across % tiles_down * EDGE;
    const int64 first_column = blockIdx.x % tiles_across * EDGE;
    const int64 first = (matrix * num_rows + first_row) * num_columns + first_column;
    x += offset_of(x_layout, first);
    y += offset_of(y_layout, first);
    const int rows = at_most_edge(num_rows - first_row), columns = at_most_edge(num_columns - first_column);
    const int fast = threadIdx.x % EDGE, slow = threadIdx.x / EDGE;
    if (fast < rows) {
        x += fast * x_layout.strides[down];
#pragma unroll 8
        for (int i = slow; i < columns; i += STEP) tile[i][fast] = x[i * x_layout.strides[across]];
    }
    __syncthreads();
    if (fast < columns) {
        y += fast * y_layout.strides[across];
#pragma unroll 4
        for (int i = slow; i < rows; i += STEP) y[i * y_layout.strides[down]] = convert<DTYPE>(tile[fast][i]);
    }
}

extern "C" __global__ void __launch_bounds__(256)
    copy_strided(const SOURCE* x, Layout x_layout, DTYPE* y, Layout y_layout, int is_tiled, int64 n) {
    if (is_tiled) {
        copy_tile(x, x_layout, y, y_layout);
        return;
    }
    constexpr int WIDTH = 16 / (sizeof(SOURCE) > sizeof(DTYPE) ? sizeof(SOURCE) : sizeof(DTYPE));
    const Tile<WIDTH> tile(n);
    const Operand<SOURCE, WIDTH> from(x, x_layout);
    const Operand<DTYPE, WIDTH> to(y, y_layout);
    if (!(tile.is_whole() && from.has_runs && to.has_runs && to.is_in_memory)) {
#pragma unroll 1
        for (int64 i = tile.begin + threadIdx.x; i < tile.end; i += Tile<WIDTH>::THREADS) {
            y[offset_of(y_layout, i)] = convert<DTYPE>(from.at(i));
        }
        return;
    }
    Run<SOURCE, WIDTH> runs[Tile<WIDTH>::RUNS];
    from.load(tile, runs);
#pragma unroll
    for (int k = 0; k < Tile<WIDTH>::RUNS; ++k) {
        Run<DTYPE, WIDTH> values;
#pragma unroll
        for (int j = 0; j < WIDTH; ++j) values.element[j] = convert<DTYPE>(runs[k].element[j]);
        store_run(y + offset_of(y_layout, tile.run(k)), values);
    }
}
