// Computes:  y = f(z + bias), z[m, i, j, o] = sum of w[k, l, c, o] x[m, i + k dilation - padding,
//            ..., c] over taps (k, l) and channels c, x being 0 outside of the image, on Hopper's
//            tensor cores through wgmma; ADJOINT: dx of dz, that is the same of dz with w[-k, -l,
//            o, c], padding being (kernel - 1) dilation less than it was.
// Layout:    x (M, height, width, channels), y (M, out_height, out_width, outputs), w (KH, KW, C,
//            O), contiguous; of these channels are C and outputs O, or the other way round if
//            ADJOINT. w and, if X_PIECES, x consist of whole pieces at multiples of 16 bytes;
//            outputs are a multiple of BLOCK_N.
//            POOLS: of each 2 by 2 windows, from the first on, y has the largest numbers only, and
//            indices, like y, their row and column, as row 2 + column, of equal ones the first.
//            band_rows then are even, and tiles 8 by 8. IS_POOLED: x is a gradient of numbers that
//            were pooled so, and indices tells how to spread it (pooled_rows.cuh).
//            bias (outputs); saved and z like y (window_sums.cuh).
// Launch:    grid (as many blocks as run at once, outputs / BLOCK_N); block: WARPGROUPS that
//            multiply, and, if STAGES is 2, one that loads the next band meanwhile. Block x takes
//            every gridDim.x-th band of band_rows rows of windows, and its warpgroups the band's
//            tiles of 64 windows, in turns. A tile is 8 by 8 windows, tiles_across of them
//            side by side, or, if that is 0, 64 in the order of the planes' pixels. shared bytes:
//            weights, STAGES of planes of a band, plane_bytes each, and barriers
//            (`Band.shared_bytes`). Defines: these,
//            POOLS, DTYPE, KERNEL_HEIGHT, KERNEL_WIDTH, SLICES_OF_TAP (of channels), BLOCKS (to a
//            multiprocessor), and those of window_sums.cuh.
// Numerics:  float32 sums, in the order of taps and channels.
// Cost:      2 M out_height out_width KH KW C O FLOP, and those of windows that fill up tiles;
//            reads w once for each block, and x, with KH - 1 rows more for each band, once for each
//            blockIdx.y.
// Reference: conv2d_forward and conv2d_backward_input of backends/numpy/conv.py; PTX ISA 9.7.15
//            (wgmma), 9.7.9.25.3 (cp.async).
#define SHARED_ALIGNMENT 1024

#include "mma/lines.cuh"
#include "ops/conv/windows/band_ring.cuh"
#include "ops/conv/windows/pooled_rows.cuh"
#include "ops/conv/windows/window_sums.cuh"

constexpr int THREADS = 128 * WARPGROUPS;      // that multiply
constexpr int LOADERS = STAGES > 1 ? 128 : 0;  // threads that load
constexpr int DEPTH = SLICE_BYTES / static_cast<int>(sizeof(T));
constexpr int TAPS = KERNEL_HEIGHT * KERNEL_WIDTH;
constexpr int CHANNELS = SLICES_OF_TAP * DEPTH;  // zeros fill up the last slice
// All products of a tile follow each other without a branch, unless they are too many.
constexpr int UNROLLED_ROWS = TAPS * SLICES_OF_TAP <= 64 ? KERNEL_HEIGHT : 1;

struct Pair {
    int h, w;
};

// The weights of all taps that make this block's outputs. Their rows are taps and, in each,
// channels, or outputs if ADJOINT; what else they have lies side by side.
constexpr int INNER = ADJOINT ? CHANNELS : BLOCK_N, OUTER = ADJOINT ? BLOCK_N : CHANNELS;
using Weights = Lines<INNER* static_cast<int>(sizeof(T))>;
constexpr int PANEL_BYTES = TAPS * OUTER * Weights::LINE;
constexpr int WEIGHT_BYTES = TAPS * OUTER * INNER * static_cast<int>(sizeof(T));
constexpr int TAP_BYTES = OUTER * Weights::LINE;
static_assert(OUTER % 8 == 0, "taps begin with an atom");

