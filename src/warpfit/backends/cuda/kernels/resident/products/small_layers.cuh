// Forward and backward products of a network in a group (small_network.cuh), for its four warps
// together. Units lie along the rows of accumulators, so that zᵀ = wᵀ hᵀ, dhᵀ = w dzᵀ and dwᵀ = dzᵀ
// h, and what comes out of one is the operand in registers of another.
#pragma once

#include "resident/layout/small_network.cuh"

// What a thread has of a tile, as the operand of a product: of each 16 rows the first 8's pair of
// rows of its first unit, and of its second, and the other 8's.
struct Words {
    unsigned slices[ROW_SLICES][4];
};

// -- activations ----------------------------------------------------------------------------------

// Two neighbouring sums of a product, as a word, and as they are: of float16 products have sums of
// float16, two in a word, which all that follows rounds them to.
__device__ inline unsigned word_of(const unsigned* sums, int i) { return sums[i]; }
__device__ inline unsigned word_of(const float* sums, int i) {
    return packed<T>(sums[2 * i], sums[2 * i + 1]);
}
__device__ inline float2 pair_of(const unsigned* sums, int i) { return unpacked<T>(sums[i]); }
__device__ inline float2 pair_of(const float* sums, int i) {
    return {sums[2 * i], sums[2 * i + 1]};
}

// f(z + bias) of two numbers of a unit. Of float16, relu takes the rounded sum of both rounded: an
// instruction less.
template <int L, class Sum>
__device__ inline unsigned activated_pair(const Sum* sums, int i, float bias,
                                          [[maybe_unused]] unsigned bias_pair) {
    constexpr Activation OF = ACTIVATIONS[L];
    if constexpr (OF == Activation::relu && IS_HALF) {
        return relu_of_sums(word_of(sums, i), bias_pair);
    } else {
        const float2 z = pair_of(sums, i);
        if constexpr (OF == Activation::relu) return relu_packed<T>(z.x + bias, z.y + bias);
        const float slope = SLOPES[L];
        return packed<T>(activated<OF>(z.x + bias, slope).value,
                         activated<OF>(z.y + bias, slope).value);
    }
}

