// Computes:  for each block its part of dw[k, l, c, o] = sum of x[m, i + k dilation - padding, ...,
//            c] dz[m, i, j, o] over windows (m, i, j), and of db[o] = that of dz[m, i, j, o], on
//            Hopper's tensor cores through wgmma: dz transposed, from registers, times x, a product
//            for every tap. All of them find their pixels in what lies in shared memory once.
// Layout:    x (M, height, width, channels), dz (M, out_height, out_width, outputs), contiguous,
//            dz and, if X_PIECES, x with pixels of whole pieces at multiples of 16 bytes; outputs
//            are whole pieces. IS_POOLED: dz is that of pooled windows, which `places` tells how to
//            spread (pooled_rows.cuh). partials: a row for each blockIdx.x, of KH KW channels
//            outputs numbers as dw, then outputs as db.
// Launch:    grid (parts, ceil(outputs / 64), ceil(channels / BLOCK_C)); block: WARPGROUPS, each
//            with OWN_ROWS of the kernel's, and LOADING that load bands. Block x takes every
//            parts-th band of band_rows rows of windows, num_slices of 16 pixels in shared memory.
//            shared bytes: STAGES of dz, in lines, and of the planes of x, plane_bytes each, and
//            barriers (`WeightBand.shared_bytes`). Defines: these, DTYPE, KERNEL_HEIGHT,
//            KERNEL_WIDTH.
// Numerics:  float32 sums, in the order of bands and pixels; db's of a thread's pieces first.
// Cost:      2 M out_height out_width KH KW C O FLOP, and those of zeros that fill up slices and
//            outputs; reads x, with KH - 1 rows more for each band, and dz once, for each
//            blockIdx.y and z.
// Reference: conv2d_backward_weight of backends/numpy/conv.py; PTX ISA 9.7.15 (wgmma), 9.7.9.25.3
//            (cp.async).
#define SHARED_ALIGNMENT 1024

#include "mma/lines.cuh"
#include "ops/conv/windows/band_ring.cuh"
#include "ops/conv/windows/pooled_rows.cuh"

using T = DTYPE;

constexpr int THREADS = 128 * WARPGROUPS;  // that multiply
constexpr int LOADERS = 128 * LOADING;     // threads that load
// Registers of a thread: of all at first, and then of those that multiply, which get what the
// others leave.
constexpr int ALL_REGISTERS = 65536 / (THREADS + LOADERS) / 8 * 8;
constexpr int LOADER_REGISTERS = IS_POOLED ? 64 : X_PIECES ? 48 : 56;
constexpr int LEFT_REGISTERS =
    ((THREADS + LOADERS) * ALL_REGISTERS - LOADERS * LOADER_REGISTERS) / THREADS / 8 * 8;
constexpr int REGISTERS = LEFT_REGISTERS < 232 ? LEFT_REGISTERS : 232;
constexpr int DEPTH = SLICE_BYTES / static_cast<int>(sizeof(T));
constexpr int BLOCK_O = 64;  // the rows of a product
constexpr int PLANES = (BLOCK_C + DEPTH - 1) / DEPTH * DEPTH / IN_PIECE<T>;  // of whole slices
constexpr int O_PIECES = BLOCK_O / IN_PIECE<T>;

using OutputLines = Lines<BLOCK_O* static_cast<int>(sizeof(T))>;
using Sums = float[OWN_ROWS][KERNEL_WIDTH][BLOCK_C / 2];

struct Pair {
    int h, w;
};

// What a band is in shared memory.
struct Stage {
    OutputLines dz;
    Planes x;
};

struct Stages {
    unsigned char* data;
    int num_slices, plane_bytes;

    __device__ int line_bytes() const {
        return num_slices * DEPTH * BLOCK_O * static_cast<int>(sizeof(T));
    }
    __device__ int stage_bytes() const {
        return (line_bytes() + PLANES * plane_bytes + 1023) / 1024 * 1024;
    }
    __device__ Stage at(int stage) const {
        unsigned char* first = data + stage * stage_bytes();
        return {{first, num_slices * DEPTH * OutputLines::LINE},
                {first + line_bytes(), plane_bytes}};
    }

    // What no band fills: zeros around images, and what is multiplied by those of dz.
    __device__ void clear() const {
        const int count = STAGES * stage_bytes() / PIECE_BYTES;
        for (int i = threadIdx.x; i < count; i += THREADS + LOADERS) {
            reinterpret_cast<uint4*>(data)[i] = uint4{0, 0, 0, 0};
        }
    }
};

