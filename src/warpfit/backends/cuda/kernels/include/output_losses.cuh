// Losses of 16 rows of outputs in the registers of a warp, as the accumulators of mma hold them: lane l has the
// columns 2 (l % 4) and the next of each tile of 8, of the rows l / 4 and l / 4 + 8. What a row needs is
// joined over its four lanes, in the same order in each.
#pragma once

#include "math.cuh"
#include "reduce.cuh"

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

// What the loss of a row needs when its outputs have made room for their gradients: of logits their largest and
// the sum of exp(logit - largest), and of this lane alone the label's logit, if it has it, and how many before
// it are as large as any; of other outputs this lane's part of the sum of squares.
struct OutputRest {
    float sum, largest, of_label, before;
};

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
        for (int part = 0; part < 2 * TILES; ++part) f(column(part), values[part / 2][2 * below + part % 2]);
    }

    // Replaces a row of logits by `factor` times the derivative of its loss.
    __device__ OutputRest replace_logits(int below, int label, float factor) {
        OutputRest rest = {0, -infinity(), 0, 0};
        each(below, [&](int col, float& value) {
            if (col >= COLUMNS) value = -infinity();
            rest.largest = fmaxf(rest.largest, value);
        });
        rest.largest = reduce_row<Largest>(rest.largest);
        each(below, [&](int col, float& value) {
            rest.of_label = col == label ? value : rest.of_label;
            rest.before += col < label && value == rest.largest;
            value = power_of_2((value - rest.largest) * LOG2_E);
            rest.sum += value;
        });
        rest.sum = reduce_row<Sum>(rest.sum);
        const float share = factor * reciprocal(rest.sum);
        each(below, [&](int col, float& value) { value = value * share - (col == label ? factor : 0); });
        return rest;
    }

    // Likewise of outputs and half their sum of squared distances from `target`, times 2 factor.
    __device__ OutputRest replace_numbers(int below, const float* target, float factor) {
        OutputRest rest = {};
        each(below, [&](int col, float& value) {
            const float distance = col < COLUMNS ? value - target[col] : 0;
            rest.sum += distance * distance;
            value = 2 * distance * factor;
        });
        return rest;
    }
};

// The cross-entropy of a row, and whether the label's logit is the first of the largest.
__device__ inline float cross_entropy(const OutputRest& rest, bool& is_correct) {
    const float of_label = reduce_row<Sum>(rest.of_label);
    is_correct = reduce_row<Sum>(rest.before) == 0 && of_label == rest.largest;
    return logarithm(rest.sum) + rest.largest - of_label;
}

// The sum of squared distances of a row.
__device__ inline float squared_error(const OutputRest& rest) { return reduce_row<Sum>(rest.sum); }
