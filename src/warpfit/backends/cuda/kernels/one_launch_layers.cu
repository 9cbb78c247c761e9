// Computes: a training run of a network of linear layers: for each step of each epoch forward pass, loss, backward pass,
//           and the optimizer's update.
// Layout:   batches (steps, BATCH, X_WIDTH + 8) 16-bit and targets (steps, BATCH, TARGET_WORDS + WEIGHTED) of
//           all epochs, as gather_batches leaves them; settings (steps,); places: of each layer where its
//           weights (inputs, units) lie, what the optimizer remembers of them, its biases (units,), and what it
//           remembers of those, all float32; dropouts (LAYERS,); class_weights (OUTPUTS + 1,), the last their mean; far_slots (CLUSTER, FAR_TILES, 2 SLOTS, 32
//           WARPS), anything; with VALIDATES validation_batches and validation_targets of num_validated rows,
//           likewise; record, in memory that the host may read
//           meanwhile, (epochs, steps and after them batches of validation data, RECORDERS, 3) float64,
//           zeros: loss, weight, and rows that are right. first_epoch epochs of the run are done; each of
//           report_every is reported, and the last. progress and
//           answers: see Talks, after each talk_every epochs. With STOPS stopping: the rule, and what it remembers from
//           launch to launch; best_places: where the best weights and biases of each layer go.
// Launch:   CLUSTER blocks of 32 WARPS threads; SHARED_BYTES of dynamic shared memory. Defines: DTYPE, LAYERS,
//           WIDTHS (of features and of each layer's units, a list), ACTIVATIONS, SLOPES and DROPOUTS (0 or 1;
//           lists, too), BATCH, CLUSTER (1, 2, 4, 8 or 16), WARPS (a power of two), OPTIMIZER, SLOTS (numbers
//           that it remembers of a parameter), HELD_TILES, NEAR_TILES and FAR_TILES (tiles of a warp of which
//           they are in registers, shared memory and memory), MOMENTUM, NESTEROV, DECAYS, LOSS, CROSS_ENTROPY,
//           SMOOTHED, COUNTS_ROWS, WEIGHTED, CLASS_WEIGHTS, PENALIZED, CLIPS, RATE_IN_VELOCITY (0 or 1), X_SLOTS (batches in shared memory, 1 or 2),
//           UNIT_COPIES (of the first layer's units, likewise), SUMS (parts of products there), SHARED_BYTES,
//           VALIDATES, STOPS (0 or 1), BOUNDED_WAITS.
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

// The first warp starts to copy the batch of a pass, and its targets.
__device__ inline void load_batch(Shared& shared, const Run& run, const Passes& pass) {
    if (threadIdx.x >= 32) return;
    const int lane = threadIdx.x, slot = pass.index() % X_SLOTS;
    const int64 batch = pass.trains() ? pass.training.index : pass.batch;
    const T* rows = (pass.trains() ? run.batches : run.validation_batches) + batch * BATCH * X_STRIDE;
    constexpr int WORDS = TARGET_WORDS + WEIGHTED;
    const float* targets = (pass.trains() ? run.targets : run.validation_targets) + batch * BATCH * WORDS;
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
    for (int i = lane; i < BATCH * WORDS; i += 32)
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
    const bool has_part = !WRITES || Shape<L>::IS_SHARED_OUT || own_rank() == 0;
    each_of_block(has_part ? Shape<L>::count() : 0, [&](int i) {
        f(biases.values[i], arrays.biases<L>(-1) + Shape<L>::first() + i);
        for (int slot = 0; slot < SLOTS; ++slot)
            f(biases.slots[slot][i], arrays.biases<L>(slot) + Shape<L>::first() + i);
    });
    if constexpr (!Shape<L>::IS_LAST) each_bias<WRITES, L + 1>(shared, arrays, f);
}

// What is to be written of a pass, and where.
struct Losses {
    int row, count;
    float weight, penalty;
    bool trains, is_first;  // of its epoch
};

// Where a block stands: which pass it is, which step, of how many rows; what it multiplies by; and what the pass
// before left.
struct Now {
    Passes pass;
    int step, count;
    StepSettings settings;
    RuleSettings of_weights;
    Losses before;

    __device__ int slot() const { return pass.index() % X_SLOTS; }
};

// The rows that layer L takes.
template <int L>
__device__ inline auto inputs_of(Shared& shared, const Now& now) {
    if constexpr (L == 0) {
        return BatchRows{&shared.x[now.slot()][0][0]};
    } else {
        return UnitRows{&layer_of<L - 1>(shared.layers).units(now.pass.index())[0][0][0]};
    }
}

