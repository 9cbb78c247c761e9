// Measures: what a message from one thread to another takes: between warps, blocks of a cluster,
//           and clusters; and what barriers, fences and loads take.
// Layout:   found (2,) int64: cycles and nanoseconds of TURNS turns; memory: 64 KB, zeros.
// Launch:   BLOCKS blocks, clusters of CLUSTER, THREADS threads each; all are resident. Defines: KIND,
//           one of hops.py; CLUSTER, BLOCKS, THREADS, BYTES (of a bulk copy), TURNS, BOUNDED_WAITS.
//
// A message goes to and fro between block 0 and block PEER, the only ones that do anything but to
// be there; a turn is both ways. What expects the next message is said while the last one is under
// way, as kernels do.
#include "base/reduce.cuh"
#include "ptx/barriers.cuh"
#include "ptx/cluster.cuh"
#include "ptx/ptx.cuh"
#include "resident/exchange/marked_numbers.cuh"

namespace {

struct alignas(128) Shared {
    unsigned char received[BYTES], sent[KIND == 4 ? BYTES : 16];  // of BULK_PEER
    Barrier full[2];
};

enum Kind {
    STORE_ASYNC_8,
    STORE_ASYNC_16,
    STORE_ASYNC_WARP,
    STORE_REMOTE,
    BULK_PEER,
    MBARRIER,
    MEMORY,
    BULK_LOAD,
    BLOCK_BARRIER,
    GROUP_BARRIER,
    CLUSTER_BARRIER,
    FENCE_CLUSTER,
    FENCE_GPU,
    FENCE_SYSTEM,
    FENCE_ASYNC,
    SHUFFLE,
    MATRIX_LOAD,
    PRODUCT
};

__device__ inline int64 nanoseconds() {
    int64 now;
    asm volatile("mov.u64 %0, %%globaltimer;" : "=l"(now));
    return now;
}

// st and mbarrier.arrive to another block (PTX ISA 9.7.9.12, 9.7.13.15.13), release and acquire.
__device__ inline void store_at(unsigned address, unsigned word) {
    asm volatile("st.shared::cluster.u32 [%0], %1;" ::"r"(address), "r"(word) : "memory");
}

__device__ inline void arrive_at(unsigned barrier) {
    asm volatile("mbarrier.arrive.release.cluster.shared::cluster.b64 _, [%0];" ::"r"(barrier)
                 : "memory");
}

__device__ inline void wait_of_cluster(Barrier& barrier, unsigned phase) {
    unsigned is_complete = 0;
    while (!is_complete) {
        asm volatile(
            "{ .reg .pred p; mbarrier.try_wait.parity.acquire.cluster.shared::cta.b64 p, [%1], %2; "
            "selp.u32 %0, 1, 0, p; }"
            : "=r"(is_complete)
            : "r"(shared_address(&barrier)), "r"(phase & 1)
            : "memory");
    }
}

// cp.async.bulk from this block's shared memory to another's (9.7.9.25.4.1).
__device__ inline void copy_to_peer(unsigned address, const void* from, unsigned barrier) {
    asm volatile(
        "cp.async.bulk.shared::cluster.shared::cta.mbarrier::complete_tx::bytes [%0], [%1], %2, "
        "[%3];" ::"r"(address),
        "r"(shared_address(from)), "n"(BYTES), "r"(barrier)
        : "memory");
}

// A block's, or a warp's, part of TURNS turns: the first sends, waits and sends again; the other
// waits and answers.
template <class Send, class Wait>
__device__ inline void play(bool is_first, Send send, Wait wait) {
#pragma unroll 1
    for (int turn = 0; turn < TURNS; ++turn) {
        if (is_first) send(turn);
        wait(turn);
        if (!is_first) send(turn);
    }
}

// What one warp of each of the two does.
__device__ inline void play_in_cluster(Shared& shared, bool is_first, unsigned other) {
    const int lane = threadIdx.x % 32;
    const unsigned to = place_in(other, shared.received + 16 * lane),
                   barrier = place_in(other, shared.full);
    constexpr unsigned EXPECTED = KIND == STORE_ASYNC_8    ? 8
                                  : KIND == STORE_ASYNC_16 ? 16
                                  : KIND == BULK_PEER      ? BYTES
                                                           : 512;
    const bool sends = KIND == STORE_ASYNC_WARP || lane == 0;
    const auto expect = [&] {
        if (KIND != STORE_REMOTE && lane == 0) mbarrier_expect(shared.full, EXPECTED);
    };
    const auto send = [&](int turn) {
        const unsigned word = turn, words[4] = {word, word, word, word};
        if (!sends) return;
        if constexpr (KIND == STORE_ASYNC_8) store_async_pair(to, word, word, barrier);
        if constexpr (KIND == STORE_ASYNC_16 || KIND == STORE_ASYNC_WARP)
            store_async_quad(to, words, barrier);
        if constexpr (KIND == BULK_PEER) copy_to_peer(to, shared.sent, barrier);
        if constexpr (KIND == STORE_REMOTE) {
            store_at(to, word);
            arrive_at(barrier);
        }
        expect();
    };
    const auto await = [&](int turn) {
        KIND == STORE_REMOTE ? wait_of_cluster(*shared.full, turn) : wait(*shared.full, turn);
        __syncwarp();
    };
    if (!is_first) expect();
    play(is_first, send, await);
}

// Between clusters: numbers in memory that say themselves that they have come.
__device__ inline void play_in_memory(uint4* memory, bool is_first) {
    uint4 *own = memory + 32 * is_first, *others = memory + 32 * !is_first;
    play(
        is_first,
        [&](int turn) {
            const float numbers[1][4] = {{1, 2, 3, 4}};
            send(own + threadIdx.x, 32, turn, numbers);
        },
        [&](int turn) {
            float numbers[1][4];
            receive(numbers, turn, [&](int) { return others + threadIdx.x; });
        });
}

__device__ inline void play_in_block(Shared& shared) {
    const int warp = threadIdx.x / 32;
    if (warp > 1) return;
    play(
        warp == 0, [&](int) { arrive_warp(shared.full[1 - warp]); },
        [&](int turn) { wait(shared.full[warp], turn); });
}

__device__ inline void load_from_memory(Shared& shared, const unsigned* memory) {
    if (threadIdx.x > 0) return;
#pragma unroll 1
    for (int turn = 0; turn < TURNS; ++turn) {
        mbarrier_expect(shared.full, BYTES);
        copy_bulk(shared.received, memory, BYTES, shared.full);
        wait(*shared.full, turn);
    }
}

// One instruction, or a barrier that all threads of the block meet at, again and again.
__device__ inline void repeat(Shared& shared, unsigned* memory) {
    unsigned word = threadIdx.x, others[3], a[4] = {}, b[2] = {};
    float sums[4] = {};
    const unsigned char* row = shared.received + 16 * (threadIdx.x % 8);
    if (KIND >= FENCE_CLUSTER && threadIdx.x / 32 > 0) return;
#pragma unroll 1
    for (int turn = 0; turn < TURNS; ++turn) {
        if constexpr (KIND == BLOCK_BARRIER) __syncthreads();
        if constexpr (KIND == GROUP_BARRIER) meet_at<THREADS>(1);
        if constexpr (KIND == CLUSTER_BARRIER) barrier_of_cluster();
        if constexpr (KIND >= FENCE_CLUSTER && KIND <= FENCE_ASYNC)
            store_relaxed(memory + threadIdx.x, turn);
        if constexpr (KIND == FENCE_CLUSTER) asm volatile("fence.acq_rel.cluster;" ::: "memory");
        if constexpr (KIND == FENCE_GPU) fence_of_grid();
        if constexpr (KIND == FENCE_SYSTEM) asm volatile("fence.acq_rel.sys;" ::: "memory");
        if constexpr (KIND == FENCE_ASYNC) fence_async();
        if constexpr (KIND == SHUFFLE) word = __shfl_xor_sync(FULL_WARP, word, 1) + turn;
        if constexpr (KIND == MATRIX_LOAD) {
            ldmatrix_x4(word, others[0], others[1], others[2], row + (word & 16));
        }
        if constexpr (KIND == PRODUCT) mma_m16n8k16_f16(sums, a, b);
    }
    if (word == 12345 && sums[0] == 1) memory[threadIdx.x] = word;
}

}  // namespace

