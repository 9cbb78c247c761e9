// Computes: whole training runs of many networks with a hidden layer, of one shape, a network at a
//           time in each cluster: for each step of each epoch forward pass, loss, backward pass,
//           and the optimizer's update. A cluster that is done takes the next network.
// Layout:   x (all rows, X_WIDTH) of DTYPE: FEATURES numbers, a one, and zeros, after a row of
//           zeros; targets (all rows, TARGET_WORDS) 32-bit words, labels or float32; which rows a
//           network trains on, in which order and at what rates its `Network` says; parameters
//           (num_networks, 1 + SLOTS, PARAMETERS) float32: weights (FEATURES, HIDDEN) and biases of
//           the hidden layer, weights (HIDDEN, OUTPUTS) and biases of the outputs, each layer
//           filled up to a multiple of 4, then their optimizer state; best (num_networks,
//           PARAMETERS) float32, the parameters of the best epoch of networks whose `Stopping`
//           keeps them; queue a zero, or with HALVES a `Queue`; dropouts (num_networks,), which are
//           not read without DROPS; with WEIGHTED weights (all rows,) float32, which also follow
//           the targets; with CLASS_WEIGHTS class_weights (num_networks, OUTPUTS + 1) float32, the
//           last of which is their mean; with either total_weights (num_networks, 2) float64, those
//           of the rows that a network is trained on, and validated.
// Launch:   any number of clusters of CLUSTER blocks of 512 threads; SHARED_BYTES of dynamic shared
//           memory, from a multiple of 1024. Settings: ManyClustersConfig of resident_config.py.
// Numerics: products of DTYPE, biases of the hidden layer among them, with float32 sums; parameters
//           and their optimizer state in float32. A network's bits follow from its own numbers
//           alone.
// Cost:     of a step 4 BATCH HIDDEN FEATURES FLOP and the output layer's; a cluster reads the
//           batch from L2 once, and from shared memory twice.
// Reference: the layerwise engine over backends/numpy; PTX ISA 9.7.15 (wgmma).
//
// Parts of the features lie in different blocks, or warpgroups, with all hidden units' weights,
// which are the accumulators of dw1ᵀ = dhᵀ x and, rounded, the operand in registers of zᵀ = w1ᵀ xᵀ.
// x lies in shared memory in boxes of 64 rows and 64 features, which both products read: along k,
// and across. A step goes
//
//   forward    each part its sums of zᵀ; each gets those of its rows outputs    h of a part's rows,
//   their logits, loss and gradients, by a third warpgroup, which also brings the next batch
//   backward   dh of a part's rows, to all parts; dw1 box by box, added to the weights
#define SHARED_ALIGNMENT 1024

#include "ops/loss/loss_terms.cuh"
#include "ops/optim/update_rules.cuh"

namespace config {
#include <config>  // the settings, as the host declares them
}
using namespace config;

#include "base/block.cuh"
#include "resident/feed/batch_warps.cuh"
#include "resident/loss/loss_warps.cuh"
#include "resident/products/unit_warps.cuh"
#include "resident/record/rungs.cuh"

__device__ inline void make_barriers(ClusterShared& shared) {
    for (Barrier& barrier : shared.x_full) mbarrier_init(&barrier, HELPERS * OF_WARP);
    for (Barrier& barrier : shared.x_free) mbarrier_init(&barrier, (WARPS + HELPERS) * OF_WARP);
    mbarrier_init(&shared.h_full, WARPS * OF_WARP);
    mbarrier_init(&shared.h_free, HELPERS * OF_WARP);
    mbarrier_init(&shared.dz_full, WARPS_WITH_ROWS * OF_WARP);
    mbarrier_init(&shared.losses_met, HELPERS * OF_WARP);
    mbarrier_init(&shared.bringers_met, HELPERS * OF_WARP);
    for (Barrier& barrier : shared.z_full)
        mbarrier_init(&barrier, CLUSTER > 1 ? 1 : WARPS / GROUPS * OF_WARP);
    for (Barrier& barrier : shared.group_met)
        mbarrier_init(&barrier, CLUSTER > 1 ? (CLUSTER - 1) * HELPERS : WARPS / GROUPS * OF_WARP);
    for (Barrier& barrier : shared.dh_full) mbarrier_init(&barrier, PARTS_OF_BLOCK * OF_WARP);
    mbarrier_init(&shared.w2_free, WARPS * OF_WARP);
    mbarrier_init(&shared.outputs_full, HELPERS * OF_WARP);
    mbarrier_init(&shared.sums_full, CLUSTER > 1 ? 1 : (HELPERS + PENALIZED * WARPS) * OF_WARP);
    for (Barrier& barrier : shared.verdict_full) mbarrier_init(&barrier, 1);
    mbarrier_init(&shared.next_full, 1);
    fence_mbarrier_init();
}

