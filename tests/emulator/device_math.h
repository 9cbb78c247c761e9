// CUDA's arithmetic that <cmath> lacks, as far as the kernels use it: bit casts, rounded
// operations, min and max.
//
// The fast approximations (__expf, __fdividef, ...) are missing on purpose.
#pragma once

// The C library's own header: that of C++ takes longer to read than most kernels to compile.
#define _GLIBCXX_INCLUDE_NEXT_C_HEADERS
#include <math.h>
#undef _GLIBCXX_INCLUDE_NEXT_C_HEADERS

#include <type_traits>

#include "fibers.h"

// Written out: kernels call them more often than anything else, and are not optimized.
inline unsigned __float_as_uint(float x) {
    unsigned bits;
    __builtin_memcpy(&bits, &x, sizeof bits);
    return bits;
}
inline float __uint_as_float(unsigned x) {
    float number;
    __builtin_memcpy(&number, &x, sizeof number);
    return number;
}
inline float __int_as_float(int x) { return __uint_as_float(static_cast<unsigned>(x)); }
inline long long __double_as_longlong(double x) {
    long long bits;
    __builtin_memcpy(&bits, &x, sizeof bits);
    return bits;
}
// Four bytes of both words, a digit of `choice` for each.
inline unsigned __byte_perm(unsigned x, unsigned y, unsigned choice) {
    const unsigned long long bytes = static_cast<unsigned long long>(y) << 32 | x;
    unsigned word = 0;
    for (int i = 0; i < 4; ++i)
        word |= static_cast<unsigned>(bytes >> (choice >> 4 * i & 7) * 8 & 0xff) << 8 * i;
    return word;
}
inline double __dadd_rn(double a, double b) { return a + b; }
inline double __dmul_rn(double a, double b) { return a * b; }
inline float __fmul_rn(float a, float b) { return a * b; }

// min and max of two numbers of any types; of floating-point numbers the one that is not NaN.
template <class A, class B>
typename std::common_type<A, B>::type min(A a, B b) {
    using C = typename std::common_type<A, B>::type;
    const C x = static_cast<C>(a), y = static_cast<C>(b);
    if constexpr (std::is_floating_point<C>::value) return __builtin_fmin(x, y);
    return y < x ? y : x;
}

template <class A, class B>
typename std::common_type<A, B>::type max(A a, B b) {
    using C = typename std::common_type<A, B>::type;
    const C x = static_cast<C>(a), y = static_cast<C>(b);
    if constexpr (std::is_floating_point<C>::value) return __builtin_fmax(x, y);
    return x < y ? y : x;
}

// A cache hint is a plain load.
template <class T>
T __ldcg(const T* address) {
    return *address;
}

// Of angles over π.
inline float cospif(float x) { return static_cast<float>(cos(M_PI * static_cast<double>(x))); }
inline float sinpif(float x) { return static_cast<float>(sin(M_PI * static_cast<double>(x))); }
