// What persistent blocks work on, piece by piece: the tiles of C, and of each SPLITS slices of k.
//
// Tiles (of a cluster: CLUSTER tiles of a block, one below the other) are numbered down SWATH_ROWS
// rows before the next column, so that those in work at the same time share rows of A and columns
// of B in L2; the slices of one come one after the other.
#pragma once

#include "base/types.cuh"

struct Piece {
    int row, col;                 // of the tile, in tiles of a cluster
    int tile;                     // its number
    int slice;                    // of k
    int first_block, num_blocks;  // of k
};

struct TileWalk {
    int num_rows, num_cols;  // of tiles of a cluster
    int num_blocks;          // of k, at least SPLITS

    __device__ int count() const { return num_rows * num_cols * SPLITS; }

    __device__ Piece piece(int idx) const {
        const int tile = idx / SPLITS, slice = idx % SPLITS;
        const int first = tile / (SWATH_ROWS * num_cols) * SWATH_ROWS,
                  in_swath = tile % (SWATH_ROWS * num_cols);
        const int rows = num_rows - first < SWATH_ROWS ? num_rows - first : SWATH_ROWS;
        const int begin = num_blocks * slice / SPLITS, end = num_blocks * (slice + 1) / SPLITS;
        return {first + in_swath % rows, in_swath / rows, tile, slice, begin, end - begin};
    }
};
