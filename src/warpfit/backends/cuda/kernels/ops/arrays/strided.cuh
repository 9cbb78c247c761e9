// Where the elements of a strided array lie: shape and strides by value, the offset of an element
// by its number, and runs of neighbours that move as one.
// Values only: strides count elements, and rank is at most what the struct has room for.
#pragma once

#include "base/types.cuh"

constexpr int MAX_AXES = 8;

// Strides count elements; an array that is broadcast along an axis has stride 0 there. Python packs
// the same bytes, with neighbouring axes joined where one continues the other: a contiguous array
// has one axis.
struct Layout {
    int64 ndim;
    int64 shape[MAX_AXES];
    int64 strides[MAX_AXES];
};

// Offset of the element that is number `index` in row-major order.
__device__ inline int64 offset_of(const Layout& layout, int64 index) {
    int64 offset = 0;
    // Divisions in 32 bits are several times quicker, and most arrays are small enough.
    if (index <= 0x7fffffff) {
        uint32 rest = static_cast<uint32>(index);
#pragma unroll 1
        for (int axis = static_cast<int>(layout.ndim) - 1; axis > 0; --axis) {
            // A size beyond 32 bits is larger than any rest, as 2^31 is.
            const int64 whole = layout.shape[axis];
            const uint32 size = whole > 0x7fffffff ? 0x80000000u : static_cast<uint32>(whole);
            offset += static_cast<int64>(rest % size) * layout.strides[axis];
            rest /= size;
        }
        return layout.ndim ? offset + static_cast<int64>(rest) * layout.strides[0] : 0;
    }
#pragma unroll 1
    for (int axis = static_cast<int>(layout.ndim) - 1; axis >= 0; --axis) {
        offset += (index % layout.shape[axis]) * layout.strides[axis];
        index /= layout.shape[axis];
    }
    return offset;
}

// Distance of neighbours along the last axis.
__device__ inline int64 inner_stride(const Layout& layout) {
    return layout.ndim ? layout.strides[layout.ndim - 1] : 0;
}

// COUNT neighbours that are loaded and stored as one.
template <class T, int COUNT>
struct alignas(sizeof(T) * COUNT) Run {
    T element[COUNT];
};

template <int COUNT, class T>
__device__ inline bool starts_run(const T* place) {
    return reinterpret_cast<uint64>(place) % (sizeof(T) * COUNT) == 0;
}

template <int COUNT, class T>
__device__ inline void store_run(T* to, const Run<T, COUNT>& run) {
    *reinterpret_cast<Run<T, COUNT>*>(to) = run;
}

// A block's share of n elements: every thread takes RUNS runs of COUNT.
template <int COUNT>
struct Tile {
    static constexpr int THREADS = 256;
    static constexpr int RUNS = 2;
    static constexpr int SIZE = THREADS * RUNS * COUNT;

    int64 begin, end;

    __device__ explicit Tile(int64 n)
        : begin(static_cast<int64>(blockIdx.x) * SIZE), end(begin + SIZE) {
        if (end > n) end = n;
    }

    __device__ bool is_whole() const { return end - begin == SIZE; }

    // Number of the first element of this thread's run k.
    __device__ int64 run(int k) const {
        return begin + (k * THREADS + static_cast<int>(threadIdx.x)) * COUNT;
    }
};

// An array that a kernel reads in runs of COUNT elements whose numbers begin at multiples of COUNT;
// or, with x = null, one number in place of all elements.
template <class T, int COUNT>
struct Operand {
    const T* x;
    const Layout& layout;
    T number;
    int64 stride;
    bool has_runs;      // whether no run crosses from one row to the next
    bool is_in_memory;  // whether every run lies in sequence, and aligned
    bool is_flat;       // whether, moreover, all runs do

    __device__ Operand(const T* x, const Layout& layout, T number = T())
        : x(x), layout(layout), number(number), stride(inner_stride(layout)) {
        const int last = static_cast<int>(layout.ndim) - 1;
        int64 steps = 0;
        for (int axis = 0; axis < last; ++axis) steps |= layout.strides[axis];
        has_runs = last < 1 || layout.shape[last] % COUNT == 0;
        is_in_memory = x && stride == 1 && steps % COUNT == 0 && starts_run<COUNT>(x);
        is_flat = is_in_memory && last < 1;
    }

    __device__ T at(int64 index) const { return x ? x[offset_of(layout, index)] : number; }

    __device__ Run<T, COUNT> run_at(int64 index) const {
        Run<T, COUNT> run;
        if (x == nullptr) {
#pragma unroll
            for (int j = 0; j < COUNT; ++j) run.element[j] = number;
            return run;
        }
        const T* from = x + offset_of(layout, index);
        if (is_in_memory) return *reinterpret_cast<const Run<T, COUNT>*>(from);
#pragma unroll
        for (int j = 0; j < COUNT; ++j) run.element[j] = from[j * stride];
        return run;
    }

    // This thread's runs of a tile. Where they are flat, nothing stands between their loads.
    __device__ void load(const Tile<COUNT>& tile, Run<T, COUNT> (&runs)[Tile<COUNT>::RUNS]) const {
        if (is_flat) {
#pragma unroll
            for (int k = 0; k < Tile<COUNT>::RUNS; ++k) {
                runs[k] = *reinterpret_cast<const Run<T, COUNT>*>(x + tile.run(k));
            }
        } else {
#pragma unroll
            for (int k = 0; k < Tile<COUNT>::RUNS; ++k) runs[k] = run_at(tile.run(k));
        }
    }
};
