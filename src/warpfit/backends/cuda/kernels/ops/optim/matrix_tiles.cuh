// Sums of a tile of 64 by 64 of a product of matrices in memory, by 256 threads: numbers of float32
// or float64 by multiplications and additions, of bfloat16 by tensor cores. Each thread keeps COUNT
// of the sums; operands pass through shared memory.
#pragma once

#include "mma/fragments.cuh"

constexpr int THREADS = 256;
constexpr int TILE = 64;
constexpr int COUNT = TILE * TILE / THREADS;

// An operand as it lies in memory: TILE rows of A, or columns of B, from `first` on, of `outers`.
// `along`: whether neighbours differ by k.
template <class X>
struct Operand {
    const X* from;
    bool along;
    int first, outers, depth;
};

template <class X>
struct TileSums;

#if TENSOR_CORES
// A warp has 16 rows of a tile and half of its columns, as mma leaves them. Tiles lie in shared
// memory as in memory.
template <>
struct TileSums<bfloat16> {
    using X = bfloat16;
    static constexpr int STEP = 64, STAGES = 4, LINE = TILE + 8, IN_CHUNK = CHUNK<X>;
    static constexpr int STAGE_NUMBERS = 2 * TILE * LINE;
    static_assert(STEP == TILE, "tiles along and across have the same lines");

    float sums[4][4] = {};

    __device__ static int warp_row() { return threadIdx.x / WARP % 4 * 16; }
    __device__ static int warp_column() { return threadIdx.x / WARP / 4 * 32; }

    __device__ float sum(int i) const { return sums[i / 4][i % 4]; }
    __device__ static int row(int i) { return warp_row() + i % 4 / 2 * 8 + threadIdx.x % WARP / 4; }
    __device__ static int column(int i) {
        return warp_column() + i / 4 * 8 + threadIdx.x % 4 * 2 + i % 2;
    }

    // A thread's chunks of an operand's tiles, sixteen bytes at once where lines begin at multiples
    // of them; zeros beyond the ends.
    struct Chunks {
        static constexpr int COUNT = TILE * TILE / IN_CHUNK / THREADS;
        static constexpr int LINES_APART = TILE / COUNT;

        const X* from;
        int place, line_numbers, k, depth;
        bool along, wide;
        int left;                // numbers of a line, across
        bool are_inside[COUNT];  // along

        __device__ explicit Chunks(const Operand<X>& of) : depth(of.depth), along(of.along) {
            const int line = threadIdx.x / (TILE / IN_CHUNK);
            const int at = threadIdx.x % (TILE / IN_CHUNK) * IN_CHUNK;
            line_numbers = along ? depth : of.outers;
            wide = line_numbers % IN_CHUNK == 0;
            place = line * LINE + at;
            k = along ? at : line;
            const int64 row = along ? of.first + line : line, column = along ? at : of.first + at;
            from = of.from + row * line_numbers + column;
            left = of.outers - of.first - at;
#pragma unroll
            for (int i = 0; i < COUNT; ++i) {
                are_inside[i] = of.first + line + i * LINES_APART < of.outers;
            }
        }

        // Those of the next STEP of k.
        __device__ void copy(X* tile) {
#pragma unroll
            for (int i = 0; i < COUNT; ++i) {
                const int apart = i * LINES_APART;
                const int count =
                    along ? (are_inside[i] ? depth - k : 0) : (k + apart < depth ? left : 0);
                const X* own = from + static_cast<int64>(apart) * line_numbers;
                X* to = tile + place + apart * LINE;
                if (wide) {
                    copy_async_16(to, own, count > 0);
                } else {
                    for (int e = 0; e < IN_CHUNK; ++e) to[e] = e < count ? own[e] : X{};
                }
            }
            k += STEP;
            from += along ? STEP : static_cast<int64>(STEP) * line_numbers;
        }
    };

    template <bool A_ALONG, bool B_ALONG>
    __device__ void add_products(const X* tile_a, const X* tile_b) {
#pragma unroll
        for (int k = 0; k < STEP; k += 16) {
            unsigned of_a[4];
            if constexpr (A_ALONG) {
                load_a(of_a, tile_a + warp_row() * LINE + k, LINE);
            } else {
                load_a_transposed(of_a, tile_a + k * LINE + warp_row(), LINE);
            }
#pragma unroll
            for (int pair = 0; pair < 2; ++pair) {
                const int column = warp_column() + 16 * pair;
                unsigned low[2], high[2];
                if constexpr (B_ALONG) {
                    load_b_pair(low, high, tile_b + column * LINE + k, LINE);
                } else {
                    load_b_pair_transposed(low, high, tile_b + k * LINE + column, LINE);
                }
                TensorCore<X>::multiply(sums[2 * pair], of_a, low);
                TensorCore<X>::multiply(sums[2 * pair + 1], of_a, high);
            }
        }
    }

