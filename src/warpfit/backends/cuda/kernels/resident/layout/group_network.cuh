// A small network in a block, or blocks that partition a batch: groups of four warps take 64 rows
// each. Its shape, and what lies where in shared memory; one_launch_small_sm90.cu says how a step
// goes. What layers take, the gradients of what they give, and weights are lines of 128 bytes,
// swizzled: a warp writes those of its own rows, and all read them for the gradients of weights.
#pragma once

#include "base/choice.cuh"
#include "mma/fragments.cuh"
#include "mma/operand_tile.cuh"
#include "ptx/barriers.cuh"
#include "ptx/cluster.cuh"
#include "resident/layout/layer_stack.cuh"
#include "resident/loss/output_losses.cuh"
#include "resident/record/steps.cuh"
#include "resident/update/parameters.cuh"

using T = DTYPE;

constexpr int HIDDEN = LAYERS - 1, UNITS = 64;
// Groups that hold the hidden layers' weights, of which the first take rows; and two that help, the
// first of which holds the outputs'. The last warp is the loader.
constexpr int GROUP_WARPS = 4, GROUP_THREADS = 128, THREADS = (GROUPS + 2) * GROUP_THREADS,
              AT_WORK = THREADS - 32, HELPING_WARPS = 2 * GROUP_WARPS - 1;
// Rows of a batch that a block has; groups that take them, and tiles of 16 of these.
constexpr int BLOCK_BATCH = CLUSTER > 1 ? (BATCH + 16 * CLUSTER - 1) / (16 * CLUSTER) * 16 : BATCH;
constexpr int GROUP_ROWS = 64, ROW_GROUPS = (BLOCK_BATCH + GROUP_ROWS - 1) / GROUP_ROWS,
              ROWS = ROW_GROUPS * GROUP_ROWS, ROW_SLICES = (BLOCK_BATCH + 15) / 16;
static_assert(ROW_GROUPS <= GROUPS, "a group for each 64 rows");

__device__ constexpr int padded(int i) { return up(WIDTHS[i], 16); }
constexpr int X_STRIDE = padded(0) + 8, OUT_TILES = (OUTPUTS + 7) / 8,
              TARGET_WORDS = LOSS::HAS_LABELS ? 1 : OUTPUTS;

__device__ constexpr bool all_fit() {
    for (int i = 0; i < LAYERS; ++i)
        if (WIDTHS[i] > UNITS) return false;
    return HIDDEN > 0 && OUT_TILES <= 2;
}
static_assert(all_fit(), "one_launch_small_sm90.py knows what fits");

// Tiles of 16 units, of the layers before one.
__device__ constexpr int tiles_before(int layer) {
    return layer == 0 ? 0 : tiles_before(layer - 1) + padded(layer) / 16;
}

// Bundles of these: a tile of a layer for each block, which updates it. The last is the outputs',
// of one tile.
__device__ constexpr int bundles_before(int layer) {
    return layer == 0 ? 0
                      : bundles_before(layer - 1) + (padded(layer) / 16 + CLUSTER - 1) / CLUSTER;
}
constexpr int ALL_TILES = tiles_before(LAYERS), BUNDLES = bundles_before(LAYERS),
              OUT_BUNDLE = BUNDLES - 1;

// Where a tile is, or a bundle: in which layer, of so many inputs and units, and the which of that.
struct Place {
    int layer, inputs, units, column;
};

template <int L = HIDDEN>
__device__ inline Place place_of_bundle(int bundle) {
    constexpr int FIRST = bundles_before(L);
    if constexpr (L > 0)
        if (bundle < FIRST) return place_of_bundle<L - 1>(bundle);
    return {L, WIDTHS[L], WIDTHS[L + 1], bundle - FIRST};
}

// The tile of a bundle that a block updates, if there is one.
__device__ inline Place tile_of_block(int bundle, int rank) {
    Place found = place_of_bundle(bundle);
    found.column = found.column * CLUSTER + rank;
    return found;
}
__device__ inline bool is_there(const Place& tile) { return 16 * tile.column < tile.units; }

using Lines = unsigned char[ROWS * LINE_BYTES];

struct alignas(1024) SmallShared {
    Lines inputs[LAYERS], dz[LAYERS];                   // of layers, and gradients of their z
    unsigned char weights[LAYERS][UNITS * LINE_BYTES];  // a line for each input
    T x[ROWS][X_STRIDE];
    alignas(16) StepSettings settings[2];
    float targets[ROWS][TARGET_WORDS];
    // Of even steps, and of odd ones: what rows leave for their losses, and these.
    OutputRest rests[2][ROWS / 8][32];
    RowLoss losses[2][16 * ROW_SLICES];
    float biases[1 + SLOTS][LAYERS][UNITS];  // and their optimizer state
    // A batch to all, and back; losses to the loader.
    Barrier x_full, x_free, losses_full[2];
};

