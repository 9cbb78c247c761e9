// Computes: a training run of a network with no hidden layer or one: for each step of each epoch
//           forward pass, loss, backward pass, and the optimizer's update.
// Layout:   batches (steps, PARTS, BATCH, X_WIDTH + 8) 16-bit and targets (steps, BATCH,
//           TARGET_WORDS) of all epochs, as gather_batches leaves them; PARTS is CLUSTER without a
//           hidden layer, else 1. w1 (FEATURES, ALL_UNITS), ALL_UNITS being HIDDEN, or OUTPUTS
//           without a hidden layer; w2 (HIDDEN, OUTPUTS); biases; the optimizer state of each, as
//           far as there are SLOTS, all float32; record (steps, REPLICAS, 3) float64: each
//           replica's part of the loss, its rows, and those that are right; rules (steps,): float32
//           rates, or StepSettings if ADAPTIVE; gram and gram_scales, if AHEAD, as gram_batches
//           leaves them; exchanges (CLUSTER,), zeros, if there are replicas.
// Launch:   REPLICAS clusters of CLUSTER blocks of 32 (WARPS_K WARPS_U + ROW_WARPS + OUTPUT_WARPS +
//           1) threads, all resident at once; SHARED_BYTES of dynamic shared memory. Settings:
//           OneLaunchConfig of resident_config.py.
// Numerics: products of 16-bit numbers with float32 sums; weights, their optimizer state, and sums
//           in float32. `scale` is a power of two that keeps gradients in the range of 16 bits:
//           they come times it, and so do SGD's weights and velocities. Sums in a fixed order.
// Cost:     of a step 4 BATCH ALL_UNITS FEATURES FLOP and the output layer's; each block reads its
//           part of the batch from L2 once, or twice if it is not kept, and from shared memory
//           twice. In a cluster each block sends 4 BATCH bytes for each of the outputs, padded to
//           16, and receives 2 BATCH for each. A block of several replicas writes and reads its
//           part of the weights, in float32, about three times.
// Reference: the layerwise engine over backends/numpy; PTX ISA 9.7.14.5 (ldmatrix, mma), 9.7.13.15
//   (mbarrier).
//
// Warps have roles, and wait for each other's tiles of 16 rows at barriers in shared memory:
//
//   weight warps    hold the weights that x meets: multiply a tile by them, and later add its part
//   of the gradient; row warps       take a tile from the sums of the product through loss and
//   gradient, to dh; output warps    update the output layer and the biases, and keep the record;
//   the loader      copies tiles into a ring.
//
// So a tile is on its way through the row warps and the cluster while the next ones are multiplied.
#include "ops/loss/loss_terms.cuh"
#include "ops/optim/update_rules.cuh"

namespace config {
#include <config>  // the settings, as the host declares them
}
constexpr int CARDS = 1;
using namespace config;

#include "base/block.cuh"
#include "resident/feed/loader.cuh"
#include "resident/loss/output_warps.cuh"
#include "resident/products/weight_warps.cuh"
#include "resident/rows/look_ahead.cuh"
#include "resident/rows/row_warps.cuh"

// A vector in memory, or zeros for null, and its copy in shared memory that is times `scale`.
__device__ inline void read_scaled(float* held, const float* from, int width, int count,
                                   float scale) {
    each_of_block<32 * WARPS>(
        width, [&](int i) { held[i] = from != nullptr && i < count ? from[i] * scale : 0; });
}

__device__ inline void write_scaled(float* to, const float* held, int count, float unscale) {
    each_of_block<32 * WARPS>(count, [&](int i) { to[i] = held[i] * unscale; });
}

// Some of a layer's biases, from `first` on, with their optimizer state.
template <int WIDTH>
__device__ inline void read_biases(float (&biases)[WIDTH], float (&slots)[SLOT_PLACES][WIDTH],
                                   const LayerArrays& layer, int first, int count, float scale) {
    read_scaled(biases, layer.b + first, WIDTH, count, scale);
    for (int slot = 0; slot < SLOT_PLACES; ++slot)
        read_scaled(slots[slot], SLOTS ? layer.b_slots[slot] + first : nullptr, WIDTH, count,
                    scale);
}

