// Fragments of 16-bit matrices in shared memory, as mma.m16n8k16 takes them. Rows lie `stride`
// numbers apart, 8 times an odd number of them, so that the rows that ldmatrix reads at once lie in
// different banks.
//
// A has 16 rows m and 16 columns k; B has 16 rows k and, as a pair of fragments, 16 columns n. Each
// comes row by row, or transposed. `from` is the first number; every lane of the warp calls.
// Columns may also lie in chunks of 8: then `chunk` is the distance of two, and rows 8 numbers
// apart are in different banks as well.
#pragma once

#include "mma/mma.cuh"

// What a lane has of a fragment A, in memory.
struct alignas(16) FragmentWords {
    unsigned words[4];
};

template <class T>
__device__ inline void load_a(unsigned (&a)[4], const T* from, int stride, int chunk = 8) {
    const int lane = threadIdx.x % 32;
    ldmatrix_x4(a[0], a[1], a[2], a[3], from + lane % 16 * stride + lane / 16 * chunk);
}

// Of A stored as (k, m).
template <class T>
__device__ inline void load_a_transposed(unsigned (&a)[4], const T* from, int stride,
                                         int chunk = 8) {
    const int lane = threadIdx.x % 32;
    const int k = lane % 8 + lane / 16 * 8, m = lane / 8 % 2 * chunk;
    ldmatrix_x4_trans(a[0], a[1], a[2], a[3], from + k * stride + m);
}

// Of B stored as (n, k): columns 0 to 7 and 8 to 15.
template <class T>
__device__ inline void load_b_pair(unsigned (&low)[2], unsigned (&high)[2], const T* from,
                                   int stride) {
    const int lane = threadIdx.x % 32;
    const int n = lane % 8 + lane / 16 * 8, k = lane / 8 % 2 * 8;
    ldmatrix_x4(low[0], low[1], high[0], high[1], from + n * stride + k);
}

// Of B stored as (k, n).
template <class T>
__device__ inline void load_b_pair_transposed(unsigned (&low)[2], unsigned (&high)[2],
                                              const T* from, int stride, int chunk = 8) {
    const int lane = threadIdx.x % 32;
    ldmatrix_x4_trans(low[0], low[1], high[0], high[1],
                      from + lane % 16 * stride + lane / 16 * chunk);
}

// Two numbers in a word, the first in the lower half.
template <class T>
__device__ inline unsigned packed(float first, float second) {
    static_assert(sizeof(T) == 2, "words hold two numbers of half precision");
    return is_float16<T>() ? floats_to_halves(first, second) : floats_to_bfloats(first, second);
}

// Both of a word.
template <class T>
__device__ inline float2 unpacked(unsigned word) {
    return {load(T{static_cast<uint16>(word)}), load(T{static_cast<uint16>(word >> 16)})};
}

#if __CUDA_ARCH__ >= 900
// As `packed`, of negative numbers 0.
template <class T>
__device__ inline unsigned relu_packed(float first, float second) {
    return is_float16<T>() ? relu_to_halves(first, second) : relu_to_bfloats(first, second);
}

// All bits where one of both is above that of another word, or not below it; and the larger ones,
// NaN if either is.
template <class T>
__device__ inline unsigned greater(unsigned word, unsigned other) {
    return is_float16<T>() ? greater_halves(word, other) : greater_bfloats(word, other);
}

template <class T>
__device__ inline unsigned at_least(unsigned word, unsigned other) {
    return is_float16<T>() ? at_least_halves(word, other) : at_least_bfloats(word, other);
}

template <class T>
__device__ inline unsigned larger(unsigned word, unsigned other) {
    return is_float16<T>() ? larger_halves(word, other) : larger_bfloats(word, other);
}

// All bits where one of both is above 0.
template <class T>
__device__ inline unsigned positive(unsigned word) {
    return greater<T>(word, 0);
}
#endif
