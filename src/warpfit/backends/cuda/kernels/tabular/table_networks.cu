// Computes: the training of tabular networks of one shape (RealMLP), each with its own data: for
//           each step of each epoch forward pass, loss, backward pass and Adam's update; after each
//           epoch the validation error, and, if no epoch had less, the parameters once more.
// Layout:   networks (NETWORKS,), whose arrays TableNetwork and table_shapes.cuh describe; memory
//           (NETWORKS,) of MEMORY_BYTES each, zeros; steps, of the whole run; turns, zeros. Of the
//           run first_epoch epochs are done. Targets are labels, int64, or numbers, float32. The
//           error of an epoch is the share of rows that are wrong, or the root of the mean squared
//           error.
// Launch:   any number of blocks of 512 threads, all resident; SHARED_BYTES of dynamic shared
//           memory. Settings: TableConfig of resident_config.py.
// Numerics: products of 16-bit numbers with float32 sums; all else in float32. Gradients are scaled
//           by GRADIENT_SCALE times the rows of a batch. Sums in a fixed order, whatever the number
//           of blocks.
// Cost:     6 BATCH FLOP for each weight. Each block of ROWS rows reads all weights twice, in 16
//           bits; each tile of weights reads the rows of its inputs and of its gradients.
// Reference: train of tabular/training.py; PTX ISA 9.7.14.5 (mma).
//
// A step has two parts, and between them blocks wait for each other. First each block takes some
// rows of a batch through all layers and back. Then all warps of the grid update parameters.
#include "base/reduce.cuh"
#include "ops/activation/activation.cuh"

namespace config {
#include <config>  // the settings, as the host declares them
}
using namespace config;

#include "base/block.cuh"
#include "tabular/table_updates.cuh"

// What the rows of a block come to together; a warp calls.
__device__ inline float sum_of_losses(const TableShared& shared) {
    return reduce_warp<Sum>(own_lane() < ROWS ? shared.losses[own_lane()] : 0.0f);
}

#include <arguments>  // struct Arguments, as the host packs it

// The gradients of the outputs and the losses, and on to those of all else. Once no product needs
// weights behind the first layer any more, their update may begin.
__device__ inline void differentiate_rows(TableShared& shared, const RowBlock& rows, Turns& turns,
                                          Masks masks) {
    const auto& tiles = rows.memory.backward;
    constexpr bool IS_SMALL = FirstBackward::COUNT <= 4;  // enough to be held for long
    LastBackward last;
    FirstBackward first;
    Middle middle;
    last.load(&tiles[tiles_before(LAST)]);
    if (LAST > 1) middle.load(&tiles[tiles_before(LAST - 1)]);
    if (IS_SMALL) first.load(&tiles[0]);
    differentiate_outputs(shared, rows);
    __syncthreads();
    leave_outputs(shared, rows);
    if (own_warp() == WARPS - 1) {
        const float sum = sum_of_losses(shared);
        if (own_lane() == 0)
            rows.network.losses[static_cast<int64>(rows.step) * ROW_BLOCKS + rows.index] = sum;
    }
    go_back(shared, rows, last, middle, masks);
    if (!IS_SMALL) first.load(&tiles[0]);
    __syncthreads();
    if (rows.is_last && threadIdx.x == THREADS - 1) tell(&turns.gradients);
    find_input_gradients(shared, rows, first);
    __syncthreads();
    differentiate_embeddings(shared, rows);
}

// Takes a block of rows through the network, and in training back. What does not depend on the
// update before comes first.
__device__ inline void take_rows(TableShared& shared, const RowBlock& rows, Turns& turns,
                                 unsigned updates) {
    const Masks masks = draw_all(rows);
    __syncthreads();  // nobody needs the rows before any more
    read_rows(shared, rows);
    wait_for(&turns.updates, updates);
    VectorsOfThread vectors;
    vectors.load(rows.network, 0);
    FirstForward first;
    Middle middle;
    first.load(&rows.memory.forward[0]);
    if (LOADS_MIDDLE_AHEAD) middle.load(&rows.memory.forward[tiles_before(1)]);
    vectors.bring_rest(shared, rows.network);
    __syncthreads();
    embed(shared, rows);
    go_forward(shared, rows, first, middle, masks);
    if (rows.trains) return differentiate_rows(shared, rows, turns, masks);
    find_errors(shared, rows);
    __syncthreads();
    if (own_warp() > 0) return;
    const float sum = sum_of_losses(shared);
    if (own_lane() == 0) rows.network.error_sums[rows.index] = sum;
}

