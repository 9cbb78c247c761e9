// Computes: a training run of a network of linear layers: for each step of each epoch forward pass, loss, backward pass,
//           and the optimizer's update.
// Layout:   batches (steps, BATCH, X_WIDTH + 8) 16-bit and targets (steps, BATCH, TARGET_WORDS) of all epochs, as
//           gather_batches leaves them; settings (steps,); arrays: of each layer where its weights (inputs, units)
//           lie, what the optimizer remembers of them, its biases (units,), and what it remembers of those, all float32;
//           dropouts (LAYERS,); far_slots (CLUSTER, FAR_TILES, 2 SLOTS, 32 WARPS), anything; record (steps, 3) float64: loss, rows, and those that are right.
// Launch:   CLUSTER blocks of 32 WARPS threads; SHARED_BYTES of dynamic shared memory. Defines: DTYPE, LAYERS, WIDTHS (of
//           features and of each layer's units, a list), ACTIVATIONS, SLOPES and DROPOUTS (0 or 1; lists, too), BATCH, CLUSTER (1, 2, 4, 8
//           or 16), WARPS (a power of two), OPTIMIZER, SLOTS (numbers that it remembers of a parameter), HELD_TILES,
//           NEAR_TILES and FAR_TILES (tiles of a warp of which they are in registers, shared memory and memory), MOMENTUM,
//           NESTEROV, DECAYS, LOSS, CROSS_ENTROPY, SMOOTHED and COUNTS_ROWS (0 or 1), X_SLOTS (batches in shared memory, 1 or 2),
//           SUMS (parts of products there), SHARED_BYTES, BOUNDED_WAITS.
// Numerics: products of 16-bit numbers with float32 sums; weights and sums in float32; gradients times `scale`, a power
//           of two that keeps them in the range of 16 bits. Sums in a fixed order.
// Cost:     of a step 6 BATCH FLOP for each weight, or 4 for one of the first layer; those of all layers between are
//           updated twice. In a cluster, each block reads the batch, and sends its units and gradients to all.
// Reference: the layerwise engine over backends/numpy; PTX ISA 9.7.14.5 (ldmatrix, mma), 9.7.13.15 (mbarrier).
//
// A block goes layer by layer: all its warps multiply by their part of the weights; then a barrier; then they add up
// the parts, and what becomes of them goes to all blocks of the cluster. While it is on its way back, weights that are
// not needed any more are updated.
#include "include/layer_rows.cuh"

// f(i) for each i below `count` that falls to this thread.
template <class F>
__device__ inline void each_of_block(int count, F f) {
    for (int i = threadIdx.x; i < count; i += 32 * WARPS) f(i);
}

// The first warp starts to copy the batch of a step, and its targets.
__device__ inline void load_batch(Shared& shared, const Run& run, int step) {
    if (threadIdx.x >= 32) return;
    const int lane = threadIdx.x, slot = step % X_SLOTS;
    const T* rows = run.batches + static_cast<int64>(step) * BATCH * X_STRIDE;
    const float* targets = run.targets + static_cast<int64>(step) * BATCH * TARGET_WORDS;
    Barrier& full = shared.x_full[slot];
#if __CUDA_ARCH__ >= 900
    constexpr unsigned BYTES = BATCH * X_STRIDE * sizeof(T);
    if (lane == 0) {
        mbarrier_expect(&full, BYTES);
        copy_bulk(shared.x[slot], rows, BYTES, &full);
    }
#else
    for (int i = lane; i < BATCH * X_STRIDE / 8; i += 32)
        copy_async_16(&shared.x[slot][0][0] + i * 8, rows + i * 8, true);
    if (lane == 0) mbarrier_arrive(&full);
#endif
    for (int i = lane; i < BATCH * TARGET_WORDS; i += 32)
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
#if __CUDA_ARCH__ >= 900
        fence_mbarrier_init();
#endif
    }
}

// f(number in shared memory, its place in memory) for this block's biases, and what is remembered of them.
template <int L = 0, class F>
__device__ inline void each_bias(Shared& shared, const Arrays& arrays, F f) {
    Biases<L>& biases = layer_of<L>(shared.layers).biases;
    each_of_block(Shape<L>::count(), [&](int i) {
        f(biases.values[i], arrays.biases<L>(-1) + Shape<L>::first() + i);
        for (int slot = 0; slot < SLOTS; ++slot)
            f(biases.slots[slot][i], arrays.biases<L>(slot) + Shape<L>::first() + i);
    });
    if constexpr (!Shape<L>::IS_LAST) each_bias<L + 1>(shared, arrays, f);
}

// Where a block stands: which step it is, of how many rows, and of how many the one before; and what it multiplies by.
struct Now {
    int step, count, count_before;
    StepSettings settings;

    __device__ int slot() const { return step % X_SLOTS; }
};

// The rows that layer L takes.
template <int L>
__device__ inline auto inputs_of(Shared& shared, const Now& now) {
    if constexpr (L == 0) {
        return BatchRows{&shared.x[now.slot()][0][0]};
    } else {
        return UnitRows{&layer_of<L - 1>(shared.layers).units(now.step)[0][0][0]};
    }
}

