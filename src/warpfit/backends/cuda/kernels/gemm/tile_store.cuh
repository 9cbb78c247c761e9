// From the sums of a product's tile to C: a warp has 16 rows as wgmma leaves them (ptx_sm90a.cuh),
// applies EPILOGUE, and stores them.
//
// STORES_TENSOR: by way of shared memory and a tensor map with boxes of 16 rows and a line of 128
// bytes, swizzled by as many. Then, if LOADS_SAVED, `saved` comes the same way into the places that
// C's numbers leave from. Otherwise from registers to their addresses, in whatever order rows are;
// if SWAPPED, rows of the tile are columns of C.
#pragma once

#include "gemm/epilogue.cuh"
#include "mma/operand_tile.cuh"
#include "ptx/barriers.cuh"

#ifndef LOADS_SAVED
#define LOADS_SAVED 0
#endif

#if STORES_TENSOR
constexpr int STAGED_COLS = LINE_BYTES / sizeof(Out);
constexpr int STAGED_TILES = STAGED_COLS / 8;  // of 8 columns
constexpr int STAGED_BYTES = 16 * LINE_BYTES;

// A warp's two buffers of numbers on their way to C, in turns, and what tells that `saved` has come
// into one.
struct Staging {
    unsigned char (&buffers)[2][STAGED_BYTES];
    Barrier (&loaded)[2];
    const TensorMap& c_map;
    const TensorMap& saved_map;
    unsigned uses;  // so far

    // This lane's place for a pair of a tile of 8 columns, in the upper 8 rows of the buffer in
    // use; `LOWER` bytes further in the lower ones. Neighbouring lines lie in different banks.
    static constexpr int LOWER = 8 * LINE_BYTES;

    __device__ unsigned char* place(int tile) const {
        const int lane = threadIdx.x % 32, line = lane / 4,
                  byte = (tile * 8 + lane % 4 * 2) * sizeof(Out);
        return buffers[uses % 2] + line * LINE_BYTES + (byte / 16 ^ line) * 16 + byte % 16;
    }

    // Starts to fill the buffer that comes `ahead` uses after this one, once it has been stored.
    __device__ void load_saved(unsigned ahead, int row, int col) {
        if (threadIdx.x % 32 != 0) return;
        Barrier& barrier = loaded[(uses + ahead) % 2];
        bulk_wait_read<0>();
        mbarrier_expect(&barrier, STAGED_BYTES);
        copy_tensor(buffers[(uses + ahead) % 2], &saved_map, row, col, &barrier);
    }

    __device__ void begin() {
        if (LOADS_SAVED) {
            wait(loaded[uses % 2], uses / 2);
        } else {
            if (threadIdx.x % 32 == 0) bulk_wait_read<1>();
            __syncwarp();
        }
    }

    __device__ void store(int row, int col) {
        fence_async();
        __syncwarp();
        if (threadIdx.x % 32 == 0) {
            store_tensor(&c_map, buffers[uses % 2], row, col);
            bulk_commit();
        }
        ++uses;
    }
};

// A pair of C, made of their sums, to its place.
__device__ inline void stage_pair(unsigned char* place, const Epilogue& epilogue, int row, int col,
                                  Acc first, Acc second) {
    Acc pair[2] = {first, second};
    if (LOADS_SAVED) {
        Epilogue own = epilogue;
        own.saved = reinterpret_cast<const T*>(place);
        EPILOGUE<2>(own, 0, col, pair);
    } else if (row < epilogue.m && col < epilogue.n) {
        EPILOGUE<2>(epilogue, static_cast<int64>(row) * epilogue.ldc + col, col, pair);
    }
    store_sums(reinterpret_cast<Out*>(place), pair);
}

template <int COUNT>
__device__ inline void store_rows(Staging& staging, const Epilogue& epilogue,
                                  const float (&sums)[COUNT], int row, int col) {
    constexpr int PARTS = COUNT / 4 / STAGED_TILES;
    const int own_row = row + threadIdx.x % 32 / 4, own_col = col + threadIdx.x % 4 * 2;
    if (LOADS_SAVED) staging.load_saved(0, row, col);
#pragma unroll
    for (int part = 0; part < PARTS; ++part) {
        if (LOADS_SAVED && part + 1 < PARTS)
            staging.load_saved(1, row, col + (part + 1) * STAGED_COLS);
        staging.begin();
#pragma unroll
        for (int tile = 0; tile < STAGED_TILES; ++tile) {
            const int idx = part * STAGED_TILES + tile, at = own_col + idx * 8;
            unsigned char* place = staging.place(tile);
            stage_pair(place, epilogue, own_row, at, sums[4 * idx], sums[4 * idx + 1]);
            stage_pair(place + Staging::LOWER, epilogue, own_row + 8, at, sums[4 * idx + 2],
                       sums[4 * idx + 3]);
        }
        staging.store(row, col + part * STAGED_COLS);
    }
}

#else

// The numbers that a thread has of 64 rows; those of its warp are from `row` on.
template <class Rows, int COUNT>
__device__ inline void store_rows(const Epilogue& epilogue, const float (&sums)[COUNT], int row,
                                  int col) {
    const int lane = threadIdx.x % 32;
#pragma unroll
    for (int j = 0; j < COUNT / 2; ++j) {
        const int own_row = row + Rows::of_lane() + j % 2 * Rows::STEP,
                  own_col = col + j / 2 * 8 + lane % 4 * 2;
        if constexpr (SWAPPED && Rows::STEP == 1) {
            const Acc pair[2] = {sums[j / 2 * 4 + j % 2], sums[j / 2 * 4 + j % 2 + 2]};
            write_sums<2, true>(epilogue, own_col + j % 2, row + Rows::of_lane(), pair);
        } else if constexpr (SWAPPED) {
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
