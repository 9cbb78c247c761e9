// How a cluster partitions a network with one hidden layer: what its warps are for, what lies where
// in shared memory, and the barriers between them. many_networks_sm90.cu says how a step goes.
//
// A warpgroup of the first GROUPS has the weights of a tile of 64 hidden units, and of a part of
// the features, and of the bias, which is the weight of one feature more. If there are two tiles of
// units, both lie in each block, and a block is a part; if there is one, each warpgroup is. A part
// also has a part of each batch's rows: for these it adds up what all parts have of a sum, and
// finds the loss.
#pragma once

#include "base/choice.cuh"
#include "mma/fragments.cuh"
#include "mma/operand_tile.cuh"
#include "ptx/barriers.cuh"
#include "ptx/cluster.cuh"
#include "resident/feed/many_batches.cuh"

using T = DTYPE;

constexpr int ROWS = 64, UNITS = 64, GROUPS = 2, GROUP_THREADS = 128, WARPS = 8, HELPERS = 4;
constexpr int LOSS_GROUP = GROUPS, BATCH_GROUP = GROUPS + 1, THREADS = (GROUPS + 2) * GROUP_THREADS;
constexpr int FIRST_LOSS_WARP = 4 * LOSS_GROUP;
constexpr int UNIT_TILES = HIDDEN > UNITS ? 2 : 1;
constexpr int PARTS_OF_BLOCK = GROUPS / UNIT_TILES, PARTS = CLUSTER * PARTS_OF_BLOCK;
static_assert(BATCH <= ROWS && HIDDEN <= UNITS * UNIT_TILES && OUTPUTS <= 16 && PARTS <= 8,
              "a batch is a tile");

// -- rows -----------------------------------------------------------------------------------------

// Of a batch, in tiles of 8: those of a part, and those of a block. A block has its own rows first,
// then those of the blocks after it, in turn.
constexpr int OWN_ROWS = ROWS / PARTS, OWN_TILES = OWN_ROWS / 8;
constexpr int BLOCK_ROWS = ROWS / CLUSTER, BLOCK_TILES = BLOCK_ROWS / 8;
// Tiles of 16, as products take them.
constexpr int ROW_PAIRS = (OWN_TILES + 1) / 2, BLOCK_PAIRS = (BLOCK_TILES + 1) / 2;
// Of such a tile a warp finds the losses of all rows, or of half, if there are warps for it.
constexpr int SHARES_OF_PAIR = 2 * BLOCK_PAIRS <= HELPERS ? 2 : 1,
              WARPS_WITH_ROWS = BLOCK_PAIRS * SHARES_OF_PAIR;

// -- features -------------------------------------------------------------------------------------

// Slices of 16 features; those of a part, in boxes of four, the last of which may be a part of one.
constexpr int NUM_SLICES = (FEATURES + 1 + 15) / 16, OWN_SLICES = (NUM_SLICES + PARTS - 1) / PARTS;
constexpr int X_WIDTH = 16 * OWN_SLICES * PARTS, PART_WIDTH = 16 * OWN_SLICES;
constexpr int SLICES_OF_BOX = 4, BOX_BYTES = ROWS * LINE_BYTES, STAGES = 2;
constexpr int WHOLE = OWN_SLICES / SLICES_OF_BOX, TAIL = OWN_SLICES % SLICES_OF_BOX;
// Tails of stages and parts lie side by side in a box, if they can.
constexpr int TAILS_OF_BOX = TAIL > 0 ? SLICES_OF_BOX / TAIL : 1,
              TAILS = TAIL > 0 ? STAGES * PARTS_OF_BLOCK : 0;
constexpr int X_BOXES = STAGES * PARTS_OF_BLOCK * WHOLE + (TAILS + TAILS_OF_BOX - 1) / TAILS_OF_BOX;

// Where a stage's box of a part begins in x, in bytes.
__device__ inline unsigned box_at(unsigned stage, unsigned part_of_block, unsigned box) {
    const unsigned idx = stage * PARTS_OF_BLOCK + part_of_block;
    if (TAIL > 0 && box == WHOLE) {
        return (STAGES * PARTS_OF_BLOCK * WHOLE + idx / TAILS_OF_BOX) * BOX_BYTES +
               idx % TAILS_OF_BOX * TAIL * SLICE_BYTES;
    }
    return (idx * WHOLE + box) * BOX_BYTES;
}

// A thread has some slices' weights in registers, and the others', in between, in shared memory:
// products take time in which those come.
constexpr int REGISTER_SLICES = OWN_SLICES - SHARED_SLICES;
__device__ constexpr int shared_before(int slice) { return slice * SHARED_SLICES / OWN_SLICES; }
__device__ constexpr bool is_shared(int slice) {
    return shared_before(slice + 1) > shared_before(slice);
}

// -- outputs --------------------------------------------------------------------------------------

