// Products of two tiles in shared memory on tensor cores: four warps share the block's sums.
// Tiles are the block's, in the rows of padded_tile.cuh; a lane has sums as mma leaves them.
#pragma once

#include "ops/conv/padded_tile.cuh"

// Loads 16 rows of A (columns of B) from `outer` on, by one slice of k, as the words of 8 by 16
// bytes that mma takes: halves of the slice s and of the outer indices h, for A in the order (h, s)
// = (0, 0), (1, 0), (0, 1), (1, 1), for B by pairs of the same h.
template <class Tile, bool IS_B>
__device__ inline void load_fragment(unsigned (&words)[4], const unsigned char* tile, int outer,
                                     int slice, int lane) {
    constexpr int DEPTH = SLICE<T>;
    const int matrix = lane / 8;  // of which this lane gives a row
    const int h = IS_B ? matrix / 2 : matrix % 2, s = IS_B ? matrix % 2 : matrix / 2;
    if constexpr (Tile::ALONG_K) {
        const int at = Tile::offset(outer + 8 * h + lane % 8, slice * DEPTH + s * DEPTH / 2);
        ldmatrix_x4(words[0], words[1], words[2], words[3], tile + at);
    } else if constexpr (DEPTH == 16) {
        const int at = Tile::offset(slice * DEPTH + 8 * s + lane % 8, outer + 8 * h);
        ldmatrix_x4_trans(words[0], words[1], words[2], words[3], tile + at);
    } else {  // ldmatrix cannot transpose 32-bit numbers
#pragma unroll
        for (int i = 0; i < 4; ++i) {
            const int part_h = IS_B ? i / 2 : i % 2, part_s = IS_B ? i % 2 : i / 2;
            const int at =
                Tile::offset(slice * DEPTH + 4 * part_s + lane % 4, outer + 8 * part_h + lane / 4);
            words[i] = *reinterpret_cast<const unsigned*>(tile + at);
        }
    }
}

template <bool A_ALONG_K, bool B_ALONG_K>
struct TileProduct {
    using TileA = PaddedTile<A_ALONG_K, BLOCK_M, BLOCK_K>;
    using TileB = PaddedTile<B_ALONG_K, BLOCK_N, BLOCK_K>;
    static constexpr int WARP_N = 32, WARPS_N = BLOCK_N / WARP_N;
    static constexpr int WARP_M = BLOCK_M * WARPS_N / (THREADS / 32);
    static constexpr int FRAGMENTS_M = WARP_M / 16, FRAGMENTS_N = WARP_N / 16;
    static_assert(BLOCK_N % WARP_N == 0 && WARP_M % 16 == 0,
                  "fragments fill the warps, and those the block");
    static constexpr int WIDTH = 2;  // neighbouring sums of a row
    static constexpr int COUNT = FRAGMENTS_M * FRAGMENTS_N * 8, UNITS = COUNT / WIDTH;

    float sums[FRAGMENTS_M][FRAGMENTS_N][2][4];
    int warp_row, warp_col, lane;

    __device__ TileProduct() : sums{} {
        const int warp = threadIdx.x / 32;
        warp_row = warp / WARPS_N * WARP_M;
        warp_col = warp % WARPS_N * WARP_N;
        lane = threadIdx.x % 32;
    }

    __device__ void multiply(const unsigned char* tile_a, const unsigned char* tile_b) {
#pragma unroll
        for (int slice = 0; slice < BLOCK_K / SLICE<T>; ++slice) {
            unsigned a[FRAGMENTS_M][4], b[FRAGMENTS_N][4];
#pragma unroll
            for (int i = 0; i < FRAGMENTS_M; ++i) {
                load_fragment<TileA, false>(a[i], tile_a, warp_row + 16 * i, slice, lane);
#pragma unroll
                for (int word = 0; word < 4; ++word)
                    a[i][word] = TensorCore<T>::operand(a[i][word]);
            }
#pragma unroll
            for (int j = 0; j < FRAGMENTS_N; ++j) {
                load_fragment<TileB, true>(b[j], tile_b, warp_col + 16 * j, slice, lane);
#pragma unroll
                for (int word = 0; word < 4; ++word)
                    b[j][word] = TensorCore<T>::operand(b[j][word]);
            }
            multiply_fragments(a, b);
        }
    }

    __device__ void multiply_fragments(const unsigned (&a)[FRAGMENTS_M][4],
                                       const unsigned (&b)[FRAGMENTS_N][4]) {
#pragma unroll
        for (int i = 0; i < FRAGMENTS_M; ++i) {
#pragma unroll
            for (int j = 0; j < FRAGMENTS_N; ++j) {
#pragma unroll
                for (int h = 0; h < 2; ++h) {
                    const unsigned of_b[2] = {b[j][2 * h], b[j][2 * h + 1]};
                    TensorCore<T>::multiply(sums[i][j][h], a[i], of_b);
                }
            }
        }
    }

    // Where the sums of a unit lie: in fragment (i, j), in one half of its rows and of its columns.
    struct Place {
        int i, j, row_half, col_half;
    };

    __device__ static constexpr Place place(int unit) {
        return {unit / 4 / FRAGMENTS_N, unit / 4 % FRAGMENTS_N, unit % 2, unit / 2 % 2};
    }

    // The WIDTH sums of a unit lie in one row, from column col(unit) on.
    __device__ float& sum(int unit, int j) {
        const Place at = place(unit);
        return sums[at.i][at.j][at.col_half][at.row_half * 2 + j];
    }

    __device__ int row(int unit) const {
        return warp_row + 16 * place(unit).i + 8 * place(unit).row_half + lane / 4;
    }

    __device__ int col(int unit) const {
        return warp_col + 16 * place(unit).j + 8 * place(unit).col_half + lane % 4 * 2;
    }
};
