// A warp's 16 rows on their way through all narrow layers, to the loss and back: what each layer
// takes and the gradients of what it gives stay behind in shared memory, where narrow_layers.cuh
// says. Settings beside those of narrow_layers.cuh: LOSS, SMOOTHED, COUNTS_ROWS,
// WEIGHTED and CLASS_WEIGHTS (whether rows and classes have weights).
#pragma once

#include "base/choice.cuh"
#include "narrow/narrow_layers.cuh"
#include "ops/loss/cross_entropy.cuh"
#include "resident/loss/output_losses.cuh"

constexpr int OUT_WIDTH = padded(LAYERS);

// What a loss of outputs in registers is held against, of two rows, fetched before they are
// computed: labels, or numbers.
struct RowLabels {
    using Target = int64;
    int labels[2];
};

struct RowNumbers {
    using Target = float;
    float numbers[OUT_WIDTH / 8][4];
};

// What the rows weigh: each something, where there are weights of all, or 1.
struct RowWeights {
    float weights[2];

    __device__ void fetch(int below, const float* of_all, int64 row) {
        weights[below] = row >= 0 && of_all != nullptr ? of_all[row] : 1;
    }
    __device__ float of(int below) const { return weights[below]; }
};

struct EqualRows {
    __device__ void fetch(int, const float*, int64) {}
    __device__ float of(int) const { return 1; }
};

struct RowTargets {
    bool are_there[2];
    choice<LOSS::HAS_LABELS, RowLabels, RowNumbers> targets;
    choice<WEIGHTED, RowWeights, EqualRows> weights;
};

using Target = decltype(RowTargets::targets)::Target;

struct NarrowLoss {
    const Target* targets;
    float setting,
        // Derivatives come times the scale, over the number of rows, or their weight.
        of_derivative;
    double sums[2];                        // of losses, and of rows that are right
    const float* class_weights = nullptr;  // and their mean

    // Of the warp's 16 rows, with these numbers; `weights` are those of all rows, or null if they
    // are 1. In one piece: in two the compiler finds another order, which takes more registers.
    template <class Rows = RowTargets>
    __device__ Rows fetch(int64 numbers, const float* weights = nullptr) const {
        Rows found;
#pragma unroll
        for (int below = 0; below < 2; ++below) {
            const int64 row = __shfl_sync(FULL_WARP, numbers, own_lane() / 4 + 8 * below);
            const bool is_there = row >= 0;
            found.are_there[below] = is_there;
            found.weights.fetch(below, weights, row);
            if constexpr (LOSS::HAS_LABELS) {
                found.targets.labels[below] = is_there ? column_of(targets[row], OUTPUTS) : 0;
            } else {
                const Target* of_row = targets + row * OUTPUTS + own_lane() % 4 * 2;
                const bool by_pairs =
                    OUTPUTS % 2 == 0 && reinterpret_cast<uint64>(targets) % 8 == 0;
#pragma unroll
                for (int tile = 0; tile < OUT_WIDTH / 8; ++tile) {
                    const int col = 8 * tile + own_lane() % 4 * 2;
                    float2 pair = {0, 0};
                    if (by_pairs) {
                        if (is_there && col < OUTPUTS)
                            pair = *reinterpret_cast<const float2*>(of_row + 8 * tile);
                    } else {
                        if (is_there && col < OUTPUTS) pair.x = of_row[8 * tile];
                        if (is_there && col + 1 < OUTPUTS) pair.y = of_row[8 * tile + 1];
                    }
                    found.targets.numbers[tile][2 * below] = pair.x;
                    found.targets.numbers[tile][2 * below + 1] = pair.y;
                }
            }
        }
        return found;
    }

    // Adds the losses of 16 rows, whose outputs become their gradients: 0 of rows that are not
    // there.
    __device__ void replace(RowSums<OUT_WIDTH>& outputs, const RowTargets& of_rows) {
        OutputRows<OUT_WIDTH / 8, OUTPUTS> rows{outputs.sums};
#pragma unroll
        for (int below = 0; below < 2; ++below) {
            replace_row(rows, of_rows.targets, below, of_rows.weights.of(below),
                        of_rows.are_there[below]);
        }
    }

    __device__ auto classes() const {
        return classes_of<CLASS_WEIGHTS>(class_weights, class_weights + OUTPUTS);
    }

    template <class Rows>
    __device__ void replace_row(Rows& rows, const RowLabels& targets, int below, float weight,
                                bool is_there) {
        const int label = targets.labels[below];
        const float factor = is_there ? of_derivative * weight : 0;
        const OutputRest rest = rows.replace_logits(below, label, factor, setting, classes());
        bool is_correct;
        const float loss =
            weight * cross_entropy(rest, label, setting, OUTPUTS, classes(), is_correct);
        if (own_lane() % 4 != 0 || !is_there) return;
        sums[0] += label < 0 ? infinity() : loss;
        sums[1] += is_correct && label >= 0;
    }

    template <class Rows>
    __device__ void replace_row(Rows& rows, const RowNumbers& targets, int below, float weight,
                                bool is_there) {
        const float factor = is_there ? of_derivative * weight : 0;
        const auto number = [&](int part, int) {
            return targets.numbers[part / 2][2 * below + part % 2];
        };
        const OutputRest rest = rows.template replace_numbers<LOSS>(below, number, factor, setting);
        const bool is_correct = COUNTS_ROWS && reduce_row<Sum>(rest.before) == 0;
        if (!is_there) return;
        sums[0] += weight * rest.sum;
        sums[1] += own_lane() % 4 == 0 && is_correct;
    }
};

