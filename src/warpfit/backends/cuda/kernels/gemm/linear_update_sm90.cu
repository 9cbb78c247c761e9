// Computes:  for each of up to 5 linear layers w ← the optimizer's step with the gradient scale ·
//            xᵀ @ dz, and b ← that with scale · column sums of dz; then the 16-bit copies of both.
//            No gradient goes to memory.
// Layout:    row-major; x (rows, inputs) and dz (rows, outputs) of DTYPE, w, its slots (inputs,
//            outputs) and b, its slots (outputs) float32; copies as they are, of DTYPE. Tensor maps
//            tell of x and dz (boxes of 64 rows and 64 columns), w and its slots (16 rows and 32),
//            swizzled by 128 bytes; thin layers are read by their addresses.
// Launch:    grid: at most as many blocks as run at once; block: a warpgroup that loads, and
//            CONSUMERS that multiply tiles of w, 64 rows by BLOCK_N; if SHARES_TILES one below the
//            other, else each its own, so that some have work while others wait for memory; shared
//            bytes: STAGES stages a ring, STRIPS strips a warp, barriers (joined_updates.py).
//            Defines: these, DTYPE, RULE (a Step of ops/optim/update_rules.cuh) and its SLOTS.
// Numerics:  float32 sums, w's in the order of rows, b's of tiles over every eighth row first; the
//   update in float32, its roots and quotients within a few units of the last place.
// Cost:      2 rows inputs outputs FLOP; reads and writes of each weight 10 bytes, and 8 for each
//   slot.
// Reference: linear_backward of backends/numpy, then the rule of backends/update_rules.py.
#define SHARED_ALIGNMENT 1024
#define CLUSTER 1
#define NEAR_ROOTS

#include "base/vec.cuh"
#include "gemm/strips.cuh"
#include "mma/fragments.cuh"
#include "mma/operand_tile.cuh"
#include "ops/optim/update_rules.cuh"
#include "ptx/barriers.cuh"

using T = DTYPE;

constexpr int MAX_LAYERS = 5;
constexpr int WARPGROUP = 128;
constexpr int THREADS = WARPGROUP * (1 + CONSUMERS);
constexpr int CONSUMER_THREADS = WARPGROUP * CONSUMERS;
constexpr int BLOCK_M = SHARES_TILES ? 64 * CONSUMERS : 64;
constexpr int PIECE_THREADS = SHARES_TILES ? CONSUMER_THREADS : WARPGROUP;
constexpr int BLOCK_K = LINE_BYTES / sizeof(T);
constexpr int LOADER_REGISTERS = 40, CONSUMER_REGISTERS = 232;
constexpr int SLOT_PLACES = SLOTS > 0 ? SLOTS : 1;
constexpr int PARTS = BLOCK_N / STRIP_COLS;
// Rings of stages: one for each that takes pieces of its own, so that none waits for a stage that
//   the other is to use.
constexpr int RINGS = SHARES_TILES ? 1 : CONSUMERS;
constexpr int SUMMED_COLS = 32;  // by a warp
// Stages whose products may be under way when the next one's begin. Those of small tiles take less
//   time than copies, for which their stage is free at once.
constexpr int IN_FLIGHT = SHARES_TILES;
static_assert(BLOCK_N <= PIECE_THREADS / 32 * SUMMED_COLS,
              "the warps of a piece add up all columns");
static_assert(CONSUMERS <= 2, "all threads find their registers");

using TileX = OperandTile<T, true, BLOCK_M>;
using TileDz = OperandTile<T, true, BLOCK_N>;
constexpr int STAGE_BYTES = TileX::BYTES + TileDz::BYTES;

// What an update changes: float32 numbers, their optimizer state, and their copies.
struct Masters {
    float* values;
    T* copies;
    float* slots[2];
};

struct alignas(64) UpdatedLayer {
    TensorMap x_map, dz_map, w_maps[3];  // of w and its slots
    Masters w, b;                        // b.values may be null
    const T *x, *dz;
    int inputs, outputs, rows;
    int dz_stride;    // of dz's rows, in numbers
    int first_piece;  // of all layers' pieces
    int is_thin;      // whether pieces are THIN_ROWS whole rows of w, read without tensor copies
};

