// Instructions of sm_90 on two 16-bit numbers in a word: the rectifier, comparisons, the larger
// one.
//
// Reference: PTX ISA, as in ptx.cuh, whose part this is.
#pragma once

// cvt.rn.relu (9.7.9.21): as floats_to_halves and floats_to_bfloats, of negative numbers 0.
DEFINE_WORD_OF_FLOATS(relu_to_halves, "cvt.rn.relu.f16x2.f32")
DEFINE_WORD_OF_FLOATS(relu_to_bfloats, "cvt.rn.relu.bf16x2.f32")

// fma.rn.relu.f16x2 (9.7.4.4): of each half of two words the sum, rounded, of negative ones 0.
__device__ inline unsigned relu_of_sums(unsigned first, unsigned second) {
    constexpr unsigned ONES = 0x3c003c00;
    unsigned word;
    asm("fma.rn.relu.f16x2 %0, %1, %2, %3;" : "=r"(word) : "r"(first), "r"(ONES), "r"(second));
    return word;
}

#define DEFINE_WORD_OF_WORDS(NAME, INSTRUCTION)                                \
    __device__ inline unsigned NAME(unsigned word, unsigned other) {           \
        unsigned found;                                                        \
        asm(INSTRUCTION " %0, %1, %2;" : "=r"(found) : "r"(word), "r"(other)); \
        return found;                                                          \
    }

// set.gt, set.ge (9.7.7.1): of each half of a word all bits, where the number there is above that
// of the other word, or not below, else none.
DEFINE_WORD_OF_WORDS(greater_halves, "set.gt.u32.f16x2")
DEFINE_WORD_OF_WORDS(greater_bfloats, "set.gt.u32.bf16x2")
DEFINE_WORD_OF_WORDS(at_least_halves, "set.ge.u32.f16x2")
DEFINE_WORD_OF_WORDS(at_least_bfloats, "set.ge.u32.bf16x2")

// max.NaN (9.7.4.9): the larger number of each half, NaN if either is.
DEFINE_WORD_OF_WORDS(larger_halves, "max.NaN.f16x2")
DEFINE_WORD_OF_WORDS(larger_bfloats, "max.NaN.bf16x2")
