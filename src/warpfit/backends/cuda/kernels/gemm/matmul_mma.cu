// Computes:  C (m, n) = EPILOGUE(op(A) @ op(B)) on tensor cores through mma.sync, op the identity
//            or the transposition.
// Layout:    row-major, leading dimensions in numbers; A (m, k), or (k, m) if TRANSPOSE_A; B (k,
//            n), or (n, k) if TRANSPOSE_B; saved and z like C; bias (n); partials, arrivals as in
//            gemm/split.cuh.
// Launch:    grid (ceil(m / BLOCK_M), ceil(n / BLOCK_N), SPLITS), all tiles along x if SWATH_ROWS >
//            0; block: a warp for each WARP_M x WARP_N of the tile BLOCK_M x BLOCK_N, GROUPS times
//            (groups share the k of each BLOCK_K); shared bytes: STAGES tiles of A and of B
//            (Tile::BYTES), or 4 GROUPS BLOCK_M (BLOCK_N + 8) if that is more
//            (`MmaConfig.shared_bytes`). Defines: these, DTYPE (float32: as tf32), OUT,
//            TRANSPOSE_A, TRANSPOSE_B, those of gemm/epilogue.cuh, and VECTOR: 1 if all rows of all
//            matrices start, and those of A and B end, at multiples of 16 bytes.
// Numerics:  float32 sums in the order of k within each group, then over groups, then over splits;
//            float32 operands are cut to tf32 (10 bits of mantissa) without a drift, see TensorCore
//            in mma/mma.cuh.
// Cost:      2 m n k FLOP; each tile of C reads (BLOCK_M + BLOCK_N) k numbers, mostly from L2.
// Reference: matmul, linear_forward and linear_backward of backends/numpy/dense.py; PTX ISA
//            9.7.14.5 (mma), 9.7.9.25.3 (cp.async).
#include "gemm/epilogue.cuh"
#include "gemm/split.cuh"
#include "gemm/swath.cuh"
#include "mma/mma.cuh"

constexpr int THREADS = 32 * (BLOCK_M / WARP_M) * (BLOCK_N / WARP_N) * GROUPS;
constexpr int SLICES = BLOCK_K / SLICE<T> / GROUPS;  // a warp's, of a block of k
constexpr int FRAGMENTS_M = WARP_M / 16;
constexpr int FRAGMENTS_N = WARP_N / 16;  // of 16 columns: two mma
// Padded, so that the 8 rows which a warp writes at once lie in different banks.
constexpr int STAGING_COLS = BLOCK_N + 8;

using TileA = Tile<T, false, !TRANSPOSE_A, BLOCK_M, BLOCK_K>;
using TileB = Tile<T, true, TRANSPOSE_B, BLOCK_N, BLOCK_K>;
using CopyA = TileCopy<TileA, THREADS, VECTOR>;
using CopyB = TileCopy<TileB, THREADS, VECTOR>;
constexpr int STAGE_BYTES = TileA::BYTES + TileB::BYTES;
// Whether blocks beyond the end of k are left out, rather than filled with zeros that are not read:
// small tiles are waited for from the first to the last instruction, so there are few of them. In
// the loop of a large tile a branch would be in the way of the order of instructions.
constexpr bool STOPS_COPIES = BLOCK_M * BLOCK_N <= 64 * 64;

static_assert(SLICES % 2 == 0, "fragments are double-buffered");
static_assert(STAGES >= 2, "one stage is computed while another is loaded");
static_assert(BLOCK_M % WARP_M == 0 && BLOCK_N % WARP_N == 0, "warps fill the block");
static_assert(WARP_M % 16 == 0 && WARP_N % 16 == 0, "fragments fill the warp's tile");

// Where this block and warp work.
struct Place {
    int tile, row, col;      // number of the tile; its first row and column in C
    int warp_row, warp_col;  // of the warp's part, in the tile
    int group;               // of warps: which part of every block of k
    int lane;
};

