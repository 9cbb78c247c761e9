// What the scheduler's library does for warps that multiply matrices: it is optimized, as kernels
// are not, and compiled once. Part of ptx_twins.h, which says what the functions do.
#pragma once

#include "fibers.h"

float half_to_float(unsigned short bits);
unsigned short float_to_half(float value);

namespace emulator {

extern const NumberType f16_numbers, bf16_numbers, tf32_numbers;

template <bool TRANSPOSED>
void load_matrix(const char* name, unsigned* const (&registers)[4], const void* row, Site site);

template <bool TRANSPOSED>
void store_matrix(const char* name, void* row, const unsigned (&words)[4], Site site);

struct F16;
struct Bf16;
struct Tf32;

template <class Type, int K>
void multiply(const char* name, float* d, const unsigned* a, const unsigned* b, Site site);

}  // namespace emulator
