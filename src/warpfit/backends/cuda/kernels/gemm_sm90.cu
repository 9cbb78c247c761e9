// Computes:  C (m, n) = EPILOGUE(op(A) @ op(B)) on Hopper's tensor cores through wgmma, op the identity or the
//            transposition.
// Layout:    row-major; A (m, k), or (k, m) if TRANSPOSE_A; B (k, n), or (n, k) if TRANSPOSE_B: read through tensor maps
//            (boxes as in include/operand_tile.cuh, swizzled by 128 bytes); C through one with boxes of 16 rows, 64
//            columns if STORES_TENSOR, else by its address, with leading dimension ldc; saved and z like C; bias (n).
// Launch:    grid: blocks that fit the device, in clusters of CLUSTER; block: a warpgroup that loads, and CONSUMERS
//            that multiply, 64 MMA_ROWS rows of the tile BLOCK_M x BLOCK_N each; shared bytes: STAGES stages, the staging
//            of C, barriers (`WgmmaConfig.shared_bytes`). Defines: these, BLOCK_N, SWATH_ROWS, DTYPE (float32: as tf32),
//            OUT, TRANSPOSE_A, TRANSPOSE_B, those of include/epilogue.cuh.
// Numerics:  float32 sums in the order of k.
// Cost:      2 m n k FLOP; each cluster reads (CLUSTER BLOCK_M + BLOCK_N) k numbers for its tiles, mostly from L2.
// Reference: matmul, linear_forward and linear_backward of backends/numpy/dense.py; PTX ISA 9.7.15 (wgmma), 9.7.9.25.5
//            (tensor copies).
#define SHARED_ALIGNMENT 1024

#include "include/barriers.cuh"
#include "include/cluster.cuh"
#include "include/epilogue.cuh"
#include "include/operand_tile.cuh"
#include "include/tile_walk.cuh"

constexpr int WARPGROUP = 128;
constexpr int THREADS = WARPGROUP * (1 + CONSUMERS);
constexpr int BLOCK_M = 64 * MMA_ROWS * CONSUMERS;
constexpr int BLOCK_K = LINE_BYTES / sizeof(T);
constexpr int LOADER_REGISTERS = 40, CONSUMER_REGISTERS = CONSUMERS == 3 ? 152 : 232;

using TileA = OperandTile<T, TRANSPOSE_A, BLOCK_M>;
using TileB = OperandTile<T, !TRANSPOSE_B, BLOCK_N>;
constexpr int STAGE_BYTES = TileA::BYTES + TileB::BYTES;

// What a warp stores at once of C: 16 rows of a line of 16-bit numbers.
constexpr int STAGED_COLS = 64;
constexpr int STAGED_BYTES = 16 * LINE_BYTES;

using Sums = float[MMA_ROWS][BLOCK_N / 2];

struct Shared {
    unsigned char stages[STAGES][STAGE_BYTES];
#if STORES_TENSOR
    unsigned char staged[CONSUMERS * 4][2][STAGED_BYTES];  // of each warp, twice
#endif
    Barrier full[STAGES], empty[STAGES];
};

struct Problem {
    TileWalk walk;
    int m, n, num_blocks;  // blocks of k
};

__device__ inline int own_cluster() { return blockIdx.x / CLUSTER; }
__device__ inline int num_clusters() { return gridDim.x / CLUSTER; }

// -- load ---------------------------------------------------------------------------------------------------------------

__device__ inline void start_barriers(Shared& shared) {
    if (threadIdx.x == 0) {
        for (int i = 0; i < STAGES; ++i) {
            mbarrier_init(&shared.full[i], 1);
            mbarrier_init(&shared.empty[i], 4 * CONSUMERS * CLUSTER);
        }
        fence_mbarrier_init();
    }
    barrier_of_cluster();
}

// Starts the copies of a tile of A, this block's own, and of this block's part of the tile of B that the cluster shares.
__device__ inline void load_stage(unsigned char* stage, Barrier& full, const TensorMap& a_map,
                                  const TensorMap& b_map, int row, int col, int k) {
    mbarrier_expect(&full, STAGE_BYTES);
    TileA::for_each_box<1>(0, row, k, [&](int byte, int box_row, int box_col) {
        copy_tensor(stage + byte, &a_map, box_row, box_col, &full);
    });
    TileB::for_each_box<CLUSTER>(own_rank(), col, k, [&](int byte, int box_row, int box_col) {
        unsigned char* to = stage + TileA::BYTES + byte;
        if constexpr (CLUSTER > 1) {
            copy_tensor_to_cluster(to, &b_map, box_row, box_col, &full, (1 << CLUSTER) - 1);
        } else {
            copy_tensor(to, &b_map, box_row, box_col, &full);
        }
    });
}

