// Sums over the threads of one_launch_layers.cu, each in a fixed order.
// Scratch is the block's; parts for other blocks have a place for each rank, and for recorders one
// in memory. Who leaves a part in memory marks it with its epoch, behind a fence.
#pragma once

#include "resident/rows/layer_rows.cuh"

// The sum of a number over all threads of the block, in a fixed order.
__device__ inline float sum_of_block(LayersShared& shared, float number) {
    number = reduce_warp<Sum>(number);
    if (threadIdx.x % 32 == 0) shared.squares[threadIdx.x / 32] = number;
    __syncthreads();
    float sum = 0;
    for (int warp = 0; warp < WARPS; ++warp) sum += shared.squares[warp];
    return sum;
}

// The sum of a number over all threads of the cluster, in a fixed order.
__device__ inline float sum_of_cluster(LayersShared& shared, [[maybe_unused]] int step,
                                       float number) {
    float sum = sum_of_block(shared, number);
    if constexpr (CLUSTER > 1) {
        if (threadIdx.x < CLUSTER) {
            store_async_pair(place_in(threadIdx.x, &shared.cluster_squares[own_rank()]),
                             __float_as_uint(sum), 0, place_in(threadIdx.x, &shared.squares_full));
        }
        await_bytes(shared.squares_full, step, CLUSTER * sizeof(float2));
        sum = 0;
        for (int rank = 0; rank < CLUSTER; ++rank) sum += shared.cluster_squares[rank].x;
    }
    return sum;
}

__device__ inline void leave_part(WatchedPart& place, const Sums& sums, unsigned epoch) {
    const WatchedPart part = {sums.loss, sums.correct};
    store_relaxed(reinterpret_cast<uint4*>(&place), reinterpret_cast<const uint4&>(part));
    __threadfence();
    store_relaxed(&place.epoch, epoch);
}

__device__ inline WatchedPart find_part(const WatchedPart& place, unsigned epoch) {
    for (Patience patience; load_relaxed(&place.epoch) != epoch;) patience.wait();
    __threadfence();
    WatchedPart part;
    reinterpret_cast<uint4&>(part) = load_relaxed(reinterpret_cast<const uint4*>(&place));
    return part;
}

// Adds up what is watched over all recorders, in their order. A warp of each block calls after an
// epoch that is reported; its first lane has the sums of this block's rows.
__device__ inline void add_up_recorders(Sums& sums, StoppingMemory& memory, unsigned epoch) {
    const int lane = threadIdx.x % 32;
    if (lane == 0 && (PENALIZED || own_rank() == 0))
        leave_part(memory.parts[own_recorder()], sums, epoch);
    double loss = 0, correct = 0;
    for (int first = 0; first < RECORDERS; first += 32) {
        WatchedPart part = {};
        if (first + lane < RECORDERS) part = find_part(memory.parts[first + lane], epoch);
        for (int i = 0; i < smaller(32, RECORDERS - first); ++i) {
            loss = __dadd_rn(loss, __shfl_sync(FULL_WARP, part.loss, i));
            correct = __dadd_rn(correct, __shfl_sync(FULL_WARP, part.correct, i));
        }
    }
    if (lane > 0) return;
    sums.loss = loss;
    sums.correct = correct;
}

// What gradients are multiplied by, lest their norm be larger than it may; of the sum of their
// squares.
__device__ inline float clip_factor(const LayersRun& run, float squares) {
    constexpr float EPS = 1e-6f;
    const float norm = square_root(squares) * run.unscale;
    return norm > run.largest_norm - EPS ? run.largest_norm / (norm + EPS) : 1;
}
