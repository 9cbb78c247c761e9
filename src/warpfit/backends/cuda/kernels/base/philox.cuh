// Philox4x32-10: four random words as a function of a counter and a key.
//
// Salmon, Moraes, Dror, Shaw: Parallel Random Numbers: As Easy as 1, 2, 3 (SC 2011). The same words
// as `warpfit.random.philox`.
#pragma once

#include "base/types.cuh"

struct Words {
    uint32 word[4];
};

__device__ inline Words philox(Words counter, uint32 key0, uint32 key1) {
#pragma unroll
    for (int round = 0; round < 10; ++round) {
        const uint64 product0 = static_cast<uint64>(counter.word[0]) * 0xD2511F53u;
        const uint64 product1 = static_cast<uint64>(counter.word[2]) * 0xCD9E8D57u;
        counter = {{static_cast<uint32>(product1 >> 32) ^ counter.word[1] ^ key0,
                    static_cast<uint32>(product1),
                    static_cast<uint32>(product0 >> 32) ^ counter.word[3] ^ key1,
                    static_cast<uint32>(product0)}};
        key0 += 0x9E3779B9u;
        key1 += 0xBB67AE85u;
    }
    return counter;
}
