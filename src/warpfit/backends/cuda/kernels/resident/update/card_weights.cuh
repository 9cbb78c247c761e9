// Weights of a block of one_launch_card.cu: what lanes have of them, how warps partition a layer's,
// and how gradients change them.
#pragma once

#include "resident/exchange/card_exchange.cuh"

// Takes in the gradients of layer L's biases: `dz` are its units'.
template <int L, class Dz>
__device__ inline void update_biases(CardShared& shared, const CardRun& run, const Now& now,
                                     Dz& dz) {
    auto& biases = biases_of<L>(shared);
    // From the last warps on, which have the fewest tiles.
    for (int unit = THREADS - 1 - this_thread(); unit < WeightTile<L>::UNITS; unit += THREADS) {
        float sum = 0;
#pragma unroll 8
        for (int row = 0; row < ROWS; ++row) sum += load(*dz.at(row, unit));
        const auto slot = [&](int i) -> float& { return biases[1 + i][unit]; };
        update_in_place(biases[0][unit], slot, sum, run.unscale, now.settings, run.rule);
    }
}

// How warps partition layer L's weights.
template <int L>
using Partition = Gradients<WeightTile<L>::INPUTS / 16, WeightTile<L>::UNITS / 8>;

// Low halves that lie in the registers of the warp that updates the weights.
template <int L, bool ARE_HELD>
struct LowHalvesOf {
    static_assert(SLOTS == 0 || !ARE_HELD, "no optimizer state lies beside them");
    uint2 low_halves[Partition<L>::TILES_OF_WARP];
};
template <int L>
struct LowHalvesOf<L, false> {};
template <int L>
struct HeldLowHalves : LowHalvesOf<L, HELD_LAYERS[L]> {};
using Held = Stack<HeldLowHalves>;

// What a lane has of a fragment of weights: of two rows, 8 apart, two each.
struct LaneWeights {
    unsigned* upper;
    unsigned* lower;
    uint2* low_halves;
    float4* slots;

    __device__ float4& slot(int i) const { return slots[i * 32]; }

    __device__ float4 weights() const {
        const uint2 left = *low_halves;
        const float2 first = Split<T>::whole(*upper, left.x),
                     second = Split<T>::whole(*lower, left.y);
        return {first.x, first.y, second.x, second.y};
    }

    // As they are written to memory.
    __device__ float4 written() const {
        float4 all = weights();
        const float2 first = unpacked<T>(*upper), second = unpacked<T>(*lower);
        return {Split<T>::written(all.x, first.x), Split<T>::written(all.y, first.y),
                Split<T>::written(all.z, second.x), Split<T>::written(all.w, second.y)};
    }

    __device__ void keep(const float4& all) const {
        *upper = Split<T>::rounded(all.x, all.y);
        *lower = Split<T>::rounded(all.z, all.w);
        *low_halves = {Split<T>::low_half(all.x, all.y, *upper),
                       Split<T>::low_half(all.z, all.w, *lower)};
    }
};

// That of layer L's weights from an input and a unit on, the warp's i-th.
template <int L>
__device__ inline LaneWeights lane_weights(CardShared& shared, const CardRun& run, Held& held,
                                           int lane, int i, int input, int unit) {
    const int row = input + lane / 4, column = unit + lane % 4 * 2;
    auto& rounded = part_of<L>(shared).weights;
    LaneWeights own{};
    own.upper = reinterpret_cast<unsigned*>(rounded.at(row, column));
    own.lower = reinterpret_cast<unsigned*>(rounded.at(row + 8, column));
    if constexpr (HELD_LAYERS[L]) {
        own.low_halves = &layer_of<L>(held).low_halves[i];
    } else {
        const int fragment = input / 16 * (WeightTile<L>::UNITS / 8) + unit / 8;
        own.low_halves = &numbers_of<L>(shared, run).low_halves[fragment][lane];
        if constexpr (SLOTS > 0)
            own.slots = &numbers_of<L>(shared, run).quads[fragment * SLOTS][lane];
    }
    return own;
}

// A quad's four numbers of an array.
__device__ inline float& number_of(float4& quad, int part) { return (&quad.x)[part]; }

// Takes the gradients `sums` of a fragment in.
__device__ inline void update_weights(const LaneWeights& own, const float (&sums)[4],
                                      const CardRun& run, const Now& now) {
    float4 weights = own.weights(), slots[SLOT_PLACES];
#pragma unroll
    for (int i = 0; i < SLOTS; ++i) slots[i] = own.slot(i);
#pragma unroll
    for (int part = 0; part < 4; ++part) {
        const auto slot = [&](int i) -> float& { return number_of(slots[i], part); };
        update_in_place(number_of(weights, part), slot, sums[part], run.unscale, now.settings,
                        run.rule);
    }
    own.keep(weights);
#pragma unroll
    for (int i = 0; i < SLOTS; ++i) own.slot(i) = slots[i];
}

// Takes the gradients of layer L's parameters in: `dz` are its units'. Ranks that are apart wait
// twice for the gradients of a layer's inputs, and do PART 0 and 1 of 2 meanwhile.
template <int L, int PART = 0, int PARTS = 1, class Dz>
__device__ inline void update_layer(CardShared& shared, const CardRun& run, Held& held,
                                    const Now& now, Dz& dz) {
    const int lane = this_thread() % 32;
    constexpr int TURNS = Partition<L>::TURNS;
    Partition<L>::template each_tile<HELD_LAYERS[L], TURNS * PART / PARTS,
                                     TURNS*(PART + 1) / PARTS>(
        inputs_of<L>(shared, now), dz, [&](const float (&sums)[4], int i, int input, int unit) {
            update_weights(lane_weights<L>(shared, run, held, lane, i, input, unit), sums, run,
                           now);
        });
    if constexpr (PART == 0) update_biases<L>(shared, run, now, dz);
}
