// Computes: dx = the sum of share · dy over the windows that cover this pixel, share = 1 / (KH ·
//           KW); with MAX of dy over those that took their value from it.
// Layout:   dy and, with MAX, indices (M, OH, OW, C), dx (M, H, W, C), contiguous, below 2^31
//           elements; indices of index_bytes bytes each. Where wide, C is a multiple of a vector's
//           elements and all arrays are aligned.
// Launch:   1-D blocks of 256 threads, a thread for every pixel, or, where windows lie side by side
//           (`are_apart`), for every window, with those that the image has only a part of, and for
//           every vector of channels (num_threads, without vectors a channel); no shared memory;
//           defines DTYPE, MAX.
// Numerics: sums in accumulator<DTYPE>, by growing tap.
// Cost:     sizeof DTYPE · (pixels + windows) bytes, with MAX index_bytes · windows more; an
//   addition for every window.
// Reference: avg_pool2d_backward and max_pool2d_backward of backends/numpy/pool.py.
#include "ops/pool/pool.cuh"

using T = DTYPE;
using Acc = accumulator<T>;

template <int W>
__device__ inline void spread(const T* dy, T* dx, const void* indices, int index_bytes, Acc share,
                              int thread, int channels, const Axis& rows, const Axis& columns) {
    const Spot spot = spot_of<W>(thread, rows.size, columns.size, channels);
    const Range over_rows = windows_over(rows, spot.row);
    const Range over_columns = windows_over(columns, spot.column);
    Acc sum[W] = {};
#pragma unroll 1
    for (int row = over_rows.end - 1; row >= over_rows.first; --row) {
        const int tap_row = spot.row + rows.padding - row * rows.stride;
        const int line = (spot.image * rows.num_windows + row) * columns.num_windows;
#pragma unroll 1
        for (int column = over_columns.end - 1; column >= over_columns.first; --column) {
            const int tap =
                tap_row * columns.kernel + spot.column + columns.padding - column * columns.stride;
            const int at = (line + column) * channels + spot.channel;
            const auto group = *reinterpret_cast<const Group<T, W>*>(dy + at);
            int index[W];
            if (MAX) load_indices<W>(indices, index_bytes, at, index);
#pragma unroll
            for (int e = 0; e < W; ++e) {
                if (!MAX) {
                    sum[e] += load(group.element[e]) * share;
                } else if (index[e] == tap) {
                    sum[e] += load(group.element[e]);
                }
            }
        }
    }
    Group<T, W> result;
#pragma unroll
    for (int e = 0; e < W; ++e) result.element[e] = store<T>(sum[e]);
    *reinterpret_cast<Group<T, W>*>(dx + thread * W) = result;
}

// Whether no pixel has two windows, and none is left out but at the ends.
__device__ inline bool are_apart(const Axis& axis) {
    return axis.stride == axis.kernel && axis.padding == 0;
}

// The pixels of one window; those of a part of one, at the end of an image, get nothing.
template <int W>
__device__ inline void spread_window(const T* dy, T* dx, const void* indices, int index_bytes,
                                     Acc share, int thread, int channels, const Axis& rows,
                                     const Axis& columns) {
    const Spot spot = spot_of<W>(thread, (rows.size + rows.kernel - 1) / rows.kernel,
                                 (columns.size + columns.kernel - 1) / columns.kernel, channels);
    const bool is_whole = spot.row < rows.num_windows && spot.column < columns.num_windows;
    Group<T, W> group{};
    int index[W] = {};
    if (is_whole) {
        const int line = spot.image * rows.num_windows + spot.row;
        const int at = (line * columns.num_windows + spot.column) * channels + spot.channel;
        group = *reinterpret_cast<const Group<T, W>*>(dy + at);
        if (MAX) load_indices<W>(indices, index_bytes, at, index);
    }
    const int top = spot.row * rows.kernel, left = spot.column * columns.kernel;
#pragma unroll 1
    for (int row = 0; row < min(rows.kernel, rows.size - top); ++row) {
        const int line = spot.image * rows.size + top + row;
#pragma unroll 2
        for (int column = 0; column < min(columns.kernel, columns.size - left); ++column) {
            const int tap = row * columns.kernel + column;
            Group<T, W> result;
#pragma unroll
            for (int e = 0; e < W; ++e) {
                const Acc value = load(group.element[e]);
                const bool is_given = !MAX || index[e] - tap == 0;
                result.element[e] = store<T>(is_given ? value * (MAX ? Acc(1) : share) : Acc(0));
            }
            const int at = (line * columns.size + left + column) * channels + spot.channel;
            *reinterpret_cast<Group<T, W>*>(dx + at) = result;
        }
    }
}

extern "C" __global__ void __launch_bounds__(256, MAX ? 4 : 1)
    pool2d_backward(const T* __restrict__ dy, T* __restrict__ dx, const uint8* __restrict__ indices,
                    int index_bytes, double share, int num_threads, int channels, int wide,
                    int height, int out_height, int kernel_height, int stride_height,
                    int padding_height, int width, int out_width, int kernel_width,
                    int stride_width, int padding_width) {
    take_turn();
    const int thread = blockIdx.x * POOL_THREADS + threadIdx.x;
    if (thread >= num_threads) return;
    const Axis rows{height, out_height, kernel_height, stride_height, padding_height};
    const Axis columns{width, out_width, kernel_width, stride_width, padding_width};
    const Acc factor = static_cast<Acc>(share);
    const bool apart = are_apart(rows) && are_apart(columns);
    if (apart && wide) {
        spread_window<Vec<T>::SIZE>(dy, dx, indices, index_bytes, factor, thread, channels, rows,
                                    columns);
    } else if (apart) {
        spread_window<1>(dy, dx, indices, index_bytes, factor, thread, channels, rows, columns);
    } else if (wide) {
        spread<Vec<T>::SIZE>(dy, dx, indices, index_bytes, factor, thread, channels, rows, columns);
    } else {
        spread<1>(dy, dx, indices, index_bytes, factor, thread, channels, rows, columns);
    }
}
