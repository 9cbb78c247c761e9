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

    // Random words of four units, from 4 `group` on, of a row of a step's batch.
    __device__ Words words(uint32 step, uint32 row, uint32 group, const uint32 (&key)[2]) const {
        return philox({{step, layer, row, group}}, key[0], key[1]);
    }
    __device__ bool keeps(uint32 word) const { return word >= dropped_below; }
    __device__ float factor(uint32 word) const { return keeps(word) ? scale : 0; }
};

// That of a layer of one network among many.
struct NetworkDropout {
    Dropout of_layer;
    uint32 key[2], first_step, unused;

    // A bit for each of four units, from 4 `group` on, of a row of a step's batch: whether it is
    // kept.
    __device__ unsigned kept(uint32 step, uint32 row, uint32 group) const {
        const Words words = of_layer.words(first_step + step, row, group, key);
        unsigned found = 0;
#pragma unroll
        for (int i = 0; i < 4; ++i) found |= of_layer.keeps(words.word[i]) << i;
        return found;
    }
};