// What is not written in a run stays 0.
__device__ inline void clear(ClusterShared& shared) {
    clear_by_block<THREADS>(&shared.dz[0][0], DZ_ROWS * OUT_STRIDE);
    clear_by_block<THREADS>(&shared.w2[0][0], UNITS * UNIT_TILES * OUT_STRIDE);
    clear_by_block<THREADS>(&shared.output_bias[0][0], (1 + SLOTS) * OUT_WIDTH);
}

constexpr int OF_NETWORK = (1 + SLOTS) * PARAMETERS;

struct Networks {
    const Network* all;
    Queue* queue;
    int count;

    // Whether there is a next one, the same for all blocks of a cluster, which is in shared memory
    // then.
    __device__ bool take_next(ClusterShared& shared) const {
        __syncwarp();
        barrier_of_cluster();  // all are done with the one before
        if (threadIdx.x == 0) {
            if constexpr (CLUSTER > 1) {
                mbarrier_expect(&shared.next_full, 8);
                if (own_rank() == 0) {
                    const unsigned next = queue->take();
                    for (int to = 0; to < CLUSTER; ++to) {
                        store_async_pair(place_in(to, &shared.next), next, 0,
                                         place_in(to, &shared.next_full));
                    }
                }
                wait(shared.next_full, shared.run.round);
            } else {
                shared.next = queue->take();
            }
            begin(shared);
        }
        __syncthreads();
        return shared.run.idx >= 0;
    }

    __device__ void begin(ClusterShared& shared) const {
        shared.run.idx = queue->network_at(static_cast<unsigned>(shared.next), count);
        if (shared.run.idx < 0) return;
        const Network& network = shared.network = queue->part_of(all[shared.run.idx]);
        ++shared.run.round;
        shared.run.epochs += shared.run.epochs_of_last;
        shared.run.epochs_of_last = 0;
        shared.run.batches = Batch::count(network);
        shared.run.unscale = 1 / network.scale;
    }

    // When a network is in memory again. DECIDES of warps that have registers for it.
    template <bool DECIDES>
    __device__ void hand_back() const {
        if constexpr (!HALVES) return;
        __syncwarp();
        barrier_of_cluster();
        if (own_rank() == 0 && __syncthreads_or(threadIdx.x == 0 && queue->hand_back()))
            queue->decide<DECIDES>(all, count, threadIdx.x, GROUPS * GROUP_THREADS, meet);
    }

    // All warps of a block.
    __device__ static void meet() { __syncthreads(); }
};

#include <arguments>  // struct Arguments, as the host packs it

extern "C" __global__ void __launch_bounds__(THREADS, 1)
    many_networks_sm90(const __grid_constant__ Arguments arguments) {
    take_turn();
    DYNAMIC_SHARED(ClusterWhole, whole);
    ClusterShared& shared = *whole;
    if (threadIdx.x == 0) {
        make_barriers(shared);
        shared.run = {};
    }
    clear(shared);
    barrier_of_cluster();
    Networks networks{arguments.networks, arguments.queue, arguments.num_networks};
    float *parameters = arguments.parameters, *best = arguments.best;
    if (own_group() < GROUPS) {
        take_registers<UNIT_REGISTERS>();
        UnitWarps warps(shared, arguments.dropouts);
        while (networks.take_next(shared)) {
            warps.weights.read(own_numbers(parameters, shared, OF_NETWORK));
            networks.meet();
            warps.train(best);
            warps.weights.write(own_numbers(parameters, shared, OF_NETWORK));
            networks.hand_back<true>();
        }
    } else if (own_group() == LOSS_GROUP) {
        leave_registers<LOSS_REGISTERS>();
        LossWarps warps(shared, arguments.loss, arguments.total_weights, arguments.class_weights);
        while (networks.take_next(shared)) {
            warps.read(own_numbers(parameters, shared, OF_NETWORK));
            networks.meet();
            const int done = warps.train(best);
            warps.write(own_numbers(parameters, shared, OF_NETWORK));
            if (LossWarps::is_first(Thread())) shared.network.leave(done);
            networks.hand_back<false>();
        }
    } else {
        leave_registers<BATCH_REGISTERS>();
        BatchWarps warps(shared, arguments.x, arguments.targets, arguments.weights,
                         arguments.class_weights);
        while (networks.take_next(shared)) {
            networks.meet();
            warps.train();
            networks.hand_back<false>();
        }
    }
}
