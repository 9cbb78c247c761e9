// Computes:  for each block its part of dw[k, l, c, o] = sum of x[m, i + k dilation - padding, ...,
//            c] dz[m, i, j, o] over windows (m, i, j), and of db[o] = that of dz[m, i, j, o], on
//            Hopper's tensor cores through wgmma: dz transposed, from registers, times x, which
//            lies in shared memory once for all taps.
// Layout:    x (M, height, width, channels), dz (M, out_height, out_width, outputs), contiguous,
//            dz and, if X_PIECES, x with pixels of whole pieces at multiples of 16 bytes; outputs are
//            a multiple of 16. partials: a row for each blockIdx.x, of KH KW channels outputs
//            numbers as dw, then outputs as db.
// Launch:    grid (parts, ceil(outputs / 64), ceil(channels / BLOCK_C)); block: WARPGROUPS, each
//            with TAPS of the taps. Block x takes every parts-th band of band_rows rows of windows,
//            num_slices of 16 pixels in shared memory, an even number. shared bytes: STAGES of
//            planes of x and dz, x_plane_bytes and dz_plane_bytes each
//            (`WeightBand.shared_bytes`). Defines: these, DTYPE.
// Numerics:  float32 sums, in the order of bands and pixels; db's of every fourth pair of pixels
//            first.
// Cost:      2 M out_height out_width KH KW C O FLOP, and those of zeros that fill up slices; reads
//            x, with KH - 1 rows more for each band, and dz once for each blockIdx.y and z.
// Reference: conv2d_backward_weight of backends/numpy/conv.py; PTX ISA 9.7.15 (wgmma), 9.7.9.25.3
//            (cp.async).
#include "base/reduce.cuh"
#include "ops/conv/image_planes.cuh"

using T = DTYPE;

constexpr int THREADS = 128 * WARPGROUPS;
constexpr int DEPTH = SLICE_BYTES / static_cast<int>(sizeof(T));
constexpr int BLOCK_O = 64;
constexpr int X_PLANES = BLOCK_C / IN_PIECE<T>;

using Sums = float[TAPS][BLOCK_C / 2];
using Fragment = unsigned[4];  // 64 outputs of 16 pixels

struct Pair {
    int h, w;
};

// The bands of all images, and how they come to shared memory.
struct Bands {
    const T *x, *dz;
    Pair image, windows, span, padding;
    int channels, outputs, rows, pitch;
    int first_channel, first_output, dz_planes;

    __device__ int in_image() const { return (windows.h + rows - 1) / rows; }

    __device__ void copy(int idx, const Planes& of_x, const Planes& of_dz) const {
        const int number = idx / in_image(), top = idx % in_image() * rows;
        const ImageRows<T, X_PIECES> x_rows{
            x + static_cast<int64>(number) * image.h * image.w * channels,
            image.h,
            image.w,
            channels,
            top - padding.h,
            -padding.w,
            rows + span.h,
            pitch,
            first_channel,
            X_PLANES};
        x_rows.template copy_to<THREADS>(of_x);
        const ImageRows<T, true> dz_rows{
            dz + static_cast<int64>(number) * windows.h * windows.w * outputs,
            windows.h,
            windows.w,
            outputs,
            top,
            0,
            rows,
            pitch,
            first_output,
            dz_planes};
        dz_rows.template copy_to<THREADS>(of_dz);
    }
};

struct Stages {
    unsigned char* data;
    int x_plane_bytes, dz_plane_bytes, stage_bytes;

    __device__ Planes x(int stage) const { return {data + stage * stage_bytes, x_plane_bytes}; }
    __device__ Planes dz(int stage) const {
        return {data + stage * stage_bytes + X_PLANES * x_plane_bytes, dz_plane_bytes};
    }

    // What no band fills must be finite, as it is multiplied by the zeros of dz.
    __device__ void clear() const {
        for (int i = threadIdx.x; i < STAGES * stage_bytes / PIECE_BYTES; i += THREADS) {
            reinterpret_cast<uint4*>(data)[i] = uint4{0, 0, 0, 0};
        }
    }
};

// This warp's 16 outputs of the pixels of a band; zeros where dz has none.
struct OwnOutputs {
    const unsigned char* first;  // of a slice, what this lane gives the address of

    __device__ OwnOutputs(const Planes& dz, int num_planes) {
        const int warp = threadIdx.x / 32 % 4, lane = threadIdx.x % 32, matrix = lane / 8;
        first = 2 * warp < num_planes ? dz.piece(matrix / 2 * 8 + lane % 8, 2 * warp + matrix % 2)
                                      : nullptr;
    }

    __device__ void load(Fragment& words, int slice) const {
        if (first == nullptr) return;  // zeros from the beginning
        ldmatrix_x4_trans(words[0], words[1], words[2], words[3],
                          first + slice * DEPTH * PIECE_BYTES);
    }
};

// Sums over the pixels of this lane, of outputs lane / 4 and lane / 4 + 8 of its warp.
struct OutputSums {
    bool wanted;
    float of_half[2];

    __device__ void add(const Fragment& words) {
        if (!wanted) return;
#pragma unroll
        for (int i = 0; i < 4; ++i) {
            of_half[i % 2] += load(T{static_cast<uint16>(words[i])}) +
                              load(T{static_cast<uint16>(words[i] >> 16)});
        }
    }

    __device__ float total(int half) const {
        float sum = of_half[half];
        sum += __shfl_xor_sync(FULL_WARP, sum, 1);
        return sum + __shfl_xor_sync(FULL_WARP, sum, 2);
    }
};

