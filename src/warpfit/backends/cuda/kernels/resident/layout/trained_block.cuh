// What a block of one_launch.cu is made of: its sizes, its shared memory, and where it stands in
// cluster and run. All of it follows from the kernel's settings. Warps own parts of Shared in
// turns, from one barrier to the next: one_launch.cu says which.
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
constexpr int PARTS = HIDDEN ? FEATURE_PARTS : CLUSTER;
constexpr int X_WIDTH = ((FEATURES + PARTS - 1) / PARTS + 15) / 16 * 16;
// Blocks may divide the features as well: then as many as there are parts of these multiply the
// units of all of them, each by its features. x lies in chunks of 8 features, as wgmma takes it.
constexpr bool DIVIDED = FEATURE_PARTS > 1;
constexpr int X_STRIDE = X_WIDTH + (DIVIDED ? 0 : 8), SLOT_ROWS = DIVIDED ? ROWS : 16;
constexpr int UNIT_TILES = UNIT_WIDTH / 16;
// Hidden units and their gradients: the distance of two rows, and of two chunks of 8 units.
constexpr int UNIT_STRIDE = DIVIDED ? 8 : UNIT_WIDTH + 8, UNIT_CHUNK = DIVIDED ? ROWS * 8 : 8;
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
// Slots of x that a step loads: where none are kept they come again for the backward pass.
// Of blocks that divide the features a load is a piece of a batch: of some tiles of features.
constexpr int PIECE_TILES = 4,
              PIECES = DIVIDED ? (X_WIDTH / 16 + PIECE_TILES - 1) / PIECE_TILES : 1;
constexpr int LOADS = DIVIDED ? PIECES : 2 * ROW_TILES - KEPT, RING = X_SLOTS * PIECES;
// Steps whose targets are there at once: the loader is ahead by as many tiles as the ring has.
constexpr int TARGET_STEPS = (RING + LOADS - 1) / LOADS + (KEPT < ROW_TILES);
constexpr int TARGET_WORDS = LOSS::HAS_LABELS ? 1 : OUTPUTS;
constexpr int WEIGHT_WARPS = WARPS_K * WARPS_U;
constexpr int WARPS = WEIGHT_WARPS + ROW_WARPS + OUTPUT_WARPS + 1;

// With look-ahead row warps read each other's gradients of hidden units, and say when they have.
// Those of one group meet before the next gradients anyway.
constexpr bool ROWS_READ_DH = AHEAD && GROUP < ROW_TILES && !DIVIDED;
constexpr int DH_READERS = WEIGHT_WARPS + (ROWS_READ_DH ? ROW_TILES : 0);
static_assert(ROW_TILES % GROUP == 0 && X_SLOTS >= GROUP, "whole groups, and room for one");
static_assert(KEPT == 0 || (KEPT == ROW_TILES && X_SLOTS * SLOT_ROWS / 16 >= KEPT),
              "a batch stays as a whole, or not at all");
static_assert(ROW_WARPS % GROUP == 0, "row warps take a group together");
static_assert(AHEAD || (SUM_SLOTS >= ROW_WARPS && SUM_SLOTS >= GROUP),
              "no warp waits for a round after next");
static_assert(!AHEAD || REPLICAS == 1,
              "what is added to the early product is one cluster's gradient");
static_assert(!AHEAD ||
                  (HIDDEN && ROW_WARPS >= ROW_TILES && X_SLOTS * SLOT_ROWS / 16 >= 2 * ROW_TILES),
              "look-ahead takes a warp for each tile, and room for two batches");
static_assert(!ADAPTIVE || (KEPT == ROW_TILES && REPLICAS == 1 && !AHEAD),
              "an update takes the whole gradient of a batch at once");
// Groups of x that are on their way or in use.
constexpr int GROUPS_AHEAD = RING / GROUP + 1;

static_assert(!DIVIDED || (AHEAD && GROUP == 1 && BATCH == ROWS && WARPS_K == 1 && WARPS_U == 4 &&
                           UNIT_TILES * FEATURE_PARTS == 4 && SLOTS == 0),
              "a warpgroup's products have 64 units");
static_assert(!DIVIDED || SUM_SLOTS == 2,
              "sums of the next batch come before those of this one have been taken");

using Weights = HeldWeights<T, X_WIDTH, UNIT_WIDTH * FEATURE_PARTS, WARPS_K, WARPS_U>;
using Outputs = float[2 * OUT_TILES][4];  // of 16 rows, as mma holds them

// Without a hidden layer its arrays have room for a vector, which nobody reads; and without a
// cluster what blocks exchange has room for a row.
constexpr int HIDDEN_ROWS = HIDDEN ? ROWS : 1, HIDDEN_WIDTH = HIDDEN ? UNIT_WIDTH : 4;
constexpr int H_ROWS = DIVIDED ? ROWS * UNIT_WIDTH / UNIT_STRIDE : HIDDEN_ROWS;
constexpr int DH_ROWS = DIVIDED ? 1 : HIDDEN_ROWS;
constexpr int PART_TILES = CLUSTER > 1 ? OWN_TILES : 1, PART_ROWS = CLUSTER > 1 ? OWN_OF_TILE : 1;

struct OutputLayer {
    T half[2][HIDDEN_WIDTH]
          [OUT_STRIDE];  // weights as products take them, of this step and of the next
    float w[HIDDEN_WIDTH][OUT_WIDTH], slots[SLOT_PLACES][SLOTS ? HIDDEN_WIDTH : 1][OUT_WIDTH];
};

