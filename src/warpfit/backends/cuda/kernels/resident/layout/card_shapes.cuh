// What a block of one_launch_card.cu is made of: its tile of each layer's weights, its shared
// memory, and the places in memory where blocks leave each other numbers. All of it follows from
// the kernel's settings.
//
// Of hidden layers, clusters partition the units, and the blocks of a cluster, its ranks, the
// inputs. Of the last layer, clusters partition the inputs, each block has the tile of its cluster,
// and all blocks of a cluster keep it alike.
//
// Where no cluster of the hardware is large enough, its ranks are APART: blocks that exchange all
// numbers through memory. Of these as many are resident as there are multiprocessors.
#pragma once

#include "base/block.cuh"
#include "base/choice.cuh"
#include "mma/fragments.cuh"
#include "mma/operand_tile.cuh"
#include "ops/dropout/dropout.cuh"
#include "ptx/barriers.cuh"
#include "ptx/cluster.cuh"
#include "resident/exchange/marked_numbers.cuh"
#include "resident/layout/layer_stack.cuh"
#include "resident/loss/output_losses.cuh"
#include "resident/update/parameters.cuh"
#include "resident/update/split_weights.cuh"

constexpr int RECORDERS = 1;

#include "resident/record/early_stopping.cuh"

using T = DTYPE;

constexpr int THREADS = 32 * WARPS, HIDDEN_LAYERS = LAYERS - 1, MOST_THREADS = 1024;
constexpr bool APART = CLUSTER < RANKS;
// Rows of a batch, for tensor cores: ranks that are apart have fours of them, and wgmma takes 16,
// 32, 64 or 128.
__device__ constexpr int rows_of_batch() {
    int rows = APART ? larger(16, 4 * RANKS) : up(BATCH, 16);
    while (rows < BATCH) rows *= 2;
    return rows;
}
constexpr int ROWS = rows_of_batch(), ROW_TILES = ROWS / 16;
// Layer L's weights lie in memory, and come in pieces, in which they are updated: see
// streamed_weights.cuh.
template <int L>
constexpr bool IS_STREAMED = STREAMED && L < HIDDEN_LAYERS;
constexpr int PIECE_INPUTS = 64, PIECE_UNITS = 128;
static_assert(!STREAMED || (APART && SLOTS == 0 && WARPS == 8), "two warpgroups take a piece");
// Rows of the units of its cluster that a rank finds from what all ranks add up.
constexpr int PIECE_ROWS = ROWS / RANKS;
static_assert(HIDDEN_LAYERS > 0 && ROWS % RANKS == 0, "each rank has rows of hidden units");
constexpr int X_WIDTH = up(WIDTHS[0], 16), X_STRIDE = X_WIDTH + 8;
constexpr int OUT_WIDTH = up(OUTPUTS, 16);
constexpr int TARGET_WORDS = LOSS::HAS_LABELS ? 1 : OUTPUTS;

// Numbers of blocks and threads, whose bounds the compiler is told: it divides them without signs
// then, and leaves out conditions. Otherwise it spills up to 80 registers of a thread.
__device__ inline int this_block() {
    __builtin_assume(blockIdx.x < CLUSTERS * RANKS);
    return static_cast<int>(blockIdx.x);
}
__device__ inline int own_cluster() { return this_block() / RANKS; }
__device__ inline int rank_here() { return this_block() % RANKS; }

// Where registers hold weights, none keeps what follows from the thread's number from one step to
// the next: that is found anew.
__device__ inline int this_thread() {
    if constexpr (APART) return static_cast<int>(unforeseen(threadIdx.x) % MOST_THREADS);
    know_threads<THREADS>();
    return static_cast<int>(threadIdx.x);
}

// What each has of something that is partitioned in tiles of 16, or, where wgmma multiplies, 64.
__device__ constexpr int share(int size, int sharers, int tile = APART ? 64 : 16) {
    return up((size + sharers - 1) / sharers, tile);
}

constexpr int UNIT_TILE = STREAMED ? PIECE_UNITS : APART ? 64 : 16;

// HEIGHT rows of WIDTH numbers in shared memory. Where ldmatrix reads them, rows lie 8 times an odd
// number apart, so that it has no conflicts. In panels they lie as wgmma takes them: 64 numbers of
// all rows, of which chunks of 8 change places by exclusive or with the row.
template <int HEIGHT, int WIDTH, bool IN_PANELS>
struct alignas(IN_PANELS ? ATOM_BYTES : 16) Matrix {
    static constexpr int PANEL = LINE_BYTES / sizeof(T), STRIDE = WIDTH + 8;
    T numbers[IN_PANELS ? HEIGHT * up(WIDTH, PANEL) : HEIGHT * STRIDE];

