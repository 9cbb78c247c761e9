// What the kernels share that take rows of ensembles through all layers: a block has 64 rows of one
// member, which it multiplies by one layer's weights after the other.
//
// Rows stand in shared memory as operand A, panels of 64 inputs; weights come by tensor copies, in
// rings of slots, one ring for each of two warpgroups, which have the halves of a layer's units.
// Two blocks, a cluster, load half of each slot for both. Of its sums a thread has, in groups of 64
// units, two rows, 8 apart, and of every 8 units two (ptx_sm90a.cuh). Barrier 1 is where the
// threads that multiply meet.
#pragma once

#include "mma/fragments.cuh"
#include "mma/operand_tile.cuh"
#include "ptx/barriers.cuh"
#include "ptx/cluster.cuh"

using T = bfloat16;

constexpr int MOST_LAYERS = 5;
constexpr int ROWS = 64;  // of a block
constexpr int WARPGROUP = 128, WORKERS = 2 * WARPGROUP, THREADS = WARPGROUP + WORKERS;
constexpr int LOADER_REGISTERS = 56, WORKER_REGISTERS = 224;
// Nobody gets registers that the block was not launched with: whoever takes more waits for ever.
static_assert(WARPGROUP * LOADER_REGISTERS + WORKERS * WORKER_REGISTERS <=
                  THREADS * (65536 / THREADS / 8 * 8),
              "all threads find their registers");
constexpr int PANEL = 64;  // numbers along k
constexpr int PANEL_BYTES = ROWS * LINE_BYTES;
constexpr int OWN_UNITS = UNITS / 2;  // of a warpgroup
constexpr int SLOT_UNITS = OWN_UNITS < 128 ? OWN_UNITS : 128;
constexpr int PARTS = OWN_UNITS / SLOT_UNITS;
constexpr int SLOT_BYTES = SLOT_UNITS * LINE_BYTES;
constexpr int SLOTS = 4;
constexpr int GROUPS = OWN_UNITS / PANEL;  // of 64 units
constexpr int GROUPS_OF_SLOT = SLOT_UNITS / PANEL;
constexpr int TILES = PANEL / 8;  // of a group, 8 units each
constexpr int PAIRS = 2 * TILES;  // of a thread in a group: of each tile one in each row
static_assert(UNITS % (2 * PANEL) == 0, "groups are whole");

using PartSums = float[SLOT_UNITS / 2];
using Sums = PartSums[PARTS];

// A layer of all members. What is a member's own follows that of the one before; null for
// next_scale stands for ones.
struct alignas(64) MemberLayer {
    TensorMap weight, inputs, dz;  // inputs, dz (members, padded rows)
    const float *scale, *bias, *next_scale;
};

static_assert(sizeof(MemberLayer) == 448, "member_layers.py packs this struct");

struct MemberNetwork {
    MemberLayer layers[MOST_LAYERS];
    int num_layers, num_inputs, num_outputs;
    int num_rows;    // of a member
    int num_blocks;  // of a member, of which the last ones may have no rows
    int is_common;   // whether all members have the same inputs
};

struct Rings {
    unsigned char slots[2][SLOTS][SLOT_BYTES];
    Barrier full[2][SLOTS], empty[2][SLOTS];
};

// Which rows a block has.
struct Place {
    int member, block;  // of the member
    int first_row;      // of the member's

    __device__ explicit Place(const MemberNetwork& network)
        : member(blockIdx.x / network.num_blocks),
          block(blockIdx.x % network.num_blocks),
          first_row(block * ROWS) {}

    // The first row in arrays whose members are padded to whole blocks.
    __device__ int padded_row() const { return blockIdx.x * ROWS; }
};

// This thread's place among those that multiply.
struct Worker {
    int number, half, warp, lane;

    __device__ explicit Worker(int own = static_cast<int>(threadIdx.x) - WARPGROUP)
        : number(own), half(number / WARPGROUP), warp(number / 32 % 4), lane(number % 32) {}

    // Its first row, of the block's; the other is 8 further.
    __device__ int row() const { return 16 * warp + lane / 4; }
    // Its first unit of a group's first tile.
    __device__ int unit(int group) const { return half * OWN_UNITS + group * PANEL + lane % 4 * 2; }
};

__device__ inline void meet() { meet_at<WORKERS>(1); }

__device__ inline int num_panels(int size) { return (size + PANEL - 1) / PANEL; }

// -- weights --------------------------------------------------------------------------------------

// One thread: slots of weights, each as soon as all that read it before have left it.
struct Loader {
    Rings& rings;
    Cursor<SLOTS> cursors[2]{Cursor<SLOTS>(0), Cursor<SLOTS>(0)};

    __device__ void load(int half, const TensorMap& map, int row, int col) {
        constexpr int BYTES = SLOT_BYTES / CLUSTER;
        Cursor<SLOTS>& cursor = cursors[half];
        Barrier& full = rings.full[half][cursor.slot];
        unsigned char* to = rings.slots[half][cursor.slot] + own_rank() * BYTES;
        wait(rings.empty[half][cursor.slot], cursor.round + 1);
        mbarrier_expect(&full, SLOT_BYTES);
        copy_tensor_to_cluster(to, &map, row, col, &full, (1 << CLUSTER) - 1);
        cursor.advance<1>();
    }
};

