// Computes:  what conv2d_backward_weight_sm90.cu does, of images of few channels: their taps and
//            channels, and a 1 for db, are the rows of one product, outputs its columns, and
//            windows its k.
// Layout:    x (M, height, width, CHANNELS), dz (M, out_height, out_width, outputs), contiguous, dz
//            with pixels of whole pieces at multiples of 16 bytes; outputs are a multiple of
//            BLOCK_O. IS_POOLED: dz is that of pooled windows, which `places` tells how to spread
//            (pooled_rows.cuh). partials: a row for each blockIdx.x, of KH KW CHANNELS outputs
//            numbers as dw, then outputs as db.
// Launch:    grid (parts, outputs / BLOCK_O); block: 256 threads. Block x takes every parts-th band
//            of band_rows rows of windows, num_slices of 16 in shared memory, and each of its warps
//            every eighth slice. shared bytes: STAGES of dz, in padded lines, and of x
//            (`FewBand.shared_bytes`). Defines: these, DTYPE, KERNEL_HEIGHT, KERNEL_WIDTH.
// Numerics:  float32 sums, of a warp in the order of bands and slices; then those of the warps.
// Cost:      2 M out_height out_width O FLOP for each tap and channel, rounded up to 16; reads dz
//            once, and x, with KH - 1 rows more for each band, once for each blockIdx.y.
// Reference: conv2d_backward_weight of backends/numpy/conv.py; PTX ISA 9.7.14 (mma), 9.7.9.25.3
//            (cp.async).
#include "ops/conv/windows/few_channels.cuh"
#include "ops/conv/windows/pooled_rows.cuh"

using T = DTYPE;

constexpr int THREADS = 256, WARPS = THREADS / 32;
constexpr int DEPTH = SLICE<T>;
constexpr int FEATURES = KERNEL_HEIGHT * KERNEL_WIDTH * CHANNELS + 1;  // the last one is 1
constexpr int ROW_TILES = (FEATURES + 15) / 16;
constexpr int O_PIECES = BLOCK_O / IN_PIECE<T>;
constexpr int LINE = (O_PIECES | 1) * IN_PIECE<T>;  // so that rows lie in different banks
constexpr int EIGHTS = BLOCK_O / 8;
static_assert(BLOCK_O % 8 == 0, "columns are whole fragments");

using Sums = float[ROW_TILES][EIGHTS][4];

// Rows of dz's windows.
struct OutputRows {
    T* data;

    __device__ unsigned char* piece(int row, int number) const {
        return reinterpret_cast<unsigned char*>(data + row * LINE + number * IN_PIECE<T>);
    }
};

// What a band is in shared memory: pixels follow each other in both, so that a tap of window k is
// pixel k of x and some further on.
struct Stage {
    OutputRows dz;
    T* x;
};

struct Stages {
    unsigned char* data;
    int num_slices, x_numbers;

    __device__ int line_bytes() const {
        return num_slices * DEPTH * LINE * static_cast<int>(sizeof(T));
    }
    __device__ int stage_bytes() const {
        const int of_x = x_numbers * static_cast<int>(sizeof(T));
        return line_bytes() + (of_x + PIECE_BYTES - 1) / PIECE_BYTES * PIECE_BYTES;
    }
    __device__ Stage at(int stage) const {
        unsigned char* first = data + stage * stage_bytes();
        return {{reinterpret_cast<T*>(first)}, reinterpret_cast<T*>(first + line_bytes())};
    }

    // What no band fills: zeros beside images, and what is multiplied by those of dz.
    __device__ void clear() const {
        for (int i = threadIdx.x; i < STAGES * stage_bytes() / PIECE_BYTES; i += THREADS) {
            reinterpret_cast<uint4*>(data)[i] = uint4{0, 0, 0, 0};
        }
    }
};

// The bands of all images, and how they come to shared memory.
struct Bands {
    const T *x, *dz;
    const uint8* places;
    Pair image, windows, padding, dilation;
    int outputs, rows, pitch, first_output;

    __device__ int in_image() const { return (windows.h + rows - 1) / rows; }

    __device__ void copy(int idx, const Stage& stage) const {
        const int number = idx / in_image(), top = idx % in_image() * rows;
        const ImageRows<T, true> dz_rows{dz, windows.h, windows.w, outputs,     top,
                                         0,  rows,      pitch,     first_output};
        copy_gradient<THREADS, O_PIECES, IS_POOLED>(stage.dz, places, number, dz_rows, threadIdx.x);
        const NumberRows<T> x_rows{x + static_cast<int64>(number) * image.h * image.w * CHANNELS,
                                   image,
                                   top - padding.h,
                                   -padding.w,
                                   rows + (KERNEL_HEIGHT - 1) * dilation.h,
                                   pitch};
        x_rows.copy_to<THREADS>(stage.x);
    }
};

// Where this lane's two rows of each fragment A, features, begin in x.
struct Features {
    int first[ROW_TILES][2];

    __device__ Features(int pitch, const Pair& dilation) {
#pragma unroll
        for (int tile = 0; tile < ROW_TILES; ++tile) {
#pragma unroll
            for (int half = 0; half < 2; ++half) {
                const int feature = number(tile, half);
                first[tile][half] =
                    feature < FEATURES - 1 ? place_of_feature(feature, pitch, dilation) : 0;
            }
        }
    }