struct UpdateList {
    int num_layers, num_pieces;
    UpdatedLayer layers[MAX_LAYERS];
};

static_assert(sizeof(UpdatedLayer) == 768, "joined_updates.py packs this struct");

constexpr int THIN_ROWS = 2;

using Strips = StripRing<STRIPS, 1 + SLOTS>;

struct UpdateShared {
    unsigned char stages[RINGS][STAGES][STAGE_BYTES];
    unsigned char strips[4 * CONSUMERS][STRIPS][1 + SLOTS][STRIP_BYTES];
    Barrier loaded[4 * CONSUMERS][STRIPS];
    Barrier full[RINGS][STAGES], empty[RINGS][STAGES];
};

// This thread's number among those that have a piece.
__device__ inline int own_thread() {
    return (static_cast<int>(threadIdx.x) - WARPGROUP) % PIECE_THREADS;
}

// Which tile of which layer a piece is.
struct Piece {
    int layer, row, col;  // row and column: the first ones, of w
    int num_blocks;       // of rows of x and dz; none of a thin layer
    int num_parts;        // strips side by side; none of a thin layer
};

__device__ inline Piece piece_of(const UpdateList& list, int idx) {
    int number = list.num_layers - 1;
    while (list.layers[number].first_piece > idx) --number;
    const UpdatedLayer& layer = list.layers[number];
    const int own = idx - layer.first_piece;
    if (layer.is_thin) return {number, own * THIN_ROWS, 0, 0, 0};
    const int num_cols = (layer.outputs + BLOCK_N - 1) / BLOCK_N, col = own % num_cols * BLOCK_N;
    return {number, own / num_cols * BLOCK_M, col, (layer.rows + BLOCK_K - 1) / BLOCK_K,
            min(PARTS, (layer.outputs - col + STRIP_COLS - 1) / STRIP_COLS)};
}

// -- load -----------------------------------------------------------------------------------------

__device__ inline void load_piece(UpdateShared& shared, int ring, Cursor<STAGES>& cursor,
                                  const UpdatedLayer& layer, const Piece& piece) {
    for (int block = 0; block < piece.num_blocks; ++block) {
        unsigned char* stage = shared.stages[ring][cursor.slot];
        Barrier& full = shared.full[ring][cursor.slot];
        wait(shared.empty[ring][cursor.slot], cursor.round + 1);
        mbarrier_expect(&full, STAGE_BYTES);
        TileX::for_each_box<1>(0, piece.row, block * BLOCK_K, [&](int byte, int row, int col) {
            copy_tensor(stage + byte, &layer.x_map, row, col, &full);
        });
        TileDz::for_each_box<1>(0, piece.col, block * BLOCK_K, [&](int byte, int row, int col) {
            copy_tensor(stage + TileX::BYTES + byte, &layer.dz_map, row, col, &full);
        });
        cursor.advance<1>();
    }
}

// One thread: the stages of all of this block's pieces, each as soon as all that read it before
//   have left it.
__device__ inline void load_pieces(UpdateShared& shared, const UpdateList& list) {
    Cursor<STAGES> cursors[RINGS];
    int turn = 0;
    for (int idx = blockIdx.x; idx < list.num_pieces; idx += gridDim.x) {
        const Piece piece = piece_of(list, idx);
#pragma unroll
        for (int ring = 0; ring < RINGS; ++ring) {
            if (turn == ring)
                load_piece(shared, ring, cursors[ring], list.layers[piece.layer], piece);
        }
        turn = (turn + 1) % RINGS;
    }
}

// -- multiply -------------------------------------------------------------------------------------

using Sums = float[BLOCK_N / 2];

// The sums of dz's columns, 32 of a warp: a lane has those of 8 columns over every eighth row.
struct ColumnSums {
    static constexpr int WIDTH = Vec<T>::SIZE;
    float sums[WIDTH] = {};

