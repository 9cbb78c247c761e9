// Computes:  for each of up to 5 linear layers w ← the optimizer's step with the gradient scale · xᵀ @ dz, and b ← that
//            with scale · column sums of dz; then the 16-bit copies of both. No gradient goes to memory.
// Layout:    row-major; x (rows, inputs) and dz (rows, outputs) of DTYPE, w, its slots (inputs, outputs) and b, its slots
//            (outputs) float32; copies as they are, of DTYPE. Tensor maps tell of x and dz (boxes of 64 rows and 64
//            columns), w and its slots (16 rows and 32), swizzled by 128 bytes; thin layers are read by their addresses.
// Launch:    grid: at most as many blocks as run at once; block: a warpgroup that loads, and CONSUMERS that multiply tiles of
//            w, 64 rows by BLOCK_N; if SHARES_TILES one below the other, else each its own, so that some have work while
//            others wait for memory; shared bytes: STAGES stages, STRIPS strips a warp, barriers (joined_updates.py).
//            Defines: these, DTYPE, RULE (SgdStep, AdamStep or RmspropStep of include/update_steps.cuh) and its SLOTS,
//            RULE_NUMBERS.
// Numerics:  float32 sums in the order of rows; the update in float32.
// Cost:      2 rows inputs outputs FLOP; reads and writes of each weight 10 bytes, and 8 for each slot.
// Reference: linear_backward, then sgd_update, adam_update or rmsprop_update of backends/numpy.
#define SHARED_ALIGNMENT 1024
#define CLUSTER 1

#include "include/barriers.cuh"
#include "include/fragments.cuh"
#include "include/operand_tile.cuh"
#include "include/strips.cuh"
#include "include/update_steps.cuh"

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
static_assert(BLOCK_N <= PIECE_THREADS, "a thread sums up a column");
static_assert(CONSUMERS <= 2, "all threads find their registers");

using TileX = OperandTile<T, true, BLOCK_M>;
using TileDz = OperandTile<T, true, BLOCK_N>;
constexpr int STAGE_BYTES = TileX::BYTES + TileDz::BYTES;

// What an update changes: float32 numbers, what is remembered of them, and their copies.
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
    int is_thin;      // whether pieces are THIN_ROWS whole rows of w
};

struct UpdateList {
    int num_layers, num_pieces;
    UpdatedLayer layers[MAX_LAYERS];
};

static_assert(sizeof(UpdatedLayer) == 768 && sizeof(UpdateList) == 3904,
              "joined_updates.py packs these structs");

constexpr int THIN_ROWS = 64;

using Strips = StripRing<STRIPS, 1 + SLOTS>;

struct Shared {
    unsigned char stages[STAGES][STAGE_BYTES];
    unsigned char strips[4 * CONSUMERS][STRIPS][1 + SLOTS][STRIP_BYTES];
    Barrier loaded[4 * CONSUMERS][STRIPS];
    Barrier full[STAGES], empty[STAGES];
};

// This thread's number among those that have a piece.
__device__ inline int own_thread() { return (static_cast<int>(threadIdx.x) - WARPGROUP) % PIECE_THREADS; }

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

// -- load -----------------------------------------------------------------------------------------------------------

// One thread: the stages of all of this block's pieces, each as soon as all that read it before have left it.
__device__ inline void load_pieces(Shared& shared, const UpdateList& list) {
    Cursor<STAGES> cursor(0);
    for (int idx = blockIdx.x; idx < list.num_pieces; idx += gridDim.x) {
        const Piece piece = piece_of(list, idx);
        for (int block = 0; block < piece.num_blocks; ++block) {
            unsigned char* stage = shared.stages[cursor.slot];
            Barrier& full = shared.full[cursor.slot];
            wait(shared.empty[cursor.slot], cursor.round + 1);
            mbarrier_expect(&full, STAGE_BYTES);
            TileX::for_each_box<1>(0, piece.row, block * BLOCK_K, [&](int byte, int row, int col) {
                copy_tensor(stage + byte, &list.layers[piece.layer].x_map, row, col, &full);
            });
            TileDz::for_each_box<1>(0, piece.col, block * BLOCK_K, [&](int byte, int row, int col) {
                copy_tensor(stage + TileX::BYTES + byte, &list.layers[piece.layer].dz_map, row, col, &full);
            });
            cursor.advance<1>();
        }
    }
}

// -- multiply -------------------------------------------------------------------------------------------------------

using Sums = float[BLOCK_N / 2];

__device__ inline void multiply_stage(Sums& sums, const unsigned char* stage, int own_rows, bool adds) {
    const unsigned address = shared_address(stage);
    const uint64 x = TileX::descriptor(address, own_rows), dz = TileDz::descriptor(address + TileX::BYTES, 0);
    wgmma_fence();
#pragma unroll
    for (int slice = 0; slice < SLICES; ++slice) {
        SliceProduct<T, true, true>::add_to(sums, x + (slice * TileX::SLICE_STEP >> 4),
                                            dz + (slice * TileDz::SLICE_STEP >> 4), adds || slice > 0);
    }
    wgmma_commit();
}

