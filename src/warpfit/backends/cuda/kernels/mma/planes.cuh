// Matrices in shared memory as planes: a plane has 16 bytes of every row, one after the other.
//
// wgmma reads such a matrix without a swizzle, eight rows (128 bytes) at once, from any row on. So
// whoever has pixels for rows moves a window by adding to an address: nothing is copied again.
//
// Reference: PTX ISA 9.7.15.5.1 (matrix descriptors).
#pragma once

#include "base/types.cuh"

constexpr int PIECE_BYTES = 16;
constexpr int EIGHT_PIECES = 8 * PIECE_BYTES;

// What tells wgmma of a slice of k: its address; the bytes from eight of k to the next, and from
// eight rows to the next.
__device__ inline uint64 planes_descriptor(unsigned address, int k_step, int row_step) {
    return (address & 0x3ffff) >> 4 | static_cast<uint64>(k_step >> 4) << 16 |
           static_cast<uint64>(row_step >> 4) << 32;
}
