// Computes: a training run of a small network of linear layers in one block: for each step of each
//           epoch forward pass, loss, backward pass, and the optimizer's update.
// Layout:   batches (steps, BATCH, X_STRIDE) 16-bit and targets (steps, BATCH, TARGET_WORDS) of all
//           epochs, as gather_batches leaves them; settings (steps,); places: of each layer where
//           its weights (inputs, units) lie, their optimizer state, its biases (units,), and their
//           optimizer state, all float32; record (steps, 3) float64: loss, rows, and those that are
//           right.
// Launch:   one block of 32 WARPS threads; dynamic shared memory as one_launch_block.py counts it.
//           Settings: BlockConfig of resident_config.py.
// Numerics: products of 16-bit numbers with float32 sums, to which rounded biases are added;
//           parameters, their optimizer state and sums in float32. `scale` is a power of two that
//           keeps gradients in the range of 16 bits. Sums in a fixed order.
// Cost:     of a step 6 BATCH FLOP a weight, less 2 BATCH for each of the first layer.
// Reference: the layerwise engine over backends/numpy; PTX ISA 9.7.14.5 (ldmatrix, mma).
//
// ROW_WARPS of the warps take 16 rows each through all layers and back, and need nobody for it. Then
// all warps add up gradients and update: each has some tiles of 16 inputs by 8 units, in float32.
#include "ops/loss/loss_terms.cuh"
#include "ops/optim/update_rules.cuh"

namespace config {
#include <config>  // the settings, as the host declares them
}
using namespace config;

#include "base/block.cuh"
#include "narrow/narrow_pass.cuh"
#include "ptx/barriers.cuh"
#include "resident/layout/layer_stack.cuh"
#include "resident/record/steps.cuh"
#include "resident/update/parameters.cuh"

constexpr int X_STRIDE = stride_of(0), TARGET_WORDS = LOSS::HAS_LABELS ? 1 : OUTPUTS;

struct BlockShared {
    Barrier x_full[2];
    alignas(16) T ones[16];
    float targets[2][ROWS][TARGET_WORDS];
    RowLoss losses[ROWS];
};

struct BlockRun {
    const T* batches;
    const float* targets;
    double* record;
    float scale, unscale;
    LossSettings loss;
    RuleSettings rule;
};

// -- rows -----------------------------------------------------------------------------------------

// A warp starts to copy a step's batch and its targets.
__device__ inline void load_batch(T* shared, BlockShared& own, const BlockRun& run, int step) {
    const int stage = step % 2, lane = own_lane();
    Barrier& full = own.x_full[stage];
    T* to = shared + values_at(0) + stage * X_TILE_SIZE;
    const T* rows = run.batches + static_cast<int64>(step) * BATCH * X_STRIDE;
    if constexpr (GENERATION >= 90) {
        if (lane == 0) {
            constexpr unsigned BYTES = BATCH * X_STRIDE * sizeof(T);
            mbarrier_expect(&full, BYTES);
            copy_bulk(to, rows, BYTES, &full);
        }
    } else {
        for (int i = lane; i < BATCH * X_STRIDE / 8; i += WARP)
            copy_async_16(to + 8 * i, rows + 8 * i, true);
        if (lane == 0) mbarrier_arrive(&full);
    }
    const float* targets = run.targets + static_cast<int64>(step) * BATCH * TARGET_WORDS;
    for (int i = lane; i < BATCH * TARGET_WORDS; i += WARP)
        copy_async_4(&own.targets[stage][0][0] + i, targets + i, true);
    copy_async_arrive(&full);
}

// What the losses of a warp's 16 rows need once their outputs are gradients.
struct BlockLoss {
    const LossSettings& settings;
    float factor;
    int count;  // rows that the batch has
    OutputRest rests[2];

    __device__ static int row(int below) { return 16 * own_warp() + own_lane() / 4 + 8 * below; }

    __device__ void replace(RowSums<OUT_WIDTH>& outputs, const float (&targets)[ROWS][TARGET_WORDS]) {
        OutputRows<OUT_WIDTH / 8, OUTPUTS> rows{outputs.sums};
#pragma unroll
        for (int below = 0; below < 2; ++below)
            rests[below] = rows.replace(below, targets[row(below)], row(below) < count ? factor : 0,
                                        settings, EvenClasses{});
    }

    __device__ void find_losses(BlockShared& own, int stage) const {
#pragma unroll
        for (int below = 0; below < 2; ++below) {
            const RowLoss found =
                find_row_loss(rests[below], label_of(own.targets[stage][row(below)]), settings,
                              OUTPUTS, EvenClasses{}, row(below) < count);
            if (own_lane() % 4 == 0) own.losses[row(below)] = found;
        }
    }
};

// -- parameters -----------------------------------------------------------------------------------

