// Losses that are sums over outputs: of a prediction, or a logit, and a target the term, and its
// slope along the prediction. `setting` is Huber's delta. Values only; the define LOSS names a
// pair. A loss that is added here is known to all kernels.
// Users: count_correct_binary.cu, element_loss_backward.cu, element_loss_forward.cu,
// element_loss_step.cu, output_losses.cuh.
#pragma once

#include "base/reduce.cuh"
#include "ops/activation/activation.cuh"

// Kernels that know losses of labels, too, know by CROSS_ENTROPY which LOSS is one.
#ifdef CROSS_ENTROPY
enum HasLabels {
    mse_has_labels = 0,
    absolute_error_has_labels = 0,
    huber_has_labels = 0,
    binary_cross_entropy_has_labels = 0,
    cross_entropy_has_labels = 1
};
static_assert(ACTIVATION_NAME(LOSS, _has_labels) == CROSS_ENTROPY, "labels, or numbers");
#endif

// Without the factor 2, which not all definitions have.
template <class A>
__device__ inline A mse_term(A p, A t, A) {
    return (p - t) * (p - t);
}

template <class A>
__device__ inline A mse_derivative(A p, A t, A) {
    return p - t;
}

template <class A>
__device__ inline A absolute_error_term(A p, A t, A) {
    return p > t ? p - t : t - p;
}

template <class A>
__device__ inline A absolute_error_derivative(A p, A t, A) {
    const A error = p - t;
    return error > A(0) ? A(1) : error < A(0) ? A(-1) : error;
}

// Both cases are c (|d| - c / 2) with c = min(|d|, delta).
template <class A>
__device__ inline A huber_term(A p, A t, A delta) {
    const A size = p > t ? p - t : t - p, clipped = Min::join(size, delta);
    return clipped * (size - clipped / 2);
}

template <class A>
__device__ inline A huber_derivative(A p, A t, A delta) {
    return Max::join(Min::join(p - t, delta), -delta);
}

template <class A>
__device__ inline A binary_cross_entropy_term(A z, A t, A) {
    const A size = z > A(0) ? z : -z;
    return Max::join(z, A(0)) - z * t + logarithm_of_1_plus(exponential(-size));
}

template <class A>
__device__ inline A binary_cross_entropy_derivative(A z, A t, A) {
    return sigmoid_forward(z, A(0)) - t;
}

// Whether an output is on its target's side.
template <class A>
__device__ inline bool is_on_side(A z, A t) {
    return (z > A(0)) == (t > A(0.5));
}