// The sum of a column of a stage's tile of dz.
__device__ inline float column_sum(const unsigned char* stage, int col) {
    const unsigned char* panel = stage + TileX::BYTES + col / TileDz::LINE * TileDz::PANEL_BYTES;
    const int byte = col % TileDz::LINE * sizeof(T);
    float sum = 0;
#pragma unroll 8
    for (int line = 0; line < BLOCK_K; ++line) {
        sum += load(
            *reinterpret_cast<const T*>(panel + line * LINE_BYTES + (byte / 16 ^ line % 8) * 16 + byte % 16));
    }
    return sum;
}

// -- update ---------------------------------------------------------------------------------------------------------

using Rule = RULE<float>;

// One number, with what is remembered of it, and its copy.
__device__ inline float updated(const Rule& rule, float value, float gradient, float (&slots)[SLOT_PLACES]) {
#if SLOTS == 0
    rule.apply(value, gradient);
#elif SLOTS == 1
    rule.apply(value, gradient, slots[0]);
#else
    rule.apply(value, gradient, slots[0], slots[1]);
#endif
    return value;
}

__device__ inline void update_at(const Rule& rule, const Masters& masters, int64 at, float gradient) {
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

    // One lane: the next strip begins to come, if there is one; of its tile this warp's, from row `own_first` on.
    __device__ void load(Strips& strips, int own_first) {
        if (idx >= list.num_pieces) return;
        strips.load(list.layers[piece.layer].w_maps, piece.row + own_first, piece.col + part * STRIP_COLS);
        if (++part == piece.num_parts) next_piece();
    }
};

// This lane's pairs of a strip, by matrix, row and tile of 8 columns.
using StripPairs = float2[1 + SLOTS][2][STRIP_COLS / 8];

template <class F>
__device__ inline void for_each_pair(F f) {
#pragma unroll
    for (int half = 0; half < 2; ++half) {
#pragma unroll
        for (int tile = 0; tile < STRIP_COLS / 8; ++tile) f(half, tile);
    }
}

__device__ inline void update_pairs(StripPairs& pairs, const Rule& rule, const float* sums, float scale) {
    for_each_pair([&](int half, int tile) {
        const float* own = sums + 4 * tile + 2 * half;
        float first[SLOT_PLACES], second[SLOT_PLACES];
#pragma unroll
        for (int s = 0; s < SLOTS; ++s)
            first[s] = pairs[1 + s][half][tile].x, second[s] = pairs[1 + s][half][tile].y;
        float2& values = pairs[0][half][tile];
        values = {updated(rule, values.x, scale * own[0], first),
                  updated(rule, values.y, scale * own[1], second)};
#pragma unroll
        for (int s = 0; s < SLOTS; ++s) pairs[1 + s][half][tile] = {first[s], second[s]};
    });
}

// The copies of a strip's values, whose first number is w's at (row, col).
__device__ inline void store_copies(const StripPairs& pairs, const UpdatedLayer& layer, int row, int col) {
    const int lane = threadIdx.x % 32, own_col = col + lane % 4 * 8;
#pragma unroll
    for (int half = 0; half < 2; ++half) {
        unsigned words[4];
#pragma unroll
        for (int tile = 0; tile < 4; ++tile)
            words[tile] = packed<T>(pairs[0][half][tile].x, pairs[0][half][tile].y);
        transpose_quad(words);
        const int own_row = row + lane / 4 + 8 * half;
        if (own_row < layer.inputs && own_col < layer.outputs) {
            store_16_bytes(layer.w.copies + static_cast<int64>(own_row) * layer.outputs + own_col,
                           uint4{words[0], words[1], words[2], words[3]});
        }
    }
}

// The strip in use, whose first number is w's at (row, col). All of it is read before any is written, so that nothing
// waits for shared memory twice.
__device__ inline void update_strip(Strips& strips, const UpdatedLayer& layer, int row, int col,
                                    const Rule& rule, const float* sums, float scale) {
    StripPairs pairs;
    strips.begin();
#pragma unroll
    for (int i = 0; i < 1 + SLOTS; ++i)
        for_each_pair([&](int half, int tile) { pairs[i][half][tile] = strips.pair(i, tile, half); });
    update_pairs(pairs, rule, sums, scale);
#pragma unroll
    for (int i = 0; i < 1 + SLOTS; ++i)
        for_each_pair([&](int half, int tile) { strips.pair(i, tile, half) = pairs[i][half][tile]; });
    strips.store(layer.w_maps, row, col);
    store_copies(pairs, layer, row, col);
}

