// Losses of a prediction and a target (M, N), element by element: the weighted mean of the terms, and its
// gradient. sample_weight is (M,), or null for ones.
#pragma once

#include "base/stream.cuh"
#include "ops/loss/loss.cuh"
#include "ops/loss/loss_terms.cuh"

// loss = scale Σ_i s_i Σ_j term(p, t) / (divisor Σ s) and weight = Σ s.
template <class Term>
__device__ inline void mean_of_terms(const T* prediction, const T* target, const T* sample_weight, Acc* loss,
                                     Acc* weight, double* partials, unsigned* arrivals, double scale,
                                     double divisor, int64 num_rows, int64 num_columns, Term term) {
    const Inputs<2> inputs{{prediction, target}};
    double sums[2] = {0, 0};
    if (sample_weight) {
        sums[0] = sum_elements(
            inputs, num_rows * num_columns, num_columns,
            [=](const Acc(&x)[2], int64 row, int64) { return term(x[0], x[1]) * load(sample_weight[row]); });
        const int64 step = static_cast<int64>(gridDim.x) * blockDim.x;
        for (int64 row = static_cast<int64>(blockIdx.x) * blockDim.x + threadIdx.x; row < num_rows;
             row += step) {
            sums[1] += load(sample_weight[row]);
        }
    } else {
        sums[0] = sum_elements(inputs, num_rows * num_columns, 0,
                               [=](const Acc(&x)[2], int64, int64) { return term(x[0], x[1]); });
    }
    if (!sum_over_grid(sums, partials, arrivals) || threadIdx.x != 0) return;
    const double total_weight = sample_weight ? sums[1] : static_cast<double>(num_rows);
    write_mean(loss, scale * sums[0], divisor * total_weight);
    *weight = static_cast<Acc>(total_weight);
}

// gradient = slope(p, t) s / (divisor Σ s).
template <class Slope>
__device__ inline void gradient_of_mean(const T* prediction, const T* target, const Acc* total_weight,
                                        const T* sample_weight, T* gradient, double divisor, int64 num_rows,
                                        int64 num_columns, Slope slope) {
    const Inputs<2> inputs{{prediction, target}};
    const Acc scale = inverse_or_zero(static_cast<Acc>(*total_weight * divisor));
    if (sample_weight) {
        map_elements(inputs, gradient, num_rows * num_columns, num_columns,
                     [=](const Acc(&x)[2], int64 row, int64) {
                         return slope(x[0], x[1]) * (load(sample_weight[row]) * scale);
                     });
    } else {
        map_elements(inputs, gradient, num_rows * num_columns, 0,
                     [=](const Acc(&x)[2], int64, int64) { return slope(x[0], x[1]) * scale; });
    }
}
