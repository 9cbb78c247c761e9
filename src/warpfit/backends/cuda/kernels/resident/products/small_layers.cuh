// Forward and backward products of a network in a group (small_network.cuh), for its four warps
// together. Units lie along the rows of accumulators, so that zᵀ = wᵀ hᵀ, dhᵀ = w dzᵀ and dwᵀ = dzᵀ
// h, and what comes out of one is the operand in registers of another.
//
// Users: many_small_networks_sm90.cu.
#pragma once

#include "resident/layout/small_network.cuh"

// What a thread has of a tile, as the operand of a product: of each 16 rows the first 8's pair of
// rows of its first unit, and of its second, and the other 8's.
struct Words {
    unsigned slices[ROW_SLICES][4];
};

// Which of a thread's words of a tile are positive, from which relu's derivatives follow: a bit for
// either number of each.
struct Signs {
    static constexpr int OF_BITS = 16;

    unsigned bits[(4 * ROW_SLICES + OF_BITS - 1) / OF_BITS];

    __device__ static unsigned places(int i) { return 0x00010001u << i % OF_BITS; }

    __device__ void keep(int i, unsigned word) {
        const unsigned found = positive<T>(word) & places(i);
        // Unforeseen, lest the words be kept instead.
        bits[i / OF_BITS] = unforeseen(i % OF_BITS == 0 ? found : bits[i / OF_BITS] | found);
    }

    // All bits of either number, or none.
    __device__ unsigned mask(int i) const {
        const unsigned found = bits[i / OF_BITS] & places(i);
        return positive<float16>(
            i % OF_BITS < 15 ? found : found >> 1);  // the highest bit is a number's sign
    }
};

// Those of each hidden layer.
using AllSigns = Signs[HIDDEN];

template <int L>
constexpr bool HAS_SIGNS = L < HIDDEN - 1 && ACTIVATIONS[L] == Activation::relu;

// -- activations ----------------------------------------------------------------------------------

// f(z + bias) of two numbers of a unit. Of float16, relu takes the rounded sum of both rounded: an
// instruction less.
template <int L>
__device__ inline unsigned activated_pair(float first, float second, float bias,
                                          [[maybe_unused]] unsigned bias_pair) {
    constexpr Activation OF = ACTIVATIONS[L];
    if constexpr (OF == Activation::relu) {
        if constexpr (IS_HALF) return relu_of_sums(packed<T>(first, second), bias_pair);
        return relu_packed<T>(first + bias, second + bias);
    }
    const float slope = SLOPES[L];
    return packed<T>(activated<OF>(first + bias, slope).value,
                     activated<OF>(second + bias, slope).value);
}

// Of gradients of f(z) those of z.
template <int L>
__device__ inline unsigned chained_pair(float first, float second, unsigned values) {
    constexpr Activation OF = ACTIVATIONS[L];
    if constexpr (OF == Activation::identity) return packed<T>(first, second);
    if constexpr (OF == Activation::relu) return packed<T>(first, second) & positive<T>(values);
    const float2 y = unpacked<T>(values);
    const float slope = SLOPES[L];
    return packed<T>(first * derivative_by_value<OF>(y.x, slope),
                     second * derivative_by_value<OF>(y.y, slope));
}

// -- tiles ----------------------------------------------------------------------------------------

// 16 rows.
__device__ inline void store_slice(unsigned char* tile, int k, const unsigned (&words)[4]) {
    stmatrix_x4_trans(tile + Thread().across() + k * 2 * ATOM_BYTES, words);
}

__device__ inline void load_slice(unsigned (&words)[4], const unsigned char* tile, int k) {
    ldmatrix_x4_trans(words[0], words[1], words[2], words[3],
                      tile + Thread().across() + k * 2 * ATOM_BYTES);
}

// An operand of products in shared memory, and what lies so many bytes behind it.
struct Operand {
    unsigned low;

    __device__ explicit Operand(const unsigned char* tile, unsigned offset = 0)
        : low(((shared_address(tile) + offset) & 0x3ffff) >> 4) {}

