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
constexpr int COLUMN_THREADS = SIZE / FOUR;
constexpr int STEP = THREADS / BINS_AT_ONCE;  // rows of the shares that a thread finds
constexpr int NUMBERS = ROWS * SIZE / THREADS;
static_assert(THREADS == BINS_AT_ONCE * COLUMN_THREADS, "a thread adds up four numbers");
static_assert(THREADS == ROW_THREADS * COLUMN_THREADS * BINS_AT_ONCE / FOUR, "four bins a thread");

struct Tile {
    Four shares[ROWS][BINS_AT_ONCE / FOUR + 2];  // so that rows lie in different banks
    Four dy[ROWS][SIZE / FOUR];
};

// What a thread has of a tile of rows before it goes to shared memory: numbers of dy, and x of the
// rows whose shares of one bin it finds.
struct Ahead {
    T dy[NUMBERS], x[ROWS / STEP];

    __device__ void load(const T* of_dy, const T* of_x, int first, int end) {
        const int feature = blockIdx.y, num_features = gridDim.y;
#pragma unroll
        for (int i = 0; i < NUMBERS; ++i) {
            const int at = threadIdx.x + i * THREADS, row = first + at / SIZE;
            const int64 place = static_cast<int64>(row) * num_features + feature;
            dy[i] = row < end ? of_dy[place * SIZE + at % SIZE] : T(0);
        }
#pragma unroll
        for (int i = 0; i < ROWS / STEP; ++i) {
            const int row = first + threadIdx.x / BINS_AT_ONCE + i * STEP;
            x[i] = row < end ? of_x[static_cast<int64>(row) * num_features + feature] : T(0);
        }
    }
};

// Behind the bins come the line's weight and its bias; what is behind those is 0.
struct OwnBin {
    Bin bin;
    int behind;  // 0 of a bin

    __device__ OwnBin(const Bins& bins, int feature, int number)
        : bin(number < bins.count ? bins.at(feature, number) : Bin{}),
          behind(max(0, number - bins.count + 1)) {}

    __device__ T share(T x) const {
        return behind == 0 ? bin.share(x) : behind == 1 ? x : behind == 2 ? T(1) : T(0);
    }
};

// All threads; rows that are not there have gradients of 0.
__device__ inline void fill(Tile& tile, const Ahead& ahead, const OwnBin& bin) {
#pragma unroll
    for (int i = 0; i < NUMBERS; ++i) {
        const int at = threadIdx.x + i * THREADS;
        tile.dy[at / SIZE][at % SIZE / FOUR].at[at % FOUR] = ahead.dy[i];
    }
    const int own = threadIdx.x % BINS_AT_ONCE;
#pragma unroll
    for (int i = 0; i < ROWS / STEP; ++i) {
        const int row = threadIdx.x / BINS_AT_ONCE + i * STEP;
        tile.shares[row][own / FOUR].at[own % FOUR] = bin.share(ahead.x[i]);
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
              column = threadIdx.x / ROW_THREADS % COLUMN_THREADS,
              bin = threadIdx.x / (ROW_THREADS * COLUMN_THREADS);
    const OwnBin own_bin(bins, feature, first_bin + threadIdx.x % BINS_AT_ONCE);
    T sums[FOUR][FOUR] = {};  // bins, columns
    Ahead ahead;
    ahead.load(dy, x, begin, end);
    for (int first = begin; first < end; first += ROWS) {
        fill(tile, ahead, own_bin);
        __syncthreads();
        ahead.load(dy, x, first + ROWS, end);
#pragma unroll
        for (int row = row_thread; row < ROWS; row += ROW_THREADS) {
            const Four shares = tile.shares[row][bin], numbers = tile.dy[row][column];
#pragma unroll
            for (int i = 0; i < FOUR; ++i) {
#pragma unroll
                for (int j = 0; j < FOUR; ++j) sums[i][j] += shares.at[i] * numbers.at[j];
            }
        }
        __syncthreads();
    }
    const int64 place = static_cast<int64>(feature) * gridDim.z + blockIdx.z;
    const int64 step = static_cast<int64>(num_features) * gridDim.z * BINS_AT_ONCE * SIZE;
    T* own = partials + place * BINS_AT_ONCE * SIZE;
#pragma unroll
    for (int i = 0; i < FOUR; ++i) {
#pragma unroll
        for (int j = 0; j < FOUR; ++j) {
            T sum = sums[i][j];
#pragma unroll
            for (int lanes = 1; lanes < ROW_THREADS; lanes *= 2)
                sum += __shfl_xor_sync(FULL_WARP, sum, lanes);
            if (row_thread == j)
                own[part * step + (bin * FOUR + i) * SIZE + column * FOUR + j] = sum;
        }
    }
    if (!is_last_block(arrivals + place, num_parts)) return;
    const int number = first_bin + threadIdx.x / COLUMN_THREADS;
    if (number >= num_bins + 2) return;
    Four total = {};
#pragma unroll 8
    for (int j = 0; j < num_parts; ++j) {
        const Four found = reinterpret_cast<const Four*>(own + j * step)[threadIdx.x];
#pragma unroll
        for (int k = 0; k < FOUR; ++k) total.at[k] += found.at[k];
    }
    const bool is_bin = number < num_bins;
    const int64 row = is_bin ? static_cast<int64>(feature) * num_bins + number : feature;
    T* to = is_bin ? dpieces : number == num_bins ? dweight : dbias;
#pragma unroll
    for (int k = 0; k < FOUR; ++k)
        to[row * SIZE + threadIdx.x % COLUMN_THREADS * FOUR + k] = total.at[k];
}