// The bands of all images, and how they come to shared memory.
struct Bands {
    const T *x, *dz;
    const uint8* places;
    Pair image, windows, padding, dilation;
    int channels, outputs, rows, pitch;
    int first_channel, first_output;

    __device__ int in_image() const { return (windows.h + rows - 1) / rows; }

    // By the loaders, of which this is number `thread`, until its part is there.
    __device__ void copy(int idx, const Stage& stage, int thread) const {
        const int number = idx / in_image(), top = idx % in_image() * rows;
        const ImageRows<T, X_PIECES> x_rows{
            x + static_cast<int64>(number) * image.h * image.w * channels,
            image.h,
            image.w,
            channels,
            top - padding.h,
            -padding.w,
            rows + (KERNEL_HEIGHT - 1) * dilation.h,
            pitch,
            first_channel};
        x_rows.template copy_to<LOADERS, PLANES>(stage.x, thread);
        const ImageRows<T, true> dz_rows{dz, windows.h, windows.w, outputs,     top,
                                         0,  rows,      pitch,     first_output};
        copy_gradient<LOADERS, O_PIECES, IS_POOLED>(stage.dz, places, number, dz_rows, thread);
        copy_async_commit();
        copy_async_wait<0>();
    }
};

// Sums over pixels of dz: a thread has eight outputs of some of the pixels.
struct OutputSums {
    bool wanted;
    float sums[IN_PIECE<T>];

    static constexpr int AT_ONCE = THREADS / O_PIECES;

    __device__ void add(const OutputLines& dz, int num_pixels) {
        const int piece = threadIdx.x % O_PIECES, first = threadIdx.x / O_PIECES;
        if (!wanted || first >= AT_ONCE) return;
        for (int pixel = first; pixel < num_pixels; pixel += AT_ONCE) {
            const uint4 words = *reinterpret_cast<const uint4*>(dz.piece(pixel, piece));
            add_pair(0, words.x);
            add_pair(2, words.y);
            add_pair(4, words.z);
            add_pair(6, words.w);
        }
    }

    __device__ void add_pair(int idx, unsigned word) {
        sums[idx] += load(T{static_cast<uint16>(word)});
        sums[idx + 1] += load(T{static_cast<uint16>(word >> 16)});
    }

    // Stores those of `count` outputs, of all threads that multiply, which call; scratch holds
    // AT_ONCE BLOCK_O numbers.
    __device__ void store_all(float* scratch, float* to, int count) const {
        const int piece = threadIdx.x % O_PIECES, first = threadIdx.x / O_PIECES;
        meet_at<THREADS>(1);
        if (first < AT_ONCE) {
#pragma unroll
            for (int i = 0; i < IN_PIECE<T>; ++i) {
                scratch[first * BLOCK_O + piece * IN_PIECE<T> + i] = sums[i];
            }
        }
        meet_at<THREADS>(1);
        if (!wanted || threadIdx.x >= count) return;
        float sum = 0;
        for (int i = 0; i < AT_ONCE; ++i) sum += scratch[i * BLOCK_O + threadIdx.x];
        to[threadIdx.x] = sum;
    }
};

// What a thread has of a slice of dz transposed, as wgmma takes it.
__device__ inline void load_slice(unsigned (&words)[4], const OutputLines& dz, int slice) {
    const int lane = threadIdx.x % 32;
    ldmatrix_x4_trans(words[0], words[1], words[2], words[3],
                      dz.piece(slice * DEPTH + lane / 16 * 8 + lane % 8,
                               threadIdx.x / 32 % 4 * 2 + lane / 8 % 2));
}

using Slices = unsigned[2][4];  // in turns

// sums += the products of a band, with the rows of the kernel from first_row on; those that it does
// not have are its last one. The last slice is still read when this returns.
__device__ inline void multiply_band(Sums& sums, Slices& slices, const Stage& stage, int first_row,
                                     Pair tap_step, int num_slices) {
    const uint64 pixels =
        planes_descriptor(shared_address(stage.x.data), EIGHT_PIECES, stage.x.stride);
    uint64 rows[OWN_ROWS];
#pragma unroll
    for (int r = 0; r < OWN_ROWS; ++r) {
        rows[r] = moved(pixels, min(first_row + r, KERNEL_HEIGHT - 1) * tap_step.h);
    }
#pragma unroll 2
    for (int slice = 0; slice < num_slices; ++slice) {
        unsigned (&a)[4] = slices[slice % 2];
        load_slice(a, stage.dz, slice);
        wgmma_fence();
#pragma unroll
        for (int r = 0; r < OWN_ROWS; ++r) {
#pragma unroll
            for (int kw = 0; kw < KERNEL_WIDTH; ++kw) {
                const int bytes = kw * tap_step.w + slice * DEPTH * PIECE_BYTES;
                RegisterProduct<T>::template add_to<true>(sums[r][kw], a, moved(rows[r], bytes),
                                                          true);
            }
        }
        wgmma_commit();
        wgmma_wait<1>();
    }
}

