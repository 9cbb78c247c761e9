// Computes: a training run of a network with no hidden layer or one: for each step of each epoch forward pass,
//           loss, backward pass, and SGD with momentum.
// Layout:   batches (steps, PARTS, BATCH, X_WIDTH + 8) 16-bit and targets (steps, BATCH, TARGET_WORDS) of all epochs,
//           as gather_batches leaves them; PARTS is CLUSTER without a hidden layer, else 1. w1 (FEATURES, ALL_UNITS),
//           ALL_UNITS being HIDDEN, or OUTPUTS without a hidden layer; w2 (HIDDEN, OUTPUTS); biases; velocities
//           of each, if MOMENTUM; record (steps, REPLICAS, 3) float64: each replica's part of the loss, its rows, and
//           those that are right; rates (steps,) float32; gram and gram_scales, if AHEAD, as gram_batches leaves
//           them; exchanges (CLUSTER,), zeros, if there are replicas.
// Launch:   REPLICAS clusters of CLUSTER blocks of 32 (WARPS_K WARPS_U + ROW_WARPS + OUTPUT_WARPS + 1) threads, all
//           resident at once; SHARED_BYTES of dynamic shared memory. Defines: DTYPE, FEATURES, HIDDEN (0: none),
//           OUTPUTS, BATCH, CLUSTER (1, 2, 4, 8 or 16), REPLICAS (that share out a batch), WARPS_K, WARPS_U,
//           ROW_WARPS, OUTPUT_WARPS, WEIGHT_REGISTERS and OTHER_REGISTERS (of a thread; 0: as launched), SLOTS (of
//           the ring of x), KEPT (tiles of x that stay from the forward pass to the backward pass: all or none),
//           SUM_SLOTS (a power of two), OWN_OF_TILE (1 to 16, a power of two: rows of a tile whose loss one block
//           finds), GROUP (tiles that warps wait for together), AHEAD (1: products with a batch are found beside
//           the step before), ACTIVATION, LOSS, CROSS_ENTROPY, SMOOTHED and COUNTS_ROWS (0 or 1), MOMENTUM, NESTEROV, SHARED_BYTES, EXCHANGE_BYTES (of each
//           rank; 0 for one replica), BOUNDED_WAITS.
// Numerics: products of 16-bit numbers with float32 sums; weights, velocities and sums in float32, times
//           `scale`, a power of two that keeps gradients in the range of 16 bits. Sums in a fixed order.
// Cost:     of a step 4 BATCH ALL_UNITS FEATURES FLOP and the output layer's; each block reads its part of
//           the batch from L2 once, or twice if it is not kept, and from shared memory twice. In a cluster each
//           block sends 4 BATCH bytes for each of the outputs, padded to 16, and receives 2 BATCH for each. A block
//           of several replicas writes and reads its part of the weights, in float32, about three times.
// Reference: the layerwise engine over backends/numpy; PTX ISA 9.7.14.5 (ldmatrix, mma), 9.7.13.15 (mbarrier).
//
// Warps have roles, and wait for each other's tiles of 16 rows at barriers in shared memory:
//
//   weight warps    hold the weights that x meets: multiply a tile by them, and later add its part of the gradient;
//   row warps       take a tile from the sums of the product through loss and gradient, to dh;
//   output warps    update the output layer and the biases, and keep the record;
//   the loader      copies tiles into a ring.
//
// So a tile is on its way through the row warps and the cluster while the next ones are multiplied.
#include "include/loader.cuh"
#include "include/look_ahead.cuh"
#include "include/output_warps.cuh"
#include "include/row_warps.cuh"
#include "include/weight_warps.cuh"

// f(i) for each i below `count` that falls to this thread.
template <class F>
__device__ inline void each_of_block(int count, F f) {
    for (int i = threadIdx.x; i < count; i += 32 * WARPS) f(i);
}

// A vector in memory, or zeros for null, and its copy in shared memory that is times `scale`.
__device__ inline void read_scaled(float* held, const float* from, int width, int count, float scale) {
    each_of_block(width, [&](int i) { held[i] = from != nullptr && i < count ? from[i] * scale : 0; });
}

__device__ inline void write_scaled(float* to, const float* held, int count, float unscale) {
    each_of_block(count, [&](int i) { to[i] = held[i] * unscale; });
}

#if HIDDEN
__device__ inline void read_output_layer(OutputLayer& layer, const float* w, const float* v, float scale) {
    const Part units = own_units();
    each_of_block(UNIT_WIDTH * OUT_WIDTH, [&](int i) {
        const int unit = i / OUT_WIDTH, col = i % OUT_WIDTH, at = (units.first + unit) * OUTPUTS + col;
        const bool is_there = unit < units.count && col < OUTPUTS;
        const float weight = is_there ? w[at] : 0;
        layer.w[unit][col] = weight * scale;
        layer.half[0][unit][col] = store<T>(weight);
        if (MOMENTUM) layer.v[unit][col] = is_there ? v[at] * scale : 0;
    });
}

__device__ inline void write_output_layer(const OutputLayer& layer, float* w, float* v, float unscale) {
    const Part units = own_units();
    each_of_block(units.count * OUTPUTS, [&](int i) {
        const int at = units.first * OUTPUTS + i;
        w[at] = layer.w[i / OUTPUTS][i % OUTPUTS] * unscale;
        if (MOMENTUM) v[at] = layer.v[i / OUTPUTS][i % OUTPUTS] * unscale;
    });
}
#endif

