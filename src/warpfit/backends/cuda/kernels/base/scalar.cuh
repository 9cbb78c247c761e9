// A number that is given at launch, or lies on the device, where a captured launch finds that of
// its own step.
// Two words by value: a place on the device or null, and the number otherwise.
#pragma once

struct Scalar {
    const double* place;  // null: the value counts
    double value;
};

__device__ inline double read(const Scalar& scalar) {
    return scalar.place ? *scalar.place : scalar.value;
}
