// Products of two tiles in shared memory on CUDA cores, for all types: a thread owns 8 rows and
// BLOCK_M BLOCK_N / 1024 columns of sums. Tiles are the block's, in the rows of padded_tile.cuh;
// sums are the thread's own.
#pragma once

#include "ops/conv/padded_tile.cuh"

constexpr int WORD = 16 / sizeof(Acc);  // sums in 16 bytes, and k that a thread takes at once

// The COUNT rows of A (columns of B) of a thread that shares them among LANES lanes with others:
// single ones where neighbours in memory follow k, else groups of WORD.
template <class Tile, int COUNT, int LANES>
struct Strip {
    static constexpr int ADJACENT = Tile::ALONG_K ? 1 : WORD;
    static_assert(COUNT % ADJACENT == 0, "whole groups");

    __device__ static int index(int i, int warp, int lane) {
        return warp * LANES * COUNT + (i / ADJACENT * LANES + lane) * ADJACENT + i % ADJACENT;
    }

    // Reads WORD numbers along k of each.
    __device__ static void read(Acc (&to)[WORD][COUNT], const unsigned char* tile, int warp,
                                int lane, int k) {
        if constexpr (Tile::ALONG_K) {
#pragma unroll
            for (int i = 0; i < COUNT; ++i) {
                const auto pack = Tile::template read<WORD>(tile, index(i, warp, lane), k);
#pragma unroll
                for (int s = 0; s < WORD; ++s) to[s][i] = load(pack.at[s]);
            }
        } else {
#pragma unroll
            for (int s = 0; s < WORD; ++s) {
#pragma unroll
                for (int i = 0; i < COUNT; i += ADJACENT) {
                    const auto pack =
                        Tile::template read<ADJACENT>(tile, k + s, index(i, warp, lane));
#pragma unroll
                    for (int j = 0; j < ADJACENT; ++j) to[s][i + j] = load(pack.at[j]);
                }
            }
        }
    }
};

template <bool A_ALONG_K, bool B_ALONG_K>
struct TileProduct {
    using TileA = PaddedTile<A_ALONG_K, BLOCK_M, BLOCK_K>;
    using TileB = PaddedTile<B_ALONG_K, BLOCK_N, BLOCK_K>;
    static constexpr int THREAD_M = 8, THREAD_N = BLOCK_M * BLOCK_N / (THREADS * THREAD_M);
    static constexpr int LANES_M = 4, LANES_N = 8;
    static constexpr int WARPS_N = BLOCK_N / (LANES_N * THREAD_N);
    static_assert(WARPS_N * LANES_N * THREAD_N == BLOCK_N && BLOCK_M % (LANES_M * THREAD_M) == 0,
                  "warps fill the block");
    using StripA = Strip<TileA, THREAD_M, LANES_M>;
    using StripB = Strip<TileB, THREAD_N, LANES_N>;
    static constexpr int WIDTH = StripB::ADJACENT;  // neighbouring sums of a row
    static constexpr int COUNT = THREAD_M * THREAD_N, UNITS = COUNT / WIDTH;

    Acc sums[COUNT];
    int warp_m, warp_n, lane_m, lane_n;

    // Lanes that read the same numbers of A are neighbours of distance 2, of B of distance 1: their
    // reads merge.
    __device__ TileProduct() {
        const int warp = threadIdx.x / 32, lane = threadIdx.x % 32;
        warp_m = warp / WARPS_N;
        warp_n = warp % WARPS_N;
        lane_m = lane / (2 * LANES_N) * 2 + lane % 2;
        lane_n = lane / 2 % LANES_N;
#pragma unroll
        for (int i = 0; i < COUNT; ++i) sums[i] = Acc(0);
    }

    __device__ void multiply(const unsigned char* tile_a, const unsigned char* tile_b) {
#pragma unroll
        for (int k = 0; k < BLOCK_K; k += WORD) {
            Acc a[WORD][THREAD_M], b[WORD][THREAD_N];
            StripA::read(a, tile_a, warp_m, lane_m, k);
            StripB::read(b, tile_b, warp_n, lane_n, k);
#pragma unroll
            for (int s = 0; s < WORD; ++s) {
#pragma unroll
                for (int i = 0; i < COUNT; ++i) sums[i] += a[s][i / THREAD_N] * b[s][i % THREAD_N];
            }
        }
    }

    // The WIDTH sums of a unit lie in one row, from column col(unit) on.
    __device__ Acc& sum(int unit, int j) { return sums[unit * WIDTH + j]; }
    __device__ int row(int unit) const {
        return StripA::index(unit * WIDTH / THREAD_N, warp_m, lane_m);
    }
    __device__ int col(int unit) const {
        return StripB::index(unit * WIDTH % THREAD_N, warp_n, lane_n);
    }
};
