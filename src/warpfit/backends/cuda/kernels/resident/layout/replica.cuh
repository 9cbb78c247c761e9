// Which rows of a batch a cluster has, where several have the same weights and partition it, on
// CARDS cards REPLICAS each: tiles of 16 that come one after the other. Values only.
#pragma once

#include "ptx/cluster.cuh"
#include "resident/record/steps.cuh"

constexpr int ALL_REPLICAS = CARDS * REPLICAS;
// Rows of a step that a replica takes, as far as there are that many.
constexpr int REPLICA_ROWS =
    ALL_REPLICAS > 1 ? (BATCH + 16 * ALL_REPLICAS - 1) / (16 * ALL_REPLICAS) * 16 : BATCH;
constexpr int ROW_TILES = (REPLICA_ROWS + 15) / 16, ROWS = ROW_TILES * 16;

// Which replica of its card a block is of.
__device__ inline int own_replica() {
    return REPLICAS > 1 ? static_cast<int>(blockIdx.x) / CLUSTER : 0;
}

// The first of its rows, and how many of `count` it has.
__device__ inline int first_row(int card = 0) {
    return (card * REPLICAS + own_replica()) * REPLICA_ROWS;
}
__device__ inline int own_rows(int count, int card = 0) {
    return ALL_REPLICAS > 1 ? clamped(count - first_row(card), REPLICA_ROWS) : count;
}
