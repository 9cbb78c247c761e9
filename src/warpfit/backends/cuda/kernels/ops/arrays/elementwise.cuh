// The elementwise functions and comparisons, as NumPy's: NAME_of(x) or NAME_of(a, b) over A = float
// or double.
//
// FUNCTION_OF is the one that the define FUNCTION names.
#pragma once

#include "base/math.cuh"
#include "base/reduce.cuh"
#include "base/types.cuh"

#define FUNCTION_JOIN(name) name##_of
#define FUNCTION_NAME(name) FUNCTION_JOIN(name)
#define FUNCTION_OF FUNCTION_NAME(FUNCTION)

__device__ inline float abs_of(float x) { return fabsf(x); }
__device__ inline double abs_of(double x) { return fabs(x); }
__device__ inline float sin_of(float x) { return sinf(x); }
__device__ inline double sin_of(double x) { return sin(x); }
__device__ inline float cos_of(float x) { return cosf(x); }
__device__ inline double cos_of(double x) { return cos(x); }
__device__ inline float pow_of(float a, float b) { return powf(a, b); }
__device__ inline double pow_of(double a, double b) { return pow(a, b); }

template <class A>
__device__ inline A exp_of(A x) {
    return exponential(x);
}

template <class A>
__device__ inline A log_of(A x) {
    return logarithm(x);
}

template <class A>
__device__ inline A sqrt_of(A x) {
    return square_root(x);
}

template <class A>
__device__ inline A neg_of(A x) {
    return -x;
}

template <class A>
__device__ inline A square_of(A x) {
    return x * x;
}

template <class A>
__device__ inline A reciprocal_of(A x) {
    return A(1) / x;
}

// A NaN has none of the signs, and stays.
template <class A>
__device__ inline A sign_of(A x) {
    return x > A(0) ? A(1) : x < A(0) ? A(-1) : x == A(0) ? A(0) : x;
}

template <class A>
__device__ inline A add_of(A a, A b) {
    return a + b;
}

template <class A>
__device__ inline A sub_of(A a, A b) {
    return a - b;
}

template <class A>
__device__ inline A mul_of(A a, A b) {
    return a * b;
}

template <class A>
__device__ inline A div_of(A a, A b) {
    return a / b;
}

template <class A>
__device__ inline A maximum_of(A a, A b) {
    return Max::join(a, b);
}

template <class A>
__device__ inline A minimum_of(A a, A b) {
    return Min::join(a, b);
}

template <class A>
__device__ inline bool eq_of(A a, A b) {
    return a == b;
}

template <class A>
__device__ inline bool lt_of(A a, A b) {
    return a < b;
}

template <class A>
__device__ inline bool gt_of(A a, A b) {
    return a > b;
}

template <class A>
__device__ inline bool le_of(A a, A b) {
    return a <= b;
}

template <class A>
__device__ inline bool ge_of(A a, A b) {
    return a >= b;
}

// What a function's value is stored as: bool, or the operands' type.
template <class Value, class T>
struct Stored {
    using type = T;
    __device__ static T of(Value value) { return store<T>(value); }
};

template <class T>
struct Stored<bool, T> {
    using type = bool;
    __device__ static bool of(bool value) { return value; }
};
