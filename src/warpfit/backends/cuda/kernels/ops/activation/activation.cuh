// The activation functions and their derivatives, each formula and name as in the table of
// backends/activations.py.
//
// `NAME_forward(z, slope)` is f(z), `NAME_derivative(y, z, slope)` is f'(z) with y = f(z): it reads
// z or y, as EACH_ACTIVATION says, so that only one of the two has to be kept. slope is that of
// leaky_relu. `activate<KIND>` and `activation_derivative<KIND>` are those of an `Activation`. A is
// float or double.
#pragma once

#include "base/math.cuh"
#include "ptx/ptx.cuh"

// Each with what its derivative reads.
#define EACH_ACTIVATION(DO) \
    DO(identity, y)         \
    DO(relu, y)             \
    DO(leaky_relu, y)       \
    DO(tanh, y)             \
    DO(sigmoid, y)          \
    DO(gelu, z)             \
    DO(gelu_tanh, z)        \
    DO(silu, z)             \
    DO(selu, y)             \
    DO(mish, z)

template <class A>
__device__ inline A identity_forward(A z, A) {
    return z;
}

template <class A>
__device__ inline A identity_derivative(A, A, A) {
    return A(1);
}

// Not `z > 0 ? z : 0`: a NaN has to come out as a NaN.
template <class A>
__device__ inline A relu_forward(A z, A) {
    return z < A(0) ? A(0) : z;
}

template <class A>
__device__ inline A relu_derivative(A y, A, A) {
    return y > A(0) ? A(1) : y;
}

template <class A>
__device__ inline A leaky_relu_forward(A z, A slope) {
    return z * (z > A(0) ? A(1) : slope);
}

template <class A>
__device__ inline A leaky_relu_derivative(A y, A, A slope) {
    return y > A(0) ? A(1) : slope;
}

template <class A>
__device__ inline A tanh_forward(A z, A) {
    return hyperbolic_tangent(z);
}

template <class A>
__device__ inline A tanh_derivative(A y, A, A) {
    return A(1) - y * y;
}

// exp is taken of -|z| only, so it cannot overflow.
template <class A>
__device__ inline A sigmoid_forward(A z, A) {
    const A small = exponential(z < A(0) ? z : -z);
    return (z < A(0) ? small : A(1)) / (small + A(1));
}

template <class A>
__device__ inline A sigmoid_derivative(A y, A, A) {
    return (A(1) - y) * y;
}

// The standard normal distribution: what lies below z, and its density there.
template <class A>
struct Normal {
    A below, density;
};

constexpr double PEAK = 0.39894228040143267794;  // 1 / sqrt(2 pi)

__device__ inline Normal<double> normal_at(double z) {
    return {0.5 * erfc(z * -0.70710678118654752440), exp(-0.5 * z * z) * PEAK};
}

// Both by one exponential: below -|z| lies e^(-z^2 / 2) times a polynomial in 1 / (1 + 0.31 |z|),
// within 2e-7, and down to -6 within 2e-6 of itself.
__device__ inline Normal<float> normal_at(float z) {
    const float near = reciprocal(fabsf(z) * 0.31f + 1.0f);
    const float power = power_of_2(z * z * -0.72134752f);
    constexpr float TERMS[] = {0.035722930f, -0.14110932f, 0.15421680f, -0.014126516f,
                               0.10970581f,  0.10789040f,  0.12404191f, 0.12365806f};
    float sum = 0;
#pragma unroll
    for (float term : TERMS) sum = sum * near + term;
    const float tail = sum * near * power;
    return {z < 0 ? tail : 1 - tail, power * static_cast<float>(PEAK)};
}

template <class A>
__device__ inline A gelu_forward(A z, A) {
    return z * normal_at(z).below;
}

template <class A>
__device__ inline A gelu_derivative(A, A z, A) {
    const Normal<A> normal = normal_at(z);
    return normal.below + z * normal.density;
}

constexpr double GELU_TANH_SCALE = 0.79788456080286535588;  // sqrt(2 / pi)
constexpr double GELU_TANH_CUBIC = 0.044715;

