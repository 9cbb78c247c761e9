// Computes:  parts of the gradients of all layers' shared weights, inputsᵀ @ dz over the rows of
//            all members; member_gradients_sm90.cu adds them up.
// Layout:    inputs (rows, num_inputs, padded to 16 bytes) and dz (rows, UNITS) of bfloat16, read
//            through tensor maps with boxes of 64 by 64; partials as in member_weights.cuh.
// Launch:    grid: blocks that all run at once; block: a warpgroup that loads and two that multiply
//            64 inputs by BLOCK_N units each; SHARED_BYTES of shared memory. Defines: that, UNITS
//            (128, 256 or 512), STAGES.
// Numerics:  float32 sums in the order of rows.
// Cost:      2 rows num_inputs UNITS FLOP a layer; of each unit of work 128 (128 + BLOCK_N) bytes,
//            from L2, and of each block and tile 512 BLOCK_N bytes to memory.
// Reference: linear_backward of backends/numpy/dense.py.
#define SHARED_ALIGNMENT 1024

#include "ops/members/member_weights.cuh"

constexpr int THREADS = WARPGROUP + WORKERS;
constexpr int LOADER_REGISTERS = 40, WORKER_REGISTERS = 232;

using TileX = OperandTile<T, true, BLOCK_M>;
using TileDz = OperandTile<T, true, BLOCK_N>;
constexpr int STAGE_BYTES = TileX::BYTES + TileDz::BYTES;

struct WeightShared {
    unsigned char stages[STAGES][STAGE_BYTES];
    Barrier full[STAGES], empty[STAGES];
};

static_assert(sizeof(WeightShared) == SHARED_BYTES, "member_layers.py counts them");

// The parts of tiles that a block has: calls part(tile, first unit of the tile, count).
template <class Part>
__device__ inline void for_each_part(const WeightList& list, Part part) {
    const int size = list.units_of_tile;
    int unit = blockIdx.x * list.units_of_block;
    const int end = min(unit + list.units_of_block, list.num_tiles * size);
    while (unit < end) {
        const int tile = unit / size, first = unit % size, count = min(size - first, end - unit);
        part(tile, first, count);
        unit += count;
    }
}

// One thread: the stages of all parts, each as soon as all that read it before have left it.
__device__ inline void load_parts(WeightShared& shared, const WeightList& list) {
    Cursor<STAGES> cursor(0);
    for_each_part(list, [&](int number, int first, int count) {
        const WeightTile tile(list, number);
        const WeightLayer& layer = list.layers[tile.layer];
        for (int k = first * BLOCK_K; k < (first + count) * BLOCK_K; k += BLOCK_K) {
            unsigned char* stage = shared.stages[cursor.slot];
            Barrier& full = shared.full[cursor.slot];
            wait(shared.empty[cursor.slot], cursor.round + 1);
            mbarrier_expect(&full, STAGE_BYTES);
            TileX::for_each_box<1>(0, tile.row, k, [&](int byte, int row, int col) {
                copy_tensor(stage + byte, &layer.inputs, row, col, &full);
            });
            TileDz::for_each_box<1>(0, tile.col, k, [&](int byte, int row, int col) {
                copy_tensor(stage + TileX::BYTES + byte, &layer.dz, row, col, &full);
            });
            cursor.advance<1>();
        }
    });
}

using Sums = float[BLOCK_N / 2];

__device__ inline void multiply_part(Sums& sums, WeightShared& shared, Cursor<STAGES>& cursor,
                                     int count, int own_rows) {
    int before = 0;
    for (int i = 0; i < count; ++i) {
        wait(shared.full[cursor.slot], cursor.round);
        multiply_tiles<TileX, TileDz>(sums, shared.stages[cursor.slot], own_rows, i > 0);
        wgmma_wait<1>();
        if (i > 0) arrive_warp(shared.empty[before]);
        before = cursor.slot;
        cursor.advance<1>();
    }
    wgmma_wait<0>();
    arrive_warp(shared.empty[before]);
}

extern "C" __global__ void __launch_bounds__(THREADS, 1)
    member_weights_sm90(const __grid_constant__ WeightList list, float4* partials) {
    DYNAMIC_SHARED(WeightShared, shared);
    if (threadIdx.x == 0) {
        for (int i = 0; i < STAGES; ++i) {
            mbarrier_init(&shared->full[i], 1);
            mbarrier_init(&shared->empty[i], OF_WARP * WORKERS / 32);
        }
        fence_mbarrier_init();
    }
    __syncthreads();
    take_turn();
    if (threadIdx.x < WARPGROUP) {
        leave_registers<LOADER_REGISTERS>();
        if (threadIdx.x == 0) load_parts(*shared, list);
    } else {
        take_registers<WORKER_REGISTERS>();
        const int own = threadIdx.x - WARPGROUP;
        Cursor<STAGES> cursor(0);
        for_each_part(list, [&](int tile, int, int count) {
            Sums sums = {};
            multiply_part(sums, *shared, cursor, count, own / WARPGROUP * 64);
            float4* to = partials + slot_of(blockIdx.x, tile) + own;
#pragma unroll
            for (int i = 0; i < FOURS; ++i) {
                to[i * WORKERS] = {sums[4 * i], sums[4 * i + 1], sums[4 * i + 2], sums[4 * i + 3]};
            }
        });
    }
}
