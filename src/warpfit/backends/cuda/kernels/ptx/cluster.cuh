// A block and the others of its cluster.
// Needs the setting CLUSTER; without clusters a block is rank 0 of one. Addresses of other blocks
// are for st.async and mapa alone: nobody loads from another's memory.
#pragma once

#include "base/types.cuh"

__device__ inline int own_rank() {
    if constexpr (CLUSTER > 1) {
        return static_cast<int>(cluster_rank());
    } else {
        return 0;
    }
}

__device__ inline void barrier_of_cluster() {
    if constexpr (CLUSTER > 1) {
        cluster_barrier();
    } else {
        __syncthreads();
    }
}

// What lies in the shared memory of another block as `mine` does in this one's.
__device__ inline unsigned place_in(unsigned rank, const void* mine) {
    return cluster_address(mine, rank);
}
