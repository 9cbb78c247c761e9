// The optimizers' updates of one parameter, in two forms; formulas and names are those of the table
// in backends/update_rules.py.
//
// Of parameters in memory, `NAMEStep`, which a define RULE names: `apply` takes a parameter, its
// gradient and its NUM_SLOTS numbers of optimizer state, and changes all but the gradient. Kernels
// hand over six numbers of the update, in the table's order. NEAR_ROOTS: without IEEE division.
//
// Of parameters in registers, without IEEE division, `NAMERule<Options>`: it changes a parameter
// and its optimizer state by the sum of its gradient, which comes scaled. Options are what is
// settled where a kernel is compiled: PLACES (for optimizer state, one at least), HAS_DECAY (which
// joins the gradient), HAS_MOMENTUM, IS_NESTEROV, HAS_RATE_INSIDE (the velocity). parameters.cuh
// has those of kernels of whole runs. IS_LINEAR is as in the table.
#pragma once

#include "base/math.cuh"
#include "base/scalar.cuh"
#include "ops/activation/activation.cuh"
#include "ptx/ptx.cuh"

// -- of parameters in memory -----------------------------------------------------------------

// a / (√b + eps). IEEE division has branches, which a thread takes for one number after the other.
template <class Acc>
__device__ inline Acc over_root(Acc a, Acc b, Acc eps) {
#ifdef NEAR_ROOTS
    return a * reciprocal(square_root_near(b) + eps);
#else
    return a / (square_root(b) + eps);
#endif
}

// What a step has of the six numbers: each as it is, or what it leaves of 1.
template <class Acc>
struct RuleNumbers {
    Scalar numbers[6];

    __device__ RuleNumbers(const Scalar& a, const Scalar& b, const Scalar& c, const Scalar& d,
                           const Scalar& e, const Scalar& f)
        : numbers{a, b, c, d, e, f} {}

    __device__ Acc of(int idx) const { return static_cast<Acc>(read(numbers[idx])); }
    __device__ Acc rest(int idx) const { return static_cast<Acc>(1 - read(numbers[idx])); }
};

// w ← w - lr d, d the gradient, or with momentum the velocity v ← momentum v + g. With
// lr_in_velocity v has -lr in it.
template <class Acc, int NUM_SLOTS>
struct SgdStep : RuleNumbers<Acc> {
    using RuleNumbers<Acc>::RuleNumbers;
    Acc lr = this->of(0), momentum = this->of(1), decay = this->of(2);
    bool nesterov = read(this->numbers[3]) != 0, lr_in_velocity = read(this->numbers[4]) != 0;

    __device__ Acc decayed(Acc w, Acc g) const { return decay != 0 ? g + decay * w : g; }

    __device__ void apply(Acc& w, Acc g, [[maybe_unused]] Acc* slots) const {
        g = decayed(w, g);
        if constexpr (NUM_SLOTS == 0) {
            w -= lr * g;
        } else {
            Acc& v = slots[0];
            if (lr_in_velocity) g *= -lr;
            v = v * momentum + g;
            // A learning rate inside the velocity scales what goes in; outside, what comes out.
            w += (lr_in_velocity ? Acc(1) : -lr) * (nesterov ? momentum * v + g : v);
        }
    }
};

// w ← shrink w - rate m / (√v + eps); the caller puts the bias corrections into rate and eps.
template <class Acc, int NUM_SLOTS>
struct AdamStep : RuleNumbers<Acc> {
    using RuleNumbers<Acc>::RuleNumbers;
    Acc rate = this->of(0), eps = this->of(1), shrink = this->of(2);
    Acc keep1 = this->of(3), take1 = this->rest(3), keep2 = this->of(4), take2 = this->rest(4);
    Acc decay = this->of(5);

    __device__ void apply(Acc& w, Acc g, Acc* slots) const {
        Acc &m = slots[0], &v = slots[1];
        w *= shrink;
        if (decay != 0) g += decay * w;
        m = m * keep1 + g * take1;
        v = v * keep2 + g * g * take2;
        w -= rate * over_root(m, v, eps);
    }
};

// w ← w - lr d, d the gradient over (√s + eps), or with momentum the velocity v ← momentum v +
// that.
template <class Acc, int NUM_SLOTS>
struct RmspropStep : RuleNumbers<Acc> {
    using RuleNumbers<Acc>::RuleNumbers;
    Acc lr = this->of(0), keep = this->of(1), take = this->rest(1), eps = this->of(2);
    Acc decay = this->of(3), momentum = this->of(4);

    __device__ void apply(Acc& w, Acc g, Acc* slots) const {
        Acc& s = slots[0];
        if (decay != 0) g += decay * w;
        s = s * keep + take * g * g;
        Acc direction = over_root(g, s, eps);
        if constexpr (NUM_SLOTS > 1) direction = slots[1] = slots[1] * momentum + direction;
        w -= lr * direction;
    }
};

// -1, 0 or 1, and NaN of NaN.
template <class Acc>
__device__ inline Acc sign_or_nan(Acc x) {
    return x > 0 ? Acc(1) : x < 0 ? Acc(-1) : x;
}

