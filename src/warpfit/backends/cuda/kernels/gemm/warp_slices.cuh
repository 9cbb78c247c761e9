// Sums of a warp over SPLITS slices of k that several blocks have, in the same order whenever they
// come: the same bits from run to run.
//
// Each leaves its own in `partials`, (SPLITS, COUNT, 32); the one that comes last to the counter
// adds them up, and sets it back to 0 for the next launch. It never waits.
#pragma once

#include "base/types.cuh"

// Makes a warp's sums those over all slices. True in the one that has them.
template <int COUNT>
__device__ inline bool add_slices(float (&sums)[COUNT], float* partials, unsigned* arrivals,
                                  int slice) {
    const int lane = threadIdx.x % 32;
#pragma unroll
    for (int i = 0; i < COUNT; ++i) partials[(slice * COUNT + i) * 32 + lane] = sums[i];
    __threadfence();
    __syncwarp();
    unsigned before = 0;
    if (lane == 0) {
        before = atomicAdd(arrivals, 1u);
        if (before == SPLITS - 1) *arrivals = 0;
    }
    if (__shfl_sync(0xffffffffu, before, 0) != SPLITS - 1) return false;
    __threadfence();
#pragma unroll
    for (int i = 0; i < COUNT; ++i) sums[i] = partials[i * 32 + lane];
#pragma unroll 1
    for (int other = 1; other < SPLITS; ++other) {
#pragma unroll
        for (int i = 0; i < COUNT; ++i) sums[i] += partials[(other * COUNT + i) * 32 + lane];
    }
    return true;
}
