// Computes: what conv2d_grouped_backward_weight.cu does, of groups of GROUP channels and as many
//           outputs, on tensor cores: of each pair of taps and each eight channels a product, whose
//           k are windows.
// Layout:   dz (M, out_height, out_width, channels), x (M, height, width, channels), contiguous, at
//           multiples of 16 bytes; channels are a multiple of 8; partials (gridDim.x, KH KW GROUP,
//           channels) of float.
// Launch:   grid (parts, slices of CHANNELS channels); blocks of 256 threads, each for every
//           gridDim.x-th tile of tile_images times tile_height times tile_width windows. shared
//           bytes: twice the pixels that a tile's windows see, and dz of the windows, rounded up to
//           32 (`GroupTile.shared_bytes`). Defines: DTYPE, GROUP, KERNEL_HEIGHT, KERNEL_WIDTH,
//           STRIDE_HEIGHT, STRIDE_WIDTH.
// Numerics: sums in float, in the order of tiles and their windows. A number that is not finite may
//           reach all taps of its group.
// Cost:     2 M out_height out_width GROUP channels FLOP for each tap, twice as many for groups of
//           four; reads dz once, and x, and again what tiles share.
// Reference: conv2d_backward_weight of backends/numpy/conv.py; PTX ISA 9.7.14 (mma), 9.7.9.25.3
//           (cp.async).
#include "ops/conv/groups/group_tiles.cuh"

// A warp has eight channels, and PARTNERS times eight outputs of their groups.
constexpr int PARTNERS = GROUP < 8 ? 1 : GROUP / 8, PAIRS = (TAPS + 1) / 2;
constexpr int AT_ONCE = 32;  // windows

using Sums = float[PARTNERS][PAIRS][4];

using Tiles = Tiling<STRIDE_HEIGHT, STRIDE_WIDTH>;

// sums += a tile's products. x is at this warp's channels, dz at its outputs.
__device__ inline void multiply(Sums& sums, const T* x, const T* dz, const int (&places)[PAIRS],
                                const Tiles& tiles) {
    const int lane = threadIdx.x % 32;
#pragma unroll 1
    for (int first = 0; first < tiles.num_windows(); first += AT_ONCE) {
        unsigned b[PARTNERS][2][2];
#pragma unroll
        for (int j = 0; j < PARTNERS; ++j)
            ldmatrix_x4_trans(b[j][0][0], b[j][0][1], b[j][1][0], b[j][1][1],
                              dz + (first + lane) * LINE + 8 * j);
#pragma unroll
        for (int half = 0; half < 2; ++half) {
            // Beyond the last window dz is zero, and so is the product, unless the last one is NaN.
            const T* pixel = x + tiles.pixel(first + 16 * half + lane % 8 + lane / 16 * 8) * LINE;
#pragma unroll
            for (int pair = 0; pair < PAIRS; ++pair) {
                unsigned a[4];
                ldmatrix_x4_trans(a[0], a[1], a[2], a[3], pixel + places[pair]);
#pragma unroll
                for (int j = 0; j < PARTNERS; ++j)
                    TensorCore<T>::multiply(sums[j][pair], a, b[j][half]);
            }
        }
    }
}

// `to`: this block's sums of the group's first output. channel: the warp's first in its group.
__device__ inline void store_sums(const Sums& sums, float* to, int channel, int channels) {
    const int row = threadIdx.x % 32 / 4, column = threadIdx.x % 4 * 2;
    const bool is_own = GROUP >= 8 || row / 4 == column / 4;  // channel and output of one group
#pragma unroll
    for (int j = 0; j < PARTNERS; ++j) {
#pragma unroll
        for (int i = 0; i < 2 * PAIRS; ++i) {
            if (i >= TAPS || !is_own) continue;
            const int64 at = static_cast<int64>(i) * GROUP + (channel + row) % GROUP;
            float* pair = to + at * channels + 8 * j + column;
            pair[0] = sums[j][i / 2][i % 2 * 2];
            pair[1] = sums[j][i / 2][i % 2 * 2 + 1];
        }
    }
}

extern "C" __global__ void __launch_bounds__(THREADS, 1)
    conv2d_grouped_backward_weight_mma(const T* dz, const T* x, float* partials, int num_images,
                                       int height, int width, int out_height, int out_width,
                                       int channels, int padding_height, int padding_width,
                                       int dilation_height, int dilation_width, int tile_images,
                                       int tile_height, int tile_width) {
    take_turn();
    DYNAMIC_SHARED(T, shared);
    const Tiles tiles({height, width}, {out_height, out_width}, {padding_height, padding_width},
                      {dilation_height, dilation_width}, {tile_height, tile_width}, num_images,
                      tile_images, channels);
    const int first = static_cast<int>(blockIdx.y) * CHANNELS;
    const int octets = min(CHANNELS, channels - first) / 8, count = tiles.num_windows();
    const int channel = threadIdx.x / 32 * 8;  // of the block's, this warp's first one
    const int output = GROUP < 8 ? channel : channel / GROUP * GROUP;
    const int beyond = (count + AT_ONCE - 1) / AT_ONCE * AT_ONCE;
    const int x_numbers = tiles.num_pixels() * LINE, stage_numbers = x_numbers + beyond * LINE;
    const auto copy = [&](int idx, int stage) {
        T* to = shared + stage * stage_numbers;
        const Place at = tiles.first(idx);
        if (idx < tiles.num_tiles()) {
            tiles.copy<LINE, 1, 1>(to, x + first, tiles.image, octets, tiles.first_pixel(at),
                                   tiles.seen);
            tiles.copy<LINE, 1, 1>(to + x_numbers, dz + first, tiles.windows, octets, at,
                                   tiles.tile);
        }
        copy_async_commit();
    };
    for (int i = threadIdx.x; i < 2 * (beyond - count) * LINE; i += THREADS) {
        const int stage = i % 2;
        shared[stage * stage_numbers + x_numbers + count * LINE + i / 2] = T{};
    }
    copy(blockIdx.x, 0);

    int places[PAIRS];  // numbers from a window's first pixel to this lane's tap of each pair
#pragma unroll
    for (int pair = 0; pair < PAIRS; ++pair) {
        const int tap = min(2 * pair + static_cast<int>(threadIdx.x / 8 % 2), TAPS - 1);
        places[pair] = tiles.distance(tap) * LINE;
    }
    Sums sums = {};
#pragma unroll 1
    for (int idx = blockIdx.x, stage = 0; idx < tiles.num_tiles(); idx += gridDim.x, stage ^= 1) {
        copy_async_wait<0>();
        __syncthreads();  // the tile is there, and all have read the one before
        copy(idx + gridDim.x, stage ^ 1);
        const T* tile = shared + stage * stage_numbers;
        if (channel < 8 * octets)
            multiply(sums, tile + channel, tile + x_numbers + output, places, tiles);
    }
    if (channel >= 8 * octets) return;
    const int64 own = static_cast<int64>(blockIdx.x) * TAPS * GROUP * channels;
    store_sums(sums, partials + own + first + output, channel, channels);
}
