// Computes: a training run of a network of linear layers on most of a card: for each step of each
//           epoch forward pass, loss, backward pass, and the optimizer's update.
// Layout:   batches (steps, BATCH, X_WIDTH + 8) 16-bit and targets (steps, BATCH, TARGET_WORDS) of
//           all epochs, as gather_batches leaves them; settings (steps,); places: of each layer
//           where its weights (inputs, units) lie, their optimizer state, its biases (units,), and
//           their optimizer state, all float32; record (epochs, steps and after them batches of
//           validation data, 3) float64: loss, weight, and rows that are right; dropouts (LAYERS,);
//           words (2, EXCHANGED_WORDS), zeros; far: of each block quads of float32 for layers that
//           are far, anything. first_step steps and first_epoch epochs of the run are done; each of
//           report_every is reported, and the last. With VALIDATES validation_batches and
//           validation_targets of num_validated rows, as those of an epoch; with STOPS stopping and
//           best_places, as one_launch_layers.cu has them.
// Launch:   CLUSTERS clusters of CLUSTER blocks of 32 WARPS threads, all resident; SHARED_BYTES of
//           dynamic shared memory. Settings: CardConfig of resident_config.py.
// Numerics: products of 16-bit numbers with float32 sums; weights and sums in float32; gradients
//           times `scale`, a power of two that keeps them in the range of 16 bits. Sums in a fixed
//           order; of those that go through memory the last bit is cut off.
// Cost:     of a step 6 BATCH FLOP for each weight, or 4 for one of the first layer. Of each hidden
//           layer two round trips through memory and two through clusters, but of the last one
//           each.
// Reference: the layerwise engine over backends/numpy; PTX ISA 9.7.14.5 (ldmatrix, mma), 9.7.9.13
//   (st.async).
//
// Each block has a tile of each matrix, for the whole run. Forward, the ranks of a cluster have
// parts of the sums of their units: they send each other rows, add up, activate, and leave the
// units where all blocks of a rank take them as their next inputs. Back, clusters have parts of the
// sums: each rank adds up rows of all clusters, and sends the ranks of its own what they multiply
// by next. While numbers are on their way, weights that are not needed any more are updated.
#define SHARED_ALIGNMENT 1024
#include "ops/loss/loss_terms.cuh"
#include "ops/optim/update_rules.cuh"

namespace config {
#include <config>  // the settings, as the host declares them
}
using namespace config;

#include "base/block.cuh"
#include "resident/rows/card_layers.cuh"
#include "resident/update/card_arrays.cuh"

// The first row of a pass's batch.
__device__ inline int64 first_row_of(const Passes& pass) {
    return static_cast<int64>(pass.trains() ? pass.training.index : pass.batch) * BATCH;
}

// This rank's features of a batch, 8 at a time: f(turn, row, column, where they are).
constexpr int FEATURE_CHUNKS = BATCH * WeightTile<0>::INPUTS / 8;
template <class F>
__device__ inline void each_chunk(const CardRun& run, const Passes& pass, F f) {
    using First = WeightTile<0>;
    constexpr int CHUNKS = First::INPUTS / 8;
    const T* rows = (pass.trains() ? run.batches : run.validation_batches) +
                    first_row_of(pass) * X_STRIDE + First::first_input();
    const int thread = this_thread();
#pragma unroll
    for (int turn = 0; turn < (FEATURE_CHUNKS + THREADS - 1) / THREADS; ++turn) {
        const int i = turn * THREADS + thread;
        const int row = i / CHUNKS, column = i % CHUNKS * 8;
        if (i < FEATURE_CHUNKS && First::first_input() + column < X_WIDTH)
            f(turn, row, column, rows + row * X_STRIDE + column);
    }
}

// Those of the next batch, for whose rows there is no room before this step ends.
struct NextRows {
    uint4 chunks[(FEATURE_CHUNKS + THREADS - 1) / THREADS];

    __device__ void load(const CardRun& run, const Passes& pass) {
        each_chunk(run, pass, [&](int turn, int, int, const T* from) {
            chunks[turn] = *reinterpret_cast<const uint4*>(from);
        });
    }
    __device__ void store(CardShared& shared, const CardRun& run, const Passes& pass) const {
        each_chunk(run, pass, [&](int turn, int row, int column, const T*) {
            *reinterpret_cast<uint4*>(part_of<0>(shared).inputs[0].at(row, column)) = chunks[turn];
        });
    }
};

