// Groups of neighbouring elements: one wide access where they lie aligned, single ones elsewhere.
// A group belongs to the thread that loads it; the caller promises the alignment of wide ones.
#pragma once

#include "base/vec.cuh"

template <class T, int W>
struct alignas(W * sizeof(T) < 16 ? W * sizeof(T) : 16) Group {
    T element[W];
};

// Elements at, ..., at + W - 1 of x; those from `size` on are zero. Where `wide`, x + at is aligned
// to a group.
template <int W, class T>
__device__ inline Group<T, W> load_group(const T* x, int64 at, int64 size, bool wide) {
    if (wide && at + W <= size) return *reinterpret_cast<const Group<T, W>*>(x + at);
    Group<T, W> group;
#pragma unroll
    for (int e = 0; e < W; ++e) group.element[e] = at + e < size ? x[at + e] : T{};
    return group;
}

template <int W, class T>
__device__ inline void store_group(T* x, int64 at, int64 size, bool wide,
                                   const Group<T, W>& group) {
    if (wide && at + W <= size) {
        *reinterpret_cast<Group<T, W>*>(x + at) = group;
        return;
    }
#pragma unroll
    for (int e = 0; e < W; ++e) {
        if (at + e < size) x[at + e] = group.element[e];
    }
}
