// What one_launch_layers.cu and the host tell each other while it runs, in memory of the host that
// both see: how many epochs are done, whose part of the record the host may read, and whether it is
// to end. The host owns is_asked_to_end, the first block everything else.
#pragma once

#include "ptx/barriers.cuh"
#include "resident/layout/replica.cuh"

struct alignas(16) Progress {
    unsigned epochs_done;
    unsigned is_asked_to_end;  // by the host
    unsigned has_ended;        // because of that
    unsigned unused;
};

// With how many epochs between them the host and the device talk, and places (talks, REPLICAS) of
// zeros: at the first of each, the first block answers all others; at the next ones, the other
// replicas say that their record is written.
struct Talks {
    Progress* progress;
    unsigned* places;
    int every;

    __device__ bool are_due(int epochs_done) const { return epochs_done % every == 0; }

    // All threads of all blocks call, when the record is written: whether the launch ends here, the
    // same for all.
    __device__ bool end_now(int epochs_done) const {
        unsigned* place = places + (epochs_done / every - 1) * REPLICAS;
        if (threadIdx.x == 0 && own_rank() == 0) {
            __threadfence_system();
            own_replica() == 0 ? answer(place, epochs_done)
                               : store_relaxed(place + own_replica(), 1U);
        }
        const unsigned is_asked = found(place) - 1;
        __syncwarp();
        return is_asked != 0;
    }

  private:
    __device__ void answer(unsigned* place, int epochs_done) const {
        for (int replica = 1; replica < REPLICAS; ++replica) found(place + replica);
        if (REPLICAS > 1) __threadfence_system();
        store_system(&progress->epochs_done, epochs_done);
        const unsigned is_asked = load_system(&progress->is_asked_to_end) != 0;
        if (is_asked) store_system(&progress->has_ended, 1);
        store_relaxed(place, 1U + is_asked);
    }

    // What comes to a place.
    __device__ static unsigned found(const unsigned* place) {
        unsigned word = load_relaxed(place);
        for (Patience patience; word == 0; word = load_relaxed(place)) patience.wait();
        return word;
    }
};
