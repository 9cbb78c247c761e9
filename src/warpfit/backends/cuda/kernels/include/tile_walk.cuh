// The order in which persistent blocks go over the tiles of C.
//
// Tiles (of a cluster: CLUSTER tiles of a block, one below the other) are numbered down SWATH_ROWS rows before the next
// column, so that those in work at the same time share rows of A and columns of B in L2. Cluster i takes tiles i,
// i + clusters, ...
#pragma once

#include "types.cuh"

struct TileWalk {
    int num_rows, num_cols;  // of tiles of a cluster

    __device__ int count() const { return num_rows * num_cols; }

    // Row and column of a tile.
    __device__ int2 place(int tile) const {
        const int first = tile / (SWATH_ROWS * num_cols) * SWATH_ROWS,
                  in_swath = tile % (SWATH_ROWS * num_cols);
        const int rows = num_rows - first < SWATH_ROWS ? num_rows - first : SWATH_ROWS;
        return {first + in_swath % rows, in_swath / rows};
    }
};
