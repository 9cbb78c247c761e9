// Warps that help those that hold the hidden layers' weights (group_network.cuh). All but the last
// update biases, which are in shared memory, and find losses; four of them have the outputs'
// weights. The last, the loader, brings batches and keeps the record.
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

// What the loader does in all steps. Whoever hangs, it waits for in the end, and gives up.
__device__ inline void keep_books(SmallShared& shared, const SmallRun& run, const Step& first) {
    load_batch(shared, run, 0);
    for (Step step = first; step.is_there(); step.advance()) {
        const int index = step.index, count = step.count();
        wait_or_give_up(shared.x_free, index);
        if (index + 1 < step.num_steps) load_batch(shared, run, index + 1);
        wait_or_give_up(shared.losses_full[index % 2], index / 2);
        write_record(run.record + 3 * (static_cast<int64>(index) * CLUSTER + own_rank()),
                     shared.losses[index % 2], own_rows(count), count, own_rank() == 0 ? count : 0);
    }
}

__device__ inline int helping_warp() { return own_warp() - GROUPS * GROUP_WARPS; }

// Finds the losses of this warp's rows of a step, for the loader.
__device__ inline void find_losses(SmallShared& shared, const SmallRun& run, int step) {
#pragma unroll 1
    for (int i = helping_warp(); i < 2 * ROW_SLICES; i += HELPING_WARPS) {
        const RowLoss found = find_row_loss(shared.rests[step % 2][i][own_lane()], 0, run.loss,
                                            OUTPUTS, EvenClasses{}, true);
        if (own_lane() % 4 == 0) shared.losses[step % 2][8 * i + own_lane() / 4] = found;
    }
    arrive_warp(shared.losses_full[step % 2]);
}

// -- biases ---------------------------------------------------------------------------------------

// f(layer) for those whose biases a warp updates: warps without weights come first.
template <class F>
__device__ inline void each_layer(F f) {
#pragma unroll 1
    for (int layer = (helping_warp() + HELPING_WARPS - GROUP_WARPS) % HELPING_WARPS; layer < LAYERS;
         layer += HELPING_WARPS)
        f(layer);
}

__device__ constexpr int widest(int layer) {
    return layer == 0 ? 0 : larger(widest(layer - 1), padded(layer));
}
constexpr int WIDEST = widest(LAYERS);

// The sums of their gradients: of unit 16 (lane % 4) + lane / 4, and of the one 8 further on.
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

// Leaves sums over this block's rows in all blocks.
__device__ inline void send_biases(SmallShared& shared, int step) {
    Exchange& exchange = exchange_of(shared);
    const Barrier& full = exchange.biases_full[step % 2];
    each_layer([&](int layer) {
        float2& place = exchange.biases[step % 2][own_rank()][layer][own_lane()];
        place = add_biases(shared, layer);
#pragma unroll
        for (int i = 0; i < CLUSTER - 1; ++i)
            store_async_pair(place_in(other_rank(i), &place), __float_as_uint(place.x),
                             __float_as_uint(place.y), place_in(other_rank(i), &full));
    });
}

// And adds those of all up, in the order of their ranks.
__device__ inline float2 add_biases_of_ranks(const SmallShared& shared, int step, int layer) {
    float2 sum = {};
#pragma unroll
    for (int rank = 0; rank < CLUSTER; ++rank) {
        const float2 own = exchange_of(shared).biases[step % 2][rank][layer][own_lane()];
        sum = {sum.x + own.x, sum.y + own.y};
    }
    return sum;
}

__device__ inline void update_biases(SmallShared& shared, const SmallRun& run,
                                     const StepSettings& settings, int step) {
    if constexpr (CLUSTER > 1) {
        Barrier& full = exchange_of(shared).biases_full[step % 2];
        if (own_thread() == GROUPS * GROUP_THREADS)
            mbarrier_expect(&full, (CLUSTER - 1) * sizeof(BiasSums));
        wait(full, step / 2);
    }
    each_layer([&](int layer) {
        const float2 sums =
            CLUSTER > 1 ? add_biases_of_ranks(shared, step, layer) : add_biases(shared, layer);
        float* own = &shared.biases[0][layer][own_lane() % 4 * 16 + own_lane() / 4];
        const auto update = [&](float* bias, float sum) {
            update_in_place(
                *bias, [&](int slot) -> float& { return bias[(1 + slot) * LAYERS * UNITS]; }, sum,
                run.unscale(), settings, run.rule);
        };
        update(own, sums.x);
        update(own + 8, sums.y);
    });
}

// What these warps do in all steps: while others take rows, they find the losses of the step
// before.
__device__ inline void help(SmallShared& shared, const SmallRun& run, const Arrays& arrays,
                            unsigned group, const Step& first) {
    HeldWeights<true> held{group};
    const bool has_weights = group == GROUPS;
    if (has_weights) held.begin(shared, arrays);
    hand_over();
    for (Step step = first; step.is_there(); step.advance()) {
        const int index = step.index;
        if (index > 0) find_losses(shared, run, index - 1);
        wait(shared.x_full, index);
        arrive_warp(shared.x_free);
        meet_at<AT_WORK>(1);
        const StepSettings settings = shared.settings[index % 2];
        if constexpr (CLUSTER > 1) send_biases(shared, index);
        if (has_weights) held.update(shared, run, settings, index);
        update_biases(shared, run, settings, index);
        hand_over();
    }
    find_losses(shared, run, first.num_steps - 1);
    if (has_weights) held.each(arrays, [](float number, float* place) { *place = number; });
}