    __device__ T* at(int row, int column) {
        if constexpr (IN_PANELS) {
            const int chunk = column % PANEL / 8 ^ row % 8;
            return numbers + (column / PANEL * HEIGHT + row) * PANEL + chunk * 8 + column % 8;
        } else {
            return numbers + row * STRIDE + column;
        }
    }
};

// Layer L's weights of a block: INPUTS by UNITS, of which those beyond the layer's are 0.
template <int L>
struct WeightTile {
    static constexpr bool IS_LAST = L + 1 == LAYERS;
    static constexpr bool IN_PANELS = APART && !IS_LAST;
    static constexpr int INPUTS = IS_LAST               ? share(WIDTHS[L], CLUSTERS, UNIT_TILE)
                                  : L == 0 && !STREAMED ? share(WIDTHS[L], RANKS, 16)
                                                        : share(WIDTHS[L], RANKS);
    static constexpr int UNITS = IS_LAST ? OUT_WIDTH : share(WIDTHS[L + 1], CLUSTERS, UNIT_TILE);
    static constexpr int FRAGMENTS = INPUTS / 16 * (UNITS / 8);
    // Units that go through memory: all, and some zeros.
    static constexpr int SENT_UNITS = IS_LAST ? up(OUTPUTS, 4) : up(WIDTHS[L + 1], 16);
    // Numbers of hidden units that a rank finds, and of them a thread.
    static constexpr int PIECE = PIECE_ROWS * UNITS, TURNS = (PIECE + THREADS - 1) / THREADS;

    __device__ static int first_input() { return (IS_LAST ? own_cluster() : rank_here()) * INPUTS; }
    __device__ static int first_unit() { return IS_LAST ? 0 : own_cluster() * UNITS; }
};

// The widest of the hidden layers' tiles, along units.
template <int L = 0>
__device__ constexpr int widest() {
    if constexpr (L + 1 == LAYERS) {
        return 0;
    } else {
        return larger(WeightTile<L>::UNITS, widest<L + 1>());
    }
}
constexpr int MOST_UNITS = widest();

template <int COUNT>
struct Slots {
    float4 quads[COUNT][32];
};
template <>
struct Slots<0> {};

// Beside the rounded weights of each fragment what a lane has of their low halves, and of their
// optimizer state.
template <int L>
struct alignas(16) Numbers : Slots<WeightTile<L>::FRAGMENTS * SLOTS> {
    uint2 low_halves[WeightTile<L>::FRAGMENTS][32];
};
struct Nothing {};

template <int L, bool ARE_NEAR = !FAR_LAYERS[L] && !HELD_LAYERS[L] && !IS_STREAMED<L>>
struct NearNumbers : Numbers<L> {};
template <int L>
struct NearNumbers<L, false> {};

// What products of layer L take.
template <int L, bool ARE_STREAMED>
struct RoundedWeights {
    using Own = WeightTile<L>;
    Matrix<Own::INPUTS, Own::UNITS, Own::IN_PANELS> weights;
};
template <int L>
struct RoundedWeights<L, true> {};

template <int L>
struct LayerPart : RoundedWeights<L, IS_STREAMED<L>> {
    using Own = WeightTile<L>;
    // Of x there are two batches, if there is room: the next one comes meanwhile.
    static constexpr int BATCHES = L == 0 && !APART ? 2 : 1;
    Matrix<ROWS, Own::INPUTS, Own::IN_PANELS> inputs[BATCHES];
};

// Pieces of streamed weights: 64 inputs by 128 units, rounded, or their low halves.
struct Piece {
    static constexpr int BYTES = 2 * PIECE_INPUTS * PIECE_UNITS, COUNT = 6;
    unsigned char bytes[BYTES];
};
template <bool ARE_THERE>
struct Pieces {
    Piece ring[Piece::COUNT];

    __device__ Piece* pieces() { return ring; }
};
template <>
struct Pieces<false> {
    __device__ Piece* pieces() { return nullptr; }
};

// What a block has else of layer L.
template <int L>
struct alignas(16) LayerNumbers : NearNumbers<L> {
    float biases[1 + SLOTS][WeightTile<L>::UNITS];  // and their optimizer state
};

// What ranks send each other. Numbers of layers whose parity is the same take the same place: see
// the exchange.
using RowsOfUnits = Matrix<ROWS, MOST_UNITS, APART>;
template <bool ARE_APART>
struct Received {
    float sums[2][ROWS * MOST_UNITS];  // (RANKS, PIECE_ROWS, UNITS): what ranks add up
    RowsOfUnits of_units[2], of_activation;

    __device__ float* parts(int parity) { return sums[parity]; }
    // Of the units of this cluster, before their activation.
    __device__ RowsOfUnits& gradients(int parity) { return of_units[parity]; }
    // Of the last hidden layer's activation.
    __device__ RowsOfUnits& derivatives() { return of_activation; }
};
// Here the last hidden layer's gradients take the place of the derivatives.
template <>
struct Received<true> {
    RowsOfUnits of_units;