template <int WIDTH>
__device__ inline void write_biases(const LayerArrays& layer, const float (&biases)[WIDTH],
                                    const float (&slots)[SLOT_PLACES][WIDTH], int first, int count,
                                    float unscale) {
    write_scaled(layer.b + first, biases, count, unscale);
    for (int slot = 0; slot < SLOTS; ++slot)
        write_scaled(layer.b_slots[slot] + first, slots[slot], count, unscale);
}

__device__ inline void read_output_layer(OutputLayer& layer, const LayerArrays& from, float scale) {
    const Part units = own_units();
    each_of_block<32 * WARPS>(UNIT_WIDTH * OUT_WIDTH, [&](int i) {
        const int unit = i / OUT_WIDTH, col = i % OUT_WIDTH,
                  at = (units.first + unit) * OUTPUTS + col;
        const bool is_there = unit < units.count && col < OUTPUTS;
        const float weight = is_there ? from.w[at] : 0;
        layer.w[unit][col] = weight * scale;
        layer.half[0][unit][col] = store<T>(weight);
        for (int slot = 0; slot < SLOTS; ++slot)
            layer.slots[slot][unit][col] = is_there ? from.w_slots[slot][at] * scale : 0;
    });
}

__device__ inline void write_output_layer(const LayerArrays& to, const OutputLayer& layer,
                                          float unscale) {
    const Part units = own_units();
    each_of_block<32 * WARPS>(units.count * OUTPUTS, [&](int i) {
        const int at = units.first * OUTPUTS + i;
        to.w[at] = layer.w[i / OUTPUTS][i % OUTPUTS] * unscale;
        for (int slot = 0; slot < SLOTS; ++slot)
            to.w_slots[slot][at] = layer.slots[slot][i / OUTPUTS][i % OUTPUTS] * unscale;
    });
}

__device__ inline void make_barriers(OneLaunchShared& shared) {
    if (threadIdx.x > 0) return;
    for (int i = 0; i < GROUPS_AHEAD; ++i) mbarrier_init(&shared.x_full[i], 33 * GROUP / TURN);
    for (int i = 0; i < RING; ++i) mbarrier_init(&shared.x_empty[i], WEIGHT_WARPS * OF_WARP);
    for (Barrier& empty : shared.sums_empty) mbarrier_init(&empty, OF_WARP);
    for (Barrier& full : shared.sums_full) mbarrier_init(&full, WEIGHT_WARPS * OF_WARP);
    for (int tile = 0; tile < OWN_TILES; ++tile) mbarrier_init(&shared.parts_full[tile], 1);
    for (Barrier& full : shared.dz_full) mbarrier_init(&full, GROUP * OF_WARP);
    for (Barrier& full : shared.dh_full) mbarrier_init(&full, HIDDEN_GROUP * OF_WARP);
    mbarrier_init(&shared.dh_empty, DH_READERS * OF_WARP);
    if constexpr (DIVIDED) {
        for (Barrier& full : divided(shared).sums_full) mbarrier_init(&full, 4 / FEATURE_PARTS);
        for (Barrier& full : divided(shared).dh_full) mbarrier_init(&full, 1);
    }
    mbarrier_init(&shared.outputs_ready, OUTPUT_WARPS * OF_WARP);
    mbarrier_init(&shared.biases_ready, OUTPUT_WARPS * OF_WARP);
    for (Barrier& full : shared.losses_full) mbarrier_init(&full, 1);
    if constexpr (GENERATION >= 90) fence_mbarrier_init();
}

