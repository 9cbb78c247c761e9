// A tile of an operand of a product: ROWS rows of A (columns of B) and a line of k, as tensor
// copies leave it in shared memory and as wgmma reads it.
//
// A line is 128 bytes: LINE numbers. Along k (the operand lies in memory with its k side by side) a
// tile is ROWS lines, each a row. Across, it is ROWS / LINE panels of LINE lines, each a k with
// LINE rows side by side. Eight lines are an atom, at a multiple of 1024 bytes, in which the
// 16-byte pieces of line i change places by exclusive or with i: the 128-byte swizzle of tensor
// maps, with which neither writing nor reading has bank conflicts. An instruction takes a slice of
// 32 bytes of k.
//
// Reference: PTX ISA 9.7.15.5.1 (matrix descriptors).
#pragma once

#include "base/types.cuh"

constexpr int LINE_BYTES = 128;
constexpr int ATOM_BYTES = 8 * LINE_BYTES;
constexpr int SLICE_BYTES = 32;
constexpr int SLICES = LINE_BYTES / SLICE_BYTES;

// What tells wgmma of a matrix: its address; the bytes from one panel to the next, and from one
// atom to the next.
__device__ inline uint64 matrix_descriptor(unsigned address, int panel_bytes) {
    constexpr uint64 SWIZZLE_128 = 1;
    return (address & 0x3ffff) >> 4 | static_cast<uint64>(panel_bytes >> 4) << 16 |
           static_cast<uint64>(ATOM_BYTES >> 4) << 32 | SWIZZLE_128 << 62;
}

template <class T, bool IS_ACROSS, int NUM_ROWS>
struct OperandTile {
    using Number = T;
    static constexpr bool ACROSS = IS_ACROSS;
    static constexpr int ROWS = NUM_ROWS;
    static constexpr int LINE = LINE_BYTES / sizeof(T);
    static constexpr int BYTES = ROWS * LINE_BYTES;
    static constexpr int PANEL_BYTES = LINE * LINE_BYTES;
    static_assert(!ACROSS || ROWS % LINE == 0, "panels are whole");
    static_assert(ROWS % 8 == 0, "atoms are whole");

    // Bytes from one slice of k to the next.
    static constexpr int SLICE_STEP = ACROSS ? SLICE_BYTES / sizeof(T) * LINE_BYTES : SLICE_BYTES;

    // The descriptor of the first slice of the rows from `first_row` on.
    __device__ static uint64 descriptor(unsigned tile, int first_row) {
        return matrix_descriptor(tile + first_row * LINE_BYTES, PANEL_BYTES);
    }

    // Calls copy(byte in the tile, row, column) for each box of the matrix that makes part `part`
    // of PARTS of the tile of the rows from `row`, and the numbers from `k`, on. Boxes have LINE
    // columns; ROWS / PARTS rows along k; across, LINE rows, or LINE / PARTS if the panels cannot
    // be partitioned.
    template <int PARTS, class Copy>
    __device__ static void for_each_box(int part, int row, int k, Copy copy) {
        if constexpr (!ACROSS) {
            constexpr int BOX = ROWS / PARTS;
            static_assert(BOX % 8 == 0 && BOX <= 256, "a box is whole atoms, of at most 256 lines");
            copy(part * BOX * LINE_BYTES, row + part * BOX, k);
        } else {
            constexpr int PANELS = ROWS / LINE;
            constexpr bool SHARES_PANELS = PANELS % PARTS == 0;
            constexpr int BOX = SHARES_PANELS ? LINE : LINE / PARTS,
                          OWN = SHARES_PANELS ? PANELS / PARTS : PANELS;
            static_assert(BOX % 8 == 0, "a box is whole atoms");
            const int first_panel = SHARES_PANELS ? part * OWN : 0,
                      first_line = SHARES_PANELS ? 0 : part * BOX;
#pragma unroll
            for (int i = 0; i < OWN; ++i) {
                const int panel = first_panel + i;
                copy(panel * PANEL_BYTES + first_line * LINE_BYTES, k + first_line,
                     row + panel * LINE);
            }
        }
    }
};

// d (64, 2 COUNT) = the slice of 64 rows of A that a descriptor tells of, times that of 2 COUNT
// columns of B, + d if `adds`.
template <class T, bool A_ACROSS, bool B_ACROSS>
struct SliceProduct;

template <bool A_ACROSS, bool B_ACROSS>
struct SliceProduct<float16, A_ACROSS, B_ACROSS> {
    template <class Sum, int COUNT>
    __device__ static void add_to(Sum (&d)[COUNT], uint64 a, uint64 b, int adds) {
        wgmma_f16<A_ACROSS, B_ACROSS>(d, a, b, adds);
    }
};

