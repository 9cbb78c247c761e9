// Conversion between any two element types. A byte that becomes a float means byte / 255.
// Values only: it knows no memory. Rounds to nearest, as NumPy does.
#pragma once

#include "base/types.cuh"

template <class T>
struct IsFloat {
    static constexpr bool value = false;
};
template <>
struct IsFloat<float32> {
    static constexpr bool value = true;
};
template <>
struct IsFloat<float64> {
    static constexpr bool value = true;
};
template <>
struct IsFloat<float16> {
    static constexpr bool value = true;
};
template <>
struct IsFloat<bfloat16> {
    static constexpr bool value = true;
};

__device__ inline int64 load(int64 x) { return x; }
__device__ inline uint64 load(uint64 x) { return x; }
__device__ inline int load(int x) { return x; }
__device__ inline uint32 load(uint32 x) { return x; }
__device__ inline int load(int16 x) { return x; }
__device__ inline int load(uint16 x) { return x; }
__device__ inline int load(int8 x) { return x; }
__device__ inline int load(uint8 x) { return x; }
__device__ inline bool load(bool x) { return x; }

template <class To, class From, bool IS_PIXEL>
struct Conversion {
    __device__ static To apply(From x) { return store<To>(load(x)); }
};

template <class To, class From>
struct Conversion<To, From, true> {
    __device__ static To apply(From x) {
        using Acc = accumulator<To>;
        return store<To>(static_cast<Acc>(x) / Acc(255));
    }
};

template <class T>
struct IsByte {
    static constexpr bool value = false;
};
template <>
struct IsByte<uint8> {
    static constexpr bool value = true;
};

template <class To, class From>
__device__ inline To convert(From x) {
    return Conversion < To, From, IsByte<From>::value && IsFloat<To>::value > ::apply(x);
}
