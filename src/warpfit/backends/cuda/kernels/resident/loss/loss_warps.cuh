// The warpgroup of a block that finds losses, and has the parameters of the outputs.
// Owns w2, output_bias and dz; reads h as the unit warps left it, and gives both back at barriers.
// All blocks of a cluster keep the outputs' parameters alike, from sums in one order.
#pragma once

#include "resident/layout/cluster_network.cuh"
#include "resident/loss/output_losses.cuh"

// Of an epoch's rows of one kind, of one lane: the sum of losses, and how many are right.
struct OwnSums {
    double loss = 0, correct = 0;

    __device__ void add(const RowLoss& row) {
        loss += row.loss;
        correct += row.is_correct;
    }
};

// The weights of the outputs that a warp has, of some units; and their optimizer state: 16 by 16,
// as the accumulators of mma have them. Their biases are the last warp's, in shared memory.
struct OutputWeights {
    float numbers[1 + SLOTS][UNIT_TILES][2][4];

    __device__ static unsigned first_unit(const Thread& own, int idx) {
        return 16 * ((own.warp() - FIRST_LOSS_WARP) * UNIT_TILES + idx);
    }
    __device__ static bool have_biases(const Thread& own) {
        return own.warp() == FIRST_LOSS_WARP + HELPERS - 1;
    }

    // f(tile of 8 outputs, whether the lower unit, unit, pair of outputs) for each pair of the lane
    // among its first, or second, 16 units.
    template <class F>
    __device__ static void each_pair(const Thread& own, int idx, F f) {
#pragma unroll
        for (int part = 0; part < 4; ++part) {
            const int tile = part / 2, below = part % 2;
            const unsigned unit = first_unit(own, idx) + own.lane() / 4 + 8 * below,
                           col = 8 * tile + own.column();
            if (unit < HIDDEN && col < OUTPUTS) f(tile, below, unit, col / 2);
        }
    }

    // f(tile of 8 outputs, pair) for each of the biases.
    template <class F>
    __device__ static void each_pair_of_biases(const Thread& own, F f) {
        if (!have_biases(own) || own.lane() >= 4) return;
#pragma unroll
        for (int tile = 0; tile < 2; ++tile) {
            const unsigned col = 8 * tile + own.column();
            if (col < OUTPUTS) f(tile, col / 2);
        }
    }

    // Pairs of a warp.
    __device__ static int num_pairs(const Thread& own) {
        int num_rows = have_biases(own);
#pragma unroll
        for (int idx = 0; idx < UNIT_TILES; ++idx)
            num_rows += max(0, min(16, HIDDEN - static_cast<int>(first_unit(own, idx))));
        return num_rows * PAIRS_OF_ROW;
    }

    // f(number, its place among parameters) for each in a slot.
    template <class F>
    __device__ void each(ClusterShared& shared, int slot, F f) {
        const Thread own;
#pragma unroll
        for (int idx = 0; idx < UNIT_TILES; ++idx) {
            each_pair(own, idx, [&](int tile, int below, unsigned unit, unsigned pair) {
#pragma unroll
                for (int i = 0; i < 2; ++i) {
                    const unsigned col = 2 * pair + i;
                    if (col < OUTPUTS)
                        f(numbers[slot][idx][tile][2 * below + i],
                          OUTPUT_PARAMETERS + unit * OUTPUTS + col);
                }
            });
        }
        if (have_biases(own) && own.lane() < OUTPUTS)
            f(shared.output_bias[slot][own.lane()],
              OUTPUT_PARAMETERS + HIDDEN * OUTPUTS + own.lane());
    }
};

// The weights of the outputs, 16 units at a time, as the product with h takes them.
constexpr int UNIT_SLICES = UNIT_TILES * UNITS / 16;

struct OutputOperand {
    unsigned low[UNIT_SLICES][2], high[UNIT_SLICES][2];
};

struct LossWarps {
    ClusterShared& shared;
    LossSettings loss;
    const double* total_weights;  // of the rows that each network is trained on, and validated
    const float* class_weights;   // of each network, and their mean
    OutputWeights output_weights;
    unsigned batches = 0, x_batches = 0, steps = 0;  // so far, over all networks
    OwnSums trained, validated;

