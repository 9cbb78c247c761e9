// Sizes that follow from others, found where a kernel is compiled: multiples of a unit, and the
// larger and the smaller of two. Values only.
#pragma once

__device__ constexpr int up(int size, int unit) { return (size + unit - 1) / unit * unit; }
__device__ constexpr int larger(int a, int b) { return a > b ? a : b; }
__device__ constexpr int smaller(int a, int b) { return a < b ? a : b; }