// Rows of outputs and of their weights, apart so that eight lie in different banks.
// A part of 8 rows reads 16, of which the last may be nobody's.
constexpr int OUT_WIDTH = 16, OUT_STRIDE = 24,
              DZ_ROWS = 16 * BLOCK_PAIRS + (OWN_TILES == 1 ? 8 : 0),
              PAIRS_OF_ROW = (OUTPUTS + 1) / 2;

__device__ constexpr int up_to_four(int size) { return (size + 3) / 4 * 4; }
constexpr int OUTPUT_PARAMETERS = up_to_four((FEATURES + 1) * HIDDEN);
constexpr int PARAMETERS = OUTPUT_PARAMETERS + up_to_four((HIDDEN + 1) * OUTPUTS);

// -- between warps --------------------------------------------------------------------------------

// What a warpgroup gets of sums from the other parts; h of its units and rows; and dh of 16 units
// each, of rows of other parts, or of all where warps share it, as wgmma takes it from registers:
// of a slice of 16 rows four words for each lane. A block that has all parts of a tile has room for
// them one after the other only: h and dh come where sums were.
constexpr bool OWN_DH_STAYS = UNIT_TILES > 1 && OWN_TILES > 1;
constexpr int FIRST_SENT = OWN_DH_STAYS ? OWN_TILES : 0, SENT_TILES = ROWS / 8 - FIRST_SENT;
constexpr int SUMS_BYTES = (PARTS - 1) * UNITS * OWN_ROWS * 4, H_BYTES = UNITS * OWN_ROWS * 2,
              DH_BYTES = UNITS * SENT_TILES * 16;
constexpr bool REUSES_SUMS = PARTS == GROUPS && CLUSTER == 1;
constexpr int SUMS_AT = REUSES_SUMS ? 0 : UNIT_TILES * DH_BYTES, DH_AT = REUSES_SUMS ? H_BYTES : 0;
constexpr int H_AT = REUSES_SUMS ? 0 : SUMS_AT + GROUPS * SUMS_BYTES,
              H_STEP = REUSES_SUMS ? H_BYTES + DH_BYTES : H_BYTES;
constexpr int PASSED_BYTES = REUSES_SUMS ? GROUPS * SUMS_BYTES : H_AT + GROUPS * H_BYTES;

// A network's run, as all warps know it.
struct ClusterRun {
    unsigned round;                   // how many networks came before
    unsigned epochs, epochs_of_last;  // theirs, those of the last one apart
    int batches;                      // of an epoch
    float unscale;
    int verdicts[2];  // on the last two epochs
    int idx;          // of the network among all
};

struct ClusterShared {
    unsigned char x[X_BOXES * BOX_BYTES];
    unsigned char passed[PASSED_BYTES];
    float4 weights[SHARED_SLICES > 0 ? SHARED_SLICES : 1][1 + SLOTS][2]
                  [SHARED_SLICES > 0 ? GROUPS * GROUP_THREADS : 1];
    T dz[DZ_ROWS][OUT_STRIDE];
    T w2[UNITS * UNIT_TILES][OUT_STRIDE];
    // Of each block's rows, the gradients of the weights and biases of the outputs.
    float2 of_outputs[CLUSTER][HIDDEN + 1][PAIRS_OF_ROW];
    // Of an epoch's losses, and of rows that are right; of validation's. Between networks the next
    // one's number.
    union alignas(16) {
        double sums[CLUSTER * HELPERS][4];
        uint64 next;
    };
    float output_bias[1 + SLOTS][OUT_WIDTH];
    alignas(16) StepSettings settings[STAGES];
    alignas(16) int rows[STAGES][ROWS];
    float targets[STAGES][BLOCK_ROWS][TARGET_WORDS];
    alignas(16) Network network;
    ClusterRun run;
    // From those who bring rows and find losses, and back:
    Barrier x_full[STAGES], x_free[STAGES], h_full, h_free, dz_full, w2_free, losses_met,
        bringers_met;
    // Between parts: sums of z, dh, gradients of outputs, an epoch's sums, the next network's
    //   number. A verdict on an epoch.
    Barrier z_full[GROUPS], dh_full[4 * UNIT_TILES], outputs_full, sums_full, verdict_full[2],
        next_full;
    union {
        Barrier group_met[REUSES_SUMS ? GROUPS : 1];  // in one block
        Barrier outputs_free;                         // of a cluster: gradients have been read
    };
};

// What follows it where it is there: of an epoch, by the warps that have hidden units' weights; and
// what batches weigh.
struct alignas(16) Penalties {
    double of_warps[CLUSTER * WARPS];
};

struct alignas(16) BatchWeights {
    float of_stages[STAGES];
};

struct alignas(16) ClusterRest : part_if<PENALIZED, Penalties>,
                                 part_if<HAS_WEIGHTS, BatchWeights> {};

struct ClusterWhole : ClusterShared, ClusterRest {};
static_assert(sizeof(ClusterWhole) == SHARED_BYTES, "many_networks_sm90.py counts these bytes");

template <class Part>
__device__ inline Part& part_of(const ClusterShared& shared) {
    return part_behind<Part, ClusterRest>(shared);
}

