// Computes: what conv2d_grouped_forward.cu does, or, if ADJOINT, conv2d_grouped_backward_input.cu,
//           of groups of GROUP channels and as many outputs, on tensor cores.
// Layout:   x (M, height, width, channels), y and z (M, out_height, out_width, channels); if
//           ADJOINT, x is dz and y is dx. w (KH, KW, GROUP, channels), bias (channels) or null,
//           contiguous; x, w and y at multiples of 16 bytes; channels are a multiple of 8.
// Launch:   grid (tiles or fewer, slices of CHANNELS channels); blocks of 256 threads, each for
//           every gridDim.x-th tile of tile_images times tile_height times tile_width windows.
//           padding is what x lies apart from y. shared bytes: twice the pixels that a tile's
//           windows see, and the windows; at first a tile and weights (`GroupTile.shared_bytes`).
//           Defines: DTYPE, GROUP, KERNEL_HEIGHT, KERNEL_WIDTH, STRIDE_HEIGHT, STRIDE_WIDTH,
//           ADJOINT, ACTIVATION, STORE_Z.
// Numerics: sums in float, from the bias on, over the taps in their order, four channels at a time.
//           Pixels beside the image count as zeros. No group's numbers meet another's. An infinite
//           one may become NaN.
// Cost:     2 M out_height out_width GROUP channels FLOP for each tap, twice as many for groups of
//           four; reads x once, and again what tiles share.
// Reference: conv2d_forward and conv2d_backward_input of backends/numpy/conv.py; PTX ISA 9.7.14
//           (mma), 9.7.9.25.3 (cp.async).
#include "ops/activation/activation.cuh"
#include "ops/conv/groups/group_tiles.cuh"

// Where a fragment's rows are 32 bytes long, lines of another length lie in different banks.
constexpr int X_LINE = GROUP % 16 == 0 ? CHANNELS + 16 : LINE;
constexpr int STEP_HEIGHT = ADJOINT ? 1 : STRIDE_HEIGHT, STEP_WIDTH = ADJOINT ? 1 : STRIDE_WIDTH;
constexpr int APART_HEIGHT = ADJOINT ? STRIDE_HEIGHT : 1, APART_WIDTH = ADJOINT ? STRIDE_WIDTH : 1;

// A product's k consists of four pieces, of four channels of a tap each, one for a lane of four.
constexpr int PIECES = GROUP / 4, STEPS = (TAPS * PIECES + 3) / 4;
// A unit is eight outputs, or 16 if registers hold their weights, of a group, or of two of four.
// Warps have units, and parts of a tile.
constexpr int EIGHTS = GROUP > 8 && STEPS <= 18 ? 2 : 1, WIDE = 8 * EIGHTS;
constexpr int IN_UNIT = GROUP < 8 ? 2 : 1;  // groups
constexpr int IN_GROUP = (GROUP * IN_UNIT + WIDE - 1) / WIDE;
constexpr int UNITS = CHANNELS / (GROUP * IN_UNIT) * IN_GROUP, DOWN = WARPS / UNITS;
static_assert(UNITS <= WARPS, "a warp has one unit");
constexpr int AT_ONCE = EIGHTS == 2 && STEPS <= 9 ? 1 : 2;  // times 16 windows

using Tiles = Tiling<STEP_HEIGHT, STEP_WIDTH>;

// This lane's piece of a step: its tap and first channel.
__device__ inline int tap_of(int step) { return (4 * step + threadIdx.x % 4) / PIECES; }
__device__ inline int channel_of(int step) { return (4 * step + threadIdx.x % 4) % PIECES * 4; }

// The weights of a block's outputs in shared memory, a channel of a tap a line: that is k.
__device__ inline void copy_weights(T* to, const T* w, int channels, int octets) {
    Counter at(threadIdx.x, THREADS, 16 * STEPS, octets);
    for (int i = threadIdx.x; i < 16 * STEPS * octets; i += THREADS) {
        const bool is_inside = at.b < TAPS * GROUP;
        const int64 from = static_cast<int64>(at.b) * channels + at.c * 8;
        copy_async_16(to + at.b * LINE + at.c * 8, is_inside ? w + from : w, is_inside);
        at.advance();
    }
}

// A warp's unit: its group's first channel and its own first output in the block's, and weights.
struct Unit {
    int group, output;
    unsigned words[STEPS][EIGHTS][2];