__device__ inline Place find_place(int m, int n) {
    const TilePlace tile = find_tile<BLOCK_M, BLOCK_N>(m, n);
    const int group = threadIdx.x / (THREADS / GROUPS);
    const int warp = threadIdx.x % (THREADS / GROUPS) / 32;
    return {tile.number,
            tile.row * BLOCK_M,
            tile.col * BLOCK_N,
            warp / (BLOCK_N / WARP_N) * WARP_M,
            warp % (BLOCK_N / WARP_N) * WARP_N,
            GROUPS == 1 ? 0 : group,
            static_cast<int>(threadIdx.x % 32)};
}

struct Fragments {
    unsigned a[FRAGMENTS_M][4];
    unsigned b[FRAGMENTS_N][4];

    __device__ void load(const unsigned char* stage, int own_slice, const Place& place) {
        const int slice = place.group * SLICES + own_slice;
        const unsigned char* from_a = stage + TileA::lane_offset(place.warp_row, slice, place.lane);
        const unsigned char* from_b =
            stage + TileA::BYTES + TileB::lane_offset(place.warp_col, slice, place.lane);
#pragma unroll
        for (int i = 0; i < FRAGMENTS_M; ++i)
            TileA::load_fragment(a[i], from_a + i * TileA::FRAGMENT_BYTES);
#pragma unroll
        for (int j = 0; j < FRAGMENTS_N; ++j)
            TileB::load_fragment(b[j], from_b + j * TileB::FRAGMENT_BYTES);
    }

    // Makes operands of mma of what was loaded, where the type asks for it.
    __device__ void convert() {
#pragma unroll
        for (int w = 0; w < 4; ++w) {
#pragma unroll
            for (int i = 0; i < FRAGMENTS_M; ++i) a[i][w] = TensorCore<T>::operand(a[i][w]);
#pragma unroll
            for (int j = 0; j < FRAGMENTS_N; ++j) b[j][w] = TensorCore<T>::operand(b[j][w]);
        }
    }
};

using Sums = float[FRAGMENTS_M][FRAGMENTS_N][2][4];

__device__ inline void multiply(Sums& sums, const Fragments& fragments) {
#pragma unroll
    for (int i = 0; i < FRAGMENTS_M; ++i) {
#pragma unroll
        for (int step = 0; step < FRAGMENTS_N; ++step) {
            const int j =
                i % 2 ? FRAGMENTS_N - 1 - step : step;  // there and back: b's registers are reused
#pragma unroll
            for (int h = 0; h < 2; ++h) {
                const unsigned b[2] = {fragments.b[j][TileB::word(h, 0)],
                                       fragments.b[j][TileB::word(h, 1)]};
                TensorCore<T>::multiply(sums[i][j][h], fragments.a[i], b);
            }
        }
    }
}

// The ring's copies of the next block of k; those of one slice are issued beside its products.
struct Copies {
    CopyA a;
    CopyB b;
    int k_left;  // from the next block on

    __device__ void start(unsigned char* stage, int part, int parts) {
        a.copy(stage, CopyA::COUNT * part / parts, CopyA::COUNT * (part + 1) / parts, k_left);
        b.copy(stage + TileA::BYTES, CopyB::COUNT * part / parts, CopyB::COUNT * (part + 1) / parts,
               k_left);
    }

    __device__ void advance() {
        copy_async_commit();
        a.advance();
        b.advance();
        k_left -= BLOCK_K;
    }
};

__device__ inline int next_stage(int stage) { return stage + 1 == STAGES ? 0 : stage + 1; }

