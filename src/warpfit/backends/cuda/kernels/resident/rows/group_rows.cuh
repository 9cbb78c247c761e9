// A group's 64 rows forward and backward through a small network (group_network.cuh), to their
// loss and back: a warp keeps 16 of them in registers, and waits for no other. What weights need
// stays behind in lines.
#pragma once

#include "resident/layout/group_network.cuh"

template <int L>
using UnitWords = Words<padded(L + 1)>;
template <int L>
using UnitSums = float[padded(L + 1) / 2];

// Of a warp's rows, what outputs become gradients by.
struct OwnRows {
    float factor;
    int count;  // rows that the batch has
    int step;

    // What is left of outputs is enough for losses, which others find. Of the batch nothing else is
    // needed.
    __device__ void replace(UnitSums<HIDDEN>& outputs, SmallShared& shared,
                            const SmallRun& run) const {
        OutputRows<OUT_TILES, OUTPUTS> rows{reinterpret_cast<float (&)[OUT_TILES][4]>(outputs)};
#pragma unroll
        for (int below = 0; below < 2; ++below) {
            const int eighth = 2 * own_warp() + below, row = 8 * eighth + own_lane() / 4;
            const OutputRest rest = rows.replace(below, shared.targets[row],
                                                 row < count ? factor : 0, run.loss, EvenClasses{});
            OutputRest& kept = shared.rests[step % 2][eighth][own_lane()];
            kept.sum = rest.sum;
            kept.before = rest.before;
            if (SMOOTHED) kept.all = rest.all;
            if (!LOSS::HAS_LABELS) continue;  // of other outputs the rest stays 0
            kept.largest = rest.largest;
            kept.of_label = rest.of_label;
        }
        arrive_warp(shared.x_free);
    }
};

// Derivatives that do not follow from values are kept where the gradients will lie.
template <int L>
constexpr bool KEEPS_DERIVATIVES = needs_input(ACTIVATIONS[L]);

template <int L>
__device__ inline void activate(UnitWords<L>& words, const UnitSums<L>& z, SmallShared& shared) {
    [[maybe_unused]] UnitWords<L> derivatives;
#pragma unroll
    for (int i = 0; i < padded(L + 1) / 16; ++i) {
#pragma unroll
        for (int word = 0; word < 4; ++word) {
            const float* pair = z + 8 * i + word / 2 * 4 + word % 2 * 2;
            if constexpr (ACTIVATIONS[L] == Activation::relu) {
                words.slices[i][word] = relu_packed<T>(pair[0], pair[1]);
                continue;
            }
            const auto low = activated<ACTIVATIONS[L]>(pair[0], SLOPES[L]),
                       high = activated<ACTIVATIONS[L]>(pair[1], SLOPES[L]);
            const int unit = i * 16 + word / 2 * 8 + own_lane() % 4 * 2;
            // Units that fill up a layer give nothing, whatever f(0) is.
            const bool is_whole = i * 16 + word / 2 * 8 + 8 <= WIDTHS[L + 1];
            words.slices[i][word] =
                packed<T>(is_whole || unit < WIDTHS[L + 1] ? low.value : 0,
                          is_whole || unit + 1 < WIDTHS[L + 1] ? high.value : 0);
            if (KEEPS_DERIVATIVES<L>)
                derivatives.slices[i][word] = packed<T>(low.derivative, high.derivative);
        }
    }
    if constexpr (KEEPS_DERIVATIVES<L>) store_words(shared.dz[L], derivatives);
}

// From gradients of what layer L gives to those of its z; `factors` are its values, or derivatives
// that were kept.
template <int L>
__device__ inline void chain(UnitWords<L>& dz, const UnitSums<L>& dh, const UnitWords<L>& factors) {
#pragma unroll
    for (int i = 0; i < padded(L + 1) / 16; ++i) {
#pragma unroll
        for (int word = 0; word < 4; ++word) {
            const float* pair = dh + 8 * i + word / 2 * 4 + word % 2 * 2;
            const unsigned own = factors.slices[i][word];
            float2 f = unpacked<T>(own);
            if constexpr (ACTIVATIONS[L] == Activation::relu) {
                dz.slices[i][word] = packed<T>(pair[0], pair[1]) & positive<T>(own);
                continue;
            } else if constexpr (!KEEPS_DERIVATIVES<L>) {
                f = {derivative_by_value<ACTIVATIONS[L]>(f.x, SLOPES[L]),
                     derivative_by_value<ACTIVATIONS[L]>(f.y, SLOPES[L])};
            }
            dz.slices[i][word] = packed<T>(pair[0] * f.x, pair[1] * f.y);
        }
    }
}