// Rows that no batch has are never copied, but multiplied.
__device__ inline void clear_ring(OneLaunchShared& shared) {
    if (BATCH % (16 * REPLICAS) == 0) return;
    clear_by_block<32 * WARPS>(reinterpret_cast<unsigned*>(shared.x), X_SLOTS * 16 * X_STRIDE / 2);
    if constexpr (GENERATION >= 90) fence_async();
}

// Gradients of outputs that are not there are never sent, but multiplied.
__device__ inline void clear_gradients(OneLaunchShared& shared) {
    clear_by_block<32 * WARPS>(&shared.dz[0][0], ROWS * OUT_STRIDE);
}

// Row warps that are warpgroups of their own may have more registers than others.
constexpr bool ROWS_APART = ROW_REGISTERS != OTHER_REGISTERS;
static_assert(!ROWS_APART || (WEIGHT_WARPS % 4 == 0 && ROW_WARPS % 4 == 0), "whole warpgroups");

__device__ inline void pass_rows(OneLaunchShared& shared, const OneLaunchRun& run, int warp) {
    if constexpr (AHEAD) {
        look_ahead(shared, run, warp);
    } else {
        pass_tiles(shared, run, warp);
    }
}

#include <arguments>  // struct Arguments, as the host packs it

extern "C" __global__ void __launch_bounds__(32 * WARPS, 1)
    one_launch(const __grid_constant__ Arguments arguments) {
    know_threads<32 * WARPS>();
    DYNAMIC_SHARED(OneLaunchWhole, whole);
    OneLaunchShared& shared = *whole;
    const float scale = arguments.scale, unscale = 1 / scale;
    const OneLaunchRun run{arguments.rules,
                           arguments.num_rows,
                           arguments.num_epochs,
                           ADAPTIVE ? 1 : scale,
                           ADAPTIVE ? 1 : unscale,
                           arguments.slope,
                           arguments.loss,
                           arguments.gram,
                           arguments.gram_scales,
                           arguments.exchanges,
                           scale,
                           unscale,
                           arguments.rule};
    const Part units = own_units();
    make_barriers(shared);
    clear_ring(shared);
    clear_gradients(shared);
    const LayerArrays first = arguments.first, last = HIDDEN ? arguments.last : first;
    if constexpr (HIDDEN > 0) {
        read_biases(shared.bias, shared.bias_slots, first, units.first, units.count, run.scale);
        read_output_layer(shared.outputs, last, run.scale);
    }
    read_biases(shared.output_bias, shared.output_bias_slots, last, 0, OUTPUTS, run.scale);
    barrier_of_cluster();  // no block writes to another that has not begun

    const int warp = threadIdx.x / 32;
    if (warp < WEIGHT_WARPS) {
        take_registers<WEIGHT_REGISTERS>();
        train_weights(shared, run, first);
    } else {
        const int other = warp - WEIGHT_WARPS;
        // All warps of a warpgroup have to leave registers by the same instruction.
        if (ROWS_APART && other < ROW_WARPS) {
            leave_registers<ROW_REGISTERS>();
            pass_rows(shared, run, other);
        } else {
            leave_registers<OTHER_REGISTERS>();
            if (!ROWS_APART && other < ROW_WARPS) {
                pass_rows(shared, run, other);
            } else if (other < ROW_WARPS + OUTPUT_WARPS) {
                train_outputs(shared, run, arguments.record, other - ROW_WARPS);
            } else {
                load_batches(shared, run, arguments.batches, arguments.targets);
            }
        }
    }
    __syncwarp();
    barrier_of_cluster();           // nor to one that has left
    if (own_replica() > 0) return;  // all have the same
    if constexpr (HIDDEN > 0) {
        write_biases(first, shared.bias, shared.bias_slots, units.first, units.count, run.unscale);
        write_output_layer(last, shared.outputs, run.unscale);
    }
    if (own_rank() > 0) return;  // all blocks have the same biases of the outputs
    write_biases(last, shared.output_bias, shared.output_bias_slots, 0, OUTPUTS, run.unscale);
}
