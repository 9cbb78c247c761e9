// The keyed bijection that gives an epoch its order: permutation.py says what it is.
// Values and round keys only; a RoundTable lies in the caller's shared memory, filled by a warp.
#pragma once

#include "base/types.cuh"

// MurmurHash3's 32-bit finaliser, of COUNT words at once, so that none waits for itself.
template <int COUNT>
__device__ inline void mix(uint32 (&words)[COUNT]) {
#pragma unroll
    for (int i = 0; i < COUNT; ++i) words[i] ^= words[i] >> 16;
#pragma unroll
    for (int i = 0; i < COUNT; ++i) words[i] *= 0x85ebca6bu;
#pragma unroll
    for (int i = 0; i < COUNT; ++i) words[i] ^= words[i] >> 13;
#pragma unroll
    for (int i = 0; i < COUNT; ++i) words[i] *= 0xc2b2ae35u;
#pragma unroll
    for (int i = 0; i < COUNT; ++i) words[i] ^= words[i] >> 16;
}

// Changes each of one half's words by what a round makes of the other's.
template <int COUNT>
__device__ inline void join_round(uint32 (&halves)[COUNT], const uint32 (&others)[COUNT],
                                  uint32 key, uint32 mask) {
    uint32 mixed[COUNT];
#pragma unroll
    for (int i = 0; i < COUNT; ++i) mixed[i] = others[i] ^ key;
    mix(mixed);
#pragma unroll
    for (int i = 0; i < COUNT; ++i) halves[i] ^= mixed[i] & mask;
}

template <int COUNT>
__device__ inline void feistel(uint32 (&values)[COUNT], int bits, const uint32 (&keys)[8]) {
    const int right_bits = bits - bits / 2;
    const uint32 left_mask = (1u << bits / 2) - 1, right_mask = (1u << right_bits) - 1;
    uint32 left[COUNT], right[COUNT];
#pragma unroll
    for (int i = 0; i < COUNT; ++i) {
        left[i] = values[i] >> right_bits;
        right[i] = values[i] & right_mask;
    }
#pragma unroll
    for (int round = 0; round < 8; round += 2) {
        join_round(left, right, keys[round], left_mask);
        join_round(right, left, keys[round + 1], right_mask);
    }
#pragma unroll
    for (int i = 0; i < COUNT; ++i) values[i] = left[i] << right_bits | right[i];
}

// The value at a position below `count`, which is at most 2^bits.
__device__ inline uint32 permuted(uint32 position, uint32 count, int bits,
                                  const uint32 (&keys)[8]) {
    uint32 value[1] = {position};
    feistel(value, bits, keys);
    while (value[0] >= count) feistel(value, bits, keys);
    return value[0];
}

// What the rounds of an order of at most 2^16 values make of each half, in a table in shared
// memory: looking it up is a quarter of the instructions.
struct RoundTable {
    static constexpr int MOST_BITS = 16, ENTRIES = 8 << MOST_BITS / 2;

    uint8* entries;

    // By the threads of a warp.
    __device__ void fill(int bits, const uint32* keys) const {
        const int right_bits = bits - bits / 2;
        const uint32 left_mask = (1u << bits / 2) - 1, right_mask = (1u << right_bits) - 1;
        for (int round = 0; round < 8; ++round) {
            const uint32 key = keys[round];
            for (uint32 half = threadIdx.x % 32; half <= right_mask; half += 32) {
                uint32 word[1] = {half ^ key};
                mix(word);
                entries[round << MOST_BITS / 2 | half] =
                    static_cast<uint8>(word[0] & (round % 2 ? right_mask : left_mask));
            }
        }
    }

    template <int COUNT>
    __device__ void feistel(uint32 (&values)[COUNT], int bits) const {
        const int right_bits = bits - bits / 2;
        // Read in this order, lest the compiler finds one value after the other, and each waits for
        // its entries.
        const volatile uint8* in_turn = entries;
        uint32 left[COUNT], right[COUNT];
#pragma unroll
        for (int i = 0; i < COUNT; ++i) {
            left[i] = values[i] >> right_bits;
            right[i] = values[i] & ((1u << right_bits) - 1);
        }
#pragma unroll
        for (int round = 0; round < 8; round += 2) {
#pragma unroll
            for (int i = 0; i < COUNT; ++i) left[i] ^= in_turn[(round << MOST_BITS / 2) + right[i]];
#pragma unroll
            for (int i = 0; i < COUNT; ++i)
                right[i] ^= in_turn[((round + 1) << MOST_BITS / 2) + left[i]];
        }
#pragma unroll
        for (int i = 0; i < COUNT; ++i) values[i] = left[i] << right_bits | right[i];
    }
};