template <int L>
__device__ inline UnitRows gradients_of(Shared& shared) {
    return {&layer_of<L>(shared.layers).dz[0][0][0]};
}

// The last warp writes the record of a pass, whose losses are there: the first block's, as each has the outputs of all
// rows, and so finds the same.
__device__ inline void record_pass(Shared& shared, const Run& run, int pass, const Losses& losses) {
    if (threadIdx.x / 32 < WARPS - 1) return;
    const int64 place = VALIDATES ? losses.row : pass;
    double* row = run.record + 3 * (place * RECORDERS + own_rank());
    const double whole = losses.weight > 0 ? losses.weight : 1;
    if (!STOPS && !PENALIZED && own_rank() > 0) return;
    double found[3];
    write_record(found, shared.losses[pass % 2], losses.count, whole, losses.weight);
    if (threadIdx.x % 32) return;
#if STOPS
    shared.stopping.add(found, losses.trains, losses.is_first);
#endif
    if (own_rank() > 0) found[0] = found[1] = found[2] = 0;
    if (PENALIZED) found[0] += losses.penalty;
    if (!PENALIZED && own_rank() > 0) return;
#pragma unroll
    for (int i = 0; i < 3; ++i) row[i] = found[i];
}

#if STOPS
// After the last pass of an epoch that is reported: whether the run is over. Keeps the parameters if it was the best.
__device__ inline bool is_over(Shared& shared, const Passes& pass, int num_rows, int epochs_done,
                               float* const* best, Stack<HeldLayer>& held) {
    StoppingState& stopping = shared.stopping;
    if (threadIdx.x == 32 * (WARPS - 1)) {
        stopping.decide(stopping.watched(num_rows, pass.num_validated), epochs_done);
    }
    __syncthreads();
    if (stopping.is_better && stopping.rule.keeps_best) keep_parameters(shared, held, best);
    return stopping.is_over;
}
#endif

// From layer L's inputs to the gradients of the outputs. Returns the weight of the batch.
template <int L>
__device__ inline float go_forward(Shared& shared, const Run& run, const Now& now, float weight,
                                   Stack<HeldLayer>& held) {
    layer_of<L>(held).forward.multiply(shared, inputs_of<L>(shared, now));
    __syncthreads();
    if constexpr (!Shape<L>::IS_LAST) activate_units<L>(shared, run, now.pass);
    if (L == 0) {  // while units are on their way
        // Nobody reads the batch of the pass before any more.
        const Passes next = now.pass.next();
        if (X_SLOTS > 1 && next.is_there()) load_batch(shared, run, next);
        if (now.before.count > 0) record_pass(shared, run, now.pass.index() - 1, now.before);
        weight = weigh_batch(shared, now.slot(), now.count);
    }
    if constexpr (Shape<L>::IS_LAST) {
        Rests rests;
        find_gradients(shared, run, now.slot(), now.count, weight, rests);
        __syncthreads();
        find_losses(shared, run, now.pass.index(), now.slot(), now.count, rests);
        return weight;
    } else {
        await_units<L>(shared, now.pass.index());
        return go_forward<L + 1>(shared, run, now, weight, held);
    }
}

// Layer L's weights take their gradients in, whose sums are multiplied by `unscale`.
template <int L>
__device__ inline void update_layer(Shared& shared, const Run& run, const Now& now, float unscale,
                                    Memory& memory, HeldLayer<L>& held) {
    const UnitRows dz = gradients_of<L>(shared);
    const int chunk = Shape<L>::first_gradient() / CHUNK_UNITS;
    const auto x = inputs_of<L>(shared, now);
    held.forward.update(now.of_weights, now.settings, unscale, memory, dz, chunk, x);
    held.forward.update_biases(run.rule, now.settings, unscale, dz, chunk, layer_of<L>(shared.layers).biases);
    if constexpr (L > 0)
        held.backward.update(now.of_weights, now.settings, unscale, memory, x,
                             Shape<L - 1>::first() / CHUNK_UNITS, dz);
}

