// Functions of <math.h> under one name for float and double.
// Values only: overloads that CUDA has by other names, with its accuracy.
#pragma once

__device__ inline float square_root(float x) { return sqrtf(x); }
__device__ inline double square_root(double x) { return sqrt(x); }
__device__ inline float exponential(float x) { return expf(x); }
__device__ inline double exponential(double x) { return exp(x); }
__device__ inline float logarithm(float x) { return logf(x); }
__device__ inline double logarithm(double x) { return log(x); }
__device__ inline float logarithm_of_1_plus(float x) { return log1pf(x); }
__device__ inline double logarithm_of_1_plus(double x) { return log1p(x); }
__device__ inline float hyperbolic_tangent(float x) { return tanhf(x); }
__device__ inline double hyperbolic_tangent(double x) { return tanh(x); }

// Of a type that it converts to without a change.
__device__ inline float infinity() { return __int_as_float(0x7f800000); }
