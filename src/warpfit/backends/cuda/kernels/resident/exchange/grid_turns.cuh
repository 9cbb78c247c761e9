// How blocks of a whole grid take turns: each says when it is done with a part of a step, and waits
// until those are whose results it needs.
//
// Counters lie in memory, are zero at launch, and only grow; those of long launches go beyond 2^32,
// and on from 0. What a block has written before it arrives, all see that have waited for it, if
// they load it as `received`: past the first cache, and after the wait. All blocks are resident.
#pragma once

#include "ptx/barriers.cuh"

// Says that this block is done; one thread calls, once all have met.
__device__ inline void tell(unsigned* turn) {
    fence_of_grid();
    atomicAdd(turn, 1u);
}

// Likewise; all threads of the block call.
__device__ inline void arrive(unsigned* turn) {
    __syncthreads();
    if (threadIdx.x == 0) tell(turn);
}

// Waits until so many blocks have arrived since the launch, modulo 2^32; all threads of the block
// call.
__device__ inline void wait_for(const unsigned* turn, unsigned arrivals) {
    if (threadIdx.x == 0) {
        const auto missing = [&] { return static_cast<int>(arrivals - load_relaxed(turn)); };
        for (Patience patience; missing() > 0;) patience.wait();
        fence_of_grid();
    }
    __syncthreads();
}

// What another block has left.
__device__ inline uint4 received(const uint4* place) { return load_relaxed(place); }
__device__ inline int received(const int* place) {
    return static_cast<int>(load_relaxed(reinterpret_cast<const unsigned*>(place)));
}
__device__ inline float received(const float* place) {
    return __uint_as_float(load_relaxed(reinterpret_cast<const unsigned*>(place)));
}
