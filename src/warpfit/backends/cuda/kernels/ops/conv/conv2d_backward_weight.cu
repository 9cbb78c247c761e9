// Computes: dw[k, l, c, o] = scale times the sum of x[m, i stride + k dilation - padding, ..., c]
//           dz[m, i, j, o] over windows (m, i, j), and db[o] = scale times that of dz[m, i, j, o]:
//           the transposed matrix of windows (KH KW C, M OH OW), which is not stored, times dz (M
//           OH OW, O). Each of GROUPS has C channels and O outputs.
// Layout:   x (M, H, W, GROUPS C), dz (M, OH, OW, GROUPS O), dw (KH, KW, C, GROUPS O), db (GROUPS
//           O) or null, contiguous; num_windows = M OH OW. partials: for each tile and slice 128
//           (BLOCK_M BLOCK_N / 128 + 1) numbers; arrivals: for each tile 1 + ceil(num_slices /
//           group_size) counters that are zero, and are so again afterwards.
// Launch:   grid (GROUPS ceil(KH KW C / BLOCK_M) ceil(O / BLOCK_N), 1, num_slices), block 128;
//           shared bytes: STAGES tiles of A and B (`Tiling.shared_bytes`). Defines: DTYPE, OUT (of
//           dw and db), TENSOR_CORES, BLOCK_M, BLOCK_N, STAGES; C_VECTOR (O_VECTOR): x (dz and dw)
//           is aligned to 16 bytes, and so is each group of every pixel.
// Numerics: sums in float (double for float64), in a fixed order: the windows of a slice, the
//           slices of a group, the groups. Tensor cores round float32 operands to tf32, except for
//           db.
// Cost:     2 GROUPS M OH OW KH KW C O FLOP; reads x KH KW / (stride_h stride_w) and dz ceil(KH KW
//           C / BLOCK_M) times, mostly from L1 and L2, and writes and reads num_slices times dw in
//           the accumulator's type.
// Reference: conv2d_backward_weight of backends/numpy/conv.py; PTX ISA 9.7.14.5 (mma), 9.7.9.25.3
//           (cp.async).
#define VECTOR O_VECTOR
#include "ops/conv/conv.cuh"

using Product = TileProduct<false, false>;
using ShareB = Share<Product::TileB>;

// Sums of the columns of all tiles of B: a thread adds up the chunks that it copies itself.
struct ColumnSums {
    Acc sums[CHUNK<T>];
    bool wanted;

    __device__ void take(const unsigned char* tile) {
        if (!wanted) return;
#pragma unroll
        for (int i = 0; i < ShareB::COUNT; ++i) {
            const auto chunk = Product::TileB::read<CHUNK<T>>(tile, ShareB::row(i), ShareB::col());
#pragma unroll
            for (int j = 0; j < CHUNK<T>; ++j) sums[j] += load(chunk.at[j]);
        }
    }

    // The sum of column threadIdx.x, or 0 beyond BLOCK_N. scratch holds ROW_STEP BLOCK_N numbers.
    __device__ Acc total(Acc* scratch) const {
        __syncthreads();
#pragma unroll
        for (int j = 0; j < CHUNK<T>; ++j)
            scratch[ShareB::row(0) * BLOCK_N + ShareB::col() + j] = sums[j];
        __syncthreads();
        Acc sum = Acc(0);
        if (threadIdx.x < BLOCK_N) {
            for (int row = 0; row < ShareB::ROW_STEP; ++row)
                sum += scratch[row * BLOCK_N + threadIdx.x];
        }
        return sum;
    }
};

// What a thread has to sum over slices: its part of the product, and the sum of one column.
constexpr int COUNT = Product::COUNT + 1;

struct Slices {
    Acc* partials;  // of this tile and thread
    unsigned* arrivals;
    int count, group_size;

    __device__ Acc& partial(int slice, int i) const {
        return partials[(static_cast<int64>(slice) * COUNT + i) * THREADS];
    }

    // Adds up slices first, first + step, ... before end.
    __device__ void add(Acc (&sums)[COUNT], int first, int end, int step) const {
#pragma unroll
        for (int i = 0; i < COUNT; ++i) sums[i] = partial(first, i);
#pragma unroll 1
        for (int slice = first + step; slice < end; slice += step) {
#pragma unroll
            for (int i = 0; i < COUNT; ++i) sums[i] += partial(slice, i);
        }
    }

