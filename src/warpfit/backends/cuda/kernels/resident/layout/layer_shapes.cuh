// What a block of one_launch_layers.cu is made of: the sizes of each layer, and its shared memory.
// All of it follows from the kernel's settings. Each block owns the units first() to first() +
// count() of each layer; outputs are everybody's.
#pragma once

#include "base/choice.cuh"
#include "ops/dropout/dropout.cuh"
#include "ptx/barriers.cuh"
#include "resident/layout/layer_stack.cuh"
#include "resident/layout/replica.cuh"
#include "resident/loss/output_losses.cuh"
#include "resident/products/held_weights.cuh"

// Blocks that have a row of the record of each pass: with penalties all, as each knows its own
// weights' part.
constexpr int RECORDERS = REPLICAS * (PENALIZED ? CLUSTER : 1);

#include "resident/record/early_stopping.cuh"
#include "resident/record/progress.cuh"
#include "resident/update/parameters.cuh"

using T = DTYPE;

constexpr int X_WIDTH = up(WIDTHS[0], 16), X_STRIDE = X_WIDTH + 8;
constexpr int OUT_TILES = up(OUTPUTS, 16) / 16;
// A row's target, which its weight may follow.
constexpr int TARGET_WORDS = LOSS::HAS_LABELS ? 1 : OUTPUTS;
// Which of them this block is, if it is one.
__device__ inline int own_recorder() { return own_replica() * (RECORDERS / REPLICAS) + own_rank(); }
// Whose targets a replica needs: to weigh a batch, those of all rows.
constexpr bool SEES_ALL_TARGETS = ALL_REPLICAS > 1 && (WEIGHTED || CLASS_WEIGHTS);
constexpr int TARGET_ROWS = SEES_ALL_TARGETS ? ALL_REPLICAS * ROWS : ROWS;
// Units lie in chunks of 8, all rows of a chunk one after the other: what a block sends of them
// lies in one piece, and what the lanes of a warp send at once goes as one.
constexpr int CHUNK_UNITS = 8;

// What a product takes of two numbers: each is the sum of TERMS 16-bit numbers, of which a later
// one has what the one before leaves out.
struct Pair {
    unsigned words[TERMS];

    __device__ Pair(float low, float high) {
        words[0] = packed<T>(low, high);
        if (TERMS == 1) return;
        const float2 first = unpacked<T>(words[0]);
        words[TERMS - 1] = packed<T>(low - first.x, high - first.y);
    }
};

// Where numbers are sums of several, float16's range is float32's by powers of two, which a run
// chooses for each layer.
constexpr bool SCALES = TERMS > 1;

struct LayerScales {
    float weights;  // times which products take weights
    float sums;     // of the forward product, what takes it back to numbers of float32
    float units;    // times which the layer above takes units
    float
        gradients;  // from the product with the weights of the layer above to this one's gradients
    float of_weights, of_biases;  // take sums back to the gradients of weights and biases
};

using Outputs = float[2 * OUT_TILES][4];  // of 16 rows, as mma holds them

// Chunks of the blocks before one, if each has `least`, and the first ones have one more.
__device__ constexpr int chunks_before(int rank, int least, int with_one_more) {
    return rank * least + smaller(rank, with_one_more);
}

// Layer L. Blocks partition the units of hidden layers, in whole chunks, of which the first blocks
// may have one more; all have all outputs.
template <int L>
struct Shape {
    static constexpr int UNITS = WIDTHS[L + 1], WIDTH = up(UNITS, 16);
    static constexpr bool IS_LAST = L + 1 == LAYERS, IS_SHARED_OUT = CLUSTER > 1 && !IS_LAST;
    static constexpr int CHUNKS = up(UNITS, CHUNK_UNITS) / CHUNK_UNITS,
                         SHARERS = IS_SHARED_OUT ? CLUSTER : 1;
    static constexpr int LEAST_CHUNKS = CHUNKS / SHARERS, WITH_ONE_MORE = CHUNKS % SHARERS;
    static constexpr int BLOCK_CHUNKS = LEAST_CHUNKS + (WITH_ONE_MORE > 0);
    static constexpr int BLOCK_UNITS = IS_SHARED_OUT ? BLOCK_CHUNKS * CHUNK_UNITS : UNITS;
    static constexpr int BLOCK_WIDTH = up(BLOCK_UNITS, 16);

    // The first unit of a block, beyond the last if it has none; and the block that has a unit.
    __device__ static constexpr int first_of(int rank) {
        return chunks_before(rank, LEAST_CHUNKS, WITH_ONE_MORE) * CHUNK_UNITS;
    }
    __device__ static constexpr int rank_of(int unit) {
        const int chunk = unit / CHUNK_UNITS, of_others = WITH_ONE_MORE * BLOCK_CHUNKS;
        return chunk < of_others ? chunk / BLOCK_CHUNKS
                                 : WITH_ONE_MORE + (chunk - of_others) / larger(LEAST_CHUNKS, 1);
    }

