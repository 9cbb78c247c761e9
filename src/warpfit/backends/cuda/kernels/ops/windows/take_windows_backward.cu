// Computes: dx of images whose windows have the gradient dy; see take_windows.cu. A pixel that
//           padding repeats has the sum of all that shows it.
// Layout:   as take_windows.cu has it, dx like x and dy like y.
// Launch:   a block of 256 threads for every image; no shared memory; define DTYPE.
// Numerics: sums in accumulator<DTYPE>, over rows and then columns, the pixel's own first, then
//           what padding before it shows, and behind it.
// Cost:     2 · sizeof DTYPE bytes and some 60 integer operations an element of dx, a few times as
//           many near borders.
// Reference: take_windows_backward of backends/numpy/image_windows.py.
#include "ops/windows/image_windows.cuh"

using T = DTYPE;
using Acc = accumulator<T>;

// The places that show a pixel: its own, and those of padding before and behind.
struct Places {
    int at[3];

    __device__ Places(int pixel, int first, const WindowAxis& axis, bool reflects) {
        at[0] = pixel - first;
        const bool before = reflects && pixel >= 1 && pixel <= axis.padding;
        const bool behind =
            reflects && pixel <= axis.size - 2 && pixel >= axis.size - 1 - axis.padding;
        at[1] = before ? -pixel - first : -1;
        at[2] = behind ? 2 * (axis.size - 1) - pixel - first : -1;
    }
};

extern "C" __global__ void __launch_bounds__(256)
    take_windows_backward(const T* __restrict__ dy, const float* __restrict__ bits,
                          T* __restrict__ dx, int channels, int height, int window_height,
                          int padding_height, int width, int window_width, int padding_width,
                          int reflects) {
    take_turn();
    const WindowAxis rows{height, window_height, padding_height};
    const WindowAxis columns{width, window_width, padding_width};
    const FirstPixel first = first_pixel(bits, blockIdx.x, rows, columns);
    const int line = width * channels, size = height * line;
    dy += static_cast<int64>(blockIdx.x) * window_height * window_width * channels;
    dx += static_cast<int64>(blockIdx.x) * size;
    for (int at = threadIdx.x; at < size; at += blockDim.x) {
        const int channel = at % channels;
        const Places of_rows(at / line, first.row, rows, reflects);
        const Places of_columns(at % line / channels, first.column, columns, reflects);
        Acc sum = 0;
#pragma unroll
        for (int j = 0; j < 3; ++j) {
            const int column = of_columns.at[j];
            Acc of_column = 0;
#pragma unroll
            for (int i = 0; i < 3; ++i) {
                const int row = of_rows.at[i];
                const bool inside =
                    row >= 0 && row < window_height && column >= 0 && column < window_width;
                if (inside) {
                    of_column += load(dy[(row * window_width + column) * channels + channel]);
                }
            }
            sum += of_column;
        }
        dx[at] = store<T>(sum);
    }
}