    __device__ LossWarps(ClusterShared& shared, const LossSettings& loss,
                         const double* total_weights, const float* class_weights)
        : shared(shared), loss(loss), total_weights(total_weights), class_weights(class_weights) {}

    __device__ static unsigned helper(const Thread& own) { return own.warp() - FIRST_LOSS_WARP; }
    __device__ static bool has_rows() { return helper(Thread()) < WARPS_WITH_ROWS; }

    __device__ static bool is_first(const Thread& own) {
        return own.of_group() == 0 && own.rank == 0;
    }

    // -- losses

    static constexpr int ROWS_OF_LANE = 2 / SHARES_OF_PAIR;

    __device__ void load(OutputOperand& operand) {
#pragma unroll
        for (int k = 0; k < UNIT_SLICES; ++k)
            load_b_pair_transposed(operand.low[k], operand.high[k], &shared.w2[16 * k][0],
                                   OUT_STRIDE);
    }

    // The logits of the warp's 16 rows, but for their biases, which they begin with.
    __device__ void find_logits(const Thread& own, float (&logits)[2][4],
                                const OutputOperand& operand) {
        float others[2][4] = {};  // two sums take turns, so that neither waits for itself
        const unsigned lane = own.lane(),
                       tile = min(2 * (helper(own) % BLOCK_PAIRS) + lane / 8 % 2, BLOCK_TILES - 1u);
#pragma unroll
        for (unsigned k = 0; k < UNIT_SLICES; ++k) {
            const unsigned unit = 16 * (k % (UNITS / 16)) + lane % 8 + lane / 16 * 8;
            const unsigned group = UNIT_TILES > 1 ? k / (UNITS / 16) : tile / OWN_TILES;
            unsigned a[4];
            ldmatrix_x4_trans(a[0], a[1], a[2], a[3],
                              h_place(shared, group, unit, tile % OWN_TILES));
            float (&sums)[2][4] = k % 2 ? others : logits;
            TensorCore<T>::multiply(sums[0], a, operand.low[k]);
            TensorCore<T>::multiply(sums[1], a, operand.high[k]);
        }
#pragma unroll
        for (int part = 0; part < 8; ++part)
            logits[part / 4][part % 4] += others[part / 4][part % 4];
    }

    // What the warp's rows, or its half of them, have for outputs: their logits.
    __device__ void find_outputs(const Thread& own, float (&logits)[2][4], unsigned stage) {
        OutputOperand operand;
        load(operand);
#pragma unroll
        for (int part = 0; part < 8; ++part)
            logits[part / 4][part % 4] =
                shared.output_bias[0][part / 4 * 8 + own.column() + part % 2];
        wait(shared.x_full[stage], x_batches / STAGES);
        wait(shared.h_full, batches);
        find_logits(own, logits, operand);
        if (helper(own) >= BLOCK_PAIRS) {
#pragma unroll
            for (float (&tile)[4] : logits) tile[0] = tile[2], tile[1] = tile[3];
        }
    }

    __device__ auto own_classes() const {
        const float* weights = own_numbers(class_weights, shared, OUTPUTS + 1);
        return classes_of<CLASS_WEIGHTS>(weights, weights + OUTPUTS);
    }