// From w (taps, outer, inner), those from (first_outer, first_inner) on; zeros beyond.
__device__ inline void copy_weights(const Weights& to, const T* w, int outer, int inner,
                                    int first_outer, int first_inner) {
    Counter at(threadIdx.x, THREADS, OUTER, INNER / IN_PIECE<T>);
    for (; at.a < TAPS; at.advance()) {
        const int row = first_outer + at.b, col = first_inner + at.c * IN_PIECE<T>;
        const bool inside = (row < outer) & (col < inner);
        const T* from = w + (static_cast<int64>(at.a) * outer + row) * inner + col;
        copy_async_16(to.piece(at.a * OUTER + at.b, at.c), inside ? from : w, inside);
    }
}

// Which windows a tile has.
struct Tiling {
    Divisor pitch;
    Divisor tiles_across;  // 0 for those in the order of pixels

    __device__ bool in_order() const { return tiles_across.number == 0; }

    // The first window.
    __device__ Pair corner(int tile) const {
        if (in_order()) return {0, 64 * tile};
        return {tiles_across.quotient(tile) * 8, tiles_across.rest(tile) * 8};
    }

    // Bytes from eight windows to the next.
    __device__ int row_step() const { return PIECE_BYTES * (in_order() ? 8 : pitch.number); }

    __device__ Pair window(const Pair& first, int eight, int one) const {
        if (!in_order()) return {first.h + eight, first.w + one};
        const int pixel = first.w + 8 * eight + one;
        return {pitch.quotient(pixel), pitch.rest(pixel)};
    }
};

// What a product takes from shared memory, as descriptors of the first tap.
struct Operands {
    uint64 pixels, weights;
    int pixel_slice;  // bytes from one slice of k to the next
};

// Bytes from the weights of the first tap and slice to those of another; ADJOINT goes backwards.
__device__ constexpr int weight_bytes(int tap, int slice) {
    return ADJOINT ? (TAPS - 1 - tap) * TAP_BYTES + Weights::slice_along(slice, PANEL_BYTES)
                   : tap * TAP_BYTES + slice * DEPTH * Weights::LINE;
}

// sums = all taps' products for 64 windows.
__device__ inline void multiply(Sums& sums, const Operands& own, const Pair& tap_step) {
    wgmma_fence();
#pragma unroll(UNROLLED_ROWS)
    for (int kh = 0; kh < KERNEL_HEIGHT; ++kh) {
#pragma unroll
        for (int kw = 0; kw < KERNEL_WIDTH; ++kw) {
            const uint64 pixels = moved(own.pixels, kh * tap_step.h + kw * tap_step.w);
#pragma unroll
            for (int slice = 0; slice < SLICES_OF_TAP; ++slice) {
                SliceProduct<T, false, !ADJOINT>::add_to(
                    sums, moved(pixels, slice * own.pixel_slice),
                    moved(own.weights, weight_bytes(kh * KERNEL_WIDTH + kw, slice)),
                    kh + kw + slice > 0);
            }
        }
    }
    wgmma_commit();
    wgmma_wait<0>();
}

// The bands of all images, and how they come to shared memory.
struct Bands {
    const T* x;
    const uint8* places;
    Pair image, padding;
    int channels, in_image, rows, copied_rows, pitch;

    __device__ int first_row(int band) const { return band % in_image * rows; }

    // By as many threads, of which this is number `thread`, until its part is there.
    template <int THREADS_OF>
    __device__ void copy(int band, const Planes& to, int thread) const {
        const int number = band / in_image;
        const ImageRows<T, X_PIECES> own{
            x + static_cast<int64>(number) * image.h * image.w * channels,
            image.h,
            image.w,
            channels,
            first_row(band) - padding.h,
            -padding.w,
            copied_rows,
            pitch,
            0};
        constexpr int PLANES = CHANNELS / IN_PIECE<T>;
        if constexpr (IS_POOLED) {
            copy_pooled<THREADS_OF, PLANES>(to, x, places, number, own, thread);
        } else {
            own.template copy_to<THREADS_OF, PLANES>(to, thread);
        }
        copy_async_commit();
        copy_async_wait<0>();
    }
};

