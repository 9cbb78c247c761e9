// A box of a matrix goes from global to shared memory, and from there to another matrix; `lines`
// gets what lies between them. In a cluster, block 0 copies for those of which BLOCKS has the bits.
// Mistakes, one for each value of BUG:
enum Bug {
    NONE,
    READS_EARLY,
    WRITES_EARLY,
    NO_WAIT,
    NO_COMMIT,
    NO_FENCE,
    NO_MAP,
    MISALIGNED,
    NOT_SHARED,
    PAST_THE_END,
    TWICE,
    TOO_FEW_BYTES,
    NO_BLOCK,
    NO_SUCH_BLOCK,
    LEAVES
};
#define SHARED_ALIGNMENT 1024

#include "ptx/barriers.cuh"
#include "ptx/cluster.cuh"

constexpr int PIECES = ROWS * 8;  // of 16 bytes

struct Shared {
    uint4 pieces[PIECES];
    Barrier full;
};

__device__ void copy(Shared& shared, const TensorMap& map, int row, int column) {
    unsigned char* to = reinterpret_cast<unsigned char*>(shared.pieces);
    if (BUG == MISALIGNED) to += 64;
    if (BUG == PAST_THE_END) to += sizeof(Shared) / 128 * 128;
    if (BUG == NOT_SHARED) to = nullptr;
    const unsigned short blocks = BUG == NO_BLOCK        ? 0
                                  : BUG == NO_SUCH_BLOCK ? 1 << CLUSTER
                                                         : BLOCKS;
    for (int i = 0; i < (BUG == TWICE ? 2 : 1); ++i) {
        if (CLUSTER == 1)
            copy_tensor(to, &map, row, column, &shared.full);
        else if (own_rank() == 0)
            copy_tensor_to_cluster(to, &map, row, column, &shared.full, blocks);
    }
}

__device__ void write_lines(const Shared& shared, uint4* lines) {
    for (int i = threadIdx.x; i < PIECES; i += 32)
        lines[blockIdx.x * PIECES + i] = shared.pieces[i];
}

__device__ void store(Shared& shared, const TensorMap& map, int row, int column) {
    if (threadIdx.x == 0) {
        store_tensor(&map, shared.pieces, row, column);
        if (BUG != NO_COMMIT) bulk_commit();
        if (BUG != NO_WAIT && BUG != WRITES_EARLY) bulk_wait_read<0>();
    }
    __syncwarp();
    for (int i = threadIdx.x; i < PIECES; i += 32) shared.pieces[i] = {};
    if (BUG == WRITES_EARLY && threadIdx.x == 0) bulk_wait_read<0>();
}

// The zeros that `store` left, past the end of the matrix's columns.
__device__ void store_again(Shared& shared, const TensorMap& map) {
    if (BUG != NO_FENCE) fence_async();
    __syncwarp();
    if (threadIdx.x != 0) return;
    store_tensor(&map, shared.pieces, 0, 1 << 20);
    bulk_commit();
    bulk_wait_read<0>();
}

extern "C" __global__ void __launch_bounds__(32)
    boxes(const __grid_constant__ TensorMap source_map,
          const __grid_constant__ TensorMap target_map, uint4* lines, int row, int column) {
    DYNAMIC_SHARED(Shared, shared);
    const TensorMap no_map{};
    const bool receives = BLOCKS >> own_rank() & 1;
    if (threadIdx.x == 0) {
        mbarrier_init(&shared->full, 1);
        fence_mbarrier_init();
    }
    barrier_of_cluster();
    if (threadIdx.x == 0) {
        if (receives) mbarrier_expect(&shared->full, ROWS * (BUG == TOO_FEW_BYTES ? 64 : 128));
        copy(*shared, BUG == NO_MAP ? no_map : source_map, row, column);
    }
    if (BUG == LEAVES) return;
    if (BUG == READS_EARLY) write_lines(*shared, lines);
    __syncwarp();
    if (receives) wait(shared->full, 0);
    if (BUG != READS_EARLY && receives) write_lines(*shared, lines);
    __syncwarp();
    if (blockIdx.x == 0) {
        store(*shared, target_map, row, column);
        if (BUG != NO_WAIT && BUG != NO_COMMIT) store_again(*shared, target_map);
    }
    barrier_of_cluster();
}