    // Gradients of the logits of a batch's rows, times the scale over their number, for those who
    // have units; then their loss.
    __device__ void find_losses(const Batch& batch, unsigned stage) {
        const Thread own;
        const Network& network = shared.network;
        const bool trains = batch.trains(network);
        const auto num_rows = static_cast<unsigned>(batch.num_rows(network));
        float factor = trains ? network.scale / static_cast<float>(num_rows) : 0;
        float logits[2][4];
        find_outputs(own, logits, stage);
        if constexpr (HAS_WEIGHTS) {
            const float weight = part_of<BatchWeights>(shared).of_stages[stage];
            factor = trains && weight > 0 ? network.scale / weight : 0;
        }
        OutputRows<2, OUTPUTS> rows{logits};
        const auto classes = own_classes();
        OutputRest rests[ROWS_OF_LANE];
        const float* targets[ROWS_OF_LANE];
        bool is_there[ROWS_OF_LANE];
        const unsigned first = 16 * (helper(own) % BLOCK_PAIRS) + 8 * (helper(own) / BLOCK_PAIRS);
#pragma unroll
        for (int i = 0; i < ROWS_OF_LANE; ++i) {
            const unsigned row = first + own.lane() / 4 + 8 * i;
            const bool is_own = row < BLOCK_ROWS;
            is_there[i] = is_own && own.rank * BLOCK_ROWS + row < num_rows;
            targets[i] = shared.targets[stage][is_own ? row : 0];
            const float own_factor = is_there[i] ? factor * weight_of(targets[i], trains) : 0;
            rests[i] = rows.replace(i, targets[i], own_factor, loss, classes);
            if (!is_own) continue;
#pragma unroll
            for (int tile = 0; tile < 2; ++tile) {
                *reinterpret_cast<unsigned*>(&shared.dz[row][8 * tile + own.column()]) =
                    packed<T>(logits[tile][2 * i], logits[tile][2 * i + 1]);
            }
        }
        arrive_warp(shared.dz_full);
#pragma unroll
        for (int i = 0; i < ROWS_OF_LANE; ++i) {
            RowLoss found = find_row_loss(rests[i], LOSS::HAS_LABELS ? label_of(targets[i]) : 0,
                                          loss, OUTPUTS, classes, is_there[i]);
            found.loss *= weight_of(targets[i], trains);
            if (own.lane() % 4 == 0) add(found, trains);
        }
    }

    // Of a row, whose target it follows; validation rows have none.
    __device__ static float weight_of(const float* target, bool trains) {
        return WEIGHTED && trains ? target[TARGET_WORDS - 1] : 1;
    }

    __device__ void add(const RowLoss& row, bool trains) {
        if (trains) {
            trained.add(row);
        } else {
            validated.add(row);
        }
    }

    // -- the parameters of the outputs

    template <int SLOT = 0>
    __device__ void read(const float* parameters) {
        output_weights.each(shared, SLOT,
                            [&](float& number, int place) { number = parameters[place]; });
        if constexpr (SLOT < SLOTS) read<SLOT + 1>(parameters + PARAMETERS);
        if constexpr (SLOT == 0) round_all();
    }

    // All of the weights, for the products.
    __device__ void round_all() {
#pragma unroll
        for (int idx = 0; idx < UNIT_TILES; ++idx) {
            OutputWeights::each_pair(Thread(), idx,
                                     [&](int tile, int below, unsigned unit, unsigned pair) {
                                         round_outputs(idx, tile, below, unit, pair);
                                     });
        }
    }

    // From a slot on; or parameters alone, `write<0, 0>`.
    template <int SLOT = 0, int LAST_SLOT = SLOTS>
    __device__ void write(float* parameters) {
        const bool is_first = own_rank() == 0;  // others have the same
        __syncwarp();
        output_weights.each(shared, SLOT, [&](float& number, int place) {
            if (is_first) parameters[place] = number;
        });
        if constexpr (SLOT < LAST_SLOT) write<SLOT + 1>(parameters + PARAMETERS);
    }

    __device__ void round_outputs(int idx, int tile, int below, unsigned unit, unsigned pair) {
        const float* own = &output_weights.numbers[0][idx][tile][2 * below];
        *reinterpret_cast<unsigned*>(&shared.w2[unit][2 * pair]) =
            packed<T>(own[0], 2 * pair + 1 < OUTPUTS ? own[1] : 0);
    }

    // Their gradients, of the block's rows, to all blocks, once these have read those of the step
    // before.
    __device__ void find_gradients() {
        const Thread own;
        // Not a warp that has none: others may be a step ahead of it, and what it waits for is
        // past.
        const unsigned num_pairs = OutputWeights::num_pairs(own);
        if (CLUSTER > 1 && num_pairs > 0) wait(shared.outputs_free, steps + 1);
        const unsigned lane = own.lane();
#pragma unroll
        for (int idx = 0; idx < UNIT_TILES; ++idx) {
            const unsigned unit = OutputWeights::first_unit(own, idx) + lane % 16;
            float sums[2][4] = {};
            multiply_dz(sums, [&](unsigned (&a)[4], unsigned k) {
                const unsigned tile = min(2 * k + lane / 16, BLOCK_TILES - 1u);
                ldmatrix_x4(a[0], a[1], a[2], a[3],
                            h_place(shared, UNIT_TILES > 1 ? unit / UNITS : tile / OWN_TILES,
                                    unit % UNITS, tile % OWN_TILES));
            });
            OutputWeights::each_pair(own, idx,
                                     [&](int tile, int below, unsigned row, unsigned pair) {
                                         share(own, &sums[tile][2 * below], row, pair);
                                     });
        }
        if (OutputWeights::have_biases(own)) {
            float sums[2][4] = {};
            multiply_dz(sums, [&](unsigned (&a)[4], unsigned) {
                a[0] = a[1] = a[2] = a[3] = packed<T>(1, 1);
            });
            OutputWeights::each_pair_of_biases(
                own, [&](int tile, unsigned pair) { share(own, &sums[tile][0], HIDDEN, pair); });
        }
        if (CLUSTER > 1) arrive_for_bytes(own, shared.outputs_full, num_pairs * 8);
    }

