// A matrix product whose k is cut into SPLITS slices, summed without float atomics: the same bits
// from run to run.
//
// Blocks (x, y, 0 .. SPLITS - 1) compute the same tile of C over one slice of k each, and leave
// their sums in `partials`, (tiles, SPLITS, sums of a tile) of the accumulator type. The block that
// arrives last at the tile's counter adds the slices in the order of k, and sets the counter back
// to 0 for the next launch. It never waits.
#pragma once

#include "base/reduce.cuh"

// Which slice of k this block has.
__device__ inline int own_slice() { return SPLITS == 1 ? 0 : static_cast<int>(blockIdx.z); }

// First k of a slice; slices are multiples of `unit` long (the last ones may be shorter, or empty).
__device__ inline int slice_begin(int slice, int k, int unit) {
    if (SPLITS == 1)
        return slice == 0 ? 0 : k;  // without the arithmetic, before anything is loaded
    const int units = (k + unit - 1) / unit;
    const int64 begin = static_cast<int64>(units) * slice / SPLITS * unit;
    return begin < k ? static_cast<int>(begin) : k;
}

// Makes `sums` of the threads below num_threads (numbered by thread) the sums over all slices. True
// in the one block that has them; all threads of all blocks of the tile have to call it.
template <int COUNT, class A>
__device__ inline bool sum_slices(A (&sums)[COUNT], A* partials, unsigned* arrivals, int tile,
                                  int slice, int thread, int num_threads) {
    if (SPLITS == 1) return true;
    const bool works = thread < num_threads;
    const int64 slice_size = static_cast<int64>(COUNT) * num_threads;
    A* of_tile = partials + static_cast<int64>(tile) * SPLITS * slice_size + thread;
    if (works) {
#pragma unroll
        for (int i = 0; i < COUNT; ++i) of_tile[slice * slice_size + i * num_threads] = sums[i];
    }
    if (!is_last_block(arrivals + tile, SPLITS)) return false;
    if (works) {
#pragma unroll
        for (int i = 0; i < COUNT; ++i) sums[i] = A(0);
#pragma unroll(COUNT <= 16 ? 4 : 1)
        for (int s = 0; s < SPLITS; ++s) {
#pragma unroll
            for (int i = 0; i < COUNT; ++i) sums[i] += of_tile[s * slice_size + i * num_threads];
        }
    }
    return true;
}
