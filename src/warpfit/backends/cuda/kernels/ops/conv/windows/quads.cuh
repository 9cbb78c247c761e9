// Sums of wgmma on their way to memory: of a row, each of four lanes has pairs of neighbouring
// numbers. They exchange them, so that each has 16 bytes side by side.
// Values and places of the lanes' own; whole warps call.
#pragma once

#include "base/reduce.cuh"

// Lane q of each four gets word q of all four, in their order.
__device__ inline void transpose_quad(unsigned (&words)[4]) {
    const unsigned lane = threadIdx.x;
#pragma unroll
    for (int step = 1; step < 4; step *= 2) {
        const bool is_upper = lane & step;
#pragma unroll
        for (int pair = 0; pair < 2; ++pair) {
            const int low = step == 1 ? 2 * pair : pair, high = low + step;
            const unsigned given = is_upper ? words[low] : words[high];
            const unsigned taken = __shfl_xor_sync(FULL_WARP, given, step);
            if (is_upper) {
                words[low] = taken;
            } else {
                words[high] = taken;
            }
        }
    }
}

// words[j] of lane q of four are numbers 8 STEP j + 2 q and the next of a row of 16-bit numbers,
// which begins at `to`; without `has_last` the last one is none, and no quad has it.
template <int STEP, class T, int COUNT>
__device__ inline void store_quads(const unsigned (&words)[COUNT], T* to, bool is_inside,
                                   bool has_last = true) {
    const int q = threadIdx.x % 4;
#pragma unroll
    for (int first = 0; first < COUNT / 4 * 4; first += 4) {
        unsigned four[4] = {words[first], words[first + 1], words[first + 2], words[first + 3]};
        transpose_quad(four);
        if (is_inside) {
            store_16_bytes(to + 8 * STEP * (first + q), uint4{four[0], four[1], four[2], four[3]});
        }
    }
#pragma unroll
    for (int j = COUNT / 4 * 4; j < COUNT; ++j) {
        if (is_inside & (has_last | (j + 1 < COUNT))) {
            *reinterpret_cast<unsigned*>(to + 8 * STEP * j + 2 * q) = words[j];
        }
    }
}
