// Computes: e[m, f] = weight[f] x[m, f] + bias[f] + the sum over bins b of pieces[f, b] times the
//           share of b that lies below x[m, f]; 16 numbers each.
// Layout:   row-major and contiguous; x (num_rows, num_features), weight and bias (num_features,
//           16), pieces (num_features, bins, 16), what tells of bins (num_features, bins), e
//           (num_rows, num_features 16).
// Launch:   grid (ceil(num_rows / 128), num_features), block 128, static shared memory; define
//           DTYPE (float32 or float64).
// Numerics: in DTYPE, the line, then bins ascending.
// Cost:     2 num_rows num_features (bins + 1) 16 FLOP.
// Reference: piecewise_linear_forward of backends/numpy/piecewise_linear.py.
#include "ops/embedding/bins.cuh"

constexpr int ROWS = 128;
constexpr int BINS_AT_ONCE = 64;

extern "C" __global__ void __launch_bounds__(ROWS)
    piecewise_linear_forward(const T* __restrict__ x, const T* __restrict__ weight,
                             const T* __restrict__ bias, const T* __restrict__ pieces,
                             const T* __restrict__ factor, const T* __restrict__ offset,
                             const T* __restrict__ low, const T* __restrict__ high,
                             T* __restrict__ e, int num_rows, int num_features, int num_bins) {
    take_turn();
    __shared__ Bin own_bins[BINS_AT_ONCE];
    __shared__ Four own_pieces[BINS_AT_ONCE][SIZE / FOUR];
    const Bins bins{factor, offset, low, high, num_bins};
    const int feature = blockIdx.y;
    const int row = blockIdx.x * ROWS + threadIdx.x;
    const bool takes_part = row < num_rows;
    const T number = takes_part ? x[static_cast<int64>(row) * num_features + feature] : T(0);
    T sums[SIZE];
#pragma unroll
    for (int j = 0; j < SIZE; ++j)
        sums[j] = number * weight[feature * SIZE + j] + bias[feature * SIZE + j];
    for (int first = 0; first < num_bins; first += BINS_AT_ONCE) {
        const int count = min(BINS_AT_ONCE, num_bins - first);
        for (int i = threadIdx.x; i < count; i += ROWS) own_bins[i] = bins.at(feature, first + i);
        const T* from = pieces + (static_cast<int64>(feature) * num_bins + first) * SIZE;
        for (int i = threadIdx.x; i < count * SIZE; i += ROWS)
            own_pieces[i / SIZE][i % SIZE / FOUR].at[i % FOUR] = from[i];
        __syncthreads();
#pragma unroll 4
        for (int i = 0; i < count; ++i) {
            const T share = own_bins[i].share(number);
#pragma unroll
            for (int j = 0; j < SIZE / FOUR; ++j) {
                const Four piece = own_pieces[i][j];
#pragma unroll
                for (int k = 0; k < FOUR; ++k) sums[FOUR * j + k] += share * piece.at[k];
            }
        }
        __syncthreads();
    }
    if (!takes_part) return;
    // What `empty` gives out begins at multiples of 16 bytes.
    Four* to =
        reinterpret_cast<Four*>(e + (static_cast<int64>(row) * num_features + feature) * SIZE);
#pragma unroll
    for (int j = 0; j < SIZE / FOUR; ++j) {
        Four four;
#pragma unroll
        for (int k = 0; k < FOUR; ++k) four.at[k] = sums[FOUR * j + k];
        to[j] = four;
    }
}
