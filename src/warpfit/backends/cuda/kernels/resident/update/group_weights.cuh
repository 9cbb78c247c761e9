// Parameters of a small network in groups of four warps (group_network.cuh): each group has some
// tiles of 16 units of all hidden layers, whose weights are a thread's as accumulators of wgmma
// lie; the first has the outputs', in shared memory, as all biases are. Who has them updates them.
// Users: one_launch_small_sm90.cu.
#pragma once

#include "resident/layout/group_network.cuh"

// Tiles of 16 units of the hidden layers before one.
__device__ constexpr int tiles_before(int layer) {
    return layer == 0 ? 0 : tiles_before(layer - 1) + padded(layer) / 16;
}
constexpr int TILES = tiles_before(HIDDEN), MOST_TILES = (TILES + GROUPS - 1) / GROUPS;

// What of layer L is a group's: so many tiles, from one of the layer and one of the group's on.
template <int G, int L>
struct Share {
    static constexpr int BEGIN = TILES * G / GROUPS, END = TILES * (G + 1) / GROUPS;
    static constexpr int LAYER_BEGIN = tiles_before(L), LAYER_END = tiles_before(L + 1);
    static constexpr int FROM = larger(BEGIN, LAYER_BEGIN), TO = smaller(END, LAYER_END);
    static constexpr int COUNT = larger(TO - FROM, 0), FIRST = FROM - LAYER_BEGIN,
                         OWN = FROM - BEGIN;
};

struct HeldWeights {
    float numbers[8 * MOST_TILES], slots[SLOT_PLACES][8 * MOST_TILES];

    // Two neighbours, which share a reciprocal.
    __device__ void update_two(int i, const float* sums, const SmallRun& run,
                               const StepSettings& step) {
        float pair[2], of_pair[2][SLOT_PLACES];
        const float gradients[2] = {sums[0], sums[1]};
#pragma unroll
        for (int j = 0; j < 2; ++j) {
            pair[j] = numbers[i + j];
#pragma unroll
            for (int slot = 0; slot < SLOTS; ++slot) of_pair[j][slot] = slots[slot][i + j];
            if constexpr (OwnRule::IS_LINEAR)
                update_parameter(pair[j], of_pair[j], gradients[j], run.unscale, step, run.rule);
            else
                fade_slots(of_pair[j], run.rule);
        }
        update_pair(pair, of_pair, gradients, run.unscale, step, run.rule);
#pragma unroll
        for (int j = 0; j < 2; ++j) {
            numbers[i + j] = pair[j];
#pragma unroll
            for (int slot = 0; slot < SLOTS; ++slot) slots[slot][i + j] = of_pair[j][slot];
        }
    }
};

// f(number, slot, place) for each weight of a group's share of all layers that there is, and its
// optimizer state; slot -1 is the weight itself, place that in the layer.
template <int G, int L = 0, class F>
__device__ inline void each_weight(HeldWeights& held, F f) {
    using Own = Share<G, L>;
#pragma unroll
    for (int i = 0; i < 8 * Own::COUNT; ++i) {
        const int input = 16 * warp_of_group() + own_lane() / 4 + i / 2 % 2 * 8,
                  unit = 16 * Own::FIRST + i / 4 * 8 + own_lane() % 4 * 2 + i % 2;
        if (input >= WIDTHS[L] || unit >= WIDTHS[L + 1]) continue;
        const int place = input * WIDTHS[L + 1] + unit;
        f.template operator()<L>(held.numbers[8 * Own::OWN + i], -1, place);
#pragma unroll
        for (int slot = 0; slot < SLOTS; ++slot)
            f.template operator()<L>(held.slots[slot][8 * Own::OWN + i], slot, place);
    }
    if constexpr (L + 1 < HIDDEN) each_weight<G, L + 1>(held, f);
}