// Of gradients of f(z) those of z.
template <int L, class Sum>
__device__ inline unsigned chained_pair(const Sum* sums, int i, unsigned values) {
    constexpr Activation OF = ACTIVATIONS[L];
    if constexpr (OF == Activation::identity) return word_of(sums, i);
    if constexpr (OF == Activation::relu) return word_of(sums, i) & positive<T>(values);
    const float2 dy = pair_of(sums, i), y = unpacked<T>(values);
    const float slope = SLOPES[L];
    return packed<T>(dy.x * derivative_by_value<OF>(y.x, slope),
                     dy.y * derivative_by_value<OF>(y.y, slope));
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

// Sums of a product with a share of a batch's rows: of float32 all would take twice the registers.
using LayerSum = choice<IS_HALF, unsigned, float>;
using Sums = LayerSum[PART_ROWS / (IS_HALF ? 4 : 2)];
constexpr int PART_BYTES = PART_ROWS * LINE_BYTES, PART_SLICES = PART_ROWS / 16;

// To 0. Of words it is a 0 of each: one of all the compiler would keep, and copy to them.
__device__ inline void clear(unsigned (&sums)[PART_ROWS / 4]) {
#pragma unroll
    for (unsigned& word : sums) word = unforeseen(0u);
}
__device__ inline void clear(float (&sums)[PART_ROWS / 2]) {
#pragma unroll
    for (float& sum : sums) sum = 0;
}

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
__device__ inline void activate(unsigned (&words)[4], unsigned char* tile, int k, const Sums& z,
                                int first, const Parameters& own) {
    const float* biases = own.numbers + own_biases_at(L);
    const unsigned pairs[2] = {packed<T>(biases[0], biases[0]), packed<T>(biases[1], biases[1])};
#pragma unroll
    for (int i = 0; i < 4; ++i) {
        words[i] = activated_pair<L>(z, first + i, biases[i % 2], pairs[i % 2]);
        // Units that fill up the tile give nothing, whatever f(0) is.
        if (WIDTHS[L + 1] < UNITS && Thread().unit() + 8 * (i % 2) >= WIDTHS[L + 1]) words[i] = 0;
    }
    store_slice(tile, k, words);
}

// All hidden layers, each of which leaves its tile to all; of the last the thread's own words
// remain.
template <int L = 0>
__device__ inline void go_forward(GroupShared& shared, Words& last, const Parameters& own,
                                  int stage) {
    WeightWords<L> weights;
#pragma unroll
    for (int i = 0; i < padded(L) / 16; ++i) own.load_slice<L>(weights[i], i);
    const Operand inputs = inputs_of<L>(shared, stage);
#pragma unroll
    for (int part = 0; part < ROWS / PART_ROWS; ++part) {
        Sums z;
        clear(z);
        multiply_forward<L>(z, weights, inputs.after(part * PART_BYTES), [&] {
            if (part > 0) return;
            // All have gone back through the layer, in the step before.
            if constexpr (L > 0) store_weights<L>(shared.weights[L - 1], weights);
        });
#pragma unroll
        for (int i = 0; i < PART_SLICES; ++i) {
            const int k = part * PART_SLICES + i;
            unsigned words[4];
            activate<L>(words, shared.h[L], k, z, 4 * i, own);
#pragma unroll
            for (int j = 0; j < 4; ++j) {
                if (L == HIDDEN - 1) last.slices[k][j] = words[j];
            }
        }
    }
    if constexpr (L + 1 < HIDDEN) {
        hand_over();
        go_forward<L + 1>(shared, last, own, stage);
    } else {
        meet();
    }
}

// The sum of the gradients of each of a thread's two units, in the first and the third of four. Of
// float16, slices are added up by fours first: tensor cores have other products in flight.
__device__ inline void add_rows(float (&sums)[4], const Words& dz) {
    const unsigned one = packed<T>(1, 1), ones[2] = {one, one};
    constexpr int AT_ONCE = IS_HALF && ROW_SLICES >= 4 ? 4 : 1, LEFT = ROW_SLICES / AT_ONCE;
#pragma unroll
    for (int k = 0; k < LEFT; ++k) {
        unsigned words[4];
#pragma unroll
        for (int i = 0; i < 4; ++i) {
            if constexpr (AT_ONCE == 1) {
                words[i] = dz.slices[k][i];
            } else {
                words[i] = sums_of_halves(
                    sums_of_halves(dz.slices[k][i], dz.slices[k + LEFT][i]),
                    sums_of_halves(dz.slices[k + 2 * LEFT][i], dz.slices[k + 3 * LEFT][i]));
            }
        }
        TensorCore<T>::multiply(sums, words, ones);
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
    add_rows(of_biases, dz);
    wgmma_wait<0>();
    own.update_weights<L>(step, sums);
#pragma unroll
    for (int i = 0; i < 2; ++i) own.update(step, own_biases_at(L) + i, of_biases[2 * i]);
}

// dz of a hidden layer, which all have in its tile, becomes that of the one before.
template <int L>
__device__ inline void multiply_backward(Words& dz, const GroupShared& shared) {
    const Operand weights(shared.weights[L - 1]), gradients(shared.h[L]);
#pragma unroll
    for (int part = 0; part < ROWS / PART_ROWS; ++part) {
        Sums dh;
        clear(dh);
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
            load_slice(values[i], shared.h[L - 1], part * PART_SLICES + i);
        wgmma_wait<0>();
#pragma unroll
        for (int i = 0; i < 4 * PART_SLICES; ++i) {
            const int k = part * 4 * PART_SLICES + i;
            dz.slices[k / 4][k % 4] = chained_pair<L - 1>(dh, i, values[i / 4][i % 4]);
        }
    }
}

// From dz of the last hidden layer through all of them, each of which is updated.
template <int L = HIDDEN - 1>
__device__ inline void go_back(GroupShared& shared, Words& dz, Parameters& own,
                               const NetworkStep& step, int stage) {
    if constexpr (L > 0) {
        if (L < HIDDEN - 1) meet();  // all have multiplied with the tile
#pragma unroll
        for (int k = 0; k < ROW_SLICES; ++k) store_slice(shared.h[L], k, dz.slices[k]);
        hand_over();
    }
    update_layer<L>(own, dz, inputs_of<L>(shared, stage), step);
    if constexpr (L > 0) {
        multiply_backward<L>(dz, shared);
        go_back<L - 1>(shared, dz, own, step, stage);
    }
}
