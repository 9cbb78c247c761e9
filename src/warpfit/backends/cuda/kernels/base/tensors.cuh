// Many tensors in one launch: lists of tensors of equal shapes (parameters, gradients, ...) in one
// struct, and the loop of a block over its part of one of them. The list comes as a kernel's
// parameter; a block has its part of one tensor to itself.
#pragma once

#include "base/group.cuh"
#include "base/reduce.cuh"

constexpr int MAX_LISTS = 4;
constexpr int MAX_TENSORS = 80;
constexpr int TENSOR_THREADS = 256;

// One tensor of every list; lists that a kernel is not given have null pointers.
struct TensorEntry {
    uint64 pointers[MAX_LISTS];
    int64 size;
    int64 first_block;
};

// A block works on `tiles_per_block` tiles of one tensor. Python packs the same bytes.
struct TensorList {
    int count;
    int tiles_per_block;
    TensorEntry entries[MAX_TENSORS];
};

// Vectors that a thread takes of a tile.
template <class T>
constexpr int TILE_VECTORS = sizeof(T) == 2 ? 1 : 2;

// Elements of a tile, which Python counts blocks by.
template <class T>
constexpr int64 TENSOR_TILE = TENSOR_THREADS * Vec<T>::SIZE * TILE_VECTORS<T>;

// The last tensor whose blocks begin at or before `block`.
__device__ inline int tensor_of_block(const TensorList& list, int64 block) {
    int low = 0;
    int high = list.count - 1;
    while (low < high) {
        const int middle = (low + high + 1) / 2;
        if (list.entries[middle].first_block <= block) {
            low = middle;
        } else {
            high = middle - 1;
        }
    }
    return low;
}

// Calls step(values) for every element of the block's part, values[l] being the element of list l
// in its arithmetic type, and stores values[l] where bit l of WRITTEN is set. Past a tensor's end
// step sees zeros, so that sums may take them.
template <class T, int LISTS, unsigned WRITTEN, class Step>
__device__ inline void for_each_element(const TensorList& list, Step step) {
    constexpr int W = Vec<T>::SIZE;
    constexpr int UNROLL = TILE_VECTORS<T>;
    constexpr int64 TILE = TENSOR_TILE<T>;
    const int tensor = tensor_of_block(list, blockIdx.x);
    const TensorEntry& entry = list.entries[tensor];
    T* place[LISTS];
    bool wide = true;
#pragma unroll
    for (int l = 0; l < LISTS; ++l) {
        place[l] = reinterpret_cast<T*>(entry.pointers[l]);
        wide = wide && is_aligned(place[l]);
    }
    const int64 size = entry.size;
    const int64 begin = (blockIdx.x - entry.first_block) * list.tiles_per_block * TILE;
    const int64 end = min(size, begin + list.tiles_per_block * TILE);
    for (int64 tile = begin + threadIdx.x * W; tile < end; tile += TILE) {
        Group<T, W> groups[LISTS][UNROLL];
#pragma unroll
        for (int u = 0; u < UNROLL; ++u) {
            const int64 at = tile + u * TENSOR_THREADS * W;
#pragma unroll
            for (int l = 0; l < LISTS; ++l) {
                groups[l][u] = load_group<W>(place[l], at, place[l] ? size : 0, wide);
            }
        }
#pragma unroll
        for (int u = 0; u < UNROLL; ++u) {
            const int64 at = tile + u * TENSOR_THREADS * W;
#pragma unroll
            for (int e = 0; e < W; ++e) {
                accumulator<T> values[LISTS];
#pragma unroll
                for (int l = 0; l < LISTS; ++l) values[l] = load(groups[l][u].element[e]);
                step(values);
#pragma unroll
                for (int l = 0; l < LISTS; ++l) {
                    if (WRITTEN >> l & 1) groups[l][u].element[e] = store<T>(values[l]);
                }
            }
#pragma unroll
            for (int l = 0; l < LISTS; ++l) {
                if (WRITTEN >> l & 1)
                    store_group<W>(place[l], at, place[l] ? size : 0, wide, groups[l][u]);
            }
        }
    }
}

// Adds up one number of every thread of every block, in the same order always: blocks write theirs
// to partials[first_partial + block], the last of `num_partials` blocks, which may be those of
// several launches, adds them. Whether this thread has the total in `sum`.
__device__ inline bool sum_over_blocks(double& sum, double* partials, int first_partial,
                                       int num_partials, unsigned* arrivals) {
    __shared__ double shared[WARP];
    sum = reduce_block<Sum>(sum, 0.0, shared);
    if (threadIdx.x == 0) partials[first_partial + blockIdx.x] = sum;
    if (!is_last_block(arrivals, num_partials)) return false;
    sum = 0;
#pragma unroll 8
    for (int i = threadIdx.x; i < num_partials; i += TENSOR_THREADS) sum += __ldcg(partials + i);
    sum = reduce_block<Sum>(sum, 0.0, shared);
    return threadIdx.x == 0;
}
