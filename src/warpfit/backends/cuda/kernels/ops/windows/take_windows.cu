// Computes: y[m] = the window of image m that begins where its bits say, of the image padded with
//           zeros or, if reflects, its reflection.
// Layout:   x (M, height, width, channels), y (M, window_height, window_width, channels), bits (M,
//           2, 16) float32, contiguous.
// Launch:   a block of 256 threads for every image; no shared memory; define DTYPE.
// Numerics: exact.
// Cost:     2 · sizeof DTYPE bytes and some 20 integer operations an element of y.
// Reference: take_windows of backends/numpy/image_windows.py.
#include "ops/conv/counter.cuh"
#include "ops/windows/image_windows.cuh"

using T = DTYPE;

extern "C" __global__ void __launch_bounds__(256)
    take_windows(const T* __restrict__ x, const float* __restrict__ bits, T* __restrict__ y,
                 int channels, int height, int window_height, int padding_height, int width,
                 int window_width, int padding_width, int reflects) {
    take_turn();
    const WindowAxis rows{height, window_height, padding_height};
    const WindowAxis columns{width, window_width, padding_width};
    const FirstPixel first = first_pixel(bits, blockIdx.x, rows, columns);
    const int size = window_height * window_width * channels;
    x += static_cast<int64>(blockIdx.x) * height * width * channels;
    y += static_cast<int64>(blockIdx.x) * size;
    Counter at(threadIdx.x, blockDim.x, window_width, channels);
    for (int i = threadIdx.x; i < size; i += blockDim.x, at.advance()) {
        int row = first.row + at.a;
        int column = first.column + at.b;
        if (reflects) {
            row = reflected(row, height);
            column = reflected(column, width);
        }
        const bool inside = row >= 0 && row < height && column >= 0 && column < width;
        y[i] = inside ? x[(row * width + column) * channels + at.c] : T{};
    }
}