constexpr int BOX = SLOT_UNITS / CLUSTER;  // lines of a block's part of a slot

// Weights (inputs, UNITS) as they are multiplied forward: of 64 inputs a part's units.
struct Forward {
    using Tile = OperandTile<T, true, SLOT_UNITS>;

    // A box is some lines, each an input, of 64 units.
    __device__ static void load(Loader& loader, int half, const TensorMap& map, int panel,
                                int unit) {
        constexpr int BOXES = PANEL / BOX;  // of 64 units
        loader.load(half, map, panel * PANEL + own_rank() % BOXES * BOX,
                    unit + own_rank() / BOXES * PANEL);
    }
};

// Transposed: of 64 units a part's inputs.
struct Backward {
    using Tile = OperandTile<T, false, SLOT_UNITS>;

    __device__ static void load(Loader& loader, int half, const TensorMap& map, int panel,
                                int input) {
        loader.load(half, map, input + own_rank() * BOX, panel * PANEL);
    }
};

// What `multiply` takes of a layer.
template <class Direction>
__device__ inline void load_layer(Loader& loader, const TensorMap& map, int panels) {
    for (int panel = 0; panel < panels; ++panel) {
        for (int part = 0; part < PARTS; ++part) {
            for (int half = 0; half < 2; ++half) {
                Direction::load(loader, half, map, panel, half * OWN_UNITS + part * SLOT_UNITS);
            }
        }
    }
}

// -- products -------------------------------------------------------------------------------------

// This warp has read a slot.
__device__ inline void release(Barrier& empty) {
    const unsigned lane = threadIdx.x % 32;
    if (lane < CLUSTER) mbarrier_arrive_at(cluster_address(&empty, lane));
}

// Products that a warpgroup has under way, one slot of weights after the other.
struct Pipeline {
    Rings& rings;
    int half;
    Cursor<SLOTS> cursor{0};
    int before = -1;  // the slot of the product that is waited for next

    // sums (+)= a panel of rows times the next slot; returns while that is under way.
    template <class Direction>
    __device__ void start(PartSums& sums, const unsigned char* panel, bool adds) {
        using TileA = OperandTile<T, false, ROWS>;
        using TileB = typename Direction::Tile;
        wait(rings.full[half][cursor.slot], cursor.round);
        const uint64 a = TileA::descriptor(shared_address(panel), 0),
                     b = TileB::descriptor(shared_address(rings.slots[half][cursor.slot]), 0);
        wgmma_fence();
#pragma unroll
        for (int slice = 0; slice < SLICES; ++slice) {
            SliceProduct<T, false, TileB::ACROSS>::add_to(sums, moved(a, slice * TileA::SLICE_STEP),
                                                          moved(b, slice * TileB::SLICE_STEP),
                                                          adds || slice > 0);
        }
        wgmma_commit();
    }

    // Waits for all products but the one started last.
    __device__ void advance() {
        wgmma_wait<1>();
        if (before >= 0) release(rings.empty[half][before]);
        before = cursor.slot;
        cursor.advance<1>();
    }

    __device__ void finish() {
        wgmma_wait<0>();
        release(rings.empty[half][before]);
        before = -1;
    }
};

// sums = the rows times a layer's weights.
template <class Direction>
__device__ inline void multiply(Sums& sums, Pipeline& pipeline, const unsigned char* rows,
                                int panels) {
#pragma unroll 1
    for (int panel = 0; panel < panels; ++panel) {
#pragma unroll
        for (int part = 0; part < PARTS; ++part) {
            pipeline.start<Direction>(sums[part], rows + panel * PANEL_BYTES, panel > 0);
            pipeline.advance();
        }
    }
    pipeline.finish();
}

// -- rows -----------------------------------------------------------------------------------------

// A thread's sum of a group: of a tile, in its upper or lower row, the first or second unit.
__device__ inline float& sum_at(Sums& sums, int group, int tile, int lower, int i) {
    return sums[group / GROUPS_OF_SLOT]
               [(group % GROUPS_OF_SLOT * TILES + tile) * 4 + 2 * lower + i];
}

// This thread's pair of a tile of a group in the rows' panels, in its upper or lower row.
__device__ inline unsigned& pair_at(unsigned char* rows, const Worker& own, int group, int tile,
                                    int lower) {
    const int row = own.row() + 8 * lower;
    return *reinterpret_cast<unsigned*>(rows + (own.half * GROUPS + group) * PANEL_BYTES +
                                        row * LINE_BYTES + (tile ^ row % 8) * 16 +
                                        own.lane % 4 * 4);
}

// All workers: what they wrote to the rows is there for products, and goes to memory.
__device__ inline void publish(const unsigned char* rows, const TensorMap& map, int first_row,
                               int panels, const Worker& own, bool is_stored) {
    fence_async();
    meet();
    if (!is_stored || own.number != 0) return;
    for (int panel = 0; panel < panels; ++panel) {
        store_tensor(&map, rows + panel * PANEL_BYTES, first_row, panel * PANEL);
    }
    bulk_commit();
}