    __device__ void keep(const Acc (&sums)[COUNT], int slice) const {
#pragma unroll
        for (int i = 0; i < COUNT; ++i) partial(slice, i) = sums[i];
    }

    // Makes `sums` those of all slices in the one block that comes last, and returns whether this
    // is it. The last block of each group of slices adds up the group, the last of these the
    // groups.
    __device__ bool sum_all(Acc (&sums)[COUNT], int slice) const {
        if (count == 1) return true;
        const int group = slice / group_size, first = group * group_size;
        const int end = min(first + group_size, count),
                  num_groups = (count + group_size - 1) / group_size;
        keep(sums, slice);
        if (!is_last_block(arrivals + 1 + group, end - first)) return false;
        add(sums, first, end, 1);
        if (num_groups == 1) return true;
        keep(sums, first);
        if (!is_last_block(arrivals, num_groups)) return false;
        add(sums, 0, count, group_size);
        return true;
    }
};

// First window of a slice; all slices but the last are multiples of BLOCK_K.
__device__ inline int slice_begin(int slice, int num_slices, int num_windows) {
    const int blocks = (num_windows + BLOCK_K - 1) / BLOCK_K;
    return min(static_cast<int>(static_cast<int64>(blocks) * slice / num_slices) * BLOCK_K,
               num_windows);
}

extern "C" __global__ void __launch_bounds__(THREADS)
    conv2d_backward_weight(const T* dz, const T* x, Out* dw, Out* db, Acc* partials,
                           unsigned* arrivals, double scale, int group_size, int num_windows,
                           int height, int width, int channels, int out_height, int out_width,
                           int outputs, int kernel_height, int kernel_width, int stride_height,
                           int stride_width, int padding_height, int padding_width,
                           int dilation_height, int dilation_width) {
    take_turn();
    DYNAMIC_SHARED(unsigned char, ring);
    const Geometry geometry{{height, width},
                            {out_height, out_width},
                            {kernel_height, kernel_width},
                            {stride_height, stride_width},
                            {padding_height, padding_width},
                            {dilation_height, dilation_width}};
    const int num_features = kernel_height * kernel_width * channels;
    const int tiles_n = (outputs + BLOCK_N - 1) / BLOCK_N, num_slices = gridDim.z;
    const int tile = blockIdx.x, slice = blockIdx.z, group = own_group(), in_group = own_tile();
    const int first_feature = in_group / tiles_n * BLOCK_M,
              first_output = in_group % tiles_n * BLOCK_N;
    const int begin = slice_begin(slice, num_slices, num_windows);
    const int end = slice_begin(slice + 1, num_slices, num_windows);

    WindowColumns<Product::TileA, C_VECTOR> of_x({x + group * channels, geometry.image, channels},
                                                 geometry, first_feature, begin, end);
    MatrixRows<Product::TileB, O_VECTOR> of_dz(dz + group * outputs, outputs, begin, end,
                                               first_output);
    Product product;
    ColumnSums columns{{}, db != nullptr && first_feature == 0};
    multiply_blocks(product, of_x, of_dz, ring, (end - begin + BLOCK_K - 1) / BLOCK_K, columns);

    Acc sums[COUNT];
#pragma unroll
    for (int i = 0; i < Product::COUNT; ++i) {
        sums[i] = product.sum(i / Product::WIDTH, i % Product::WIDTH);
    }
    sums[Product::COUNT] = columns.wanted ? columns.total(reinterpret_cast<Acc*>(ring)) : Acc(0);
    const int num_groups = (num_slices + group_size - 1) / group_size;
    const Slices slices{
        partials + static_cast<int64>(tile) * num_slices * COUNT * THREADS + threadIdx.x,
        arrivals + tile * (num_groups + 1), num_slices, group_size};
    if (!slices.sum_all(sums, slice)) return;
#pragma unroll
    for (int i = 0; i < Product::COUNT; ++i) {
        product.sum(i / Product::WIDTH, i % Product::WIDTH) = sums[i];
    }
    const Epilogue epilogue{dw + group * outputs, nullptr, nullptr,      nullptr,
                            Acc(scale),           Acc(0),  num_features, outputs,
                            GROUPS * outputs};
    write_product(product, epilogue, first_feature, first_output);
    const int output = first_output + threadIdx.x;
    if (columns.wanted && threadIdx.x < BLOCK_N && output < outputs) {
        db[group * outputs + output] = store<Out>(static_cast<Acc>(scale) * sums[Product::COUNT]);
    }
}