    // Tiles of 16 units may begin at any chunk, and so reach beyond the last unit.
    static constexpr int LAST_CHUNKS =
        chunks_before(smaller(CHUNKS, SHARERS) - 1, LEAST_CHUNKS, WITH_ONE_MORE);
    static constexpr int REACH = larger(WIDTH, BLOCK_WIDTH + CHUNK_UNITS * LAST_CHUNKS);
    // What goes back from the first layer goes to no other block.
    static constexpr bool HAS_OWN_GRADIENTS = IS_SHARED_OUT && L == 0;
    static constexpr int GRADIENT_REACH = HAS_OWN_GRADIENTS ? BLOCK_WIDTH : REACH;

    static constexpr bool ALL_HAVE_UNITS = LEAST_CHUNKS > 0;

    // This block's first unit, and how many it has; without any, 0.
    __device__ static int count() {
        constexpr bool IS_EVEN = !IS_SHARED_OUT || UNITS == CLUSTER * BLOCK_UNITS;
        if (IS_EVEN) return BLOCK_UNITS;
        const int begin = first_of(own_rank());
        return clamped(UNITS - begin, first_of(own_rank() + 1) - begin);
    }
    __device__ static int first() {
        return IS_SHARED_OUT && count() > 0 ? first_of(own_rank()) : 0;
    }
    __device__ static int first_gradient() { return HAS_OWN_GRADIENTS ? 0 : first(); }
    __device__ static int own_chunks() { return (count() + CHUNK_UNITS - 1) / CHUNK_UNITS; }
    __device__ static unsigned bytes_of_others() {
        return (up(UNITS, CHUNK_UNITS) / CHUNK_UNITS - own_chunks()) * TERMS * ROWS * CHUNK_UNITS *
               sizeof(T);
    }
};

// Rows of units, chunk by chunk, one term of each after the other.
template <int WIDTH>
using Chunks = T[TERMS][WIDTH / CHUNK_UNITS][ROWS][CHUNK_UNITS];

// No product takes it.
using Derivative = choice<SCALES, float, T>;

template <int L>
struct Biases {
    float values[Shape<L>::BLOCK_WIDTH], slots[SLOT_PLACES][Shape<L>::BLOCK_WIDTH];

    // Takes a bias's gradient in, which is `sum` times `unscale`.
    __device__ void update(int unit, float sum, float unscale, const StepSettings& step,
                           const RuleSettings& rule) {
        const auto slot = [&](int i) -> float& { return slots[i][unit]; };
        update_in_place(values[unit], slot, sum, unscale, step, rule);
    }
};

// What layer L has in shared memory: y, its units of a batch, and dz, the gradients before the
// activation. A block may send the first layer's units while others still read those of the step
// before, so there are two of them; where there is no room for that, blocks meet before they send
// them. All that comes later in a step, it can only send when they have read it.
template <int L, bool IS_LAST = Shape<L>::IS_LAST>
struct alignas(16) LayerRows {
    static constexpr int COPIES = Shape<L>::HAS_OWN_GRADIENTS ? UNIT_COPIES : 1;
    static constexpr bool MUST_MEET = Shape<L>::HAS_OWN_GRADIENTS && UNIT_COPIES == 1;
    static_assert(!Shape<L>::HAS_OWN_GRADIENTS || MUST_MEET || Shape<L>::ALL_HAVE_UNITS,
                  "a block without units to send would not be waited for");
    Chunks<Shape<L>::REACH> y[COPIES];
    Chunks<Shape<L>::GRADIENT_REACH> dz;
    // Of the activation, of this block's units.
    Derivative derivatives[Shape<L>::BLOCK_CHUNKS][ROWS][CHUNK_UNITS];
    Biases<L> biases;
    Barrier y_full[2], dz_full;

    __device__ Chunks<Shape<L>::REACH>& units(int pass) { return y[pass % COPIES]; }
};

template <int L>
struct alignas(16) LayerRows<L, true> {
    Chunks<Shape<L>::REACH> dz;
    Biases<L> biases;
};

// Rows that products take: those of a batch come one after the other, those of units in chunks.
struct BatchRows {
    const T* first;
    static constexpr int STRIDE = X_STRIDE, NEXT_CHUNK = CHUNK_UNITS, next_term = ROWS * X_STRIDE;
};

struct UnitRows {
    const T* first;
    int next_term;
    static constexpr int STRIDE = CHUNK_UNITS, NEXT_CHUNK = ROWS * CHUNK_UNITS;

    template <int COUNT>
    __device__ explicit UnitRows(const T (&units)[TERMS][COUNT][ROWS][CHUNK_UNITS])
        : first(&units[0][0][0][0]), next_term(COUNT * ROWS * CHUNK_UNITS) {}
};

