// Weights of float32 in two halves of 16 bits: rounded, as products take them, and what that leaves
// out, the low half. Each word has the halves of two weights.
//
// Of bfloat16 the low half has the lower bits, so that nothing is lost. Of float16 it is a float16
// times 2048: 23 bits of 24 are kept, of numbers from 2^-13 on, and what is smaller to 2^-36.
#pragma once

#include "mma/fragments.cuh"

template <class T>
struct Split;

template <>
struct Split<float16> {
    __device__ static unsigned rounded(float first, float second) {
        return packed<float16>(first, second);
    }
    __device__ static unsigned low_half(float first, float second, unsigned rounded) {
        const float2 near = unpacked<float16>(rounded);
        return packed<float16>((first - near.x) * 2048, (second - near.y) * 2048);
    }
    __device__ static float2 whole(unsigned rounded, unsigned low) {
        const float2 near = unpacked<float16>(rounded), left = unpacked<float16>(low);
        return {near.x + left.x / 2048, near.y + left.y / 2048};
    }
    // The number to write for one that has come to lie in the middle of two float16 numbers, and
    // would be rounded to the other one: its neighbour, which gives the same halves.
    __device__ static float written(float number, float rounded) {
        if (unpacked<float16>(packed<float16>(number, 0)).x == rounded) return number;
        const int away = fabsf(rounded) > fabsf(number) ? 1 : -1;
        return __uint_as_float(__float_as_uint(number) + away);
    }
};

template <>
struct Split<bfloat16> {
    __device__ static unsigned rounded(float first, float second) {
        return (__float_as_uint(first) + 0x8000) >> 16 |
               ((__float_as_uint(second) + 0x8000) & 0xffff0000);
    }
    __device__ static unsigned low_half(float first, float second, unsigned) {
        return (__float_as_uint(first) & 0xffff) | __float_as_uint(second) << 16;
    }
    __device__ static float2 whole(unsigned rounded, unsigned low) {
        const int first = static_cast<int>(low << 16) >> 16, second = static_cast<int>(low) >> 16;
        return {__uint_as_float((rounded << 16) + first),
                __uint_as_float((rounded & 0xffff0000) + second)};
    }
    __device__ static float written(float number, float) { return number; }
};
