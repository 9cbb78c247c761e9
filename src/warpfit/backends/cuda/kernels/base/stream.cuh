// Passes over contiguous arrays of one shape, 16 bytes at a time: results element by element, or a
// sum of terms.
//
// A function is called as f(x, row, column): x holds the element of every input, and the element
// lies at (row, column) of a matrix of `num_columns` columns; both are 0 if num_columns is 0, which
// costs less.
#pragma once

#include "base/types.cuh"
#include "base/vec.cuh"

using T = DTYPE;
using Acc = accumulator<T>;

constexpr int WIDTH = Vec<T>::SIZE;
// Vectors of each array that a thread has in flight.
constexpr int UNROLL = 2;

// Where an element of a matrix lies.
struct Place {
    int64 row, column, num_columns;

    __device__ Place(int64 index, int64 columns) : row(0), column(0), num_columns(columns) {
        if (columns == 0) return;
        // Divisions in 32 bits are several times quicker.
        if ((index | columns) <= 0x7fffffff) {
            row = static_cast<uint32>(index) / static_cast<uint32>(columns);
        } else {
            row = index / columns;
        }
        column = index - row * columns;
    }

    // By as many columns as divide all.
    __device__ void advance(int by = 1) {
        if (num_columns != 0 && (column += by) == num_columns) {
            column = 0;
            ++row;
        }
    }
};

template <int INPUTS>
struct Inputs {
    const T* at[INPUTS];

    __device__ bool aligned() const {
        bool all = true;
#pragma unroll
        for (int input = 0; input < INPUTS; ++input) all = all && is_aligned(at[input]);
        return all;
    }

    __device__ void load_one(int64 index, Acc (&x)[INPUTS]) const {
#pragma unroll
        for (int input = 0; input < INPUTS; ++input) x[input] = load(at[input][index]);
    }
};

// The vectors of a thread from `first` on, those that end before `end`, and then their elements.
template <int INPUTS>
struct Loaded {
    Vec<T> vector[UNROLL][INPUTS];

    __device__ static int64 start(int64 first, int u) {
        return first + (u * static_cast<int>(blockDim.x) + static_cast<int>(threadIdx.x)) * WIDTH;
    }

    __device__ Loaded(const Inputs<INPUTS>& inputs, int64 first, int64 end) {
#pragma unroll
        for (int u = 0; u < UNROLL; ++u) {
            if (start(first, u) + WIDTH > end) continue;
#pragma unroll
            for (int input = 0; input < INPUTS; ++input) {
                vector[u][input] = load_vec(inputs.at[input] + start(first, u));
            }
        }
    }

    __device__ void element(int u, int k, Acc (&x)[INPUTS]) const {
#pragma unroll
        for (int input = 0; input < INPUTS; ++input) x[input] = load(vector[u][input].element[k]);
    }
};

// Elements that a block takes at once.
__device__ inline int64 elements_of_block() {
    return static_cast<int64>(blockDim.x) * UNROLL * WIDTH;
}

// out[i] = f(x, row, column) for the elements of this block: elements_of_block() of n. out may be
// an input.
template <int INPUTS, class F>
__device__ inline void map_elements(const Inputs<INPUTS>& inputs, T* out, int64 n,
                                    int64 num_columns, F f) {
    const int64 first = blockIdx.x * elements_of_block();
    const int64 end = first + elements_of_block() < n ? first + elements_of_block() : n;
    int64 rest = first;
    Acc x[INPUTS];
    if (inputs.aligned() && is_aligned(out)) {
        const Loaded<INPUTS> loaded(inputs, first, end);
#pragma unroll
        for (int u = 0; u < UNROLL; ++u) {
            const int64 start = loaded.start(first, u);
            if (start + WIDTH > end) continue;
            Place place(start, num_columns);
            Vec<T> result;
#pragma unroll
            for (int k = 0; k < WIDTH; ++k, place.advance()) {
                loaded.element(u, k, x);
                result.element[k] = store<T>(f(x, place.row, place.column));
            }
            store_vec(out + start, result);
        }
        rest = end - (end - first) % WIDTH;
    }
#pragma unroll 1
    for (int64 i = rest + threadIdx.x; i < end; i += blockDim.x) {
        const Place place(i, num_columns);
        inputs.load_one(i, x);
        out[i] = store<T>(f(x, place.row, place.column));
    }
}

// Σ f(x, row, column) over this thread's share of all n elements. A vector's terms are added in
// Acc, all else in float64.
template <int INPUTS, class F>
__device__ inline double sum_elements(const Inputs<INPUTS>& inputs, int64 n, int64 num_columns,
                                      F f) {
    const bool aligned = inputs.aligned();
    double total = 0;
    Acc x[INPUTS];
#pragma unroll 1
    for (int64 first = blockIdx.x * elements_of_block(); first < n;
         first += gridDim.x * elements_of_block()) {
        const int64 end = first + elements_of_block() < n ? first + elements_of_block() : n;
        int64 rest = first;
        if (aligned) {
            const Loaded<INPUTS> loaded(inputs, first, end);
#pragma unroll
            for (int u = 0; u < UNROLL; ++u) {
                const int64 start = loaded.start(first, u);
                if (start + WIDTH > end) continue;
                Place place(start, num_columns);
                Acc sum = 0;
#pragma unroll
                for (int k = 0; k < WIDTH; ++k, place.advance()) {
                    loaded.element(u, k, x);
                    sum += f(x, place.row, place.column);
                }
                total += sum;
            }
            rest = end - (end - first) % WIDTH;
        }
#pragma unroll 1
        for (int64 i = rest + threadIdx.x; i < end; i += blockDim.x) {
            const Place place(i, num_columns);
            inputs.load_one(i, x);
            total += f(x, place.row, place.column);
        }
    }
    return total;
}
