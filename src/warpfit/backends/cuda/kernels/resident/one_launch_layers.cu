// Computes: a training run of a network of linear layers: for each step of each epoch forward pass,
//           loss, backward pass, and the optimizer's update.
// Layout:   batches (steps, TERMS, BATCH, X_WIDTH + 8) 16-bit and targets (steps, BATCH,
//           TARGET_WORDS + WEIGHTED) of all epochs, as gather_batches leaves them; settings
//           (steps,); places: of each layer where its weights (inputs, units) lie, their optimizer
//           state, its biases (units,), and their optimizer state, all float32; dropouts (LAYERS,);
//           with several TERMS scales (LAYERS,); class_weights (OUTPUTS + 1,), the last their mean;
//           far_slots (CLUSTER, FAR_TILES, 2 SLOTS, 32 WARPS), anything; exchanges (CLUSTER,),
//           zeros, if there are replicas; card is this one's number of CARDS, card_sums (CARDS,)
//           where each has CardSums (CLUSTER,), zeros before any starts; with VALIDATES
//           validation_batches and validation_targets of num_validated rows, as those of an epoch.
//           record, which the host may read meanwhile: (epochs, steps and after them batches of
//           validation data, RECORDERS, 3) float64, zeros, to be added up over the recorders of all
//           cards: loss, weight, and rows that are right. first_epoch epochs of the run are done;
//           each of report_every is reported, and the last. progress, answers: see Talks, after
//           each talk_every epochs. With STOPS stopping: the rule, its state from launch to launch,
//           and RECORDERS places, zeros before the first launch; best_places: where the best
//           weights and biases of each layer go.
// Launch:   on each card REPLICAS clusters of CLUSTER blocks of 32 WARPS threads, all resident if
//           there are several; SHARED_BYTES of dynamic shared memory. Settings: LayersConfig of
//           resident_config.py.
// Numerics: products of 16-bit numbers with float32 sums; weights and sums in float32; gradients
//           times `scale`, a power of two that keeps them in the range of 16 bits. Of TERMS numbers
//           each layer's have powers of two of their own: see LayerScales. Sums in a fixed order.
// Cost:     of a step 6 BATCH FLOP for each weight, or 4 for one of the first layer; without
//           replicas those of all layers between are updated twice. In a cluster, each block reads
//           the batch, and sends its units and gradients to all; of several, each writes and reads
//           its part of the gradients and weights in float32.
// Reference: the layerwise engine over backends/numpy; PTX ISA 9.7.14.5 (ldmatrix, mma), 9.7.13.15
//   (mbarrier).
//
// A block goes layer by layer: all its warps multiply by their part of the weights; then a barrier;
// then they add up the parts, and what becomes of them goes to all blocks of the cluster. While it
// is on its way back, weights that are not needed any more are updated.
#include "ops/loss/loss_terms.cuh"
#include "ops/optim/update_rules.cuh"

namespace config {
#include <config>  // the settings, as the host declares them
}
using namespace config;

#include "base/block.cuh"
#include "resident/exchange/layer_replicas.cuh"
#include "resident/rows/layer_sums.cuh"
#include "resident/update/layer_weights.cuh"

using Network = choice<(REPLICAS > 1), ReplicaNetwork<REPLICAS>,
                       HeldNetwork<HELD_TILES + NEAR_TILES + FAR_TILES>>;

// A warp that has the fewest pieces starts to copy the batch of a pass, and its targets.
__device__ inline void load_batch(LayersShared& shared, const LayersRun& run, const Passes& pass) {
    if (threadIdx.x / 32 != WARPS - 2) return;
    const int lane = threadIdx.x % 32, slot = pass.index() % X_SLOTS;
    const int count = own_rows(BATCH, run.card), own_first = first_row(run.card),
              first_target = SEES_ALL_TARGETS ? 0 : own_first;
    const int64 first =
        static_cast<int64>(pass.trains() ? pass.training.index : pass.batch) * BATCH;
    const T* rows = (pass.trains() ? run.batches : run.validation_batches) +
                    (first * TERMS + own_first) * X_STRIDE;
    constexpr int WORDS = TARGET_WORDS + WEIGHTED;
    const float* targets =
        (pass.trains() ? run.targets : run.validation_targets) + (first + first_target) * WORDS;
    Barrier& full = shared.x_full[slot];
    if constexpr (GENERATION >= 90) {
        if (lane == 0) {
            const unsigned bytes = count * X_STRIDE * sizeof(T);
            mbarrier_expect(&full, TERMS * bytes);
#pragma unroll
            for (int term = 0; term < TERMS && (CARDS == 1 || bytes > 0); ++term)
                copy_bulk(shared.x[slot][term], rows + term * BATCH * X_STRIDE, bytes, &full);
        }
    } else {
        for (int term = 0; term < TERMS; ++term) {
            for (int i = lane; i < count * X_STRIDE / 8; i += 32) {
                copy_async_16(&shared.x[slot][term][0][0] + i * 8,
                              rows + term * BATCH * X_STRIDE + i * 8, true);
            }
        }
        if (lane == 0) mbarrier_arrive(&full);
    }
    for (int i = lane; i < (SEES_ALL_TARGETS ? BATCH : count) * WORDS; i += 32)
        copy_async_4(&shared.targets[slot][0][0] + i, targets + i, true);
    copy_async_arrive(&full);
}

