// From the sums of a product's tile to C: a warp has 16 rows of COLS columns as wgmma leaves them (ptx_sm90a.cuh), applies
// EPILOGUE, and stores them.
//
// STORES_TENSOR: by way of shared memory and a tensor map with boxes of 16 rows and a line of 128 bytes, swizzled by as
// many. Otherwise from registers to their addresses; if SWAPPED, rows of the tile are columns of C.
#pragma once

#include "epilogue.cuh"
#include "operand_tile.cuh"

#if STORES_TENSOR
constexpr int STAGED_COLS = LINE_BYTES / sizeof(Out);
constexpr int STAGED_TILES = STAGED_COLS / 8;  // of 8 columns
constexpr int STAGED_BYTES = 16 * LINE_BYTES;

// A warp's two buffers of numbers on their way to C, in turns.
struct Staging {
    unsigned char (&buffers)[2][STAGED_BYTES];
    int turn;

    // The next one, once the store before the last has read it.
    __device__ unsigned char* next() {
        if (threadIdx.x % 32 == 0) bulk_wait_read<1>();
        __syncwarp();
        turn ^= 1;
        return buffers[turn];
    }
};

// Makes two adjacent numbers of C of their sums.
__device__ inline void finish_pair(const Epilogue& epilogue, int row, int col, Acc (&pair)[2]) {
    if (row < epilogue.m && col < epilogue.n) {
        EPILOGUE<2>(epilogue, static_cast<int64>(row) * epilogue.ldc + col, col, pair);
    }
}

// What this lane has of a tile of 8 columns, to its place in a buffer: a pair each of two rows.
__device__ inline void stage_tile(unsigned char* buffer, int tile, const Acc (&upper)[2],
                                  const Acc (&lower)[2]) {
    const int lane = threadIdx.x % 32, line = lane / 4;
    if constexpr (sizeof(Out) == 2) {
        const int piece = tile ^ line;
        unsigned char* to = buffer + line * LINE_BYTES + piece * 16 + lane % 4 * 4;
        *reinterpret_cast<uint32*>(to) = store_pair<Out>(upper[0], upper[1]);
        *reinterpret_cast<uint32*>(to + 8 * LINE_BYTES) = store_pair<Out>(lower[0], lower[1]);
    } else {
        const int piece = (2 * tile + lane % 4 / 2) ^ line;
        unsigned char* to = buffer + line * LINE_BYTES + piece * 16 + lane % 2 * 8;
        *reinterpret_cast<float2*>(to) = float2{upper[0], upper[1]};
        *reinterpret_cast<float2*>(to + 8 * LINE_BYTES) = float2{lower[0], lower[1]};
    }
}

template <int COUNT>
__device__ inline void store_rows(Staging& staging, const TensorMap& c_map, const Epilogue& epilogue,
                                  const float (&sums)[COUNT], int row, int col) {
    const int lane = threadIdx.x % 32;
#pragma unroll
    for (int part = 0; part < COUNT / 4 / STAGED_TILES; ++part) {
        unsigned char* buffer = staging.next();
#pragma unroll
        for (int tile = 0; tile < STAGED_TILES; ++tile) {
            const int idx = part * STAGED_TILES + tile, at = col + idx * 8 + lane % 4 * 2;
            Acc upper[2] = {sums[4 * idx], sums[4 * idx + 1]},
                lower[2] = {sums[4 * idx + 2], sums[4 * idx + 3]};
            finish_pair(epilogue, row + lane / 4, at, upper);
            finish_pair(epilogue, row + lane / 4 + 8, at, lower);
            stage_tile(buffer, tile, upper, lower);
        }
        fence_async();
        __syncwarp();
        if (lane == 0) {
            store_tensor(&c_map, buffer, row, col + part * STAGED_COLS);
            bulk_commit();
        }
    }
}

#else

template <int COUNT>
__device__ inline void store_rows(const Epilogue& epilogue, const float (&sums)[COUNT], int row, int col) {
    const int lane = threadIdx.x % 32;
#pragma unroll
    for (int j = 0; j < COUNT / 2; ++j) {
        const int own_row = row + lane / 4 + j % 2 * 8, own_col = col + j / 2 * 8 + lane % 4 * 2;
        if constexpr (SWAPPED) {
            const Acc first[1] = {sums[2 * j]}, second[1] = {sums[2 * j + 1]};
            write_sums<1>(epilogue, own_col, own_row, first);
            write_sums<1>(epilogue, own_col + 1, own_row, second);
        } else {
            const Acc pair[2] = {sums[2 * j], sums[2 * j + 1]};
            write_sums<2>(epilogue, own_row, own_col, pair);
        }
    }
}
#endif
