// Computes: dx[m, h, w, c] = sum of w[k, l, c, o] dz[m, i, j, o] over the taps (k, l) by which
//           window (i, j) sees pixel (h, w), and over the outputs o of c's group.
// Layout:   dz (M, OH, OW, outputs), w (KH, KW, group_channels, outputs), dx (M, H, W, channels),
//           contiguous; num_pixels = M H W.
// Launch:   1-D grid of blocks of 256 threads, each for a channel of a pixel; no shared memory.
//           Defines DTYPE.
// Numerics: sums in float (double for float64), in the order of taps and outputs.
// Cost:     2 M OH OW KH KW group_channels outputs FLOP; reads dz KH KW group_channels times,
//           mostly from L1.
// Reference: conv2d_backward_input of backends/numpy/conv.py.
#include "ops/conv/groups/grouped.cuh"

extern "C" __global__ void __launch_bounds__(256)
    conv2d_grouped_backward_input(const T* dz, const T* w, T* dx, int64 num_pixels, int height,
                                  int width, int out_height, int out_width, int kernel_height,
                                  int kernel_width, int stride_height, int stride_width,
                                  int padding_height, int padding_width, int dilation_height,
                                  int dilation_width, int channels, int outputs, int group_channels,
                                  int group_outputs) {
    take_turn();
    const int64 idx = static_cast<int64>(blockIdx.x) * 256 + threadIdx.x, number = idx / channels;
    if (number >= num_pixels) return;
    const int channel = static_cast<int>(idx - number * channels);
    const int group = channel / group_channels, in_group = channel - group * group_channels;
    const Place pixel = place_of(number, {height, width});
    Acc sum = 0;
    for (int kh = 0; kh < kernel_height; ++kh) {
        const int below = pixel.row + padding_height - kh * dilation_height;
        const int row = below / stride_height;
        if (below < 0 || row * stride_height != below || row >= out_height) continue;
        for (int kw = 0; kw < kernel_width; ++kw) {
            const int right = pixel.column + padding_width - kw * dilation_width;
            const int column = right / stride_width;
            if (right < 0 || column * stride_width != right || column >= out_width) continue;
            const T* window =
                dz + ((static_cast<int64>(pixel.image) * out_height + row) * out_width + column) *
                         outputs;
            const T* weights =
                w +
                (static_cast<int64>(kh * kernel_width + kw) * group_channels + in_group) * outputs;
            for (int o = 0; o < group_outputs; ++o) {
                const int output = group * group_outputs + o;
                sum += load(weights[output]) * load(window[output]);
            }
        }
    }
    dx[idx] = store<T>(sum);
}