// -- rows of a warp -------------------------------------------------------------------------------

template <int WIDTH>
__device__ inline RowSums<WIDTH> begin_with(const T* biases) {
    RowSums<WIDTH> found;
#pragma unroll
    for (int tile = 0; tile < RowSums<WIDTH>::TILES; ++tile) {
        const float2 pair =
            unpacked<T>(*reinterpret_cast<const unsigned*>(biases + 8 * tile + own_lane() % 4 * 2));
        found.sums[tile][0] = found.sums[tile][2] = pair.x;
        found.sums[tile][1] = found.sums[tile][3] = pair.y;
    }
    return found;
}

// The derivatives of what a layer gives are found by its values, or are kept where its gradients
// will lie: those that need the input of the activation, or do not tell units that are dropped from
// others.
template <int L>
constexpr bool KEEPS_DERIVATIVES = needs_input(ACTIVATIONS[L]) || DROPOUTS[L];

template <int L>
__device__ inline float2 derivatives(const T* values, const T* kept) {
    if constexpr (KEEPS_DERIVATIVES<L>) {
        return unpacked<T>(*reinterpret_cast<const unsigned*>(kept));
    } else {
        const float2 y = unpacked<T>(*reinterpret_cast<const unsigned*>(values));
        return {derivative_by_value<ACTIVATIONS[L]>(y.x, SLOPES[L]),
                derivative_by_value<ACTIVATIONS[L]>(y.y, SLOPES[L])};
    }
}

// From gradients of what layer L gives, before its activation, to those of all layers below, all of
// which stay behind.
template <int L>
__device__ inline void go_back(T* shared, int own_rows, const RowFragments<padded(L + 1)>& dz) {
    constexpr int WIDTH = padded(L), STRIDE = stride_of(L);
    store_fragments<padded(L + 1)>(shared + dz_at(L) + own_rows * stride_of(L + 1),
                                   stride_of(L + 1), dz);
    if constexpr (L > 0) {
        RowSums<WIDTH> found;
        multiply_back<WIDTH, padded(L + 1)>(found, dz, shared + weights_at(L), stride_of(L + 1));
        const int own = own_rows * STRIDE + word_offset(STRIDE);
        const T *values = shared + values_at(L) + own, *kept = shared + dz_at(L - 1) + own;
#pragma unroll
        for (int tile = 0; tile < RowSums<WIDTH>::TILES; ++tile) {
#pragma unroll
            for (int below = 0; below < 2; ++below) {
                const int at = below * 8 * STRIDE + 8 * tile;
                const float2 factors = derivatives<L - 1>(values + at, kept + at);
                found.sums[tile][2 * below] *= factors.x;
                found.sums[tile][2 * below + 1] *= factors.y;
            }
        }
        go_back<L - 1>(shared, own_rows, found.fragments());
    }
}

// Makes sums the values that follow from them, and returns their derivatives.
template <int L>
__device__ inline RowSums<padded(L + 1)> activate_sums(RowSums<padded(L + 1)>& sums) {
    RowSums<padded(L + 1)> derivatives;
#pragma unroll
    for (int tile = 0; tile < RowSums<padded(L + 1)>::TILES; ++tile) {
#pragma unroll
        for (int i = 0; i < 4; ++i) {
            const Activated<float> found = activated<ACTIVATIONS[L]>(sums.sums[tile][i], SLOPES[L]);
            sums.sums[tile][i] = found.value;
            derivatives.sums[tile][i] = found.derivative;
        }
    }
    return derivatives;
}

// The dropout of networks that have none; see narrow_dropout.cuh.
struct NoDropout {};

// From what layer L takes to the loss, and, if it TRAINS, back. `own_rows` is the first of the
// warp's rows in the tile.
template <int L, bool TRAINS = true, class Drops = NoDropout>
__device__ inline void go_on(T* shared, int own_rows, const RowFragments<padded(L)>& values,
                             NarrowLoss& loss, const RowTargets& targets,
                             [[maybe_unused]] const Drops& dropout = {}) {
    constexpr int WIDTH = padded(L + 1), STRIDE = stride_of(L + 1);
    RowSums<WIDTH> found = begin_with<WIDTH>(shared + biases_at(L));
    multiply<padded(L), WIDTH>(found, values, shared + weights_at(L), STRIDE);
    [[maybe_unused]] RowSums<WIDTH> derivatives = activate_sums<L>(found);
    if constexpr (TRAINS && DROPOUTS[L]) dropout.template drop<L>(found, derivatives);
    if constexpr (L + 1 < LAYERS) {
        if constexpr (TRAINS && KEEPS_DERIVATIVES<L>) {
            store_fragments<WIDTH>(shared + dz_at(L) + own_rows * STRIDE, STRIDE,
                                   derivatives.fragments());
        }
        const RowFragments<WIDTH> next = found.fragments();
        if constexpr (TRAINS) {
            store_fragments<WIDTH>(shared + values_at(L + 1) + own_rows * STRIDE, STRIDE, next);
        }
        go_on<L + 1, TRAINS>(shared, own_rows, next, loss, targets, dropout);
    } else {
        loss.replace(found, targets);
        if constexpr (!TRAINS) return;
        if constexpr (ACTIVATIONS[L] != Activation::identity) {
#pragma unroll
            for (int tile = 0; tile < RowSums<WIDTH>::TILES; ++tile) {
#pragma unroll
                for (int i = 0; i < 4; ++i) found.sums[tile][i] *= derivatives.sums[tile][i];
            }
        }
        go_back<L>(shared, own_rows, found.fragments());
    }
}
