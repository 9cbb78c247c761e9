// Number types of the kernels, and conversion between storage and arithmetic.
//
// A kernel is written over a storage type, `using T = DTYPE;` with DTYPE one of float32, float64,
// float16 and bfloat16, and computes in accumulator<T>: float, or double for float64. The half
// types are plain words with no arithmetic of their own, so that nothing is computed in them by
// accident.
#pragma once

#include "ptx/ptx.cuh"

using int8 = signed char;
using uint8 = unsigned char;
using int16 = short;
using uint16 = unsigned short;
using int32 = int;
using uint32 = unsigned int;
using int64 = long long;
using uint64 = unsigned long long;

using float32 = float;
using float64 = double;

struct alignas(2) float16 {
    uint16 bits;
};

struct alignas(2) bfloat16 {
    uint16 bits;
};

template <class T>
__device__ constexpr bool is_float16() {
    return false;
}

template <>
__device__ constexpr bool is_float16<float16>() {
    return true;
}

template <class T>
struct Accumulator {
    using type = float;
};

template <>
struct Accumulator<float64> {
    using type = double;
};

template <class T>
using accumulator = typename Accumulator<T>::type;

// load(x) is the value of x in its arithmetic type. Bytes and integers load as they are.
__device__ inline float load(float32 x) { return x; }
__device__ inline double load(float64 x) { return x; }
__device__ inline float load(float16 x) { return half_to_float(x.bits); }
__device__ inline float load(bfloat16 x) {
    return __uint_as_float(static_cast<uint32>(x.bits) << 16);
}

// store<T>(x) rounds x to T, to the nearest even.
template <class T>
struct Storage {
    template <class A>
    __device__ static T from(A x) {
        return static_cast<T>(x);
    }
};

template <>
struct Storage<float16> {
    template <class A>
    __device__ static float16 from(A x) {
        return float16{float_to_half(static_cast<float>(x))};
    }
};

template <>
struct Storage<bfloat16> {
    template <class A>
    __device__ static bfloat16 from(A x) {
        return bfloat16{float_to_bfloat(static_cast<float>(x))};
    }
};

template <class T, class A>
__device__ inline T store(A x) {
    return Storage<T>::from(x);
}

// The architecture: 90 for sm_90a.
constexpr int GENERATION = __CUDA_ARCH__ / 10;

// Threads that a multiprocessor holds at once (CUDA C++ Programming Guide, technical
// specifications).
constexpr int THREADS_HELD = GENERATION < 80                                             ? 1024
                             : GENERATION == 86 || GENERATION == 89 || GENERATION >= 120 ? 1536
                                                                                         : 2048;

// The block's dynamic shared memory, aligned to SHARED_ALIGNMENT bytes, as an array of `type`.
#ifndef SHARED_ALIGNMENT
#define SHARED_ALIGNMENT 128
#endif
#ifndef DYNAMIC_SHARED
#define DYNAMIC_SHARED(type, name)                \
    extern __shared__ __align__(SHARED_ALIGNMENT) \
    unsigned char dynamic_shared[];               \
    type* name = reinterpret_cast<type*>(dynamic_shared)
#endif