// All workers: nobody reads the rows any more.
__device__ inline void await_readers(const Worker& own) {
    if (own.number == 0) bulk_wait_read<0>();
    meet();
}

// What a block keeps of a layer from the forward to the backward pass, in the order of its threads:
// sums before they are scaled, and which units were kept.
struct Kept {
    uint4* sums;     // (layers, blocks, GROUPS, PAIRS / 4, WORKERS): PAIRS packed pairs
    unsigned* bits;  // (layers, blocks, GROUPS, WORKERS): 16 lower ... of the upper row, then 16

    // This thread's of a layer: those of group g lie g WORKERS further, and of sums i each WORKERS.
    __device__ Kept of_layer(int layer, const Worker& own) const {
        const int64 place = (static_cast<int64>(layer) * gridDim.x + blockIdx.x) * GROUPS;
        return {sums + place * (PAIRS / 4) * WORKERS + own.number,
                bits + place * WORKERS + own.number};
    }
    __device__ uint4& sums_at(int group, int i) const {
        return sums[(group * (PAIRS / 4) + i) * WORKERS];
    }
    __device__ unsigned& bits_at(int group) const { return bits[group * WORKERS]; }
};

// Which bit of `Kept::bits` a unit has.
__device__ inline constexpr int bit_of(int tile, int lower, int i) {
    return 16 * lower + 2 * tile + i;
}

// A member's vectors of two layers, in turns: the one that is multiplied, and the next, which comes
// by bulk copies meanwhile.
struct Vectors {
    struct Layer {
        float scale[UNITS], bias[UNITS], next_scale[UNITS];
    };
    Layer layers[2];
    Barrier loaded[2];

    // One worker: the vectors of the turn begin to come.
    __device__ void load(int turn, const MemberLayer& layer, int member) {
        constexpr unsigned BYTES = UNITS * sizeof(float);
        Layer& to = layers[turn % 2];
        Barrier& barrier = loaded[turn % 2];
        const int64 first = static_cast<int64>(member) * UNITS;
        mbarrier_expect(&barrier, layer.next_scale ? 3 * BYTES : 2 * BYTES);
        copy_bulk(to.scale, layer.scale + first, BYTES, &barrier);
        copy_bulk(to.bias, layer.bias + first, BYTES, &barrier);
        if (layer.next_scale) copy_bulk(to.next_scale, layer.next_scale + first, BYTES, &barrier);
    }

    // All workers, before they meet: ones, which no copy brings.
    __device__ void fill_ones(int turn, const MemberLayer& layer, const Worker& own) {
        if (layer.next_scale) return;
        for (int unit = own.number; unit < UNITS; unit += WORKERS)
            layers[turn % 2].next_scale[unit] = 1;
    }

    __device__ const Layer& await(int turn) {
        wait(loaded[turn % 2], turn / 2);
        return layers[turn % 2];
    }
};

// The weights (UNITS, outputs) of a member's head: held, which come once, if it has so few outputs.
constexpr int OUTPUTS_HELD = 2;

// Of two units, for COUNT outputs; `weights` is the first one's.
template <int COUNT>
struct alignas(8 * COUNT) HeadPair {
    float of_unit[2][COUNT];

    __device__ static const HeadPair& at(const float* weights) {
        return *reinterpret_cast<const HeadPair*>(weights);
    }
};

struct Head {
    alignas(16) float weights[UNITS * OUTPUTS_HELD];
    Barrier loaded;

    __device__ static bool is_held(int outputs) { return outputs <= OUTPUTS_HELD; }

    // One worker.
    __device__ void load(const float* head, int member, int outputs) {
        if (!is_held(outputs)) return;
        const unsigned bytes = UNITS * outputs * sizeof(float);
        mbarrier_expect(&loaded, bytes);
        copy_bulk(weights, head + static_cast<int64>(member) * UNITS * outputs, bytes, &loaded);
    }

    // Where the member's weights (UNITS, outputs) are.
    __device__ const float* await(const float* head, int member, int outputs) {
        if (!is_held(outputs)) return head + static_cast<int64>(member) * UNITS * outputs;
        wait(loaded, 0);
        return weights;
    }
};

__device__ inline float2 pair_of(const float* vector, int unit) {
    return *reinterpret_cast<const float2*>(vector + unit);
}

__device__ inline void start_barriers(Rings& rings, Vectors& vectors, Head& head) {
    if (threadIdx.x == 0) {
        mbarrier_init(&head.loaded, 1);
        for (Barrier& loaded : vectors.loaded) mbarrier_init(&loaded, 1);
        for (int half = 0; half < 2; ++half) {
            for (int i = 0; i < SLOTS; ++i) {
                mbarrier_init(&rings.full[half][i], 1);
                mbarrier_init(&rings.empty[half][i], 4 * CLUSTER);
            }
        }
        fence_mbarrier_init();
    }
    barrier_of_cluster();
}
