// What a block of one_launch.cu is made of: its sizes, its shared memory, and where it stands in
// cluster and run. All of it follows from the kernel's settings. Warps own parts of Shared in turns,
// from one barrier to the next: one_launch.cu says which.
// Users: one_launch.cu.
#pragma once

#include "base/choice.cuh"
#include "ptx/barriers.cuh"
#include "resident/layout/replica.cuh"
#include "resident/loss/output_losses.cuh"
#include "resident/products/held_weights.cuh"
#include "resident/update/forecast.cuh"
#include "resident/update/parameters.cuh"

using T = DTYPE;

// The layer that takes the features, in whole and of this block: blocks partition the units of a
// hidden layer, or the features if there is none.
constexpr int ALL_UNITS = HIDDEN ? HIDDEN : OUTPUTS;
constexpr int UNIT_WIDTH = ((HIDDEN ? (HIDDEN + CLUSTER - 1) / CLUSTER : OUTPUTS) + 15) / 16 * 16;
constexpr int X_WIDTH = ((HIDDEN ? FEATURES : (FEATURES + CLUSTER - 1) / CLUSTER) + 15) / 16 * 16;
constexpr int X_STRIDE = X_WIDTH + 8;
constexpr int PARTS = HIDDEN ? 1 : CLUSTER;
constexpr int UNIT_TILES = UNIT_WIDTH / 16, UNIT_STRIDE = UNIT_WIDTH + 8;
constexpr int OUT_WIDTH = (OUTPUTS + 15) / 16 * 16, OUT_TILES = OUT_WIDTH / 16,
              OUT_STRIDE = OUT_WIDTH + 8;
// OWN_ROWS rows of a batch, one after the other, are those whose loss a block finds: whole tiles,
// or a power of two. The last blocks may have fewer, or none.
constexpr int OWN_TILES = (ROW_TILES + CLUSTER - 1) / CLUSTER;
static_assert(OWN_OF_TILE == 16 || OWN_OF_TILE * CLUSTER >= ROWS, "each row has an owner");
constexpr int OWN_ROWS = OWN_TILES > 1 ? OWN_TILES * 16 : OWN_OF_TILE;
constexpr int GROUPS = ROW_TILES / GROUP;
// Tiles whose gradients the weight warps add up before they add them to the weights: those whose
// gradients are there.
constexpr int BACK_GROUP = ADAPTIVE || (AHEAD && ROW_TILES <= 4) ? ROW_TILES : GROUP;
// Tiles whose hidden gradients are waited for together: those of a group, or all that the next
// batch's sums ask for.
constexpr int HIDDEN_GROUP = AHEAD || ADAPTIVE ? ROW_TILES : GROUP;
// Tiles whose sums weight warps may have found before row warps take the first, if there are slots;
// and the barriers of those that are there.
constexpr int SUM_PLACES = AHEAD ? 2 * ROW_TILES : ROW_TILES;
constexpr int SUM_BARRIERS = AHEAD ? SUM_PLACES : SUM_SLOTS;
// Tiles of x that a step loads: where none are kept they come again for the backward pass.
constexpr int LOADS = 2 * ROW_TILES - KEPT;
// Steps whose targets are there at once: the loader is ahead by as many tiles as the ring has.
constexpr int TARGET_STEPS = (X_SLOTS + LOADS - 1) / LOADS + (KEPT < ROW_TILES);
constexpr int TARGET_WORDS = LOSS::HAS_LABELS ? 1 : OUTPUTS;
constexpr int WEIGHT_WARPS = WARPS_K * WARPS_U;
constexpr int WARPS = WEIGHT_WARPS + ROW_WARPS + OUTPUT_WARPS + 1;

// With look-ahead row warps read each other's gradients of hidden units, and say when they have.
// Those of one group meet before the next gradients anyway.
constexpr bool ROWS_READ_DH = AHEAD && GROUP < ROW_TILES;
constexpr int DH_READERS = WEIGHT_WARPS + (ROWS_READ_DH ? ROW_TILES : 0);
static_assert(ROW_TILES % GROUP == 0 && X_SLOTS >= GROUP, "whole groups, and room for one");
static_assert(KEPT == 0 || (KEPT == ROW_TILES && X_SLOTS >= KEPT),
              "a batch stays as a whole, or not at all");
static_assert(ROW_WARPS % GROUP == 0, "row warps take a group together");
static_assert(AHEAD || (SUM_SLOTS >= ROW_WARPS && SUM_SLOTS >= GROUP),
              "no warp waits for a round after next");
static_assert(!AHEAD || REPLICAS == 1,
              "what is added to the early product is one cluster's gradient");
static_assert(!AHEAD || (HIDDEN && ROW_WARPS >= ROW_TILES && X_SLOTS >= 2 * ROW_TILES),
              "look-ahead takes a warp for each tile, and room for two batches");
static_assert(!ADAPTIVE || (KEPT == ROW_TILES && REPLICAS == 1 && !AHEAD),
              "an update takes the whole gradient of a batch at once");
// Groups of x that are on their way or in use.
constexpr int GROUPS_AHEAD = X_SLOTS / GROUP + 1;

using Weights = HeldWeights<T, X_WIDTH, UNIT_WIDTH, WARPS_K, WARPS_U>;
using Outputs = float[2 * OUT_TILES][4];  // of 16 rows, as mma holds them

// Without a hidden layer its arrays have room for a vector, which nobody reads; and without a
// cluster what blocks exchange has room for a row.
constexpr int HIDDEN_ROWS = HIDDEN ? ROWS : 1, HIDDEN_WIDTH = HIDDEN ? UNIT_WIDTH : 4;
constexpr int PART_TILES = CLUSTER > 1 ? OWN_TILES : 1, PART_ROWS = CLUSTER > 1 ? OWN_OF_TILE : 1;

