// Computes: C (m, n) = EPILOGUE(op(A) (m, k) @ op(B) (k, n)); the third rung: tiles of sums in
//   registers.
// Layout:   row-major with leading dimensions in elements; A stored (m, k), or (k, m) with
//           TRANSPOSE_A = 1; B stored (k, n), or (n, k) with TRANSPOSE_B = 1; any 256 rows of them
//           span less than 2^32 elements. VECTOR = 1 promises that all rows of all arrays begin and
//           end at multiples of 16 bytes.
// Launch:   grid (ceil(m / BLOCK_M), ceil(n / BLOCK_N), SPLITS), all tiles along x if SWATH_ROWS >
//           0; block: GROUPS times (BLOCK_M / THREAD_M) (BLOCK_N / THREAD_N), each group a multiple
//           of 32; dynamic shared memory: STAGES tiles of A and of B, or (GROUPS - 1) BLOCK_M
//           BLOCK_N sums if that is more (`MatmulConfig.shared_bytes`). Defines: DTYPE, OUT,
//           TRANSPOSE_A, TRANSPOSE_B, VECTOR, the sizes named here, BLOCK_K, MIN_BLOCKS (on a
//           multiprocessor), TURN, SWATH_ROWS, and those of gemm/epilogue.cuh. With SPLITS > 1
//           partials has room for SPLITS sums for each element of each tile, and arrivals a zero
//           for each tile.
// Numerics: sums in float (double for float64): k ascending within a thread, then groups, then
//           slices; one rounding of the result. Zeros stand for what lies outside of the matrices.
// Cost:     2 m n k FLOP; reads A n / BLOCK_N times and B m / BLOCK_M times, mostly from L2.
// Reference: matmul of backends/numpy/dense.py.
//
// A thread owns THREAD_M x THREAD_N sums. An operand that is stored along k is turned while it is
// copied to shared memory if TURN = 1, so that a thread reads neighbouring rows with one
// instruction: best where a tile is used often. With TURN = 0 it is kept as it is, copied 16 bytes
// at once, and a thread reads K_STEP numbers along k: best where latency counts. GROUPS > 1 lets
// groups of warps share the k of each tile: more warps for tiles of few sums.
#include "gemm/epilogue.cuh"
#include "gemm/split.cuh"
#include "gemm/swath.cuh"

constexpr int GROUP_THREADS = BLOCK_M / THREAD_M * (BLOCK_N / THREAD_N);
constexpr int THREADS = GROUPS * GROUP_THREADS;
constexpr int SUMS = THREAD_M * THREAD_N;
constexpr int LANES_N = BLOCK_N / THREAD_N < 8 ? BLOCK_N / THREAD_N : 8;  // of a warp's 32 lanes
constexpr int LANES_M = 32 / LANES_N;
constexpr int WARPS_N = BLOCK_N / THREAD_N / LANES_N;  // of a group

constexpr bool A_ALONG_K = !TRANSPOSE_A;  // in global memory
constexpr bool B_ALONG_K = TRANSPOSE_B;
constexpr bool A_KEPT = A_ALONG_K && !TURN;  // along k in shared memory too
constexpr bool B_KEPT = B_ALONG_K && !TURN;

constexpr int WORD = 16 / sizeof(Acc);  // sums in 16 bytes
constexpr int K_STEP =
    A_KEPT || B_KEPT ? WORD : 1;  // k that a thread takes from shared memory at once
constexpr int STEPS = BLOCK_K / (K_STEP * GROUPS);  // of a group in a tile
constexpr int PAD = 16 / sizeof(T);  // sets lines apart by four banks, and keeps their alignment
constexpr int SLICE_UNIT = 16;       // slices of k begin at multiples of it

static_assert(BLOCK_M % (LANES_M * THREAD_M) == 0 && BLOCK_N % (LANES_N * THREAD_N) == 0 &&
                  LANES_M % 2 == 0,
              "a group of threads has to be whole warps");
static_assert(BLOCK_K % 8 == 0 && BLOCK_K % (K_STEP * GROUPS) == 0 && STEPS % 2 == 0,
              "groups have to take an even number of steps in a tile");

// Copies WIDTH numbers, or as many zeros.
template <int WIDTH>
__device__ inline void copy_numbers(T* to, const T* from, bool valid) {
    constexpr int BYTES = WIDTH * sizeof(T);
    if (BYTES == 16) {
        copy_async_16(to, from, valid);
    } else if (BYTES == 8) {
        copy_async_8(to, from, valid);
    } else if (BYTES == 4) {
        copy_async_4(to, from, valid);
    } else {
        *to = valid ? *from : T{};
    }
}