    __device__ Operand after(int bytes) const {
        Operand found = *this;
        found.low += bytes >> 4;
        return found;
    }

    __device__ uint64 at(int bytes) const {
        constexpr uint64 NOWHERE = 0;
        return matrix_descriptor(NOWHERE, 0) | (low + (bytes >> 4));
    }
};

// -- products -------------------------------------------------------------------------------------

// What a layer takes: in a stage, the batch.
template <int L>
__device__ inline Operand inputs_of(const GroupShared& shared, int stage) {
    if constexpr (L == 0) return Operand(shared.x, x_at(stage));
    return Operand(shared.h[L > 0 ? L - 1 : 0]);
}

// A layer's weights, 16 inputs at a time, as the operand of a product.
template <int L>
using WeightWords = unsigned[padded(L) / 16][4];

// Leaves them to all, for the product that goes back.
template <int L>
__device__ inline void store_weights(unsigned char* tile, const WeightWords<L>& words) {
    const Thread own;
    const unsigned row = 16 * own.warp() + own.lane() % 16;
#pragma unroll
    for (int i = 0; i < padded(L) / 16; ++i)
        stmatrix_x4(tile + row * LINE_BYTES + ((2 * i + own.lane() / 16) ^ row % 8) * 16, words[i]);
}

// Sums of a product with a share of a batch's rows: all of them would take twice the registers.
using Sums = float[PART_ROWS / 2];
constexpr int PART_BYTES = PART_ROWS * LINE_BYTES, PART_SLICES = PART_ROWS / 16;

// zᵀ of a hidden layer, of a part of the rows, without its biases.
template <int L, class F>
__device__ inline void multiply_forward(Sums& z, const WeightWords<L>& weights,
                                        const Operand& inputs, F meanwhile) {
    wgmma_fence();
#pragma unroll
    for (int i = 0; i < padded(L) / 16; ++i)
        RegisterProduct<T>::template add_to<false>(z, weights[i], inputs.at(i * SLICE_BYTES),
                                                   i > 0);
    wgmma_commit();
    meanwhile();
    wgmma_wait<0>();
}

// What a hidden layer gives of 16 rows, also in its tile.
template <int L>
__device__ inline void activate(unsigned (&words)[4], unsigned char* tile, int k, const float* z,
                                const Parameters& own) {
    const float* biases = own.numbers + own_biases_at(L);
    const unsigned pairs[2] = {packed<T>(biases[0], biases[0]), packed<T>(biases[1], biases[1])};
#pragma unroll
    for (int i = 0; i < 4; ++i) {
        words[i] = activated_pair<L>(z[2 * i], z[2 * i + 1], biases[i % 2], pairs[i % 2]);
        // Units that fill up the tile give nothing, whatever f(0) is.
        if (WIDTHS[L + 1] < UNITS && Thread().unit() + 8 * (i % 2) >= WIDTHS[L + 1]) words[i] = 0;
    }
    store_slice(tile, k, words);
}

// All hidden layers, each of which leaves its tile to all; of the last the thread's own words
// remain.
template <int L = 0>
__device__ inline void go_forward(GroupShared& shared, Words& last, AllSigns& signs,
                                  const Parameters& own, int stage) {
    WeightWords<L> weights;
#pragma unroll
    for (int i = 0; i < padded(L) / 16; ++i) own.load_slice<L>(weights[i], i);
    const Operand inputs = inputs_of<L>(shared, stage);
#pragma unroll
    for (int part = 0; part < ROWS / PART_ROWS; ++part) {
        Sums z = {};
        multiply_forward<L>(z, weights, inputs.after(part * PART_BYTES), [&] {
            if (part > 0) return;
            // All have gone back through the layer, in the step before.
            if constexpr (L > 0) store_weights<L>(shared.weights[L - 1], weights);
        });
#pragma unroll
        for (int i = 0; i < PART_SLICES; ++i) {
            const int k = part * PART_SLICES + i;
            unsigned words[4];
            activate<L>(words, shared.h[L], k, z + 8 * i, own);
#pragma unroll
            for (int j = 0; j < 4; ++j) {
                if (L == HIDDEN - 1) last.slices[k][j] = words[j];
                if (HAS_SIGNS<L>) signs[L].keep(4 * k + j, words[j]);
            }
        }
    }
    if constexpr (L + 1 < HIDDEN) {
        hand_over();
        go_forward<L + 1>(shared, last, signs, own, stage);
    } else {
        meet();
    }
}

