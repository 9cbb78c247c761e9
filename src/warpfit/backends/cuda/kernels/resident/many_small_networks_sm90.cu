// Computes: whole training runs of many small networks of one shape, a network at a time in each
//           group of four warps, which multiply together: for each step of each epoch forward pass,
//           loss, backward pass, and the optimizer's update. A group that is done takes the next
//           network.
// Layout:   x (all rows, X_WIDTH) of DTYPE, features and zeros up to a multiple of 16, after a row
//           of zeros; targets (all rows, TARGET_WORDS) 32-bit words, labels or float32; which rows
//           a network trains on, in which order and at what rates its `Network` says; parameters
//           (num_networks, 1 + SLOTS, PARAMETERS) float32: of each layer weights (inputs, outputs)
//           and biases, filled up to a multiple of 4, then their optimizer state; best
//           (num_networks, PARAMETERS) float32, the parameters of the best epoch of networks whose
//           `Stopping` keeps them; queue a zero, or with HALVES a `Queue`.
// Launch:   any number of blocks of GROUPS + 1 times 128 threads, the last of which bring the rows
//           of all; SHARED_BYTES of dynamic shared memory, from a multiple of 1024. Settings:
//           ManySmallConfig of resident_config.py.
// Numerics: products of DTYPE; sums in float32 of gradients of parameters and of logits, and of
//           bfloat16; of float16 those of a layer's units, and of their gradients, in float16, to
//           which they are rounded anyway. Biases are added likewise. Parameters and their
//           optimizer state in float32. A network's bits follow from its own numbers alone.
// Cost:     of a step 6 BATCH FLOP a weight, less 2 BATCH for each of the first layer, of layers
//   filled up; its rows are read once.
// Reference: the layerwise engine over backends/numpy; PTX ISA 9.7.15 (wgmma).
#define SHARED_ALIGNMENT 1024

#include "ops/loss/loss_terms.cuh"
#include "ops/optim/update_rules.cuh"

namespace config {
#include <config>  // the settings, as the host declares them
}
using namespace config;

#include "resident/feed/small_rows.cuh"
#include "resident/loss/small_outputs.cuh"
#include "resident/record/rungs.cuh"

constexpr int OF_NETWORK = (1 + SLOTS) * PARAMETERS;

struct Networks {
    const Network* all;
    Queue* queue;
    int count;

    // Whether there is a next one, for all threads of a group.
    __device__ bool take_next(GroupShared& shared) const {
        meet();  // all are done with the one before
        if (Thread().idx == 0) {
            shared.run.idx = queue->network_at(queue->take(), count);
            if (shared.run.idx >= 0) begin(shared, queue->part_of(all[shared.run.idx]));
            // One without epochs needs no rows: nobody would wait for the warp that brings them.
            if (shared.run.idx < 0 || shared.network.num_epochs > 0)
                mbarrier_arrive(&shared.network_full);
        }
        meet();
        return shared.run.idx >= 0;
    }

    // When a network is in memory again.
    __device__ void hand_back([[maybe_unused]] GroupShared& shared) const {
        if constexpr (!HALVES) return;
        meet();
        if (Thread().idx == 0) shared.run.ends_rung = queue->hand_back();
        meet();
        if (shared.run.ends_rung)
            queue->decide<true>(all, count, static_cast<int>(Thread().idx), GROUP_THREADS, meet);
    }

    __device__ static void begin(GroupShared& shared, const Network& network) {
        shared.network = network;
        shared.run.batches = Batch::count(network);
        shared.run.unscale = 1 / network.scale;
        shared.run.factors[0] = network.scale / BATCH;
        shared.run.factors[1] = network.scale / static_cast<float>(network.num_rows % BATCH);
    }
};

// The four warps that train a network.
struct Group {
    GroupShared& shared;
    const LossSettings& loss;
    Parameters parameters;
    unsigned batches = 0;  // so far
    // The thread's, of an epoch so far.
    double own_loss = 0;
    unsigned own_correct = 0;

    __device__ Group(GroupShared& shared, const LossSettings& loss)
        : shared(shared), loss(loss), parameters(shared) {}

    // Where the batch is.
    __device__ int stage() const { return batches % STAGES; }

    // The group's, found anew: in registers, what follows from where it is would be too much from
    // step to step.
    __device__ GroupShared& found_anew() const { return (&shared)[uniform(unforeseen(0u))]; }

    // The batch to its losses; `last` is what the last hidden layer gives.
    __device__ void find_losses_of(GroupShared& shared, const Batch& batch, Words& last) {
        await_batch();
        meet();  // all are done with the step before
        go_forward(shared, last, parameters, stage());
        const int num_rows = batch.num_rows(shared.network);
        const float factor =
            batch.trains(shared.network) ? shared.run.factors[num_rows < BATCH] : 0;
        const RowLoss found = find_losses(shared, parameters, loss, num_rows, factor, stage());
        own_loss += found.loss;
        own_correct += found.is_correct;
        meet();
    }