// SIZE rows of op(A), or columns of op(B) (both "rows" here), times BLOCK_K numbers in shared
// memory, of which a thread owns COUNT rows: it shares a warp with LANES others along that side. In
// memory and in copies a tile has LINES.
template <int SIZE, int COUNT, int LANES, bool IS_ALONG_K, bool KEPT>
struct Tile {
    static constexpr bool ALONG_K = IS_ALONG_K;
    static constexpr int STRIDE = (KEPT ? BLOCK_K : SIZE) + PAD;
    static constexpr int NUMBERS = (KEPT ? SIZE : BLOCK_K) * STRIDE;
    static constexpr int ADJACENT = KEPT ? 1 : COUNT % WORD == 0 ? WORD : COUNT % 2 == 0 ? 2 : 1;

    static constexpr bool TURNED = ALONG_K && !KEPT;
    static constexpr int WIDTH = VECTOR && !TURNED ? 16 / sizeof(T) : 1;
    static constexpr int LINES = ALONG_K ? SIZE : BLOCK_K;
    // RUN neighbouring threads copy a line; of lines to be turned, 8 numbers of it: they are a
    // sector of 32 bytes, and those of four lines go to 32 different banks.
    static constexpr int RUN = (TURNED ? 8 : ALONG_K ? BLOCK_K : SIZE) / WIDTH;
    static constexpr int RUNS = TURNED ? BLOCK_K / 8 : 1;  // in a line
    static constexpr int PASS = THREADS / RUN;             // lines that all threads copy at once
    static constexpr int PASSES = PASS < LINES ? LINES / PASS : 1;  // to reach all lines
    static constexpr int RUN_STEP =
        PASS < LINES ? 1 : PASS / LINES;  // runs of a line that are copied at once

    static_assert(THREADS % RUN == 0 && (PASS < LINES ? LINES % PASS : PASS % LINES) == 0,
                  "threads have to partition the lines of a tile evenly");

    __device__ static int at(int row, int k) { return KEPT ? row * STRIDE + k : k * STRIDE + row; }

    // The first of the rows of a thread, and the i-th as seen from there: ADJACENT of them, then
    // those of the other lanes, then the next ADJACENT.
    __device__ static int first_row(int warp, int lane) {
        return warp * LANES * COUNT + lane * ADJACENT;
    }
    __device__ static constexpr int row_step(int i) {
        return i / ADJACENT * LANES * ADJACENT + i % ADJACENT;
    }

    // Reads K_STEP numbers of each of the thread's rows, the first of which begins at `from`.
    __device__ static void read(Acc (&to)[K_STEP][COUNT], const T* from) {
        if (KEPT) {
#pragma unroll
            for (int i = 0; i < COUNT; ++i) {
                const Pack<T, K_STEP> pack = load_pack<K_STEP>(from + at(row_step(i), 0));
#pragma unroll
                for (int s = 0; s < K_STEP; ++s) to[s][i] = load(pack.at[s]);
            }
        } else {
#pragma unroll
            for (int i = 0; i < COUNT * K_STEP; i += ADJACENT) {
                const int s = i / COUNT;
                const Pack<T, ADJACENT> pack =
                    load_pack<ADJACENT>(from + at(row_step(i % COUNT), s));
#pragma unroll
                for (int j = 0; j < ADJACENT; ++j) to[s][i % COUNT + j] = load(pack.at[j]);
            }
        }
    }
};

using TileA = Tile<BLOCK_M, THREAD_M, LANES_M, A_ALONG_K, A_KEPT>;
using TileB = Tile<BLOCK_N, THREAD_N, LANES_N, B_ALONG_K, B_KEPT>;
constexpr int STAGE = TileA::NUMBERS + TileB::NUMBERS;  // numbers of one tile of A and one of B

// Which sums are this thread's: its group, and its first row and column in the tile. Lanes that
// read the same numbers of A are neighbours of distance 2, of B of distance 1: their reads merge.
struct Place {
    int group, row, col;
};

__device__ inline Place place_of(int thread) {
    const int warp = thread % GROUP_THREADS / 32;
    const int lane = thread % 32;
    return Place{GROUPS > 1 ? thread / GROUP_THREADS : 0,
                 TileA::first_row(warp / WARPS_N, lane / (2 * LANES_N) * 2 + lane % 2),
                 TileB::first_row(warp % WARPS_N, lane / 2 % LANES_N)};
}

// A thread's share of the copies of an operand's tiles, one tile after the other.
template <class TILE>
struct Copies {
    const T* from;  // the thread's first number of the next tile, were it in the tile's first line
    T* to;          // where the thread's first number goes
    int ld, rows, line, along;

