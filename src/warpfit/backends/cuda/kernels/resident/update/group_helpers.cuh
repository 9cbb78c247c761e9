// Warps that help those that hold weights (group_network.cuh). All but the last update what is in
// shared memory: biases, and the weights of the outputs; and they find losses. The last, the clerk,
// brings batches and keeps the record.
// Users: one_launch_small_sm90.cu.
#pragma once

#include "resident/update/group_weights.cuh"

// Starts to copy a step's batch, its targets and its settings. A warp calls.
__device__ inline void load_batch(SmallShared& shared, const SmallRun& run, int step) {
    const int lane = own_lane(), count = own_rows(BATCH);
    const int64 first = static_cast<int64>(step) * BATCH + own_rank() * BLOCK_BATCH;
    const unsigned bytes = count * X_STRIDE * sizeof(T);
    if (lane == 0) {
        mbarrier_expect(&shared.x_full, bytes + sizeof(StepSettings));
        if (CLUSTER == 1 || bytes > 0)
            copy_bulk(shared.x, run.batches + first * X_STRIDE, bytes, &shared.x_full);
        copy_bulk(&shared.settings[step % 2], run.settings + step, sizeof(StepSettings),
                  &shared.x_full);
    }
    const float* targets = run.targets + first * TARGET_WORDS;
    for (int i = lane; i < count * TARGET_WORDS; i += 32)
        copy_async_4(&shared.targets[0][0] + i, targets + i, true);
    copy_async_arrive(&shared.x_full);
}

__device__ inline int helping_warp() { return own_warp() - GROUPS * GROUP_WARPS; }

// Adds up the losses of this warp's rows of a step that has so many.
__device__ inline void add_losses(SmallShared& shared, const SmallRun& run, int step, int count) {
    const int lane = own_lane(), num_rows = own_rows(count);
    double loss = 0;
    unsigned correct = 0;
#pragma unroll 1
    for (int i = helping_warp(); i < 2 * ROW_SLICES; i += HELPING_WARPS) {
        const KeptRest& rest = shared.rests[step % 2][i / 2][i % 2][lane];
        const RowLoss found = find_row_loss(rest.whole(), 0, run.loss, OUTPUTS, EvenClasses{},
                                            lane % 4 == 0 && 8 * i + lane / 4 < num_rows);
        loss += found.loss;
        correct += found.is_correct;
    }
    loss = reduce_warp<Sum>(loss);
    correct = reduce_warp<Sum>(correct);
    if (lane == 0) shared.losses[step % 2][helping_warp()] = {loss, correct};
}

// Writes the record of a step, whose losses are there.
__device__ inline void keep_record(const SmallShared& shared, const SmallRun& run, int step,
                                   int count) {
    if (own_lane() > 0) return;
    LossSums sums = {};
    for (const LossSums& of_warp : shared.losses[step % 2]) {
        sums.loss += of_warp.loss;
        sums.correct += of_warp.correct;
    }
    double* row = run.record + 3 * (static_cast<int64>(step) * CLUSTER + own_rank());
    row[0] = sums.loss / count;
    row[1] = own_rank() == 0 ? count : 0;
    row[2] = sums.correct;
}

// -- parameters in shared memory ------------------------------------------------------------------

__device__ inline void update_shared(float* number, int apart, float sum, const SmallRun& run,
                                     const StepSettings& settings) {
    update_in_place(
        *number, [&](int slot) -> float& { return number[(1 + slot) * apart]; }, sum, run.unscale,
        settings, run.rule);
}

// The units of a layer whose biases a lane has: this one and the one 8 further on.
__device__ inline int own_unit() { return own_lane() % 4 * 16 + own_lane() / 4; }

__device__ constexpr int widest(int layer) {
    return layer == 0 ? 0 : larger(widest(layer - 1), padded(layer));
}
constexpr int WIDEST = widest(HIDDEN);

// The sums of their gradients.
__device__ inline float2 add_biases(const SmallShared& shared, int layer) {
    const unsigned one = packed<T>(1, 1), ones[2] = {one, one};
    float sums[WIDEST / 16][4] = {};
#pragma unroll
    for (int k = 0; k < ROW_SLICES; ++k) {
#pragma unroll
        for (int tile = 0; tile < WIDEST / 16; ++tile) {
            unsigned a[4];
            ldmatrix_x4_trans(a[0], a[1], a[2], a[3],
                              shared.dz[layer] + place_across(16 * k, tile));
            TensorCore<T>::multiply(sums[tile], a, ones);
        }
    }
    float2 own = {};
#pragma unroll
    for (int tile = 0; tile < WIDEST / 16; ++tile)
        if (own_lane() % 4 == tile) own = {sums[tile][0], sums[tile][2]};
    return own;
}