// dwᵀ and, for each of its two units, the sum of gradients, for an update of a hidden layer.
template <int L>
__device__ inline void update_layer(Parameters& own, const Words& dz, const Operand& inputs,
                                    const NetworkStep& step) {
    float sums[padded(L) / 2] = {};
    wgmma_fence();
#pragma unroll
    for (int k = 0; k < ROW_SLICES; ++k)
        RegisterProduct<T>::template add_to<true>(sums, dz.slices[k],
                                                  inputs.at(k * 16 * LINE_BYTES), k > 0);
    wgmma_commit();
    float of_biases[4] = {};
    const unsigned one = packed<T>(1, 1), ones[2] = {one, one};
#pragma unroll
    for (int k = 0; k < ROW_SLICES; ++k) TensorCore<T>::multiply(of_biases, dz.slices[k], ones);
    wgmma_wait<0>();
    own.update_weights<L>(step, sums);
#pragma unroll
    for (int i = 0; i < 2; ++i) own.update(step, own_biases_at(L) + i, of_biases[2 * i]);
}

// dz of a hidden layer, which all have in its tile, becomes that of the one before.
template <int L>
__device__ inline void multiply_backward(Words& dz, const AllSigns& signs,
                                         const GroupShared& shared) {
    const Operand weights(shared.weights[L - 1]), gradients(shared.h[L]);
#pragma unroll
    for (int part = 0; part < ROWS / PART_ROWS; ++part) {
        Sums dh = {};
        wgmma_fence();
#pragma unroll
        for (int i = 0; i < padded(L + 1) / 16; ++i)
            SliceProduct<T, true, false>::add_to(dh, weights.at(i * 16 * LINE_BYTES),
                                                 gradients.at(part * PART_BYTES + i * SLICE_BYTES),
                                                 i > 0);
        wgmma_commit();
        unsigned values[PART_SLICES][4];
#pragma unroll
        for (int i = 0; i < PART_SLICES; ++i)
            if (!HAS_SIGNS<L - 1>) load_slice(values[i], shared.h[L - 1], part * PART_SLICES + i);
        wgmma_wait<0>();
#pragma unroll
        for (int i = 0; i < 4 * PART_SLICES; ++i) {
            const int k = part * 4 * PART_SLICES + i;
            if constexpr (HAS_SIGNS<L - 1>)
                dz.slices[k / 4][k % 4] =
                    packed<T>(dh[2 * i], dh[2 * i + 1]) & signs[L - 1].mask(k);
            else
                dz.slices[k / 4][k % 4] =
                    chained_pair<L - 1>(dh[2 * i], dh[2 * i + 1], values[i / 4][i % 4]);
        }
    }
}

// From dz of the last hidden layer through all of them, each of which is updated.
template <int L = HIDDEN - 1>
__device__ inline void go_back(GroupShared& shared, Words& dz, const AllSigns& signs,
                               Parameters& own, const NetworkStep& step, int stage) {
    if constexpr (L > 0) {
        if (L < HIDDEN - 1) meet();  // all have multiplied with the tile
#pragma unroll
        for (int k = 0; k < ROW_SLICES; ++k) store_slice(shared.h[L], k, dz.slices[k]);
        hand_over();
    }
    update_layer<L>(own, dz, inputs_of<L>(shared, stage), step);
    if constexpr (L > 0) {
        multiply_backward<L>(dz, signs, shared);
        go_back<L - 1>(shared, dz, signs, own, step, stage);
    }
}
