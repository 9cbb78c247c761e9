// Each block writes its part of `source` backwards to `target`, through dynamic shared memory.
#include "base/types.cuh"

using T = DTYPE;

extern "C" __global__ void reversed(T* target, const T* source) {
    DYNAMIC_SHARED(T, tile);
    const int64 start = static_cast<int64>(blockIdx.x) * blockDim.x;
    tile[threadIdx.x] = source[start + threadIdx.x];
    __syncthreads();
    target[start + threadIdx.x] = tile[blockDim.x - 1 - threadIdx.x];
}
