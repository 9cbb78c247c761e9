// Computes: y = f(z), z[m, i, j, o] = b[o] + sum of w[k, l, c, o] x[m, i stride + k dilation -
//           padding, ..., g C + c] over taps (k, l) and the C channels c of o's group g, x being 0
//           outside of the image.
// Layout:   x (M, H, W, channels), w (KH, KW, group_channels, outputs), bias (outputs) or null, y
//           and z (M, OH, OW, outputs), contiguous; num_windows = M OH OW. z is written if STORE_Z.
// Launch:   1-D grid of blocks of 256 threads, each for an output of a window; no shared memory.
//           Defines DTYPE, ACTIVATION, STORE_Z.
// Numerics: sums in float (double for float64), in the order bias, taps, channels.
// Cost:     2 M OH OW KH KW group_channels outputs FLOP; reads x KH KW group_outputs times, mostly
//           from L1.
// Reference: conv2d_forward of backends/numpy/conv.py.
#include "ops/activation/activation.cuh"
#include "ops/conv/groups/grouped.cuh"

extern "C" __global__ void __launch_bounds__(256)
    conv2d_grouped_forward(const T* x, const T* w, const T* bias, T* y, T* z, double slope,
                           int64 num_windows, int height, int width, int out_height, int out_width,
                           int kernel_height, int kernel_width, int stride_height, int stride_width,
                           int padding_height, int padding_width, int dilation_height,
                           int dilation_width, int channels, int outputs, int group_channels,
                           int group_outputs) {
    take_turn();
    const int64 idx = static_cast<int64>(blockIdx.x) * 256 + threadIdx.x, number = idx / outputs;
    if (number >= num_windows) return;
    const int output = static_cast<int>(idx - number * outputs);
    const int first_channel = output / group_outputs * group_channels;
    const Place window = place_of(number, {out_height, out_width});
    Acc sum = bias ? load(bias[output]) : Acc(0);
    for (int kh = 0; kh < kernel_height; ++kh) {
        const int row = window.row * stride_height + kh * dilation_height - padding_height;
        if (row < 0 || row >= height) continue;
        for (int kw = 0; kw < kernel_width; ++kw) {
            const int column = window.column * stride_width + kw * dilation_width - padding_width;
            if (column < 0 || column >= width) continue;
            const T* pixel =
                x + ((static_cast<int64>(window.image) * height + row) * width + column) * channels;
            const T* weights =
                w + static_cast<int64>(kh * kernel_width + kw) * group_channels * outputs + output;
            for (int c = 0; c < group_channels; ++c)
                sum += load(weights[c * outputs]) * load(pixel[first_channel + c]);
        }
    }
    if (STORE_Z) z[idx] = store<T>(sum);
    y[idx] = store<T>(activate<Activation::ACTIVATION>(sum, static_cast<Acc>(slope)));
}
