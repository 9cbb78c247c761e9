// Means over the whole grid, from one launch: the terms of every thread are added in float64, in a
// fixed sequence. Partials and the counter are the launcher's, one place for each block; the last
// block alone reads them.
#pragma once

#include "base/reduce.cuh"
#include "base/types.cuh"

// Adds up every sum over all threads of all blocks. True in one block, whose threads then have the
// results; partials holds N numbers for each block, and arrivals one zero (both unused, and null,
// with a single block).
template <int N>
__device__ inline bool sum_over_grid(double (&sums)[N], double* partials, unsigned* arrivals) {
    __shared__ double shared[WARP];
#pragma unroll
    for (int k = 0; k < N; ++k) sums[k] = reduce_block<Sum>(sums[k], 0.0, shared);
    if (gridDim.x == 1) return true;
    if (threadIdx.x == 0) {
        for (int k = 0; k < N; ++k) partials[static_cast<int64>(blockIdx.x) * N + k] = sums[k];
    }
    if (!is_last_block(arrivals, gridDim.x)) return false;
    for (int k = 0; k < N; ++k) sums[k] = 0;
#pragma unroll 4
    for (unsigned block = threadIdx.x; block < gridDim.x; block += blockDim.x) {
#pragma unroll
        for (int k = 0; k < N; ++k) sums[k] += partials[static_cast<int64>(block) * N + k];
    }
#pragma unroll
    for (int k = 0; k < N; ++k) sums[k] = reduce_block<Sum>(sums[k], 0.0, shared);
    return true;
}

// Writes total / denominator, which is 0 where there is nothing to average.
template <class A>
__device__ inline void write_mean(A* mean, double total, double denominator) {
    *mean = static_cast<A>(denominator != 0 ? total / denominator : total * 0);
}

// 1 / denominator, and 0 for 0: what a gradient of a mean is multiplied by.
template <class A>
__device__ inline A inverse_or_zero(A denominator) {
    return denominator != A(0) ? A(1) / denominator : A(0);
}
