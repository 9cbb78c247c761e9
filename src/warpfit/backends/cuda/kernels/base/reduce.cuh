// Sums, maxima and minima over a warp or a block, always in the same order, so that equal inputs
// give equal bits. Whole warps or blocks call. Scratch is the caller's shared memory, counters the
// launcher's, zero before and after.
#pragma once

#include "base/types.cuh"

constexpr int WARP = 32;
constexpr unsigned FULL_WARP = 0xffffffffu;

struct Sum {
    template <class A>
    __device__ static A join(A a, A b) {
        return a + b;
    }
};

// As NumPy's maximum and minimum: NaN if either is NaN.
struct Max {
    template <class A>
    __device__ static A join(A a, A b) {
        return a > b || a != a ? a : b;
    }
};

struct Min {
    template <class A>
    __device__ static A join(A a, A b) {
        return a < b || a != a ? a : b;
    }
};

// Every lane gets the result over all 32 lanes.
template <class Op, class A>
__device__ inline A reduce_warp(A value) {
#pragma unroll
    for (int offset = WARP / 2; offset > 0; offset /= 2) {
        value = Op::join(value, __shfl_xor_sync(FULL_WARP, value, offset));
    }
    return value;
}

// Every thread of a one-dimensional block of whole warps gets the result over all of them. `shared`
// holds 32 entries; it may be used again at once. `neutral` is what joins without effect.
template <class Op, class A>
__device__ inline A reduce_block(A value, A neutral, A* shared) {
    value = reduce_warp<Op>(value);
    const int num_warps = blockDim.x / WARP;
    if (threadIdx.x % WARP == 0) shared[threadIdx.x / WARP] = value;
    __syncthreads();
    const int lane = threadIdx.x % WARP;
    value = reduce_warp<Op>(lane < num_warps ? shared[lane] : neutral);
    __syncthreads();
    return value;
}

// Whether this block is the last of `num_blocks` to come here; its threads then see what all blocks
// wrote before. `arrivals` is zero before the launch, and again after. To be called by all threads.
__device__ inline bool is_last_block(unsigned* arrivals, unsigned num_blocks) {
    __shared__ bool is_last;
    __threadfence();
    __syncthreads();
    if (threadIdx.x == 0 && threadIdx.y == 0) {
        is_last = atomicAdd(arrivals, 1u) == num_blocks - 1;
        if (is_last) *arrivals = 0;
    }
    __syncthreads();
    __threadfence();
    return is_last;
}