template <int L>
__device__ inline UnitRows gradients_of(Shared& shared) {
    return {&layer_of<L>(shared.layers).dz[0][0][0]};
}

// The last warp of the first block writes the record of a step, whose losses are there.
__device__ inline void record_step(const Shared& shared, double* record, int step, int count) {
    if (own_rank() == 0 && threadIdx.x / 32 == WARPS - 1)
        write_record(record + 3 * step, shared.losses[step % 2], count, count);
}

// From layer L's inputs to the gradients of the outputs.
template <int L>
__device__ inline void go_forward(Shared& shared, const Run& run, const Now& now, int num_steps,
                                  Stack<HeldLayer>& held) {
    layer_of<L>(held).forward.multiply(shared, inputs_of<L>(shared, now));
    __syncthreads();
    if constexpr (!Shape<L>::IS_LAST) activate_units<L>(shared, run, now.step);
    if (L == 0) {  // while units are on their way
        // Nobody reads the batch of the step before any more.
        if (X_SLOTS > 1 && now.step + 1 < num_steps) load_batch(shared, run, now.step + 1);
        if (now.step > 0) record_step(shared, run.record, now.step - 1, now.count_before);
    }
    if constexpr (Shape<L>::IS_LAST) {
        Rests rests;
        find_gradients(shared, run, now.slot(), now.count, rests);
        __syncthreads();
        find_losses(shared, run, now.step, now.count, rests);
    } else {
        await_units<L>(shared, now.step);
        go_forward<L + 1>(shared, run, now, num_steps, held);
    }
}

// Layer L's weights take their gradients in.
template <int L>
__device__ inline void update_layer(Shared& shared, const Run& run, const Now& now, Memory& memory,
                                    HeldLayer<L>& held) {
    const UnitRows dz = gradients_of<L>(shared);
    const int chunk = Shape<L>::first_gradient() / CHUNK_UNITS;
    const auto x = inputs_of<L>(shared, now);
    held.forward.update(run, now.settings, memory, dz, chunk, x);
    held.forward.update_biases(run, now.settings, dz, chunk, layer_of<L>(shared.layers).biases);
    if constexpr (L > 0)
        held.backward.update(run, now.settings, memory, x, Shape<L - 1>::first() / CHUNK_UNITS, dz);
}

// From the gradients of layer L's units back to the first layer, and updates of all from L on down.
template <int L>
__device__ inline void go_back(Shared& shared, const Run& run, const Now& now, Memory& memory,
                               Stack<HeldLayer>& held) {
    HeldLayer<L>& own = layer_of<L>(held);
    if constexpr (L == 0) {
        update_layer(shared, run, now, memory, own);
    } else {
        own.backward.multiply(shared, gradients_of<L>(shared));
        __syncthreads();
        differentiate_units<L - 1>(shared);
        update_layer(shared, run, now, memory, own);
        await_gradients<L - 1>(shared, now.step);
        go_back<L - 1>(shared, run, now, memory, held);
    }
}

extern "C" __global__ void __launch_bounds__(32 * WARPS, 1)
    one_launch_layers(const T* batches, const float* targets, const StepSettings* settings,
                      float* const* places, double* record, int num_rows, int num_epochs, float scale,
                      float decay, float momentum, float of_mean, float of_square, const Dropout* dropouts,
                      int first_step, unsigned key0, unsigned key1, float4* far_slots, float loss_setting,
                      float of_term, float of_slope) {
    DYNAMIC_SHARED(Shared, whole);
    Shared& shared = *whole;
    const Run run{batches,
                  targets,
                  record,
                  scale,
                  1 / scale,
                  {loss_setting, of_term, of_slope},
                  {decay, momentum, of_mean, of_square},
                  static_cast<uint32>(first_step),
                  {key0, key1},
                  far_slots};
    const Arrays arrays{places};
    clear(shared);
    if (threadIdx.x == 0) make_barriers(shared);
    each_of_block(LAYERS, [&](int i) { shared.dropouts[i] = dropouts[i]; });
    each_bias(shared, arrays, [](float& held, const float* place) { held = *place; });
    Stack<HeldLayer> held;
    Memory memory(shared, run);
    read_weights(held, memory, arrays);
    barrier_of_cluster();  // no block writes to another that has not begun
    load_batch(shared, run, 0);
    Step step(num_rows, num_epochs);
    StepSettings next = settings[0];
    int count_before = 0;
    for (; step.is_there(); step.advance()) {
        const Now now{step.index, step.count(), count_before, next};
        if (step.index + 1 < step.num_steps) next = settings[step.index + 1];  // memory is far
        wait(shared.x_full[now.slot()], now.step / X_SLOTS);
        go_forward<0>(shared, run, now, step.num_steps, held);
        go_back<LAYERS - 1>(shared, run, now, memory, held);
        if (X_SLOTS == 1 && now.step + 1 < step.num_steps) {
            __syncthreads();
            load_batch(shared, run, now.step + 1);
        }
        count_before = now.count;
    }
    __syncthreads();
    record_step(shared, record, step.num_steps - 1, count_before);
    barrier_of_cluster();  // nor to one that has left
    write_weights(held, memory, arrays);
    each_bias(shared, arrays, [](float held, float* place) { *place = held; });
}
