// Convolutions whose channels and outputs fall into groups, each of which sees its own only.
//
// Places are a thread's own.
#pragma once

#include "base/group.cuh"

using T = DTYPE;
using Acc = accumulator<T>;

struct Pair {
    int h, w;
};

// A window, or a pixel: image, row and column.
struct Place {
    int image, row, column;

    __device__ Place(int64 idx, Pair size)
        : image(static_cast<int>(idx / (static_cast<int64>(size.h) * size.w))),
          row(static_cast<int>(idx / size.w % size.h)),
          column(static_cast<int>(idx % size.w)) {}
};
