// Computes:  C (m, n) = EPILOGUE(op(A) @ op(B)) on Hopper's tensor cores through wgmma, op the
//            identity or the transposition.
// Layout:    row-major; A (m, k), or (k, m) if TRANSPOSE_A; B (k, n), or (n, k) if TRANSPOSE_B:
//            read through tensor maps (boxes as in mma/operand_tile.cuh, swizzled by 128 bytes; of
//            float32 those that round to tf32, and TRANSPOSE_B); C, with leading dimension ldc, as
//            in gemm/tile_store.cuh, (n, m) if SWAPPED; saved (through its map if LOADS_SAVED) and
//            z like C; bias: of C's columns; partials, arrivals (tiles, warps that multiply,
//            MMA_ROWS) as in gemm/warp_slices.cuh; of one slice, arrivals is the counter of
//            gemm/tile_queue.cuh, or null.
// Launch:    grid: at most as many blocks as run at once, in clusters of CLUSTER; block: a
//            warpgroup that loads, and CONSUMERS that multiply 64 MMA_ROWS rows each of the tile
//            BLOCK_M x BLOCK_N; shared bytes: STAGES stages, what C passes through, barriers
//            (`WgmmaConfig.shared_bytes`). Defines: these, SPLITS, SWATH_ROWS, DTYPE (float32: as
//            tf32), OUT, and those of gemm/epilogue.cuh.
// Numerics:  float32 sums in the order of k within each slice, then over slices; float32 operands
//            are rounded to the nearest tf32 (10 bits of mantissa) as they are copied.
// Cost:      2 m n k FLOP; each cluster reads (CLUSTER BLOCK_M + BLOCK_N) k numbers for its tiles,
//   mostly from L2.
// Reference: matmul, linear_forward and linear_backward of backends/numpy/dense.py; PTX ISA 9.7.15
//            (wgmma), 9.7.9.25.5 (tensor copies).
#define SHARED_ALIGNMENT 1024

#include "gemm/stages.cuh"
#include "gemm/tile_queue.cuh"
#include "gemm/tile_store.cuh"
#include "gemm/tile_walk.cuh"
#include "gemm/warp_slices.cuh"

static_assert(!A_FROM_REGISTERS || !STORES_TENSOR,
              "rows that are not in order go to their places by themselves");

template <bool IN_PAIRS>
struct RowsOf : RowsInOrder {};
template <>
struct RowsOf<true> : RowsInPairs {};
using Rows = RowsOf<A_FROM_REGISTERS>;

struct GemmShared {
    unsigned char stages[STAGES][STAGE_BYTES];
#if STORES_TENSOR
    unsigned char staged[CONSUMER_WARPS][2][STAGED_BYTES];
    Barrier loaded[CONSUMER_WARPS][2];
#endif
    Barrier full[STAGES], empty[STAGES];
    TileQueue queue;
};

__device__ inline int first_row(const Piece& piece) {
    return (piece.row * CLUSTER + own_rank()) * BLOCK_M;
}
__device__ inline int first_col(const Piece& piece) { return piece.col * BLOCK_N; }

// -- load -----------------------------------------------------------------------------------------

__device__ inline void start_barriers(GemmShared& shared) {
    if (threadIdx.x == 0) {
        for (int i = 0; i < STAGES; ++i) {
            mbarrier_init(&shared.full[i], 1);
            mbarrier_init(&shared.empty[i], CONSUMER_WARPS * CLUSTER);
        }
        for (Barrier& told : shared.queue.told) mbarrier_init(&told, 1);
#if STORES_TENSOR
        for (auto& of_warp : shared.loaded) {
            for (Barrier& loaded : of_warp) mbarrier_init(&loaded, 1);
        }
#endif
        fence_mbarrier_init();
    }
    barrier_of_cluster();
}

// Starts the copies of a tile of A, this block's own, and of its part of the tile of B that the
// cluster shares.
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

