// Computes:  y = EPILOGUE(z), z[m, i, j, o] = sum of w[k, l, c, o] x[m, i + k dilation - padding,
//            ..., c] over taps (k, l) and channels c, x being 0 outside of the image, on Hopper's
//            tensor cores through wgmma; ADJOINT: dx of dz, that is the same of dz with w[-k, -l,
//            o, c], padding being (kernel - 1) dilation less than it was.
// Layout:    x (M, height, width, channels), y (M, out_height, out_width, outputs), w (KH, KW, C,
//            O), contiguous; of these channels are C and outputs O, or the other way round if
//            ADJOINT. w and, if X_PIECES, x consist of whole pieces at multiples of 16 bytes;
//            outputs are a multiple of BLOCK_N.
//            POOLS: of each 2 by 2 windows, from the first on, y has the largest numbers only, and
//            indices, like y, their row and column, as row 2 + column, of equal ones the first.
//            band_rows then are even, and tiles 8 by 8.
//            bias (outputs), saved and z like y, as gemm/epilogue.cuh takes them.
// Launch:    grid (as many blocks as run at once, outputs / BLOCK_N); block: WARPGROUPS. Block x
//            takes every gridDim.x-th band of band_rows rows of windows, and its warpgroups the
//            band's tiles of 64 windows, in turns. A tile is 8 by 8 windows, tiles_across of them
//            side by side, or, if that is 0, 64 in the order of the planes' pixels. shared bytes:
//            weights, and planes of a band, plane_bytes each (`Band.shared_bytes`). Defines: these,
//            POOLS, DTYPE, KERNEL_HEIGHT, KERNEL_WIDTH, SLICES_OF_TAP (of channels), BLOCKS (to a
//            multiprocessor), and those of gemm/epilogue.cuh.
// Numerics:  float32 sums, in the order of taps and channels.
// Cost:      2 M out_height out_width KH KW C O FLOP, and those of windows that fill up tiles;
//            reads w once for each block, and x, with KH - 1 rows more for each band, once for each
//            blockIdx.y.
// Reference: conv2d_forward and conv2d_backward_input of backends/numpy/conv.py; PTX ISA 9.7.15
//            (wgmma), 9.7.9.25.3 (cp.async).
#define SHARED_ALIGNMENT 1024

#include "gemm/epilogue.cuh"
#include "mma/lines.cuh"
#include "ops/conv/image_planes.cuh"
#include "ops/conv/quads.cuh"

constexpr int THREADS = 128 * WARPGROUPS;
constexpr int DEPTH = SLICE_BYTES / static_cast<int>(sizeof(T));
constexpr int EIGHTS = BLOCK_N / 8;
constexpr int TAPS = KERNEL_HEIGHT * KERNEL_WIDTH;
constexpr int CHANNELS = SLICES_OF_TAP * DEPTH;  // zeros fill up the last slice
// All products of a tile follow each other without a branch, unless they are too many.
constexpr int UNROLLED_ROWS = TAPS * SLICES_OF_TAP <= 64 ? KERNEL_HEIGHT : 1;