template <bool A_ACROSS, bool B_ACROSS>
struct SliceProduct<bfloat16, A_ACROSS, B_ACROSS> {
    template <int COUNT>
    __device__ static void add_to(float (&d)[COUNT], uint64 a, uint64 b, int adds) {
        wgmma_bf16<A_ACROSS, B_ACROSS>(d, a, b, adds);
    }
};

template <>
struct SliceProduct<float32, false, false> {
    template <int COUNT>
    __device__ static void add_to(float (&d)[COUNT], uint64 a, uint64 b, int adds) {
        wgmma_tf32<0, 0>(d, a, b, adds);
    }
};

// d (64, 2 COUNT) += a slice of 64 rows in registers, times that of 2 COUNT columns that a
// descriptor tells of.
template <class Number>
struct RegisterProduct;

template <>
struct RegisterProduct<float16> {
    template <bool B_ACROSS, class Sum, int COUNT>
    __device__ static void add_to(Sum (&d)[COUNT], const unsigned (&a)[4], uint64 b, int adds) {
        wgmma_f16_of_registers<B_ACROSS>(d, a, b, adds);
    }
};

template <>
struct RegisterProduct<bfloat16> {
    template <bool B_ACROSS, int COUNT>
    __device__ static void add_to(float (&d)[COUNT], const unsigned (&a)[4], uint64 b, int adds) {
        wgmma_bf16_of_registers<B_ACROSS>(d, a, b, adds);
    }
};

// The descriptor of what lies so many bytes behind what one tells of.
__device__ inline uint64 moved(uint64 descriptor, int bytes) { return descriptor + (bytes >> 4); }

// sums (+)= 64 rows of a tile of A, from `first_row` on, times the tile of B behind it.
template <class A, class B, int COUNT>
__device__ inline void multiply_tiles(float (&sums)[COUNT], const unsigned char* stage,
                                      int first_row, bool adds) {
    const unsigned address = shared_address(stage);
    const uint64 a = A::descriptor(address, first_row), b = B::descriptor(address + A::BYTES, 0);
    wgmma_fence();
#pragma unroll
    for (int slice = 0; slice < SLICES; ++slice) {
        SliceProduct<typename A::Number, A::ACROSS, B::ACROSS>::add_to(
            sums, moved(a, slice * A::SLICE_STEP), moved(b, slice * B::SLICE_STEP),
            adds || slice > 0);
    }
    wgmma_commit();
}

// Which of a warpgroup's 64 rows a thread has: that of its warp and lane, and the one STEP further
// on. As wgmma has them:
struct RowsInOrder {
    static constexpr int STEP = 8;
    __device__ static int of_warp(int warp) { return warp % 4 * 16; }
    __device__ static int of_lane() { return threadIdx.x % 32 / 4; }
};

// wgmma does not take 32-bit numbers that lie across, but A from registers, whatever rows they are
// of. A thread then has two that are neighbours in memory, and no two of 16 lanes, which load at
// once, meet in a bank: lanes 8 to 15 have the other half of a line, which the swizzle leaves
// there.
struct RowsInPairs {
    static constexpr int STEP = 1;
    __device__ static int of_warp(int warp) { return warp % 4 / 2 * 32 + warp % 2 * 8; }
    __device__ static int of_lane() {
        const int pair = threadIdx.x % 32 / 4;
        return pair / 4 * 4 + pair / 2 % 2 * 16 + pair % 2 * 2;
    }
};

// What a thread has of a slice of 64 rows, from `first_row` on, of an operand across: RowsInPairs,
// in wgmma's order.
template <class Tile>
__device__ inline void load_across(unsigned (&words)[4], const unsigned char* tile, int first_row,
                                   int slice) {
    static_assert(Tile::ACROSS && Tile::LINE == 32, "rows of a k lie side by side, 32 in a line");
    const int row = first_row + RowsInPairs::of_warp(threadIdx.x / 32) + RowsInPairs::of_lane(),
              k = threadIdx.x % 4;
    const unsigned char* panel = tile + row / Tile::LINE * Tile::PANEL_BYTES + row % 4 * 4;
    const int piece = row % Tile::LINE / 4;
#pragma unroll
    for (int half = 0; half < 2; ++half) {
        const int line = 8 * slice + 4 * half;  // and k
        const uint2 pair = *reinterpret_cast<const uint2*>(panel + (line + k) * LINE_BYTES +
                                                           (piece ^ (4 * half + k)) * 16);
        words[2 * half] = pair.x;
        words[2 * half + 1] = pair.y;
    }
}