    __device__ static int number(int tile, int half) {
        return 16 * tile + 8 * half + threadIdx.x % 32 / 4;
    }

    // Two neighbouring windows' words of a fragment, from x's pixel `from` on.
    __device__ unsigned word(int tile, int half, const T* from) const {
        if (number(tile, half) == FEATURES - 1) return store<T>(1.0f).bits * 0x10001u;
        const T* own = from + first[tile][half];
        return own[0].bits | static_cast<unsigned>(own[CHANNELS].bits) << 16;
    }
};

// sums += this warp's slices of a band.
__device__ inline void multiply_band(Sums& sums, const Stage& stage, const Features& features,
                                     int num_slices) {
    const int own_pixel = threadIdx.x % 4 * 2;
    for (int slice = threadIdx.x / 32; slice < num_slices; slice += WARPS) {
        const T* from = stage.x + (slice * DEPTH + own_pixel) * CHANNELS;
        unsigned a[ROW_TILES][4];
#pragma unroll
        for (int tile = 0; tile < ROW_TILES; ++tile) {
#pragma unroll
            for (int i = 0; i < 4; ++i) {
                a[tile][i] = features.word(tile, i % 2, from + i / 2 * 8 * CHANNELS);
            }
        }
#pragma unroll
        for (int j = 0; j < EIGHTS; j += 2) {
            unsigned low[2], high[2];
            load_b_pair_transposed(low, high, stage.dz.data + slice * DEPTH * LINE + 8 * j, LINE);
#pragma unroll
            for (int tile = 0; tile < ROW_TILES; ++tile) {
                TensorCore<T>::multiply(sums[tile][j], a[tile], low);
                if (j + 1 < EIGHTS) TensorCore<T>::multiply(sums[tile][j + 1], a[tile], high);
            }
        }
    }
}

// Adds up the warps' sums, and stores them from `to` on, a feature's `outputs` further on than
// those of the one before.
__device__ inline void store_sums(const Sums& sums, float* scratch, float* to, int outputs) {
    constexpr int OF_WARP = 16 * ROW_TILES * BLOCK_O;
    const int lane = threadIdx.x % 32;
    float* own = scratch + threadIdx.x / 32 * OF_WARP + lane % 4 * 2;
    __syncthreads();  // all have read the last band
#pragma unroll
    for (int tile = 0; tile < ROW_TILES; ++tile) {
#pragma unroll
        for (int j = 0; j < EIGHTS; ++j) {
#pragma unroll
            for (int half = 0; half < 2; ++half) {
                float* pair = own + (16 * tile + 8 * half + lane / 4) * BLOCK_O + 8 * j;
                pair[0] = sums[tile][j][2 * half];
                pair[1] = sums[tile][j][2 * half + 1];
            }
        }
    }
    __syncthreads();
    for (int i = threadIdx.x; i < FEATURES * BLOCK_O; i += THREADS) {
        float sum = 0;
#pragma unroll
        for (int warp = 0; warp < WARPS; ++warp) sum += scratch[warp * OF_WARP + i];
        to[static_cast<int64>(i / BLOCK_O) * outputs + i % BLOCK_O] = sum;
    }
}

extern "C" __global__ void __launch_bounds__(THREADS, 2)
    conv2d_backward_weight_few_mma(const T* dz, const uint8* places, const T* x, float* partials,
                                   int num_images, int height, int width, int out_height,
                                   int out_width, int outputs, int padding_height,
                                   int padding_width, int dilation_height, int dilation_width,
                                   int band_rows, int num_slices, int x_numbers) {
    take_turn();
    DYNAMIC_SHARED(unsigned char, shared);
    const Bands bands{x,
                      dz,
                      places,
                      {height, width},
                      {out_height, out_width},
                      {padding_height, padding_width},
                      {dilation_height, dilation_width},
                      outputs,
                      band_rows,
                      out_width + (KERNEL_WIDTH - 1) * dilation_width,
                      static_cast<int>(blockIdx.y) * BLOCK_O};
    const Stages stages{shared, num_slices, x_numbers};
    const Features features(bands.pitch, bands.dilation);
    stages.clear();
    __syncthreads();

    Sums sums = {};
    const int count = num_images * bands.in_image(), step = gridDim.x;
#pragma unroll 1
    for (int ahead = 0; ahead < STAGES - 1; ++ahead) {
        const int idx = blockIdx.x + ahead * step;
        if (idx < count) bands.copy(idx, stages.at(ahead));
        copy_async_commit();
    }
    int read = 0, write = STAGES - 1;
#pragma unroll 1
    for (int idx = blockIdx.x; idx < count; idx += step) {
        copy_async_wait<STAGES - 2>();
        __syncthreads();  // the band is there for all threads, and all have left the one before
        const int coming = idx + (STAGES - 1) * step;
        if (coming < count) bands.copy(coming, stages.at(write));
        copy_async_commit();
        multiply_band(sums, stages.at(read), features, num_slices);
        read = read + 1 < STAGES ? read + 1 : 0;
        write = write + 1 < STAGES ? write + 1 : 0;
    }
    copy_async_wait<0>();
    float* part = partials + blockIdx.x * static_cast<int64>(FEATURES) * outputs;
    store_sums(sums, reinterpret_cast<float*>(shared), part + bands.first_output, outputs);
}