// Tiles of the layers before one: 16 inputs by 8 units each, and after a layer's weights its
// biases, whose input is 1.
__device__ constexpr int tiles_before(int layer) {
    return layer == 0 ? 0
                      : tiles_before(layer - 1) +
                            (padded(layer - 1) / 16 + 1) * ((WIDTHS[layer] + 7) / 8);
}
constexpr int TILES = tiles_before(LAYERS), TILES_OF_WARP = (TILES + WARPS - 1) / WARPS;

struct ParameterTile {
    const T *values, *dz;  // columns of all rows
    T* copies;             // that products take
    int values_stride, of_stage, dz_stride;
    int inputs, units;  // that there are from the tile's first on
    int array, first, width;  // the first of the layer's in memory; in each, where the tile is
};

template <int L = 0>
__device__ inline ParameterTile tile_of(T* shared, const BlockShared& own, int number) {
    if constexpr (L + 1 < LAYERS) {
        if (number >= tiles_before(L + 1)) return tile_of<L + 1>(shared, own, number);
    }
    constexpr int ACROSS = (WIDTHS[L + 1] + 7) / 8;
    const int idx = number - tiles_before(L), input = idx / ACROSS * 16, unit = idx % ACROSS * 8;
    const bool is_bias = input == padded(L);
    return {is_bias ? own.ones : shared + values_at(L) + input,
            shared + dz_at(L) + unit,
            shared + (is_bias ? biases_at(L) : weights_at(L) + input * stride_of(L + 1)) + unit,
            is_bias ? 0 : stride_of(L),
            is_bias || L > 0 ? 0 : X_TILE_SIZE,
            stride_of(L + 1),
            is_bias ? 1 : WIDTHS[L] - input,
            WIDTHS[L + 1] - unit,
            (2 * L + is_bias) * (1 + SLOTS),
            (is_bias ? 0 : input * WIDTHS[L + 1]) + unit,
            WIDTHS[L + 1]};
}

// What a lane has of a tile: two neighbours of two inputs, as accumulators of mma lie.
struct HeldTile {
    float numbers[4], slots[4][SLOT_PLACES];

    // f(number, place) of each that the layer has, and with its optimizer state.
    template <class F>
    __device__ void each(const ParameterTile& tile, float* const* places, F f) {
        float* const* arrays = places + tile.array;
#pragma unroll
        for (int i = 0; i < 4; ++i) {
            const int input = own_lane() / 4 + 8 * (i / 2), unit = own_lane() % 4 * 2 + i % 2;
            const bool is_there = input < tile.inputs && unit < tile.units;
            const int at = tile.first + input * tile.width + unit;
            f(numbers[i], is_there ? arrays[0] + at : nullptr);
#pragma unroll
            for (int slot = 0; slot < SLOTS; ++slot)
                f(slots[i][slot], is_there ? arrays[1 + slot] + at : nullptr);
        }
    }

    __device__ void store_copies(const ParameterTile& tile) const {
        const int input = own_lane() / 4;
        T* to = tile.copies + input * tile.dz_stride + own_lane() % 4 * 2;
        if (input < tile.inputs)
            *reinterpret_cast<unsigned*>(to) = packed<T>(numbers[0], numbers[1]);
        if (input + 8 < tile.inputs)
            *reinterpret_cast<unsigned*>(to + 8 * tile.dz_stride) =
                packed<T>(numbers[2], numbers[3]);
    }

    // Padding stays 0: so are its gradients.
    __device__ void update(const float (&sums)[4], const BlockRun& run, const StepSettings& step) {
#pragma unroll
        for (int i = 0; i < 4; i += 2) {
            if constexpr (OwnRule::IS_LINEAR) {
                update_parameter(numbers[i], slots[i], sums[i], run.unscale, step, run.rule);
                update_parameter(numbers[i + 1], slots[i + 1], sums[i + 1], run.unscale, step,
                                 run.rule);
            } else {
                float pair[2] = {numbers[i], numbers[i + 1]};
                float of_pair[2][SLOT_PLACES];
#pragma unroll
                for (int j = 0; j < 2 * SLOT_PLACES; ++j)
                    of_pair[j / SLOT_PLACES][j % SLOT_PLACES] =
                        slots[i + j / SLOT_PLACES][j % SLOT_PLACES];
                fade_slots(of_pair[0], run.rule);
                fade_slots(of_pair[1], run.rule);
                update_pair(pair, of_pair, {sums[i], sums[i + 1]}, run.unscale, step, run.rule);
                numbers[i] = pair[0];
                numbers[i + 1] = pair[1];
#pragma unroll
                for (int j = 0; j < 2 * SLOT_PLACES; ++j)
                    slots[i + j / SLOT_PLACES][j % SLOT_PLACES] =
                        of_pair[j / SLOT_PLACES][j % SLOT_PLACES];
            }
        }
    }
};

