// How weights, biases and their optimizer state come from arrays to a block of one_launch_card.cu
// before the first step, and go back after the last.
#pragma once

#include "resident/update/streamed_weights.cuh"

// f(number, its place in memory) for each number that a block has of layer L's biases, and of their
// optimizer state.
template <int L, class Of, class F>
__device__ inline void each_bias(CardShared& shared, const Of& arrays, F f) {
    using Own = WeightTile<L>;
    for (int unit = this_thread(); unit < Own::UNITS; unit += THREADS) {
        if (Own::first_unit() + unit >= WIDTHS[L + 1]) break;
        for (int slot = -1; slot < Of::NUM_SLOTS; ++slot)
            f(biases_of<L>(shared)[1 + slot][unit],
              arrays.template biases<L>(slot) + Own::first_unit() + unit);
    }
}

// Where the numbers of a lane's fragment of layer L lie in each array, and -1 of those beyond the
// layer's.
template <int L>
struct InArrays {
    int input, unit;

    __device__ int64 at(int part) const {
        const int lane = threadIdx.x % 32;
        const int row = WeightTile<L>::first_input() + input + lane / 4 + part / 2 * 8;
        const int column = WeightTile<L>::first_unit() + unit + lane % 4 * 2 + part % 2;
        if (row >= WIDTHS[L] || column >= WIDTHS[L + 1]) return -1;
        return static_cast<int64>(row) * WIDTHS[L + 1] + column;
    }
};

// f(lane's weights, where they are in arrays) for each fragment.
template <int L, class F>
__device__ inline void each_fragment(CardShared& shared, const CardRun& run, Held& held, F f) {
    if constexpr (IS_STREAMED<L>) {
        each_streamed_fragment<L>(run, [&](const LaneWeights& own, int input, int unit) {
            f(own, InArrays<L>{input, unit});
        });
    } else {
        constexpr int IN_A_ROW = Partition<L>::IN_A_ROW;
        const int lane = this_thread() % 32;
        Partition<L>::template each_item<HELD_LAYERS[L]>([&](int turn, int m, int n) {
#pragma unroll(HELD_LAYERS[L] ? IN_A_ROW : 1)
            for (int i = 0; i < IN_A_ROW; ++i) {
                const int input = m * 16, unit = (n + i) * 8;
                f(lane_weights<L>(shared, run, held, lane, turn * IN_A_ROW + i, input, unit),
                  InArrays<L>{input, unit});
            }
        });
    }
}

// Layer L's parameters; those beyond the layer's are 0.
template <int L>
__device__ inline void read_layer(CardShared& shared, const CardRun& run, Held& held,
                                  const Arrays& arrays) {
    each_bias<L>(shared, arrays, [](float& number, const float* place) { number = *place; });
    each_fragment<L>(shared, run, held, [&](const LaneWeights& own, auto place) {
        for (int slot = -1; slot < SLOTS; ++slot) {
            float4 quad{};
            for (int part = 0; part < 4; ++part)
                if (place.at(part) >= 0)
                    number_of(quad, part) = arrays.template weights<L>(slot)[place.at(part)];
            if (slot < 0) {
                own.keep(quad);
            } else {
                own.slot(slot) = quad;
            }
        }
    });
}

// Of what several blocks have alike only one writes.
template <int L, class Of>
__device__ inline void write_layer(CardShared& shared, const CardRun& run, Held& held,
                                   const Of& arrays) {
    constexpr bool IS_LAST = WeightTile<L>::IS_LAST;
    if (rank_here() == 0 && (!IS_LAST || own_cluster() == 0))
        each_bias<L>(shared, arrays, [](float number, float* place) { *place = number; });
    if (IS_LAST && rank_here() > 0) return;
    each_fragment<L>(shared, run, held, [&](const LaneWeights& own, auto place) {
        for (int slot = -1; slot < Of::NUM_SLOTS; ++slot) {
            float4 quad = slot < 0 ? own.written() : own.slot(slot);
            for (int part = 0; part < 4; ++part)
                if (place.at(part) >= 0)
                    arrays.template weights<L>(slot)[place.at(part)] = number_of(quad, part);
        }
    });
}
