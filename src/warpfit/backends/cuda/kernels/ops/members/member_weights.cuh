// Gradients of the weights that members share, as products over the rows of all members: which tile
// of which layer a block multiplies, and where it leaves its sums.
//
// A unit of work is 64 rows of a tile; those of all tiles, one after the other, are dealt out to
// blocks in equal numbers. So a tile is the sum of what some neighbouring blocks leave, each in a
// slot of its own: in float4 of four sums of a thread, those of all threads side by side.
#pragma once

#include "mma/fragments.cuh"
#include "mma/operand_tile.cuh"
#include "ptx/barriers.cuh"

using T = bfloat16;

constexpr int MOST_LAYERS = 5;
constexpr int WARPGROUP = 128, WORKERS = 2 * WARPGROUP;
constexpr int BLOCK_M = 128, BLOCK_N = UNITS < 256 ? 128 : 256;
constexpr int BLOCK_K = 64;         // rows of a unit of work
constexpr int FOURS = BLOCK_N / 8;  // of a thread's sums
constexpr int64 SLOT_FOURS = FOURS * WORKERS;

struct alignas(64) WeightLayer {
    TensorMap inputs, dz;
    int num_inputs;
    int first_tile;  // of all layers'
};

static_assert(sizeof(WeightLayer) == 320, "member_layers.py packs this struct");

struct WeightList {
    WeightLayer layers[MOST_LAYERS];
    int num_layers, num_tiles;
    int units_of_tile, units_of_block;
};

// A tile: of a layer, its first input and unit.
struct WeightTile {
    int layer, row, col;

    __device__ WeightTile(const WeightList& list, int number) : layer(list.num_layers - 1) {
        while (list.layers[layer].first_tile > number) --layer;
        constexpr int COLS = UNITS / BLOCK_N;
        const int own = number - list.layers[layer].first_tile;
        row = own / COLS * BLOCK_M;
        col = own % COLS * BLOCK_N;
    }
};

// Where a block leaves its sums of a tile: each pair has a place of its own.
__device__ inline int64 slot_of(int block, int tile) {
    return (static_cast<int64>(block) + tile) * SLOT_FOURS;
}
