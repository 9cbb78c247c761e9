// What a block of one_launch_card.cu is made of: its tile of each layer's weights, its shared
// memory, and the places in memory where blocks leave each other numbers. All of it follows from
// the kernel's settings.
//
// Of hidden layers, clusters partition the units, and the blocks of a cluster, its ranks, the
// inputs. Of the last layer, clusters partition the inputs, each block has the tile of its cluster,
// and all blocks of a cluster keep it alike.
//
// Users: one_launch_card.cu.
#pragma once

#include "mma/fragments.cuh"
#include "ptx/barriers.cuh"
#include "ptx/cluster.cuh"
#include "resident/exchange/marked_numbers.cuh"
#include "resident/layout/layer_stack.cuh"
#include "resident/loss/output_losses.cuh"
#include "resident/record/steps.cuh"
#include "resident/update/parameters.cuh"

using T = DTYPE;

constexpr int THREADS = 32 * WARPS, HIDDEN_LAYERS = LAYERS - 1;
constexpr int ROWS = up(BATCH, 16), ROW_TILES = ROWS / 16;
// Rows of the units of its cluster that a rank finds from what all ranks add up.
constexpr int PIECE_ROWS = ROWS / CLUSTER;
static_assert(HIDDEN_LAYERS > 0 && ROWS % CLUSTER == 0, "each rank has rows of hidden units");
constexpr int X_WIDTH = up(WIDTHS[0], 16), X_STRIDE = X_WIDTH + 8;
constexpr int OUT_WIDTH = up(OUTPUTS, 16);
constexpr int TARGET_WORDS = LOSS::HAS_LABELS ? 1 : OUTPUTS;

__device__ inline int own_cluster() { return static_cast<int>(blockIdx.x) / CLUSTER; }

// What each has of something that is partitioned in tiles of 16.
__device__ constexpr int share(int size, int sharers) {
    return up((size + sharers - 1) / sharers, 16);
}

// Layer L's weights of a block: INPUTS by UNITS, of which those beyond the layer's are 0.
template <int L>
struct WeightTile {
    static constexpr bool IS_LAST = L + 1 == LAYERS;
    static constexpr int INPUTS = share(WIDTHS[L], IS_LAST ? CLUSTERS : CLUSTER);
    static constexpr int UNITS = IS_LAST ? OUT_WIDTH : share(WIDTHS[L + 1], CLUSTERS);
    // Rows of shared memory 8 times an odd number apart are read without conflicts.
    static constexpr int STRIDE = UNITS + 8, INPUT_STRIDE = INPUTS + 8;
    static constexpr int FRAGMENTS = INPUTS / 16 * (UNITS / 8);
    // Quads of numbers of a lane: of each fragment the weights, and their optimizer state.
    static constexpr int QUADS = FRAGMENTS * (1 + SLOTS);
    // Units that go through memory: all, and some zeros.
    static constexpr int SENT_UNITS = IS_LAST ? up(OUTPUTS, 4) : up(WIDTHS[L + 1], 16);
    // Numbers of hidden units that a rank finds, and of them a thread.
    static constexpr int PIECE = PIECE_ROWS * UNITS, TURNS = (PIECE + THREADS - 1) / THREADS;

    __device__ static int first_input() { return (IS_LAST ? own_cluster() : own_rank()) * INPUTS; }
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
constexpr int MOST_UNITS = widest(), GRADIENT_STRIDE = MOST_UNITS + 8,
              OUTPUT_STRIDE = OUT_WIDTH + 8;

template <int COUNT>
struct Near {
    float4 quads[COUNT][32];
};
template <>
struct Near<0> {};

template <int L>
using NearQuads = Near<FAR_LAYERS[L] ? 0 : WeightTile<L>::QUADS>;

// What a block has of layer L.
template <int L>
struct alignas(16) LayerPart : NearQuads<L> {
    // Of x there are two batches: the next one comes meanwhile.
    static constexpr int BATCHES = L == 0 ? 2 : 1;
    T weights[WeightTile<L>::INPUTS][WeightTile<L>::STRIDE];
    T inputs[BATCHES][ROWS][WeightTile<L>::INPUT_STRIDE];
    float biases[1 + SLOTS][WeightTile<L>::UNITS];  // and their optimizer state
};

// Numbers of layers whose parity is the same take the same place: see the exchange.
struct alignas(16) CardShared {
    Stack<LayerPart> layers;
    float parts[2][ROWS * MOST_UNITS];      // (CLUSTER, PIECE_ROWS, UNITS): what ranks add up
    T gradients[2][ROWS][GRADIENT_STRIDE];  // of the units of this cluster, before their activation
    T derivatives[ROWS][GRADIENT_STRIDE];   // of the last hidden layer's activation
    T output_gradients[ROWS][OUTPUT_STRIDE];
    float outputs[ROWS][OUT_WIDTH];
    RowLoss losses[ROWS];
    float targets[2][ROWS][TARGET_WORDS];
    Barrier parts_full[2], gradients_full[2], last_full;
};
static_assert(sizeof(CardShared) == SHARED_BYTES, "the launcher asks for as much");

template <int L>
__device__ inline LayerPart<L>& part_of(CardShared& shared) {
    return layer_of<L>(shared.layers);
}

// Words of memory in which blocks leave each other numbers of one step, layer by layer: units
// (ROWS, SENT_UNITS) of each hidden layer but the last; parts of the outputs (CLUSTERS, ROWS,
// SENT_UNITS); and parts of the gradients of each hidden layer's units but the last's (CLUSTERS,
// ROWS, SENT_UNITS).
template <int L>
struct Places {
    static constexpr int SENT = ROWS * WeightTile<L>::SENT_UNITS;
    static constexpr bool IS_INNER = L + 1 < HIDDEN_LAYERS;
    static constexpr int UNITS = Places<L - 1>::END, SUMS = UNITS + (IS_INNER ? SENT : 0);
    static constexpr int END = SUMS + (L == HIDDEN_LAYERS - 1 ? 0 : CLUSTERS * SENT);
};
template <>
struct Places<-1> {
    static constexpr int END = 0;
};
constexpr int EXCHANGED_WORDS = Places<LAYERS - 1>::END;
static_assert(2 * 4 * EXCHANGED_WORDS == EXCHANGE_BYTES, "the launcher gives as much");

template <int L = LAYERS>
__device__ constexpr int far_quads_before() {
    if constexpr (L == 0) {
        return 0;
    } else {
        return far_quads_before<L - 1>() + (FAR_LAYERS[L - 1] ? WeightTile<L - 1>::QUADS : 0);
    }
}

// What does not change in a run.
struct CardRun {
    const T* batches;
    const float* targets;
    double* record;
    float scale, unscale;
    LossSettings loss;
    RuleSettings rule;
    unsigned* words;  // (2, EXCHANGED_WORDS): of even steps and odd ones
    float4* far;      // of this block: (quads, 32)
};

// Where a block stands.
struct Now {
    int step, count;  // of rows
    StepSettings settings;

    // How often the places of the step's parity have been used before.
    __device__ int turn() const { return step / 2; }
    __device__ int slot() const { return step % 2; }
};

__device__ inline unsigned* words_of(const CardRun& run, const Now& now) {
    return run.words + now.slot() * EXCHANGED_WORDS;
}

template <int L>
__device__ inline float4* quads_of(CardShared& shared, const CardRun& run) {
    if constexpr (FAR_LAYERS[L]) {
        return run.far + far_quads_before<L>() * 32;
    } else {
        return &part_of<L>(shared).quads[0][0];
    }
}