struct OutputLayer {
    T half[2][HIDDEN_WIDTH]
          [OUT_STRIDE];  // weights as products take them, of this step and of the next
    float w[HIDDEN_WIDTH][OUT_WIDTH], slots[SLOT_PLACES][SLOTS ? HIDDEN_WIDTH : 1][OUT_WIDTH];
};

struct alignas(16) OneLaunchShared {
    T x[X_SLOTS][16][X_STRIDE];
    float4 sums[SUM_SLOTS][WARPS_K][UNIT_TILES][2]
               [32];  // parts of the product, as a warp's lanes hold them
    T dz[ROWS][OUT_STRIDE];
    T h[HIDDEN_ROWS][UNIT_STRIDE],
        dh[HIDDEN_ROWS][UNIT_STRIDE];  // dh holds the derivatives of the activation before
    OutputLayer outputs;
    float bias[HIDDEN_WIDTH], bias_slots[SLOT_PLACES][HIDDEN_WIDTH];
    float output_bias[OUT_WIDTH], output_bias_slots[SLOT_PLACES][OUT_WIDTH];
    // All blocks' parts of the outputs of this block's rows, what a lane takes of them side by
    // side.
    alignas(16) float parts[PART_TILES][CLUSTER][PART_ROWS][4][2 * OUT_TILES][2];
    RowLoss losses[2][ROWS];  // of this step, and of the one before
    float targets[TARGET_STEPS][OWN_ROWS][TARGET_WORDS];
    Barrier x_full[GROUPS_AHEAD], x_empty[X_SLOTS], sums_full[SUM_BARRIERS], sums_empty[SUM_SLOTS];
    Barrier parts_full[OWN_TILES], dz_full[GROUPS], dh_full[ROW_TILES / HIDDEN_GROUP], dh_empty;
    Barrier outputs_ready, biases_ready, losses_full[2];
};

// What follows it where it is there: the optimizer state of tiles of weights, of AdaptiveWeights.
struct NearTiles {
    float4 quads[UNIT_TILES][NEAR_TILES > 0 ? NEAR_TILES : 1][2 * SLOT_PLACES][32];
};

struct alignas(16) OneLaunchRest : part_if<(NEAR_TILES > 0), NearTiles> {};

struct OneLaunchWhole : OneLaunchShared, OneLaunchRest {};
static_assert(sizeof(OneLaunchWhole) == SHARED_BYTES, "the launcher asks for as much");

// What a block has of units or features: from where on, and how many.
struct Part {
    int first, count;

    __device__ static Part of_block(int width, int whole) {
        const int first = own_rank() * width;
        return {first, clamped(whole - first, width)};
    }
};

__device__ inline Part own_units() {
    return HIDDEN ? Part::of_block(UNIT_WIDTH, HIDDEN) : Part{0, OUTPUTS};
}
__device__ inline Part own_features() {
    return HIDDEN ? Part{0, FEATURES} : Part::of_block(X_WIDTH, FEATURES);
}

// Where these parts of the weights that x meets begin in the whole array.
__device__ inline int64 first_weight(const Part& features, const Part& units) {
    return static_cast<int64>(features.first) * ALL_UNITS + units.first;
}

// The first tile of 16 rows that has rows of this block, and whether a tile has.
__device__ inline int first_own_tile() { return own_rank() * OWN_ROWS / 16; }
__device__ inline bool is_own(int r) {
    return r >= first_own_tile() && r < first_own_tile() + OWN_TILES;
}

// A tile's number among all of a run; sums take slot after slot of their ring.
__device__ inline unsigned place_of_sums(int step, int r) {
    return static_cast<unsigned>(step) * ROW_TILES + r;
}

// What a step has of its own for the optimizer: SGD's learning rate, or the settings of another
// rule.
using StepRule = choice<ADAPTIVE, StepSettings, float>;
__device__ inline float rate_of(const StepSettings& rule) { return rule.rate; }
__device__ inline float rate_of(float rate) { return rate; }

// That of each step, read a step ahead: memory is far.
struct StepRules {
    const StepRule* rules;
    StepRule now, next;

    __device__ StepRules(const StepRule* rules, const Step& step)
        : rules(rules), now(rules[0]), next(rules[step.num_steps > 1]) {}

    __device__ void advance(const Step& step) {
        now = next;
        if (step.index + 1 < step.num_steps) next = rules[step.index + 1];
    }
};

struct OneLaunchExchange;  // of replicas.cuh

// A layer in memory: weights, biases, and the optimizer state of each, if there is any.
struct LayerArrays {
    float *w, *b;
    float *w_slots[2], *b_slots[2];
};

// What does not change in a run.
struct OneLaunchRun {
    const StepRule* rules;
    int num_rows, num_epochs;
    float scale, unscale, slope;
    LossSettings loss;
    const RowWords* gram;  // of gram_batches.cu
    const float* gram_scales;
    OneLaunchExchange* exchanges;  // of each rank, where there are replicas
    float gradient_scale, gradient_unscale;
    RuleSettings rule;

    __device__ Step first_step() const { return Step(num_rows, num_epochs); }

    // A parameter takes the sum of its gradient in, with its optimizer state at slot_of(number).
    template <class F>
    __device__ void update(float& weight, F slot_of, float gradient,
                           const StepSettings& now) const {
        update_in_place(weight, slot_of, gradient, gradient_unscale, now, rule);
    }

    // SGD's comes times -rate already if there is no momentum.
    template <class F>
    __device__ void update(float& weight, F slot_of, float gradient, float rate) const {
        if (MOMENTUM) {
            update_in_place(weight, slot_of, gradient, 1, {rate}, rule);
        } else {
            weight = weight * (1 - rate * rule.decay) + gradient;
        }
    }
};
