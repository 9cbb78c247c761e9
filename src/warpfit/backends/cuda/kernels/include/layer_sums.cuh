// Sums over the threads of one_launch_layers.cu, each in a fixed order.
#pragma once

#include "layer_rows.cuh"

// The sum of a number over all threads of the block, in a fixed order.
__device__ inline float sum_of_block(Shared& shared, float number) {
    number = reduce_warp<Sum>(number);
    if (threadIdx.x % 32 == 0) shared.squares[threadIdx.x / 32] = number;
    __syncthreads();
    float sum = 0;
    for (int warp = 0; warp < WARPS; ++warp) sum += shared.squares[warp];
    return sum;
}

// The sum of a number over all threads of the cluster, in a fixed order.
__device__ inline float sum_of_cluster(Shared& shared, [[maybe_unused]] int step, float number) {
    float sum = sum_of_block(shared, number);
#if CLUSTER > 1
    if (threadIdx.x < CLUSTER) {
        store_async_pair(place_in(threadIdx.x, &shared.cluster_squares[own_rank()]), __float_as_uint(sum), 0,
                         place_in(threadIdx.x, &shared.squares_full));
    }
    await_rows(shared.squares_full, step, CLUSTER * sizeof(float2));
    sum = 0;
    for (int rank = 0; rank < CLUSTER; ++rank) sum += shared.cluster_squares[rank].x;
#endif
    return sum;
}

// What gradients are multiplied by, lest their norm be larger than it may; of the sum of their squares.
__device__ inline float clip_factor(const Run& run, float squares) {
    constexpr float EPS = 1e-6f;
    const float norm = square_root(squares) * run.unscale;
    return norm > run.largest_norm - EPS ? run.largest_norm / (norm + EPS) : 1;
}