// From the gradients of layer L's units back to those of the first. Where their norm need not be known, all
// layers from L on down are updated.
template <int L>
__device__ inline void go_back(Shared& shared, const Run& run, const Now& now, Memory& memory,
                               Stack<HeldLayer>& held) {
    HeldLayer<L>& own = layer_of<L>(held);
    if constexpr (L > 0) {
        own.backward.multiply(shared, gradients_of<L>(shared));
        __syncthreads();
        differentiate_units<L - 1>(shared, run);
    }
    if (!CLIPS) update_layer(shared, run, now, run.unscale, memory, own);
    if constexpr (L > 0) {
        await_gradients<L - 1>(shared, now.step);
        go_back<L - 1>(shared, run, now, memory, held);
    }
}

// The sum of the squares of what this thread finds of all gradients, each by one block.
template <int L = 0>
__device__ inline float sum_squares(Shared& shared, const Now& now) {
    float squares = 0;
    if (Shape<L>::IS_SHARED_OUT || own_rank() == 0) {
        squares = decltype(HeldLayer<L>::forward)::sum_squares(gradients_of<L>(shared),
                                                               Shape<L>::first_gradient() / CHUNK_UNITS,
                                                               inputs_of<L>(shared, now), Shape<L>::count());
    }
    if constexpr (!Shape<L>::IS_LAST) squares += sum_squares<L + 1>(shared, now);
    return squares;
}

// The sum of a number over all threads of the block, in a fixed order.
__device__ inline float sum_of_block(Shared& shared, float number) {
    number = reduce_warp<Sum>(number);
    if (threadIdx.x % 32 == 0) shared.squares[threadIdx.x / 32] = number;
    __syncthreads();
    float sum = 0;
    for (int warp = 0; warp < WARPS; ++warp) sum += shared.squares[warp];
    return sum;
}

// The sum of the squares of this thread's weights, each of one block.
template <int L = 0>
__device__ inline float sum_squared_weights(Stack<HeldLayer>& held) {
    const bool has_part = Shape<L>::IS_SHARED_OUT || own_rank() == 0;
    float squares = has_part ? layer_of<L>(held).forward.sum_squared_weights(Shape<L>::count()) : 0;
    if constexpr (!Shape<L>::IS_LAST) squares += sum_squared_weights<L + 1>(held);
    return squares;
}

// What the penalty of this block's weights adds to the loss of a batch.
__device__ inline float find_penalty(Shared& shared, const Run& run, int count, Stack<HeldLayer>& held) {
    return 0.5f * run.penalty / count * sum_of_block(shared, sum_squared_weights(held));
}

// The sum of a number over all threads of the cluster, in a fixed order.
__device__ inline float sum_of_cluster(Shared& shared, [[maybe_unused]] int step, float number) {
    float sum = sum_of_block(shared, number);
#if CLUSTER > 1
    if (threadIdx.x < CLUSTER) {
        store_async_pair(place_in(threadIdx.x, &shared.cluster_squares[own_rank()]), __float_as_uint(sum), 0,
                         place_in(threadIdx.x, &shared.squares_full));
    }
    await_rows(shared.squares_full, step, CLUSTER * sizeof(float2));
    sum = 0;
    for (int rank = 0; rank < CLUSTER; ++rank) sum += shared.cluster_squares[rank].x;
#endif
    return sum;
}

// What gradients are multiplied by, lest their norm be larger than it may.
__device__ inline float clip_factor(Shared& shared, const Run& run, const Now& now) {
    constexpr float EPS = 1e-6f;
    const float norm = square_root(sum_of_cluster(shared, now.step, sum_squares(shared, now))) * run.unscale;
    return norm > run.largest_norm - EPS ? run.largest_norm / (norm + EPS) : 1;
}

template <int L = LAYERS - 1>
__device__ inline void update_layers(Shared& shared, const Run& run, const Now& now, float unscale,
                                     Memory& memory, Stack<HeldLayer>& held) {
    update_layer(shared, run, now, unscale, memory, layer_of<L>(held));
    if constexpr (L > 0) update_layers<L - 1>(shared, run, now, unscale, memory, held);
}

// From the gradients of the outputs to updates of all layers.
__device__ inline void train(Shared& shared, const Run& run, const Now& now, Memory& memory,
                             Stack<HeldLayer>& held) {
    go_back<LAYERS - 1>(shared, run, now, memory, held);
    if (CLIPS) {
        const float unscale = run.unscale * clip_factor(shared, run, now);
        update_layers(shared, run, now, unscale, memory, held);
    }
}