// Leaves the weights of a share to products.
template <int G, int L>
__device__ inline void store_weights(SmallShared& shared, const HeldWeights& held) {
    using Own = Share<G, L>;
#pragma unroll
    for (int tile = 0; tile < Own::COUNT; ++tile) {
        const float* own = held.numbers + 8 * (Own::OWN + tile);
        const unsigned words[4] = {packed<T>(own[0], own[1]), packed<T>(own[2], own[3]),
                                   packed<T>(own[4], own[5]), packed<T>(own[6], own[7])};
        stmatrix_x4(shared.weights[L] + place_of(16 * warp_of_group(), Own::FIRST + tile), words);
    }
}

template <int G, int L = 0>
__device__ inline void store_all_weights(SmallShared& shared, const HeldWeights& held) {
    store_weights<G, L>(shared, held);
    if constexpr (L + 1 < HIDDEN) store_all_weights<G, L + 1>(shared, held);
}

// Slices of rows that wait for a product together: their operands are in registers.
constexpr int AT_ONCE = 4;

// The product of what layer L takes, across, with the gradients of a share.
template <int G, int L, class F>
__device__ inline void multiply_across(float (&sums)[8 * Share<G, L>::COUNT],
                                       const SmallShared& shared, int stage, F meanwhile) {
    const auto gradients = [&](int k) {
        return operand_at(shared.dz[L], 16 * k * LINE_BYTES + Share<G, L>::FIRST * SLICE_BYTES);
    };
    if constexpr (L > 0) {
        wgmma_fence();
#pragma unroll
        for (int k = 0; k < ROW_SLICES; ++k)
            SliceProduct<T, true, true>::add_to(
                sums, operand_at(shared.h[L - 1], 16 * k * LINE_BYTES), gradients(k), k > 0);
        wgmma_commit();
        meanwhile();
        wgmma_wait<0>();
    } else {
#pragma unroll
        for (int first = 0; first < ROW_SLICES; first += AT_ONCE) {
            unsigned a[AT_ONCE][4] = {};
            const int column = 16 * warp_of_group();
#pragma unroll
            for (int i = 0; i < AT_ONCE; ++i) {
                if (first + i < ROW_SLICES && column < padded(0))
                    load_a_transposed(a[i], &shared.x[stage][16 * (first + i)][column], X_STRIDE);
            }
            wgmma_fence();
#pragma unroll
            for (int i = 0; i < AT_ONCE; ++i) {
                if (first + i < ROW_SLICES)
                    RegisterProduct<T>::template add_to<true>(sums, a[i], gradients(first + i),
                                                              first + i > 0);
            }
            wgmma_commit();
            if (first == 0) meanwhile();
            wgmma_wait<0>();
        }
    }
}

__device__ inline void update_shared(float* number, int apart, float sum, const SmallRun& run,
                                     const StepSettings& step) {
    update_in_place(
        *number, [&](int slot) -> float& { return number[(1 + slot) * apart]; }, sum, run.unscale,
        step, run.rule);
}

// Biases of a share: a warp has those of 16 units.
template <int G, int L>
__device__ inline void update_biases(SmallShared& shared, const SmallRun& run,
                                     const StepSettings& step) {
    using Own = Share<G, L>;
    if (warp_of_group() >= Own::COUNT) return;
    const int tile = Own::FIRST + warp_of_group();
    const unsigned one = packed<T>(1, 1), ones[2] = {one, one};
    float sums[2][4] = {};
#pragma unroll
    for (int k = 0; k < ROW_SLICES; ++k) {
        unsigned a[4];
        ldmatrix_x4_trans(a[0], a[1], a[2], a[3], shared.dz[L] + place_across(16 * k, tile));
        TensorCore<T>::multiply(sums[k % 2], a, ones);
    }
    const int half = own_lane() % 4, unit = 16 * tile + own_lane() / 4 + 8 * half;
    const float low = sums[0][0] + sums[1][0], high = sums[0][2] + sums[1][2];
    if (half < 2)
        update_shared(&shared.biases[L][0][unit], UNITS, half ? high : low, run, step);
}