// w ← kept w - rate sign(c), c = beta1 m + (1 - beta1) g; then m ← beta2 m + (1 - beta2) g.
template <class Acc, int NUM_SLOTS>
struct LionStep : RuleNumbers<Acc> {
    using RuleNumbers<Acc>::RuleNumbers;
    Acc rate = this->of(0), kept = this->of(1);
    Acc keep1 = this->of(2), take1 = this->rest(2), keep2 = this->of(3), take2 = this->rest(3);

    __device__ void apply(Acc& w, Acc g, Acc* slots) const {
        Acc& m = slots[0];
        w = w * kept - rate * sign_or_nan(m * keep1 + g * take1);
        m = m * keep2 + g * take2;
    }
};

// w ← w - lr g / (√s + eps), s ← s + g².
template <class Acc, int NUM_SLOTS>
struct AdagradStep : RuleNumbers<Acc> {
    using RuleNumbers<Acc>::RuleNumbers;
    Acc lr = this->of(0), eps = this->of(1), decay = this->of(2);

    __device__ void apply(Acc& w, Acc g, Acc* slots) const {
        Acc& s = slots[0];
        if (decay != 0) g += decay * w;
        s += g * g;
        w -= lr * over_root(g, s, eps);
    }
};

// w ← w - lr d, d = √(u + eps) / √(s + eps) g; s and u are averages of g² and d², s with this
// step's.
template <class Acc, int NUM_SLOTS>
struct AdadeltaStep : RuleNumbers<Acc> {
    using RuleNumbers<Acc>::RuleNumbers;
    Acc lr = this->of(0), keep = this->of(1), take = this->rest(1), eps = this->of(2);
    Acc decay = this->of(3);

    __device__ void apply(Acc& w, Acc g, Acc* slots) const {
        Acc &s = slots[0], &u = slots[1];
        if (decay != 0) g += decay * w;
        s = s * keep + take * g * g;
        const Acc direction = square_root(u + eps) / square_root(s + eps) * g;
        u = u * keep + take * direction * direction;
        w -= lr * direction;
    }
};

// w ← w - rate (g + ahead m) / (√v + eps); the caller puts the bias corrections into the three.
template <class Acc, int NUM_SLOTS>
struct NadamStep : RuleNumbers<Acc> {
    using RuleNumbers<Acc>::RuleNumbers;
    Acc rate = this->of(0), eps = this->of(1), ahead = this->of(2);
    Acc keep1 = this->of(3), take1 = this->rest(3), keep2 = this->of(4), take2 = this->rest(4);
    Acc decay = this->of(5);

    __device__ void apply(Acc& w, Acc g, Acc* slots) const {
        Acc &m = slots[0], &v = slots[1];
        if (decay != 0) g += decay * w;
        m = m * keep1 + g * take1;
        v = v * keep2 + g * g * take2;
        w -= rate * over_root(g + ahead * m, v, eps);
    }
};

// -- of parameters in registers --------------------------------------------------------------

// What a step multiplies by; of bias corrections, rate and eps have their share already.
struct alignas(16) StepSettings {
    float rate, eps;
    float kept;  // of a parameter: less than 1 where decay is decoupled from the gradient
    union {
        float penalty;  // of weights, over the rows: see many_rows.cuh
        float ahead;    // of an average beside the gradient, by NAdam, which has no penalty
    };
};

// What all steps have in common. `decay` times a parameter joins its gradient. `momentum` is a
// velocity's; `of_mean` and `of_square` are the parts that averages of gradients and of their
// squares keep.
struct RuleSettings {
    float decay, momentum, of_mean, of_square;
};

// The gradient is `sum` times `unscale`, and what decays.
template <class Options>
__device__ inline float gradient_of(float w, float sum, float unscale, const RuleSettings& rule) {
    return Options::HAS_DECAY ? sum * unscale + rule.decay * w : sum * unscale;
}

// Linear in the gradient.
template <class Options>
struct SgdRule {
    static constexpr bool IS_LINEAR = true;
    using Slots = float[Options::PLACES];

    __device__ static void update(float& w, Slots& slots, float sum, float unscale,
                                  const StepSettings& step, const RuleSettings& rule) {
        if (!Options::HAS_MOMENTUM) {
            w -= Options::HAS_DECAY ? step.rate * gradient_of<Options>(w, sum, unscale, rule)
                                    : step.rate * unscale * sum;
            return;
        }
        float g = gradient_of<Options>(w, sum, unscale, rule);
        if (Options::HAS_RATE_INSIDE) g *= step.rate;
        slots[0] = rule.momentum * slots[0] + (Options::HAS_RATE_INSIDE ? -g : g);
        if (Options::HAS_RATE_INSIDE) {
            w += Options::IS_NESTEROV ? rule.momentum * slots[0] - g : slots[0];
        } else {
            w -= step.rate * (Options::IS_NESTEROV ? g + rule.momentum * slots[0] : slots[0]);
        }
    }
};

