// Computes: a training run of a small network of linear layers in one block: for each step of each
//           epoch forward pass, loss, backward pass, and the optimizer's update.
// Layout:   batches (steps, BATCH, X_STRIDE) 16-bit and targets (steps, BATCH, TARGET_WORDS) of all
//           epochs, as gather_batches leaves them; settings (steps,); places: of each layer where
//           its weights (inputs, units) lie, their optimizer state, its biases (units,), and their
//           optimizer state, all float32; record (steps, 3) float64: loss, rows, and those that are
//           right.
// Launch:   one block of 128 GROUPS + 32 threads; SHARED_BYTES of dynamic shared memory, from a
//           multiple of 1024. Settings: SmallConfig of resident_config.py.
// Numerics: products of 16-bit numbers with float32 sums; parameters, their optimizer state and
//           sums in float32. `scale` is a power of two that keeps gradients in the range of 16
//           bits. Sums in a fixed order.
// Cost:     of a step 6 BATCH FLOP a weight, less 2 BATCH for each of the first layer, of layers
//   filled up.
// Reference: the layerwise engine over backends/numpy; PTX ISA 9.7.15 (wgmma).
//
// Groups of four warps take 64 rows each through all layers and back, a warp 16 of them, and wait
// for nobody. Then all groups find the gradients of their weights over all rows, and update them.
// So the warps that train meet twice a step; one more warp brings batches and keeps the record.
#define SHARED_ALIGNMENT 1024

#include "ops/loss/loss_terms.cuh"
#include "ops/optim/update_rules.cuh"

namespace config {
#include <config>  // the settings, as the host declares them
}
using namespace config;

#include "base/block.cuh"
#include "resident/record/steps.cuh"
#include "resident/rows/group_rows.cuh"
#include "resident/update/group_weights.cuh"

// -- batches --------------------------------------------------------------------------------------

// Of a batch of so many rows those that this block has.
__device__ inline int own_rows(int count) {
    return CLUSTER > 1 ? clamped(count - own_rank() * BLOCK_BATCH, BLOCK_BATCH) : count;
}

// Starts to copy a step's batch, its targets and its settings.
__device__ inline void load_batch(SmallShared& shared, const SmallRun& run, int step) {
    const int stage = step % STAGES, lane = own_lane(), count = own_rows(BATCH);
    const int64 first = static_cast<int64>(step) * BATCH + own_rank() * BLOCK_BATCH;
    Barrier& full = shared.x_full[stage];
    const unsigned bytes = count * X_STRIDE * sizeof(T);
    if (lane == 0) {
        mbarrier_expect(&full, bytes + sizeof(StepSettings));
        copy_bulk(shared.x[stage], run.batches + first * X_STRIDE, bytes, &full);
        copy_bulk(&shared.settings[stage], run.settings + step, sizeof(StepSettings), &full);
    }
    const float* targets = run.targets + first * TARGET_WORDS;
    for (int i = lane; i < count * TARGET_WORDS; i += 32)
        copy_async_4(&shared.targets[stage][0][0] + i, targets + i, true);
    copy_async_arrive(&full);
}

// Brings batches ahead, and writes the record of each step that is done.
__device__ inline void serve(SmallShared& shared, const SmallRun& run, const Step& first) {
    const int num_steps = first.num_steps;
    for (int i = 0; i < STAGES && i < num_steps; ++i) load_batch(shared, run, i);
    for (Step step = first; step.is_there(); step.advance()) {
        wait_or_give_up(shared.x_free[step.index % STAGES], step.index / STAGES);
        if (step.index + STAGES < num_steps) load_batch(shared, run, step.index + STAGES);
        const int count = step.count();
        write_record(run.record + 3 * (static_cast<int64>(step.index) * CLUSTER + own_rank()),
                     shared.losses[step.index % 2], own_rows(count), count,
                     own_rank() == 0 ? count : 0);
    }
}

// -- training -------------------------------------------------------------------------------------

template <int N>
struct Index {
    static constexpr int VALUE = N;
};

// f(Index of the thread's group).
template <int G = 0, class F>
__device__ inline void for_own_group(unsigned group, F f) {
    if (G + 1 == GROUPS || group == G)
        f(Index<G>{});
    else if constexpr (G + 1 < GROUPS)
        for_own_group<G + 1>(group, f);
}

// f(number in shared memory, its place in memory) for biases and their optimizer state.
template <int L = 0, class F>
__device__ inline void each_bias(SmallShared& shared, const Arrays& arrays, F f) {
    for (int slot = -1; slot < SLOTS; ++slot) {
        float* own = L < HIDDEN ? shared.biases[L < HIDDEN ? L : 0][1 + slot]
                                : shared.out_biases[1 + slot];
        each_of_block<TRAINING_THREADS>(
            WIDTHS[L + 1], [&](int i) { f(own[i], arrays.template biases<L>(slot) + i); });
    }
    if constexpr (L < HIDDEN) each_bias<L + 1>(shared, arrays, f);
}

