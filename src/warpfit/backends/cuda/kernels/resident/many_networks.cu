// Computes: whole training runs of many networks of one shape, a network at a time in each block:
//           for each step of each epoch forward pass, loss, backward pass, and the optimizer's
//           update. A block that is done takes the next network.
// Layout:   x (all rows, WIDTHS[0]) of DTYPE and targets (all rows, outputs) float32, or with
//           cross-entropy labels (all rows,) int64: which rows a network trains on, in which order
//           and at what rates its `Network` says; parameters (num_networks, 1 + SLOTS,
//           gradients_at(LAYERS)) float32: of each layer its weights (inputs, outputs) and biases,
//           then their optimizer state; best (num_networks, gradients_at(LAYERS)) float32, the
//           parameters of the best epoch of networks whose `Stopping` keeps them; queue a zero, or
//           with HALVES a `Queue`; dropouts (num_networks, LAYERS - 1), which are not read of
//           layers without; with WEIGHTED weights (all rows,) float32; with CLASS_WEIGHTS
//           class_weights (num_networks, outputs + 1) float32, the last of which is their mean;
//           with either total_weights (num_networks, 2) float64, those of the rows that a network
//           is trained on, and validated.
// Launch:   1-D grid of any number of blocks of WARPS warps; shared bytes as many_networks.py
//           counts them. Settings: ManyConfig of resident_config.py.
// Numerics: as narrow_step.cu; parameters and their optimizer state in float32. A network's bits
//           follow from its own numbers alone.
// Cost:     of a step 6 BATCH FLOP a weight, less 2 BATCH for each of the first layer; its rows are
//   read once.
// Reference: the layerwise engine over backends/numpy.
#include "ops/loss/loss_terms.cuh"
#include "ops/optim/update_rules.cuh"

namespace config {
#include <config>  // the settings, as the host declares them
}
using namespace config;

#include "base/block.cuh"
#include "narrow/narrow_dropout.cuh"
#include "narrow/narrow_pass.cuh"
#include "narrow/narrow_rows.cuh"
#include "resident/feed/many_rows.cuh"
#include "resident/record/rungs.cuh"

// What loss_settings of the host has, as this kernel takes it.
struct LossNumbers {
    double setting, of_term, of_derivative;
};

constexpr int TILES = (BATCH + ROWS - 1) / ROWS;
constexpr int PAIRS = 4 * PIECE_M * PIECE_N, NUMBERS = 2 * PAIRS + 2 * PIECE_N;
constexpr int PARAMETERS = gradients_at(LAYERS);

// A tile of rows of a step of an epoch.
struct Place {
    int epoch, step, tile;

    __device__ Place after(const Network& network) const {
        if (tile + 1 < TILES) return {epoch, step, tile + 1};
        return step + 1 < network.num_steps() ? Place{epoch, step + 1, 0} : Place{epoch + 1, 0, 0};
    }

    // As narrow_rows.cuh takes it.
    __device__ int64 row(const Network& network) const {
        return row_of_step(network, tile * ROWS + 16 * own_warp() + own_lane() % 16);
    }

    __device__ int64 row_of_step(const Network& network, int idx) const {
        return idx < BATCH ? network.row(epoch, step * BATCH + idx) : -1;
    }

    // Of the step's rows, added up by each warp for itself.
    template <class F>
    __device__ float weight(const Network& network, F weight_of) const {
        if (!HAS_WEIGHTS) return min(BATCH, network.num_rows - step * BATCH);
        float sum = 0;
        for (int idx = own_lane(); idx < BATCH; idx += WARP) {
            const int64 row = row_of_step(network, idx);
            if (row >= 0) sum += weight_of(row);
        }
        return reduce_warp<Sum>(sum);
    }

    __device__ RowDropout dropout(const Network& network, const NetworkDropout* of_layers) const {
        return {of_layers,
                network.steps_before() + static_cast<uint32>(epoch * network.num_steps() + step),
                static_cast<uint32>(tile * ROWS + 16 * own_warp())};
    }
};

struct InRegisters {
    float numbers[1 + SLOTS][PIECES_OF_WARP][NUMBERS];

    __device__ explicit InRegisters(float*) {}
    __device__ float& at(int slot, int piece, int i) { return numbers[slot][piece][i]; }
};

struct InShared {
    float* own;  // those of a thread THREADS apart