template <class A>
__device__ inline A gelu_tanh_inner(A z) {
    return hyperbolic_tangent(A(GELU_TANH_SCALE) * (z + A(GELU_TANH_CUBIC) * z * z * z));
}

template <class A>
__device__ inline A gelu_tanh_forward(A z, A) {
    return z * (A(0.5) * (A(1) + gelu_tanh_inner(z)));
}

template <class A>
__device__ inline A gelu_tanh_derivative(A, A z, A) {
    const A t = gelu_tanh_inner(z);
    const A dt = (A(1) - t * t) * A(GELU_TANH_SCALE) * (A(1) + A(3 * GELU_TANH_CUBIC) * z * z);
    return A(0.5) * (A(1) + t) + A(0.5) * z * dt;
}

template <class A>
__device__ inline A silu_forward(A z, A slope) {
    return z * sigmoid_forward(z, slope);
}

template <class A>
__device__ inline A silu_derivative(A, A z, A slope) {
    const A s = sigmoid_forward(z, slope);
    return s * (A(1) + z * (A(1) - s));
}

constexpr double SELU_ALPHA = 1.6732632423543772848170429916717;
constexpr double SELU_SCALE = 1.0507009873554804934193349852946;

__device__ inline float exponential_less_1(float x) { return expm1f(x); }
__device__ inline double exponential_less_1(double x) { return expm1(x); }

template <class A>
__device__ inline A selu_forward(A z, A) {
    return A(SELU_SCALE) * (z > A(0) ? z : A(SELU_ALPHA) * exponential_less_1(z));
}

template <class A>
__device__ inline A selu_derivative(A y, A, A) {
    return y > A(0) ? A(SELU_SCALE) : y + A(SELU_SCALE * SELU_ALPHA);
}

// tanh(log(1 + exp(z))); exp is taken of -|z| only, so it cannot overflow.
template <class A>
__device__ inline A mish_factor(A z) {
    const A small = exponential(z < A(0) ? z : -z);
    const A n = z < A(0) ? small * (small + A(2)) : A(1) + A(2) * small;
    return n / (n + A(2) * (z < A(0) ? A(1) : small * small));
}

template <class A>
__device__ inline A mish_forward(A z, A) {
    return z * mish_factor(z);
}

template <class A>
__device__ inline A mish_derivative(A, A z, A slope) {
    const A t = mish_factor(z);
    return t + z * (A(1) - t * t) * sigmoid_forward(z, slope);
}

#define ACTIVATION_NUMBER(name, reads) name,
enum class Activation { EACH_ACTIVATION(ACTIVATION_NUMBER) };

#define ACTIVATION_FORWARD(name, reads) \
    if constexpr (KIND == Activation::name) return name##_forward(z, slope);
template <Activation KIND, class A>
__device__ inline A activate(A z, A slope){EACH_ACTIVATION(ACTIVATION_FORWARD)}
#define ACTIVATION_DERIVATIVE(name, reads) \
    if constexpr (KIND == Activation::name) return name##_derivative(y, z, slope);
template <Activation KIND, class A>
__device__ inline A activation_derivative(A y, A z, A slope) {
    EACH_ACTIVATION(ACTIVATION_DERIVATIVE)
}

// f(z) and f'(z).
template <class A>
struct Activated {
    A value, derivative;
};

template <Activation KIND, class A>
__device__ inline Activated<A> activated(A z, A slope) {
    const A y = activate<KIND>(z, slope);
    return {y, activation_derivative<KIND>(y, z, slope)};
}

__device__ constexpr bool needs_input(Activation kind) {
    constexpr bool y = false, z = true;
#define ACTIVATION_READS(name, reads) \
    if (kind == Activation::name) return reads;
    EACH_ACTIVATION(ACTIVATION_READS)
    return z;
}

// f'(z) by y = f(z), of those whose derivative does not need z.
template <Activation KIND, class A>
__device__ inline A derivative_by_value(A y, A slope) {
    static_assert(!needs_input(KIND), "y suffices");
    return activation_derivative<KIND>(y, A(0), slope);
}