extern "C" __global__ void hops(int64* found, unsigned* memory, int peer) {
    __shared__ Shared shared;
    for (int i = threadIdx.x; i < BYTES; i += THREADS) shared.received[i] = 0;
    for (int i = threadIdx.x; i < static_cast<int>(sizeof shared.sent); i += THREADS)
        shared.sent[i] = 0;
    if (threadIdx.x == 0) {
        for (Barrier& full : shared.full) mbarrier_init(&full, 1);
        fence_mbarrier_init();
    }
    fence_async();
    barrier_of_cluster();
    const int block = blockIdx.x;
    const bool is_first = block == 0, takes_part = is_first || block == peer;
    const int64 start = clock64(), begin = nanoseconds();
    if constexpr (KIND <= BULK_PEER) {
        if (takes_part && threadIdx.x < 32) play_in_cluster(shared, is_first, is_first ? peer : 0);
    } else if constexpr (KIND == MEMORY) {
        if (takes_part && threadIdx.x < 32)
            play_in_memory(reinterpret_cast<uint4*>(memory), is_first);
    } else if constexpr (KIND == MBARRIER) {
        play_in_block(shared);
    } else if constexpr (KIND == BULK_LOAD) {
        if (is_first) load_from_memory(shared, memory);
    } else if (is_first || KIND == CLUSTER_BARRIER) {
        repeat(shared, memory);
    }
    __syncwarp();
    if (is_first && threadIdx.x == 0) {
        found[0] = clock64() - start;
        found[1] = nanoseconds() - begin;
    }
    barrier_of_cluster();
}
