// Computes: y = x, converted from SOURCE to DTYPE; a byte that becomes a float is divided by 255.
// Layout:   x and y of one shape (n elements), with strides of their own, given by a Layout each; y
//           repeats nothing. is_tiled: x's memory runs along the last axis but one, y's along the
//           last, and both Layouts have the same axes.
// Launch:   256 threads; n · max(sizeof SOURCE, sizeof DTYPE) / 8192 blocks, rounded up; is_tiled:
//           a block for every 64 x 64 tile of the last two axes. Static shared memory of one tile,
//           padded; defines SOURCE, DTYPE (any element types).
// Numerics: rounds to the nearest even; floats become integers by truncation.
// Cost:     n · (sizeof SOURCE + sizeof DTYPE) bytes; no FLOP.
// Reference: asarray, copy and assign of backends/numpy/arrays.py.
#include "base/convert.cuh"
#include "ops/arrays/strided.cuh"

constexpr int EDGE = 64;
constexpr int STEP = 256 / EDGE;
// Tiles are turned over in bands of so many along x's memory: those under way at once then form a
// square, and lie close together in both arrays.
constexpr unsigned BAND = 32;
// Rows of shared memory are an odd number of banks apart.
constexpr int PITCH = EDGE + (sizeof(SOURCE) < 4 ? 4 / sizeof(SOURCE) : 1);

__device__ inline int at_most_edge(int64 count) {
    return count < EDGE ? static_cast<int>(count) : EDGE;
}

// Offset of matrix number `index` of those that the last two axes span.
__device__ inline int64 offset_of_matrix(const Layout& layout, unsigned index) {
    int64 offset = 0;
#pragma unroll 1
    for (int axis = static_cast<int>(layout.ndim) - 3; axis >= 0; --axis) {
        const unsigned size = static_cast<unsigned>(layout.shape[axis]);
        offset += static_cast<int64>(index % size) * layout.strides[axis];
        index /= size;
    }
    return offset;
}

// The block's tile: its matrix, and where it begins there.
struct TilePlace {
    unsigned matrix;
    int64 row, column;

    __device__ TilePlace(int64 num_rows, int64 num_columns) {
        const unsigned tiles_down = static_cast<unsigned>((num_rows + EDGE - 1) / EDGE);
        const unsigned tiles_across = static_cast<unsigned>((num_columns + EDGE - 1) / EDGE);
        matrix = blockIdx.x / (tiles_down * tiles_across);
        unsigned rest = blockIdx.x - matrix * (tiles_down * tiles_across);
        const unsigned tall = tiles_down < BAND ? tiles_down : BAND;
        const unsigned band = rest / (tall * tiles_across);
        rest -= band * (tall * tiles_across);
        const unsigned left = tiles_down - band * tall, height = left < tall ? left : tall;
        row = static_cast<int64>(band * tall + rest % height) * EDGE;
        column = static_cast<int64>(rest / height) * EDGE;
    }
};

// Turns over one tile: rows lie along x's memory, columns along y's.
__device__ inline void copy_tile(const SOURCE* x, const Layout& x_layout, DTYPE* y,
                                 const Layout& y_layout) {
    __shared__ SOURCE tile[EDGE][PITCH];
    const int down = static_cast<int>(x_layout.ndim) - 2, across = down + 1;
    const TilePlace place(x_layout.shape[down], x_layout.shape[across]);
    const int rows = at_most_edge(x_layout.shape[down] - place.row);
    const int columns = at_most_edge(x_layout.shape[across] - place.column);
    const int fast = threadIdx.x % EDGE, slow = threadIdx.x / EDGE;

    const int64 x_step = x_layout.strides[across];
    x += offset_of_matrix(x_layout, place.matrix) + (place.row + fast) * x_layout.strides[down] +
         (place.column + slow) * x_step;
    if (rows == EDGE && columns == EDGE) {
        // All loads are under way at once.
        SOURCE values[EDGE / STEP];
#pragma unroll
        for (int k = 0; k < EDGE / STEP; ++k) values[k] = x[k * STEP * x_step];
#pragma unroll
        for (int k = 0; k < EDGE / STEP; ++k) tile[slow + k * STEP][fast] = values[k];
    } else if (fast < rows) {
#pragma unroll 1
        for (int i = slow; i < columns; i += STEP) tile[i][fast] = x[(i - slow) * x_step];
    }
    __syncthreads();

    const int64 y_step = y_layout.strides[down];
    y += offset_of_matrix(y_layout, place.matrix) + (place.row + slow) * y_step +
         (place.column + fast) * y_layout.strides[across];
    if (fast < columns) {
#pragma unroll 8
        for (int i = slow; i < rows; i += STEP)
            y[(i - slow) * y_step] = convert<DTYPE>(tile[fast][i]);
    }
}

extern "C" __global__ void __launch_bounds__(256)
    copy_strided(const SOURCE* x, Layout x_layout, DTYPE* y, Layout y_layout, int is_tiled,
                 int64 n) {
    take_turn();
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