    // The mean over so many rows of all that the threads have added up, for the first of them; sums
    // begin anew.
    __device__ void take_sums(EpochSums& found, int num_rows) {
        const Thread own;
        const double loss = reduce_warp<Sum>(own_loss),
                     correct = reduce_warp<Sum>(1.0 * own_correct);
        own_loss = own_correct = 0;
        meet();  // what came before has been taken
        if (own.lane() == 0) shared.sums[own.warp()] = {loss, correct};
        meet();
        if (own.idx > 0) return;
        found = {0, 0};
        for (const EpochSums& of_warp : shared.sums) {
            found.loss += of_warp.loss / num_rows;
            found.correct += of_warp.correct;
        }
    }

    __device__ void take_step(const Batch& batch) {
        GroupShared& shared = found_anew();
        Words words;
        find_losses_of(shared, batch, words);
        const NetworkStep step{shared.settings[stage()], shared.network.rule, shared.run.unscale};
        back_from_outputs(words, shared, parameters, step);
        go_back(shared, words, parameters, step, stage());
        leave_batch();
    }

    __device__ void validate(const Batch& batch) {
        Words words;
        find_losses_of(found_anew(), batch, words);
        leave_batch();
    }

    // Trains the network to its last epoch, until it is stopped, or its loss is no number; returns
    // how many epochs it did. `best` is that of all networks.
    __device__ int train(float* best) {
        const Network& network = shared.network;
        for (int epoch = 0; epoch < network.num_epochs; ++epoch) {
            Batch batch{epoch, 0};
            for (; batch.trains(network); ++batch.idx) take_step(batch);
            take_sums(shared.run.trained, network.num_rows);
            for (; batch.idx < shared.run.batches; ++batch.idx) validate(batch);
            take_sums(shared.run.validated, max(network.num_validated, 1));
            const int verdict = judge(epoch);
            if (KEEPS_BEST && (verdict & IS_BETTER))
                parameters.write<0>(best + static_cast<int64>(shared.run.idx) * PARAMETERS);
            if (!(verdict & IS_OVER)) continue;
            if (epoch + 1 < network.num_epochs) pass_batch();
            return epoch + !(verdict & IS_NO_NUMBER);
        }
        return network.num_epochs;
    }

    __device__ void await_batch() { wait(shared.batch_full[stage()], batches / STAGES); }

    __device__ void leave_batch() {
        arrive_warp(shared.batch_free[stage()]);
        ++batches;
    }

    // That is on its way, and nobody needs.
    __device__ void pass_batch() {
        await_batch();
        leave_batch();
    }

    __device__ int judge(int epoch) {
        GroupRun& run = shared.run;
        if (Thread().idx == 0) {
            run.verdicts[epoch % 2] =
                shared.network.end_epoch(epoch, 0, run.trained, run.validated);
            mbarrier_arrive(&shared.verdict_full[epoch % 2]);
        }
        meet();
        return run.verdicts[epoch % 2];
    }
};

__device__ inline void make_barriers(GroupShared& shared) {
    for (Barrier& barrier : shared.batch_full) mbarrier_init(&barrier, OF_WARP);
    for (Barrier& barrier : shared.batch_free) mbarrier_init(&barrier, WARPS * OF_WARP);
    mbarrier_init(&shared.network_full, 1);
    for (Barrier& barrier : shared.verdict_full) mbarrier_init(&barrier, 1);
}

#include <arguments>  // struct Arguments, as the host packs it

extern "C" __global__ void __launch_bounds__(THREADS, 1)
    many_small_networks_sm90(const __grid_constant__ Arguments arguments) {
    take_turn();
    DYNAMIC_SHARED(GroupShared, groups);
    const int group = static_cast<int>(uniform(threadIdx.x / GROUP_THREADS)),
              warp = threadIdx.x % GROUP_THREADS / WARP;
    if (threadIdx.x < GROUPS) make_barriers(groups[threadIdx.x]);
    __syncthreads();
    if (group == GROUPS) {
        leave_registers<ROW_REGISTERS>();
        if (warp >= GROUPS) return;
        RowWarp(groups[warp], arguments.x, arguments.targets).serve();
        return;
    }
    take_registers<GROUP_REGISTERS>();
    GroupShared& shared = groups[group];
    // What pads layers stays 0.
    for (unsigned i = Thread().idx; i < sizeof shared.weights / 4; i += GROUP_THREADS)
        reinterpret_cast<unsigned*>(shared.weights)[i] = 0;
    Group own(shared, arguments.loss);
    const Networks networks{arguments.networks, arguments.queue, arguments.num_networks};
    float* parameters = arguments.parameters;
    while (networks.take_next(shared)) {
        const int64 idx = shared.run.idx;
        own.parameters.read(parameters + idx * OF_NETWORK);
        own.parameters.store_out_weights();
        const int epochs_done = own.train(arguments.best);
        own.parameters.write(parameters + idx * OF_NETWORK);
        if (Thread().idx == 0) shared.network.leave(epochs_done);
        networks.hand_back(shared);
    }
}