    template <bool A_ALONG, bool B_ALONG>
    __device__ void multiply_as(const Operand<X>& a, const Operand<X>& b, X* ring) {
        const int steps = (a.depth + STEP - 1) / STEP;
        Chunks of_a(a), of_b(b);
        const auto load_step = [&](int step) {
            X* stage = ring + step % STAGES * STAGE_NUMBERS;
            if (step < steps) {
                of_a.copy(stage);
                of_b.copy(stage + TILE * LINE);
            }
            copy_async_commit();
        };
        for (int step = 0; step < STAGES - 1; ++step) load_step(step);
        for (int step = 0; step < steps; ++step) {
            copy_async_wait<STAGES - 2>();
            __syncthreads();
            load_step(step + STAGES - 1);
            const X* stage = ring + step % STAGES * STAGE_NUMBERS;
            add_products<A_ALONG, B_ALONG>(stage, stage + TILE * LINE);
        }
        copy_async_wait<0>();
    }

    __device__ void multiply(const Operand<X>& a, const Operand<X>& b, X* ring) {
        if (a.along) {
            b.along ? multiply_as<true, true>(a, b, ring) : multiply_as<true, false>(a, b, ring);
        } else {
            b.along ? multiply_as<false, true>(a, b, ring) : multiply_as<false, false>(a, b, ring);
        }
    }
};
#else
// A thread has four rows and four columns of a tile, a quarter of it apart. Tiles lie across depth;
// they are multiplied while the next ones come to registers.
template <class X>
struct TileSums {
    static constexpr int STEP = 16, ACROSS = 16, OWN = 4, LINE = TILE + 1;

    X sums[OWN][OWN] = {};

    __device__ X sum(int i) const { return sums[i / OWN][i % OWN]; }
    __device__ static int row(int i) { return threadIdx.x / ACROSS + i / OWN * ACROSS; }
    __device__ static int column(int i) { return threadIdx.x % ACROSS + i % OWN * ACROSS; }

    // A thread's numbers of a tile.
    struct Piece {
        static constexpr int COUNT = TILE * STEP / THREADS;
        X number[COUNT];

        __device__ static void place(int i, bool along, int& outer, int& k) {
            const int at = threadIdx.x + i * THREADS;
            outer = along ? at / STEP : at % TILE;
            k = along ? at % STEP : at / TILE;
        }

        __device__ void load(const Operand<X>& of, int first_k) {
#pragma unroll
            for (int i = 0; i < COUNT; ++i) {
                int outer, k;
                place(i, of.along, outer, k);
                outer += of.first;
                k += first_k;
                const int64 at = of.along ? static_cast<int64>(outer) * of.depth + k
                                          : static_cast<int64>(k) * of.outers + outer;
                number[i] = outer < of.outers && k < of.depth ? of.from[at] : X(0);
            }
        }

        __device__ void store(X* tile, bool along) const {
#pragma unroll
            for (int i = 0; i < COUNT; ++i) {
                int outer, k;
                place(i, along, outer, k);
                tile[k * LINE + outer] = number[i];
            }
        }
    };

    __device__ void add_products(const X* tile_a, const X* tile_b) {
        const int x = threadIdx.x % ACROSS, y = threadIdx.x / ACROSS;
#pragma unroll
        for (int k = 0; k < STEP; ++k) {
            X rows[OWN], columns[OWN];
#pragma unroll
            for (int i = 0; i < OWN; ++i) {
                rows[i] = tile_a[k * LINE + y + i * ACROSS];
                columns[i] = tile_b[k * LINE + x + i * ACROSS];
            }
#pragma unroll
            for (int i = 0; i < OWN; ++i) {
#pragma unroll
                for (int j = 0; j < OWN; ++j) sums[i][j] += rows[i] * columns[j];
            }
        }
    }

    __device__ void multiply(const Operand<X>& a, const Operand<X>& b, X* room) {
        X *tile_a = room, *tile_b = room + STEP * LINE;
        Piece of_a, of_b;
        of_a.load(a, 0);
        of_b.load(b, 0);
        for (int first_k = 0; first_k < a.depth; first_k += STEP) {
            of_a.store(tile_a, a.along);
            of_b.store(tile_b, b.along);
            __syncthreads();
            of_a.load(a, first_k + STEP);
            of_b.load(b, first_k + STEP);
            add_products(tile_a, tile_b);
            __syncthreads();
        }
    }
};
#endif
