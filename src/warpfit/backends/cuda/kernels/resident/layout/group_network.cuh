// A small network in a block whose groups of four warps take 64 rows each: its shape, and what lies
// where in shared memory. one_launch_small_sm90.cu says how a step goes. Rows of hidden units, of
// their gradients, and inputs of weights are lines of 128 bytes, swizzled; a warp writes its own
// rows, and reads those of all for the gradients of weights.
// Users: one_launch_small_sm90.cu.
#pragma once

#include "base/choice.cuh"
#include "mma/fragments.cuh"
#include "mma/operand_tile.cuh"
#include "ptx/barriers.cuh"
#include "ptx/cluster.cuh"
#include "resident/layout/layer_stack.cuh"
#include "resident/loss/output_losses.cuh"
#include "resident/update/parameters.cuh"

using T = DTYPE;

constexpr int HIDDEN = LAYERS - 1, UNITS = 64;
constexpr int GROUP_WARPS = 4, GROUP_THREADS = 128, TRAINING_THREADS = GROUPS * GROUP_THREADS,
              THREADS = TRAINING_THREADS + 32;
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

using Lines = unsigned char[ROWS * LINE_BYTES];

// Tiles of 16 units of a layer, and bundles of these: a tile for each block, which updates it. Those
// of the hidden layers before one.
__device__ constexpr int tiles_of(int layer) { return padded(layer + 1) / 16; }
__device__ constexpr int bundles_of(int layer) { return (tiles_of(layer) + CLUSTER - 1) / CLUSTER; }
__device__ constexpr int bundles_before(int layer) {
    return layer == 0 ? 0 : bundles_before(layer - 1) + bundles_of(layer - 1);
}
constexpr int BUNDLES = bundles_before(HIDDEN), MOST_BUNDLES = (BUNDLES + GROUPS - 1) / GROUPS;

// What the other blocks send: of a tile that is this block's the sums over their rows; of theirs
// the weights, as products take them; and their sums for biases and outputs, which all update.
constexpr int OTHERS = CLUSTER - 1;

struct FromOther {
    float4 sums[BUNDLES][2][GROUP_THREADS];
    uint4 words[BUNDLES][GROUP_THREADS];
    float2 biases[HIDDEN][UNITS / 2];
    float4 out_weights[OUT_TILES][GROUP_THREADS];
    float2 out_biases[OUT_TILES][4];
};

struct Exchange {
    FromOther others[OTHERS > 0 ? OTHERS : 1];
    Barrier sums_full[HIDDEN][GROUPS], words_full[HIDDEN][GROUPS], outputs_full;
};

struct alignas(1024) SmallShared {
    Lines h[HIDDEN], dz[HIDDEN];  // what hidden layers give, and the gradients of its z
    unsigned char weights[HIDDEN][UNITS * LINE_BYTES];  // a line for each input
    T x[STAGES][ROWS][X_STRIDE];
    T out_weights[OUT_TILES][UNITS][8];
    T dz_out[OUT_TILES][ROWS][8];
    alignas(16) StepSettings settings[STAGES];
    float targets[STAGES][ROWS][TARGET_WORDS];
    RowLoss losses[2][ROWS];
    // Of optimizer state, too: slot 0 is the number itself.
    float biases[HIDDEN][1 + SLOTS][UNITS], out_biases[1 + SLOTS][8 * OUT_TILES];
    float out_numbers[1 + SLOTS][4 * OUT_TILES][GROUP_THREADS];
    Barrier x_full[STAGES], x_free[STAGES];
};

struct alignas(16) SmallRest : part_if<(CLUSTER > 1), Exchange> {};

struct SmallWhole : SmallShared, SmallRest {};
static_assert(sizeof(SmallWhole) == SHARED_BYTES, "one_launch_small_sm90.py counts these bytes");

__device__ inline Exchange& exchange_of(const SmallShared& shared) {
    return part_behind<Exchange, SmallRest>(shared);
}

struct SmallRun {
    const T* batches;
    const float* targets;
    const StepSettings* settings;
    double* record;
    float scale, unscale;
    LossSettings loss;
    RuleSettings rule;
};

// Found anew: addresses that follow from it would be too many in registers from step to step.
__device__ inline unsigned own_thread() { return unforeseen(threadIdx.x); }
__device__ inline int own_lane() { return static_cast<int>(own_thread() % 32); }
__device__ inline int own_warp() { return static_cast<int>(own_thread() / 32); }
__device__ inline int warp_of_group() { return own_warp() % GROUP_WARPS; }

// All threads that train.
__device__ inline void meet() { meet_at<TRAINING_THREADS>(1); }

// What has been stored is there for all, and for products.
__device__ inline void hand_over() {
    fence_async();
    meet();
}

// What a thread has of 16 rows, as the operand of a product: of each 16 columns row lane / 4 and the
// one 8 further on of the first 8's pair of columns, and of the other 8's.
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

template <int WIDTH>
__device__ inline void load_words(Words<WIDTH>& words, const unsigned char* lines) {
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