// Rows that no batch has, and columns that no layer has, are multiplied, but never written.
__device__ inline void clear(LayersShared& shared) {
    clear_by_block<32 * WARPS>(reinterpret_cast<uint4*>(&shared), sizeof(LayersWhole) / 16);
    if constexpr (GENERATION >= 90) fence_async();
    __syncthreads();
}

template <int L = 0>
__device__ inline void make_barriers(LayersShared& shared) {
    if constexpr (!Shape<L>::IS_LAST) {
        LayerRows<L>& rows = layer_of<L>(shared.layers);
        for (Barrier& full : rows.y_full) mbarrier_init(&full, 1);
        mbarrier_init(&rows.dz_full, 1);
        make_barriers<L + 1>(shared);
    } else {
        for (Barrier& full : shared.x_full) mbarrier_init(&full, 33);
        mbarrier_init(&shared.squares_full, 1);
        if constexpr (GENERATION >= 90) fence_mbarrier_init();
    }
}

// f(number in shared memory, its place in memory) for this block's biases, and their optimizer
// state. Of layers that all blocks have, to write takes only the first.
template <bool WRITES, int L = 0, class Places, class F>
__device__ inline void each_bias(LayersShared& shared, const Places& places, F f) {
    Biases<L>& biases = layer_of<L>(shared.layers).biases;
    const bool has_part =
        !WRITES || ((Shape<L>::IS_SHARED_OUT || own_rank() == 0) && own_replica() == 0);
    each_of_block<32 * WARPS>(has_part ? Shape<L>::count() : 0, [&](int i) {
        f(biases.values[i], places.template biases<L>(-1) + Shape<L>::first() + i);
        for (int slot = 0; slot < Places::NUM_SLOTS; ++slot)
            f(biases.slots[slot][i], places.template biases<L>(slot) + Shape<L>::first() + i);
    });
    if constexpr (!Shape<L>::IS_LAST) each_bias<WRITES, L + 1>(shared, places, f);
}

template <class Places>
__device__ inline void write_biases(LayersShared& shared, const Places& places) {
    each_bias<true>(shared, places, [](float held, float* place) { *place = held; });
}

// The last warp writes the record of a pass, whose losses are there: the first block's of each
// replica, as all of its blocks have the outputs of its rows, and so find the same. With STOPS that
// of each block adds up what it finds.
__device__ inline void record_pass(LayersShared& shared, const LayersRun& run, int pass,
                                   const Losses& losses) {
    if (threadIdx.x / 32 < WARPS - 1) return;
    if (!STOPS && !PENALIZED && own_rank() > 0) return;
    const int64 place = VALIDATES ? losses.row : pass;
    double* row = run.record + 3 * (place * RECORDERS + own_recorder());
    double found[3];
    write_record(found, shared.losses[pass % 2], losses.count,
                 losses.weight > 0 ? losses.weight : 1,
                 own_replica() == 0 && run.card == 0 ? losses.weight : 0);
    if (threadIdx.x % 32) return;
    constexpr bool ASKS_NOBODY = STOPS && RECORDERS == 1;
    if (!ASKS_NOBODY && own_rank() > 0) found[0] = found[1] = found[2] = 0;
    if (PENALIZED && run.card == 0) found[0] += losses.penalty;
    if constexpr (STOPS)
        part_of<StoppingState>(shared).add(found, losses.weight, losses.trains, losses.is_first);
    if (!PENALIZED && own_rank() > 0) return;
#pragma unroll
    for (int i = 0; i < 3; ++i) row[i] = found[i];
}