__device__ inline void update_biases(SmallShared& shared, const SmallRun& run,
                                     const StepSettings& settings, int layer, float2 sums) {
    float* biases = &shared.biases[0][layer][own_unit()];
    update_shared(biases, HIDDEN * UNITS, sums.x, run, settings);
    update_shared(biases + 8, HIDDEN * UNITS, sums.y, run, settings);
}

// Of 16 inputs of the outputs; with the first of these, the biases of outputs come.
struct OutSums {
    float weights[OUT_TILES][4], biases[OUT_TILES][4];
};

__device__ inline void add_outputs(OutSums& sums, const SmallShared& shared, int slice) {
    const unsigned one = packed<T>(1, 1), ones[4] = {one, one, one, one};
    const unsigned char* inputs = shared.inputs[HIDDEN] + place_across(0, slice);
#pragma unroll
    for (int k = 0; k < ROW_SLICES; k += 2) {
        constexpr int LAST = ROW_SLICES - 1;
        unsigned b[OUT_TILES][2][2];
#pragma unroll
        for (int tile = 0; tile < OUT_TILES; ++tile)
            ldmatrix_x4_trans(b[tile][0][0], b[tile][0][1], b[tile][1][0], b[tile][1][1],
                              shared.dz_out[tile][16 * k + own_lane() % (k < LAST ? 32 : 16)]);
#pragma unroll
        for (int i = 0; i < 2; ++i) {
            if (k + i > LAST) continue;
            unsigned a[4];
            ldmatrix_x4_trans(a[0], a[1], a[2], a[3], inputs + 16 * (k + i) * LINE_BYTES);
#pragma unroll
            for (int tile = 0; tile < OUT_TILES; ++tile) {
                TensorCore<T>::multiply(sums.weights[tile], a, b[tile][i]);
                if (slice == 0) TensorCore<T>::multiply(sums.biases[tile], ones, b[tile][i]);
            }
        }
    }
}

// Leaves 16 inputs' weights to products.
__device__ inline void store_out_weights(SmallShared& shared, int slice) {
    const int lane = own_lane(), own = 32 * slice + lane;
#pragma unroll
    for (int i = 0; i < 2 * OUT_TILES; ++i) {
        const int unit = 16 * slice + lane / 4 + i % 2 * 8;
        *reinterpret_cast<unsigned*>(&shared.out_weights[i / 2][unit][lane % 4 * 2]) =
            packed<T>(shared.out_numbers[0][2 * i][own], shared.out_numbers[0][2 * i + 1][own]);
    }
}

__device__ inline void update_outputs(SmallShared& shared, const SmallRun& run,
                                      const StepSettings& settings, const OutSums& sums,
                                      int slice) {
    const int lane = own_lane();
#pragma unroll
    for (int i = 0; i < 4 * OUT_TILES; ++i)
        update_shared(&shared.out_numbers[0][i][32 * slice + lane], 4 * OUT_TILES * GROUP_THREADS,
                      sums.weights[i / 4][i % 4], run, settings);
    store_out_weights(shared, slice);
    if (slice > 0 || lane >= 4) return;
#pragma unroll
    for (int i = 0; i < 2 * OUT_TILES; ++i)
        update_shared(&shared.out_biases[0][i / 2 * 8 + lane * 2 + i % 2], 8 * OUT_TILES,
                      sums.biases[i / 2][i % 2], run, settings);
}

// -- a step ---------------------------------------------------------------------------------------

// f(layer) for the biases of each hidden layer, g(slice) for 16 inputs of the outputs each, of which
// a warp has some.
template <class F, class G>
__device__ inline void each_item(F f, G g) {
#pragma unroll 1
    for (int i = helping_warp(); i < HIDDEN + OUT_SLICES; i += HELPING_WARPS) {
        if (i < HIDDEN)
            f(i);
        else
            g(i - HIDDEN);
    }
}

// The sum over all blocks in the order of their ranks; of_rank(rank) is a block's.
template <class F>
__device__ inline float sum_of_ranks(F of_rank) {
    float sum = 0;
#pragma unroll
    for (int rank = 0; rank < CLUSTER; ++rank) sum += of_rank(rank);
    return sum;
}

