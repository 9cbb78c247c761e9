// Waiting and arriving at barriers in shared memory, and places in rings whose slots they guard;
// and how long to look for what other blocks leave in memory.
//
// A wait that does not end stops the kernel, if it is one that gives up: so do some of each block's
// that wait for all others in the end. They count how often they look, which takes a register and
// no clock, and which a kernel that is held up does not do. With the macro BOUNDED_WAITS, for
// debugging, all do, and say where they stand.
#pragma once

#include "base/types.cuh"

using Barrier = unsigned long long;

// How often a thread looks in vain: for some ten seconds on an H200, whose hardware lets one sleep
// for 8,086 cycles each time, and which takes 600 for a number in memory. How long others let it
// sleep is not known, so that they look for minutes.
constexpr unsigned MOST_LOOKS = GENERATION == 90 ? 1u << 21 : ~0u;
constexpr unsigned MOST_LOOKS_IN_MEMORY = 1u << 25, NO_END = 0;

// Waits until the phase of this number is complete; any number of the same parity will do.
template <bool GIVES_UP = BOUNDED_WAITS>
__device__ inline void wait(Barrier& barrier, unsigned phase) {
    for (unsigned looks = 0; !mbarrier_test(&barrier, phase & 1);) {
        if (!GIVES_UP || ++looks < MOST_LOOKS) continue;
        if constexpr (BOUNDED_WAITS)
            printf("block %u, thread %u: no end to phase %u of the barrier at %u\n", blockIdx.x,
                   threadIdx.x, phase, shared_address(&barrier));
        __trap();
    }
}

__device__ inline void wait_or_give_up(Barrier& barrier, unsigned phase) {
    wait<true>(barrier, phase);
}

// Until all bytes that are sent to this block in a phase have come. Thread 0 lets the barrier count
// them.
__device__ inline void await_bytes(Barrier& full, unsigned phase, unsigned bytes) {
    if (threadIdx.x == 0) mbarrier_expect(&full, bytes);
    wait_or_give_up(full, phase);
}

// How often a thread has looked in vain for what another leaves in memory.
struct Patience {
    unsigned looks = 0;

    __device__ void wait(unsigned most_looks = MOST_LOOKS_IN_MEMORY) {
        let_others_run();
        if (most_looks == NO_END || ++looks < most_looks) return;
        if constexpr (BOUNDED_WAITS)
            printf("block %u, thread %u: no end to the wait for another block\n", blockIdx.x,
                   threadIdx.x);
        __trap();
    }
};

// Arrivals of a warp: one for all its lanes, or of each, so that racecheck can follow them.
constexpr unsigned OF_WARP = BOUNDED_WAITS ? 32 : 1;

// A warp arrives, after what each of its lanes did.
__device__ inline void arrive_warp(Barrier& barrier) {
    __syncwarp();
    if (threadIdx.x % 32 < OF_WARP) mbarrier_arrive(&barrier);
}

// A slot of a ring of SIZE, and how often the ring has been gone round.
template <int SIZE>
struct Cursor {
    int slot;
    unsigned round;

    __device__ explicit Cursor(int first = 0) : slot(first % SIZE), round(first / SIZE) {}

    template <int BY>
    __device__ void advance() {
        const bool is_round = slot >= SIZE - BY % SIZE;
        slot += is_round ? BY % SIZE - SIZE : BY % SIZE;
        round += BY / SIZE + is_round;
    }
};
