// Computes: a training run of a network of linear layers: for each step of each epoch forward pass, loss, backward pass,
//           and the optimizer's update.
// Layout:   batches (steps, BATCH, X_WIDTH + 8) 16-bit and targets (steps, BATCH, TARGET_WORDS + WEIGHTED) of
//           all epochs, as gather_batches leaves them; settings (steps,); places: of each layer where its
//           weights (inputs, units) lie, what the optimizer remembers of them, its biases (units,), and what it
//           remembers of those, all float32; dropouts (LAYERS,); class_weights (OUTPUTS + 1,), the last their
//           mean; far_slots (CLUSTER, FAR_TILES, 2 SLOTS, 32 WARPS), anything; exchanges (CLUSTER,), zeros, if
//           there are replicas; record (steps, RECORDERS, 3) float64, to be added up: loss, weight, and rows that
//           are right.
// Launch:   REPLICAS clusters of CLUSTER blocks of 32 WARPS threads, all resident if there are several;
//           SHARED_BYTES of dynamic shared memory. Defines: DTYPE, LAYERS, WIDTHS (of features and of each
//           layer's units, a list), ACTIVATIONS, SLOPES and DROPOUTS (0 or 1; lists, too), BATCH, CLUSTER (1, 2,
//           4, 8 or 16), REPLICAS (that share out a batch), WARPS (a power of two), OPTIMIZER, SLOTS (numbers that
//           it remembers of a parameter), HELD_TILES, NEAR_TILES and FAR_TILES (tiles of a warp of which they are
//           in registers, shared memory and memory), MOMENTUM, NESTEROV, DECAYS, LOSS, CROSS_ENTROPY, SMOOTHED,
//           COUNTS_ROWS, WEIGHTED, CLASS_WEIGHTS, PENALIZED, CLIPS, RATE_IN_VELOCITY (0 or 1), X_SLOTS (batches
//           in shared memory, 1 or 2), UNIT_COPIES (of the first layer's units, likewise), SUMS (parts of
//           products there), SHARED_BYTES, EXCHANGE_BYTES (for each rank), BOUNDED_WAITS.
// Numerics: products of 16-bit numbers with float32 sums; weights and sums in float32; gradients times `scale`, a power
//           of two that keeps them in the range of 16 bits. Sums in a fixed order.
// Cost:     of a step 6 BATCH FLOP for each weight, or 4 for one of the first layer; those of all layers between are
//           updated twice. In a cluster, each block reads the batch, and sends its units and gradients to all.
// Reference: the layerwise engine over backends/numpy; PTX ISA 9.7.14.5 (ldmatrix, mma), 9.7.13.15 (mbarrier).
//
// A block goes layer by layer: all its warps multiply by their part of the weights; then a barrier; then they add up
// the parts, and what becomes of them goes to all blocks of the cluster. While it is on its way back, weights that are
// not needed any more are updated.
#include "include/layer_sums.cuh"
#if REPLICAS > 1
#include "include/layer_replicas.cuh"
#else
#include "include/layer_weights.cuh"
#endif

// f(i) for each i below `count` that falls to this thread.
template <class F>
__device__ inline void each_of_block(int count, F f) {
    for (int i = threadIdx.x; i < count; i += 32 * WARPS) f(i);
}

// The first warp starts to copy the batch of a step, and its targets.
__device__ inline void load_batch(Shared& shared, const Run& run, int step) {
    if (threadIdx.x >= 32) return;
    const int lane = threadIdx.x, slot = step % X_SLOTS;
    const int count = own_rows(BATCH), first_target = SEES_ALL_TARGETS ? 0 : first_row();
    const T* rows = run.batches + (static_cast<int64>(step) * BATCH + first_row()) * X_STRIDE;
    constexpr int WORDS = TARGET_WORDS + WEIGHTED;
    const float* targets = run.targets + (static_cast<int64>(step) * BATCH + first_target) * WORDS;
    Barrier& full = shared.x_full[slot];
#if __CUDA_ARCH__ >= 900
    if (lane == 0) {
        const unsigned bytes = count * X_STRIDE * sizeof(T);
        mbarrier_expect(&full, bytes);
        copy_bulk(shared.x[slot], rows, bytes, &full);
    }
#else
    for (int i = lane; i < count * X_STRIDE / 8; i += 32)
        copy_async_16(&shared.x[slot][0][0] + i * 8, rows + i * 8, true);
    if (lane == 0) mbarrier_arrive(&full);
#endif
    for (int i = lane; i < (SEES_ALL_TARGETS ? BATCH : count) * WORDS; i += 32)
        copy_async_4(&shared.targets[slot][0][0] + i, targets + i, true);
    copy_async_arrive(&full);
}

