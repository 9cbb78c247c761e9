// Updates of parameters by the rule of the optimizer that a kernel's settings name. Values only: a
// parameter and its optimizer state are the caller's, in registers or wherever it has them.
#pragma once

#include "ops/optim/update_rules.cuh"

// Without slots there is a place for one, which is not read.
constexpr int SLOT_PLACES = SLOTS > 0 ? SLOTS : 1;

struct RuleOptions {
    static constexpr int PLACES = SLOT_PLACES;
    static constexpr bool HAS_DECAY = DECAYS, HAS_MOMENTUM = MOMENTUM, IS_NESTEROV = NESTEROV,
                          HAS_RATE_INSIDE = RATE_IN_VELOCITY;
};
using OwnRule = OPTIMIZER<RuleOptions>;
static_assert(OwnRule::IS_LINEAR == !ADAPTIVE, "as the host has it");

// What the optimizer state keeps; then an update takes the gradient in.
template <class Rule = OwnRule>
__device__ inline void fade_slots(float (&slots)[SLOT_PLACES], const RuleSettings& rule) {
    if constexpr (!Rule::IS_LINEAR) Rule::fade(slots, rule);
}

template <class Rule = OwnRule>
__device__ inline Quotient take_gradient(float w, float (&slots)[SLOT_PLACES], float sum,
                                         float unscale, const StepSettings& step,
                                         const RuleSettings& rule) {
    return Rule::quotient(gradient_of<RuleOptions>(w, sum, unscale, rule), slots, step, rule);
}

template <class Rule = OwnRule>
__device__ inline void update_parameter(float& w, float (&slots)[SLOT_PLACES], float sum,
                                        float unscale, const StepSettings& step,
                                        const RuleSettings& rule) {
    if constexpr (Rule::IS_LINEAR) {
        Rule::update(w, slots, sum, unscale, step, rule);
    } else {
        fade_slots(slots, rule);
        const Quotient q = take_gradient(w, slots, sum, unscale, step, rule);
        Rule::take(w, slots, q.numerator * reciprocal(q.denominator), step, rule);
    }
}

// Two parameters at once, whose slots have faded. Their quotients share a reciprocal, as 1 / a is b
// / (a b): those, like roots, come from a unit that gives 16 a cycle. A denominator is at least
// 2^-60 (launch_settings.LEAST_EPS) and at most the root of the largest number, so that a b is
// neither 0 nor infinite.
template <class Rule = OwnRule>
__device__ inline void update_pair(float (&w)[2], float (&slots)[2][SLOT_PLACES],
                                   const float (&sums)[2], float unscale, const StepSettings& step,
                                   const RuleSettings& rule) {
    if constexpr (!Rule::IS_LINEAR) {
        const Quotient a = take_gradient(w[0], slots[0], sums[0], unscale, step, rule);
        const Quotient b = take_gradient(w[1], slots[1], sums[1], unscale, step, rule);
        const float of_both = reciprocal(a.denominator * b.denominator);
        Rule::take(w[0], slots[0], a.numerator * b.denominator * of_both, step, rule);
        Rule::take(w[1], slots[1], b.numerator * a.denominator * of_both, step, rule);
    }
}

// A number with the one that follows it, for the above.
template <class Number>
__device__ inline Number (&pair_of(Number& first))[2] {
    return reinterpret_cast<Number(&)[2]>(first);
}

// Of a parameter whose slots lie anywhere: slot(i) is the i-th.
template <class Slot>
__device__ inline void update_in_place(float& w, Slot slot, float sum, float unscale,
                                       const StepSettings& step, const RuleSettings& rule) {
    float slots[SLOT_PLACES];
#pragma unroll
    for (int i = 0; i < SLOTS; ++i) slots[i] = slot(i);
    update_parameter(w, slots, sum, unscale, step, rule);
#pragma unroll
    for (int i = 0; i < SLOTS; ++i) slot(i) = slots[i];
}
