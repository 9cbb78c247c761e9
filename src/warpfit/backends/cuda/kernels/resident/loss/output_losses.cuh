// Losses of 16 rows of outputs in the registers of a warp, as the accumulators of mma hold them:
// lane l has the columns 2 (l % 4) and the next of each tile of 8, of the rows l / 4 and l / 4 + 8.
// What a row needs is joined over its four lanes, in the same order in each.
#pragma once

#include "ops/loss/loss_terms.cuh"

constexpr float LOG2_E = 1.4426950408889634f;

// A NaN is left to come out in what follows.
struct Largest {
    __device__ static float join(float a, float b) { return fmaxf(a, b); }
};

template <class Op>
__device__ inline float reduce_row(float value) {
    value = Op::join(value, __shfl_xor_sync(FULL_WARP, value, 1));
    return Op::join(value, __shfl_xor_sync(FULL_WARP, value, 2));
}

// What the loss of a row needs when its outputs have made room for their gradients: of logits their
// largest and the sum of exp(logit - largest), and of this lane alone the label's logit, if it has
// it, how many before it are as large as any, and with smoothing the sum of logits; of other
// outputs this lane's part of the sum of terms, and how many are on the wrong side.
struct OutputRest {
    float sum, largest, of_label, before, all;
};

// What classes weigh: all the same, or each something else, and in the mean.
struct EvenClasses {
    __device__ float share(int, float) const { return 1; }
    __device__ float on_label(int, float smoothing) const { return SMOOTHED ? 1 - smoothing : 1; }
    __device__ float on_each(int) const { return 1; }
};

struct WeighedClasses {
    const float* weights;
    float mean;

    // Of a row of this label, what its softmax is multiplied by; what is taken off it at the label,
    // and, times the smoothing over the number of classes, at each class.
    __device__ float share(int label, float smoothing) const {
        return on_label(label, smoothing) + (SMOOTHED ? smoothing * mean : 0);
    }
    __device__ float on_label(int label, float smoothing) const {
        return SMOOTHED ? (1 - smoothing) * weights[label] : weights[label];
    }
    __device__ float on_each(int col) const { return weights[col]; }
};

// What classes weigh: as these numbers say and their mean, or all the same.
template <bool HAVE_WEIGHTS>
__device__ inline auto classes_of([[maybe_unused]] const float* weights,
                                  [[maybe_unused]] const float* mean) {
    if constexpr (HAVE_WEIGHTS) {
        return WeighedClasses{weights, *mean};
    } else {
        return EvenClasses{};
    }
}

// What a loss is beside its formula: `setting` is the share of label smoothing or Huber's delta;
// terms that are added up over outputs, and gradients, come times a factor each.
struct LossSettings {
    float setting, of_term, of_derivative;
};

// The label that a target is for cross-entropy.
__device__ inline int label_of(const float* target) {
    return static_cast<int>(__float_as_uint(*target));
}

// TILES tiles of 8 columns, of which the first COLUMNS are there.
template <int TILES, int COLUMNS>
struct OutputRows {
    float (&values)[TILES][4];

    __device__ static int column(int part) {
        return part / 2 * 8 + static_cast<int>(threadIdx.x) % 4 * 2 + part % 2;
    }

    // f(column, value) for what this thread has of a row, the lower one if `below`.
    template <class F>
    __device__ void each(int below, F f) {
#pragma unroll
        for (int part = 0; part < 2 * TILES; ++part)
            f(column(part), values[part / 2][2 * below + part % 2]);
    }

    // Replaces a row of logits by `factor` times the derivative of its loss.
    template <class Classes>
    __device__ OutputRest replace_logits(int below, int label, float factor, float smoothing,
                                         const Classes& classes) {
        OutputRest rest = {0, -infinity(), 0, 0, 0};
        each(below, [&](int col, float& value) {
            if (col >= COLUMNS) value = -infinity();
            rest.largest = fmaxf(rest.largest, value);
        });
        rest.largest = reduce_row<Largest>(rest.largest);
        each(below, [&](int col, float& value) {
            rest.of_label = col == label ? value : rest.of_label;
            rest.before += col < label && value == rest.largest;
            if (SMOOTHED && col < COLUMNS) rest.all += value * classes.on_each(col);
            value = power_of_2((value - rest.largest) * LOG2_E);
            rest.sum += value;
        });
        rest.sum = reduce_row<Sum>(rest.sum);
        const float share = factor * classes.share(label, smoothing) * reciprocal(rest.sum);
        const float on_label = factor * classes.on_label(label, smoothing),
                    on_each = factor * smoothing / COLUMNS;
        each(below, [&](int col, float& value) {
            value = value * share - (col == label ? on_label : 0);
            if (SMOOTHED && col < COLUMNS) value -= on_each * classes.on_each(col);
        });
        return rest;
    }

