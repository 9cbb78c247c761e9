// Computes: dx = dy · mask.
// Layout:   dy, mask, dx of n elements, contiguous, of any alignment.
// Launch:   1-D blocks of 256 threads, each taking 2 vectors of 16 bytes, in strides of the grid;
//           no shared memory; define DTYPE.
// Numerics: rounds to the nearest even.
// Cost:     3 · sizeof DTYPE bytes and 1 FLOP an element.
// Reference: dropout_backward of backends/numpy/dropout.py.
#include "base/group.cuh"

using T = DTYPE;

constexpr int THREADS = 256;
constexpr int UNROLL = 2;
constexpr int W = Vec<T>::SIZE;

extern "C" __global__ void __launch_bounds__(256)
    dropout_backward(const T* __restrict__ dy, const T* __restrict__ mask, T* __restrict__ dx,
                     int64 n) {
    take_turn();
    const bool wide = is_aligned(dy) && is_aligned(mask) && is_aligned(dx);
    const int64 tile = static_cast<int64>(THREADS) * W * UNROLL;
    for (int64 begin = blockIdx.x * tile + threadIdx.x * W; begin < n; begin += gridDim.x * tile) {
        Group<T, W> gradients[UNROLL];
        Group<T, W> masks[UNROLL];
#pragma unroll
        for (int u = 0; u < UNROLL; ++u) {
            gradients[u] = load_group<W>(dy, begin + u * THREADS * W, n, wide);
            masks[u] = load_group<W>(mask, begin + u * THREADS * W, n, wide);
        }
#pragma unroll
        for (int u = 0; u < UNROLL; ++u) {
#pragma unroll
            for (int e = 0; e < W; ++e) {
                gradients[u].element[e] =
                    store<T>(load(gradients[u].element[e]) * load(masks[u].element[e]));
            }
            store_group<W>(dx, begin + u * THREADS * W, n, wide, gradients[u]);
        }
    }
}
