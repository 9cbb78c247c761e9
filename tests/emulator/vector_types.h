// The vector types of CUDA that the kernels use, and dim3.
#pragma once

struct uint3 {
    unsigned x, y, z;
};

struct alignas(8) int2 {
    int x, y;
};

struct alignas(8) uint2 {
    unsigned x, y;
};

struct alignas(16) uint4 {
    unsigned x, y, z, w;
};

struct alignas(8) float2 {
    float x, y;
};

struct alignas(16) float4 {
    float x, y, z, w;
};

struct dim3 {
    unsigned x = 1, y = 1, z = 1;
};