    // The tiles begin at `start`, have `rows` rows, and go to `tiles` and the following stages.
    __device__ Copies(const T* start, int ld_, int rows_, T* tiles) : ld(ld_), rows(rows_) {
        const int thread = threadIdx.x;
        const int run = TILE::RUN_STEP > 1 ? thread / TILE::RUN / TILE::LINES : 0;
        line = TILE::RUN_STEP > 1 ? thread / TILE::RUN % TILE::LINES : thread / TILE::RUN;
        along = (run * TILE::RUN + thread % TILE::RUN) * TILE::WIDTH;
        from = start + (TILE::ALONG_K ? along : min(along, rows - TILE::WIDTH));
        to = tiles + (TILE::ALONG_K ? TILE::at(line, along) : TILE::at(along, line));
    }

    // Starts to copy the next tile, which has ks numbers along k, BLOCK_K if FULL; zeros stand for
    // the others. Beyond its rows the last one is repeated; the products are not read.
    template <bool FULL>
    __device__ void start_next(int ks, int to_next_stage) {
#pragma unroll
        for (int p = 0; p < TILE::PASSES; ++p) {
            const int at_line = line + p * TILE::PASS;
            // 32 bits suffice for a tile, and save registers.
            const uint32 offset =
                static_cast<uint32>(TILE::ALONG_K ? min(at_line, rows - 1) : at_line) * ld;
            const T* number = from + offset;
#pragma unroll
            for (int r = 0; r < TILE::RUNS; r += TILE::RUN_STEP) {
                constexpr int SPAN = TILE::RUN * TILE::WIDTH;
                if (TILE::RUN_STEP > 1 && along + r * SPAN >= TILE::RUNS * SPAN) break;
                const bool valid = FULL || (TILE::ALONG_K ? along + r * SPAN : at_line) < ks;
                const int step = TILE::ALONG_K ? TILE::at(p * TILE::PASS, r * SPAN)
                                               : TILE::at(r * SPAN, p * TILE::PASS);
                copy_numbers<TILE::WIDTH>(to + step, valid ? number + r * SPAN : from, valid);
            }
        }
        from += TILE::ALONG_K ? ks : static_cast<int64>(ks) * ld;
        to += to_next_stage;
    }
};

// Which stage of the ring comes next. Pointers into the ring are moved, not computed from a stage's
// number: what is constant about an address then becomes part of the instruction.
struct Ring {
    int stage;

    // Goes on, and returns how far away the next stage is.
    __device__ int next() {
        stage = stage + 1 < STAGES ? stage + 1 : 0;
        return stage > 0 ? STAGE : -(STAGES - 1) * STAGE;
    }
};

struct Fragments {
    Acc a[K_STEP][THREAD_M];
    Acc b[K_STEP][THREAD_N];

    __device__ void read(const T* tile_a, const T* tile_b, int step) {
        TileA::read(a, tile_a + TileA::at(0, step * GROUPS * K_STEP));
        TileB::read(b, tile_b + TileB::at(0, step * GROUPS * K_STEP));
    }

    __device__ void multiply(Acc (&sums)[SUMS]) const {
#pragma unroll
        for (int s = 0; s < K_STEP; ++s) {
#pragma unroll
            for (int i = 0; i < SUMS; ++i) sums[i] += a[s][i / THREAD_N] * b[s][i % THREAD_N];
        }
    }
};

// The product of a slice of `ks` numbers along k. Copies run STAGES - 1 tiles ahead, reads from
// shared memory one step ahead; one barrier a tile, which tells both that the next tile is there
// and that this one has been read.
__device__ inline void multiply_slice(Acc (&sums)[SUMS], Copies<TileA> copies_a,
                                      Copies<TileB> copies_b, int ks, const T* tile_a,
                                      const T* tile_b) {
#pragma unroll
    for (int i = 0; i < SUMS; ++i) sums[i] = Acc(0);
    if (ks <= 0) return;
    const int num_tiles = (ks + BLOCK_K - 1) / BLOCK_K;
    // The first tile is the one that may have less than BLOCK_K numbers along k.
    copies_a.start_next<false>(ks - (num_tiles - 1) * BLOCK_K, STAGE);
    copies_b.start_next<false>(ks - (num_tiles - 1) * BLOCK_K, STAGE);
    copy_async_commit();
#pragma unroll
    for (int s = 1; s < STAGES - 1; ++s) {
        if (s < num_tiles) {
            copies_a.start_next<true>(BLOCK_K, STAGE);
            copies_b.start_next<true>(BLOCK_K, STAGE);
        }
        copy_async_commit();
    }
    copy_async_wait<STAGES - 2>();
    __syncthreads();
    Fragments fragments[2];
    fragments[0].read(tile_a, tile_b, 0);
    Ring reading{0};
    Ring writing{STAGES - 1};
    for (int tile = 0; tile < num_tiles; ++tile) {
        if (tile + STAGES - 1 < num_tiles) {
            const int to_next_stage = writing.next();
            copies_a.start_next<true>(BLOCK_K, to_next_stage);
            copies_b.start_next<true>(BLOCK_K, to_next_stage);
        }
        copy_async_commit();
#pragma unroll
        for (int step = 0; step < STEPS; ++step) {
            if (step == STEPS - 1) {
                copy_async_wait<STAGES - 2>();
                __syncthreads();
                const int to_next_stage = reading.next();
                tile_a += to_next_stage;
                tile_b += to_next_stage;
            }
            fragments[(step + 1) % 2].read(tile_a, tile_b, (step + 1) % STEPS);
            fragments[step % 2].multiply(sums);
        }
    }
}

