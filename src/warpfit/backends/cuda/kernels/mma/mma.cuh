// Tiles of matrix products on tensor cores: from global to shared memory, from there to fragments,
// and mma.
//
// k advances in slices of 32 bytes, one mma: 16 float16 or bfloat16 numbers, or 8 of float32 as
// tf32. A tile lies in shared memory as in global memory, row by row. So that what is loaded at
// once lies in different banks, the 16-byte chunks of a row are permuted by an exclusive or with
// its number (if k goes along the rows), or rows are padded.
#pragma once

#include "base/types.cuh"

// d += a * b for one fragment of 16 rows, 8 columns and a slice of k, and what it makes of words
// loaded from memory.
template <class T>
struct TensorCore {
    static_assert(sizeof(T) == 0, "tensor cores of this architecture do not take this type");
};

template <>
struct TensorCore<float16> {
    __device__ static unsigned operand(unsigned word) { return word; }
    // With sums of float32, or two of float16 in a word.
    template <class Sum, int COUNT>
    __device__ static void multiply(Sum (&d)[COUNT], const unsigned (&a)[4],
                                    const unsigned (&b)[2]) {
        mma_m16n8k16_f16(d, a, b);
    }
    // Of half a slice.
    template <class Sum, int COUNT>
    __device__ static void multiply(Sum (&d)[COUNT], const unsigned (&a)[2],
                                    const unsigned (&b)[1]) {
        mma_m16n8k8_f16(d, a, b[0]);
    }
};

#if __CUDA_ARCH__ >= 800
template <>
struct TensorCore<bfloat16> {
    __device__ static unsigned operand(unsigned word) { return word; }
    __device__ static void multiply(float (&d)[4], const unsigned (&a)[4], const unsigned (&b)[2]) {
        mma_m16n8k16_bf16(d, a, b);
    }
    __device__ static void multiply(float (&d)[4], const unsigned (&a)[2], const unsigned (&b)[1]) {
        mma_m16n8k8_bf16(d, a, b[0]);
    }
};

// Tensor cores look at 10 bits of a mantissa and ignore the others, which would make numbers
// smaller by 0.35 units of the last bit kept, relative to a mantissa in the mean. Numbers are made
// larger by as much before: sums have no drift and nearly the error of rounded operands, at one
// instruction for each instead of two. It is less than a unit, so that numbers of 10 bits stay what
// they are; infinity and NaN do too.
template <>
struct TensorCore<float32> {
    __device__ static unsigned operand(unsigned word) {
        return __float_as_uint(__uint_as_float(word) * (1.0f + 0.35f / 1024));
    }
    __device__ static void multiply(float (&d)[4], const unsigned (&a)[4], const unsigned (&b)[2]) {
        mma_m16n8k8_tf32(d, a, b);
    }
};
#endif

// 16 bytes of a row.
template <class T>
constexpr int CHUNK = 16 / static_cast<int>(sizeof(T));

// 32 bytes of k: one mma.
template <class T>
constexpr int SLICE = 32 / static_cast<int>(sizeof(T));

// One operand's tile of OUTER rows of A (or columns of B) times DEPTH of k. K_ADJACENT: numbers
// that follow each other along k are neighbours in memory, as in A (m, k) or B (n, k).
template <class Number, bool IS_B, bool K_ADJACENT, int OUTER, int DEPTH>
struct Tile {
    using T = Number;
    static constexpr bool ALONG_K = K_ADJACENT;
    static constexpr int ROWS = K_ADJACENT ? OUTER : DEPTH;
    static constexpr int COLS = K_ADJACENT ? DEPTH : OUTER;
    static constexpr int ROW_CHUNKS = COLS / CHUNK<T>;
    // ldmatrix reads 16 bytes of 8 rows at once. It cannot transpose 32-bit numbers: they are
    // loaded one by one, 8 neighbours of 4 rows at once.
    static constexpr int PADDING = K_ADJACENT ? 0 : sizeof(T) == 4 ? 32 : 16;
    static constexpr int ROW_BYTES = COLS * static_cast<int>(sizeof(T)) + PADDING;
    static constexpr int BYTES = ROWS * ROW_BYTES;
    static_assert(!K_ADJACENT || ROW_CHUNKS % 8 == 0 || 8 % ROW_CHUNKS == 0,
                  "rows of 32, 64 or k * 128 bytes");