using BiasSums = float2[LAYERS][32];

// What all blocks leave in a block, by their ranks: of its tiles the sums over their rows, and sums
// for biases, which each block updates. Weights come to where products read them. No block is two
// steps ahead of another, as it needs its sums and weights. Who has biases needs neither: so there
// are those of even steps and of odd ones.
struct Exchange {
    float4 sums[CLUSTER][BUNDLES][2][GROUP_THREADS];
    BiasSums biases[2][CLUSTER];
    Barrier sums_full[BUNDLES], words_full, biases_full[2];
};

struct alignas(16) SmallRest : part_if<(CLUSTER > 1), Exchange> {};

struct SmallWhole : SmallShared, SmallRest {};
static_assert(sizeof(SmallWhole) == SHARED_BYTES, "one_launch_small_sm90.py counts these bytes");

__device__ inline Exchange& exchange_of(const SmallShared& shared) {
    return part_behind<Exchange, SmallRest>(shared);
}

// The i-th other rank.
__device__ inline int other_rank(int i) {
    return static_cast<int>((own_rank() + 1u + i) % CLUSTER);
}

struct SmallRun {
    const T* batches;
    const float* targets;
    const StepSettings* settings;
    double* record;
    float scale;  // a power of 2
    LossSettings loss;
    RuleSettings rule;

    // Found anew, too.
    __device__ float unscale() const {
        return __uint_as_float(0x7f000000 - __float_as_uint(scale));
    }
};

// Found anew: addresses that follow from it would be too many in registers from step to step.
__device__ inline unsigned own_thread() { return unforeseen(threadIdx.x); }
__device__ inline int own_lane() { return static_cast<int>(own_thread() % 32); }
__device__ inline int own_warp() { return static_cast<int>(own_thread() / 32); }
__device__ inline int warp_of_group() { return own_warp() % GROUP_WARPS; }
__device__ inline int thread_of_group() { return static_cast<int>(own_thread() % GROUP_THREADS); }

// Of a batch of so many rows those that this block has.
__device__ inline int own_rows(int count) {
    return CLUSTER > 1 ? clamped(count - own_rank() * BLOCK_BATCH, BLOCK_BATCH) : count;
}

// What has been stored is there for all but the loader, and for products.
__device__ inline void hand_over() {
    fence_async();
    meet_at<AT_WORK>(1);
}

// What a thread has of 16 rows, as the operand of a product: of each 16 columns row lane / 4 and
// the one 8 further on of the first 8's pair of columns, and of the other 8's.
template <int WIDTH>
struct Words {
    unsigned slices[WIDTH / 16][4];
};

// Where a lane's 16 bytes are of 16 lines, from a multiple of 8 on, by 16 columns, as stmatrix_x4
// and ldmatrix_x4 take them.
__device__ inline unsigned place_of(int first_line, int slice) {
    const unsigned lane = own_thread() % 32, line = lane % 16;
    return first_line * LINE_BYTES + line * LINE_BYTES + ((2 * slice + lane / 16) ^ line % 8) * 16;
}

// As ldmatrix_x4_trans takes them, for 16 columns as rows of an operand.
__device__ inline unsigned place_across(int first_line, int slice) {
    const unsigned lane = own_thread() % 32, line = lane % 8 + lane / 16 * 8;
    return first_line * LINE_BYTES + line * LINE_BYTES +
           ((2 * slice + lane / 8 % 2) ^ line % 8) * 16;
}

template <int WIDTH>
__device__ inline void store_words(unsigned char* lines, const Words<WIDTH>& words) {
#pragma unroll
    for (int i = 0; i < WIDTH / 16; ++i)
        stmatrix_x4(lines + place_of(16 * own_warp(), i), words.slices[i]);
}

// What the warp has stored.
template <int WIDTH>
__device__ inline void load_words(Words<WIDTH>& words, const unsigned char* lines) {
    __syncwarp();
#pragma unroll
    for (int i = 0; i < WIDTH / 16; ++i) {
        unsigned (&own)[4] = words.slices[i];
        ldmatrix_x4(own[0], own[1], own[2], own[3], lines + place_of(16 * own_warp(), i));
    }
}

// The slice of 16 numbers of k that a descriptor tells of: `offset` bytes into lines.
__device__ inline uint64 operand_at(const unsigned char* lines, int offset) {
    return matrix_descriptor(shared_address(lines) + offset, 0);
}

// What slice k of a product adds to, as wgmma takes it: nothing, if it is the first.
__device__ constexpr int begins_or_adds(int k) { return k == 0 ? -1 : 1; }