    // Lanes that read at once are as far apart in rows as lets them find different banks.
    __device__ void add(const unsigned char* stage) {
        const int lane = threadIdx.x % 32, vector = own_thread() / 32 * 4 + lane % 4,
                  line = lane / 8 + lane / 4 % 2 * 4;
        const unsigned char* from = stage + TileX::BYTES + vector / 8 * TileDz::PANEL_BYTES +
                                    line * LINE_BYTES + (vector % 8 ^ line) * 16;
#pragma unroll
        for (int i = 0; i < BLOCK_K / 8; ++i) {
            const auto numbers = load_vec(reinterpret_cast<const T*>(from + i * ATOM_BYTES));
#pragma unroll
            for (int j = 0; j < WIDTH; ++j) sums[j] += load(numbers.element[j]);
        }
    }

    // The sum of column own_thread() of the tile.
    __device__ float finish() {
        const int lane = threadIdx.x % 32;
        float own = 0;
#pragma unroll
        for (int j = 0; j < WIDTH; ++j) {
#pragma unroll
            for (int step = 4; step < 32; step *= 2)
                sums[j] += __shfl_xor_sync(0xffffffffu, sums[j], step);
            const float of_lane = __shfl_sync(0xffffffffu, sums[j], lane / 8);
            if (j == lane % 8) own = of_lane;
        }
        return own;
    }
};

// -- update ---------------------------------------------------------------------------------------

using Rule = RULE<float, SLOTS>;

// One number, with its optimizer state, and its copy.
__device__ inline float updated(const Rule& rule, float value, float gradient,
                                float (&slots)[SLOT_PLACES]) {
    rule.apply(value, gradient, slots);
    return value;
}

__device__ inline void update_at(const Rule& rule, const Masters& masters, int64 at,
                                 float gradient) {
    float slots[SLOT_PLACES];
#pragma unroll
    for (int s = 0; s < SLOTS; ++s) slots[s] = masters.slots[s][at];
    const float value = updated(rule, masters.values[at], gradient, slots);
#pragma unroll
    for (int s = 0; s < SLOTS; ++s) masters.slots[s][at] = slots[s];
    masters.values[at] = value;
    masters.copies[at] = store<T>(value);
}

// The strips of a warp's tiles, in the order in which they are updated.
struct StripWalk {
    const UpdateList& list;
    int idx, step;  // of the warpgroup's pieces
    Piece piece;
    int part;

    __device__ StripWalk(const UpdateList& pieces, int first, int by)
        : list(pieces), idx(first - by), step(by) {
        next_piece();
    }

    __device__ void next_piece() {
        do {
            idx += step;
            if (idx < list.num_pieces) piece = piece_of(list, idx);
        } while (idx < list.num_pieces && piece.num_parts == 0);
        part = 0;
    }

    // One lane: the next strip begins to come, if there is one; of its tile this warp's, from row
    //   `own_first` on.
    __device__ void load(Strips& strips, int own_first) {
        if (idx >= list.num_pieces) return;
        strips.load(list.layers[piece.layer].w_maps, piece.row + own_first,
                    piece.col + part * STRIP_COLS);
        if (++part == piece.num_parts) next_piece();
    }
};

constexpr int STRIP_TILES = STRIP_COLS / 8;

// This lane's pairs in one of its two rows of a strip, by matrix and tile of 8 columns.
using RowPairs = float2[1 + SLOTS][STRIP_TILES];

// A lane's row of the strip in use, with its sums, of which those of the next tile of 8 columns
// come 4 later. All of it is read before any is written, so that shared memory is waited for once.
__device__ inline void update_row(const Strips& strips, int half, const Rule& rule,
                                  const float* sums, float scale, RowPairs& pairs) {
#pragma unroll
    for (int i = 0; i < 1 + SLOTS; ++i) {
#pragma unroll
        for (int tile = 0; tile < STRIP_TILES; ++tile) pairs[i][tile] = strips.pair(i, tile, half);
    }
#pragma unroll
    for (int tile = 0; tile < STRIP_TILES; ++tile) {
        float first[SLOT_PLACES], second[SLOT_PLACES];
#pragma unroll
        for (int s = 0; s < SLOTS; ++s)
            first[s] = pairs[1 + s][tile].x, second[s] = pairs[1 + s][tile].y;
        float2& values = pairs[0][tile];
        values = {updated(rule, values.x, scale * sums[4 * tile], first),
                  updated(rule, values.y, scale * sums[4 * tile + 1], second)};
#pragma unroll
        for (int s = 0; s < SLOTS; ++s) pairs[1 + s][tile] = {first[s], second[s]};
    }
#pragma unroll
    for (int i = 0; i < 1 + SLOTS; ++i) {
#pragma unroll
        for (int tile = 0; tile < STRIP_TILES; ++tile) strips.pair(i, tile, half) = pairs[i][tile];
    }
}

