// Computes: y = share · the sum of every window's pixels, share = 1 / (KH · KW); with MAX their
//           largest, and its tap, row · KW + column, of equal ones the first; if of_positive, KH ·
//           KW unless it is above 0.
// Layout:   x (M, H, W, C), y and, with MAX, indices (M, OH, OW, C), contiguous, below 2^31
//           elements; indices of index_bytes bytes each. Where wide, C is a multiple of a vector's
//           elements and all arrays are aligned.
// Launch:   1-D blocks of 256 threads, a thread for every window and vector of channels
//           (num_threads, without vectors a channel); no shared memory; defines DTYPE, MAX.
// Numerics: sums in accumulator<DTYPE>, by growing tap; padding counts as 0. The largest is exact;
//           NaN if any pixel is, the tap then being that of the largest one before it.
// Cost:     sizeof DTYPE · (pixels + windows) bytes, with MAX index_bytes · windows more; an
//   operation for every tap.
// Reference: avg_pool2d_forward and max_pool2d_forward of backends/numpy/pool.py.
#include "base/math.cuh"
#include "ops/pool/pool.cuh"

using T = DTYPE;
using Acc = accumulator<T>;

template <int W>
__device__ inline void pool(const T* x, T* y, void* indices, int index_bytes, Acc share, int thread,
                            int channels, bool of_positive, const Axis& rows, const Axis& columns) {
    const Spot spot = spot_of<W>(thread, rows.num_windows, columns.num_windows, channels);
    const Range inside_rows = taps_inside(rows, spot.row);
    const Range inside_columns = taps_inside(columns, spot.column);
    const int top = spot.image * rows.size + spot.row * rows.stride - rows.padding;
    const int left = spot.column * columns.stride - columns.padding;
    Acc found[W];
    int index[W];
#pragma unroll
    for (int e = 0; e < W; ++e) {
        found[e] = MAX ? -infinity() : 0;
        index[e] = inside_rows.first * columns.kernel + inside_columns.first;
    }
#pragma unroll 1
    for (int row = inside_rows.first; row < inside_rows.end; ++row) {
#pragma unroll(W > 4 ? 1 : 2)
        for (int column = inside_columns.first; column < inside_columns.end; ++column) {
            const int pixel = (top + row) * columns.size + left + column;
            const auto group =
                *reinterpret_cast<const Group<T, W>*>(x + pixel * channels + spot.channel);
#pragma unroll
            for (int e = 0; e < W; ++e) {
                const Acc value = load(group.element[e]);
                if (!MAX) {
                    found[e] += value;
                } else {
                    if (value > found[e]) index[e] = row * columns.kernel + column;
                    if (value > found[e] || value != value) found[e] = value;
                }
            }
        }
    }
    Group<T, W> result;
#pragma unroll
    for (int e = 0; e < W; ++e) {
        if (MAX && of_positive && !(found[e] > Acc(0))) index[e] = rows.kernel * columns.kernel;
    }
#pragma unroll
    for (int e = 0; e < W; ++e) result.element[e] = store<T>(MAX ? found[e] : found[e] * share);
    *reinterpret_cast<Group<T, W>*>(y + thread * W) = result;
    if (MAX) store_indices<W>(indices, index_bytes, thread * W, index);
}

extern "C" __global__ void __launch_bounds__(256, MAX ? 4 : 1)
    pool2d_forward(const T* __restrict__ x, T* __restrict__ y, uint8* __restrict__ indices,
                   int index_bytes, double share, int num_threads, int channels, int wide,
                   int of_positive, int height, int out_height, int kernel_height,
                   int stride_height, int padding_height, int width, int out_width,
                   int kernel_width, int stride_width, int padding_width) {
    take_turn();
    const int thread = blockIdx.x * POOL_THREADS + threadIdx.x;
    if (thread >= num_threads) return;
    const Axis rows{height, out_height, kernel_height, stride_height, padding_height};
    const Axis columns{width, out_width, kernel_width, stride_width, padding_width};
    const Acc factor = static_cast<Acc>(share);
    if (wide) {
        pool<Vec<T>::SIZE>(x, y, indices, index_bytes, factor, thread, channels, of_positive, rows,
                           columns);
    } else {
        pool<1>(x, y, indices, index_bytes, factor, thread, channels, of_positive, rows, columns);
    }
}