// The other rules have three parts. `fade`, which need not wait for the gradient, is what averages
// keep, rounded, wherever it is found. `quotient` takes the gradient in, and returns what is to be
// divided, mostly by a root. `take` changes the parameter.
struct Quotient {
    float numerator, denominator;
};

template <class Options>
struct AdamRule {
    static constexpr bool IS_LINEAR = false;
    using Slots = float[Options::PLACES];

    __device__ static void fade(Slots& slots, const RuleSettings& rule) {
        slots[0] = __fmul_rn(slots[0], rule.of_mean);
        slots[Options::PLACES - 1] = __fmul_rn(slots[Options::PLACES - 1], rule.of_square);
    }

    __device__ static Quotient quotient(float g, Slots& slots, const StepSettings& step,
                                        const RuleSettings& rule) {
        float &mean = slots[0], &square = slots[Options::PLACES - 1];
        mean += (1 - rule.of_mean) * g;
        square += (1 - rule.of_square) * g * g;
        return {mean, square_root_near(square) + step.eps};
    }

    __device__ static void take(float& w, Slots&, float quotient, const StepSettings& step,
                                const RuleSettings&) {
        w = step.kept * w - step.rate * quotient;
    }
};

template <class Options>
struct RmspropRule {
    static constexpr bool IS_LINEAR = false;
    using Slots = float[Options::PLACES];

    __device__ static void fade(Slots& slots, const RuleSettings& rule) {
        slots[0] = __fmul_rn(slots[0], rule.of_square);
    }

    __device__ static Quotient quotient(float g, Slots& slots, const StepSettings& step,
                                        const RuleSettings& rule) {
        slots[0] += (1 - rule.of_square) * g * g;
        return {g, square_root_near(slots[0]) + step.eps};
    }

    __device__ static void take(float& w, Slots& slots, float quotient, const StepSettings& step,
                                const RuleSettings& rule) {
        float& velocity = slots[Options::PLACES - 1];
        if (Options::HAS_MOMENTUM) quotient = velocity = rule.momentum * velocity + quotient;
        w -= step.rate * quotient;
    }
};

// Its average does not fade ahead: the direction needs it whole.
template <class Options>
struct LionRule {
    static constexpr bool IS_LINEAR = false;
    using Slots = float[Options::PLACES];

    __device__ static void fade(Slots&, const RuleSettings&) {}

    __device__ static Quotient quotient(float g, Slots& slots, const StepSettings&,
                                        const RuleSettings& rule) {
        const float direction = __fmul_rn(slots[0], rule.momentum) + (1 - rule.momentum) * g;
        slots[0] = __fmul_rn(slots[0], rule.of_mean) + (1 - rule.of_mean) * g;
        return {sign_or_nan(direction), 1};
    }

    __device__ static void take(float& w, Slots&, float quotient, const StepSettings& step,
                                const RuleSettings&) {
        w = step.kept * w - step.rate * quotient;
    }
};

// A sum keeps all of itself.
template <class Options>
struct AdagradRule {
    static constexpr bool IS_LINEAR = false;
    using Slots = float[Options::PLACES];

    __device__ static void fade(Slots&, const RuleSettings&) {}

    __device__ static Quotient quotient(float g, Slots& slots, const StepSettings& step,
                                        const RuleSettings&) {
        slots[0] += g * g;
        return {g, square_root_near(slots[0]) + step.eps};
    }

    __device__ static void take(float& w, Slots&, float quotient, const StepSettings& step,
                                const RuleSettings&) {
        w -= step.rate * quotient;
    }
};

// Of its two averages that of steps does not fade ahead: the quotient needs it whole.
template <class Options>
struct AdadeltaRule {
    static constexpr bool IS_LINEAR = false;
    using Slots = float[Options::PLACES];

    __device__ static void fade(Slots& slots, const RuleSettings& rule) {
        slots[0] = __fmul_rn(slots[0], rule.of_square);
    }

    __device__ static Quotient quotient(float g, Slots& slots, const StepSettings& step,
                                        const RuleSettings& rule) {
        slots[0] += (1 - rule.of_square) * g * g;
        const float step_before = square_root_near(slots[Options::PLACES - 1] + step.eps);
        return {step_before * g, square_root_near(slots[0] + step.eps)};
    }

    __device__ static void take(float& w, Slots& slots, float quotient, const StepSettings& step,
                                const RuleSettings& rule) {
        float& square = slots[Options::PLACES - 1];
        square = __fmul_rn(square, rule.of_square) + (1 - rule.of_square) * quotient * quotient;
        w -= step.rate * quotient;
    }
};

template <class Options>
struct NadamRule : AdamRule<Options> {
    __device__ static Quotient quotient(float g, typename AdamRule<Options>::Slots& slots,
                                        const StepSettings& step, const RuleSettings& rule) {
        const Quotient of_adam = AdamRule<Options>::quotient(g, slots, step, rule);
        return {g + step.ahead * of_adam.numerator, of_adam.denominator};
    }
};
