// What is known of a parameter before its gradient is.
#pragma once

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