    __device__ explicit Unit(int number)
        : group(number / IN_GROUP * GROUP * IN_UNIT), output(group + number % IN_GROUP * WIDE) {}

    // Rows of 8 by 8 weights are told lane by lane, so that k may have any order.
    __device__ void load(const T* weights) {
        const int lane = threadIdx.x % 32, row = lane % 8, half = lane / 8 % 2;
        const int k = row / 2 * 4 + row % 2 + half * 2;
#pragma unroll
        for (int step = 0; step < STEPS; step += 3 - EIGHTS) {
            const int ahead = EIGHTS == 2 ? 0 : min(lane / 16, STEPS - 1 - step);
            const int next = EIGHTS == 2 || step + 1 == STEPS ? step : step + 1;
            const T* from = weights + (16 * (step + ahead) + k) * LINE + output;
            unsigned last[2];
            ldmatrix_x4_trans(words[step][0][0], words[step][0][1], last[0], last[1],
                              from + (EIGHTS == 2 ? lane / 16 * 8 : 0));
            if (EIGHTS == 1 && next == step) continue;
            words[next][EIGHTS - 1][0] = last[0];
            words[next][EIGHTS - 1][1] = last[1];
        }
    }

    // With channels and outputs exchanged, and taps in the other order.
    __device__ void load_adjoint(const T* weights) {
        const int column = threadIdx.x % 32 / 4;
#pragma unroll
        for (int step = 0; step < STEPS; ++step) {
#pragma unroll
            for (int j = 0; j < EIGHTS; ++j) {
                const int at = output - group + 8 * j + column, own = at / GROUP * GROUP;
                const bool some = tap_of(step) < TAPS && at < GROUP * IN_UNIT;
                const int line = (TAPS - 1 - tap_of(step)) * GROUP + at - own;
                const T* from = weights + line * LINE + group + own + channel_of(step);
                const uint2 both = some ? *reinterpret_cast<const uint2*>(from) : uint2{0, 0};
                words[step][j][0] = both.x;
                words[step][j][1] = both.y;
            }
        }
    }
};

// A tile of windows: what lanes' sums become is stored when it is complete, z at once.
struct Results {
    const Tiles& tiles;
    T *tile, *z;
    float slope;
    Place first;

    __device__ void put(int window, int channel, float left, float right) const {
        if (window >= tiles.num_windows()) return;
        using A = Activation;
        *reinterpret_cast<unsigned*>(tile + window * LINE + channel) =
            packed<T>(activate<A::ACTIVATION>(left, slope), activate<A::ACTIVATION>(right, slope));
        const int64 at = STORE_Z ? tiles.index(first, window) : -1;
        if (at < 0) return;
        *reinterpret_cast<unsigned*>(z + at * tiles.channels + channel) = packed<T>(left, right);
    }

    __device__ void store(T* y, int octets) const {
        Counter at(threadIdx.x, THREADS, tiles.num_windows(), octets);
        for (int i = threadIdx.x; i < tiles.num_windows() * octets; i += THREADS) {
            const int64 idx = tiles.index(first, at.b);
            if (idx >= 0)
                store_vec(y + idx * tiles.channels + at.c * 8,
                          load_vec(tile + at.b * LINE + at.c * 8));
            at.advance();
        }
    }
};