// The copies of four lanes' row of a strip, whose first number is w's at (row, col): 16 bytes each.
__device__ inline void store_copies(const float2 (&values)[STRIP_TILES], const UpdatedLayer& layer,
                                    int row, int col) {
    static_assert(STRIP_TILES == 4, "four lanes have a row");
    unsigned words[4];
#pragma unroll
    for (int tile = 0; tile < 4; ++tile) words[tile] = packed<T>(values[tile].x, values[tile].y);
    transpose_quad(words);
    const int own_col = col + threadIdx.x % 4 * 8;
    if (row >= layer.inputs || own_col >= layer.outputs) return;
    store_16_bytes(layer.w.copies + static_cast<int64>(row) * layer.outputs + own_col,
                   uint4{words[0], words[1], words[2], words[3]});
}

// The strip in use, whose first number is w's at (row, col), and its copies.
__device__ inline void update_strip(Strips& strips, const UpdatedLayer& layer, int row, int col,
                                    const Rule& rule, const float* sums, float scale) {
    strips.begin();
#pragma unroll
    for (int half = 0; half < 2; ++half) {
        RowPairs pairs;
        update_row(strips, half, rule, sums + 2 * half, scale, pairs);
        store_copies(pairs[0], layer, row + threadIdx.x % 32 / 4 + 8 * half, col);
    }
    strips.store(layer.w_maps, row, col);
}

// A tile of w; of the first rows b is updated, too.
__device__ inline void update_tile(UpdateShared& shared, int ring, Cursor<STAGES>& cursor,
                                   Strips& strips, StripWalk& coming, const UpdatedLayer& layer,
                                   const Piece& piece, const Rule& rule, float scale) {
    const int own = own_thread(), own_rows = own / WARPGROUP * 64, own_first = own / 32 * 16;
    const bool sums_columns = piece.row == 0 && layer.b.values && own < BLOCK_N;
    Sums sums = {};
    ColumnSums of_columns;
    int before = 0;
    for (int block = 0; block < piece.num_blocks; ++block) {
        const unsigned char* stage = shared.stages[ring][cursor.slot];
        wait(shared.full[ring][cursor.slot], cursor.round);
        multiply_tiles<TileX, TileDz>(sums, stage, own_rows, block > 0);
        if (sums_columns) of_columns.add(stage);
        wgmma_wait<IN_FLIGHT>();
        if (block >= IN_FLIGHT) arrive_warp(shared.empty[ring][IN_FLIGHT ? before : cursor.slot]);
        before = cursor.slot;
        cursor.advance<1>();
    }
    if (IN_FLIGHT > 0) {
        wgmma_wait<0>();
        arrive_warp(shared.empty[ring][before]);
    }
#pragma unroll
    for (int part = 0; part < PARTS; ++part) {
        if (part >= piece.num_parts) break;
        const int row = piece.row + own_first, col = piece.col + part * STRIP_COLS;
        update_strip(strips, layer, row, col, rule, sums + part * STRIP_COLS / 2, scale);
        if (threadIdx.x % 32 == 0) coming.load(strips, own_first);
    }
    if (!sums_columns) return;
    const int col = piece.col + own;
    const float of_column = of_columns.finish();
    if (col < layer.outputs) update_at(rule, layer.b, col, scale * of_column);
}

