// Sixteen bytes at a time: the widest load and store of a thread.
// Addresses are multiples of 16 bytes; a vector is its thread's own.
#pragma once

#include "base/types.cuh"

template <class T>
struct alignas(16) Vec {
    static constexpr int SIZE = 16 / sizeof(T);
    T element[SIZE];
};

template <class T>
__device__ inline Vec<T> load_vec(const T* place) {
    return *reinterpret_cast<const Vec<T>*>(place);
}

template <class T>
__device__ inline void store_vec(T* place, const Vec<T>& value) {
    store_16_bytes(place, *reinterpret_cast<const uint4*>(&value));
}

// Whether vectors can be loaded from here; null counts as aligned.
__device__ inline bool is_aligned(const void* place) {
    return (reinterpret_cast<uint64>(place) & 15) == 0;
}
