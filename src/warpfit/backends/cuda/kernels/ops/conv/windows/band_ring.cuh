// Bands of images that come to SIZE places in shared memory in turns: WRITERS, the last threads of
// a block, load them, and READERS multiply those that have come.
// Barriers in shared memory, which all threads of a block know.
#pragma once

#include "ptx/barriers.cuh"

template <int SIZE, int READERS, int WRITERS>
struct BandRing {
    Barrier *full, *empty;  // of each place: a band has come, or has been read

    __device__ explicit BandRing(unsigned char* barriers)
        : full(reinterpret_cast<Barrier*>(barriers)), empty(full + SIZE) {}

    // All threads, once.
    __device__ void start() const {
        if (threadIdx.x < SIZE) {
            mbarrier_init(&full[threadIdx.x], OF_WARP * WRITERS / 32);
            mbarrier_init(&empty[threadIdx.x], OF_WARP * READERS / 32);
            fence_mbarrier_init();
        }
        __syncthreads();
    }

    __device__ static bool is_loader() { return threadIdx.x >= READERS; }

    // A loader's number.
    __device__ static int loader() { return static_cast<int>(threadIdx.x) - READERS; }

    // Every gridDim.x-th of the bands: `copy(band, place)` returns when it has written all of its
    // own.
    template <class Copy>
    __device__ void load_all(int count, Copy copy) const {
        Cursor<SIZE> cursor(0);
        for (int band = blockIdx.x; band < count; band += gridDim.x) {
            wait(empty[cursor.slot], cursor.round + 1);
            copy(band, cursor.slot);
            fence_async();
            arrive_warp(full[cursor.slot]);
            cursor.template advance<1>();
        }
    }
};