// sums += the products of num_blocks blocks of k. While a slice is multiplied, the fragments of the
// next one are loaded from shared memory, and a part of the block STAGES - 1 further on from global
// memory.
__device__ inline void multiply_blocks(Sums& sums, Copies& copies, unsigned char* ring,
                                       int num_blocks, const Place& place) {
#pragma unroll(STOPS_COPIES ? 1 : 8)
    for (int stage = 0; stage < STAGES - 1; ++stage) {
        if (!STOPS_COPIES || stage < num_blocks) copies.start(ring + stage * STAGE_BYTES, 0, 1);
        copies.advance();
    }
    copy_async_wait<STAGES - 2>();
    __syncthreads();

    Fragments fragments[2];
    fragments[0].load(ring, 0, place);
    fragments[0].convert();
    int read = 0, write = STAGES - 1;
#pragma unroll 1
    for (int block = 0; block < num_blocks; ++block) {
#pragma unroll
        for (int slice = 0; slice < SLICES; ++slice) {
            if (slice == SLICES - 1) {
                copy_async_wait<STAGES - 2>();
                __syncthreads();
                read = next_stage(read);
            }
            fragments[(slice + 1) % 2].load(ring + read * STAGE_BYTES, (slice + 1) % SLICES, place);
            if (slice < SLICES - 1 && (!STOPS_COPIES || copies.k_left > 0)) {
                copies.start(ring + write * STAGE_BYTES, slice, SLICES - 1);
            }
            if (slice == SLICES - 2) {
                copies.advance();
                write = next_stage(write);
            }
            multiply(sums, fragments[slice % 2]);
            fragments[(slice + 1) % 2].convert();
        }
    }
    copy_async_wait<0>();
    __syncthreads();
}

// Puts a warp's sums into shared memory: GROUPS tiles of BLOCK_M rows of STAGING_COLS numbers.
__device__ inline void stage_sums(float* staging, const Sums& sums, const Place& place) {
    const int first_row = place.group * BLOCK_M + place.warp_row + place.lane / 4;
    float* to = staging + first_row * STAGING_COLS + place.warp_col + place.lane % 4 * 2;
#pragma unroll
    for (int i = 0; i < FRAGMENTS_M; ++i) {
#pragma unroll
        for (int j = 0; j < FRAGMENTS_N; ++j) {
#pragma unroll
            for (int quarter = 0; quarter < 4; ++quarter) {  // 8 rows, 8 columns
                const int row = 16 * i + 8 * (quarter % 2), col = 16 * j + 8 * (quarter / 2);
                const float (&four)[4] = sums[i][j][quarter / 2];
                *reinterpret_cast<float2*>(to + row * STAGING_COLS + col) =
                    float2{four[quarter % 2 * 2], four[quarter % 2 * 2 + 1]};
            }
        }
    }
}

// A unit is WIDTH adjacent numbers of a row of the tile, up to 16 bytes where there are enough for
// all threads; WRITERS threads write UNITS each.
constexpr int LARGEST_WIDTH = 16 / (sizeof(T) < sizeof(Out) ? sizeof(T) : sizeof(Out));
constexpr int SHARE = BLOCK_M * BLOCK_N / THREADS < 2 ? 2 : BLOCK_M * BLOCK_N / THREADS;
constexpr int WIDTH = SHARE < LARGEST_WIDTH ? SHARE : LARGEST_WIDTH;
constexpr int READ = WIDTH < 4 ? WIDTH : 4;  // sums that are read at once
constexpr int ROW_UNITS = BLOCK_N / WIDTH;
constexpr int WRITERS = BLOCK_M * ROW_UNITS < THREADS ? BLOCK_M * ROW_UNITS : THREADS;
constexpr int UNITS = BLOCK_M * ROW_UNITS / WRITERS;
static_assert(UNITS * WRITERS == BLOCK_M * ROW_UNITS,
              "all threads that write have as much to write");