// Rows that no batch has, and columns that no layer has, are multiplied, but never written.
__device__ inline void clear(Shared& shared) {
    each_of_block(sizeof(Shared) / 16, [&](int i) { reinterpret_cast<uint4*>(&shared)[i] = uint4{}; });
#if __CUDA_ARCH__ >= 900
    fence_async();
#endif
    __syncthreads();
}

template <int L = 0>
__device__ inline void make_barriers(Shared& shared) {
    if constexpr (!Shape<L>::IS_LAST) {
        LayerRows<L>& rows = layer_of<L>(shared.layers);
        for (Barrier& full : rows.y_full) mbarrier_init(&full, 1);
        mbarrier_init(&rows.dz_full, 1);
        make_barriers<L + 1>(shared);
    } else {
        for (Barrier& full : shared.x_full) mbarrier_init(&full, 33);
        mbarrier_init(&shared.squares_full, 1);
#if __CUDA_ARCH__ >= 900
        fence_mbarrier_init();
#endif
    }
}

// f(number in shared memory, its place in memory) for this block's biases, and what is remembered of them. Of
// layers that all blocks have, to write takes only the first.
template <bool WRITES, int L = 0, class F>
__device__ inline void each_bias(Shared& shared, const Arrays& arrays, F f) {
    Biases<L>& biases = layer_of<L>(shared.layers).biases;
    const bool has_part = !WRITES || ((Shape<L>::IS_SHARED_OUT || own_rank() == 0) && own_replica() == 0);
    each_of_block(has_part ? Shape<L>::count() : 0, [&](int i) {
        f(biases.values[i], arrays.biases<L>(-1) + Shape<L>::first() + i);
        for (int slot = 0; slot < SLOTS; ++slot)
            f(biases.slots[slot][i], arrays.biases<L>(slot) + Shape<L>::first() + i);
    });
    if constexpr (!Shape<L>::IS_LAST) each_bias<WRITES, L + 1>(shared, arrays, f);
}

// The last warp of the first block writes the record of a step, whose losses are there.
__device__ inline void record_step(const Shared& shared, const Run& run, int step, const Losses& losses) {
    if (threadIdx.x / 32 < WARPS - 1) return;
    const int own_row = own_replica() * (RECORDERS / REPLICAS) + own_rank();
    double* row = run.record + 3 * (static_cast<int64>(step) * RECORDERS + own_row);
    if (own_rank() == 0) {
        write_record(row, shared.losses[step % 2], losses.count, losses.weight > 0 ? losses.weight : 1,
                     own_replica() == 0 ? losses.weight : 0);
    }
    if (PENALIZED && threadIdx.x % 32 == 0) row[0] += losses.penalty;
}

// From layer L's inputs to the gradients of the outputs. Returns the weight of the batch.
template <int L>
__device__ inline float go_forward(Shared& shared, const Run& run, const Now& now, int num_steps,
                                   float weight, const Network& network) {
    network.multiply_forward<L>(shared, inputs_of<L>(shared, now));
    __syncthreads();
    if constexpr (!Shape<L>::IS_LAST) activate_units<L>(shared, run, now.step);
    if (L == 0) {  // while units are on their way
        // Nobody reads the batch of the step before any more.
        if (X_SLOTS > 1 && now.step + 1 < num_steps) load_batch(shared, run, now.step + 1);
        if (now.step > 0) record_step(shared, run, now.step - 1, now.before);
        weight = weigh_batch(shared, now.slot(), now.count);
    }
    if constexpr (Shape<L>::IS_LAST) {
        Rests rests;
        find_gradients(shared, run, now.slot(), now.own_count, weight, rests);
        __syncthreads();
        find_losses(shared, run, now.step, now.slot(), now.own_count, rests);
        return weight;
    } else {
        await_units<L>(shared, now.step);
        return go_forward<L + 1>(shared, run, now, num_steps, weight, network);
    }
}