// After the last pass of an epoch that is reported: whether the run is over. Keeps the parameters
// if it was the best.
__device__ inline bool is_over(LayersShared& shared, const Passes& pass, int num_rows,
                               int epochs_done, StoppingMemory& memory, const BestArrays& best,
                               Network& network) {
    StoppingState& stopping = part_of<StoppingState>(shared);
    if (threadIdx.x / 32 == WARPS - 1) {
        Sums& sums = stopping.watched_sums();
        if (RECORDERS > 1) add_up_recorders(sums, memory, pass.epoch);
        if (threadIdx.x % 32 == 0)
            stopping.decide(stopping.watched(sums, num_rows, pass.num_validated), epochs_done);
    }
    __syncthreads();
    if (stopping.is_better && stopping.rule.keeps_best) {
        network.keep(best);
        write_biases(shared, best);
    }
    return stopping.is_over;
}

// From layer L's inputs to the gradients of the outputs, and what their losses need. Returns the
// weight of the batch.
template <int L>
__device__ inline float go_forward(LayersShared& shared, const LayersRun& run, const Now& now,
                                   float weight, Network& network, Rests& rests) {
    network.multiply_forward<L>(shared, run, inputs_of<L>(shared, now.pass.index()));
    __syncthreads();
    if constexpr (!Shape<L>::IS_LAST) activate_units<L>(shared, run, now.pass);
    if (L == 0) {  // while units are on their way
        if (now.is_led_on()) network.catch_up(shared, run, now);
        // Nobody reads the batch any more in whose place the next one comes.
        const Passes next = now.pass.next();
        if (X_SLOTS > 1 && next.is_there()) load_batch(shared, run, next);
        if (now.before.is_there) record_pass(shared, run, now.pass.index() - 1, now.before);
        weight = weigh_batch(shared, now.slot(), now.count);
    }
    if constexpr (Shape<L>::IS_LAST) {
        find_gradients(shared, run, now.slot(), now.own_count, weight, rests);
        __syncthreads();
        return weight;
    } else {
        await_units<L>(shared, now.pass.index());
        return go_forward<L + 1>(shared, run, now, weight, network, rests);
    }
}

// From the gradients of layer L's units back to those of the first.
template <int L>
__device__ inline void go_back(LayersShared& shared, const LayersRun& run, const Now& now,
                               const Rests& rests, Network& network) {
    if constexpr (L > 0) {
        network.multiply_backward<L>(shared, run, gradients_of<L>(shared));
        __syncthreads();
        differentiate_units<L - 1>(shared, run);
    }
    // While gradients are on their way:
    if (Shape<L>::IS_LAST)
        find_losses(shared, run, now.pass.index(), now.slot(), now.own_count, rests);
    network.take<L>(shared, run, now);
    if constexpr (L > 0) {
        await_gradients<L - 1>(shared, now.step);
        go_back<L - 1>(shared, run, now, rests, network);
    }
}

// The penalty as a decay of weights: spread over the rows of the batch, or over their weights.
__device__ inline float penalty_of_batch(const LayersShared& shared, const LayersRun& run,
                                         const Now& now) {
    if (!WEIGHED_PENALTY) return run.penalty / now.count;
    const float weight = weigh_batch(shared, now.slot(), now.count);
    return weight > 0 ? run.penalty / weight : 0;
}

// From the gradients of the outputs to updates of all layers.
__device__ inline void train(LayersShared& shared, const LayersRun& run, const Now& now,
                             const Rests& rests, Network& network) {
    go_back<LAYERS - 1>(shared, run, now, rests, network);
    network.finish(shared, run, now);
}

// Gets shared memory ready for the first pass.
__device__ inline void prepare(LayersShared& shared, const Arrays& arrays, const Dropout* dropouts,
                               [[maybe_unused]] const LayerScales* scales,
                               [[maybe_unused]] const float* class_weights,
                               [[maybe_unused]] const StoppingMemory* stopping) {
    clear(shared);
    if (threadIdx.x == 0) make_barriers(shared);
    each_of_block<32 * WARPS>(LAYERS, [&](int i) { shared.dropouts[i] = dropouts[i]; });
    if constexpr (SCALES) {
        Scales& own = part_of<Scales>(shared);
        each_of_block<32 * WARPS>(LAYERS, [&](int i) { own.layers[i] = scales[i]; });
        __syncthreads();  // weights that are read are sent times these
    }
    if constexpr (CLASS_WEIGHTS) {
        ClassWeights& own = part_of<ClassWeights>(shared);
        each_of_block<32 * WARPS>(OUTPUTS, [&](int i) { own.weights[i] = class_weights[i]; });
        if (threadIdx.x == 0) own.mean[0] = class_weights[OUTPUTS];
    }
    if (STOPS && threadIdx.x == 0) {
        Stopping& rule = part_of<StoppingState>(shared).rule;
        rule = stopping->rule;
        rule.has_improved = rule.epochs_done = 0;
    }
    each_bias<false>(shared, arrays, [](float& held, const float* place) { held = *place; });
}

