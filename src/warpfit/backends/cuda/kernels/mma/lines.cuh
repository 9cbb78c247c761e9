// Matrices in shared memory as lines of 32, 64 or 128 bytes, with the swizzle of as many.
//
// A row's numbers that lie side by side are cut into lines, of which those of all rows follow each
// other: a panel. Eight lines are an atom, at a multiple of its size, in which the 16-byte pieces
// change places by exclusive or with bits of their address, so that neither writing a line nor
// reading eight pieces one below the other has bank conflicts.
//
// Reference: PTX ISA 9.7.15.5.1 (matrix descriptors).
#pragma once

#include "base/types.cuh"
#include "mma/planes.cuh"

// `INNER` bytes of a row lie side by side: the longest lines that they are whole ones of.
template <int INNER>
constexpr int LINE_OF = INNER % 128 == 0  ? 128
                        : INNER % 64 == 0 ? 64
                                          : 32;

template <int INNER>
struct Lines {
    static constexpr int LINE = LINE_OF<INNER>;
    static constexpr int ATOM = 8 * LINE, PIECES = LINE / PIECE_BYTES;
    static_assert(INNER % LINE == 0, "lines are whole");

    unsigned char* data;  // at a multiple of 1024 bytes
    int panel_bytes;

    __device__ unsigned char* piece(int row, int number) const {
        const int place =
            number / PIECES * panel_bytes + row * LINE + number % PIECES * PIECE_BYTES;
        return data + (place ^ (place >> 3 & (LINE - PIECE_BYTES)));
    }

    // Of eight rows and what follows them: along k if k lies side by side, else across.
    __device__ uint64 descriptor() const {
        constexpr uint64 SWIZZLE = LINE == 128 ? 1 : LINE == 64 ? 2 : 3;
        return planes_descriptor(shared_address(data), panel_bytes, ATOM) | SWIZZLE << 62;
    }

    // Bytes from the first slice of k to another, if k lies side by side.
    __device__ static constexpr int slice_along(int slice, int panel_bytes) {
        constexpr int SLICE = 2 * PIECE_BYTES, OF_LINE = LINE / SLICE;
        return slice / OF_LINE * panel_bytes + slice % OF_LINE * SLICE;
    }
};
