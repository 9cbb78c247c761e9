// Computes: y[i] = x[i] · scale, rounded to DTYPE.
// Layout:   x and y contiguous, n elements.
// Launch:   grid-stride over 1-D blocks of any size; no shared memory; defines SOURCE, DTYPE (float
//   types).
// Numerics: the product in the wider of the two arithmetic types, rounded to the nearest even.
// Cost:     n · (sizeof SOURCE + sizeof DTYPE) bytes, n FLOP.
// Reference: cast of backends/numpy/arrays.py.
#include "base/types.cuh"
#include "base/vec.cuh"

using Source = SOURCE;
using T = DTYPE;
using Acc = decltype(accumulator<Source>() + accumulator<T>());

// As many elements as sixteen bytes of the wider type hold, so that no access is wider than that.
constexpr int WIDTH = 16 / (sizeof(Source) > sizeof(T) ? sizeof(Source) : sizeof(T));

struct alignas(sizeof(Source) * WIDTH) Sources {
    Source at[WIDTH];
};

struct alignas(sizeof(T) * WIDTH) Results {
    T at[WIDTH];
};

__device__ inline T scaled(Source x, Acc scale) {
    return store<T>(static_cast<Acc>(load(x)) * scale);
}

extern "C" __global__ void cast(const Source* x, T* y, double scale, int64 n) {
    take_turn();
    const Acc factor = static_cast<Acc>(scale);
    const int64 thread = static_cast<int64>(blockIdx.x) * blockDim.x + threadIdx.x;
    const int64 num_threads = static_cast<int64>(gridDim.x) * blockDim.x;
    const int64 num_packs = is_aligned(x) && is_aligned(y) ? n / WIDTH : 0;
    for (int64 i = thread; i < num_packs; i += num_threads) {
        const Sources from = reinterpret_cast<const Sources*>(x)[i];
        Results to;
#pragma unroll
        for (int j = 0; j < WIDTH; ++j) to.at[j] = scaled(from.at[j], factor);
        reinterpret_cast<Results*>(y)[i] = to;
    }
    for (int64 i = num_packs * WIDTH + thread; i < n; i += num_threads) y[i] = scaled(x[i], factor);
}
