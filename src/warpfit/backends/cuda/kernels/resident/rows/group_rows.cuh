// The way of a group's 64 rows through all layers of a small network (group_network.cuh), to their
// loss and back: a warp keeps 16 of them in registers, and waits for no other. What weights need
// stays behind in lines.
// Users: one_launch_small_sm90.cu.
#pragma once

#include "resident/layout/group_network.cuh"

// Of a warp's rows, what outputs become gradients by.
struct OwnRows {
    float factor;
    int count;  // rows that the batch has
    int step;

    // What is left of outputs is enough for losses, which others find. Of the batch nothing else is
    // needed.
    __device__ void replace(float (&outputs)[OUT_TILES][4], SmallShared& shared,
                            const SmallRun& run) const {
        OutputRows<OUT_TILES, OUTPUTS> rows{outputs};
#pragma unroll
        for (int below = 0; below < 2; ++below) {
            const OutputRest rest =
                rows.replace(below, shared.targets[row(below)], row(below) < count ? factor : 0,
                             run.loss, EvenClasses{});
            if (own_warp() < ROW_SLICES) keep(rest, shared.rests[step % 2][eighth(below)]);
        }
        arrive_warp(shared.x_free);
    }

  private:
    __device__ static int eighth(int below) { return 2 * own_warp() + below; }
    __device__ static int row(int below) { return 8 * eighth(below) + own_lane() / 4; }

    // Of other outputs than logits the rest stays 0.
    __device__ static void keep(const OutputRest& rest, OutputRest (&place)[32]) {
        OutputRest& own = place[own_lane()];
        if (LOSS::HAS_LABELS) own = rest;
        own.sum = rest.sum;
        own.before = rest.before;
    }
};

// Sums of 16 rows and 8 units begin with these units' biases.
__device__ inline void begin_with_biases(float* sums, const SmallShared& shared, int layer,
                                         int tile) {
    const int unit = layer * UNITS + 8 * tile + own_lane() % 4 * 2;
    const float2 pair = *reinterpret_cast<const float2*>(&shared.biases[0][unit]);
    sums[0] = sums[2] = pair.x;
    sums[1] = sums[3] = pair.y;
}

// -- hidden layers --------------------------------------------------------------------------------

template <int L>
using UnitWords = Words<padded(L + 1)>;
template <int L>
using UnitSums = float[padded(L + 1) / 2];

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
    for (int tile = 0; tile < padded(L + 1) / 8; ++tile)
        begin_with_biases(z + 4 * tile, shared, L, tile);
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

// -- outputs --------------------------------------------------------------------------------------

__device__ inline void find_outputs(float (&outputs)[OUT_TILES][4],
                                    const Words<padded(HIDDEN)>& inputs,
                                    const SmallShared& shared) {
#pragma unroll
    for (int tile = 0; tile < OUT_TILES; ++tile) {
        begin_with_biases(outputs[tile], shared, HIDDEN, tile);
#pragma unroll
        for (int k = 0; k < padded(HIDDEN) / 16; k += 2) {
            unsigned b[2][2];
            ldmatrix_x4_trans(b[0][0], b[0][1], b[1][0], b[1][1],
                              shared.out_weights[tile][16 * k + own_lane()]);
            TensorCore<T>::multiply(outputs[tile], inputs.slices[k], b[0]);
            if (k + 1 < padded(HIDDEN) / 16)
                TensorCore<T>::multiply(outputs[tile], inputs.slices[k + 1], b[1]);
        }
    }
}

// Of what the last hidden layer gives; gradients of outputs stay behind, too.
__device__ inline void go_back_from_outputs(float (&dh)[padded(HIDDEN) / 2],
                                            const float (&gradients)[OUT_TILES][4],
                                            SmallShared& shared) {
    unsigned a[4] = {};
#pragma unroll
    for (int i = 0; i < 2 * OUT_TILES; ++i) {
        const float* pair = &gradients[i / 2][i % 2 * 2];
        a[i] = packed<T>(pair[0], pair[1]);
        const int row = 16 * own_warp() + own_lane() / 4 + i % 2 * 8;
        *reinterpret_cast<unsigned*>(&shared.dz_out[i / 2][row][own_lane() % 4 * 2]) = a[i];
    }
#pragma unroll
    for (int first = 0; first < padded(HIDDEN) / 8; first += 4) {
        unsigned b[4][2] = {};
#pragma unroll
        for (int tile = 0; tile < OUT_TILES; ++tile)
            ldmatrix_x4(b[0][tile], b[1][tile], b[2][tile], b[3][tile],
                        shared.out_weights[tile][8 * first + own_lane()]);
#pragma unroll
        for (int i = 0; i < 4; ++i) {
            if (first + i >= padded(HIDDEN) / 8) continue;
            float sums[4] = {};
            TensorCore<T>::multiply(sums, a, b[i]);
#pragma unroll
            for (int j = 0; j < 4; ++j) dh[4 * (first + i) + j] = sums[j];
        }
    }
}

// Whether values are loaded again for their derivatives: with many weights a thread has no room for
// those of all layers.
constexpr bool LOADS_VALUES = 8 * MOST_BUNDLES * (1 + SLOTS) > 40 && HIDDEN > 1;

// -- all of it ------------------------------------------------------------------------------------

// From what layer L takes to the loss, and back to its gradients, but for the first layer.
template <int L>
__device__ inline void go_through(float (&dh)[padded(L) / 2], const Words<padded(L)>& inputs,
                                  SmallShared& shared, const SmallRun& run, const OwnRows& rows) {
    if constexpr (L == HIDDEN) {
        float outputs[OUT_TILES][4];
        find_outputs(outputs, inputs, shared);
        rows.replace(outputs, shared, run);
        go_back_from_outputs(dh, outputs, shared);
    } else {
        UnitWords<L> values, dz;
        UnitSums<L> sums;
        multiply_forward<L>(sums, inputs, shared);
        activate<L>(values, sums, shared);
        store_words(shared.inputs[L + 1], values);
        go_through<L + 1>(sums, values, shared, run, rows);
        if constexpr (KEEPS_DERIVATIVES<L>)
            load_words(values, shared.dz[L]);
        else if constexpr (LOADS_VALUES)
            load_words(values, shared.inputs[L + 1]);
        chain<L>(dz, sums, values);
        store_words(shared.dz[L], dz);
        if constexpr (L > 0) multiply_back<L>(dh, dz, shared);
    }
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
