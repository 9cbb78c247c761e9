// What falls to each thread of a block of NUM_THREADS, which fills shared memory or goes over an
// array. Every thread of the block calls; nobody is waited for.
#pragma once

#include "base/types.cuh"

// Where a kernel begins: that threadIdx.x is below the bound, which NVRTC does not conclude from
// __launch_bounds__. Told so, it divides numbers of threads and warps without signs, and leaves out
// conditions that always hold.
template <int NUM_THREADS>
__device__ inline void know_threads() {
    __builtin_assume(threadIdx.x < NUM_THREADS);
}

// f(i) for each i below `count` that falls to this thread.
template <int NUM_THREADS, class F>
__device__ inline void each_of_block(int count, F f) {
    for (int i = threadIdx.x; i < count; i += NUM_THREADS) f(i);
}

// Makes `count` neighbours 0.
template <int NUM_THREADS, class Number>
__device__ inline void clear_by_block(Number* first, int count) {
    each_of_block<NUM_THREADS>(count, [&](int i) { first[i] = Number{}; });
}
