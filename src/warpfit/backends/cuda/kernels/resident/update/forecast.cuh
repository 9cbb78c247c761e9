// What is known of a parameter before its gradient is.
// Values only: three factors, the same for all parameters of a step. Only SGD is linear in the
// gradient, so that a product with a forecast can be corrected when that is there.
#pragma once

#include "resident/update/parameters.cuh"

// What a parameter is after a step of SGD, of its weight, velocity and gradient before it.
struct Forecast {
    float of_weight, of_velocity, of_gradient;

    __device__ Forecast times(float factor) const {
        return {of_weight * factor, of_velocity * factor, of_gradient * factor};
    }
    __device__ float value(float weight, float velocity) const {
        return of_weight * weight + (MOMENTUM ? of_velocity * velocity : 0);
    }
};

// Gradients come times -rate already if there is no momentum.
__device__ inline Forecast forecast_of(float rate, const RuleSettings& rule) {
    if (!MOMENTUM) return {1 - rate * rule.decay, 0, 1};
    const float kept = rule.momentum, more = NESTEROV ? 1 + kept : 1;
    return {1 - rate * rule.decay * more, -rate * kept * (NESTEROV ? kept : 1), -rate * more};
}
