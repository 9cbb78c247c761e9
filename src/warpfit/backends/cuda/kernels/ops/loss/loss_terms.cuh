// Losses by their names, which a setting LOSS has. Of those that are sums over outputs: of a
// prediction, or a logit, and a target the term, and its derivative along the prediction. `setting`
// is Huber's delta. Values only. A loss that is added here is known to all kernels.
#pragma once

#include "base/reduce.cuh"
#include "ops/activation/activation.cuh"

struct OfNumbers {
    static constexpr bool HAS_LABELS = false;
};

// Without the factor 2, which not all definitions have.
struct Mse : OfNumbers {
    template <class A>
    __device__ static A term(A p, A t, A) {
        return (p - t) * (p - t);
    }
    template <class A>
    __device__ static A derivative(A p, A t, A) {
        return p - t;
    }
};

struct AbsoluteError : OfNumbers {
    template <class A>
    __device__ static A term(A p, A t, A) {
        return p > t ? p - t : t - p;
    }
    template <class A>
    __device__ static A derivative(A p, A t, A) {
        const A error = p - t;
        return error > A(0) ? A(1) : error < A(0) ? A(-1) : error;
    }
};

// Both cases are c (|d| - c / 2) with c = min(|d|, delta).
struct Huber : OfNumbers {
    template <class A>
    __device__ static A term(A p, A t, A delta) {
        const A size = p > t ? p - t : t - p, clipped = Min::join(size, delta);
        return clipped * (size - clipped / 2);
    }
    template <class A>
    __device__ static A derivative(A p, A t, A delta) {
        return Max::join(Min::join(p - t, delta), -delta);
    }
};

struct BinaryCrossEntropy : OfNumbers {
    template <class A>
    __device__ static A term(A z, A t, A) {
        const A size = z > A(0) ? z : -z;
        return Max::join(z, A(0)) - z * t + logarithm_of_1_plus(exponential(-size));
    }
    template <class A>
    __device__ static A derivative(A z, A t, A) {
        return sigmoid_forward(z, A(0)) - t;
    }
};

// Of labels: it has no terms.
struct CrossEntropy {
    static constexpr bool HAS_LABELS = true;
};

// Whether an output is on its target's side.
template <class A>
__device__ inline bool is_on_side(A z, A t) {
    return (z > A(0)) == (t > A(0.5));
}
