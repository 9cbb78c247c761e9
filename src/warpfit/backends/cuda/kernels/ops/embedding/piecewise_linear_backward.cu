// Computes: of each feature f, over all rows m, dweight[f] = Σ x[m, f] dy[m, f], dbias[f] =
//           Σ dy[m, f], and dpieces[f, b] = Σ dy[m, f] times the share of bin b that lies below
//           x[m, f]; 16 numbers each.
// Layout:   row-major and contiguous; dy (num_rows, num_features 16), x (num_rows, num_features),
//           what tells of bins (num_features, bins), dweight and dbias (num_features, 16), dpieces
//           (num_features, bins, 16); partials (parts, features, passes, 64, 16); arrivals
//           (features, passes), zero before and after.
// Launch:   grid (parts of the rows, num_features, ceil((bins + 2) / 64)), block 256, static shared
//           memory; define DTYPE (float32 or float64).
// Numerics: in DTYPE; a block's rows by fours, then four threads, then blocks, in a fixed sequence.
// Cost:     2 num_rows num_features (bins + 2) 16 FLOP.
// Reference: piecewise_linear_backward of backends/numpy/piecewise_linear.py.
#include "ops/embedding/bins.cuh"

constexpr int THREADS = 256;
constexpr int BINS_AT_ONCE = 64;
constexpr int ROWS = 32;        // in shared memory at once
constexpr int ROW_THREADS = 4;  // that share the rows
constexpr int COLUMNS = 4;      // of a thread
static_assert(COLUMNS == ROW_THREADS, "each thread of a row's writes a column");
constexpr int BIN_THREADS = THREADS / (ROW_THREADS * SIZE / COLUMNS);
constexpr int BINS = BINS_AT_ONCE / BIN_THREADS;  // of a thread

struct Tile {
    T shares[ROWS][BINS_AT_ONCE];
    T dy[ROWS][SIZE];
};

// Behind the bins come the line's weight and its bias.
__device__ inline T share_of(const Bins& bins, int feature, int bin, T x) {
    return bin < bins.count ? bins.share(feature, bin, x) : bin == bins.count ? x : T(1);
}

// All threads: rows from `first` on, zeros from `end` on.
__device__ inline void fill(Tile& tile, const T* dy, const T* x, const Bins& bins, int first,
                            int end, int first_bin) {
    const int feature = blockIdx.y, num_features = gridDim.y;
    for (int i = threadIdx.x; i < ROWS * SIZE; i += THREADS) {
        const int row = first + i / SIZE;
        const int64 at = (static_cast<int64>(row) * num_features + feature) * SIZE + i % SIZE;
        tile.dy[i / SIZE][i % SIZE] = row < end ? dy[at] : T(0);
    }
    for (int i = threadIdx.x; i < ROWS * BINS_AT_ONCE; i += THREADS) {
        const int row = first + i / BINS_AT_ONCE, bin = first_bin + i % BINS_AT_ONCE;
        const bool is_there = row < end && bin < bins.count + 2;
        const T number = is_there ? x[static_cast<int64>(row) * num_features + feature] : T(0);
        tile.shares[i / BINS_AT_ONCE][i % BINS_AT_ONCE] =
            is_there ? share_of(bins, feature, bin, number) : T(0);
    }
}

extern "C" __global__ void __launch_bounds__(THREADS, 2)
    piecewise_linear_backward(const T* __restrict__ dy, const T* __restrict__ x,
                              const T* __restrict__ factor, const T* __restrict__ offset,
                              const T* __restrict__ low, const T* __restrict__ high,
                              T* __restrict__ dweight, T* __restrict__ dbias,
                              T* __restrict__ dpieces, T* partials, unsigned* arrivals,
                              int num_rows, int num_features, int num_bins) {
    take_turn();
    __shared__ Tile tile;
    const Bins bins{factor, offset, low, high, num_bins};
    const int feature = blockIdx.y, first_bin = blockIdx.z * BINS_AT_ONCE;
    const int part = blockIdx.x, num_parts = gridDim.x;
    const int begin = static_cast<int64>(num_rows) * part / num_parts,
              end = static_cast<int64>(num_rows) * (part + 1) / num_parts;
    const int row_thread = threadIdx.x % ROW_THREADS,
              column = threadIdx.x / ROW_THREADS % (SIZE / COLUMNS) * COLUMNS,
              bin_thread = threadIdx.x / (ROW_THREADS * SIZE / COLUMNS);
    T sums[BINS][COLUMNS] = {};
    for (int first = begin; first < end; first += ROWS) {
        fill(tile, dy, x, bins, first, end, first_bin);
        __syncthreads();
#pragma unroll 2
        for (int row = row_thread; row < ROWS; row += ROW_THREADS) {
#pragma unroll
            for (int i = 0; i < BINS; ++i) {
                const T share = tile.shares[row][bin_thread + i * BIN_THREADS];
#pragma unroll
                for (int j = 0; j < COLUMNS; ++j) sums[i][j] += share * tile.dy[row][column + j];
            }
        }
        __syncthreads();
    }
    const int64 place = static_cast<int64>(feature) * gridDim.z + blockIdx.z;
    const int64 step = static_cast<int64>(num_features) * gridDim.z * BINS_AT_ONCE * SIZE;
    T* own = partials + place * BINS_AT_ONCE * SIZE;
#pragma unroll
    for (int i = 0; i < BINS; ++i) {
#pragma unroll
        for (int j = 0; j < COLUMNS; ++j) {
            T sum = sums[i][j];
#pragma unroll
            for (int lanes = 1; lanes < ROW_THREADS; lanes *= 2)
                sum += __shfl_xor_sync(FULL_WARP, sum, lanes);
            if (row_thread == j)
                own[part * step + (bin_thread + i * BIN_THREADS) * SIZE + column + j] = sum;
        }
    }
    if (!is_last_block(arrivals + place, num_parts)) return;
    for (int i = threadIdx.x; i < BINS_AT_ONCE * SIZE; i += THREADS) {
        const int bin = first_bin + i / SIZE;
        if (bin >= num_bins + 2) break;
        T sum = 0;
#pragma unroll 8
        for (int j = 0; j < num_parts; ++j) sum += __ldcg(own + j * step + i);
        const int64 of_line = feature * SIZE + i % SIZE;
        if (bin < num_bins) {
            dpieces[(static_cast<int64>(feature) * num_bins + bin) * SIZE + i % SIZE] = sum;
        } else {
            (bin == num_bins ? dweight : dbias)[of_line] = sum;
        }
    }
}