// The error of a network after an epoch; a warp calls, and finds the same in all blocks.
__device__ inline double error_of(const TableNetwork& network) {
    const int blocks = (network.num_validated + ROWS - 1) / ROWS;
    double sum = 0;
#pragma unroll 1
    for (int i = own_lane(); i < blocks; i += 32) sum += received(network.error_sums + i);
    sum = reduce_warp<Sum>(sum) / network.num_validated;
    return HAS_LABELS ? sum : sqrt(sum / OUTPUTS);
}

// Which tasks fall to a block. Blocks without rows take some in a row each, if there are enough of
// them; else all blocks take turns. A block without tasks is no updater: it has nothing to wait
// for, and would tell others of steps to come.
struct Tasks {
    const Arguments& arguments;
    int updaters, first, last, step;

    __device__ explicit Tasks(const Arguments& of_launch) : arguments(of_launch) {
        constexpr int COUNT = NETWORKS * TASKS, WITH_ROWS = NETWORKS * ROW_BLOCKS;
        const int blocks = gridDim.x, own = blockIdx.x;
        if (blocks >= 2 * WITH_ROWS) {
            const int each = (COUNT + blocks - WITH_ROWS - 1) / (blocks - WITH_ROWS);
            updaters = (COUNT + each - 1) / each;
            first = (own - WITH_ROWS) * each;
            last = own < WITH_ROWS ? first : smaller(first + each, COUNT);
            step = 1;
        } else {
            updaters = smaller(blocks, COUNT);
            first = own;
            last = COUNT;
            step = blocks;
        }
    }

    __device__ bool is_updater() const { return first < last; }

    static constexpr int ALL_EARLY = NETWORKS * EARLY_TASKS;

    // This warp's first task of those that come early or late, and where those of its block end.
    __device__ int begin(bool late) const {
        int i = first + step * own_warp();
        while (late && i < ALL_EARLY) i += step * WARPS;
        return i;
    }
    __device__ int end(bool late) const { return late ? last : smaller(last, ALL_EARLY); }
    __device__ bool has(bool late) const { return late ? last > ALL_EARLY : first < ALL_EARLY; }

    __device__ static int network_of(int i) {
        return i < ALL_EARLY ? i / EARLY_TASKS : (i - ALL_EARLY) / LATE_TASKS;
    }
    // Late ones are counted from EARLY_TASKS on.
    __device__ static int task_of(int i) {
        return i < ALL_EARLY ? i % EARLY_TASKS : EARLY_TASKS + (i - ALL_EARLY) % LATE_TASKS;
    }

    // f(network's number, task) for each task of this warp.
    template <class F>
    __device__ void each(F f) const {
        for (int i = begin(false); i < last; i += step * WARPS) f(network_of(i), task_of(i));
    }

    __device__ void load(TileState& state, int i) const {
        if (task_of(i) < ALL_TILES)
            state.load(arguments.networks[network_of(i)], tile_of(task_of(i)));
    }
};

// Updates what falls to this block, each part once the blocks with rows have told of it so many
// times.
__device__ inline void update(const Tasks& tasks, const TableStep& now, unsigned arrivals) {
    if (!tasks.is_updater()) return;
    const Arguments& arguments = tasks.arguments;
    Turns& turns = *arguments.turns;
#pragma unroll 1
    for (int late = 0; late < 2; ++late) {
        if (!tasks.has(late)) continue;
        const int end = tasks.end(late), first = tasks.begin(late);
        int i = first;
        do {
            TileState state;
            if (i < end) tasks.load(state, i);  // the first while others still have rows
            if (i == first) wait_for(late ? &turns.rows : &turns.gradients, arrivals);
            if (i >= end) break;
            const int network = tasks.network_of(i);
            update_by_task(arguments.networks[network], arguments.memory[network], now,
                           tasks.task_of(i), state);
            i += tasks.step * WARPS;
        } while (i < end);
    }
    arrive(&turns.updates);
}