    // Adds what get_rows(a, k) brings, 16 by 16 of the block's rows, times dz.
    template <class F>
    __device__ void multiply_dz(float (&sums)[2][4], F get_rows) {
#pragma unroll
        for (unsigned k = 0; k < BLOCK_PAIRS; ++k) {
            unsigned a[4], low[2], high[2];
            get_rows(a, k);
            load_b_pair_transposed(low, high, &shared.dz[16 * k][0], OUT_STRIDE);
            TensorCore<T>::multiply(sums[0], a, low);
            TensorCore<T>::multiply(sums[1], a, high);
        }
    }

    // A pair of sums with all blocks: of a unit's weights, or of the biases, which come after all
    // units.
    __device__ void share(const Thread& own, const float* sums, unsigned row, unsigned pair) {
        shared.of_outputs[own.rank][row][pair] = {sums[0], sums[1]};
#pragma unroll
        for (int distance = 1; distance < CLUSTER; ++distance) {
            const unsigned to = own.rank_after(distance);
            store_async_pair(place_in(to, &shared.of_outputs[own.rank][row][pair]),
                             __float_as_uint(sums[0]), __float_as_uint(sums[1]),
                             place_in(to, &shared.outputs_full));
        }
    }

    // Takes in the gradients of all blocks, added up in their order, of so many rows.
    __device__ void update_outputs(const NetworkStep& step, int num_rows) {
        const Thread own;
        const NetworkStep of_weights = step.of_weights(num_rows);
        float squares = 0;
#pragma unroll
        for (int idx = 0; idx < UNIT_TILES; ++idx) {
            OutputWeights::each_pair(
                own, idx, [&](int tile, int below, unsigned unit, unsigned pair) {
                    const float2 sum = sum_of_blocks(unit, pair);
                    const auto update = [&](int i, float gradient) {
                        float (&numbers)[1 + SLOTS][UNIT_TILES][2][4] = output_weights.numbers;
                        const float w = numbers[0][idx][tile][2 * below + i];
                        if (PENALIZED && 2 * pair + i < OUTPUTS) squares += w * w;
                        of_weights.update(
                            numbers[0][idx][tile][2 * below + i],
                            [&](int slot) -> float& {
                                return numbers[1 + slot][idx][tile][2 * below + i];
                            },
                            gradient);
                    };
                    update(0, sum.x);
                    update(1, sum.y);
                    round_outputs(idx, tile, below, unit, pair);
                });
        }
        if (PENALIZED && own.rank == 0) trained.loss += 0.5 * step.settings.penalty * squares;
        OutputWeights::each_pair_of_biases(own, [&](int, unsigned pair) {
            const float2 sum = sum_of_blocks(HIDDEN, pair);
            const auto update = [&](unsigned col, float gradient) {
                step.update(
                    shared.output_bias[0][col],
                    [&](int slot) -> float& { return shared.output_bias[1 + slot][col]; },
                    gradient);
            };
            update(2 * pair, sum.x);
            if (2 * pair + 1 < OUTPUTS) update(2 * pair + 1, sum.y);
        });
    }

    // The other blocks learn that the warp has read their gradients.
    __device__ void free_outputs() {
        if (CLUSTER == 1) return;
        const Thread own;
        __syncwarp();
        if (own.lane() < CLUSTER - 1)
            mbarrier_arrive_at(place_in(own.rank_after(own.lane() + 1), &shared.outputs_free));
    }