extern "C" __global__ void __launch_bounds__(THREADS + LOADERS, 1)
    conv2d_backward_weight_sm90(const T* dz, const uint8* places, const T* x, float* partials,
                                int num_images, int height, int width, int channels, int out_height,
                                int out_width, int outputs, int padding_height, int padding_width,
                                int dilation_height, int dilation_width, int band_rows,
                                int num_slices, int plane_bytes) {
    DYNAMIC_SHARED(unsigned char, shared);
    const Bands bands{x,
                      dz,
                      places,
                      {height, width},
                      {out_height, out_width},
                      {padding_height, padding_width},
                      {dilation_height, dilation_width},
                      channels,
                      outputs,
                      band_rows,
                      out_width + (KERNEL_WIDTH - 1) * dilation_width,
                      static_cast<int>(blockIdx.z) * BLOCK_C,
                      static_cast<int>(blockIdx.y) * BLOCK_O};
    const Stages stages{shared, num_slices, plane_bytes};
    const Pair tap_step{dilation_height * bands.pitch * PIECE_BYTES, dilation_width * PIECE_BYTES};
    const int first_row = uniform(threadIdx.x / 128) * OWN_ROWS;
    const BandRing<STAGES, THREADS, LOADERS> ring(shared + STAGES * stages.stage_bytes());
    stages.clear();
    fence_async();
    ring.start();
    take_turn();

    const int count = num_images * bands.in_image();
    if (ring.is_loader()) {
        leave_registers<LOADER_REGISTERS>();
        ring.load_all(
            count, [&](int band, int stage) { bands.copy(band, stages.at(stage), ring.loader()); });
        return;
    }
    take_registers<REGISTERS>();
    Sums sums = {};
    Slices slices;
    OutputSums of_outputs{blockIdx.z == 0, {}};
    Cursor<STAGES> cursor(0);
#pragma unroll 1
    for (int band = blockIdx.x; band < count; band += gridDim.x) {
        wait(ring.full[cursor.slot], cursor.round);
        const Stage stage = stages.at(cursor.slot);
        multiply_band(sums, slices, stage, first_row, tap_step, num_slices);
        of_outputs.add(stage.dz, num_slices * DEPTH);
        wgmma_wait<0>();
        arrive_warp(ring.empty[cursor.slot]);
        cursor.advance<1>();
    }

    const int taps = KERNEL_HEIGHT * KERNEL_WIDTH, lane = threadIdx.x % 32;
    float* part = partials + blockIdx.x * (static_cast<int64>(taps) * channels + 1) * outputs;
    float* of_bias = part + static_cast<int64>(taps) * channels * outputs + bands.first_output;
    of_outputs.store_all(reinterpret_cast<float*>(shared), of_bias,
                         min(BLOCK_O, outputs - bands.first_output));
#pragma unroll
    for (int half = 0; half < 2; ++half) {
        const int output = bands.first_output + threadIdx.x / 32 % 4 * 16 + half * 8 + lane / 4;
        if (output >= outputs) continue;
#pragma unroll
        for (int r = 0; r < OWN_ROWS; ++r) {
            const int kh = first_row + r;
            if (kh >= KERNEL_HEIGHT) continue;
#pragma unroll
            for (int kw = 0; kw < KERNEL_WIDTH; ++kw) {
                const int first = bands.first_channel + lane % 4 * 2;
                const int64 feature = static_cast<int64>(kh * KERNEL_WIDTH + kw) * channels + first;
                float* to = part + feature * outputs + output;
#pragma unroll
                for (int j = 0; j < BLOCK_C / 8; ++j) {
                    const float* pair = &sums[r][kw][4 * j + 2 * half];
                    if (first + 8 * j < channels) to[8 * j * outputs] = pair[0];
                    if (first + 8 * j + 1 < channels) to[(8 * j + 1) * outputs] = pair[1];
                }
            }
        }
    }
}