    // What is xored to a chunk's number. Rows that share a 128-byte line count as one.
    __device__ static int swizzle(int row) {
        constexpr int LINE_ROWS = ROW_CHUNKS < 8 ? 8 / ROW_CHUNKS : 1;
        return K_ADJACENT ? row / LINE_ROWS % (8 / LINE_ROWS) : 0;
    }

    __device__ static int offset(int row, int chunk) {
        return row * ROW_BYTES + (chunk ^ swizzle(row)) * 16;
    }

    // A fragment of 16 outer indices by one slice consists of 8 by 16 bytes, halves (h, s) of the
    // outer indices and of the slice. mma takes A's words in the order (0, 0), (1, 0), (0, 1), (1,
    // 1), and B's by pairs of the same h, which have to be neighbours in registers.
    __device__ static constexpr int word(int h, int s) { return IS_B ? 2 * h + s : h + 2 * s; }

    // Where a lane of a warp whose part begins at `outer`, a multiple of 16, reads its first
    // fragment of a slice; the i-th one lies i * FRAGMENT_BYTES further on.
    static constexpr int FRAGMENT_BYTES =
        16 * (K_ADJACENT ? ROW_BYTES : static_cast<int>(sizeof(T)));

    __device__ static int lane_offset(int outer, int slice, int lane) {
        const int matrix = lane / 8;  // of which this lane gives a row
        const int h = IS_B ? matrix / 2 : matrix % 2, s = IS_B ? matrix % 2 : matrix / 2;
        if (K_ADJACENT) {
            const int row = 8 * h + lane % 8;
            return (outer + row) * ROW_BYTES + ((s ^ swizzle(row)) * 16 ^ slice * 32);
        }
        const int row = slice * SLICE<T> + (sizeof(T) == 2 ? 8 * s + lane % 8 : lane % 4);
        const int col = outer + (sizeof(T) == 2 ? 8 * h : lane / 4);
        return row * ROW_BYTES + col * static_cast<int>(sizeof(T));
    }

    __device__ static void load_fragment(unsigned (&words)[4], const unsigned char* at) {
        if constexpr (K_ADJACENT) {
            ldmatrix_x4(words[0], words[1], words[2], words[3], at);
        } else if constexpr (sizeof(T) == 2) {
            ldmatrix_x4_trans(words[0], words[1], words[2], words[3], at);
        } else {
#pragma unroll
            for (int i = 0; i < 4; ++i) {
                const int h = i % 2, s = i / 2;
                const unsigned char* from =
                    at + s * 4 * ROW_BYTES + h * 8 * static_cast<int>(sizeof(T));
                words[word(h, s)] = *reinterpret_cast<const unsigned*>(from);
            }
        }
    }
};

// What one thread of THREADS copies of a tile, in chunks of 16 bytes, block of k by block of k.
template <class Shape, int THREADS, bool VECTOR_ROWS>
struct TileCopy {
    using T = typename Shape::T;
    static constexpr bool K_ADJACENT = Shape::ALONG_K;
    static constexpr int TOTAL = Shape::ROWS * Shape::ROW_CHUNKS;
    static constexpr int COUNT = (TOTAL + THREADS - 1) / THREADS;
    static constexpr int ROW_STEP = THREADS / Shape::ROW_CHUNKS;
    static_assert(THREADS % Shape::ROW_CHUNKS == 0, "all chunks of a thread lie in one column");
    static_assert(COUNT < 32, "one bit per chunk");