// Leaves sums over this block's rows in all blocks.
__device__ inline void send_rest(SmallShared& shared, int step) {
    Exchange& exchange = exchange_of(shared);
    RestOfBlock& own = exchange.rests[step % 2][own_rank()];
    const Barrier& full = exchange.rest_full[step % 2];
    const int lane = own_lane();
    const auto send_pair = [&](float2& place, float first, float second) {
        place = {first, second};
#pragma unroll
        for (int i = 0; i < CLUSTER - 1; ++i)
            store_async_pair(place_in(other_rank(i), &place), __float_as_uint(first),
                             __float_as_uint(second), place_in(other_rank(i), &full));
    };
    each_item(
        [&](int layer) {
            const float2 sums = add_biases(shared, layer);
            send_pair(own.biases[layer][lane], sums.x, sums.y);
        },
        [&](int slice) {
            OutSums sums = {};
            add_outputs(sums, shared, slice);
#pragma unroll
            for (int tile = 0; tile < OUT_TILES; ++tile) {
                const float (&four)[4] = sums.weights[tile];
                own.out_weights[slice][tile][lane] = {four[0], four[1], four[2], four[3]};
#pragma unroll
                for (int i = 0; i < CLUSTER - 1; ++i)
                    send_quad(other_rank(i), &own.out_weights[slice][tile][lane], four, full);
                if (slice == 0 && lane < 4)
                    send_pair(own.out_biases[tile][lane], sums.biases[tile][0],
                              sums.biases[tile][1]);
            }
        });
}

__device__ inline void update_rest_of_all(SmallShared& shared, const SmallRun& run,
                                          const StepSettings& settings, int step) {
    Exchange& exchange = exchange_of(shared);
    constexpr unsigned OF_BLOCK =
        HIDDEN * 32 * sizeof(float2) + OUT_TILES * (OUT_SLICES * 32 * sizeof(float4) + 4 * 8);
    if (own_thread() == GROUPS * GROUP_THREADS)
        mbarrier_expect(&exchange.rest_full[step % 2], (CLUSTER - 1) * OF_BLOCK);
    wait(exchange.rest_full[step % 2], step / 2);
    const int lane = own_lane();
    const auto rest_of = [&](int rank) -> const RestOfBlock& {
        return exchange.rests[step % 2][rank];
    };
    each_item(
        [&](int layer) {
            const auto of = [&](int rank) -> const float2& {
                return rest_of(rank).biases[layer][lane];
            };
            update_biases(shared, run, settings, layer,
                          {sum_of_ranks([&](int rank) { return of(rank).x; }),
                           sum_of_ranks([&](int rank) { return of(rank).y; })});
        },
        [&](int slice) {
            OutSums sums;
#pragma unroll
            for (int i = 0; i < 4 * OUT_TILES; ++i)
                sums.weights[i / 4][i % 4] = sum_of_ranks([&](int rank) {
                    return reinterpret_cast<const float*>(
                        &rest_of(rank).out_weights[slice][i / 4][lane])[i % 4];
                });
#pragma unroll
            for (int i = 0; i < 2 * OUT_TILES; ++i)
                sums.biases[i / 2][i % 2] = sum_of_ranks([&](int rank) {
                    return reinterpret_cast<const float*>(
                        &rest_of(rank).out_biases[i / 2][lane % 4])[i % 2];
                });
            update_outputs(shared, run, settings, sums, slice);
        });
}

// Biases and the weights of the outputs.
__device__ inline void update_rest(SmallShared& shared, const SmallRun& run,
                                   const StepSettings& settings, [[maybe_unused]] int step) {
    if constexpr (CLUSTER > 1) {
        send_rest(shared, step);
        update_rest_of_all(shared, run, settings, step);
    } else {
        each_item(
            [&](int layer) {
                update_biases(shared, run, settings, layer, add_biases(shared, layer));
            },
            [&](int slice) {
                OutSums sums = {};
                add_outputs(sums, shared, slice);
                update_outputs(shared, run, settings, sums, slice);
            });
    }
}

// What the clerk does in all steps, and the other warps: while others take rows, they find the losses
// of the step before.
__device__ inline void keep_books(SmallShared& shared, const SmallRun& run, const Step& first) {
    load_batch(shared, run, 0);
    int last_count = 0;
    for (Step step = first; step.is_there(); step.advance()) {
        wait_or_give_up(shared.x_full, step.index);
        hand_over_rows();
        if (step.index + 1 < step.num_steps) load_batch(shared, run, step.index + 1);
        if (step.index > 0) keep_record(shared, run, step.index - 1, last_count);
        last_count = step.count();
    }
    meet_at<HELPING_GROUPS * GROUP_THREADS>(3);
    keep_record(shared, run, first.num_steps - 1, last_count);
}

__device__ inline void help(SmallShared& shared, const SmallRun& run, const Step& first) {
    int last_count = 0;
    for (Step step = first; step.is_there(); step.advance()) {
        if (step.index > 0) add_losses(shared, run, step.index - 1, last_count);
        wait(shared.x_full, step.index);
        hand_over_rows();
        update_rest(shared, run, shared.settings[step.index % 2], step.index);
        hand_over_weights();
        last_count = step.count();
    }
    add_losses(shared, run, first.num_steps - 1, last_count);
    meet_at<HELPING_GROUPS * GROUP_THREADS>(3);
}
