// The way of a group's 64 rows through all layers of a small network (group_network.cuh), to their
// loss and back: a warp keeps 16 of them in registers, and waits for no other. What weights need
// stays behind in lines. All hidden layers are 64 units wide here, and go through the same code: it
// is read again less often than straight code, which takes longer than what it computes.
// Users: one_launch_small_sm90.cu.
#pragma once

#include "resident/layout/group_network.cuh"

// Of a warp's rows, what outputs become gradients by.
struct OwnRows {
    float factor;
    int count;  // rows that the batch has
    int step;

    __device__ static int row(int below) { return 16 * own_warp() + own_lane() / 4 + 8 * below; }

    // What is left of outputs is enough for losses, which others find.
    __device__ void replace(float (&outputs)[OUT_TILES][4], SmallShared& shared,
                            const SmallRun& run) const {
        OutputRows<OUT_TILES, OUTPUTS> rows{outputs};
#pragma unroll
        for (int below = 0; below < 2; ++below) {
            const OutputRest rest =
                rows.replace(below, shared.targets[row(below)], row(below) < count ? factor : 0,
                             run.loss, EvenClasses{});
            if (own_warp() < ROW_SLICES)
                shared.rests[step % 2][own_warp()][below][own_lane()].keep(rest);
        }
    }
};

// -- hidden layers --------------------------------------------------------------------------------

constexpr Activation OF_UNITS = ACTIVATIONS[0];
constexpr float SLOPE = SLOPES[0];
using UnitSums = float[UNITS / 2];

// Derivatives that do not follow from values are kept where the gradients will lie.
constexpr bool KEEPS_DERIVATIVES = needs_input(OF_UNITS);

// The two numbers of a word among a thread's sums.
__device__ inline const float* pair_of(const UnitSums& sums, int slice, int word) {
    return sums + 8 * slice + word / 2 * 4 + word % 2 * 2;
}

// From z to what a layer of so many units gives.
__device__ inline void activate(Words& words, const UnitSums& z, SmallShared& shared, int layer,
                                int count) {
    [[maybe_unused]] Words derivatives;
#pragma unroll
    for (int i = 0; i < UNITS / 16; ++i) {
#pragma unroll
        for (int word = 0; word < 4; ++word) {
            const float* pair = pair_of(z, i, word);
            if constexpr (OF_UNITS == Activation::relu) {
                words.slices[i][word] = relu_packed<T>(pair[0], pair[1]);
                continue;
            }
            const auto low = activated<OF_UNITS>(pair[0], SLOPE),
                       high = activated<OF_UNITS>(pair[1], SLOPE);
            // Units that fill up the layer give nothing, whatever f(0) is.
            const int unit = i * 16 + word / 2 * 8 + own_lane() % 4 * 2;
            words.slices[i][word] =
                packed<T>(unit < count ? low.value : 0, unit + 1 < count ? high.value : 0);
            if (KEEPS_DERIVATIVES)
                derivatives.slices[i][word] = packed<T>(low.derivative, high.derivative);
        }
    }
    if constexpr (KEEPS_DERIVATIVES) store_words(shared.dz[layer], derivatives);
}

// From gradients of what a layer gives to those of its z.
__device__ inline void chain(Words& dz, const UnitSums& dh, const SmallShared& shared, int layer) {
    load_words(dz, KEEPS_DERIVATIVES ? shared.dz[layer] : shared.inputs[layer + 1]);
#pragma unroll
    for (int i = 0; i < UNITS / 16; ++i) {
#pragma unroll
        for (int word = 0; word < 4; ++word) {
            const float* pair = pair_of(dh, i, word);
            unsigned& own = dz.slices[i][word];
            if constexpr (OF_UNITS == Activation::relu) {
                own = packed<T>(pair[0], pair[1]) & positive<T>(own);
                continue;
            }
            float2 f = unpacked<T>(own);
            if constexpr (!KEEPS_DERIVATIVES)
                f = {derivative_by_value<OF_UNITS>(f.x, SLOPE),
                     derivative_by_value<OF_UNITS>(f.y, SLOPE)};
            own = packed<T>(pair[0] * f.x, pair[1] * f.y);
        }
    }
}

