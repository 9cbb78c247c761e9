// Which units dropout leaves out of a step: by numbers that follow from where a unit is, the same
// in every kernel.
// Values only: keys and thresholds come from the host (launch_settings.py), masks lie nowhere.
#pragma once

#include "base/philox.cuh"

// A layer's dropout: words below a number drop a unit, and the others come times `scale`.
struct alignas(16) Dropout {
    uint64 dropped_below;
    float scale;
    uint32 layer;
};

// That of a layer of one network among many.
struct NetworkDropout {
    Dropout of_layer;
    uint32 key[2], first_step, unused;

    // A bit for each of four units, from 4 `group` on, of a row of a step's batch: whether it is
    // kept.
    __device__ unsigned kept(uint32 step, uint32 row, uint32 group) const {
        const Words words =
            philox({{first_step + step, of_layer.layer, row, group}}, key[0], key[1]);
        unsigned found = 0;
#pragma unroll
        for (int i = 0; i < 4; ++i) found |= (words.word[i] >= of_layer.dropped_below) << i;
        return found;
    }
};
