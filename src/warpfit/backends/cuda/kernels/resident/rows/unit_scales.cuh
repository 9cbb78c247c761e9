// What products of one_launch_layers.cu take of float32, whose range 16 bits have not. A block's
// units or gradients of a layer are numbers times a power of two, which their largest decides; all
// come with its exponent, chunk by chunk. They stay in float32 until the block's threads have met
// and know it.
//
// A product sums up w 2^e v: the exponents e of rows v join the weights w where those are rounded,
// and what a whole product has in common, the sums. Of a gradient, each tile's has one of its own.
// What a warp's weights have in common is known from their last update. Numbers below 2^-126 times
// what 16 bits hold count as 0.
//
// Without SCALES nothing of this is there. Whole blocks call; `largest` is theirs between two of
// their barriers, `of_weights` each warp's.
// Users: one_launch_layers.cu.
#pragma once

#include "resident/layout/layer_shapes.cuh"

// 2^exponent, 0 below the range; of at most 127, or of 128 for infinity.
__device__ inline float power(int exponent) {
    return __int_as_float((max(exponent, -127) + 127) << 23);
}

// That of a product, whose exponent may be any: beyond the range infinite.
__device__ inline float power_of_product(int exponent) { return power(min(exponent, 128)); }

// By which power of two numbers are divided whose largest magnitude this is, for 16 bits. Its
// reciprocal is in the range, too.
__device__ inline int exponent_of(float largest) {
    if (largest == 0) return NO_UNITS;
    return max(static_cast<int>(__float_as_uint(largest) >> 23) - 127 - TOP_EXPONENT, -127);
}

// By which one a warp's weights are multiplied: it is in the range itself.
__device__ inline int exponent_for_weights(float largest) {
    return smaller(-exponent_of(fmaxf(largest, power(-112))), 126);
}

// Of a lane's numbers; magnitudes order as the integers that have their bits, among which NaN is
// the largest.
__device__ inline void take_largest(float& largest, const float2& pair) {
    const auto bits = [](float number) { return __float_as_uint(number) & 0x7fffffffu; };
    largest = __uint_as_float(max(__float_as_uint(largest), max(bits(pair.x), bits(pair.y))));
}

__device__ inline float largest_of_warp(float own) {
    return __uint_as_float(largest_of_lanes(__float_as_uint(own)));
}

// The exponent of all that a block's threads have, each of which says what its own largest is. The
// block meets.
__device__ inline int common_exponent(LayersShared& shared, float own) {
    UnitScales& scales = part_of<UnitScales>(shared);
    const float of_warp = largest_of_warp(own);
    if (threadIdx.x % 32 == 0) scales.largest[threadIdx.x / 32] = of_warp;
    __syncthreads();
    unsigned largest = 0;
#pragma unroll
    for (int warp = 0; warp < WARPS; warp += 4) {
        const uint4 four = *reinterpret_cast<const uint4*>(&scales.largest[warp]);
        largest = max(largest, max(max(four.x, four.y), max(four.z, four.w)));
    }
    return exponent_of(__uint_as_float(largest));
}

// That of a block's chunks, which their rows now have.
__device__ inline void set_exponents(int2* exponents, int count, int exponent) {
#pragma unroll 1
    for (int chunk = threadIdx.x; chunk < count; chunk += 32 * WARPS)
        exponents[chunk] = {exponent, exponent};
}