// z of a layer: of what it takes, from its biases on.
__device__ inline void multiply_forward(UnitSums& z, const Words& inputs, const SmallShared& shared,
                                        int layer) {
    const float* biases = shared.biases[0][layer] + own_lane() % 4 * 2;
#pragma unroll
    for (int tile = 0; tile < UNITS / 8; ++tile) {
        const float2 bias = *reinterpret_cast<const float2*>(biases + 8 * tile);
        z[4 * tile] = z[4 * tile + 2] = bias.x;
        z[4 * tile + 1] = z[4 * tile + 3] = bias.y;
    }
    const uint64 weights = operand_at(shared.weights[layer], 0);
    wgmma_fence();
#pragma unroll
    for (int k = 0; k < UNITS / 16; ++k)
        RegisterProduct<T>::template add_to<true>(z, inputs.slices[k],
                                                  moved(weights, 16 * k * LINE_BYTES), true);
    wgmma_commit();
    wgmma_wait<0>();
}

// Gradients of what a layer takes.
__device__ inline void multiply_back(UnitSums& dh, const Words& dz, const SmallShared& shared,
                                     int layer) {
#pragma unroll
    for (float& number : dh) number = 0;
    const uint64 weights = operand_at(shared.weights[layer], 0);
    wgmma_fence();
#pragma unroll
    for (int k = 0; k < UNITS / 16; ++k)
        RegisterProduct<T>::template add_to<false>(dh, dz.slices[k],
                                                   moved(weights, k * SLICE_BYTES), k > 0);
    wgmma_commit();
    wgmma_wait<0>();
}

// -- outputs --------------------------------------------------------------------------------------

__device__ inline void find_outputs(float (&outputs)[OUT_TILES][4], const Words& inputs,
                                    const SmallShared& shared) {
#pragma unroll
    for (int tile = 0; tile < OUT_TILES; ++tile) {
        const float2 bias =
            *reinterpret_cast<const float2*>(&shared.out_biases[0][8 * tile + own_lane() % 4 * 2]);
        outputs[tile][0] = outputs[tile][2] = bias.x;
        outputs[tile][1] = outputs[tile][3] = bias.y;
#pragma unroll
        for (int k = 0; k < OUT_SLICES; k += 2) {
            unsigned b[2][2];
            ldmatrix_x4_trans(b[0][0], b[0][1], b[1][0], b[1][1],
                              shared.out_weights[tile][16 * k + own_lane()]);
            TensorCore<T>::multiply(outputs[tile], inputs.slices[k], b[0]);
            if (k + 1 < OUT_SLICES)
                TensorCore<T>::multiply(outputs[tile], inputs.slices[k + 1], b[1]);
        }
    }
}

// Of what the last hidden layer gives; gradients of outputs stay behind, too.
__device__ inline void go_back_from_outputs(UnitSums& dh, const float (&gradients)[OUT_TILES][4],
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
    for (float& number : dh) number = 0;
#pragma unroll
    for (int first = 0; first < 2 * OUT_SLICES; first += 4) {
        unsigned b[4][2] = {};
#pragma unroll
        for (int tile = 0; tile < OUT_TILES; ++tile)
            ldmatrix_x4(b[0][tile], b[1][tile], b[2][tile], b[3][tile],
                        shared.out_weights[tile][8 * first + own_lane()]);
#pragma unroll
        for (int i = 0; i < 4; ++i) {
            if (first + i >= 2 * OUT_SLICES) continue;
            float sums[4] = {};
            TensorCore<T>::multiply(sums, a, b[i]);
#pragma unroll
            for (int j = 0; j < 4; ++j) dh[4 * (first + i) + j] = sums[j];
        }
    }
}

// -- all of it ------------------------------------------------------------------------------------

__device__ inline void take_rows(SmallShared& shared, const SmallRun& run, const OwnRows& rows) {
    Words words = {};
    UnitSums sums;
#pragma unroll
    for (int i = 0; i < padded(0) / 16; ++i)
        load_a(words.slices[i], &shared.x[16 * own_warp()][16 * i], X_STRIDE);
    store_words(shared.inputs[0], words);
#pragma unroll 1
    for (int layer = 0; layer < HIDDEN; ++layer) {
        multiply_forward(sums, words, shared, layer);
        activate(words, sums, shared, layer, Place{layer, 0}.units());
        store_words(shared.inputs[layer + 1], words);
    }
    float outputs[OUT_TILES][4];
    find_outputs(outputs, words, shared);
    rows.replace(outputs, shared, run);
    go_back_from_outputs(sums, outputs, shared);
#pragma unroll 1
    for (int layer = HIDDEN - 1;; --layer) {
        chain(words, sums, shared, layer);
        store_words(shared.dz[layer], words);
        if (layer == 0) return;
        multiply_back(sums, words, shared, layer);
    }
}