    __device__ explicit InShared(float* shared) : own(shared + threadIdx.x) {}
    __device__ float& at(int slot, int piece, int i) {
        return own[((slot * PIECES_OF_WARP + piece) * NUMBERS + i) * THREADS];
    }
};

using HeldNumbers = choice<IN_REGISTERS, InRegisters, InShared>;

// The parameters that a thread updates, those of its warp's pieces, and the optimizer state of
// each: numbers of pieces as PieceSums has them, pairs first.
struct HeldParameters : HeldNumbers {
    using HeldNumbers::HeldNumbers;

    // f(piece, i) for each of the warp's.
    template <class F>
    __device__ static void each_piece(const T* shared, F f) {
#pragma unroll
        for (int i = 0; i < PIECES_OF_WARP; ++i) {
            const int piece = own_warp() + i * WARPS;
            if (piece < PIECES) f(piece_of(shared, 0, piece), i);
        }
    }

    // f(number, place) for each of a piece and slot, with its place among those of a network.
    template <class F>
    __device__ void each(const Piece& piece, int idx, int slot, F f) {
        PieceSums::each_pair(piece, [&](int i, int row, int col) {
            const int place = piece.at + row * piece.outputs + col;
            f(at(slot, idx, 2 * i), place);
            if (col + 1 < piece.outputs) f(at(slot, idx, 2 * i + 1), place + 1);
        });
        PieceSums::each_bias(piece, [&](int i, int col) {
            f(at(slot, idx, 2 * PAIRS + i), piece.at + piece.inputs * piece.outputs + col);
        });
    }

    // f(number, place) for each of all that the thread holds, or of parameters alone.
    template <int LAST_SLOT = SLOTS, class F>
    __device__ void each_of_all(const T* shared, F f) {
        each_piece(shared, [&](const Piece& piece, int idx) {
#pragma unroll
            for (int slot = 0; slot <= LAST_SLOT; ++slot) {
                each(piece, idx, slot,
                     [&](float& number, int place) { f(number, slot * PARAMETERS + place); });
            }
        });
    }
};

// The 16-bit copies that products take.
struct Copies {
    T* shared;

    __device__ void store_pair(const Piece& piece, int row, int col, float first,
                               float second) const {
        const int at = piece.weights_at + row * piece.dz_stride + col;
        *reinterpret_cast<unsigned*>(shared + at) =
            packed<T>(first, col + 1 < piece.outputs ? second : 0);
    }

    __device__ void store_bias(const Piece& piece, int col, float value) const {
        if (own_lane() % 4 == 0) shared[piece.biases_at + col] = store<T>(value);
    }

    // Of everything that a thread holds of a piece.
    __device__ void store_all(HeldParameters& held, const Piece& piece, int idx) const {
        PieceSums::each_pair(piece, [&](int i, int row, int col) {
            store_pair(piece, row, col, held.at(0, idx, 2 * i), held.at(0, idx, 2 * i + 1));
        });
        PieceSums::each_bias(
            piece, [&](int i, int col) { store_bias(piece, col, held.at(0, idx, 2 * PAIRS + i)); });
    }
};

struct Update {
    NetworkStep of_weights, of_biases;
    float squares;  // with penalties, of the thread's weights before

    __device__ static void one(const NetworkStep& step, HeldParameters& held, int idx, int i,
                               float sum) {
        step.update(
            held.at(0, idx, i), [&](int slot) -> float& { return held.at(1 + slot, idx, i); }, sum);
    }

    __device__ void apply(HeldParameters& held, const Copies& copies, const Piece& piece, int idx,
                          const PieceSums& sums) {
        PieceSums::each_pair(piece, [&](int i, int row, int col) {
            if (PENALIZED) add_square(held.at(0, idx, 2 * i));
            if (PENALIZED && col + 1 < piece.outputs) add_square(held.at(0, idx, 2 * i + 1));
            one(of_weights, held, idx, 2 * i, sums.pair(i).x);
            one(of_weights, held, idx, 2 * i + 1, sums.pair(i).y);
            copies.store_pair(piece, row, col, held.at(0, idx, 2 * i), held.at(0, idx, 2 * i + 1));
        });
        PieceSums::each_bias(piece, [&](int i, int col) {
            one(of_biases, held, idx, 2 * PAIRS + i, sums.bias(i));
            copies.store_bias(piece, col, held.at(0, idx, 2 * PAIRS + i));
        });
    }

    __device__ void add_square(float w) { squares += w * w; }
};