// Goes through a pass, forward and in training back. Returns what is to be written of it.
__device__ inline Losses take_pass(LayersShared& shared, const LayersRun& run, Now& now,
                                   Network& network) {
    const Passes& pass = now.pass;
    if (pass.trains() || pass.batch == 0) network.begin(pass.trains() ? now.step : now.step + 1);
    wait(shared.x_full[now.slot()], pass.index() / X_SLOTS);
    Losses losses;
    losses.penalty = 0;
    if (PENALIZED && pass.trains()) {
        const float penalty = penalty_of_batch(shared, run, now);
        now.of_weights.decay += penalty;
        losses.penalty = 0.5f * penalty * sum_of_block(shared, network.sum_squared());
    }
    Rests rests;
    losses.weight = go_forward<0>(shared, run, now, 0, network, rests);
    losses.row = pass.row();
    losses.count = now.own_count;
    losses.trains = pass.trains();
    losses.is_first = pass.trains() && pass.training.is_first_of_epoch();
    losses.is_there = true;
    if (pass.trains()) {
        train(shared, run, now, rests, network);
    } else {
        find_losses(shared, run, pass.index(), now.slot(), now.own_count, rests);
    }
    return losses;
}

#include <arguments>  // struct Arguments, as the host packs it

extern "C" __global__ void __launch_bounds__(32 * WARPS, 1)
    one_launch_layers(const __grid_constant__ Arguments arguments) {
    know_threads<32 * WARPS>();
    DYNAMIC_SHARED(LayersWhole, whole);
    LayersShared& shared = *whole;
    const LayersRun run{Peers(shared),
                        arguments.batches,
                        arguments.validation_batches,
                        arguments.targets,
                        arguments.validation_targets,
                        arguments.record,
                        arguments.scale,
                        SCALES ? 1 : 1 / arguments.scale,
                        arguments.largest_norm,
                        arguments.loss,
                        arguments.rule,
                        arguments.penalty,
                        static_cast<uint32>(arguments.first_step),
                        {arguments.key0, arguments.key1},
                        arguments.far_slots,
                        arguments.exchanges,
                        CARDS > 1 ? arguments.card : 0,
                        arguments.card_sums};
    const Arrays arrays{arguments.places};
    const Talks talks{arguments.progress, arguments.answers, arguments.talk_every};
    prepare(shared, arrays, arguments.dropouts, arguments.scales, arguments.class_weights,
            arguments.stopping);
    Network network(shared, run);
    network.read(arrays);
    barrier_of_cluster();  // no block writes to another that has not begun
    const int num_rows = arguments.num_rows, first_epoch = arguments.first_epoch;
    Passes pass({num_rows, arguments.num_epochs}, arguments.num_validated, first_epoch,
                {arguments.report_every, arguments.last_epoch});
    load_batch(shared, run, pass);
    const StepSettings* settings = arguments.settings;
    StepSettings next = settings[0], last = next;
    Losses losses = {};
    while (pass.is_there()) {
        const int step = pass.training.index;
        const int count = pass.count();
        Now now{pass, step, count, own_rows(count, run.card), next, last, run.rule, losses};
        last = next;
        if (step + 1 < pass.training.num_steps) next = settings[step + 1];  // memory is far
        losses = take_pass(shared, run, now, network);
        const int epochs_done = pass.epoch - first_epoch;
        const bool decides = STOPS && pass.ends_reported();
        const bool talks_now = pass.ends_epoch() && talks.are_due(epochs_done);
        if (decides || talks_now) {
            __syncthreads();
            record_pass(shared, run, pass.index(), losses);
            losses.is_there = false;
        }
        if constexpr (STOPS) {
            if (decides && is_over(shared, pass, num_rows, epochs_done, *arguments.stopping,
                                   {arguments.best_places}, network))
                break;
        }
        if (talks_now) {
            PENALIZED ? barrier_of_cluster() : __syncthreads();
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
    if constexpr (STOPS) {
        if (blockIdx.x == 0 && threadIdx.x == 0)
            arguments.stopping->rule = part_of<StoppingState>(shared).rule;
    }
    __syncthreads();
    if (losses.is_there) record_pass(shared, run, pass.index() - 1, losses);
    barrier_of_cluster();  // nor to one that has left
    network.write(arrays);
    write_biases(shared, arrays);
}