// Starts to copy this rank's features of a batch, and the targets.
template <bool WITH_ROWS = !APART>
__device__ inline void load_batch(CardShared& shared, const CardRun& run, const Passes& pass) {
    const int idx = pass.index();
    if constexpr (WITH_ROWS)
        each_chunk(run, pass, [&](int, int row, int column, const T* from) {
            copy_async_16(part_of<0>(shared).inputs[idx % LayerPart<0>::BATCHES].at(row, column),
                          from, true);
        });
    const float* targets =
        (pass.trains() ? run.targets : run.validation_targets) + first_row_of(pass) * TARGET_WORDS;
    each_of_block<32 * WARPS>(BATCH * TARGET_WORDS, [&](int i) {
        copy_async_4(&shared.targets[idx % 2][0][0] + i, targets + i, true);
    });
    copy_async_commit();
}

using Eighths = RowEighths<ROWS, WARPS>;
using Rests = Eighths::Rests;

// Of 8 rows, the one of which this lane has outputs.
__device__ inline int row_of(int eighth) {
    return eighth * 8 + static_cast<int>(threadIdx.x) % 32 / 4;
}

// From outputs without biases to their gradients. Of rows that are not there they are 0.
__device__ inline void find_gradients(CardShared& shared, const CardRun& run, const Now& now,
                                      Rests& rests) {
    const auto& biases = biases_of<LAYERS - 1>(shared)[0];
    Eighths::each([&](int i, int eighth) {
        const int row = row_of(eighth), column = static_cast<int>(threadIdx.x) % 4 * 2;
        const float factor = row < now.count ? run.scale / now.count : 0;
        const auto outputs = [&](int chunk) {
            const int at = chunk * 8 + column;
            return float2{shared.outputs[row][at] + biases[at],
                          shared.outputs[row][at + 1] + biases[at + 1]};
        };
        rests[i] = find_row_gradients<OUT_WIDTH / 8, OUTPUTS>(
            shared.targets[now.forward().slot()][row], factor, run.loss, EvenClasses{}, outputs,
            [&](int chunk, float first, float second) {
                *reinterpret_cast<unsigned*>(shared.output_gradients.at(row, chunk * 8 + column)) =
                    packed<T>(first, second);
            });
    });
}

// The losses of this warp's rows.
__device__ inline void find_losses(CardShared& shared, const CardRun& run, const Now& now,
                                   const Rests& rests) {
    Eighths::each([&](int i, int eighth) {
        const int row = row_of(eighth);
        const float* target = shared.targets[now.forward().slot()][row];
        const RowLoss loss = find_row_loss(rests[i], label_of(target), run.loss, OUTPUTS,
                                           EvenClasses{}, row < now.count);
        if (threadIdx.x % 4 == 0) shared.losses[row] = loss;
    });
}

// From the last layer's inputs to the gradients of its outputs; `meanwhile` is done while outputs
// are in flight.
template <class Meanwhile>
__device__ inline void find_outputs(CardShared& shared, const CardRun& run, const Now& now,
                                    Rests& rests, Meanwhile meanwhile) {
    __syncthreads();
    multiply_last(shared, run, now);
    meanwhile();
    receive_outputs(shared, run, now);
    __syncthreads();
    find_gradients(shared, run, now, rests);
}

// Then back to the gradients of its inputs.
__device__ inline void train_last(CardShared& shared, const Now& now) {
    constexpr unsigned SENT_BYTES =
        2 * (RANKS - 1) * WeightTile<HIDDEN_LAYERS - 1>::PIECE * sizeof(T);
    if constexpr (!APART) await_bytes(shared.last_full, now.step, SENT_BYTES);
    __syncthreads();
    differentiate_last(shared);
    meet_for_products();
}

// Whether this block finds the losses of a pass: the first has the record, and with STOPS all add
// them up.
__device__ inline bool finds_losses() { return STOPS || blockIdx.x == 0; }

