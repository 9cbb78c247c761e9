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

// Finds the losses of this warp's rows of a step, for the clerk.
__device__ inline void find_losses(SmallShared& shared, const SmallRun& run, int step) {
#pragma unroll 1
    for (int i = helping_warp(); i < 2 * ROW_SLICES; i += HELPING_WARPS) {
        const RowLoss found = find_row_loss(shared.rests[step % 2][i][own_lane()], 0, run.loss,
                                            OUTPUTS, EvenClasses{}, true);
        if (own_lane() % 4 == 0) shared.losses[step % 2][8 * i + own_lane() / 4] = found;
    }
    arrive_warp(shared.losses_full[step % 2]);
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

__device__ inline void update_biases(SmallShared& shared, const SmallRun& run,
                                     const StepSettings& settings, int first, int apart,
                                     float2 sums) {
    float* biases = &shared.biases[0][first];
    update_shared(biases, BIASES, sums.x, run, settings);
    update_shared(biases + apart, BIASES, sums.y, run, settings);
}

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

// Pairs of sums that a lane has of an item: of a hidden layer's biases, or of the weights of 16
// inputs of the outputs; with the first of these, the biases of outputs come.
using ItemSums = float2[3 * OUT_TILES];

__device__ inline int pairs_of(int item) {
    return item < HIDDEN ? 1 : item == HIDDEN ? 3 * OUT_TILES : 2 * OUT_TILES;
}
__device__ inline int pairs_before(int item) {
    return item <= HIDDEN ? item : HIDDEN + OUT_TILES + 2 * OUT_TILES * (item - HIDDEN);
}

__device__ inline void add_outputs(ItemSums& pairs, const SmallShared& shared, int slice) {
    float of_weights[OUT_TILES][4] = {}, of_biases[OUT_TILES][4] = {};
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
                TensorCore<T>::multiply(of_weights[tile], a, b[tile][i]);
                if (slice == 0) TensorCore<T>::multiply(of_biases[tile], ones, b[tile][i]);
            }
        }
    }
#pragma unroll
    for (int i = 0; i < 3 * OUT_TILES; ++i) {
        const float* pair = i < 2 * OUT_TILES ? of_weights[i / 2] + i % 2 * 2
                                              : of_biases[i - 2 * OUT_TILES];
        pairs[i] = {pair[0], pair[1]};
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
                                      const StepSettings& settings, const ItemSums& sums,
                                      int slice) {
    const int lane = own_lane();
#pragma unroll
    for (int i = 0; i < 4 * OUT_TILES; ++i)
        update_shared(&shared.out_numbers[0][i][32 * slice + lane], 4 * OUT_TILES * GROUP_THREADS,
                      i % 2 ? sums[i / 2].y : sums[i / 2].x, run, settings);
    store_out_weights(shared, slice);
    if (slice > 0 || lane >= 4) return;
#pragma unroll
    for (int tile = 0; tile < OUT_TILES; ++tile)
        update_biases(shared, run, settings, HIDDEN * UNITS + 8 * tile + 2 * lane, 1,
                      sums[2 * OUT_TILES + tile]);
}

__device__ inline void find_sums(ItemSums& sums, const SmallShared& shared, int item) {
    if (item < HIDDEN)
        sums[0] = add_biases(shared, item);
    else
        add_outputs(sums, shared, item - HIDDEN);
}

__device__ inline void update_item(SmallShared& shared, const SmallRun& run,
                                   const StepSettings& settings, const ItemSums& sums, int item) {
    if (item < HIDDEN)
        update_biases(shared, run, settings, item * UNITS + own_unit(), 8, sums[0]);
    else
        update_outputs(shared, run, settings, sums, item - HIDDEN);
}

// -- a step ---------------------------------------------------------------------------------------

// f(item) for each of a warp.
template <class F>
__device__ inline void each_item(F f) {
#pragma unroll 1
    for (int item = helping_warp(); item < HIDDEN + OUT_SLICES; item += HELPING_WARPS) f(item);
}