// A tile of w; of the first rows b is updated, too.
__device__ inline void update_tile(Shared& shared, Cursor<STAGES>& cursor, Strips& strips, StripWalk& coming,
                                   const UpdatedLayer& layer, const Piece& piece, const Rule& rule,
                                   float scale) {
    const int own = own_thread(), own_rows = own / WARPGROUP * 64, own_first = own / 32 * 16;
    const bool sums_column = piece.row == 0 && layer.b.values && own < BLOCK_N;
    Sums sums;
    float of_column = 0;
    int before = 0;
    for (int block = 0; block < piece.num_blocks; ++block) {
        const unsigned char* stage = shared.stages[cursor.slot];
        wait(shared.full[cursor.slot], cursor.round);
        multiply_stage(sums, stage, own_rows, block > 0);
        if (sums_column) of_column += column_sum(stage, own);
        wgmma_wait<1>();
        if (block > 0) arrive_warp(shared.empty[before]);
        before = cursor.slot;
        cursor.advance<1>();
    }
    wgmma_wait<0>();
    arrive_warp(shared.empty[before]);
#pragma unroll
    for (int part = 0; part < PARTS; ++part) {
        if (part >= piece.num_parts) break;
        const int row = piece.row + own_first, col = piece.col + part * STRIP_COLS;
        update_strip(strips, layer, row, col, rule, sums + part * STRIP_COLS / 2, scale);
        if (threadIdx.x % 32 == 0) coming.load(strips, own_first);
    }
    const int col = piece.col + own;
    if (sums_column && col < layer.outputs) update_at(rule, layer.b, col, scale * of_column);
}

// Whole rows of w, of a layer with few outputs, and of its first rows b, too: a number a thread.
__device__ inline void update_thin(const UpdatedLayer& layer, const Piece& piece, const Rule& rule,
                                   float scale) {
    const int own = own_thread(), inputs = layer.inputs, outputs = layer.outputs, rows = layer.rows;
    const int64 begin = static_cast<int64>(piece.row) * outputs, stride = layer.dz_stride;
    const T *x = layer.x + piece.row, *dz = layer.dz;
    const Masters w = layer.w, b = layer.b;
    const int num_rows = min(THIN_ROWS, inputs - piece.row);
    for (int i = own; i < num_rows * outputs; i += PIECE_THREADS) {
        const T *own_x = x + i / outputs, *own_dz = dz + i % outputs;
        float sum = 0;
#pragma unroll 8
        for (int row = 0; row < rows; ++row) {
            sum += load(own_x[static_cast<int64>(row) * inputs]) * load(own_dz[row * stride]);
        }
        update_at(rule, w, begin + i, scale * sum);
    }
    if (piece.row != 0 || !b.values || own >= outputs) return;
    float sum = 0;
#pragma unroll 8
    for (int row = 0; row < rows; ++row) sum += load(dz[row * stride + own]);
    update_at(rule, b, own, scale * sum);
}

// -- the whole ------------------------------------------------------------------------------------------------------

extern "C" __global__ void __launch_bounds__(THREADS, 1)
    linear_update_sm90(const __grid_constant__ UpdateList list, double scale, Scalar first, Scalar second,
                       Scalar third, Scalar fourth, Scalar fifth, Scalar sixth) {
    DYNAMIC_SHARED(Shared, shared);
    if (threadIdx.x == 0) {
        for (int i = 0; i < STAGES; ++i) {
            mbarrier_init(&shared->full[i], 1);
            mbarrier_init(&shared->empty[i], OF_WARP * (PIECE_THREADS / 32));
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
#if RULE_NUMBERS == 5
        const Rule rule(first, second, third, fourth, fifth);
#else
        const Rule rule(first, second, third, fourth, fifth, sixth);
#endif
        Cursor<STAGES> cursor(0);
        const int consumer = SHARES_TILES ? 0 : threadIdx.x / WARPGROUP - 1, warp = threadIdx.x / 32 - 4;
        const int own_first = own_thread() / 32 * 16;
        Strips strips{shared->strips[warp], shared->loaded[warp]};
        StripWalk coming(list, blockIdx.x + consumer * gridDim.x, (SHARES_TILES ? 1 : CONSUMERS) * gridDim.x);
        if (threadIdx.x % 32 == 0) {
            for (int i = 0; i < Strips::AHEAD; ++i) coming.load(strips, own_first);
        }
        int turn = 0;
        for (int idx = blockIdx.x; idx < list.num_pieces; idx += gridDim.x) {
            const Piece piece = piece_of(list, idx);
            const bool is_own = turn == consumer;
            turn = SHARES_TILES || turn == CONSUMERS - 1 ? 0 : turn + 1;
            if (!is_own) {
                for (int block = 0; block < piece.num_blocks; ++block) cursor.advance<1>();
            } else if (piece.num_blocks == 0) {
                update_thin(list.layers[piece.layer], piece, rule, static_cast<float>(scale));
            } else {
                update_tile(*shared, cursor, strips, coming, list.layers[piece.layer], piece, rule,
                            static_cast<float>(scale));
            }
        }
        if (threadIdx.x % 32 == 0) bulk_wait_read<0>();
    }
}