extern "C" __global__ void __launch_bounds__(32 * WARPS, 1)
    one_launch_layers(const T* batches, const float* targets, const StepSettings* settings,
                      float* const* places, double* record, int num_rows, int num_epochs, float scale,
                      float largest_norm, float decay, float momentum, float of_mean, float of_square,
                      float penalty, const Dropout* dropouts, const float* class_weights, int first_step,
                      unsigned key0, unsigned key1, float4* far_slots, const T* validation_batches,
                      const float* validation_targets, int num_validated, int first_epoch, int report_every,
                      int last_epoch, Progress* progress, uint4* answers, int talk_every, Stopping* stopping,
                      float* const* best_places, float loss_setting, float of_term, float of_slope) {
    DYNAMIC_SHARED(Shared, whole);
    Shared& shared = *whole;
    const Run run{Peers(shared),
                  batches,
                  validation_batches,
                  targets,
                  validation_targets,
                  record,
                  scale,
                  1 / scale,
                  largest_norm,
                  {loss_setting, of_term, of_slope},
                  {decay, momentum, of_mean, of_square},
                  penalty,
                  static_cast<uint32>(first_step),
                  {key0, key1},
                  far_slots};
    const Arrays arrays{places};
    const Talks talks{progress, answers, talk_every};
    clear(shared);
    if (threadIdx.x == 0) make_barriers(shared);
    each_of_block(LAYERS, [&](int i) { shared.dropouts[i] = dropouts[i]; });
#if CLASS_WEIGHTS
    each_of_block(OUTPUTS, [&](int i) { shared.class_weights[i] = class_weights[i]; });
    if (threadIdx.x == 0) shared.mean_class_weight[0] = class_weights[OUTPUTS];
#endif
#if STOPS
    if (threadIdx.x == 0) {
        shared.stopping.rule = *stopping;
        shared.stopping.rule.has_improved = shared.stopping.rule.epochs_done = 0;
    }
#endif
    each_bias<false>(shared, arrays, [](float& held, const float* place) { held = *place; });
    Stack<HeldLayer> held;
    Memory memory(shared, run);
    read_weights(held, memory, arrays);
    barrier_of_cluster();  // no block writes to another that has not begun
    Passes pass({num_rows, num_epochs}, num_validated, first_epoch, {report_every, last_epoch});
    load_batch(shared, run, pass);
    StepSettings next = settings[0];
    Losses losses = {};
    while (pass.is_there()) {
        const int step = pass.training.index;
        RuleSettings of_weights = run.rule;
        if (PENALIZED) of_weights.decay += run.penalty / pass.count();
        const Now now{pass, step, pass.count(), next, of_weights, losses};
        if (step + 1 < pass.training.num_steps) next = settings[step + 1];  // memory is far
        wait(shared.x_full[now.slot()], pass.index() / X_SLOTS);
        losses.penalty = PENALIZED && pass.trains() ? find_penalty(shared, run, now.count, held) : 0;
        losses.weight = go_forward<0>(shared, run, now, 0, held);
        losses.row = pass.row();
        losses.count = now.count;
        losses.trains = pass.trains();
        losses.is_first = pass.trains() && pass.training.is_first_of_epoch();
        if (pass.trains()) train(shared, run, now, memory, held);
        const int epochs_done = pass.epoch - first_epoch;
        const bool decides = STOPS && pass.ends_reported();
        const bool talks_now = pass.ends_epoch() && talks.are_due(epochs_done);
        if (decides || talks_now) {
            __syncthreads();
            record_pass(shared, run, pass.index(), losses);
            losses.count = 0;
        }
#if STOPS
        if (decides && is_over(shared, pass, num_rows, epochs_done, best_places, held)) break;
#endif
        if (talks_now) {
            RECORDERS > 1 ? barrier_of_cluster() : __syncthreads();
            if (talks.end_now(epochs_done)) break;
        }
        pass.advance();
        if (X_SLOTS == 1 && pass.is_there()) {
            __syncthreads();
            load_batch(shared, run, pass);
        }
    }
    const Passes following = pass.next();  // of a run that is over, whose batch is on its way
    if (X_SLOTS > 1 && pass.is_there() && following.is_there())
        wait(shared.x_full[following.index() % X_SLOTS], following.index() / X_SLOTS);
#if STOPS
    if (blockIdx.x == 0 && threadIdx.x == 0) *stopping = shared.stopping.rule;
#endif
    __syncthreads();
    if (losses.count > 0) record_pass(shared, run, pass.index() - 1, losses);
    barrier_of_cluster();  // nor to one that has left
    write_weights(held, memory, arrays);
    each_bias<true>(shared, arrays, [](float held, float* place) { *place = held; });
}
