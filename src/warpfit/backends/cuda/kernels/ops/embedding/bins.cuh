// Bins of piecewise-linear embeddings: the share of a bin that lies below a number.
// A thread's own, of one bin; all arrays are (features, bins), contiguous, and only read.
#pragma once

#include "base/reduce.cuh"

using T = DTYPE;

constexpr int SIZE = 16;  // numbers of an embedding
constexpr int FOUR = 4;   // of them, or of bins, that are read at once

struct alignas(4 * sizeof(T)) Four {
    T at[FOUR];
};

struct alignas(4 * sizeof(T)) Bin {
    T factor, offset, low, high;

    // As NumPy's minimum and maximum, NaN stays NaN.
    __device__ T share(T x) const { return Min::join(Max::join(x * factor + offset, low), high); }
};

struct Bins {
    const T *factor, *offset, *low, *high;
    int count;

    __device__ Bin at(int feature, int bin) const {
        const int64 place = static_cast<int64>(feature) * count + bin;
        return {factor[place], offset[place], low[place], high[place]};
    }
};