// One thread: the stages of all of this block's pieces, each as soon as all that read it before
//   have left it.
__device__ inline void load_pieces(GemmShared& shared, const TensorMap& a_map,
                                   const TensorMap& b_map, const TileWalk& walk,
                                   unsigned* counter) {
    Cursor<STAGES> cursor(0);
    PieceTaker taker(shared.queue, counter, walk.count());
    OwnPieces own(shared.queue, counter);
    taker.take();
    for (int idx = own.first(); idx < walk.count(); idx = own.after(idx)) {
        const Piece piece = walk.piece(idx);
        for (int block = 0; block < piece.num_blocks; ++block) {
            wait(shared.empty[cursor.slot], cursor.round + 1);
            if (block == 0) taker.take();
            load_stage(shared.stages[cursor.slot], shared.full[cursor.slot], a_map, b_map,
                       first_row(piece), first_col(piece), (piece.first_block + block) * BLOCK_K);
            cursor.advance<1>();
        }
    }
}

// -- the whole ------------------------------------------------------------------------------------

extern "C" __global__ void __launch_bounds__(THREADS, 1)
    gemm_sm90(const __grid_constant__ TensorMap a_map, const __grid_constant__ TensorMap b_map,
              const __grid_constant__ TensorMap c_map, const __grid_constant__ TensorMap saved_map,
              Out* c, const T* bias, const T* saved, Out* z, double alpha, double slope,
              float* partials, unsigned* arrivals, int m, int n, int k, int ldc) {
    DYNAMIC_SHARED(GemmShared, shared);
    const int rows_of_blocks = (m + BLOCK_M - 1) / BLOCK_M;
    const TileWalk walk{(rows_of_blocks + CLUSTER - 1) / CLUSTER, (n + BLOCK_N - 1) / BLOCK_N,
                        (k + BLOCK_K - 1) / BLOCK_K};
    unsigned* const counter = SPLITS == 1 ? arrivals : nullptr;
    const int warpgroup = threadIdx.x / WARPGROUP;
    start_barriers(*shared);
    take_turn();

    if (warpgroup == 0) {
        leave_registers<LOADER_REGISTERS>();
        if (threadIdx.x == 0) load_pieces(*shared, a_map, b_map, walk, counter);
    } else {
        take_registers<CONSUMER_REGISTERS>();
        const Epilogue epilogue{c,
                                bias,
                                saved,
                                z,
                                static_cast<Acc>(alpha),
                                static_cast<Acc>(slope),
                                SWAPPED ? n : m,
                                SWAPPED ? m : n,
                                ldc};
        const int warp = threadIdx.x / 32 - 4, own_rows = (warpgroup - 1) * CONSUMER_ROWS;
        Cursor<STAGES> cursor(0);
#if STORES_TENSOR
        Staging staging{shared->staged[warp], shared->loaded[warp], c_map, saved_map, 0};
#endif
        Sums sums = {};
        OwnPieces own(shared->queue, counter);
        for (int idx = own.first(); idx < walk.count(); idx = own.after(idx)) {
            const Piece piece = walk.piece(idx);
            multiply_piece(sums, *shared, cursor, piece.num_blocks, own_rows);
            const int block_tile = piece.tile * CLUSTER + own_rank();
#pragma unroll
            for (int i = 0; i < MMA_ROWS; ++i) {
                const int row = first_row(piece) + own_rows + 64 * i + Rows::of_warp(warp);
                if constexpr (SPLITS > 1) {
                    const int64 place =
                        (static_cast<int64>(block_tile) * CONSUMER_WARPS + warp) * MMA_ROWS + i;
                    float* own = partials + place * SPLITS * 32 * (BLOCK_N / 2);
                    if (!add_slices(sums[i], own, arrivals + place, piece.slice)) continue;
                }
#if STORES_TENSOR
                store_rows(staging, epilogue, sums[i], row, first_col(piece));
#else
                store_rows<Rows>(epilogue, sums[i], row, first_col(piece));
#endif
            }
        }
#if STORES_TENSOR
        if (threadIdx.x % 32 == 0) bulk_wait_read<0>();
#endif
    }
    if (CLUSTER > 1) barrier_of_cluster();  // others may still write to this block's shared memory
}