// Whole rows of w, of a layer with few outputs or whose arrays begin anywhere, and below the first
// ones b, as weights of an input 1. Lanes side by side share a sum, as many as there are threads
// for.
__device__ inline void update_thin(const UpdatedLayer& layer, const Piece& piece, const Rule& rule,
                                   float scale) {
    constexpr int AT_ONCE = 16;  // as each is waited for
    const int inputs = layer.inputs, outputs = layer.outputs, rows = layer.rows;
    const int64 stride = layer.dz_stride;
    const T *x = layer.x + piece.row, *dz = layer.dz;
    const Masters w = layer.w, b = layer.b;
    const int num_weights = min(THIN_ROWS, inputs - piece.row) * outputs;
    const int num_biases = piece.row == 0 && b.values ? outputs : 0;
    const int count = num_weights + num_biases;
    int lanes = 1;
    while (2 * lanes * count <= PIECE_THREADS && lanes < 32) lanes *= 2;
    const int own = own_thread() / lanes, lane = own_thread() % lanes;
    for (int first = 0; first < count; first += PIECE_THREADS / lanes) {
        const int i = min(first + own, count - 1);
        const bool is_bias = i >= num_weights;
        const T *own_x = x + (is_bias ? 0 : i / outputs), *own_dz = dz + i % outputs;
        float sum = 0;
        for (int above = lane; above < rows; above += AT_ONCE * lanes) {
            T of_x[AT_ONCE], of_dz[AT_ONCE];
#pragma unroll
            for (int j = 0; j < AT_ONCE; ++j) {
                const int row = above + j * lanes;
                of_x[j] = row < rows ? own_x[static_cast<int64>(row) * inputs] : T{};
                of_dz[j] = row < rows ? own_dz[row * stride] : T{};
            }
#pragma unroll
            for (int j = 0; j < AT_ONCE; ++j) {
                sum += (is_bias ? 1.0f : load(of_x[j])) * load(of_dz[j]);
            }
        }
        for (int step = 1; step < lanes; step *= 2) sum += __shfl_xor_sync(0xffffffffu, sum, step);
        if (lane > 0 || first + own >= count) continue;
        if (is_bias) {
            update_at(rule, b, i - num_weights, scale * sum);
        } else {
            update_at(rule, w, static_cast<int64>(piece.row) * outputs + i, scale * sum);
        }
    }
}

// -- the whole ------------------------------------------------------------------------------------

extern "C" __global__ void __launch_bounds__(THREADS, 1)
    linear_update_sm90(const __grid_constant__ UpdateList list, double scale, Scalar first,
                       Scalar second, Scalar third, Scalar fourth, Scalar fifth, Scalar sixth) {
    DYNAMIC_SHARED(UpdateShared, shared);
    if (threadIdx.x == 0) {
        for (int ring = 0; ring < RINGS; ++ring) {
            for (int i = 0; i < STAGES; ++i) {
                mbarrier_init(&shared->full[ring][i], 1);
                mbarrier_init(&shared->empty[ring][i], OF_WARP * (PIECE_THREADS / 32));
            }
        }
        for (auto& of_warp : shared->loaded) {
            for (Barrier& loaded : of_warp) mbarrier_init(&loaded, 1);
        }
        fence_mbarrier_init();
    }
    __syncthreads();
    take_turn();

    if (threadIdx.x < WARPGROUP) {
        leave_registers<LOADER_REGISTERS>();
        if (threadIdx.x == 0) load_pieces(*shared, list);
    } else {
        take_registers<CONSUMER_REGISTERS>();
        const Rule rule(first, second, third, fourth, fifth, sixth);
        Cursor<STAGES> cursor(0);
        const int ring = (threadIdx.x / WARPGROUP - 1) % RINGS, warp = threadIdx.x / 32 - 4;
        const int own_first = own_thread() / 32 * 16;
        const int first = blockIdx.x + ring * gridDim.x, step = RINGS * gridDim.x;
        Strips strips{shared->strips[warp], shared->loaded[warp]};
        StripWalk coming(list, first, step);
        if (threadIdx.x % 32 == 0) {
            for (int i = 0; i < Strips::AHEAD; ++i) coming.load(strips, own_first);
        }
        for (int idx = first; idx < list.num_pieces; idx += step) {
            const Piece piece = piece_of(list, idx);
            const UpdatedLayer& layer = list.layers[piece.layer];
            if (piece.num_blocks == 0) {
                update_thin(layer, piece, rule, static_cast<float>(scale));
            } else {
                update_tile(*shared, ring, cursor, strips, coming, layer, piece, rule,
                            static_cast<float>(scale));
            }
        }
        if (threadIdx.x % 32 == 0) bulk_wait_read<0>();
    }
}
