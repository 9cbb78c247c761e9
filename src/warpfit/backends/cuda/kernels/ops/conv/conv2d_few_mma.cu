// Computes:  what conv2d_sm90.cu does forward, of images of few channels: the taps and channels of
//            a window are one k, rounded up to 16.
// Layout:    x (M, height, width, CHANNELS), y (M, out_height, out_width, outputs), w (KH, KW,
//            CHANNELS, outputs), contiguous, w at a multiple of 16 bytes; outputs are a multiple of
//            BLOCK_N. bias, z, POOLS and indices as there.
// Launch:    grid (M times bands, outputs / BLOCK_N); block: 256 threads, for band_rows rows of
//            windows, an even number; its warps take tiles of 2 rows by 8 windows, in turns. shared
//            bytes: weights, in padded lines, and x_numbers of x (`FewTiles.shared_bytes`).
//            Defines: these, DTYPE, KERNEL_HEIGHT, KERNEL_WIDTH, and those of window_sums.cuh.
// Numerics:  float32 sums, in the order of taps and channels.
// Cost:      2 M out_height out_width O FLOP for each tap and channel, rounded up; reads x, with KH
//            - 1 rows more for each band, and w once for each block.
// Reference: conv2d_forward of backends/numpy/conv.py; PTX ISA 9.7.14 (mma).
#include "ops/conv/windows/few_channels.cuh"
#include "ops/conv/windows/window_sums.cuh"

constexpr int THREADS = 256, WARPS = THREADS / 32;
constexpr int DEPTH = SLICE<T>, IN_CHUNK = CHUNK<T>;
constexpr int FEATURES = KERNEL_HEIGHT * KERNEL_WIDTH * CHANNELS;
constexpr int SLICES = (FEATURES + DEPTH - 1) / DEPTH;
constexpr int LINE = (BLOCK_N / IN_CHUNK | 1) * IN_CHUNK;  // so that rows lie in different banks
static_assert(BLOCK_N % 8 == 0, "columns are whole fragments");

// Weights of this block's outputs, a feature a line; zeros beyond the last.
__device__ inline void copy_weights(T* to, const T* w, int outputs, int first_output) {
    constexpr int CHUNKS = BLOCK_N / IN_CHUNK;
    for (int i = threadIdx.x; i < SLICES * DEPTH * CHUNKS; i += THREADS) {
        const int feature = i / CHUNKS, col = i % CHUNKS * IN_CHUNK;
        const bool inside = feature < FEATURES;
        const T* from = w + static_cast<int64>(feature) * outputs + first_output + col;
        copy_async_16(to + feature * LINE + col, inside ? from : w, inside);
    }
}

// The fragments B of all weights, and one more if they are no pairs.
struct Weights {
    unsigned words[SLICES][EIGHTS + EIGHTS % 2][2];

    __device__ explicit Weights(const T* lines) {
#pragma unroll
        for (int slice = 0; slice < SLICES; ++slice) {
#pragma unroll
            for (int j = 0; j < EIGHTS; j += 2) {
                load_b_pair_transposed(words[slice][j], words[slice][j + 1],
                                       lines + slice * DEPTH * LINE + 8 * j, LINE);
            }
        }
    }
};

// This lane's features of a window in each fragment A: where they are, and which there are.
struct Features {
    int places[SLICES][4];
    unsigned masks[SLICES][2];

    __device__ Features(int pitch, const Pair& dilation) {
#pragma unroll
        for (int slice = 0; slice < SLICES; ++slice) {
#pragma unroll
            for (int half = 0; half < 2; ++half) {
                const int first = slice * DEPTH + 8 * half + threadIdx.x % 4 * 2;
                masks[slice][half] = 0;
#pragma unroll
                for (int i = 0; i < 2; ++i) {
                    const bool is_one = first + i < FEATURES;
                    places[slice][2 * half + i] =
                        is_one ? place_of_feature(first + i, pitch, dilation) : 0;
                    masks[slice][half] |= is_one ? 0xffffu << 16 * i : 0;
                }
            }
        }
    }

    // Half of a window's word of a slice.
    __device__ unsigned word(const T* window, int slice, int half) const {
        const T first = window[places[slice][2 * half]];
        const T second = window[places[slice][2 * half + 1]];
        return (first.bits | static_cast<unsigned>(second.bits) << 16) & masks[slice][half];
    }
};

// sums = the products of 16 windows: of `upper` and of those below.
__device__ inline void multiply(Sums& sums, const Features& features, const Weights& weights,
                                const T* upper, const T* lower) {
#pragma unroll
    for (float& sum : sums) sum = 0;
#pragma unroll
    for (int slice = 0; slice < SLICES; ++slice) {
        const unsigned a[4] = {features.word(upper, slice, 0), features.word(lower, slice, 0),
                               features.word(upper, slice, 1), features.word(lower, slice, 1)};
#pragma unroll
        for (int j = 0; j < EIGHTS; ++j) {
            TensorCore<T>::multiply(reinterpret_cast<float (&)[4]>(sums[4 * j]), a,
                                    weights.words[slice][j]);
        }
    }
}

extern "C" __global__ void __launch_bounds__(THREADS, 2)
    conv2d_few_mma(const T* x, const T* w, const T* bias, T* y, T* z, uint8* indices, double slope,
                   int height, int width, int out_height, int out_width, int outputs,
                   int padding_height, int padding_width, int dilation_height, int dilation_width,
                   int band_rows) {
    take_turn();
    DYNAMIC_SHARED(T, shared);
    const int first_output = blockIdx.y * BLOCK_N;
    const int bands = (out_height + band_rows - 1) / band_rows;
    const int image = blockIdx.x / bands, first_row = blockIdx.x % bands * band_rows;
    const Pair dilation{dilation_height, dilation_width};
    T* numbers = shared + SLICES * DEPTH * LINE;
    copy_weights(shared, w, outputs, first_output);
    copy_async_commit();
    const NumberRows<T> rows{x + static_cast<int64>(image) * height * width * CHANNELS,
                             {height, width},
                             first_row - padding_height,
                             -padding_width,
                             band_rows + (KERNEL_HEIGHT - 1) * dilation_height,
                             out_width + (KERNEL_WIDTH - 1) * dilation_width};
    rows.copy_to<THREADS>(numbers);
    copy_async_wait<0>();
    __syncthreads();

    const Weights weights(shared);
    const Features features(rows.pitch, dilation);
    const WindowResult result{
        bias,    nullptr,      y,    z, indices, static_cast<Acc>(slope), out_height, out_width,
        outputs, first_output, image};
    const int tiles_across = (out_width + 7) / 8, own_col = threadIdx.x % 32 / 4;
    const int num_tiles = min(band_rows, out_height - first_row + 1) / 2 * tiles_across;
    for (int tile = threadIdx.x / 32; tile < num_tiles; tile += WARPS) {
        const int row = tile / tiles_across * 2, col = tile % tiles_across * 8 + own_col;
        const Place places[2] = {{first_row + row, col, true}, {first_row + row + 1, col, true}};
        TwoWindows windows(result, places);
        const T* upper = numbers + (row * rows.pitch + col) * CHANNELS;
        Sums sums;
        multiply(sums, features, weights, upper, upper + rows.pitch * CHANNELS);
        windows.finish(result, sums);
    }
}