// Where the pixels of this warpgroup's taps begin; taps that it does not have are the last one.
struct OwnTaps {
    int first, count, kernel_width, step_h, step_w;  // steps in pixels

    __device__ int number(int t) const { return min(first + t, count - 1); }
    __device__ int bytes(int t) const {
        const int tap = number(t);
        return (tap / kernel_width * step_h + tap % kernel_width * step_w) * PIECE_BYTES;
    }
};

__device__ inline void multiply_stage(Sums& sums, OutputSums& of_outputs, const Planes& x,
                                      const Planes& dz, int dz_planes, const OwnTaps& taps,
                                      int num_slices) {
    const uint64 first = planes_descriptor(shared_address(x.data), EIGHT_PIECES, x.stride);
    uint64 windows[TAPS];
#pragma unroll
    for (int t = 0; t < TAPS; ++t) windows[t] = moved(first, taps.bytes(t));
    const OwnOutputs outputs(dz, dz_planes);
    Fragment fragments[2] = {};  // in turns: a product reads its own until it has been waited for
#pragma unroll 1
    for (int slice = 0; slice < num_slices; slice += 2) {
#pragma unroll
        for (int half = 0; half < 2; ++half) {
            outputs.load(fragments[half], slice + half);
            of_outputs.add(fragments[half]);
            wgmma_fence();
#pragma unroll
            for (int t = 0; t < TAPS; ++t) {
                RegisterProduct<T>::template add_to<true>(
                    sums[t], fragments[half],
                    moved(windows[t], (slice + half) * DEPTH * PIECE_BYTES), true);
            }
            wgmma_commit();
            wgmma_wait<1>();
        }
    }
    wgmma_wait<0>();
}

extern "C" __global__ void __launch_bounds__(THREADS)
    conv2d_backward_weight_sm90(const T* dz, const T* x, float* partials, int num_images,
                                int height, int width, int channels, int out_height, int out_width,
                                int outputs, int kernel_height, int kernel_width,
                                int padding_height, int padding_width, int dilation_height,
                                int dilation_width, int band_rows, int num_slices,
                                int x_plane_bytes, int dz_plane_bytes) {
    DYNAMIC_SHARED(unsigned char, shared);
    const Pair span{(kernel_height - 1) * dilation_height, (kernel_width - 1) * dilation_width};
    const int first_output = blockIdx.y * BLOCK_O, first_channel = blockIdx.z * BLOCK_C;
    const int dz_planes = min(outputs - first_output, BLOCK_O) / IN_PIECE<T>;
    const Bands bands{x,
                      dz,
                      {height, width},
                      {out_height, out_width},
                      span,
                      {padding_height, padding_width},
                      channels,
                      outputs,
                      band_rows,
                      out_width + span.w,
                      first_channel,
                      first_output,
                      dz_planes};
    const int most_planes = min(outputs, BLOCK_O) / IN_PIECE<T>;
    const Stages stages{shared, x_plane_bytes, dz_plane_bytes,
                        X_PLANES * x_plane_bytes + most_planes * dz_plane_bytes};
    const int warpgroup = uniform(threadIdx.x / 128), taps = kernel_height * kernel_width;
    const OwnTaps own{warpgroup * TAPS, taps, kernel_width, dilation_height * bands.pitch,
                      dilation_width};
    stages.clear();
    __syncthreads();
    take_turn();

    Sums sums = {};
    OutputSums of_outputs{warpgroup == 0 && first_channel == 0, {}};
    const int count = num_images * bands.in_image(), step = gridDim.x;
#pragma unroll 1
    for (int ahead = 0; ahead < STAGES - 1; ++ahead) {
        const int idx = blockIdx.x + ahead * step;
        if (idx < count) bands.copy(idx, stages.x(ahead), stages.dz(ahead));
        copy_async_commit();
    }
    int read = 0, write = STAGES - 1;
#pragma unroll 1
    for (int idx = blockIdx.x; idx < count; idx += step) {
        copy_async_wait<STAGES - 2>();
        fence_async();
        __syncthreads();  // the band is there for all threads, and all have left the one before
        const int coming = idx + (STAGES - 1) * step;
        if (coming < count) bands.copy(coming, stages.x(write), stages.dz(write));
        copy_async_commit();
        multiply_stage(sums, of_outputs, stages.x(read), stages.dz(read), dz_planes, own,
                       num_slices);
        read = read + 1 < STAGES ? read + 1 : 0;
        write = write + 1 < STAGES ? write + 1 : 0;
    }
    copy_async_wait<0>();

    const int lane = threadIdx.x % 32;
    float* part = partials + blockIdx.x * (static_cast<int64>(taps) * channels + 1) * outputs;
#pragma unroll
    for (int half = 0; half < 2; ++half) {
        const int output = first_output + threadIdx.x / 32 % 4 * 16 + half * 8 + lane / 4;
        const float of_output = of_outputs.total(half);
        if (output >= outputs) continue;
        if (of_outputs.wanted && lane % 4 == 0) {
            part[static_cast<int64>(taps) * channels * outputs + output] = of_output;
        }
#pragma unroll
        for (int t = 0; t < TAPS; ++t) {
            if (own.first + t >= taps) continue;
#pragma unroll
            for (int j = 0; j < BLOCK_C / 4; ++j) {
                const int channel = first_channel + j / 2 * 8 + lane % 4 * 2 + j % 2;
                if (channel >= channels) continue;
                const int64 row = static_cast<int64>(own.number(t)) * channels + channel;
                part[row * outputs + output] = sums[t][j / 2 * 4 + half * 2 + j % 2];
            }
        }
    }
}