// After an epoch: keeps the parameters of the networks that never had a smaller error.
__device__ inline void keep_best(TableShared& shared, const Tasks& tasks, int epoch) {
    const TableNetwork* networks = tasks.arguments.networks;
    for (int i = own_warp(); i < NETWORKS; i += WARPS) {
        const double error = error_of(networks[i]);
        // NaN is smaller than nothing.
        const bool is_best = error <= shared.best[i] && error < infinity();
        __syncwarp();
        if (own_lane() > 0) continue;
        shared.is_best[i] = is_best;
        if (is_best) shared.best[i] = error;
        if (blockIdx.x > 0) continue;
        networks[i].errors[1 + epoch] = error;
        networks[i].errors[0] = shared.best[i];
    }
    __syncthreads();
    tasks.each([&](int network, int task) {
        if (shared.is_best[network]) keep_by_task(networks[network], task);
    });
}

extern "C" __global__ void __launch_bounds__(THREADS, 1)
    table_networks(const __grid_constant__ Arguments arguments) {
    know_threads<THREADS>();
    DYNAMIC_SHARED(TableShared, whole);
    TableShared& shared = *whole;
    Turns& turns = *arguments.turns;
    const Tasks tasks(arguments);
    for (int i = threadIdx.x; i < NETWORKS; i += THREADS)
        shared.best[i] = arguments.networks[i].errors[0];
    const int row_blocks = NETWORKS * ROW_BLOCKS, steps = arguments.steps_per_epoch,
              validation_blocks = NETWORKS * arguments.validation_blocks;
    const unsigned blocks_with_rows = min(static_cast<int>(gridDim.x), row_blocks);
    const uint32 first_step = static_cast<uint32>(arguments.first_epoch) * steps;
    unsigned done = 0, updates = 0;  // steps of the launch
    for (int epoch = 0; epoch < arguments.num_epochs; ++epoch) {
        // After the steps of an epoch comes validation, which is a step without updates. Before the
        // first of all comes one without rows: it leaves parameters, and writes them for products.
        for (int step = arguments.first_epoch + epoch > 0 ? 0 : -1; step <= steps; ++step) {
            const bool trains = step < steps;
            const TableStep now =
                0 <= step && trains ? arguments.steps[first_step + done] : TableStep{0, 1, 0, 1, 0};
            const int blocks = step < 0 ? 0 : trains ? row_blocks : validation_blocks;
            const int of_network = trains ? ROW_BLOCKS : arguments.validation_blocks;
            for (int i = blockIdx.x; i < blocks; i += gridDim.x) {
                const int own = i / of_network;
                const TableNetwork& network = arguments.networks[own];
                // Unforeseen, lest all places in it are found ahead and kept, out of registers.
                const RowBlock rows{network,
                                    *unforeseen(&arguments.memory[own]),
                                    now,
                                    trains,
                                    i + static_cast<int>(gridDim.x) >= blocks,
                                    i % of_network,
                                    trains ? BATCH : network.num_validated,
                                    static_cast<uint32>(step) * BATCH,
                                    static_cast<uint32>(arguments.first_epoch + epoch),
                                    first_step + done};
                if (rows.has(0)) take_rows(shared, rows, turns, tasks.updaters * updates);
            }
            if (!trains) break;
            if (static_cast<int>(blockIdx.x) < blocks) arrive(&turns.rows);
            if (step >= 0) ++done;
            ++updates;
            update(tasks, now, blocks_with_rows * done);
        }
        arrive(&turns.validations);
        wait_for(&turns.validations, gridDim.x * (epoch + 1));
        keep_best(shared, tasks, arguments.first_epoch + epoch);
    }
}