// -- threads --------------------------------------------------------------------------------------

__device__ inline int own_group() { return static_cast<int>(threadIdx.x) / GROUP_THREADS; }

// Where a thread stands. What follows from it the compiler finds anew after each of these: kept
// from step to step it would take registers, of which there are none left.
struct Thread {
    unsigned idx, rank;

    __device__ Thread()
        : idx(unforeseen(threadIdx.x)), rank(unforeseen(static_cast<unsigned>(own_rank()))) {}

    __device__ unsigned lane() const { return idx % WARP; }
    __device__ unsigned warp() const { return idx / WARP; }
    __device__ unsigned group() const { return idx / GROUP_THREADS; }
    __device__ unsigned of_group() const { return idx % GROUP_THREADS; }

    __device__ unsigned tile() const { return UNIT_TILES > 1 ? group() : 0; }
    __device__ unsigned part_of_block() const { return UNIT_TILES > 1 ? 0 : group(); }
    __device__ unsigned part() const { return rank * PARTS_OF_BLOCK + part_of_block(); }

    // Of its accumulators: the first of its two units of the tile, the other being 8 further on,
    // and the first of its pairs of columns, 8 apart.
    __device__ unsigned unit() const { return warp() % 4 * 16 + lane() / 4; }
    __device__ unsigned column() const { return lane() % 4 * 2; }

    // The block so many further on.
    __device__ unsigned rank_after(unsigned distance) const { return (rank + distance) % CLUSTER; }
};

// -- places ---------------------------------------------------------------------------------------

// A piece of 8 rows of a unit of a warpgroup's h. Pieces change places so that eight units' lie in
// different banks.
__device__ inline unsigned char* h_place(ClusterShared& shared, unsigned group, unsigned unit,
                                         unsigned piece) {
    constexpr unsigned LINES_OF_BANKS = 8 / OWN_TILES;
    return shared.passed + H_AT + group * H_STEP + unit * (OWN_ROWS * 2) +
           (piece ^ unit / LINES_OF_BANKS % OWN_TILES) * 16;
}

// Which 16 units a warp has, of all.
__device__ inline unsigned units_of(const Thread& own) { return own.tile() * 4 + own.warp() % 4; }

// What a lane has of 8 rows of dh of 16 units: two words, next to those of the other 8 of a slice.
__device__ inline uint2* dh_place(ClusterShared& shared, const Thread& own, unsigned tile) {
    unsigned char* of_units = shared.passed + DH_AT + units_of(own) * (DH_BYTES / 4);
    const unsigned sent = tile - FIRST_SENT;
    return reinterpret_cast<uint2*>(of_units + (sent / 2 * WARP + own.lane()) * 16 + sent % 2 * 8);
}

// What a thread gets of a tile of 8 rows of z from the part that is `distance` before.
__device__ inline unsigned char* sums_place(ClusterShared& shared, unsigned group,
                                            unsigned distance, unsigned tile, unsigned thread) {
    return shared.passed + SUMS_AT + group * SUMS_BYTES +
           (((distance - 1) * OWN_TILES + tile) * GROUP_THREADS + thread) * 16;
}

// A warp arrives, and so many bytes come from a warp of each other block.
__device__ inline void arrive_for_bytes(const Thread& own, Barrier& barrier, unsigned bytes) {
    __syncwarp();
    if (CLUSTER > 1 && own.lane() == 0) {
        mbarrier_expect(&barrier, (CLUSTER - 1) * bytes);
    } else if (own.lane() < OF_WARP) {
        mbarrier_arrive(&barrier);
    }
}

// -- batches --------------------------------------------------------------------------------------

using Batch = RunBatch<ROWS>;

// The place of the network's own in an array of so many numbers for each.
template <class Number>
__device__ inline Number* own_numbers(Number* of_all, const ClusterShared& shared, int count) {
    return of_all + static_cast<int64>(shared.run.idx) * count;
}

// The mean loss of an epoch's rows over all blocks, in their order, and how many are right.
__device__ inline EpochSums epoch_sums(const ClusterShared& shared, bool of_validation,
                                       const double* total_weights) {
    double total = 0, correct = 0;
    for (const double (&own)[4] : shared.sums) {
        total += own[2 * of_validation];
        correct += own[2 * of_validation + 1];
    }
    if constexpr (PENALIZED) {
        for (const double own : part_of<Penalties>(shared).of_warps)
            total += of_validation ? 0 : own;
    }
    const auto weight =
        weight_of_rows(shared.network, own_numbers(total_weights, shared, 2), of_validation);
    return {weight > 0 ? total / weight : 0, correct};
}

// Waits for the verdict on an epoch of the network's run.
__device__ inline int verdict_on(ClusterShared& shared, int epoch) {
    const unsigned number = shared.run.epochs + epoch;
    wait(shared.verdict_full[number % 2], number / 2);
    return shared.run.verdicts[epoch % 2];
}