// What all networks are trained on, and what their losses are beside the formula.
struct Data {
    const T* x;
    const Target* targets;
    const float* weights;  // of rows, with WEIGHTED
    float setting, of_derivative;
    double of_term;

    // Of a row, in a network whose classes have these weights.
    __device__ float weight(int64 row, [[maybe_unused]] const float* of_classes) const {
        const float own = WEIGHTED ? weights[row] : 1;
        return CLASS_WEIGHTS ? own * of_classes[static_cast<int64>(targets[row])] : own;
    }
};

// What is a network's own beside its `Network`.
struct OwnArrays {
    const NetworkDropout* dropouts;
    const double* weights;       // of all rows that it is trained on, and validated
    const float* class_weights;  // and their mean
    float *parameters, *best;
};

// Where a warp's rows come to, a tile of rows in each stage.
struct OwnRows {
    T* shared;
    const T* x;

    __device__ static int first() { return 16 * own_warp(); }
    __device__ T* stage(int idx) const {
        return shared + values_at(0) + first() * stride_of(0) + idx * X_TILE_SIZE;
    }

    __device__ void fetch(int64 numbers, int to) const {
        copy_rows<WIDTHS[0], padded(0)>(stage(to), stride_of(0), x, numbers, own_lane());
        copy_async_commit();
    }

    // Those in a stage through the network, to their losses and, to train on them, to all
    // gradients.
    template <bool TRAINS>
    __device__ void run(int idx, NarrowLoss& loss, const RowTargets& targets,
                        const RowDropout& dropout = {}) const {
        go_on<0, TRAINS>(shared, first(), load_fragments<padded(0)>(stage(idx), stride_of(0)), loss,
                         targets, dropout);
    }
};

// What all warps have added up of so many rows, or rows of this weight, whose sums begin anew.
template <class Weight>
__device__ inline EpochSums take_sums(NarrowLoss& loss, double of_term, Weight weight) {
    __shared__ double partials[WARP];
    const double total = reduce_block<Sum>(loss.sums[0], 0.0, partials);
    const double correct = reduce_block<Sum>(loss.sums[1], 0.0, partials);
    loss.sums[0] = loss.sums[1] = 0;
    return {weight > 0 ? of_term * total / weight : 0, correct};
}

// What all threads have added up of penalties, which begin anew.
__device__ inline double take_penalty(double& penalty) {
    __shared__ double partials[WARP];
    const double total = reduce_block<Sum>(penalty, 0.0, partials);
    penalty = 0;
    return total;
}

// Of the validation rows; the stage is free.
__device__ inline EpochSums validate(const OwnRows& rows, int stage, NarrowLoss& loss,
                                     double of_term, const Network& network, const OwnArrays& own) {
    for (int first = 0; first < network.num_validated; first += ROWS) {
        const int64 numbers = network.validation_row(first + OwnRows::first() + own_lane() % 16);
        rows.fetch(numbers, stage);
        const RowTargets targets = loss.fetch(numbers);
        copy_async_wait<0>();
        __syncwarp();
        rows.run<false>(stage, loss, targets);
        __syncwarp();
    }
    return take_sums(loss, of_term, weight_of_rows(network, own.weights, true));
}

// Adds what the rows in a stage say of the gradients, and at the end of a step updates what the
// thread holds.
__device__ inline void add_gradients(PieceSums (&sums)[PIECES_OF_WARP], HeldParameters& held,
                                     const Copies& copies, int stage, bool ends_step,
                                     Update& update) {
#pragma unroll
    for (int i = 0; i < PIECES_OF_WARP; ++i) {
        const int number = own_warp() + i * WARPS;
        if (number >= PIECES) continue;
        const Piece piece = piece_of(copies.shared, stage, number);
        sums[i].add(piece);
        if (ends_step) {
            update.apply(held, copies, piece, i, sums[i]);
            sums[i] = PieceSums();
        }
    }
}