// One thread: all stages of all of this block's tiles, each as soon as all that read it before have left it.
__device__ inline void load_tiles(Shared& shared, const TensorMap& a_map, const TensorMap& b_map,
                                  const Problem& problem) {
    Cursor<STAGES> cursor(0);
    for (int tile = own_cluster(); tile < problem.walk.count(); tile += num_clusters()) {
        const int2 place = problem.walk.place(tile);
        const int row = (place.x * CLUSTER + own_rank()) * BLOCK_M, col = place.y * BLOCK_N;
        for (int block = 0; block < problem.num_blocks; ++block) {
            wait(shared.empty[cursor.slot], cursor.round + 1);
            load_stage(shared.stages[cursor.slot], shared.full[cursor.slot], a_map, b_map, row, col,
                       block * BLOCK_K);
            cursor.advance<1>();
        }
    }
}

// -- multiply -----------------------------------------------------------------------------------------------------------

// This warp has read a stage: the blocks that write to it may go on.
__device__ inline void release(Barrier& empty) {
    const unsigned lane = threadIdx.x % 32;
    if constexpr (CLUSTER > 1) {
        if (lane < CLUSTER) mbarrier_arrive_at(cluster_address(&empty, lane));
    } else {
        if (lane == 0) mbarrier_arrive(&empty);
    }
}

// sums (+)= this warpgroup's rows of a stage of A, times the stage of B.
__device__ inline void multiply_stage(Sums& sums, const unsigned char* stage, int first_row, bool adds) {
    const unsigned address = shared_address(stage);
    const uint64 b = TileB::descriptor(address + TileA::BYTES, 0);
    wgmma_fence();
#pragma unroll
    for (int slice = 0; slice < SLICES; ++slice) {
#pragma unroll
        for (int i = 0; i < MMA_ROWS; ++i) {
            const uint64 a = TileA::descriptor(address, first_row + 64 * i);
            SliceProduct<T, TileA::ACROSS, TileB::ACROSS>::add_to(
                sums[i], a + (slice * TileA::SLICE_STEP >> 4), b + (slice * TileB::SLICE_STEP >> 4),
                adds || slice > 0);
        }
    }
    wgmma_commit();
}

// sums = the product of num_blocks stages. While one is multiplied, the one before is released.
__device__ inline void multiply_tile(Sums& sums, Shared& shared, Cursor<STAGES>& cursor, int num_blocks,
                                     int first_row) {
    int before = 0;
    for (int block = 0; block < num_blocks; ++block) {
        wait(shared.full[cursor.slot], cursor.round);
        multiply_stage(sums, shared.stages[cursor.slot], first_row, block > 0);
        wgmma_wait<1>();
        if (block > 0) release(shared.empty[before]);
        before = cursor.slot;
        cursor.advance<1>();
    }
    wgmma_wait<0>();
    release(shared.empty[before]);
}

// -- finish -------------------------------------------------------------------------------------------------------------

#if STORES_TENSOR
// What a lane has of a tile of 8 columns: 2 adjacent numbers each of two rows, 8 apart. `finish_pair` makes the numbers of
// C of one of them.
__device__ inline unsigned finish_pair(const Epilogue& epilogue, int row, int col, float first,
                                       float second) {
    Acc pair[2] = {first, second};
    if (row < epilogue.m && col < epilogue.n)
        EPILOGUE<2>(epilogue, int64(row) * epilogue.ldc + col, col, pair);
    return store_pair<Out>(pair[0], pair[1]);
}

// A warp's two buffers of numbers on their way to C, in turns.
struct Staging {
    unsigned char (&buffers)[2][STAGED_BYTES];
    int turn;

    // The next one, once the store before the last has read it.
    __device__ unsigned char* next() {
        if (threadIdx.x % 32 == 0) bulk_wait_read<1>();
        __syncwarp();
        turn ^= 1;
        return buffers[turn];
    }
};