// The gradient of a tile over all rows.
__device__ inline void add_rows(float (&sums)[4], const ParameterTile& tile, int stage) {
    const T* values = tile.values + stage * tile.of_stage;
#pragma unroll
    for (int k = 0; k < ROW_WARPS; k += 2) {
        constexpr int LAST = ROW_WARPS - 1;
        unsigned b[2][2];
        const int row = own_lane() % (k < LAST ? 32 : 16);
        ldmatrix_x4_trans(b[0][0], b[0][1], b[1][0], b[1][1],
                          tile.dz + (16 * k + row) * tile.dz_stride);
#pragma unroll
        for (int i = 0; i < 2; ++i) {
            if (k + i > LAST) continue;
            unsigned a[4];
            load_a_transposed(a, values + 16 * (k + i) * tile.values_stride, tile.values_stride);
            TensorCore<T>::multiply(sums, a, b[i]);
        }
    }
}

// f(tile, i) for each of the warp's.
template <class F>
__device__ inline void each_tile(F f) {
#pragma unroll
    for (int i = 0; i < TILES_OF_WARP; ++i) {
        const int number = own_warp() + i * WARPS;
        if (TILES % WARPS == 0 || number < TILES) f(number, i);
    }
}

#include <arguments>  // struct Arguments, as the host packs it

extern "C" __global__ void __launch_bounds__(THREADS, 1)
    one_launch_block(const __grid_constant__ Arguments arguments) {
    DYNAMIC_SHARED(T, shared);
    __shared__ BlockShared own;
    const BlockRun run{arguments.batches,     arguments.targets, arguments.record, arguments.scale,
                       1 / arguments.scale,   arguments.loss,    arguments.rule};
    clear_by_block<THREADS>(shared, SHARED_NUMBERS);
    clear_by_block<THREADS>(&own.targets[0][0][0], 2 * ROWS * TARGET_WORDS);
    each_of_block<THREADS>(16, [&](int i) { own.ones[i] = store<T>(1.0f); });
    if (threadIdx.x == 0) {
        for (Barrier& full : own.x_full) mbarrier_init(&full, 33);
        if constexpr (GENERATION >= 90) fence_mbarrier_init();
    }
    if constexpr (GENERATION >= 90) fence_async();
    __syncthreads();
    const int warp = own_warp();
    if (warp == WARPS - 1) load_batch(shared, own, run, 0);
    HeldTile held[TILES_OF_WARP];
    ParameterTile tiles[TILES_OF_WARP];
    each_tile([&](int number, int i) {
        tiles[i] = tile_of(shared, own, number);
        held[i].each(tiles[i], arguments.places, [](float& number, const float* place) {
            number = place != nullptr ? *place : 0;
        });
        held[i].store_copies(tiles[i]);
    });
    __syncthreads();

    const auto keep_record = [&](int step, int count) {
        if (warp == WARPS - 1) write_record(run.record + 3 * step, own.losses, count, count, count);
    };
    StepSettings next = arguments.settings[0];
    int last_count = 0;
    for (Step step(arguments.num_rows, arguments.num_epochs); step.is_there(); step.advance()) {
        const int stage = step.index % 2, count = step.count();
        const StepSettings now = next;
        if (step.index + 1 < step.num_steps) {
            next = arguments.settings[step.index + 1];
            if (warp == WARPS - 1) load_batch(shared, own, run, step.index + 1);
        }
        wait_or_give_up(own.x_full[stage], step.index / 2);
        BlockLoss loss{run.loss, run.scale / count, count, {}};
        if (warp < ROW_WARPS) {
            const T* rows = shared + values_at(0) + stage * X_TILE_SIZE + 16 * warp * X_STRIDE;
            go_on<0>(shared, 16 * warp, load_fragments<padded(0)>(rows, X_STRIDE), loss,
                     own.targets[stage]);
        }
        if (step.index > 0) keep_record(step.index - 1, last_count);
        last_count = count;
        __syncthreads();
        float sums[TILES_OF_WARP][4] = {};
        each_tile([&](int, int i) { add_rows(sums[i], tiles[i], stage); });
        if (warp < ROW_WARPS) loss.find_losses(own, stage);
        each_tile([&](int, int i) {
            held[i].update(sums[i], run, now);
            held[i].store_copies(tiles[i]);
        });
        __syncthreads();
    }
    keep_record(static_cast<int>(Step(arguments.num_rows, arguments.num_epochs).num_steps) - 1,
                last_count);
    each_tile([&](int number, int i) {
        held[i].each(tile_of(shared, own, unforeseen(number)), arguments.places,
                     [](float number, float* place) {
            if (place != nullptr) *place = number;
        });
    });
}