// z of a layer: of its inputs, from its biases on.
template <int L>
__device__ inline void multiply_forward(UnitSums<L>& z, const Words<padded(L)>& inputs,
                                        const SmallShared& shared) {
#pragma unroll
    for (int tile = 0; tile < padded(L + 1) / 8; ++tile) {
        const float2 bias =
            *reinterpret_cast<const float2*>(&shared.biases[0][L][8 * tile + own_lane() % 4 * 2]);
        z[4 * tile] = z[4 * tile + 2] = bias.x;
        z[4 * tile + 1] = z[4 * tile + 3] = bias.y;
    }
    wgmma_fence();
#pragma unroll
    for (int k = 0; k < padded(L) / 16; ++k)
        RegisterProduct<T>::template add_to<true>(
            z, inputs.slices[k], operand_at(shared.weights[L], 16 * k * LINE_BYTES), true);
    wgmma_commit();
    wgmma_wait<0>();
}

// Gradients of what a layer takes.
template <int L>
__device__ inline void multiply_back(float (&dh)[padded(L) / 2], const UnitWords<L>& dz,
                                     const SmallShared& shared) {
#pragma unroll
    for (float& number : dh) number = 0;
    wgmma_fence();
#pragma unroll
    for (int k = 0; k < padded(L + 1) / 16; ++k)
        RegisterProduct<T>::template add_to<false>(
            dh, dz.slices[k], operand_at(shared.weights[L], k * SLICE_BYTES), k > 0);
    wgmma_commit();
    wgmma_wait<0>();
}

// Whether values are loaded again for their derivatives: with many weights a thread has no room for
// those of all layers.
constexpr bool LOADS_VALUES =
    8 * (1 + SLOTS) * ((OUT_BUNDLE + GROUPS - 1) / GROUPS) > 40 && HIDDEN > 1;

// From what layer L takes to the loss, and back to its gradients, but for the first layer.
template <int L>
__device__ inline void go_through(float (&dh)[padded(L) / 2], const Words<padded(L)>& inputs,
                                  SmallShared& shared, const SmallRun& run, const OwnRows& rows) {
    UnitWords<L> dz;
    UnitSums<L> sums;
    multiply_forward<L>(sums, inputs, shared);
    if constexpr (L == HIDDEN) {
        rows.replace(sums, shared, run);
#pragma unroll
        for (int word = 0; word < 4; ++word)
            dz.slices[0][word] =
                word < 2 * OUT_TILES ? packed<T>(sums[2 * word], sums[2 * word + 1]) : 0;
    } else {
        UnitWords<L> values;
        activate<L>(values, sums, shared);
        store_words(shared.inputs[L + 1], values);
        go_through<L + 1>(sums, values, shared, run, rows);
        if constexpr (KEEPS_DERIVATIVES<L>) {
            load_words(values, shared.dz[L]);
            __syncwarp();  // gradients will lie there
        } else if constexpr (LOADS_VALUES) {
            load_words(values, shared.inputs[L + 1]);
        }
        chain<L>(dz, sums, values);
    }
    store_words(shared.dz[L], dz);
    if constexpr (L > 0) multiply_back<L>(dh, dz, shared);
}

__device__ inline void take_rows(SmallShared& shared, const SmallRun& run, const OwnRows& rows) {
    Words<padded(0)> x;
#pragma unroll
    for (int i = 0; i < padded(0) / 16; ++i)
        load_a(x.slices[i], &shared.x[16 * own_warp()][16 * i], X_STRIDE);
    store_words(shared.inputs[0], x);
    float none[padded(0) / 2];
    go_through<0>(none, x, shared, run, rows);
}