extern "C" __global__ void __launch_bounds__(THREADS + LOADERS, BLOCKS)
    conv2d_sm90(const T* x, const T* w, const T* bias, const T* saved, T* y, T* z, uint8* indices,
                double slope, int num_images, int height, int width, int channels, int out_height,
                int out_width, int outputs, int padding_height, int padding_width,
                int dilation_height, int dilation_width, int band_rows, int num_tiles,
                int tiles_across, int plane_bytes) {
    DYNAMIC_SHARED(unsigned char, shared);
    const int first_output = blockIdx.y * BLOCK_N;
    const int pitch = out_width + (KERNEL_WIDTH - 1) * dilation_width;
    const Weights weights{shared, PANEL_BYTES};
    const Planes pixels{shared + WEIGHT_BYTES, plane_bytes};
    const int stage_bytes = CHANNELS / IN_PIECE<T> * plane_bytes;
    const BandRing<STAGES, THREADS, LOADERS> ring(pixels.data + STAGES * stage_bytes);
    // Zeros around images, and channels that they do not have.
    for (int i = threadIdx.x; i < STAGES * stage_bytes / PIECE_BYTES; i += THREADS + LOADERS) {
        reinterpret_cast<uint4*>(pixels.data)[i] = uint4{0, 0, 0, 0};
    }
    if (LOADERS > 0) {
        ring.start();
    } else {
        __syncthreads();
    }
    take_turn();

    const Bands bands{x,
                      indices,
                      {height, width},
                      {padding_height, padding_width},
                      channels,
                      (out_height + band_rows - 1) / band_rows,
                      band_rows,
                      band_rows + (KERNEL_HEIGHT - 1) * dilation_height,
                      pitch};
    const int count = num_images * bands.in_image;
    if (LOADERS > 0 && ring.is_loader()) {
        ring.load_all(count, [&](int band, int stage) {
            const Planes to{pixels.data + stage * stage_bytes, plane_bytes};
            bands.copy<LOADERS>(band, to, ring.loader());
        });
        return;
    }
    if (ADJOINT) {
        copy_weights(weights, w, outputs, channels, first_output, 0);
    } else {
        copy_weights(weights, w, channels, outputs, 0, first_output);
    }
    copy_async_commit();
    copy_async_wait<0>();
    fence_async();
    if (LOADERS > 0) meet_at<THREADS>(1);

    const Tiling tiling{Divisor(pitch), Divisor(tiles_across)};
    WindowResult result{
        bias,    saved,        y, z, indices, static_cast<Acc>(slope), out_height, out_width,
        outputs, first_output, 0};
    const Operands first{
        planes_descriptor(shared_address(pixels.data), plane_bytes, tiling.row_step()),
        weights.descriptor(), 2 * plane_bytes};
    const Pair tap_step{dilation_height * pitch * PIECE_BYTES, dilation_width * PIECE_BYTES};
    const int warp = threadIdx.x / 32 % 4, lane = threadIdx.x % 32;
    Cursor<STAGES> cursor(0);
    for (int band = blockIdx.x; band < count; band += gridDim.x) {
        const int first_row = bands.first_row(band);
        result.image = band / bands.in_image;
        if (LOADERS > 0) {
            wait(ring.full[cursor.slot], cursor.round);
        } else {
            bands.copy<THREADS>(band, pixels, threadIdx.x);
            fence_async();
            __syncthreads();
        }
        for (int tile = uniform(threadIdx.x / 128); tile < num_tiles; tile += WARPGROUPS) {
            Operands own = first;
            const Pair corner = tiling.corner(tile);
            own.pixels = moved(own.pixels, cursor.slot * stage_bytes +
                                               (corner.h * pitch + corner.w) * PIECE_BYTES);
            const Pair upper = tiling.window(corner, 2 * warp, lane / 4);
            const Pair lower = tiling.window(corner, 2 * warp + 1, lane / 4);
            const Place places[2] = {{first_row + upper.h, upper.w, upper.h < band_rows},
                                     {first_row + lower.h, lower.w, lower.h < band_rows}};
            TwoWindows windows(result, places);
            Sums sums = {};
            multiply(sums, own, tap_step);
            if (LOADERS > 0 && tile + WARPGROUPS >= num_tiles) arrive_warp(ring.empty[cursor.slot]);
            windows.finish(result, sums);
        }
        if (LOADERS == 0) __syncthreads();  // all have read the band
        if (LOADERS > 0) cursor.advance<1>();
    }
}