struct alignas(16) OneLaunchShared {
    T x[X_SLOTS][SLOT_ROWS][X_STRIDE];
    float4 sums[SUM_SLOTS][WARPS_K][UNIT_TILES][2]
               [DIVIDED ? 1 : 32];  // parts of the product, as a warp's lanes hold them
    T dz[ROWS][OUT_STRIDE];
    T h[H_ROWS][UNIT_STRIDE],
        dh[DH_ROWS][UNIT_STRIDE];  // dh holds the derivatives of the activation before
    OutputLayer outputs;
    float bias[HIDDEN_WIDTH], bias_slots[SLOT_PLACES][HIDDEN_WIDTH];
    float output_bias[OUT_WIDTH], output_bias_slots[SLOT_PLACES][OUT_WIDTH];
    // All blocks' parts of the outputs of this block's rows, what a lane takes of them side by
    // side.
    alignas(16) float parts[PART_TILES][CLUSTER][PART_ROWS][4][2 * OUT_TILES][2];
    RowLoss losses[2][ROWS];  // of this step, and of the one before
    float targets[TARGET_STEPS][OWN_ROWS][TARGET_WORDS];
    Barrier x_full[GROUPS_AHEAD], x_empty[RING], sums_full[SUM_BARRIERS], sums_empty[SUM_SLOTS];
    Barrier parts_full[OWN_TILES], dz_full[GROUPS], dh_full[ROW_TILES / HIDDEN_GROUP], dh_empty;
    Barrier outputs_ready, biases_ready, losses_full[2];
};

// What follows it where it is there: the optimizer state of tiles of weights, of AdaptiveWeights.
struct NearTiles {
    float4 quads[UNIT_TILES][NEAR_TILES > 0 ? NEAR_TILES : 1][2 * SLOT_PLACES][32];
};

// Sums of 16 units as 24 bits of each: the upper 16 in chunks of 8 units, the lower 8 of both
// chunks side by side.
struct alignas(16) UnitSums {
    uint16 upper[2][ROWS][8], lower[ROWS][8];
};

// Words of these: of two units of a chunk, and of one unit of both chunks and the next.
__device__ inline unsigned upper_bits(float first, float second) {
    return __byte_perm(__float_as_uint(first), __float_as_uint(second), 0x7632);
}
__device__ inline unsigned lower_bits(float first, float in_second, float next,
                                      float next_in_second) {
    const unsigned of_first =
        __byte_perm(__float_as_uint(first), __float_as_uint(in_second), 0x0051);
    const unsigned of_next =
        __byte_perm(__float_as_uint(next), __float_as_uint(next_in_second), 0x0051);
    return __byte_perm(of_first, of_next, 0x5410);
}

// The sum of unit 0 or 1 of the words, of a chunk. Its lowest byte is as the one above, so that
// what is cut off is 0 in the mean.
__device__ inline float widened(unsigned upper, unsigned lower, int unit, int chunk) {
    const unsigned low = 4 + 2 * unit + chunk;
    return __uint_as_float(
        __byte_perm(upper, lower, (2 * unit + 1) << 12 | 2 * unit << 8 | low << 4 | low));
}

// What blocks that divide the features have for each other.
struct DividedPart {
    UnitSums sums[SUM_SLOTS][FEATURE_PARTS][UNIT_TILES];  // of this block's units, from each
    UnitSums sent[SENT_SLOTS][DIVIDED ? FEATURE_PARTS - 1 : 1][UNIT_TILES];
    T dh[2][FEATURE_PARTS][2 * UNIT_TILES][ROWS][8];  // of all their units, of even and odd steps
    Barrier sums_full[SUM_SLOTS], dh_full[2];
};

struct alignas(16) OneLaunchRest : part_if<(NEAR_TILES > 0), NearTiles>,
                                   part_if<DIVIDED, DividedPart> {};

struct OneLaunchWhole : OneLaunchShared, OneLaunchRest {};
static_assert(sizeof(OneLaunchWhole) == SHARED_BYTES, "the launcher asks for as much");

// What a block has of units or features: from where on, and how many.
struct Part {
    int first, count;

    __device__ static Part of(int number, int width, int whole) {
        return {number * width, clamped(whole - number * width, width)};
    }
};

// The units that this block takes from sums to gradients.
__device__ inline Part own_units() {
    return HIDDEN ? Part::of(own_rank(), UNIT_WIDTH, HIDDEN) : Part{0, OUTPUTS};
}

// Which of the blocks that divide the features this one is.
__device__ inline int own_part() { return own_rank() % FEATURE_PARTS; }

// What this block multiplies x by.
__device__ inline Part held_units() {
    return HIDDEN ? Part::of(own_rank() / FEATURE_PARTS, UNIT_WIDTH * FEATURE_PARTS, HIDDEN)
                  : Part{0, OUTPUTS};
}
__device__ inline Part held_features() {
    return Part::of(HIDDEN ? own_part() : own_rank(), X_WIDTH, FEATURES);
}

__device__ inline DividedPart& divided(OneLaunchShared& shared) {
    return part_behind<DividedPart, OneLaunchRest>(shared);
}

// Where the gradients of this block's hidden units are, of a step.
__device__ inline T* own_dh(OneLaunchShared& shared, int step) {
    if constexpr (DIVIDED) {
        return divided(shared).dh[step % 2][own_part()][0][0];
    } else {
        return shared.dh[0];
    }
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
    const FragmentWords* gram;  // of gram_batches.cu
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