// Makes the sums of group 0 those of all groups, in their order.
__device__ inline void sum_groups(Acc (&sums)[SUMS], Acc* scratch, int group) {
    if (GROUPS == 1) return;
    const int thread = threadIdx.x % GROUP_THREADS;
    __syncthreads();
    if (group > 0) {
#pragma unroll
        for (int i = 0; i < SUMS; ++i)
            scratch[((group - 1) * SUMS + i) * GROUP_THREADS + thread] = sums[i];
    }
    __syncthreads();
    if (group > 0) return;
#pragma unroll
    for (int g = 0; g < GROUPS - 1; ++g) {
#pragma unroll
        for (int i = 0; i < SUMS; ++i) sums[i] += scratch[(g * SUMS + i) * GROUP_THREADS + thread];
    }
}

// Writes the thread's sums, the first of which is that of (row, col) of C.
__device__ inline void write_tile(const Acc (&sums)[SUMS], const Epilogue& epilogue, int row,
                                  int col) {
    constexpr int WIDTH = TileB::ADJACENT;
#pragma unroll
    for (int i = 0; i < SUMS; i += WIDTH) {
        Acc some[WIDTH];
#pragma unroll
        for (int j = 0; j < WIDTH; ++j) some[j] = sums[i + j];
        write_sums<WIDTH, VECTOR>(epilogue, row + TileA::row_step(i / THREAD_N),
                                  col + TileB::row_step(i % THREAD_N), some);
    }
}

extern "C" __global__ void __launch_bounds__(THREADS, MIN_BLOCKS)
    matmul_register(const T* a, const T* b, Out* c, const T* bias, const T* saved, Out* z,
                    double alpha, double slope, Acc* partials, unsigned* arrivals, int m, int n,
                    int k, int lda, int ldb, int ldc) {
    take_turn();
    DYNAMIC_SHARED(T, tiles);
    const TilePlace tile = find_tile<BLOCK_M, BLOCK_N>(m, n);
    const int first_row = tile.row * BLOCK_M, first_col = tile.col * BLOCK_N;
    const int slice = own_slice();
    const int begin = slice_begin(slice, k, SLICE_UNIT),
              end = slice_begin(slice + 1, k, SLICE_UNIT);
    const T* from_a = a + (A_ALONG_K ? static_cast<int64>(first_row) * lda + begin
                                     : static_cast<int64>(begin) * lda + first_row);
    const T* from_b = b + (B_ALONG_K ? static_cast<int64>(first_col) * ldb + begin
                                     : static_cast<int64>(begin) * ldb + first_col);
    const Place place = place_of(static_cast<int>(threadIdx.x));
    Acc sums[SUMS];
    multiply_slice(sums, Copies<TileA>(from_a, lda, m - first_row, tiles),
                   Copies<TileB>(from_b, ldb, n - first_col, tiles + TileA::NUMBERS), end - begin,
                   tiles + TileA::at(place.row, place.group * K_STEP),
                   tiles + TileA::NUMBERS + TileB::at(place.col, place.group * K_STEP));
    sum_groups(sums, reinterpret_cast<Acc*>(tiles), place.group);
    if (!sum_slices(sums, partials, arrivals, tile.number, slice, threadIdx.x, GROUP_THREADS))
        return;
    const Epilogue epilogue{c, bias, saved, z, static_cast<Acc>(alpha), static_cast<Acc>(slope),
                            m, n,    ldc};
    if (place.group == 0) write_tile(sums, epilogue, first_row + place.row, first_col + place.col);
}