// Each layer's weights as products take them.
template <int L = 0>
__device__ inline void store_all_weights(SmallShared& shared, const Arrays& arrays) {
    constexpr int WIDTH = WIDTHS[L + 1];
    const float* weights = arrays.template weights<L>(-1);
    each_of_block<TRAINING_THREADS>(WIDTHS[L] * WIDTH, [&](int i) {
        const int line = i / WIDTH, unit = i % WIDTH;
        const T number = store<T>(weights[i]);
        if constexpr (L < HIDDEN) {
            unsigned char* lines = shared.weights[L < HIDDEN ? L : 0];
            const int place = line * LINE_BYTES + (unit / 8 ^ line % 8) * 16 + unit % 8 * 2;
            *reinterpret_cast<T*>(lines + place) = number;
        } else {
            shared.out_weights[unit / 8][line][unit % 8] = number;
        }
    });
    if constexpr (L < HIDDEN) store_all_weights<L + 1>(shared, arrays);
}

struct ReadWeight {
    const Arrays& arrays;
    template <int L>
    __device__ void operator()(float& number, int slot, int place) const {
        number = arrays.template weights<L>(slot)[place];
    }
};

struct WriteWeight {
    const Arrays& arrays;
    template <int L>
    __device__ void operator()(float number, int slot, int place) const {
        arrays.template weights<L>(slot)[place] = number;
    }
};

__device__ inline void train(SmallShared& shared, const SmallRun& run, const Arrays& arrays,
                             const Step& first) {
    const unsigned group = uniform(threadIdx.x / GROUP_THREADS);
    HeldWeights held = {};
    each_bias(shared, arrays, [](float& number, const float* place) { number = *place; });
    store_all_weights(shared, arrays);
    for_own_group(group, [&](auto own) { each_weight<own.VALUE>(held, ReadWeight{arrays}); });
    if (group == 0)
        each_out_weight(shared, [&](float& number, int slot, int place) {
            number = arrays.weights<HIDDEN>(slot)[place];
        });
    hand_over();
    for (Step step = first; step.is_there(); step.advance()) {
        const int stage = step.index % STAGES, count = own_rows(step.count());
        wait(shared.x_full[stage], step.index / STAGES);
        OwnLoss loss{run.scale / step.count(), count, {}};
        if (group < ROW_GROUPS) take_rows(shared, run, loss, stage);
        hand_over();
        if (group < ROW_GROUPS)
            loss.find(shared.losses[step.index % 2], run, shared.targets[stage]);
        const StepSettings settings = shared.settings[stage];
        for_own_group(group, [&](auto own) {
            update_group<own.VALUE>(shared, run, settings, held, stage, step.index);
        });
        hand_over();
        if (threadIdx.x == 0) mbarrier_arrive(&shared.x_free[stage]);
    }
    for_own_group(group, [&](auto own) { each_weight<own.VALUE>(held, WriteWeight{arrays}); });
    if (own_rank() > 0) return;  // all blocks have the same
    each_bias(shared, arrays, [](float number, float* place) { *place = number; });
    if (group == 0)
        each_out_weight(shared, [&](float number, int slot, int place) {
            arrays.weights<HIDDEN>(slot)[place] = number;
        });
}

#include <arguments>  // struct Arguments, as the host packs it

extern "C" __global__ void __launch_bounds__(THREADS, 1)
    one_launch_small_sm90(const __grid_constant__ Arguments arguments) {
    DYNAMIC_SHARED(SmallWhole, whole);
    SmallShared& shared = *whole;
    const SmallRun run{arguments.batches, arguments.targets,   arguments.settings,
                       arguments.record,  arguments.scale,     1 / arguments.scale,
                       arguments.loss,    arguments.rule};
    clear_by_block<THREADS>(reinterpret_cast<uint4*>(whole), sizeof(SmallWhole) / 16);
    __syncthreads();
    if (threadIdx.x == 0) {
        for (Barrier& full : shared.x_full) mbarrier_init(&full, 33);
        for (Barrier& free : shared.x_free) mbarrier_init(&free, 1);
        if constexpr (CLUSTER > 1) {
            Exchange& exchange = exchange_of(shared);
            for (auto& of_layer : exchange.sums_full)
                for (Barrier& full : of_layer) mbarrier_init(&full, 1);
            for (auto& of_layer : exchange.words_full)
                for (Barrier& full : of_layer) mbarrier_init(&full, 1);
            mbarrier_init(&exchange.outputs_full, 1);
        }
        fence_mbarrier_init();
    }
    fence_async();
    barrier_of_cluster();  // no block sends to another that has not begun
    const Step first(arguments.num_rows, arguments.num_epochs);
    if (threadIdx.x >= TRAINING_THREADS)
        serve(shared, run, first);
    else
        train(shared, run, Arrays{arguments.places}, first);
    barrier_of_cluster();  // nor to one that has left
}