// The tile of 16 rows and 16 columns from chunk `chunk` on, of a term of each number.
template <class Rows>
__device__ inline const T* tile_of(const Rows& rows, int r, int chunk, int term) {
    return rows.first + r * 16 * Rows::STRIDE + chunk * Rows::NEXT_CHUNK + term * rows.next_term;
}

template <int L>
using RowsOf = LayerRows<L>;

struct alignas(16) LayersShared {
    T x[X_SLOTS][TERMS][ROWS][X_STRIDE];
    float2 sums[SUMS][2][32];  // see Parts
    Stack<RowsOf> layers;
    Dropout dropouts[LAYERS];
    RowLoss losses[2][ROWS];  // of this pass, and of the one before
    float targets[X_SLOTS][TARGET_ROWS][TARGET_WORDS + WEIGHTED];
    alignas(16) float squares[WARPS];  // of a block's gradients
    float2 cluster_squares[CLUSTER];
    Barrier x_full[larger(2, X_SLOTS)], squares_full;
};

// What follows it where it is there.
struct ClassWeights {
    float weights[OUT_TILES * 16], mean[4];
};

struct alignas(16) NearSlots {
    float4 quads[larger(NEAR_TILES, 1)][2 * SLOT_PLACES][32 * WARPS];  // see Memory
};

struct alignas(16) Scales {
    LayerScales layers[LAYERS];
};

struct alignas(16) LayersRest : part_if<SCALES, Scales>,
                                part_if<CLASS_WEIGHTS, ClassWeights>,
                                part_if<(NEAR_TILES > 0), NearSlots>,
                                part_if<STOPS, StoppingState> {};

struct LayersWhole : LayersShared, LayersRest {};
static_assert(sizeof(LayersWhole) == SHARED_BYTES, "the launcher asks for as much");

template <class Part>
__device__ inline Part& part_of(const LayersShared& shared) {
    return part_behind<Part, LayersRest>(shared);
}

// The other blocks that this warp sends to. Where there are more warps than others, several
// partition what one gets.
struct Peers {
    static constexpr int OTHERS = CLUSTER - 1,
                         OF_WARP = OTHERS > 0 ? (OTHERS + WARPS - 1) / WARPS : 1;
    static constexpr int SHARERS = OTHERS > 0 && WARPS > OTHERS ? WARPS / OTHERS : 1;
    unsigned bases[OF_WARP];  // of their shared memory
    unsigned own_base;

    __device__ explicit Peers([[maybe_unused]] const LayersShared& shared) {
        if constexpr (CLUSTER > 1) {
            own_base = shared_address(&shared);
#pragma unroll
            for (int i = 0; i < OF_WARP; ++i) {
                const int other = other_of(i);
                bases[i] = place_in(other + (other >= own_rank()), &shared);
            }
        }
    }

    __device__ static int first_part() { return threadIdx.x / 32 / (OTHERS > 0 ? OTHERS : 1); }
    __device__ static bool has(int i) {
        return i * WARPS + static_cast<int>(threadIdx.x) / 32 < OTHERS * SHARERS;
    }

    // Where a peer has what lies at `pointer` here.
    __device__ unsigned place(int i, const void* pointer) const {
        return bases[i] + shared_address(pointer) - own_base;
    }

  private:
    __device__ static int other_of(int i) {
        const int other = threadIdx.x / 32 + i * WARPS;
        return other < OTHERS ? other : OTHERS > 0 ? other % OTHERS : 0;
    }
};

struct LayersExchange;  // of replica_exchange.cuh
struct CardSums;

// What does not change in a run.
struct LayersRun {
    Peers peers;
    const T *batches, *validation_batches;
    const float *targets, *validation_targets;
    double* record;
    // Of gradients; what takes them back, unless each layer has its own.
    float scale, unscale, largest_norm;
    LossSettings loss;
    RuleSettings rule;
    float
        // Of weights: half of it times the sum of their squares, over the rows, joins the loss.
        penalty;
    uint32 first_step, key[2];   // of the dropout's random numbers
    float4* far_slots;           // see Memory
    LayersExchange* exchanges;   // of each rank, where there are replicas
    int card;                    // which of CARDS this is
    CardSums* const* card_sums;  // of each rank, on each card
};

template <int L>
__device__ inline LayerScales scales_of(const LayersShared& shared, const LayersRun& run) {
    if constexpr (SCALES) {
        return part_of<Scales>(shared).layers[L];
    } else {
        return {1, 1, 1, 1, run.unscale, run.unscale};
    }
}

// What takes sums back to gradients before `run.unscale`, which is 1 where each layer has its own.
template <int L>
__device__ inline LayerScales of_gradients(const LayersShared& shared, const LayersRun& run) {
    LayerScales scales = scales_of<L>(shared, run);
    if (!SCALES) scales.of_weights = scales.of_biases = 1;
    return scales;
}
