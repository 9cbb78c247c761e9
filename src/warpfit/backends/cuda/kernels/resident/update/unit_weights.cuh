// The hidden units' weights of many_networks_sm90.cu, with their optimizer state, and their
// updates.
//
// A thread owns 8 weights of each slice of 16 features, as wgmma's accumulators lie: some slices in
// registers, those between them in its own places of shared memory.
#pragma once

#include "resident/layout/cluster_network.cuh"

// A thread's weights, and their optimizer state: of each slice eight, as wgmma's accumulators have
// them.
struct Weights {
    ClusterShared& shared;
    float numbers[1 + SLOTS][REGISTER_SLICES][8];

    __device__ explicit Weights(ClusterShared& shared) : shared(shared) {}

    __device__ float4& shared_place(int slot, int slice, int half) const {
        return shared.weights[shared_before(slice)][slot][half][threadIdx.x];
    }

    __device__ void take(float (&found)[8], int slot, int slice) const {
        if (!is_shared(slice)) {
#pragma unroll
            for (int i = 0; i < 8; ++i) found[i] = numbers[slot][slice - shared_before(slice)][i];
        } else {
            const float4 low = shared_place(slot, slice, 0), high = shared_place(slot, slice, 1);
            found[0] = low.x, found[1] = low.y, found[2] = low.z, found[3] = low.w;
            found[4] = high.x, found[5] = high.y, found[6] = high.z, found[7] = high.w;
        }
    }

    __device__ void put(const float (&found)[8], int slot, int slice) {
        if (!is_shared(slice)) {
#pragma unroll
            for (int i = 0; i < 8; ++i) numbers[slot][slice - shared_before(slice)][i] = found[i];
        } else {
            shared_place(slot, slice, 0) = {found[0], found[1], found[2], found[3]};
            shared_place(slot, slice, 1) = {found[4], found[5], found[6], found[7]};
        }
    }

    // Which feature one of a slice meets; the one after the last is the bias.
    __device__ static unsigned feature(const Thread& own, int slice, int i) {
        return (own.part() * OWN_SLICES + slice) * 16 + i / 4 * 8 + own.column() + i % 2;
    }

    __device__ static bool is_bias(const Thread& own, int slice, int i) {
        const bool may_be = slice == FEATURES / 16 % OWN_SLICES && i / 4 == FEATURES % 16 / 8 &&
                            i % 2 == FEATURES % 2;
        return may_be && feature(own, slice, i) == FEATURES;
    }

    // Where one of a slice lies among a layer's parameters, -1 for those that fill up.
    __device__ static int place(const Thread& own, int slice, int i) {
        const unsigned unit = own.tile() * UNITS + own.unit() + i % 4 / 2 * 8;
        const unsigned feature = Weights::feature(own, slice, i);
        return unit < HIDDEN && feature <= FEATURES ? static_cast<int>(feature * HIDDEN + unit)
                                                    : -1;
    }

    // All of them, from a slot on.
    template <int SLOT = 0>
    __device__ void read(const float* parameters) {
        const Thread own;
#pragma unroll
        for (int slice = 0; slice < OWN_SLICES; ++slice) {
            float found[8];
#pragma unroll
            for (int i = 0; i < 8; ++i)
                found[i] = place(own, slice, i) < 0 ? 0 : parameters[place(own, slice, i)];
            put(found, SLOT, slice);
        }
        if constexpr (SLOT < SLOTS) read<SLOT + 1>(parameters + PARAMETERS);
    }

    // Likewise; or parameters alone, `write<0, 0>`.
    template <int SLOT = 0, int LAST_SLOT = SLOTS>
    __device__ void write(float* parameters) const {
        const Thread own;
#pragma unroll
        for (int slice = 0; slice < OWN_SLICES; ++slice) {
            float found[8];
            take(found, SLOT, slice);
#pragma unroll
            for (int i = 0; i < 8; ++i) {
                if (place(own, slice, i) >= 0) parameters[place(own, slice, i)] = found[i];
            }
        }
        if constexpr (SLOT < LAST_SLOT) write<SLOT + 1>(parameters + PARAMETERS);
    }
};

// A slice's weights, and their optimizer state, in registers.
struct Slice {
    float numbers[1 + SLOTS][8];

    __device__ void take(const Weights& weights, int slice) {
#pragma unroll
        for (int slot = 0; slot <= SLOTS; ++slot) weights.take(numbers[slot], slot, slice);
    }

    __device__ void put(Weights& weights, int slice) const {
#pragma unroll
        for (int slot = 0; slot <= SLOTS; ++slot) weights.put(numbers[slot], slot, slice);
    }

    __device__ void update(const NetworkStep& step, const float* sums) {
#pragma unroll
        for (int i = 0; i < 8; ++i) update_one(step, i, sums[i]);
    }

    // With a penalty. Returns the sum of the squares of weights before.
    __device__ float update(const NetworkStep& of_weights, const NetworkStep& of_biases,
                            const float* sums, int slice) {
        const Thread own;
        float squares = 0;
#pragma unroll
        for (int i = 0; i < 8; ++i) {
            const bool is_bias = Weights::is_bias(own, slice, i);
            squares += is_bias ? 0 : numbers[0][i] * numbers[0][i];
            NetworkStep step = of_weights;
            if (is_bias) step.rule.decay = of_biases.rule.decay;
            update_one(step, i, sums[i]);
        }
        return squares;
    }

    __device__ void update_one(const NetworkStep& step, int i, float sum) {
        step.update(numbers[0][i], [&](int slot) -> float& { return numbers[1 + slot][i]; }, sum);
    }
};

// As the operand of a product.
__device__ inline void round_slice(unsigned (&a)[4], const float (&numbers)[8]) {
#pragma unroll
    for (int word = 0; word < 4; ++word)
        a[word] = packed<T>(numbers[2 * word], numbers[2 * word + 1]);
}
