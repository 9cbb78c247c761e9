// Computes: how alike the rows of each batch are to those of the one before: 1 + x_i · x'_j, the 1
//           being for a bias. With it one_launch.cu can look ahead.
// Layout:   batches (num_batches, PARTS, BATCH, PART_WIDTH + 8) of DTYPE, or, if CHUNK_ROWS,
//           (num_batches, PARTS, PART_WIDTH / 8, BATCH, 8), as gather_batches leaves them; products
//           (num_batches, ROWS / 16, ROWS / 16, 32) FragmentWords, ROWS being BATCH padded to 16:
//           of 16 rows by 16, what each lane has of them as a fragment A of mma, times 1 / scale;
//           scales (num_batches,) float32, powers of two. The first batch has none.
// Launch:   any number of blocks of 32 ROWS / 16 (ROWS / 64, rounded up) threads; a block takes a
//           batch at a time. Defines: DTYPE, BATCH, PARTS, PART_WIDTH (a multiple of 16),
//           CHUNK_ROWS.
// Numerics: sums in float32, rounded to DTYPE.
// Cost:     2 ROWS² PARTS PART_WIDTH FLOP a batch; each is read twice, and twice more from cache
//   for every 64 rows.
// Reference: x @ x_before.T + 1 in NumPy; PTX ISA 9.7.14.5.8 for the fragments of mma.m16n8k16.
#include "base/reduce.cuh"
#include "base/vec.cuh"
#include "mma/fragments.cuh"

using T = DTYPE;

constexpr int ROW_TILES = (BATCH + 15) / 16;
constexpr int ROW_STRIDE = CHUNK_ROWS ? 8 : PART_WIDTH + 8,
              CHUNK_STRIDE = CHUNK_ROWS ? BATCH * 8 : 8,
              PART_NUMBERS = BATCH * (CHUNK_ROWS ? PART_WIDTH : ROW_STRIDE);
// A warp takes OWN tiles of 16 rows, and up to SHARE of those of the batch before: the more, the
// less is read twice.
constexpr int OWN = ROW_TILES < 4 || ROW_TILES % 2 ? 1 : ROW_TILES % 4 || ROW_TILES == 4 ? 2 : 4;
constexpr int SHARE = ROW_TILES < 4 ? ROW_TILES : 4, SHARES = (ROW_TILES + SHARE - 1) / SHARE;
constexpr int WARPS = ROW_TILES / OWN * SHARES;
// The largest product is scaled to less than 2 to this power, which leaves room in float16.
constexpr int LARGEST_EXPONENT = 14;

// What this lane has of row `row`: 16 bytes of 32 numbers from `first` on. Two mma take them as
// they lie: the order of what is added up is the same for both operands, and free.
__device__ inline Vec<unsigned> read_row(const T* part, int row, int first) {
    const int at = first + static_cast<int>(threadIdx.x) % 4 * 8;
    if (row >= BATCH || at >= PART_WIDTH) return {};
    const Vec<T> numbers = load_vec(part + row * ROW_STRIDE + at / 8 * CHUNK_STRIDE);
    return *reinterpret_cast<const Vec<unsigned>*>(&numbers);
}

// Adds the products of OWN tiles of a part of x with SHARE tiles of the batch before.
__device__ inline void add_products(const T* part, const T* before, int first_row, int share,
                                    float (&sums)[OWN][2 * SHARE][4]) {
    const int row = threadIdx.x % 32 / 4;
#pragma unroll 1
    for (int first = 0; first < PART_WIDTH; first += 32) {
        Vec<unsigned> own[OWN][2];
#pragma unroll
        for (int i = 0; i < 2 * OWN; ++i)
            own[i / 2][i % 2] = read_row(part, first_row + i * 8 + row, first);
#pragma unroll
        for (int i = 0; i < 2 * SHARE; ++i) {
            const Vec<unsigned> other = read_row(before, (share * 2 * SHARE + i) * 8 + row, first);
#pragma unroll
            for (int j = 0; j < 2 * OWN; ++j) {
                const int tile = j / 2, k = j % 2 * 2;
                const unsigned a[4] = {own[tile][0].element[k], own[tile][1].element[k],
                                       own[tile][0].element[k + 1], own[tile][1].element[k + 1]};
                const unsigned b[2] = {other.element[k], other.element[k + 1]};
                TensorCore<T>::multiply(sums[tile][i], a, b);
            }
        }
    }
}

// The power of two that takes numbers up to `largest` below 2^LARGEST_EXPONENT.
__device__ inline float scale_of(float largest) {
    const int exponent = static_cast<int>(__float_as_uint(largest) >> 23) - 126 - LARGEST_EXPONENT;
    const int least = exponent > -100 ? exponent : -100, held = least < 100 ? least : 100;
    return __uint_as_float(static_cast<unsigned>(held + 127) << 23);
}

extern "C" __global__ void __launch_bounds__(32 * WARPS)
    gram_batches(const T* batches, FragmentWords* products, float* scales, int num_batches) {
    __shared__ float of_warps[32];
    const int warp = threadIdx.x / 32, lane = threadIdx.x % 32, first = warp / SHARES * OWN,
              share = warp % SHARES;
    for (int64 batch = 1 + blockIdx.x; batch < num_batches; batch += gridDim.x) {
        float sums[OWN][2 * SHARE][4] = {};
        for (int part = 0; part < PARTS; ++part) {
            const T* x = batches + (batch * PARTS + part) * PART_NUMBERS;
            add_products(x, x - static_cast<int64>(PARTS) * PART_NUMBERS, first * 16, share, sums);
        }
        float largest = 0;
#pragma unroll
        for (int i = 0; i < OWN * 8 * SHARE; ++i) {
            float& sum = sums[i / (8 * SHARE)][i / 4 % (2 * SHARE)][i % 4];
            sum += 1;
            largest = fmaxf(largest, fabsf(sum));
        }
        const float scale = scale_of(reduce_block<Max>(largest, 0.0f, of_warps)),
                    unscale = 1 / scale;
#pragma unroll
        for (int i = 0; i < OWN * SHARE; ++i) {
            const int tile = i / SHARE, other = share * SHARE + i % SHARE;
            if (other >= ROW_TILES) continue;
            FragmentWords own;
#pragma unroll
            for (int part = 0; part < 4; ++part) {
                const float* pair = &sums[tile][i % SHARE * 2 + part / 2][part % 2 * 2];
                own.words[part] = packed<T>(pair[0] * unscale, pair[1] * unscale);
            }
            const int64 row = batch * ROW_TILES + first + tile;
            products[(row * ROW_TILES + other) * 32 + lane] = own;
        }
        if (threadIdx.x == 0) scales[batch] = scale;
    }
}