// The record of a pass, whose losses are there.
__device__ inline void record_pass(CardShared& shared, const CardRun& run, const Now& now) {
    if (!finds_losses() || threadIdx.x >= 32) return;
    double* row = run.record + 3 * now.pass.row();
    if constexpr (STOPS) {
        double found[3];
        write_record(found, shared.losses, now.count, now.count, now.count);
        if (threadIdx.x > 0) return;
        const bool trains = now.pass.trains();
        optional_part<StoppingState>(shared).add(found, now.count, trains,
                                                 trains && now.pass.training.is_first_of_epoch());
        if (blockIdx.x > 0) return;
        for (int i = 0; i < 3; ++i) row[i] = found[i];
    } else {
        write_record(row, shared.losses, now.count, now.count, now.count);
    }
}

// The last layer's update, and the record of the step.
__device__ inline void finish_last(CardShared& shared, const CardRun& run, Held& held,
                                   const Now& now, const Rests& rests) {
    if (finds_losses()) find_losses(shared, run, now, rests);
    __syncthreads();
    update_layer<LAYERS - 1>(shared, run, held, now, shared.output_gradients);
    record_pass(shared, run, now);
}

// Forward from layer L's inputs to the losses of a batch of validation data.
template <int L>
__device__ inline void validate_from(CardShared& shared, const CardRun& run, Ring& ring,
                                     const Now& now) {
    multiply_forward<L, false>(shared, run, ring, now);
    Derivatives<L> unused;
    activate_units<L, false>(shared, run, now, unused);
    if constexpr (Places<L>::IS_INNER) {
        receive_inputs<L + 1>(shared, run, now);
        meet_for_products();
        validate_from<L + 1>(shared, run, ring, now);
    } else {
        Rests rests;
        find_outputs(shared, run, now, rests, [] {});
        if (finds_losses()) find_losses(shared, run, now, rests);
        __syncthreads();
        record_pass(shared, run, now);
    }
}

// Forward from layer L's inputs, and back to the updates of all layers from L on. A layer is
// updated while the gradients of its inputs are on their way.
template <int L>
__device__ inline void train_from(CardShared& shared, const CardRun& run, Held& held, Ring& ring,
                                  const Now& now) {
    multiply_forward<L, true>(shared, run, ring, now);
    Derivatives<L> derivatives;
    activate_units<L, true>(shared, run, now, derivatives);
    Rests rests;
    if constexpr (Places<L>::IS_INNER) {
        receive_inputs<L + 1>(shared, run, now);
        meet_for_products();
        train_from<L + 1>(shared, run, held, ring, now);
        differentiate_units<L>(shared, run, now, derivatives);
        if constexpr (APART) {
            if constexpr (!STREAMED)
                update_layer<L + 1, 1, 2>(shared, run, held, now, gradients_of<L + 1>(shared));
            __syncthreads();
        }
        await_gradients<L>(shared, run, now);
    } else {
        find_outputs(shared, run, now, rests, [&] {
            if constexpr (APART) {
                __syncthreads();
                receive_last_units<L>(shared, run, now);
            } else {
                share_derivatives<L>(shared, derivatives);
            }
        });
        train_last(shared, now);
    }
    if constexpr (L > 0 || STREAMED) {
        multiply_back<L>(shared, run, ring, now);
        __syncthreads();
    }
    if constexpr (!Places<L>::IS_INNER) finish_last(shared, run, held, now, rests);
    if constexpr (STREAMED) {
        update_biases<L>(shared, run, now, gradients_of<L>(shared));
    } else {
        update_layer<L, 0, (APART && L > 0 ? 2 : 1)>(shared, run, held, now,
                                                     gradients_of<L>(shared));
    }
    if constexpr (!APART || L == 0) __syncthreads();
}

template <int L = 0>
__device__ inline void read_layers(CardShared& shared, const CardRun& run, Held& held,
                                   const Arrays& arrays) {
    read_layer<L>(shared, run, held, arrays);
    if constexpr (L + 1 < LAYERS) read_layers<L + 1>(shared, run, held, arrays);
}

template <int L = 0, class Of>
__device__ inline void write_layers(CardShared& shared, const CardRun& run, Held& held,
                                    const Of& arrays) {
    write_layer<L>(shared, run, held, arrays);
    if constexpr (L + 1 < LAYERS) write_layers<L + 1>(shared, run, held, arrays);
}

