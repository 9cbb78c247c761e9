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

    // Of the batch nothing else is needed.
    __device__ void replace(UnitSums<HIDDEN>& outputs, OutputRest (&rests)[2],
                            const SmallShared& shared, const SmallRun& run) const {
        OutputRows<OUT_TILES, OUTPUTS> rows{reinterpret_cast<float (&)[OUT_TILES][4]>(outputs)};
#pragma unroll
        for (int below = 0; below < 2; ++below) {
            const int row = 16 * own_warp() + 8 * below + own_lane() / 4;
            rests[below] = rows.replace(below, shared.targets[row], row < count ? factor : 0,
                                        run.loss, EvenClasses{});
        }
    }

    // What is left of outputs is enough for losses, which others find.
    __device__ void leave(const OutputRest (&rests)[2], SmallShared& shared) const {
#pragma unroll
        for (int below = 0; below < 2; ++below) {
            OutputRest& kept = shared.rests[step % 2][2 * own_warp() + below][own_lane()];
            kept.sum = rests[below].sum;
            kept.before = rests[below].before;
            if (SMOOTHED) kept.all = rests[below].all;
            if (!LOSS::HAS_LABELS) continue;  // of other outputs the rest stays 0
            kept.largest = rests[below].largest;
            kept.of_label = rests[below].of_label;
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

// Biases of a layer, where sums of its z begin.
template <int L>
__device__ inline void load_biases(UnitSums<L>& z, const SmallShared& shared) {
#pragma unroll
    for (int tile = 0; tile < padded(L + 1) / 8; ++tile) {
        const float2 bias =
            *reinterpret_cast<const float2*>(&shared.biases[0][L][8 * tile + own_lane() % 4 * 2]);
        z[4 * tile] = z[4 * tile + 2] = bias.x;
        z[4 * tile + 1] = z[4 * tile + 3] = bias.y;
    }
}

// Adds a layer's products to z. Meanwhile does what else there is, as the warp would only wait.
template <int L, class F>
__device__ inline void multiply_forward(UnitSums<L>& z, const Words<padded(L)>& inputs,
                                        const SmallShared& shared, F meanwhile) {
    const uint64 weights = operand_at(shared.weights[L], 0);
    wgmma_fence();
#pragma unroll
    for (int k = 0; k < padded(L) / 16; ++k)
        RegisterProduct<T>::template add_to<true>(z, inputs.slices[k],
                                                  moved(weights, 16 * k * LINE_BYTES), true);
    wgmma_commit();
    meanwhile();
    wgmma_wait<0>();
}

// Gradients of what a layer takes.
template <int L, class F>
__device__ inline void multiply_back(float (&dh)[padded(L) / 2], const UnitWords<L>& dz,
                                     const SmallShared& shared, F meanwhile) {
#pragma unroll
    for (float& number : dh) number = 0;
    const uint64 weights = operand_at(shared.weights[L], 0);
    wgmma_fence();
#pragma unroll
    for (int k = 0; k < padded(L + 1) / 16; ++k)
        RegisterProduct<T>::template add_to<false>(
            dh, dz.slices[k], moved(weights, k * SLICE_BYTES), begins_or_adds(k));
    wgmma_commit();
    meanwhile();
    wgmma_wait<0>();
}

// Whether values are loaded again for their derivatives: with many weights a thread has no room for
// those of all layers.
constexpr bool LOADS_VALUES =
    8 * (1 + SLOTS) * ((OUT_BUNDLE + GROUPS - 1) / GROUPS) > 40 && HIDDEN > 1;

// What derivatives of layer L follow from.
template <int L>
__device__ inline void load_factors(UnitWords<L>& values, const SmallShared& shared) {
    if constexpr (KEEPS_DERIVATIVES<L>) {
        load_words(values, shared.dz[L]);
        __syncwarp();  // gradients will lie there
    } else if constexpr (LOADS_VALUES) {
        load_words(values, shared.inputs[L + 1]);
    }
}

// From what layer L takes, and its biases, to the loss, and back to its gradients, but for the
// first layer. `inputs` become what their derivatives follow from.
template <int L>
__device__ inline void go_through(float (&dh)[padded(L) / 2], UnitSums<L>& sums,
                                  Words<padded(L)>& inputs, SmallShared& shared,
                                  const SmallRun& run, const OwnRows& rows) {
    UnitWords<L> dz;
    if constexpr (L == HIDDEN) {
        multiply_forward<L>(sums, inputs, shared, [&] { store_words(shared.inputs[L], inputs); });
        OutputRest rests[2];
        rows.replace(sums, rests, shared, run);
#pragma unroll
        for (int word = 0; word < 4; ++word)
            dz.slices[0][word] =
                word < 2 * OUT_TILES ? packed<T>(sums[2 * word], sums[2 * word + 1]) : 0;
        multiply_back<L>(dh, dz, shared, [&] {
            store_words(shared.dz[L], dz);
            rows.leave(rests, shared);
            load_factors<L - 1>(inputs, shared);
        });
    } else {
        UnitWords<L> values;
        UnitSums<L + 1> next;
        multiply_forward<L>(sums, inputs, shared, [&] {
            store_words(shared.inputs[L], inputs);
            load_biases<L + 1>(next, shared);
        });
        activate<L>(values, sums, shared);
        go_through<L + 1>(sums, next, values, shared, run, rows);
        chain<L>(dz, sums, values);
        if constexpr (L > 0) {
            multiply_back<L>(dh, dz, shared, [&] {
                store_words(shared.dz[L], dz);
                load_factors<L - 1>(inputs, shared);
            });
        } else {
            store_words(shared.dz[L], dz);
        }
    }
}

__device__ inline void take_rows(SmallShared& shared, const SmallRun& run, const OwnRows& rows) {
    Words<padded(0)> x;
#pragma unroll
    for (int i = 0; i < padded(0) / 16; ++i)
        load_a(x.slices[i], &shared.x[16 * own_warp()][16 * i], X_STRIDE);
    UnitSums<0> z;
    load_biases<0>(z, shared);
    float none[padded(0) / 2];
    go_through<0>(none, z, x, shared, run, rows);
}
