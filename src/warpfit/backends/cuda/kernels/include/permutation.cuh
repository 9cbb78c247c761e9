// The keyed bijection that gives an epoch its order: permutation.py says what it is.
#pragma once

#include "types.cuh"

// MurmurHash3's 32-bit finaliser.
__device__ inline uint32 mix(uint32 word) {
    word ^= word >> 16;
    word *= 0x85ebca6bu;
    word ^= word >> 13;
    word *= 0xc2b2ae35u;
    return word ^ word >> 16;
}

__device__ inline uint32 feistel(uint32 value, int bits, const uint32 (&keys)[8]) {
    const int right_bits = bits - bits / 2;
    const uint32 left_mask = (1u << bits / 2) - 1, right_mask = (1u << right_bits) - 1;
    uint32 left = value >> right_bits, right = value & right_mask;
#pragma unroll
    for (int round = 0; round < 8; round += 2) {
        left ^= mix(right ^ keys[round]) & left_mask;
        right ^= mix(left ^ keys[round + 1]) & right_mask;
    }
    return left << right_bits | right;
}

// The value at a position below `count`, which is at most 2^bits.
__device__ inline uint32 permuted(uint32 position, uint32 count, int bits, const uint32 (&keys)[8]) {
    uint32 value = feistel(position, bits, keys);
    while (value >= count) value = feistel(value, bits, keys);
    return value;
}
