// Waiting and arriving at barriers in shared memory, and places in rings whose slots they guard;
// and how long to look for what other blocks leave in memory.
//
// With the setting BOUNDED_WAITS, for debugging, a wait that would not end says where it stands, and
// stops the kernel.
//
// Users: gemm/, ops/conv/windows/, resident/exchange/, resident/layout/, resident/record/,
// tabular/.
#pragma once

#include "base/types.cuh"

using Barrier = unsigned long long;

constexpr int64 LONGEST_WAIT = 20'000'000'000;  // cycles: about ten seconds

// Waits until the phase of this number is complete; any number of the same parity will do.
__device__ inline void wait(Barrier& barrier, unsigned phase) {
    const int64 start = BOUNDED_WAITS ? clock64() : 0;
    while (!mbarrier_test(&barrier, phase & 1)) {
        if constexpr (BOUNDED_WAITS) {
            if (clock64() - start < LONGEST_WAIT) continue;
            printf("block %u, thread %u: no end to phase %u of the barrier at %u\n", blockIdx.x,
                   threadIdx.x, phase, shared_address(&barrier));
            __trap();
        }
    }
}

// Until all bytes that are sent to this block in a phase have come. Thread 0 lets the barrier count
// them.
__device__ inline void await_bytes(Barrier& full, unsigned phase, unsigned bytes) {
    if (threadIdx.x == 0) mbarrier_expect(&full, bytes);
    wait(full, phase);
}

// How long a thread has looked in vain for what another leaves in memory.
struct Patience {
    int64 start = BOUNDED_WAITS ? clock64() : 0;

    __device__ void wait([[maybe_unused]] int64 longest = LONGEST_WAIT) const {
        let_others_run();
        if constexpr (BOUNDED_WAITS) {
            if (clock64() - start < longest) return;
            printf("block %u, thread %u: no end to the wait for another block\n", blockIdx.x,
                   threadIdx.x);
            __trap();
        }
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