// The sums of a unit, over the parts of k in their order. Every second four lanes read the second
// half of their unit first, so that 8 lanes read from all banks.
__device__ inline void gather_unit(float* sums, const float* staging, int unit) {
    const float* from = staging + unit / ROW_UNITS * STAGING_COLS + unit % ROW_UNITS * WIDTH;
    const int turn = WIDTH == 8 && unit / 4 % 2 ? 4 : 0;
    float read[WIDTH];
#pragma unroll
    for (int part = 0; part < GROUPS; ++part) {
#pragma unroll
        for (int j = 0; j < WIDTH; j += READ) {
            const Pack<float, READ> some =
                load_pack<READ>(from + part * BLOCK_M * STAGING_COLS + (j ^ turn));
#pragma unroll
            for (int x = 0; x < READ; ++x)
                read[j + x] = part == 0 ? some.at[x] : read[j + x] + some.at[x];
        }
    }
#pragma unroll
    for (int j = 0; j < WIDTH; ++j) sums[j] = turn ? read[j ^ (WIDTH == 8 ? 4 : 0)] : read[j];
}

__device__ inline void write_unit(const Epilogue& epilogue, const float* sums, int unit,
                                  const Place& place) {
    float values[WIDTH];
#pragma unroll
    for (int j = 0; j < WIDTH; ++j) values[j] = sums[j];
    write_sums<WIDTH>(epilogue, place.row + unit / ROW_UNITS, place.col + unit % ROW_UNITS * WIDTH,
                      values);
}

__device__ inline void write_tile(const Epilogue& epilogue, const float* staging,
                                  const Place& place) {
#pragma unroll 2
    for (int i = 0; i < UNITS; ++i) {
        const int unit = threadIdx.x + i * WRITERS;
        float sums[WIDTH];
        gather_unit(sums, staging, unit);
        write_unit(epilogue, sums, unit, place);
    }
}

// The same if there are other slices of k to be added, by the last block of the tile.
__device__ inline void write_split_tile(const Epilogue& epilogue, const float* staging,
                                        const Place& place, float* partials, unsigned* arrivals) {
    const int thread = threadIdx.x;
    float sums[UNITS * WIDTH];
    if (thread < WRITERS) {
#pragma unroll
        for (int i = 0; i < UNITS; ++i)
            gather_unit(sums + i * WIDTH, staging, thread + i * WRITERS);
    }
    if (!sum_slices(sums, partials, arrivals, place.tile, own_slice(), thread, WRITERS)) return;
    if (thread >= WRITERS) return;
#pragma unroll
    for (int i = 0; i < UNITS; ++i)
        write_unit(epilogue, sums + i * WIDTH, thread + i * WRITERS, place);
}

extern "C" __global__ void __launch_bounds__(THREADS, 1)
    matmul_mma(const T* a, const T* b, Out* c, const T* bias, const T* saved, Out* z, double alpha,
               double slope, Acc* partials, unsigned* arrivals, int m, int n, int k, int lda,
               int ldb, int ldc) {
    take_turn();
    DYNAMIC_SHARED(unsigned char, shared);
    const Place place = find_place(m, n);
    const int slice = own_slice();
    const int k_begin = slice_begin(slice, k, BLOCK_K), k_end = slice_begin(slice + 1, k, BLOCK_K);

    Sums sums = {};
    Copies copies{CopyA(a, lda, place.row, m, k_begin, k_end, threadIdx.x),
                  CopyB(b, ldb, place.col, n, k_begin, k_end, threadIdx.x), k_end - k_begin};
    multiply_blocks(sums, copies, shared, (k_end - k_begin + BLOCK_K - 1) / BLOCK_K, place);

    float* staging = reinterpret_cast<float*>(shared);
    stage_sums(staging, sums, place);
    __syncthreads();
    const Epilogue epilogue{c, bias, saved, z, static_cast<Acc>(alpha), static_cast<Acc>(slope),
                            m, n,    ldc};
    if (SPLITS > 1) {
        write_split_tile(epilogue, staging, place, partials, arrivals);
    } else if (threadIdx.x < WRITERS) {
        write_tile(epilogue, staging, place);
    }
}
