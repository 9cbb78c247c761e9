// The optimizers' updates of one parameter, each formula as in backends/numpy/optim.py: `apply` takes
// a parameter, its gradient and its SLOTS numbers of optimizer state, and changes all but the
// gradient. The define RULE names one of the structs. Kernels hand over six numbers of the update, of
// which a rule reads those that it names. Kernels that keep parameters in registers have rules of
// their own, in resident/update/update_rules.cuh, which do without IEEE division.
//
// Users: linear_update_sm90.cu, narrow_update.cu, update_parameters.cu.
#pragma once

#include "base/math.cuh"
#include "base/scalar.cuh"

// w ← w - lr d, d the gradient, or with momentum the velocity v ← momentum v + g; with lr_in_velocity v has -lr in it.
template <class Acc>
struct SgdStep {
    Acc lr, momentum, decay;
    bool nesterov, lr_in_velocity;

    __device__ SgdStep(const Scalar& rate, const Scalar& keep, const Scalar& weight_decay,
                       const Scalar& is_nesterov, const Scalar& is_lr_in_velocity, const Scalar&)
        : lr(static_cast<Acc>(read(rate))),
          momentum(static_cast<Acc>(read(keep))),
          decay(static_cast<Acc>(read(weight_decay))),
          nesterov(read(is_nesterov) != 0),
          lr_in_velocity(read(is_lr_in_velocity) != 0) {}

    __device__ Acc decayed(Acc w, Acc g) const { return decay != 0 ? g + decay * w : g; }

    __device__ void apply(Acc& w, Acc g, [[maybe_unused]] Acc* slots) const {
        g = decayed(w, g);
        if constexpr (SLOTS == 0) {
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
template <class Acc>
struct AdamStep {
    Acc rate, eps, shrink, keep1, take1, keep2, take2, decay;

    __device__ AdamStep(const Scalar& corrected_rate, const Scalar& corrected_eps, const Scalar& left,
                        const Scalar& beta1, const Scalar& beta2, const Scalar& weight_decay)
        : rate(static_cast<Acc>(read(corrected_rate))),
          eps(static_cast<Acc>(read(corrected_eps))),
          shrink(static_cast<Acc>(read(left))),
          keep1(static_cast<Acc>(read(beta1))),
          take1(static_cast<Acc>(1 - read(beta1))),
          keep2(static_cast<Acc>(read(beta2))),
          take2(static_cast<Acc>(1 - read(beta2))),
          decay(static_cast<Acc>(read(weight_decay))) {}

    __device__ void apply(Acc& w, Acc g, Acc* slots) const {
        Acc &m = slots[0], &v = slots[1];
        w *= shrink;
        if (decay != 0) g += decay * w;
        m = m * keep1 + g * take1;
        v = v * keep2 + g * g * take2;
        w -= rate * (m / (square_root(v) + eps));
    }
};

// w ← w - lr d, d the gradient over (√s + eps), or with momentum the velocity v ← momentum v + that.
template <class Acc>
struct RmspropStep {
    Acc lr, keep, take, eps, decay, momentum;

    __device__ RmspropStep(const Scalar& rate, const Scalar& alpha, const Scalar& smallest,
                           const Scalar& weight_decay, const Scalar& inertia, const Scalar&)
        : lr(static_cast<Acc>(read(rate))),
          keep(static_cast<Acc>(read(alpha))),
          take(static_cast<Acc>(1 - read(alpha))),
          eps(static_cast<Acc>(read(smallest))),
          decay(static_cast<Acc>(read(weight_decay))),
          momentum(static_cast<Acc>(read(inertia))) {}

    __device__ void apply(Acc& w, Acc g, Acc* slots) const {
        Acc& s = slots[0];
        if (decay != 0) g += decay * w;
        s = s * keep + take * g * g;
        Acc direction = g / (square_root(s) + eps);
        if constexpr (SLOTS > 1) direction = slots[1] = slots[1] * momentum + direction;
        w -= lr * direction;
    }
};
