// Computes: for each part of the windows its share of dw[k, l, c, o] = sum of x[m, i stride + k
//           dilation - padding, ..., g C + c] dz[m, i, j, o] over windows (m, i, j), C channels
//           being those of o's group g.
// Layout:   dz (M, OH, OW, outputs), x (M, H, W, channels), contiguous; num_windows = M OH OW;
//           partials (parts, KH KW group_channels, outputs) of the arithmetic type.
// Launch:   grid (KH KW group_channels times tiles of 32 outputs, 1, parts), the tiles of a tap and
//           channel side by side; blocks of 256 threads: 32 along the outputs, 8 over windows; no
//           dynamic shared memory. Define DTYPE.
// Numerics: a thread sums every eighth window of its part in float (double for float64), then the
//           eight sums are added in their order.
// Cost:     2 M OH OW KH KW group_channels outputs FLOP; reads dz and x for each tap and channel of
//           a group, mostly from L2.
// Reference: conv2d_backward_weight of backends/numpy/conv.py.
#include "ops/conv/groups/grouped.cuh"

constexpr int COLUMNS = 32, LINES = 8;

extern "C" __global__ void __launch_bounds__(COLUMNS* LINES)
    conv2d_grouped_backward_weight(const T* dz, const T* x, Acc* partials, int64 num_windows,
                                   int height, int width, int out_height, int out_width,
                                   int kernel_height, int kernel_width, int stride_height,
                                   int stride_width, int padding_height, int padding_width,
                                   int dilation_height, int dilation_width, int channels,
                                   int outputs, int group_channels, int group_outputs) {
    take_turn();
    __shared__ Acc shared[LINES][COLUMNS];
    const int column = threadIdx.x % COLUMNS, line = threadIdx.x / COLUMNS;
    const int tiles = (outputs + COLUMNS - 1) / COLUMNS, row = blockIdx.x / tiles;
    const int output = (blockIdx.x - row * tiles) * COLUMNS + column;
    const int tap = row / group_channels, in_group = row % group_channels;
    const int kh = tap / kernel_width, kw = tap % kernel_width;
    const int64 first = num_windows * blockIdx.z / gridDim.z,
                end = num_windows * (blockIdx.z + 1) / gridDim.z;
    Acc sum = 0;
    if (output < outputs) {
        const int channel = output / group_outputs * group_channels + in_group;
        for (int64 number = first + line; number < end; number += LINES) {
            const Place window = place_of(number, {out_height, out_width});
            const int h = window.row * stride_height + kh * dilation_height - padding_height;
            const int w = window.column * stride_width + kw * dilation_width - padding_width;
            if (h < 0 || h >= height || w < 0 || w >= width) continue;
            const int64 pixel = (static_cast<int64>(window.image) * height + h) * width + w;
            sum += load(dz[number * outputs + output]) * load(x[pixel * channels + channel]);
        }
    }
    shared[line][column] = sum;
    __syncthreads();
    if (line > 0 || output >= outputs) return;
#pragma unroll
    for (int other = 1; other < LINES; ++other) sum += shared[other][column];
    const int64 rows = gridDim.x / tiles;
    partials[(blockIdx.z * rows + row) * outputs + output] = sum;
}
