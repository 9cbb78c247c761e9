// What one_launch_layers.cu and the host tell each other while it runs, in memory of the host that both see: how many
// epochs are done, whose part of the record the host may read, and whether it is to end.
#pragma once

#include "barriers.cuh"

struct alignas(16) Progress {
    unsigned epochs_done;
    unsigned is_asked_to_end;  // by the host
    unsigned has_ended;        // because of that
    unsigned unused;
};

// With how many epochs between them the host and the device talk, and where the first block answers all others: a
// place for each time, full of zeros.
struct Talks {
    Progress* progress;
    uint4* answers;
    int every;

    __device__ bool are_due(int epochs_done) const { return epochs_done % every == 0; }

    // All threads of all blocks call, when the record is written: whether the launch ends here, the same for all.
    __device__ bool end_now(int epochs_done) const {
        uint4* place = answers + epochs_done / every - 1;
        if (blockIdx.x == 0 && threadIdx.x == 0) {
            __threadfence_system();
            store_system(&progress->epochs_done, epochs_done);
            const unsigned is_asked = load_system(&progress->is_asked_to_end) != 0;
            if (is_asked) store_system(&progress->has_ended, 1);
            store_relaxed(place, {1 + is_asked, 0, 0, 0});
        }
        const Patience patience;
        uint4 answer = load_relaxed(place);
        for (; answer.x == 0; answer = load_relaxed(place)) patience.wait();
        __syncwarp();
        return answer.x > 1;
    }
};