    const T* next;     // what this thread copies next
    int64 row_step;    // from one of its chunks to the next, in numbers
    int64 block_step;  // from its last chunk to its first in the next block of k
    int row, chunk;    // of its first chunk
    int width;         // bytes at whose multiples all rows start and end: 16, 4 or 2
    int inside;        // bit i: row i of this thread is inside, K_ADJACENT only
    int columns_left;  // from this chunk on, not K_ADJACENT only

    __device__ TileCopy(const T* matrix, int ld, int outer_begin, int outer_end, int k_begin,
                        int k_end, unsigned thread)
        : row(thread / Shape::ROW_CHUNKS),
          chunk(thread % Shape::ROW_CHUNKS),
          inside(0),
          columns_left(0) {
        const int row_end = K_ADJACENT ? k_end : outer_end;  // k_begin is a multiple of 16 bytes
        const uint64 ends =
            reinterpret_cast<uint64>(matrix) | static_cast<uint64>(ld | row_end) * sizeof(T);
        width = VECTOR_ROWS || ends % 16 == 0 ? 16 : ends % 4 == 0 ? 4 : 2;
        const int col = chunk * CHUNK<T>;
        row_step = static_cast<int64>(ROW_STEP) * ld;
        if (K_ADJACENT) {
            next = matrix + static_cast<int64>(outer_begin + row) * ld + k_begin + col;
            block_step = Shape::COLS - COUNT * row_step;
#pragma unroll
            for (int i = 0; i < COUNT; ++i)
                inside |= (outer_begin + row + i * ROW_STEP < outer_end) << i;
        } else {
            next = matrix + static_cast<int64>(k_begin + row) * ld + outer_begin + col;
            block_step = Shape::ROWS * static_cast<int64>(ld) - COUNT * row_step;
            columns_left = outer_end - outer_begin - col;
        }
    }

    // How many numbers of chunk i lie inside of the matrix (0 or less: none), with k_left of k from
    // this block on.
    __device__ int numbers_inside(int i, int k_left) const {
        if (K_ADJACENT) return (inside >> i & 1) ? k_left - chunk * CHUNK<T> : 0;
        return row + i * ROW_STEP < k_left ? columns_left : 0;
    }

    // Starts copies first to last - 1 into `tile`; numbers outside of the matrix become 0. All
    // numbers are known when this is compiled, and calls follow each other from copy 0 to COUNT -
    // 1.
    __device__ void copy(unsigned char* tile, int first, int last, int k_left) {
#pragma unroll
        for (int i = first; i < last; ++i) {
            if (TOTAL % THREADS == 0 || row + i * ROW_STEP < Shape::ROWS) {
                unsigned char* to = tile + Shape::offset(row + i * ROW_STEP, chunk);
                const int count = numbers_inside(i, k_left);
                if (VECTOR_ROWS || width == 16) {
                    copy_async_16(to, next, count > 0);
                } else if (width == 4) {
                    copy_words(to, next, count);
                } else {
                    copy_numbers(to, next, count);
                }
            }
            next += row_step;
        }
    }

    __device__ static void copy_words(unsigned char* to, const T* from, int count) {
        constexpr int IN_WORD = 4 / static_cast<int>(sizeof(T));
#pragma unroll
        for (int j = 0; j < 4; ++j)
            copy_async_4(to + 4 * j, from + j * IN_WORD, j * IN_WORD < count);
    }

    __device__ static void copy_numbers(unsigned char* to, const T* from, int count) {
        if constexpr (sizeof(T) == 2) {
            unsigned words[4];
#pragma unroll
            for (int j = 0; j < 4; ++j) {
                const unsigned low = 2 * j < count ? from[2 * j].bits : 0;
                const unsigned high = 2 * j + 1 < count ? from[2 * j + 1].bits : 0;
                words[j] = low | high << 16;
            }
            *reinterpret_cast<uint4*>(to) = uint4{words[0], words[1], words[2], words[3]};
        }
    }

    __device__ void advance() { next += block_step; }
};
