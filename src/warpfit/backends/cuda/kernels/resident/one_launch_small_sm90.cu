// Computes: a training run of a small network of linear layers: for each step of each epoch forward
//           pass, loss, backward pass, and the optimizer's update.
// Layout:   batches (steps, BATCH, X_STRIDE) 16-bit and targets (steps, BATCH, TARGET_WORDS) of all
//           epochs, as gather_batches leaves them; settings (steps,); places: of each layer where
//           its weights (inputs, units) lie, their optimizer state, its biases (units,), and their
//           optimizer state, all float32; record (steps, CLUSTER, 3) float64, to be added up over
//           the blocks: loss, rows, and those that are right.
// Launch:   a cluster of CLUSTER blocks of 128 (GROUPS + 2) threads; SHARED_BYTES of dynamic shared
//           memory, from a multiple of 1024. Settings: SmallConfig of resident_config.py.
// Numerics: products of 16-bit numbers with float32 sums; parameters, their optimizer state and
//           sums in float32. `scale` is a power of two that keeps gradients in the range of 16
//           bits. Sums in a fixed order.
// Cost:     of a step 6 BATCH FLOP a weight, less 2 BATCH for each of the first layer, of layers
//           filled up. Of several blocks each sends the others 4 bytes for each weight, and 2.
// Reference: the layerwise engine over backends/numpy; PTX ISA 9.7.15 (wgmma).
//
// Groups of four warps take 64 rows each through all layers and back, a warp 16 of them, and wait
// for nobody. Then all groups find the gradients of their weights over all rows, and update them:
// all warps of a block but one meet twice a step. Straight code costs more than what it computes,
// as a multiprocessor keeps only a part of a step's: so all groups do the same with other tiles.
#define SHARED_ALIGNMENT 1024

#include "ops/loss/loss_terms.cuh"
#include "ops/optim/update_rules.cuh"

namespace config {
#include <config>  // the settings, as the host declares them
}
using namespace config;

#include "base/block.cuh"
#include "resident/rows/group_rows.cuh"
#include "resident/update/group_helpers.cuh"

// f(number in shared memory, its place in memory) for biases and their optimizer state: of a unit a
// thread's, found anew.
template <int L = 0, class F>
__device__ inline void each_bias(SmallShared& shared, const Arrays& arrays, F f) {
    const int unit = static_cast<int>(own_thread());
#pragma unroll 1
    for (int slot = -1; slot < SLOTS && unit < WIDTHS[L + 1]; ++slot)
        f(shared.biases[1 + slot][L][unit], arrays.template biases<L>(slot) + unit);
    if constexpr (L < HIDDEN) each_bias<L + 1>(shared, arrays, f);
}

// Gets shared memory ready for the first step. What no batch and no layer has stays 0.
__device__ inline void prepare(SmallWhole& whole, const Arrays& arrays) {
    SmallShared& shared = whole;
    clear_by_block<THREADS>(reinterpret_cast<uint4*>(&whole), sizeof(SmallWhole) / 16);
    __syncthreads();
    if (threadIdx.x == 0) {
        mbarrier_init(&shared.x_full, 33);
        mbarrier_init(&shared.x_free, AT_WORK / 32 * OF_WARP);
        for (Barrier& full : shared.losses_full) mbarrier_init(&full, HELPING_WARPS * OF_WARP);
        if constexpr (CLUSTER > 1) {
            Exchange& exchange = exchange_of(shared);
            for (Barrier& full : exchange.sums_full) mbarrier_init(&full, 1);
            mbarrier_init(&exchange.words_full, 1);
            for (Barrier& full : exchange.biases_full) mbarrier_init(&full, 1);
        }
        fence_mbarrier_init();
    }
    each_bias(shared, arrays, [](float& number, const float* place) { number = *place; });
    fence_async();
    barrier_of_cluster();  // no block sends to another that has not begun
}

#include <arguments>  // struct Arguments, as the host packs it

// What groups of the hidden layers do in all steps.
__device__ inline void train(SmallShared& shared, const SmallRun& run, const Arrays& arrays,
                             unsigned group, const Arguments& arguments) {
    const Step first(arguments.num_rows, arguments.num_epochs);
    HeldWeights<false> held{group};
    held.begin(shared, arrays);
    hand_over();
    const float of_whole = run.scale / BATCH, of_last = run.scale / (first.num_rows % BATCH);
    for (Step step = first; step.is_there(); step.advance()) {
        const int index = step.index, count = step.count();
        wait(shared.x_full, index);
        if (group < ROW_GROUPS)
            take_rows(shared, run, {count == BATCH ? of_whole : of_last, own_rows(count), index});
        else
            arrive_warp(shared.x_free);
        hand_over();
        const StepSettings settings = shared.settings[index % 2];
        held.update(shared, run, settings, index);
        hand_over();
    }
    held.each(arrays, [](float number, float* place) { *place = number; });
}

extern "C" __global__ void __launch_bounds__(THREADS, 1)
    one_launch_small_sm90(const __grid_constant__ Arguments arguments) {
    DYNAMIC_SHARED(SmallWhole, whole);
    SmallShared& shared = *whole;
    const SmallRun run{arguments.batches, arguments.targets, arguments.settings, arguments.record,
                       arguments.scale,   arguments.loss,    arguments.rule};
    const Arrays arrays{arguments.places};
    prepare(*whole, arrays);
    const unsigned group = uniform(threadIdx.x / GROUP_THREADS);
    if (group >= GROUPS) {
        leave_registers<HELPER_REGISTERS>();
        const Step first(arguments.num_rows, arguments.num_epochs);
        if (own_warp() == AT_WORK / 32)
            keep_books(shared, run, first);
        else
            help(shared, run, arrays, group, first);
    } else {
        take_registers<GROUP_REGISTERS>();
        train(shared, run, arrays, group, arguments);
    }
    barrier_of_cluster();  // no block leaves while others send to it
    if (own_rank() == 0)   // all have the same
        each_bias(shared, arrays, [](float number, float* place) { *place = number; });
}
