// Philox4x64-10: four random words of 64 bits as a function of a counter and a key.
//
// Salmon, Moraes, Dror, Shaw: Parallel Random Numbers: As Easy as 1, 2, 3 (SC 2011). The same words
// as numpy.random.Philox draws; a counter decides 16 units of 16 bits each.
#pragma once

#include "base/types.cuh"

struct LongWords {
    uint64 word[4];
};

// A product of 128 bits, of 64 each.
__device__ inline void multiply_long(uint64 a, uint64 b, uint64& upper, uint64& lower) {
    const uint64 a0 = static_cast<uint32>(a), a1 = a >> 32;
    const uint64 b0 = static_cast<uint32>(b), b1 = b >> 32;
    const uint64 lowest = a0 * b0;
    const uint64 middle = a1 * b0 + (lowest >> 32);
    const uint64 other = a0 * b1 + static_cast<uint32>(middle);
    upper = a1 * b1 + (middle >> 32) + (other >> 32);
    lower = other << 32 | static_cast<uint32>(lowest);
}

constexpr int PHILOX_ROUNDS = 10;

// What each round takes of a key: the host computes it (`round_keys_of` in dropout.py).
struct RoundKeys {
    uint64 of_round[PHILOX_ROUNDS][2];
};

__device__ inline LongWords philox64(LongWords counter, const RoundKeys& keys) {
#pragma unroll
    for (int round = 0; round < PHILOX_ROUNDS; ++round) {
        constexpr uint64 FIRST = 0xD2E7470EE14C6C93ull, SECOND = 0xCA5A826395121157ull;
        uint64 upper0, lower0, upper2, lower2;
        multiply_long(counter.word[0], FIRST, upper0, lower0);
        multiply_long(counter.word[2], SECOND, upper2, lower2);
        counter = {{upper2 ^ counter.word[1] ^ keys.of_round[round][0], lower2,
                    upper0 ^ counter.word[3] ^ keys.of_round[round][1], lower0}};
    }
    return counter;
}
