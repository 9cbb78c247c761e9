// Bins of piecewise-linear embeddings: the share of a bin that lies below a number.
// All arrays are (features, bins), contiguous, and only read.
// Users: ops/embedding/.
#pragma once

#include "base/reduce.cuh"

using T = DTYPE;

constexpr int SIZE = 16;  // numbers of an embedding

struct Bins {
    const T *factor, *offset, *low, *high;
    int count;

    // Of a bin of a feature; as NumPy's minimum and maximum, NaN stays NaN.
    __device__ T share(int feature, int bin, T x) const {
        const int64 at = static_cast<int64>(feature) * count + bin;
        return Min::join(Max::join(x * factor[at] + offset[at], low[at]), high[at]);
    }
};