// After the last pass of an epoch that is reported: whether the run is over. Keeps the parameters
// if it was the best.
__device__ inline bool is_over(CardShared& shared, const CardRun& run, Held& held,
                               const Passes& pass, int num_rows, int epochs_done,
                               const BestArrays& best) {
    StoppingState& stopping = optional_part<StoppingState>(shared);
    if (threadIdx.x == 0)
        stopping.decide(stopping.watched(stopping.watched_sums(), num_rows, pass.num_validated),
                        epochs_done);
    __syncthreads();
    if (stopping.is_better && stopping.rule.keeps_best) write_layers(shared, run, held, best);
    return stopping.is_over;
}

// Gets shared memory ready for the first pass. Rows that no batch has, and columns that no layer
// has, stay 0.
__device__ inline void prepare(CardShared& shared,
                               [[maybe_unused]] const StoppingMemory* stopping) {
    clear_by_block<32 * WARPS>(reinterpret_cast<uint4*>(&shared), sizeof(CardShared) / 16);
    __syncthreads();
    if (threadIdx.x == 0 && !APART) {
        for (Barrier& full : shared.parts_full) mbarrier_init(&full, 1);
        for (Barrier& full : shared.gradients_full) mbarrier_init(&full, 1);
        mbarrier_init(&shared.last_full, 1);
        fence_mbarrier_init();
    }
    if (STOPS && threadIdx.x == 0) {
        Stopping& rule = optional_part<StoppingState>(shared).rule;
        rule = stopping->rule;
        rule.has_improved = rule.epochs_done = 0;
    }
    __syncthreads();
}

#include <arguments>  // struct Arguments, as the host packs it

extern "C" __global__ void __launch_bounds__(32 * WARPS, 1)
    one_launch_card(const __grid_constant__ Arguments arguments) {
    DYNAMIC_SHARED(CardShared, whole);
    CardShared& shared = *whole;
    const CardRun run{arguments.batches,
                      arguments.validation_batches,
                      arguments.targets,
                      arguments.validation_targets,
                      arguments.record,
                      arguments.scale,
                      1 / arguments.scale,
                      arguments.loss,
                      arguments.rule,
                      arguments.words,
                      arguments.far + static_cast<int64>(blockIdx.x) * far_quads_before(),
                      arguments.dropouts,
                      static_cast<uint32>(arguments.first_step),
                      {arguments.key0, arguments.key1}};
    const Arrays arrays{arguments.places};
    Held held;
    prepare(shared, arguments.stopping);
    read_layers(shared, run, held, arrays);
    barrier_of_cluster();  // no block sends to another that has not begun
    const int num_rows = arguments.num_rows, first_epoch = arguments.first_epoch;
    Passes pass({num_rows, arguments.num_epochs}, arguments.num_validated, first_epoch,
                {arguments.report_every, arguments.last_epoch});
    load_batch<true>(shared, run, pass);
    copy_async_wait<0>();
    Ring ring{shared.pieces(), 0};
    if constexpr (STREAMED) ring.begin(forward_pass<0>(run), AHEAD_FORWARD);
    const StepSettings* settings = arguments.settings;
    StepSettings next = settings[0];
    for (; pass.is_there(); pass.advance()) {
        const int step = pass.training.index;
        const Now now{pass, step, pass.count(), next};
        // Of streamed weights some are on their way, behind the targets.
        copy_async_wait<(STREAMED ? AHEAD_FORWARD : 0)>();
        meet_for_products();
        const Passes following = pass.next();
        const bool has_next = following.is_there();
        NextRows rows;
        if (has_next) {
            load_batch(shared, run, following);
            if constexpr (APART) rows.load(run, following);
            if (following.trains()) next = settings[following.training.index];
        }
        if (pass.trains()) {
            train_from<0>(shared, run, held, ring, now);
        } else {
            validate_from<0>(shared, run, ring, now);
        }
        if (APART && has_next) rows.store(shared, run, following);
        if constexpr (STOPS) {
            if (pass.ends_reported() && is_over(shared, run, held, pass, num_rows,
                                                pass.epoch - first_epoch, {arguments.best_places}))
                break;
        }
    }
    if (STOPS && blockIdx.x == 0 && threadIdx.x == 0)
        arguments.stopping->rule = optional_part<StoppingState>(shared).rule;
    copy_async_wait<0>();
    barrier_of_cluster();  // nor to one that has left
    write_layers(shared, run, held, arrays);
}