// Multiplies windows, whose pixels this lane's begin at, by a unit's weights. `bias`: the block's.
__device__ inline void multiply(const Unit& unit, const T* const (&pixels)[2 * AT_ONCE],
                                const int (&places)[STEPS], const T* bias, const Results& results,
                                int window) {
    float sums[IN_UNIT][AT_ONCE][EIGHTS][4];
    const int column = unit.output + threadIdx.x % 4 * 2, end = unit.group + GROUP * IN_UNIT;
#pragma unroll
    for (int i = 0; i < IN_UNIT * AT_ONCE * EIGHTS * 4; ++i) {
        const int at = column + i / 4 % EIGHTS * 8 + i % 2;
        sums[i / (4 * EIGHTS * AT_ONCE)][i / (4 * EIGHTS) % AT_ONCE][i / 4 % EIGHTS][i % 4] =
            bias && at < end ? load(bias[at]) : 0.0f;
    }
#pragma unroll
    for (int step = 0; step < STEPS; ++step) {
#pragma unroll
        for (int part = 0; part < IN_UNIT * AT_ONCE; ++part) {
            const int own = part / AT_ONCE, tile = part % AT_ONCE;
            const int at = unit.group + own * GROUP + places[step];
            const uint2 upper = *reinterpret_cast<const uint2*>(pixels[2 * tile] + at);
            const uint2 lower = *reinterpret_cast<const uint2*>(pixels[2 * tile + 1] + at);
            const unsigned a[4] = {upper.x, lower.x, upper.y, lower.y};
#pragma unroll
            for (int j = 0; j < EIGHTS; ++j)
                TensorCore<T>::multiply(sums[own][tile][j], a, unit.words[step][j]);
        }
    }
    const bool is_second = IN_UNIT == 2 && threadIdx.x % 4 >= 2;  // of two groups
#pragma unroll
    for (int i = 0; i < AT_ONCE * EIGHTS * 2; ++i) {
        const int tile = i / (2 * EIGHTS), j = i / 2 % EIGHTS, half = i % 2;
        const float* first = sums[0][tile][j] + 2 * half;
        const float* second = sums[IN_UNIT - 1][tile][j] + 2 * half;
        if (column + 8 * j >= end) continue;
        results.put(window + 16 * tile + 8 * half, column + 8 * j, is_second ? second[0] : first[0],
                    is_second ? second[1] : first[1]);
    }
}

extern "C" __global__ void __launch_bounds__(THREADS, 1)
    conv2d_grouped_mma(const T* x, const T* w, const T* bias, T* y, T* z, double slope,
                       int num_images, int height, int width, int out_height, int out_width,
                       int channels, int padding_height, int padding_width, int dilation_height,
                       int dilation_width, int tile_images, int tile_height, int tile_width) {
    take_turn();
    DYNAMIC_SHARED(T, shared);
    const Tiles tiles({height, width}, {out_height, out_width}, {padding_height, padding_width},
                      {dilation_height, dilation_width}, {tile_height, tile_width}, num_images,
                      tile_images, channels);
    const int first = static_cast<int>(blockIdx.y) * CHANNELS;
    const int octets = min(CHANNELS, channels - first) / 8;
    const int warp = threadIdx.x / 32, row = threadIdx.x % 32 / 4;
    const int tile_numbers = tiles.num_pixels() * X_LINE;
    const auto copy = [&](int idx, int stage) {
        if (idx < tiles.num_tiles())
            tiles.copy<X_LINE, APART_HEIGHT, APART_WIDTH>(
                shared + stage * tile_numbers, x + first, tiles.image, octets,
                tiles.first_pixel(tiles.first(idx)), tiles.seen);
        copy_async_commit();
    };
    // Weights are where the second tile comes to.
    copy_weights(shared + tile_numbers, w + first, channels, octets);
    copy(blockIdx.x, 0);
    copy_async_wait<0>();
    __syncthreads();
    Unit unit(warp % UNITS);
    const bool is_busy = warp < UNITS * DOWN && unit.group < 8 * octets;
    if (ADJOINT) {
        unit.load_adjoint(shared + tile_numbers);
    } else {
        unit.load(shared + tile_numbers);
    }
    int places[STEPS];
#pragma unroll
    for (int i = 0; i < STEPS; ++i)  // beyond the last tap weights are zeros
        places[i] = tiles.distance(min(tap_of(i), TAPS - 1)) * X_LINE + channel_of(i);
    Results results{tiles, shared + 2 * tile_numbers, z + first, static_cast<float>(slope), {}};
#pragma unroll 1
    for (int idx = blockIdx.x, stage = 0; idx < tiles.num_tiles(); idx += gridDim.x, stage ^= 1) {
        results.first = tiles.first(idx);
        copy_async_wait<0>();
        __syncthreads();  // the pixels are there, weights are read, and the last windows stored
        copy(idx + gridDim.x, stage ^ 1);
#pragma unroll 1
        for (int window = warp / UNITS * 16 * AT_ONCE; window < tiles.num_windows() && is_busy;
             window += DOWN * 16 * AT_ONCE) {
            const T* pixels[2 * AT_ONCE];
#pragma unroll
            for (int i = 0; i < 2 * AT_ONCE; ++i)
                pixels[i] =
                    shared + stage * tile_numbers + tiles.pixel(window + row + 8 * i) * X_LINE;
            multiply(unit, pixels, places, bias ? bias + first : nullptr, results, window + row);
        }
        __syncthreads();  // the windows are there
        results.store(y + first, octets);
    }
}