// From the gradients of layer L's units back to those of the first.
template <int L>
__device__ inline void go_back(Shared& shared, const Run& run, const Now& now, Network& network) {
    if constexpr (L > 0) {
        network.multiply_backward<L>(shared, gradients_of<L>(shared));
        __syncthreads();
        differentiate_units<L - 1>(shared, run);
    }
    network.take<L>(shared, run, now);
    if constexpr (L > 0) {
        await_gradients<L - 1>(shared, now.step);
        go_back<L - 1>(shared, run, now, network);
    }
}

// What the penalty of this block's weights adds to the loss of a batch.
__device__ inline float find_penalty(Shared& shared, const Run& run, int count, const Network& network) {
    return 0.5f * run.penalty / count * sum_of_block(shared, network.sum_squared());
}

extern "C" __global__ void __launch_bounds__(32 * WARPS, 1)
    one_launch_layers(const T* batches, const float* targets, const StepSettings* settings,
                      float* const* places, double* record, int num_rows, int num_epochs, float scale,
                      float largest_norm, float decay, float momentum, float of_mean, float of_square,
                      float penalty, const Dropout* dropouts, const float* class_weights, int first_step,
                      unsigned key0, unsigned key1, float4* far_slots, Exchange* exchanges,
                      float loss_setting, float of_term, float of_slope) {
    DYNAMIC_SHARED(Shared, whole);
    Shared& shared = *whole;
    const Run run{Peers(shared),
                  batches,
                  targets,
                  record,
                  scale,
                  1 / scale,
                  largest_norm,
                  {loss_setting, of_term, of_slope},
                  {decay, momentum, of_mean, of_square},
                  penalty,
                  static_cast<uint32>(first_step),
                  {key0, key1},
                  far_slots,
                  exchanges};
    const Arrays arrays{places};
    clear(shared);
    if (threadIdx.x == 0) make_barriers(shared);
    each_of_block(LAYERS, [&](int i) { shared.dropouts[i] = dropouts[i]; });
#if CLASS_WEIGHTS
    each_of_block(OUTPUTS, [&](int i) { shared.class_weights[i] = class_weights[i]; });
    if (threadIdx.x == 0) shared.mean_class_weight[0] = class_weights[OUTPUTS];
#endif
    each_bias<false>(shared, arrays, [](float& held, const float* place) { held = *place; });
    Network network(shared, run);
    network.read(arrays);
    barrier_of_cluster();  // no block writes to another that has not begun
    load_batch(shared, run, 0);
    Step step(num_rows, num_epochs);
    StepSettings next = settings[0];
    Losses losses = {};
    for (; step.is_there(); step.advance()) {
        RuleSettings of_weights = run.rule;
        if (PENALIZED) of_weights.decay += run.penalty / step.count();
        const Now now{step.index, step.count(), own_rows(step.count()), next, of_weights, losses};
        if (step.index + 1 < step.num_steps) next = settings[step.index + 1];  // memory is far
        network.begin(now);
        wait(shared.x_full[now.slot()], now.step / X_SLOTS);
        losses.penalty = PENALIZED ? find_penalty(shared, run, now.count, network) : 0;
        losses.weight = go_forward<0>(shared, run, now, step.num_steps, 0, network);
        losses.count = now.own_count;
        go_back<LAYERS - 1>(shared, run, now, network);
        network.finish(shared, run, now);
        if (X_SLOTS == 1 && now.step + 1 < step.num_steps) {
            __syncthreads();
            load_batch(shared, run, now.step + 1);
        }
    }
    __syncthreads();
    record_step(shared, run, step.num_steps - 1, losses);
    barrier_of_cluster();  // nor to one that has left
    network.write(arrays);
    each_bias<true>(shared, arrays, [](float held, float* place) { *place = held; });
}
