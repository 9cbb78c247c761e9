// Computes: order[i] = the row at position i of an epoch: a keyed bijection on 0..num_rows-1, by a Feistel
//           network of 8 rounds on `bits` bits with cycle walking.
// Layout:   order (num_rows,) int64, num_rows at most 2^31; the round keys come as arguments.
// Launch:   grid-stride over 1-D blocks of any size; no shared memory; no defines.
// Numerics: exact; the same rows as every other backend's.
// Cost:     8 · num_rows bytes; some 100 integer operations a row and walk, of which there are fewer than 2 on
//           average (more below 129 rows, as the network has at least 8 bits).
// Reference: epoch_order of backends/numpy/arrays.py; permutation.py.
#include "include/types.cuh"

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

extern "C" __global__ void epoch_order(int64* order, unsigned num_rows, int bits, unsigned key0,
                                       unsigned key1, unsigned key2, unsigned key3, unsigned key4,
                                       unsigned key5, unsigned key6, unsigned key7) {
    const uint32 keys[8] = {key0, key1, key2, key3, key4, key5, key6, key7};
    const uint32 step = gridDim.x * blockDim.x;
    for (uint32 i = blockIdx.x * blockDim.x + threadIdx.x; i < num_rows; i += step) {
        uint32 row = feistel(i, bits, keys);
        while (row >= num_rows) row = feistel(row, bits, keys);
        order[i] = row;
    }
}