// A warp's 16 rows from `row` on: by way of shared memory, 64 columns at a time.
__device__ inline void store_rows(Staging& staging, const TensorMap& c_map, const Epilogue& epilogue,
                                  const float (&sums)[BLOCK_N / 2], int row, int col) {
    const int lane = threadIdx.x % 32, own_row = row + lane / 4, own_col = col + lane % 4 * 2;
    // Where this lane's row of stmatrix's four matrices lies: of two tiles of 8 columns, upper and lower 8 rows.
    const int matrix_row = lane % 16, line = matrix_row % 8;
#pragma unroll
    for (int part = 0; part < BLOCK_N / STAGED_COLS; ++part) {
        unsigned char* buffer = staging.next();
#pragma unroll
        for (int j = 0; j < STAGED_COLS / 8; j += 2) {
            const float* own = sums + (part * STAGED_COLS / 8 + j) * 4;
            const int at = own_col + part * STAGED_COLS + j * 8;
            stmatrix_x4(buffer + matrix_row * LINE_BYTES + ((j + lane / 16) ^ line) * 16,
                        finish_pair(epilogue, own_row, at, own[0], own[1]),
                        finish_pair(epilogue, own_row + 8, at, own[2], own[3]),
                        finish_pair(epilogue, own_row, at + 8, own[4], own[5]),
                        finish_pair(epilogue, own_row + 8, at + 8, own[6], own[7]));
        }
        fence_async();
        __syncwarp();
        if (lane == 0) {
            store_tensor(&c_map, buffer, row, col + part * STAGED_COLS);
            bulk_commit();
        }
    }
}

#else
// A warp's 16 rows from `row` on, straight from registers.
__device__ inline void store_rows(const Epilogue& epilogue, const float (&sums)[BLOCK_N / 2], int row,
                                  int col) {
    const int lane = threadIdx.x % 32;
#pragma unroll
    for (int j = 0; j < BLOCK_N / 4; ++j) {
        const Acc pair[2] = {sums[2 * j], sums[2 * j + 1]};
        write_sums<2>(epilogue, row + lane / 4 + j % 2 * 8, col + j / 2 * 8 + lane % 4 * 2, pair);
    }
}
#endif

extern "C" __global__ void __launch_bounds__(THREADS, 1)
    gemm_sm90(const __grid_constant__ TensorMap a_map, const __grid_constant__ TensorMap b_map,
              const __grid_constant__ TensorMap c_map, Out* c, const T* bias, const T* saved, Out* z,
              double alpha, double slope, int m, int n, int k, int ldc) {
    DYNAMIC_SHARED(Shared, shared);
    const int num_tiles_m = (m + BLOCK_M - 1) / BLOCK_M;
    const Problem problem{{(num_tiles_m + CLUSTER - 1) / CLUSTER, (n + BLOCK_N - 1) / BLOCK_N},
                          m,
                          n,
                          (k + BLOCK_K - 1) / BLOCK_K};
    const int warpgroup = threadIdx.x / WARPGROUP;
    start_barriers(*shared);

    if (warpgroup == 0) {
        leave_registers<LOADER_REGISTERS>();
        if (threadIdx.x == 0) load_tiles(*shared, a_map, b_map, problem);
    } else {
        take_registers<CONSUMER_REGISTERS>();
        const Epilogue epilogue{c, bias, saved, z, static_cast<Acc>(alpha), static_cast<Acc>(slope),
                                m, n,    ldc};
        const int consumer = warpgroup - 1, warp = threadIdx.x / 32 % 4;
        Cursor<STAGES> cursor(0);
#if STORES_TENSOR
        Staging staging{shared->staged[consumer * 4 + warp], 0};
#endif
        Sums sums;
        for (int tile = own_cluster(); tile < problem.walk.count(); tile += num_clusters()) {
            const int2 place = problem.walk.place(tile);
            const int first_row = consumer * 64 * MMA_ROWS;
            multiply_tile(sums, *shared, cursor, problem.num_blocks, first_row);
            const int row = (place.x * CLUSTER + own_rank()) * BLOCK_M + first_row + 16 * warp;
#pragma unroll
            for (int i = 0; i < MMA_ROWS; ++i) {
#if STORES_TENSOR
                store_rows(staging, c_map, epilogue, sums[i], row + 64 * i, place.y * BLOCK_N);
#else
                store_rows(epilogue, sums[i], row + 64 * i, place.y * BLOCK_N);
#endif
            }
        }
        if (STORES_TENSOR && threadIdx.x % 32 == 0) bulk_wait_read<0>();
    }
    barrier_of_cluster();  // others may still write to this block's shared memory, and arrive at its barriers
}
