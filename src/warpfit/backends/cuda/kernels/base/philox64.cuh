// Philox4x64-10: four random words of 64 bits as a function of a counter and a key.
//
// Salmon, Moraes, Dror, Shaw: Parallel Random Numbers: As Easy as 1, 2, 3 (SC 2011). The same words
// as numpy.random.Philox draws; a counter decides 16 units of 16 bits each.
//
// Users: member_relu_forward.cu.
#pragma once

#include "base/types.cuh"

struct LongWords {
    uint64 word[4];
};

// The upper half of a product of 128 bits, of products of 64.
__device__ inline uint64 upper_half(uint64 a, uint64 b) {
    const uint64 a0 = static_cast<uint32>(a), a1 = a >> 32;
    const uint64 b0 = static_cast<uint32>(b), b1 = b >> 32;
    const uint64 middle = a1 * b0 + (a0 * b0 >> 32);
    const uint64 other = a0 * b1 + static_cast<uint32>(middle);
    return a1 * b1 + (middle >> 32) + (other >> 32);
}

__device__ inline LongWords philox64(LongWords counter, uint64 key0, uint64 key1) {
#pragma unroll
    for (int round = 0; round < 10; ++round) {
        constexpr uint64 FIRST = 0xD2E7470EE14C6C93ull, SECOND = 0xCA5A826395121157ull;
        const uint64 c0 = counter.word[0], c2 = counter.word[2];
        counter = {{upper_half(SECOND, c2) ^ counter.word[1] ^ key0, SECOND * c2,
                    upper_half(FIRST, c0) ^ counter.word[3] ^ key1, FIRST * c0}};
        key0 += 0x9E3779B97F4A7C15ull;
        key1 += 0xBB67AE8584CAA73Bull;
    }
    return counter;
}
