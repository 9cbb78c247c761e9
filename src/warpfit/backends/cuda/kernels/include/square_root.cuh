// The square root in the arithmetic type of its argument.
#pragma once

__device__ inline float square_root(float x) { return sqrtf(x); }
__device__ inline double square_root(double x) { return sqrt(x); }
