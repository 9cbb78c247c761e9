// Something for each of LAYERS layers, and sizes of what they are made of.
// A Stack lies as its layers do, the last one first. Arrays are places in memory that the host
// gives, of each layer weights, their optimizer state, biases, theirs.
#pragma once

#include "resident/layout/sizes.cuh"

// Something for each layer from L on, of COUNT.
template <template <int> class Of, int COUNT = LAYERS, int L = 0>
struct Stack : Stack<Of, COUNT, L + 1> {
    Of<L> layer;
};
template <template <int> class Of, int COUNT>
struct Stack<Of, COUNT, COUNT> {};

template <int L, template <int> class Of, int COUNT>
__device__ inline Of<L>& layer_of(Stack<Of, COUNT>& stack) {
    return static_cast<Stack<Of, COUNT, L>&>(stack).layer;
}
template <int L, template <int> class Of, int COUNT>
__device__ inline const Of<L>& layer_of(const Stack<Of, COUNT>& stack) {
    return static_cast<const Stack<Of, COUNT, L>&>(stack).layer;
}

// Where parameters lie, and their optimizer state in slot 0 and on; -1 is the parameter itself.
struct Arrays {
    static constexpr int NUM_SLOTS = SLOTS;
    float* const* of_layers;

    __device__ static int index(int quad) { return quad; }

    template <int L>
    __device__ float* weights(int slot) const {
        return of_layers[2 * L * (1 + SLOTS) + 1 + slot];
    }
    template <int L>
    __device__ float* biases(int slot) const {
        return of_layers[(2 * L + 1) * (1 + SLOTS) + 1 + slot];
    }
};

// Where the parameters of the best epoch are kept.
struct BestArrays {
    static constexpr int NUM_SLOTS = 0;
    float* const* of_layers;

    // Found from it only where it is needed: else places would lie in registers in all passes.
    __device__ static int index(int quad) { return unforeseen(quad); }

    template <int L>
    __device__ float* weights(int) const {
        return of_layers[2 * L];
    }
    template <int L>
    __device__ float* biases(int) const {
        return of_layers[2 * L + 1];
    }
};
