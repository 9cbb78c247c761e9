// Instructions of sm_90 on two 16-bit numbers in a word: the rectifier, comparisons, the larger one.
//
// Reference: PTX ISA, as in ptx.cuh, whose part this is.
//
// Users: ptx.cuh.
#pragma once

// cvt.rn.relu (9.7.9.21): as floats_to_halves and floats_to_bfloats, of negative numbers 0.
__device__ inline unsigned relu_to_halves(float first, float second) {
    unsigned word;
    asm("cvt.rn.relu.f16x2.f32 %0, %1, %2;" : "=r"(word) : "f"(second), "f"(first));
    return word;
}

__device__ inline unsigned relu_to_bfloats(float first, float second) {
    unsigned word;
    asm("cvt.rn.relu.bf16x2.f32 %0, %1, %2;" : "=r"(word) : "f"(second), "f"(first));
    return word;
}

// fma.rn.relu.f16x2 (9.7.4.4): of each half of two words the sum, rounded, of negative ones 0.
__device__ inline unsigned relu_of_sums(unsigned first, unsigned second) {
    constexpr unsigned ONES = 0x3c003c00;
    unsigned word;
    asm("fma.rn.relu.f16x2 %0, %1, %2, %3;" : "=r"(word) : "r"(first), "r"(ONES), "r"(second));
    return word;
}

// set.gt, set.ge (9.7.7.1): of each half of a word all bits, where the number there is above that of
// the other word, or not below, else none.
__device__ inline unsigned greater_halves(unsigned word, unsigned other) {
    unsigned mask;
    asm("set.gt.u32.f16x2 %0, %1, %2;" : "=r"(mask) : "r"(word), "r"(other));
    return mask;
}

__device__ inline unsigned greater_bfloats(unsigned word, unsigned other) {
    unsigned mask;
    asm("set.gt.u32.bf16x2 %0, %1, %2;" : "=r"(mask) : "r"(word), "r"(other));
    return mask;
}

__device__ inline unsigned at_least_halves(unsigned word, unsigned other) {
    unsigned mask;
    asm("set.ge.u32.f16x2 %0, %1, %2;" : "=r"(mask) : "r"(word), "r"(other));
    return mask;
}

__device__ inline unsigned at_least_bfloats(unsigned word, unsigned other) {
    unsigned mask;
    asm("set.ge.u32.bf16x2 %0, %1, %2;" : "=r"(mask) : "r"(word), "r"(other));
    return mask;
}

// max.NaN (9.7.4.9): the larger number of each half, NaN if either is.
__device__ inline unsigned larger_halves(unsigned word, unsigned other) {
    unsigned larger;
    asm("max.NaN.f16x2 %0, %1, %2;" : "=r"(larger) : "r"(word), "r"(other));
    return larger;
}

__device__ inline unsigned larger_bfloats(unsigned word, unsigned other) {
    unsigned larger;
    asm("max.NaN.bf16x2 %0, %1, %2;" : "=r"(larger) : "r"(word), "r"(other));
    return larger;
}
