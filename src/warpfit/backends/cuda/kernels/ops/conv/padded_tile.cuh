// Tiles of operands in shared memory, in rows that are padded, so that neighbouring ones begin in
// other banks.
// Places only: the block that fills a tile owns it.
#pragma once

#include "gemm/epilogue.cuh"
#include "mma/mma.cuh"

// A tile of OUTER rows of A (columns of B) by DEPTH of k, as it lies in global memory: K_ADJACENT
// says that k goes along its rows.
template <bool K_ADJACENT, int OUTER, int DEPTH>
struct PaddedTile {
    static constexpr bool ALONG_K = K_ADJACENT;
    static constexpr int ROWS = K_ADJACENT ? OUTER : DEPTH;
    static constexpr int COLS = K_ADJACENT ? DEPTH : OUTER;
    static constexpr int ROW_CHUNKS = COLS / CHUNK<T>;
    static constexpr int ROW_BYTES =
        16 * ROW_CHUNKS + (K_ADJACENT ? 16 : 8 * static_cast<int>(sizeof(T)));
    static constexpr int BYTES = ROWS * ROW_BYTES;

    __device__ static int offset(int row, int col) {
        return row * ROW_BYTES + col * static_cast<int>(sizeof(T));
    }

    template <int WIDTH>
    __device__ static Pack<T, WIDTH> read(const unsigned char* tile, int row, int col) {
        return load_pack<WIDTH>(reinterpret_cast<const T*>(tile + offset(row, col)));
    }
};