template <int G, int L>
__device__ inline void update_layer(SmallShared& shared, const SmallRun& run,
                                    const StepSettings& step, HeldWeights& held, int stage) {
    using Own = Share<G, L>;
    if constexpr (Own::COUNT > 0) {
        float sums[8 * Own::COUNT] = {};
        multiply_across<G, L>(sums, shared, stage, [&] { update_biases<G, L>(shared, run, step); });
        if (16 * warp_of_group() < padded(L)) {
#pragma unroll
            for (int i = 0; i < 8 * Own::COUNT; i += 2)
                held.update_two(8 * Own::OWN + i, sums + i, run, step);
            store_weights<G, L>(shared, held);
        }
    }
}

template <int G, int L = HIDDEN - 1>
__device__ inline void update_layers(SmallShared& shared, const SmallRun& run,
                                     const StepSettings& step, HeldWeights& held, int stage) {
    update_layer<G, L>(shared, run, step, held, stage);
    if constexpr (L > 0) update_layers<G, L - 1>(shared, run, step, held, stage);
}

// -- outputs --------------------------------------------------------------------------------------

__device__ inline void store_out_weights(SmallShared& shared) {
    const int own = threadIdx.x % GROUP_THREADS;
#pragma unroll
    for (int i = 0; i < 2 * OUT_TILES; ++i) {
        const int unit = 16 * warp_of_group() + own_lane() / 4 + i % 2 * 8;
        *reinterpret_cast<unsigned*>(&shared.out_weights[i / 2][unit][own_lane() % 4 * 2]) =
            packed<T>(shared.out_numbers[0][2 * i][own], shared.out_numbers[0][2 * i + 1][own]);
    }
}

// f(number, slot, place) for each weight of the outputs that a thread has.
template <class F>
__device__ inline void each_out_weight(SmallShared& shared, F f) {
    const int own = threadIdx.x % GROUP_THREADS;
#pragma unroll
    for (int i = 0; i < 4 * OUT_TILES; ++i) {
        const int input = 16 * warp_of_group() + own_lane() / 4 + i / 2 % 2 * 8,
                  unit = i / 4 * 8 + own_lane() % 4 * 2 + i % 2;
        if (input >= WIDTHS[HIDDEN] || unit >= OUTPUTS) continue;
        for (int slot = -1; slot < SLOTS; ++slot)
            f(shared.out_numbers[1 + slot][i][own], slot, input * OUTPUTS + unit);
    }
}

__device__ inline void update_outputs(SmallShared& shared, const SmallRun& run,
                                      const StepSettings& step) {
    const int warp = warp_of_group(), own = threadIdx.x % GROUP_THREADS;
    if (16 * warp >= padded(HIDDEN)) return;
    const unsigned one = packed<T>(1, 1), ones[4] = {one, one, one, one};
    float sums[OUT_TILES][4] = {}, of_biases[OUT_TILES][4] = {};
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
            ldmatrix_x4_trans(a[0], a[1], a[2], a[3],
                              shared.h[HIDDEN - 1] + place_across(16 * (k + i), warp));
#pragma unroll
            for (int tile = 0; tile < OUT_TILES; ++tile) {
                TensorCore<T>::multiply(sums[tile], a, b[tile][i]);
                if (warp == 0) TensorCore<T>::multiply(of_biases[tile], ones, b[tile][i]);
            }
        }
    }
#pragma unroll
    for (int i = 0; i < 4 * OUT_TILES; ++i)
        update_shared(&shared.out_numbers[0][i][own], 4 * OUT_TILES * GROUP_THREADS,
                      sums[i / 4][i % 4], run, step);
    store_out_weights(shared);
    if (own >= 4) return;
#pragma unroll
    for (int i = 0; i < 2 * OUT_TILES; ++i)
        update_shared(&shared.out_biases[0][i / 2 * 8 + own * 2 + i % 2], 8 * OUT_TILES,
                      of_biases[i / 2][i % 2], run, step);
}
