// Which pieces a cluster works on: every num_clusters()-th; or, with a counter in memory, whichever
// nobody has yet. So one that comes late, because another kernel was on its multiprocessors, takes
// fewer.
//
// The loading thread of a cluster's first block takes pieces from the counter, one ahead, and sends
// the numbers to all of its blocks. Its slot of the ring was read by all when a stage is released
// that was loaded STAGES before: the ring has one slot more than there are stages.
#pragma once

#include "ptx/barriers.cuh"
#include "ptx/cluster.cuh"

constexpr int QUEUE_SLOTS = STAGES + 1;

struct TileQueue {
    alignas(8) int pieces[QUEUE_SLOTS][2];
    Barrier told[QUEUE_SLOTS];
};

__device__ inline int own_cluster() { return blockIdx.x / CLUSTER; }
__device__ inline int num_clusters() { return gridDim.x / CLUSTER; }

// The pieces of this block as one of its warps, or its loading thread, goes through them.
struct OwnPieces {
    TileQueue& queue;
    bool takes;
    Cursor<QUEUE_SLOTS> cursor;

    __device__ OwnPieces(TileQueue& queue, bool takes) : queue(queue), takes(takes), cursor(0) {}

    __device__ int first() { return takes ? told() : own_cluster(); }
    __device__ int after(int idx) { return takes ? told() : idx + num_clusters(); }

    __device__ int told() {
        wait(queue.told[cursor.slot], cursor.round);
        const int idx = queue.pieces[cursor.slot][0];
        cursor.advance<1>();
        return idx;
    }
};

// What the loading thread of each block does so that all find the next piece: called once before
// the first, and again when the first stage of a piece is free. The counter is 0 in the end, after
// as many calls as there are pieces and clusters.
struct PieceTaker {
    TileQueue& queue;
    unsigned* counter;
    unsigned last;
    Cursor<QUEUE_SLOTS> cursor;

    __device__ PieceTaker(TileQueue& queue, unsigned* counter, int num_pieces)
        : queue(queue), counter(counter), last(num_pieces + num_clusters() - 1), cursor(0) {}

    __device__ void take() {
        if (!counter) return;
        Barrier& told = queue.told[cursor.slot];
        if constexpr (CLUSTER > 1) mbarrier_expect(&told, sizeof(queue.pieces[0]));
        if (own_rank() == 0) {
            const unsigned idx = atomicAdd(counter, 1u);
            if (idx == last) *counter = 0;
            send(queue.pieces[cursor.slot], told, idx);
        }
        cursor.advance<1>();
    }

    // To the same slot of all blocks of the cluster.
    static __device__ void send(int (&piece)[2], Barrier& told, unsigned idx) {
        if constexpr (CLUSTER > 1) {
            for (int rank = 0; rank < CLUSTER; ++rank) {
                store_async_pair(place_in(rank, piece), idx, 0, place_in(rank, &told));
            }
        } else {
            piece[0] = idx;
            mbarrier_arrive(&told);
        }
    }
};