    __device__ float2 sum_of_blocks(unsigned row, unsigned pair) const {
        float2 sum = {0, 0};
#pragma unroll
        for (int from = 0; from < CLUSTER; ++from) {
            const float2 part = shared.of_outputs[from][row][pair];
            sum.x += part.x;
            sum.y += part.y;
        }
        return sum;
    }

    // After the losses of a step.
    __device__ void take_step(const Batch& batch, unsigned stage) {
        wait(shared.dz_full, batches);
        find_gradients();
        arrive_warp(shared.h_free);
        if (CLUSTER > 1) wait(shared.outputs_full, steps);
        // Units have taken the weights as they were.
        wait(shared.w2_free, steps);
        update_outputs({shared.settings[stage], shared.network.rule, shared.run.unscale},
                       batch.num_rows(shared.network));
        free_outputs();
        ++steps;
    }

    // -- epochs

    // All blocks get what the warp has added up in an epoch, and begin anew.
    __device__ void send_sums() {
        const Thread own;
        if (CLUSTER > 1 && own.of_group() == 0)
            mbarrier_expect(&shared.sums_full,
                            CLUSTER * (HELPERS * sizeof shared.sums[0] + PENALIZED * WARPS * 8));
        send(own, trained, 0);
        send(own, validated, 2);
        if (CLUSTER == 1) arrive_warp(shared.sums_full);
    }

    __device__ void send(const Thread& own, OwnSums& sums, int place) {
        const double loss = reduce_warp<Sum>(sums.loss), correct = reduce_warp<Sum>(sums.correct);
        sums = {};
        if (own.lane() >= CLUSTER) return;
        double* to = &shared.sums[own.rank * HELPERS + helper(own)][place];
        if constexpr (CLUSTER > 1) {
            const uint64 first = __double_as_longlong(loss), second = __double_as_longlong(correct);
            store_async_quad(place_in(own.lane(), to),
                             {static_cast<unsigned>(first), static_cast<unsigned>(first >> 32),
                              static_cast<unsigned>(second), static_cast<unsigned>(second >> 32)},
                             place_in(own.lane(), &shared.sums_full));
        } else {
            to[0] = loss;
            to[1] = correct;
        }
    }

    // -- the run

    // To its last epoch, or until a verdict ends it; returns how many epochs were done.
    __device__ int train(float* best) {
        const Network& network = shared.network;
        trained = validated = {};
        for (Batch batch = {0, 0}; batch.epoch < network.num_epochs; batch = batch.after(shared)) {
            take_batch(batch);
            if (!batch.is_last(shared)) continue;
            send_sums();
            if (Thread().of_group() == 0) judge(batch.epoch);
            const int verdict = verdict_on(shared, batch.epoch);
            if (KEEPS_BEST && (verdict & IS_BETTER))
                write<0, 0>(own_numbers(best, shared, PARAMETERS));
            if (!(verdict & IS_OVER)) continue;
            if (batch.epoch + 1 < network.num_epochs) leave_batch();
            return verdict & IS_NO_NUMBER ? batch.epoch : batch.epoch + 1;
        }
        return network.num_epochs;
    }

    // When all blocks have added up an epoch's losses; all come to the same.
    __device__ void judge(int epoch) {
        wait(shared.sums_full, shared.run.epochs + epoch);
        const EpochSums of_training = epoch_sums(shared, false, total_weights),
                        of_validation = epoch_sums(shared, true, total_weights);
        shared.run.epochs_of_last = epoch + 1;
        shared.run.verdicts[epoch % 2] =
            shared.network.end_epoch(epoch, own_rank(), of_training, of_validation);
        mbarrier_arrive(&shared.verdict_full[(shared.run.epochs + epoch) % 2]);
    }

    __device__ void take_batch(const Batch& batch) {
        const unsigned stage = x_batches % STAGES;
        // All have updated the weights of the outputs, and are done with dz.
        arrive_warp(shared.losses_met);
        wait(shared.losses_met, batches);
        if (has_rows()) find_losses(batch, stage);
        if (batch.trains(shared.network)) {
            take_step(batch, stage);
        } else {
            arrive_warp(shared.h_free);
        }
        ++batches;
        leave_batch();
    }

    // Its rows, or those that are on their way for nobody, make room.
    __device__ void leave_batch() {
        arrive_warp(shared.x_free[x_batches % STAGES]);
        ++x_batches;
    }
};
