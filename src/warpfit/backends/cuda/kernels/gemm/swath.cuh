// Which tile of C a block of a matrix product computes.
//
// Tiles are numbered down the rows first. If SWATH_ROWS is not 0, they are numbered along
// blockIdx.x, down SWATH_ROWS rows of tiles before the next column, so that blocks that run at the
// same time share rows of A and columns of B in L2. It takes two divisions before the first load:
// more than sharing is worth to small tiles.
#pragma once

#include "base/types.cuh"

struct TilePlace {
    int number, row, col;  // row and col count tiles
};

template <int TILE_M, int TILE_N>
__device__ inline TilePlace find_tile(int m, int n) {
    const int num_m = (m + TILE_M - 1) / TILE_M;
    if constexpr (SWATH_ROWS > 0) {
        constexpr int ROWS = SWATH_ROWS > 0 ? SWATH_ROWS : 1;
        const int num_n = (n + TILE_N - 1) / TILE_N;
        const int tile = blockIdx.x;
        const int first = tile / (ROWS * num_n) * ROWS, in_swath = tile % (ROWS * num_n);
        const int rows = num_m - first < ROWS ? num_m - first : ROWS;
        return {tile, first + in_swath % rows, in_swath / rows};
    } else {
        const int row = blockIdx.x, col = blockIdx.y;
        return {row + num_m * col, row, col};
    }
}