    __device__ float* parts(int) { return nullptr; }
    __device__ RowsOfUnits& gradients(int) { return of_units; }
    __device__ RowsOfUnits& derivatives() { return of_units; }
};

struct CardBlock : Received<APART>, Pieces<STREAMED> {
    Stack<LayerPart> parts_of_layers;
    Stack<LayerNumbers> numbers_of_layers;
    Matrix<ROWS, OUT_WIDTH, false> output_gradients;
    float outputs[ROWS][OUT_WIDTH];
    RowLoss losses[ROWS];
    float targets[2][ROWS][TARGET_WORDS];
    Barrier parts_full[2], gradients_full[2], last_full;
};
struct alignas(APART ? ATOM_BYTES : 16) CardShared : CardBlock, part_if<STOPS, StoppingState> {};
static_assert(sizeof(CardShared) == SHARED_BYTES, "the launcher asks for as much");

template <int L>
__device__ inline LayerPart<L>& part_of(CardShared& shared) {
    return layer_of<L>(shared.parts_of_layers);
}
template <int L>
__device__ inline auto& biases_of(CardShared& shared) {
    return layer_of<L>(shared.numbers_of_layers).biases;
}

// Words of memory in which blocks leave each other numbers of one step, layer by layer: units
// (ROWS, SENT_UNITS) of each hidden layer but the last; parts of the outputs (CLUSTERS, ROWS,
// SENT_UNITS); and parts of the gradients of each hidden layer's units but the last's (CLUSTERS,
// ROWS, SENT_UNITS). Ranks that are apart leave there units of the last hidden layer, too, the
// gradients of units, and parts of the sums of units (CLUSTERS, RANKS, RANKS, PIECE).
template <int L>
struct Places {
    static constexpr int SENT = ROWS * WeightTile<L>::SENT_UNITS;
    static constexpr bool IS_INNER = L + 1 < HIDDEN_LAYERS, IS_HIDDEN = L < HIDDEN_LAYERS;
    static constexpr int UNITS = Places<L - 1>::END,
                         SUMS = UNITS + (IS_INNER || (APART && IS_HIDDEN) ? SENT : 0),
                         GRADIENTS = SUMS + (L == HIDDEN_LAYERS - 1 ? 0 : CLUSTERS * SENT),
                         PARTS = GRADIENTS + (APART && IS_INNER ? SENT : 0);
    static constexpr int END =
        PARTS + (APART && IS_HIDDEN ? CLUSTERS * RANKS * RANKS * WeightTile<L>::PIECE : 0);
};
template <>
struct Places<-1> {
    static constexpr int END = 0, SUMS = 0, SENT = 0;
};
constexpr int EXCHANGED_WORDS = Places<LAYERS - 1>::END;
static_assert(2 * 4 * EXCHANGED_WORDS == EXCHANGE_BYTES, "the launcher gives as much");

template <int L = LAYERS>
__device__ constexpr int far_quads_before() {
    if constexpr (L == 0) {
        return 0;
    } else {
        using Own = WeightTile<L - 1>;
        return far_quads_before<L - 1>() + (IS_STREAMED<L - 1> ? Own::INPUTS * Own::UNITS * 4
                                            : FAR_LAYERS[L - 1]
                                                ? static_cast<int>(sizeof(Numbers<L - 1>))
                                                : 0) /
                                               static_cast<int>(sizeof(float4));
    }
}

// What does not change in a run.
struct CardRun {
    const T *batches, *validation_batches;
    const float *targets, *validation_targets;
    double* record;
    float scale, unscale;
    LossSettings loss;
    RuleSettings rule;
    unsigned* words;  // (2, EXCHANGED_WORDS): used in turns
    float4* far;      // of this block
    const Dropout* dropouts;
    uint32 first_step, key[2];
};

// Which use of places in memory it is: even ones and odd ones have places of their own.
struct Use {
    int number;

    // How often these have been used before.
    __device__ int turn() const { return number / 2; }
    __device__ int slot() const { return number % 2; }
};

// Where a block stands. Forward, places are used in each pass, and back, in each step.
struct Now {
    const Passes& pass;
    int step, count;  // of rows
    StepSettings settings;

    __device__ Use forward() const { return {pass.index()}; }
    __device__ Use back() const { return {step}; }
};

__device__ inline unsigned* words_of(const CardRun& run, const Use& use) {
    return run.words + use.slot() * EXCHANGED_WORDS;
}

template <int L>
__device__ inline Numbers<L>& numbers_of(CardShared& shared, const CardRun& run) {
    if constexpr (FAR_LAYERS[L]) {
        return *reinterpret_cast<Numbers<L>*>(run.far + far_quads_before<L>());
    } else {
        return layer_of<L>(shared.numbers_of_layers);
    }
}