    // Likewise of outputs and a loss that is a sum of terms; target(part, column) is an output's.
    template <class Terms, class Targets>
    __device__ OutputRest replace_numbers(int below, Targets target, float factor, float setting) {
        OutputRest rest = {};
#pragma unroll
        for (int part = 0; part < 2 * TILES; ++part) {
            const int col = column(part);
            float& value = values[part / 2][2 * below + part % 2];
            const bool is_there = col < COLUMNS;
            const float t = is_there ? target(part, col) : 0, p = value;
            rest.sum += is_there ? Terms::term(p, t, setting) : 0;
            if (COUNTS_ROWS) rest.before += is_there && !is_on_side(p, t);
            value = is_there ? Terms::derivative(p, t, setting) * factor : 0;
        }
        return rest;
    }

    // Either, of a row whose target is a label or a number for each output.
    template <class Loss = LOSS, class Classes>
    __device__ OutputRest replace(int below, const float* target, float factor,
                                  const LossSettings& loss,
                                  [[maybe_unused]] const Classes& classes) {
        if constexpr (Loss::HAS_LABELS) {
            return replace_logits(below, label_of(target), factor, loss.setting, classes);
        } else {
            const auto number = [&](int, int col) { return target[col]; };
            return replace_numbers<Loss>(below, number, factor * loss.of_derivative, loss.setting);
        }
    }
};

// Of a row of which each lane has the columns column(0) and the next of each chunk of 8:
// outputs(chunk), two of them, become gradients, which put(chunk, first, second) takes.
template <int CHUNKS, int COLUMNS, class Classes, class Outputs, class Put>
__device__ inline OutputRest find_row_gradients(const float* target, float factor,
                                                const LossSettings& loss, const Classes& classes,
                                                Outputs outputs, Put put) {
    float z[CHUNKS][4];  // of which there is the upper row
#pragma unroll
    for (int chunk = 0; chunk < CHUNKS; ++chunk) {
        const float2 pair = outputs(chunk);
        z[chunk][0] = pair.x;
        z[chunk][1] = pair.y;
    }
    OutputRows<CHUNKS, COLUMNS> rows{z};
    const OutputRest rest = rows.replace(0, target, factor, loss, classes);
#pragma unroll
    for (int chunk = 0; chunk < CHUNKS; ++chunk) put(chunk, z[chunk][0], z[chunk][1]);
    return rest;
}

// NUM_ROWS rows of outputs, of which NUM_WARPS warps take 8 at a time: what a warp's leave for
// their losses.
template <int NUM_ROWS, int NUM_WARPS>
struct RowEighths {
    static constexpr int OF_WARP = (NUM_ROWS / 8 + NUM_WARPS - 1) / NUM_WARPS;
    using Rests = OutputRest[OF_WARP];

    // f(i, eighth) for each of this warp.
    template <class F>
    __device__ static void each(F f) {
#pragma unroll
        for (int i = 0; i < OF_WARP; ++i) {
            const int eighth = threadIdx.x / 32 + i * NUM_WARPS;
            if (eighth < NUM_ROWS / 8) f(i, eighth);
        }
    }
};

// The cross-entropy of a row, and whether the label's logit is the first of the largest.
template <class Classes>
__device__ inline float cross_entropy(const OutputRest& rest, int label, float smoothing,
                                      int num_columns, const Classes& classes, bool& is_correct) {
    const float of_label = reduce_row<Sum>(rest.of_label),
                whole = logarithm(rest.sum) + rest.largest;
    is_correct = reduce_row<Sum>(rest.before) == 0 && of_label == rest.largest;
    const float loss =
        whole * classes.share(label, smoothing) - classes.on_label(label, smoothing) * of_label;
    return SMOOTHED ? loss - smoothing / num_columns * reduce_row<Sum>(rest.all) : loss;
}

// The sum of a row's terms, and whether all of its outputs are on their targets' side.
__device__ inline float sum_of_terms(const OutputRest& rest, bool& is_correct) {
    is_correct = COUNTS_ROWS && reduce_row<Sum>(rest.before) == 0;
    return reduce_row<Sum>(rest.sum);
}

struct alignas(8) RowLoss {
    float loss;
    unsigned is_correct;
};

template <class Classes>
__device__ inline RowLoss find_row_loss(const OutputRest& rest, [[maybe_unused]] int label,
                                        const LossSettings& loss, int num_columns,
                                        [[maybe_unused]] const Classes& classes, bool is_there) {
    bool is_correct;
    const float value = LOSS::HAS_LABELS ? cross_entropy(rest, label, loss.setting, num_columns,
                                                         classes, is_correct)
                                         : sum_of_terms(rest, is_correct) * loss.of_term;
    return {is_there ? value : 0, is_there && is_correct};
}

// Writes a row of the record of a step: the sum of the losses of `num_rows` rows over `whole`,
// their weight, and how many of them are right. A warp calls.
__device__ inline void write_record(double* row, const RowLoss* losses, int num_rows, double whole,
                                    double weight) {
    const int lane = threadIdx.x % 32;
    double loss = 0;
    unsigned correct = 0;
    for (int i = lane; i < num_rows; i += 32) {
        loss += losses[i].loss;
        correct += losses[i].is_correct;
    }
    loss = reduce_warp<Sum>(loss) / whole;
    correct = reduce_warp<Sum>(correct);
    if (lane == 0) {
        row[0] = loss;
        row[1] = weight;
        row[2] = correct;
    }
}
