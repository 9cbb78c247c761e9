// Computes: the batches of some epochs, one after the other: rows of x in each epoch's order,
//           rounded to 16 bits, or, times `scale`, as sums of TERMS numbers of 16 bits; and their
//           targets, followed by the sample's weight if WEIGHTED. A byte of x is divided by 255.
//           What is missing to the last batch is 0.
// Layout:   x (num_rows, FEATURES) of SOURCE; targets (num_rows, TARGET_STRIDE) words, of which the
//           first TARGET_WORDS count; keys (epochs, 8), or null for rows in their own order;
//           batches (epochs, steps, PARTS, TERMS, BATCH, PART_WIDTH + 8) of DTYPE, the features
//           partitioned into PARTS, or, of every CHUNK_ROWS rows, (PART_WIDTH / 8, CHUNK_ROWS, 8);
//           batch_targets (epochs, steps, BATCH, TARGET_WORDS + WEIGHTED);
//           sample_weights (num_rows,) float32.
// Launch:   any number of blocks of 256 threads; a warp takes a row at a time, or four. No shared
//           memory.
//           Defines: SOURCE, DTYPE, TERMS (1 or 2), FEATURES, BATCH, PARTS, PART_WIDTH (a multiple
//           of 16), CHUNK_ROWS (or 0), TARGET_WORDS, TARGET_STRIDE, WEIGHTED.
// Numerics: rounds to the nearest even.
// Cost:     num_rows · FEATURES · (sizeof SOURCE + 2) bytes for each epoch.
// Reference: epoch_order of data/order.py; gather_rows of backends/numpy/arrays.py.
#include "base/convert.cuh"
#include "base/permutation.cuh"
#include "base/vec.cuh"

using T = DTYPE;

// Numbers that a lane converts at once: 16 bytes of T.
constexpr int AT_ONCE = 8;
// Rows that a warp takes at once: of chunks several, whose pieces lie next to each other.
constexpr int ROWS_OF_WARP = CHUNK_ROWS > 0 ? 4 : 1;

// Some numbers, of which each is the sum of TERMS.
struct Numbers {
    Vec<T> terms[TERMS];
};

// The features from `first` on that a row has, rounded; zeros beyond its end.
__device__ inline Numbers rounded(const SOURCE* row, int first, float scale) {
    Numbers numbers;
    SOURCE held[AT_ONCE];
    if (FEATURES % AT_ONCE == 0) {
        struct alignas(AT_ONCE * sizeof(SOURCE) < 16 ? AT_ONCE * sizeof(SOURCE) : 16) Piece {
            SOURCE element[AT_ONCE];
        };
        const Piece piece = *reinterpret_cast<const Piece*>(row + first);
#pragma unroll
        for (int i = 0; i < AT_ONCE; ++i) held[i] = piece.element[i];
    } else {
#pragma unroll
        for (int i = 0; i < AT_ONCE; ++i) held[i] = row[first + i < FEATURES ? first + i : 0];
    }
#pragma unroll
    for (int i = 0; i < AT_ONCE; ++i) {
        const bool is_there = first + i < FEATURES;
        if constexpr (TERMS == 1) {
            numbers.terms[0].element[i] = is_there ? convert<T>(held[i]) : T{0};
        } else {
            const float number = is_there ? scale * convert<float>(held[i]) : 0;
            numbers.terms[0].element[i] = store<T>(number);
            numbers.terms[TERMS - 1].element[i] =
                store<T>(number - load(numbers.terms[0].element[i]));
        }
    }
    return numbers;
}

extern "C" __global__ void __launch_bounds__(256)
    gather_batches(const SOURCE* x, const unsigned* targets, const float* sample_weights,
                   const unsigned* keys, T* batches, unsigned* batch_targets, double scale,
                   int num_rows, int bits, int num_epochs) {
    const int lane = threadIdx.x % 32 / ROWS_OF_WARP, num_warps = gridDim.x * 8;
    const int64 steps = (num_rows + BATCH - 1) / BATCH, places = steps * BATCH;
    for (int64 slot =
             (blockIdx.x * 8 + threadIdx.x / 32) * ROWS_OF_WARP + threadIdx.x % ROWS_OF_WARP;
         slot < num_epochs * places; slot += num_warps * ROWS_OF_WARP) {
        const int64 epoch = slot / places, step = slot / BATCH;
        const uint32 place = slot % places;
        const bool is_there = place < static_cast<uint32>(num_rows);
        int64 row = is_there ? place : 0;
        if (keys != nullptr && is_there) {
            uint32 own[8];
#pragma unroll
            for (int k = 0; k < 8; ++k) own[k] = keys[epoch * 8 + k];
            row = permuted(place, num_rows, bits, own);
        }
        for (int i = lane; i < PARTS * PART_WIDTH / AT_ONCE; i += 32 / ROWS_OF_WARP) {
            const int part = i / (PART_WIDTH / AT_ONCE), col = i % (PART_WIDTH / AT_ONCE) * AT_ONCE;
            const int first = part * PART_WIDTH + col;
            Numbers numbers = {};
            if (is_there && first < FEATURES)
                numbers = rounded(x + row * FEATURES, first, static_cast<float>(scale));
#pragma unroll
            for (int term = 0; term < TERMS; ++term) {
                const int64 matrix = ((step * PARTS + part) * TERMS + term) * BATCH;
                const int64 in_part = slot % BATCH;
                int64 place = (matrix + in_part) * (PART_WIDTH + 8) + col;
                if constexpr (CHUNK_ROWS > 0) {
                    const int64 of_chunk = in_part % CHUNK_ROWS, before = in_part - of_chunk;
                    place = (matrix + before) * PART_WIDTH + col * CHUNK_ROWS + of_chunk * AT_ONCE;
                }
                store_vec(batches + place, numbers.terms[term]);
            }
        }
        const unsigned* target = targets + row * TARGET_STRIDE;
        unsigned* batch_target = batch_targets + slot * (TARGET_WORDS + WEIGHTED);
        for (int i = lane; i < TARGET_WORDS; i += 32 / ROWS_OF_WARP)
            batch_target[i] = is_there ? target[i] : 0;
        if (WEIGHTED && lane == 0) {
            batch_target[TARGET_WORDS] = __float_as_uint(is_there ? sample_weights[row] : 0);
        }
    }
}