using Sums = float[BLOCK_N / 2];

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
    int pitch, tiles_across;

    __device__ int first_pixel(int tile) const {
        return tiles_across == 0 ? 64 * tile
                                 : tile / tiles_across * 8 * pitch + tile % tiles_across * 8;
    }

    // Bytes from eight windows to the next.
    __device__ int row_step() const { return PIECE_BYTES * (tiles_across == 0 ? 8 : pitch); }

    __device__ Pair window(int tile, int eight, int one) const {
        if (tiles_across == 0) {
            const int pixel = 64 * tile + 8 * eight + one;
            return {pixel / pitch, pixel % pitch};
        }
        return {tile / tiles_across * 8 + eight, tile % tiles_across * 8 + one};
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

using Words = unsigned[EIGHTS];  // pairs of numbers of a window, eight outputs from one to the next

__device__ inline T first_of(unsigned word) { return T{static_cast<uint16>(word)}; }
__device__ inline T second_of(unsigned word) { return T{static_cast<uint16>(word >> 16)}; }
__device__ inline unsigned pair_of(T first, T second) {
    return first.bits | static_cast<unsigned>(second.bits) << 16;
}

// Hands the sums of a window, those of half h of a tile's rows, to EPILOGUE.
__device__ inline void find_window(const Epilogue& epilogue, const Sums& sums, int h, int64 pixel,
                                   int first_output, bool is_inside, Words& words) {
    const int first = first_output + threadIdx.x % 4 * 2;
    if (!is_inside) return;
#pragma unroll
    for (int j = 0; j < EIGHTS; ++j) {
        Acc pair[2] = {sums[4 * j + 2 * h], sums[4 * j + 2 * h + 1]};
        EPILOGUE<2>(epilogue, pixel * epilogue.ldc + first + 8 * j, first + 8 * j, pair);
        words[j] = pair_of(store<T>(pair[0]), store<T>(pair[1]));
    }
}

// The larger of two numbers, NaN if either is, and whether it is the second: of equal ones it is
// if `prefers_second`.
struct Larger {
    T value;
    bool is_second;

    __device__ Larger(T first, T second, bool prefers_second) {
        const Acc a = load(first), b = load(second);
        is_second = prefers_second ? b >= a : b > a;
        value = is_second || b != b ? second : first;
    }
};

// Of four windows, two of this lane and two of the one four further on or before, the largest
// numbers of half the outputs, those of words 2 i, or 2 i + 1 in the lane on the right; and where
// they are: 2 bits for each, row and column.
struct Pooled {
    static_assert(EIGHTS % 2 == 0 && EIGHTS <= 8, "lanes share words, whose places fit one");

    bool is_right;
    unsigned largest[EIGHTS / 2];
    unsigned taps;

    __device__ Pooled(const Words (&of_half)[2]) : is_right(threadIdx.x / 4 % 2), taps(0) {
        Words upright;
        unsigned rows = 0;
#pragma unroll
        for (int j = 0; j < EIGHTS; ++j) {
            const Larger first(first_of(of_half[0][j]), first_of(of_half[1][j]), false);
            const Larger second(second_of(of_half[0][j]), second_of(of_half[1][j]), false);
            upright[j] = pair_of(first.value, second.value);
            rows |= (first.is_second | second.is_second << 1) << 2 * j;
        }
        const unsigned other_rows = __shfl_xor_sync(FULL_WARP, rows, 4);
#pragma unroll
        for (int i = 0; i < EIGHTS / 2; ++i) {
            const unsigned own = upright[is_right ? 2 * i + 1 : 2 * i];
            const unsigned given = upright[is_right ? 2 * i : 2 * i + 1];
            const unsigned other = __shfl_xor_sync(FULL_WARP, given, 4);
            const int bit = 4 * i + 2 * is_right;
            largest[i] = pair_of(
                take(first_of(own), first_of(other), 2 * i, rows >> bit & 1, other_rows >> bit & 1),
                take(second_of(own), second_of(other), 2 * i + 1, rows >> (bit + 1) & 1,
                     other_rows >> (bit + 1) & 1));
        }
    }

    // Of equal numbers the one in the upper row counts, then the one on the left.
    __device__ T take(T own, T other, int idx, unsigned row, unsigned other_row) {
        const bool other_first = other_row != row ? other_row < row : is_right;
        const Larger larger(own, other, other_first);
        const unsigned of_row = larger.is_second ? other_row : row;
        taps |= (of_row << 1 | (larger.is_second != is_right)) << 2 * idx;
        return larger.value;
    }

    // Taps of the two numbers of a word, a byte each.
    __device__ uint16 tap_pair(int i) const {
        const unsigned two = taps >> 4 * i;
        return static_cast<uint16>((two & 3) | (two >> 2 & 3) << 8);
    }
};

// Stores the largest numbers of windows 2 by 2, and which they are.
__device__ inline void store_pooled(const Pooled& pooled, const Epilogue& epilogue, uint8* indices,
                                    int64 pixel, int first_output, bool is_inside) {
    const int64 at = pixel * epilogue.ldc + first_output + 8 * pooled.is_right;
    store_quads<2>(pooled.largest, epilogue.c + at, is_inside);
    if (!is_inside) return;
#pragma unroll
    for (int i = 0; i < EIGHTS / 2; ++i) {
        *reinterpret_cast<uint16*>(indices + at + 16 * i + threadIdx.x % 4 * 2) =
            pooled.tap_pair(i);
    }
}

extern "C" __global__ void __launch_bounds__(THREADS, BLOCKS)
    conv2d_sm90(const T* x, const T* w, const T* bias, const T* saved, T* y, T* z, uint8* indices,
                double slope, int num_images, int height, int width, int channels, int out_height,
                int out_width, int outputs, int padding_height, int padding_width,
                int dilation_height, int dilation_width, int band_rows, int num_tiles,
                int tiles_across, int plane_bytes) {
    DYNAMIC_SHARED(unsigned char, shared);
    take_turn();
    const int first_output = blockIdx.y * BLOCK_N;
    const int pitch = out_width + (KERNEL_WIDTH - 1) * dilation_width;
    const Weights weights{shared, PANEL_BYTES};
    const Planes pixels{shared + WEIGHT_BYTES, plane_bytes};

    if (ADJOINT) {
        copy_weights(weights, w, outputs, channels, first_output, 0);
    } else {
        copy_weights(weights, w, channels, outputs, 0, first_output);
    }
    const Tiling tiling{pitch, tiles_across};
    const Epilogue epilogue{y, bias,    saved,  z, Acc(1), static_cast<Acc>(slope),
                            0, outputs, outputs};
    const Operands first{
        planes_descriptor(shared_address(pixels.data), plane_bytes, tiling.row_step()),
        weights.descriptor(), 2 * plane_bytes};
    const Pair tap_step{dilation_height * pitch * PIECE_BYTES, dilation_width * PIECE_BYTES};
    const int warp = threadIdx.x / 32 % 4, lane = threadIdx.x % 32;
    const int bands = (out_height + band_rows - 1) / band_rows;
    for (int band = blockIdx.x; band < num_images * bands; band += gridDim.x) {
        const int image = band / bands, first_row = band % bands * band_rows;
        const ImageRows<T, X_PIECES> rows{x + static_cast<int64>(image) * height * width * channels,
                                          height,
                                          width,
                                          channels,
                                          first_row - padding_height,
                                          -padding_width,
                                          band_rows + (KERNEL_HEIGHT - 1) * dilation_height,
                                          pitch,
                                          0,
                                          CHANNELS / IN_PIECE<T>};
        rows.copy_to<THREADS>(pixels);
        copy_async_commit();
        copy_async_wait<0>();
        fence_async();
        __syncthreads();
        for (int tile = uniform(threadIdx.x / 128); tile < num_tiles; tile += WARPGROUPS) {
            Operands own = first;
            own.pixels = moved(own.pixels, tiling.first_pixel(tile) * PIECE_BYTES);
            Sums sums = {};
            multiply(sums, own, tap_step);
            Words words[2] = {};
            Pair at{};
#pragma unroll
            for (int h = 0; h < 2; ++h) {
                at = tiling.window(tile, 2 * warp + h, lane / 4);
                const int row = first_row + at.h;
                const bool is_inside = (at.h < band_rows) & (row < out_height) & (at.w < out_width);
                const int64 pixel =
                    is_inside ? (static_cast<int64>(image) * out_height + row) * out_width + at.w
                              : 0;
                find_window(epilogue, sums, h, pixel, first_output, is_inside, words[h]);
                if (!POOLS) store_quads<1>(words[h], y + pixel * outputs + first_output, is_inside);
            }
            if (POOLS) {
                const int row = (first_row + at.h) / 2, col = at.w / 2;
                const bool is_inside =
                    (at.h < band_rows) & (row < out_height / 2) & (col < out_width / 2);
                const int64 pixel =
                    is_inside
                        ? (static_cast<int64>(image) * (out_height / 2) + row) * (out_width / 2) +
                              col
                        : 0;
                store_pooled(Pooled(words), epilogue, indices, pixel, first_output, is_inside);
            }
        }
        __syncthreads();  // all have read the band
    }
}