// Trains a network to its last epoch, until it is stopped, or its loss is no number.
__device__ inline void train(T* shared, float* held_shared, const Data& data,
                             const Network& network, const OwnArrays& own) {
    __shared__ int verdict;
    const Copies copies{shared};
    HeldParameters held(held_shared);
    held.each_of_all(shared, [&](float& number, int place) { number = own.parameters[place]; });
    HeldParameters::each_piece(
        shared, [&](const Piece& piece, int idx) { copies.store_all(held, piece, idx); });

    const OwnRows rows{shared, data.x};
    NarrowLoss loss{data.targets, data.setting, 0, {0, 0}, own.class_weights};
    const auto weight_of = [&](int64 row) { return data.weight(row, own.class_weights); };
    Place at{0, 0, 0};
    int64 now = at.row(network);
    rows.fetch(now, 0);
    __syncthreads();

    int stage = 0, epochs_done = 0;
    double penalty = 0;
    float weight = 0;  // of the step
    PieceSums sums[PIECES_OF_WARP];
    while (at.epoch < network.num_epochs) {
        const Place next = at.after(network);
        const RowTargets targets = loss.fetch(now, data.weights);
        if (!HAS_WEIGHTS || at.tile == 0) weight = at.weight(network, weight_of);
        loss.of_derivative =
            HAS_WEIGHTS && weight <= 0 ? 0 : data.of_derivative * network.scale / weight;
        copy_async_wait<0>();
        __syncwarp();
        now = next.row(network);
        rows.fetch(now, stage ^ 1);
        rows.run<true>(stage, loss, targets, at.dropout(network, own.dropouts));
        __syncthreads();
        const NetworkStep step{*network.settings(at.epoch, at.step), network.rule,
                               1 / network.scale};
        Update update{step.of_weights(weight), step, 0};
        add_gradients(sums, held, copies, stage, at.tile + 1 == TILES, update);
        if (PENALIZED) penalty += 0.5 * step.settings.penalty * update.squares;
        __syncthreads();
        stage ^= 1;
        if (next.epoch > at.epoch) {
            const auto whole = weight_of_rows(network, own.weights, false);
            EpochSums trained = take_sums(loss, data.of_term, whole);
            if (PENALIZED) trained.loss += take_penalty(penalty) / whole;
            const EpochSums validated = validate(rows, stage ^ 1, loss, data.of_term, network, own);
            if (threadIdx.x == 0) verdict = network.end_epoch(at.epoch, 0, trained, validated);
            __syncthreads();
            if (KEEPS_BEST && (verdict & IS_BETTER))
                held.each_of_all<0>(shared,
                                    [&](float& number, int place) { own.best[place] = number; });
            epochs_done += !(verdict & IS_NO_NUMBER);
            if (verdict & IS_OVER) break;
        }
        at = next;
    }
    copy_async_wait<0>();
    held.each_of_all(shared, [&](float& number, int place) { own.parameters[place] = number; });
    if (threadIdx.x == 0) network.leave(epochs_done);
}

#include <arguments>  // struct Arguments, as the host packs it

extern "C" __global__ void __launch_bounds__(THREADS, BLOCKS)
    many_networks(const __grid_constant__ Arguments arguments) {
    take_turn();
    DYNAMIC_SHARED(T, shared);
    __shared__ int own;
    float* held = reinterpret_cast<float*>(shared + raw_at());
    const LossNumbers& loss = arguments.loss;
    const Data data{arguments.x,
                    arguments.targets,
                    arguments.weights,
                    static_cast<float>(loss.setting),
                    static_cast<float>(loss.of_derivative),
                    loss.of_term};
    const Network* networks = arguments.networks;
    Queue* queue = arguments.queue;
    const int num_networks = arguments.num_networks;
    // What pads weights and biases stays 0.
    clear_by_block<THREADS>(shared + weights_at(0), values_at(0));
    clear_by_block<THREADS>(shared + biases_at(0), biases_at(LAYERS) - biases_at(0));
    for (;;) {
        if (threadIdx.x == 0) own = queue->network_at(queue->take(), num_networks);
        __syncthreads();
        const int idx = own;
        __syncthreads();
        if (idx < 0) return;
        const Network network = queue->part_of(networks[idx]);
        const int64 first = static_cast<int64>(idx) * PARAMETERS;
        train(shared, held, data, network,
              {arguments.dropouts + static_cast<int64>(idx) * (LAYERS - 1),
               arguments.total_weights + 2 * static_cast<int64>(idx),
               arguments.class_weights + static_cast<int64>(idx) * (OUTPUTS + 1),
               arguments.parameters + (1 + SLOTS) * first, arguments.best + first});
        if constexpr (HALVES) {
            __syncthreads();
            if (__syncthreads_or(threadIdx.x == 0 && queue->hand_back()))
                queue->decide<true>(networks, num_networks, threadIdx.x, THREADS,
                                    [] { __syncthreads(); });
        }
    }
}
