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
};

template <class Index>
__device__ inline Place place_of(Index idx, Pair size) {
    const Index row = idx / size.w, image = row / size.h;
    return {static_cast<int>(image), static_cast<int>(row - image * size.h),
            static_cast<int>(idx - row * size.w)};
}
