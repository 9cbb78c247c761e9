// A product of tiles of A and B that come to shared memory stage by stage: what the warps do that
// multiply, and how stages are released to the one that loads.
//
// A stage is a tile of A, BLOCK_M rows and a line of k, and behind it one of B, BLOCK_N columns and
// the same line. A block has a warpgroup that loads and CONSUMERS that multiply, each 64 MMA_ROWS
// rows; the blocks of a CLUSTER share the tile of B. Defines: these, TRANSPOSE_A and TRANSPOSE_B,
// whether A's rows lie side by side, and whether B's columns do not, STAGES.
#pragma once

#include "gemm/epilogue.cuh"
#include "mma/operand_tile.cuh"
#include "ptx/barriers.cuh"
#include "ptx/cluster.cuh"

constexpr int WARPGROUP = 128;
constexpr int THREADS = WARPGROUP * (1 + CONSUMERS);
constexpr int CONSUMER_WARPS = 4 * CONSUMERS;
constexpr int CONSUMER_ROWS = 64 * MMA_ROWS;
constexpr int BLOCK_M = CONSUMER_ROWS * CONSUMERS;
constexpr int BLOCK_K = LINE_BYTES / sizeof(T);
constexpr int LOADER_REGISTERS = 40, CONSUMER_REGISTERS = 232;
static_assert(CONSUMERS <= 2, "all threads find their registers");

using TileA = OperandTile<T, TRANSPOSE_A, BLOCK_M>;
using TileB = OperandTile<T, !TRANSPOSE_B, BLOCK_N>;
constexpr int STAGE_BYTES = TileA::BYTES + TileB::BYTES;

// wgmma takes 32-bit numbers along k alone, but A also from registers.
constexpr bool A_FROM_REGISTERS = TileA::ACROSS && sizeof(T) == 4;

using Sums = float[MMA_ROWS][BLOCK_N / 2];

// This warp has read a stage: the blocks that write to it may go on.
__device__ inline void release(Barrier& empty) {
    const unsigned lane = threadIdx.x % 32;
    if constexpr (CLUSTER > 1) {
        if (lane < CLUSTER) mbarrier_arrive_at(cluster_address(&empty, lane));
    } else {
        if (lane == 0) mbarrier_arrive(&empty);
    }
}

// A warpgroup's rows of a stage of A, as wgmma takes them: by a descriptor of shared memory, or
// from registers, which must stay as they are until it has.
template <class Tile, bool FROM_REGISTERS>
struct OwnRows {
    unsigned tile;
    int first_row;

    __device__ void load(const unsigned char* stage, int own_rows) {
        tile = shared_address(stage);
        first_row = own_rows;
    }

    template <int COUNT>
    __device__ void multiply(float (&sums)[COUNT], uint64 b, int i, int slice, bool adds) const {
        const uint64 a = Tile::descriptor(tile, first_row + 64 * i);
        SliceProduct<T, Tile::ACROSS, TileB::ACROSS>::add_to(
            sums, a + (slice * Tile::SLICE_STEP >> 4), b, adds);
    }
};

template <class Tile>
struct OwnRows<Tile, true> {
    unsigned words[MMA_ROWS][SLICES][4];

    __device__ void load(const unsigned char* stage, int own_rows) {
#pragma unroll
        for (int slice = 0; slice < SLICES; ++slice) {
#pragma unroll
            for (int i = 0; i < MMA_ROWS; ++i) {
                load_across<Tile>(words[i][slice], stage, own_rows + 64 * i, slice);
            }
        }
    }

    template <int COUNT>
    __device__ void multiply(float (&sums)[COUNT], uint64 b, int i, int slice, bool adds) const {
        wgmma_tf32_of_registers(sums, words[i][slice], b, adds);
    }
};

using A = OwnRows<TileA, A_FROM_REGISTERS>;

// sums (+)= a warpgroup's rows of a stage of A, times the stage of B.
__device__ inline void multiply_stage(Sums& sums, const A& a, const unsigned char* stage,
                                      bool adds) {
    const uint64 b = TileB::descriptor(shared_address(stage) + TileA::BYTES, 0);
    wgmma_fence();
#pragma unroll
    for (int slice = 0; slice < SLICES; ++slice) {
#pragma unroll
        for (int i = 0; i < MMA_ROWS; ++i) {
            a.multiply(sums[i], b + (slice * TileB::SLICE_STEP >> 4), i, slice, adds || slice > 0);
        }
    }
    wgmma_commit();
}

// sums = the product of num_blocks stages. While one is multiplied, the one before is released.
// `shared` has stages, and barriers full and empty of each.
template <class Shared>
__device__ inline void multiply_piece(Sums& sums, Shared& shared, Cursor<STAGES>& cursor,
                                      int num_blocks, int own_rows) {
    A stages_a[2];  // in turns, if in registers
    int before = 0;
#pragma unroll(A_FROM_REGISTERS ? 2 : 1)
    for (int block = 0; block < num_blocks; ++block) {
        A& a = stages_a[A_FROM_REGISTERS ? block % 2 : 0];
        wait(shared.full[cursor.slot], cursor.round);
        a.load(shared.stages[cursor.slot], own_rows);
        multiply_stage(sums, a, shared.stages[cursor.slot], block > 0);
        wgmma_wait<1>();
        if (block > 0) release(shared.empty[before]);
        before = cursor.slot;
        cursor.advance<1>();
    }
    wgmma_wait<0>();
    release(shared.empty[before]);
}
