// The optimizers' updates of a parameter in registers, each formula as in backends/numpy/optim.py.
//
// `NAME_rule` changes a parameter and what is remembered of it, by the sum of its gradient, which comes scaled.
// `update_parameter` is that of the define OPTIMIZER: sgd (no slots, or with MOMENTUM a velocity), adam (first
// and second moment) or rmsprop (average of squares, and with MOMENTUM a velocity). DECAYS: whether decay joins
// the gradient.
#pragma once

#include "activation.cuh"
#include "ptx.cuh"

// Without slots there is a place for one, which nobody reads.
constexpr int SLOT_PLACES = SLOTS > 0 ? SLOTS : 1;

// What a step multiplies by; of bias corrections, rate and eps have their share already.
struct alignas(16) StepSettings {
    float rate, eps;
    float kept;  // of a parameter: less than 1 where decay is decoupled from the gradient
    float unused;
};

// What all steps have in common. `decay` times a parameter joins its gradient. `momentum` is a velocity's;
// `of_mean` and `of_square` are the parts that averages of gradients and of their squares keep.
struct RuleSettings {
    float decay, momentum, of_mean, of_square;
};

// An average that takes a number in.
__device__ inline float averaged(float average, float number, float kept) {
    return kept * average + (1 - kept) * number;
}

// The gradient is `sum` times `unscale`, and what decays.
__device__ inline float gradient_of(float w, float sum, float unscale, const RuleSettings& rule) {
    return DECAYS ? sum * unscale + rule.decay * w : sum * unscale;
}

__device__ inline void sgd_rule(float& w, float (&slots)[SLOT_PLACES], float sum, float unscale,
                                const StepSettings& step, const RuleSettings& rule) {
    if (!MOMENTUM) {
        w -= DECAYS ? step.rate * gradient_of(w, sum, unscale, rule) : step.rate * unscale * sum;
        return;
    }
    float g = gradient_of(w, sum, unscale, rule);
    if (RATE_IN_VELOCITY) g *= step.rate;
    slots[0] = rule.momentum * slots[0] + (RATE_IN_VELOCITY ? -g : g);
    if (RATE_IN_VELOCITY) {
        w += NESTEROV ? rule.momentum * slots[0] - g : slots[0];
    } else {
        w -= step.rate * (NESTEROV ? g + rule.momentum * slots[0] : slots[0]);
    }
}

// What the other rules divide.
struct Quotient {
    float numerator, denominator;

    __device__ float value() const { return numerator * reciprocal(denominator); }
};

__device__ inline Quotient adam_quotient(float w, float (&slots)[SLOT_PLACES], float sum, float unscale,
                                         float eps, const RuleSettings& rule) {
    float &mean = slots[0], &square = slots[SLOT_PLACES - 1];
    const float g = gradient_of(w, sum, unscale, rule);
    mean = averaged(mean, g, rule.of_mean);
    square = averaged(square, g * g, rule.of_square);
    return {mean, square_root_near(square) + eps};
}

__device__ inline void adam_take(float& w, float (&)[SLOT_PLACES], float quotient, const StepSettings& step,
                                 const RuleSettings&) {
    w = step.kept * w - step.rate * quotient;
}

__device__ inline void adam_rule(float& w, float (&slots)[SLOT_PLACES], float sum, float unscale,
                                 const StepSettings& step, const RuleSettings& rule) {
    adam_take(w, slots, adam_quotient(w, slots, sum, unscale, step.eps, rule).value(), step, rule);
}

__device__ inline Quotient rmsprop_quotient(float w, float (&slots)[SLOT_PLACES], float sum, float unscale,
                                            float eps, const RuleSettings& rule) {
    const float g = gradient_of(w, sum, unscale, rule);
    slots[0] = averaged(slots[0], g * g, rule.of_square);
    return {g, square_root_near(slots[0]) + eps};
}

__device__ inline void rmsprop_take(float& w, float (&slots)[SLOT_PLACES], float quotient,
                                    const StepSettings& step, const RuleSettings& rule) {
    if (MOMENTUM) quotient = slots[SLOT_PLACES - 1] = rule.momentum * slots[SLOT_PLACES - 1] + quotient;
    w -= step.rate * quotient;
}

__device__ inline void rmsprop_rule(float& w, float (&slots)[SLOT_PLACES], float sum, float unscale,
                                    const StepSettings& step, const RuleSettings& rule) {
    rmsprop_take(w, slots, rmsprop_quotient(w, slots, sum, unscale, step.eps, rule).value(), step, rule);
}

__device__ inline void update_parameter(float& w, float (&slots)[SLOT_PLACES], float sum, float unscale,
                                        const StepSettings& step, const RuleSettings& rule) {
    ACTIVATION_NAME(OPTIMIZER, _rule)(w, slots, sum, unscale, step, rule);
}

#if ADAPTIVE
// Two parameters at once, whose quotients share a reciprocal, as those take a unit that is slower than others: 1 / a is
// b / (a b). A denominator is at least 2^-60 (launch_settings.LEAST_EPS) and at most the root of the largest number, so
// that their product is neither 0 nor infinite.
__device__ inline void update_pair(float (&w)[2], float (&slots)[2][SLOT_PLACES], const float (&sums)[2],
                                   float unscale, const StepSettings& step, const RuleSettings& rule) {
    const auto quotient = ACTIVATION_NAME(OPTIMIZER, _quotient);
    const auto take = ACTIVATION_NAME(OPTIMIZER, _take);
    const Quotient first = quotient(w[0], slots[0], sums[0], unscale, step.eps, rule);
    const Quotient second = quotient(w[1], slots[1], sums[1], unscale, step.eps, rule);
    const float shared = reciprocal(first.denominator * second.denominator);
    take(w[0], slots[0], first.numerator * second.denominator * shared, step, rule);
    take(w[1], slots[1], second.numerator * first.denominator * shared, step, rule);
}
#endif
