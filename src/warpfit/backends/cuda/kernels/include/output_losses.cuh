// Losses of 16 rows of outputs in the registers of a warp, as the accumulators of mma hold them: lane l has the
// columns 2 (l % 4) and the next of each tile of 8, of the rows l / 4 and l / 4 + 8. What a row needs is
// joined over its four lanes, in the same order in each.
#pragma once

#include "math.cuh"
#include "reduce.cuh"

template <class Op>
__device__ inline float reduce_row(float value) {
    value = Op::join(value, __shfl_xor_sync(FULL_WARP, value, 1));
    return Op::join(value, __shfl_xor_sync(FULL_WARP, value, 2));
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
        for (int part = 0; part < 2 * TILES; ++part) f(column(part), values[part / 2][2 * below + part % 2]);
    }

    // Replaces a row of logits by `factor` times the derivative of its loss, and returns the loss and whether
    // the label's logit is the first of the largest.
    __device__ float cross_entropy(int below, int label, float factor, bool& is_correct) {
        float largest = -infinity(), of_label = 0, sum = 0;
        each(below, [&](int col, float value) {
            if (col < COLUMNS) largest = fmaxf(largest, value);
        });
        largest = reduce_row<Max>(largest);
        float before = 0;  // how many logits before the label's are as large as any
        each(below, [&](int col, float& value) {
            if (col == label) of_label = value;
            before += col < label && value == largest;
            value = col < COLUMNS ? exponential(value - largest) : 0;
            sum += value;
        });
        sum = reduce_row<Sum>(sum);
        of_label = reduce_row<Sum>(of_label);
        is_correct = reduce_row<Sum>(before) == 0 && of_label == largest;
        each(below, [&](int col, float& value) { value = (value / sum - (col == label)) * factor; });
        return logarithm(sum) + largest - of_label;
    }

    // Likewise of outputs and their sum of squared distances from `target`; factor / 2 is the distance's.
    __device__ float squared_error(int below, const float* target, float factor) {
        float sum = 0;
        each(below, [&](int col, float& value) {
            const float distance = col < COLUMNS ? value - target[col] : 0;
            sum += distance * distance;
            value = 2 * distance * factor;
        });
        return reduce_row<Sum>(sum);
    }
};
