// Rows that a team of threads works on: a warp (blocks of 32 x n threads, n rows) or a whole block
// (one row). The first groups of a row stay in registers, the rest is loaded again each time. A row
// is its team's own; threads of a team have every so many groups of it.
#pragma once

#include "base/group.cuh"
#include "base/reduce.cuh"

constexpr int GROUPS_KEPT = 4;

// The sum over a team, for all of its threads; `shared` holds 32 entries.
template <class A>
__device__ inline A sum_over_team(A value, A* shared) {
    return blockDim.x == WARP ? reduce_warp<Sum>(value) : reduce_block<Sum>(value, A(0), shared);
}

// The number of the team's row.
__device__ inline int64 row_of_team() {
    return static_cast<int64>(blockIdx.x) * blockDim.y + threadIdx.y;
}

// Calls use(place, group) for every group of W elements of the row that this thread has: those
// kept, then those that make(place) loads.
template <int W, class Part, class Make, class Use>
__device__ inline void for_each_group(Part (&kept)[GROUPS_KEPT], int row_size, Make make, Use use) {
    const int step = blockDim.x * W;
    int at = threadIdx.x * W;
#pragma unroll
    for (int g = 0; g < GROUPS_KEPT; ++g) {
        if (at < row_size) use(at, kept[g]);
        at += step;
    }
#pragma unroll 1
    for (; at < row_size; at += step) {
        Part part = make(at);
        use(at, part);
    }
}

// Loads the groups that are kept.
template <int W, class Part, class Make>
__device__ inline void keep_groups(Part (&kept)[GROUPS_KEPT], Make make) {
#pragma unroll
    for (int g = 0; g < GROUPS_KEPT; ++g) kept[g] = make((threadIdx.x + g * blockDim.x) * W);
}