// f(i) for each pair of an item.
template <class F>
__device__ inline void each_pair(int item, F f) {
#pragma unroll
    for (int i = 0; i < 3 * OUT_TILES; ++i)
        if (i < pairs_of(item)) f(i);
}

// Leaves sums over this block's rows in all blocks.
__device__ inline void send_sums(const ItemSums& sums, SmallShared& shared, int step, int item) {
    Exchange& exchange = exchange_of(shared);
    const Barrier& full = exchange.rest_full[step % 2];
    each_pair(item, [&](int i) {
        float2& place = exchange.rests[step % 2][own_rank()][pairs_before(item) + i][own_lane()];
        place = sums[i];
#pragma unroll
        for (int other = 0; other < CLUSTER - 1; ++other)
            store_async_pair(place_in(other_rank(other), &place), __float_as_uint(sums[i].x),
                             __float_as_uint(sums[i].y), place_in(other_rank(other), &full));
    });
}

// Adds all blocks' up, in the order of their ranks.
__device__ inline void add_ranks(ItemSums& sums, const SmallShared& shared, int step, int item) {
    const Exchange& exchange = exchange_of(shared);
    each_pair(item, [&](int i) {
        float2 sum = {};
#pragma unroll
        for (int rank = 0; rank < CLUSTER; ++rank) {
            const float2 own = exchange.rests[step % 2][rank][pairs_before(item) + i][own_lane()];
            sum = {sum.x + own.x, sum.y + own.y};
        }
        sums[i] = sum;
    });
}

// Biases and the weights of the outputs.
__device__ inline void update_rest(SmallShared& shared, const SmallRun& run, int step) {
    const StepSettings& settings = shared.settings[step % 2];
    ItemSums sums;
    each_item([&](int item) {
        find_sums(sums, shared, item);
        if constexpr (CLUSTER > 1)
            send_sums(sums, shared, step, item);
        else
            update_item(shared, run, settings, sums, item);
    });
    if constexpr (CLUSTER == 1) return;
    Barrier& full = exchange_of(shared).rest_full[step % 2];
    if (own_thread() == GROUPS * GROUP_THREADS)
        mbarrier_expect(&full, (CLUSTER - 1) * sizeof(RestOfBlock));
    wait(full, step / 2);
    each_item([&](int item) {
        add_ranks(sums, shared, step, item);
        update_item(shared, run, settings, sums, item);
    });
}

// What the clerk does in all steps. Whoever hangs, it waits for in the end, and gives up.
__device__ inline void keep_books(SmallShared& shared, const SmallRun& run, const Step& first) {
    load_batch(shared, run, 0);
    for (Step step = first; step.is_there(); step.advance()) {
        const int index = step.index, count = step.count();
        wait_or_give_up(shared.x_free, index);
        if (index + 1 < step.num_steps) load_batch(shared, run, index + 1);
        wait_or_give_up(shared.losses_full[index % 2], index / 2);
        write_record(run.record + 3 * (static_cast<int64>(index) * CLUSTER + own_rank()),
                     shared.losses[index % 2], own_rows(count), count,
                     own_rank() == 0 ? count : 0);
    }
}

// And the other warps: while others take rows, they find the losses of the step before.
__device__ inline void help(SmallShared& shared, const SmallRun& run, const Step& first) {
    each_item([&](int item) {
        if (item >= HIDDEN) store_out_weights(shared, item - HIDDEN);
    });
    hand_over();
    for (Step step = first; step.is_there(); step.advance()) {
        if (step.index > 0) find_losses(shared, run, step.index - 1);
        wait(shared.x_full, step.index);
        arrive_warp(shared.x_free);
        hand_over();
        update_rest(shared, run, step.index);
        hand_over();
    }
    find_losses(shared, run, first.num_steps - 1);
}