__device__ inline void make_barriers(Shared& shared) {
    if (threadIdx.x > 0) return;
    for (int i = 0; i < GROUPS_AHEAD; ++i) mbarrier_init(&shared.x_full[i], 33 * GROUP);
    for (int i = 0; i < SLOTS; ++i) mbarrier_init(&shared.x_empty[i], WEIGHT_WARPS * OF_WARP);
    for (Barrier& empty : shared.sums_empty) mbarrier_init(&empty, OF_WARP);
    for (Barrier& full : shared.sums_full) mbarrier_init(&full, WEIGHT_WARPS * OF_WARP);
    for (int tile = 0; tile < OWN_TILES; ++tile) mbarrier_init(&shared.parts_full[tile], 1);
    for (Barrier& full : shared.dz_full) mbarrier_init(&full, GROUP * OF_WARP);
    for (Barrier& full : shared.dh_full) mbarrier_init(&full, HIDDEN_GROUP * OF_WARP);
    mbarrier_init(&shared.dh_empty, WEIGHT_WARPS * OF_WARP);
    mbarrier_init(&shared.outputs_ready, OUTPUT_WARPS * OF_WARP);
    mbarrier_init(&shared.biases_ready, OUTPUT_WARPS * OF_WARP);
    for (Barrier& full : shared.losses_full) mbarrier_init(&full, 1);
#if __CUDA_ARCH__ >= 900
    fence_mbarrier_init();
#endif
}

// Rows that no batch has are never copied, but multiplied.
__device__ inline void clear_ring(Shared& shared) {
    if (BATCH % (16 * REPLICAS) == 0) return;
    each_of_block(SLOTS * 16 * X_STRIDE / 2, [&](int i) { reinterpret_cast<unsigned*>(shared.x)[i] = 0; });
#if __CUDA_ARCH__ >= 900
    fence_async();
#endif
}

// Gradients of outputs that are not there are never sent, but multiplied.
__device__ inline void clear_gradients(Shared& shared) {
    each_of_block(ROWS * OUT_STRIDE, [&](int i) { (&shared.dz[0][0])[i] = T{0}; });
}

extern "C" __global__ void __launch_bounds__(32 * WARPS, 1)
    one_launch(const T* batches, const float* targets, const float* rates, float* w1, float* b1, float* w2,
               float* b2, float* w1_velocity, float* b1_velocity, float* w2_velocity, float* b2_velocity,
               double* record, const RowWords* gram, const float* gram_scales, Exchange* exchanges,
               int num_rows, int num_epochs, float scale, float momentum, float weight_decay, float slope,
               float loss_setting, float of_term, float of_slope) {
    DYNAMIC_SHARED(Shared, whole);
    Shared& shared = *whole;
    const LossSettings loss{loss_setting, of_term, of_slope};
    const Run run{rates,        num_rows, num_epochs, scale, 1 / scale,   momentum,
                  weight_decay, slope,    loss,       gram,  gram_scales, exchanges};
    const Part units = own_units();
    make_barriers(shared);
    clear_ring(shared);
    clear_gradients(shared);
#if HIDDEN
    read_scaled(shared.bias, b1 + units.first, UNIT_WIDTH, units.count, scale);
    read_scaled(shared.bias_velocity, MOMENTUM ? b1_velocity + units.first : nullptr, UNIT_WIDTH, units.count,
                scale);
    read_output_layer(shared.outputs, w2, w2_velocity, scale);
    float *output_bias = b2, *output_bias_velocity = b2_velocity;
#else
    float *output_bias = b1, *output_bias_velocity = b1_velocity;
#endif
    read_scaled(shared.output_bias, output_bias, OUT_WIDTH, OUTPUTS, scale);
    read_scaled(shared.output_bias_velocity, output_bias_velocity, OUT_WIDTH, OUTPUTS, scale);
    barrier_of_cluster();  // no block writes to another that has not begun

    const int warp = threadIdx.x / 32;
    if (warp < WEIGHT_WARPS) {
        take_registers<WEIGHT_REGISTERS>();
        train_weights(shared, run, w1, w1_velocity);
    } else {
        leave_registers<OTHER_REGISTERS>();
        const int other = warp - WEIGHT_WARPS;
        if (other < ROW_WARPS) {
            AHEAD ? look_ahead(shared, run, other) : pass_tiles(shared, run, other);
        } else if (other < ROW_WARPS + OUTPUT_WARPS) {
            train_outputs(shared, run, record, other - ROW_WARPS);
        } else {
            load_batches(shared, run, batches, targets);
        }
    }
    __syncwarp();
    barrier_of_cluster();           // nor to one that has left
    if (own_replica() > 0) return;  // all have the same
#if HIDDEN
    write_scaled(b1 + units.first, shared.bias, units.count, run.unscale);
    if (MOMENTUM) write_scaled(b1_velocity + units.first, shared.bias_velocity, units.count, run.unscale);
    write_output_layer(shared.outputs, w2, w2_velocity, run.unscale);
#endif
    if (own_rank() > 0) return;  // all blocks have the same biases of the outputs
    write_scaled(output_bias, shared.output_bias, OUTPUTS, run.unscale);
    if (MOMENTUM) write_scaled(output_bias_velocity, shared.output_bias_velocity, OUTPUTS, run.unscale);
}
