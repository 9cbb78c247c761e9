// Computes:  for each part its share of dw[k, l, c, o] = sum of x[m, i stride + k dilation -
//            padding, ..., c] dz[m, i, j, o] over windows (m, i, j), on Hopper's tensor cores
//            through wgmma: x transposed times dz, a product for every tap and 64 channels.
// Layout:    x (M, height, width, channels) through x_map, in boxes of 64 windows, and dz (M, rows,
//            columns, outputs) through dz_map in the same, as image_boxes.cuh has them. partials: a
//            row for each part, of KH KW channels outputs numbers as dw, and as many outputs that
//            stay as they are.
// Launch:    grid: run_blocks for each run_tiles of the tiles, as Runs has it; a tile has BLOCK_M /
//            64 panels, each 64 channels of a tap, and BLOCK_N outputs. block: as in
//            gemm/stages.cuh, whose defines these are. shared bytes: STAGES stages and barriers
//            (`BoxTiling.shared_bytes`).
// Numerics:  float32 sums, in the order of windows.
// Cost:      2 windows taps channels outputs FLOP, and those of what fills up tiles and boxes;
//            reads x for every tile of outputs, and dz for every tile of panels, mostly from L2.
// Reference: conv2d_backward_weight of backends/numpy/conv.py; PTX ISA 9.7.15 (wgmma), 9.7.9.25.5
//            (tensor copies).
#define SHARED_ALIGNMENT 1024
#define TRANSPOSE_A 1
#define TRANSPOSE_B 0

#include "gemm/stages.cuh"
#include "ops/conv/boxes/image_boxes.cuh"

struct BoxShared {
    unsigned char stages[STAGES][STAGE_BYTES];
    Barrier full[STAGES], empty[STAGES];
};

constexpr int PANEL = LINE_BYTES / sizeof(T);  // channels, or outputs
constexpr int X_PANELS = BLOCK_M / PANEL, DZ_PANELS = BLOCK_N / PANEL;
static_assert(CLUSTER == 1, "a block has a tile of its own");

struct WeightProduct {
    Boxes boxes;
    AxisTaps rows, columns;
    int channels, outputs;

    __device__ int panels_of_tap() const { return (channels + PANEL - 1) / PANEL; }
    __device__ int num_taps() const { return rows.taps * columns.taps; }
    __device__ int output_tiles() const {
        return (outputs + DZ_PANELS * PANEL - 1) / (DZ_PANELS * PANEL);
    }
};

// How boxes of windows are partitioned: a run has `tiles` tiles, and those of one after the other
// go to `blocks` blocks in equal numbers. Neighbouring blocks are of different runs, and of
// neighbouring tiles: they ask for the same windows at the same time.
struct Runs {
    int tiles, blocks;
    int64 boxes;  // of a tile

    __device__ int64 count() const { return tiles * boxes; }
    // Where a block of a run begins, and which block has a box.
    __device__ int64 first(int block) const { return block * count() / blocks; }
    __device__ int block_of(int64 box) const {
        return static_cast<int>(((box + 1) * blocks - 1) / count());
    }
};

// The boxes that a block has of a tile of dw, whose sums are row `part` of the partials. Rows up to
// end_part have no others'.
struct Piece {
    int first_panel, first_output, part, end_part;
    int first_box, num_boxes;
};

// Calls call(piece) for each of this block's.
template <class Call>
__device__ inline void for_each_piece(const WeightProduct& product, const Runs& runs, int parts,
                                      Call call) {
    const int num_runs = gridDim.x / runs.blocks;
    const int block = blockIdx.x / num_runs, run = blockIdx.x - block * num_runs;
    const int64 end = runs.first(block + 1);
    for (int64 box = runs.first(block); box < end;) {
        const int in_run = static_cast<int>(box / runs.boxes), tile = in_run * num_runs + run;
        const int64 first = in_run * runs.boxes, last = min(first + runs.boxes, end);
        const int part = block - runs.block_of(first);
        call(Piece{tile / product.output_tiles() * X_PANELS,
                   tile % product.output_tiles() * DZ_PANELS * PANEL, part,
                   last == first + runs.boxes ? parts : part + 1, static_cast<int>(box - first),
                   static_cast<int>(last - box)});
        box = last;
    }
}

__device__ inline void start_barriers(BoxShared& shared) {
    if (threadIdx.x == 0) {
        for (int i = 0; i < STAGES; ++i) {
            mbarrier_init(&shared.full[i], 1);
            mbarrier_init(&shared.empty[i], CONSUMER_WARPS);
        }
        fence_mbarrier_init();
    }
    __syncthreads();
}

// What the first window sees of a panel: a pixel, and a channel; beyond the last tap's there are
// zeros.
struct PanelStart {
    int row, column, channel;

    __device__ void find(const WeightProduct& product, int panel) {
        const int tap = panel / product.panels_of_tap();
        const int kh = tap / product.columns.taps, kw = tap - kh * product.columns.taps;
        row = product.rows.pixel(0, kh), column = product.columns.pixel(0, kw);
        channel = tap < product.num_taps() ? (panel - tap * product.panels_of_tap()) * PANEL
                                           : product.channels;
    }
};

// One thread. What panels and boxes have in common it finds once: others wait for what it asks for.
__device__ inline void load_boxes(BoxShared& shared, const TensorMap& x_map,
                                  const TensorMap& dz_map, const WeightProduct& product,
                                  const Piece& piece, Cursor<STAGES>& cursor) {
    PanelStart starts[X_PANELS];
#pragma unroll
    for (int i = 0; i < X_PANELS; ++i) starts[i].find(product, piece.first_panel + i);
    Extent first = product.boxes.first(piece.first_box);
#pragma unroll 1
    for (int box = 0; box < piece.num_boxes; ++box) {
        Barrier& full = shared.full[cursor.slot];
        unsigned char* stage = shared.stages[cursor.slot];
        wait(shared.empty[cursor.slot], cursor.round + 1);
        mbarrier_expect(&full, STAGE_BYTES);
        const int row = first.rows * product.rows.stride,
                  column = first.columns * product.columns.stride;
#pragma unroll
        for (int i = 0; i < X_PANELS; ++i) {
            copy_images(stage + i * TileA::PANEL_BYTES, &x_map, first.images, row + starts[i].row,
                        column + starts[i].column, starts[i].channel, &full);
        }
#pragma unroll
        for (int i = 0; i < DZ_PANELS; ++i) {
            copy_images(stage + TileA::BYTES + i * TileB::PANEL_BYTES, &dz_map, first.images,
                        first.rows, first.columns, piece.first_output + i * PANEL, &full);
        }
        product.boxes.advance(first);
        cursor.advance<1>();
    }
}

// Where a channel of a panel, from the first of a tile on, has its outputs; null if there is none.
__device__ inline float* place_of(float* part, const WeightProduct& product, int panel,
                                  int in_panel) {
    const int tap = panel / product.panels_of_tap();
    const int channel = (panel - tap * product.panels_of_tap()) * PANEL + in_panel;
    if (tap >= product.num_taps() || channel >= product.channels) return nullptr;
    return part + (static_cast<int64>(tap) * product.channels + channel) * product.outputs;
}

// Stores the sums of 64 rows of a tile, channels of a tap, from `first_row` on.
__device__ inline void store_sums_of(const float (&sums)[BLOCK_N / 2], float* part,
                                     const WeightProduct& product, const Piece& piece,
                                     int first_row) {
    const int lane = threadIdx.x % 32;
#pragma unroll
    for (int h = 0; h < 2; ++h) {
        const int row = threadIdx.x / 32 % 4 * 16 + h * 8 + lane / 4;
        float* to = place_of(part, product, piece.first_panel + first_row / PANEL, row);
        if (to == nullptr) continue;
#pragma unroll
        for (int j = 0; j < BLOCK_N / 8; ++j) {
            const int output = piece.first_output + 8 * j + lane % 4 * 2;
            if (output >= product.outputs) continue;
            *reinterpret_cast<float2*>(to + output) =
                float2{sums[4 * j + 2 * h], sums[4 * j + 2 * h + 1]};
        }
    }
}

// Writes zeros to a piece's tile, by the lanes of some warps, of which this is number `thread`,
// where no other block has some of it.
__device__ inline void clear_rest(float* partials, int64 numbers, const WeightProduct& product,
                                  const Piece& piece, int thread, int num_threads) {
    constexpr int CHUNKS = DZ_PANELS * PANEL / 4;
    for (int part = piece.part + 1; part < piece.end_part; ++part) {
        for (int i = thread; i < X_PANELS * PANEL * CHUNKS; i += num_threads) {
            const int row = i / CHUNKS, output = piece.first_output + i % CHUNKS * 4;
            float* to = place_of(partials + part * numbers, product,
                                 piece.first_panel + row / PANEL, row % PANEL);
            if (to == nullptr || output >= product.outputs) continue;
            *reinterpret_cast<float4*>(to + output) = float4{0, 0, 0, 0};
        }
    }
}

extern "C" __global__ void __launch_bounds__(THREADS, 1) conv2d_backward_weight_boxes_sm90(
    const __grid_constant__ TensorMap x_map, const __grid_constant__ TensorMap dz_map,
    float* partials, int parts, int run_tiles, int run_blocks, int num_images, int num_rows,
    int num_columns, int box_images, int box_rows, int box_columns, int channels, int outputs,
    int kernel_height, int kernel_width, int row_stride, int column_stride, int row_padding,
    int column_padding, int row_dilation, int column_dilation) {
    DYNAMIC_SHARED(BoxShared, shared);
    const WeightProduct product{
        {{num_images, num_rows, num_columns}, {box_images, box_rows, box_columns}},
        {kernel_height, 0, 1, row_stride, -row_padding, row_dilation},
        {kernel_width, 0, 1, column_stride, -column_padding, column_dilation},
        channels,
        outputs};
    const Runs runs{run_tiles, run_blocks, product.boxes.counts().count()};
    const int64 numbers = (static_cast<int64>(product.num_taps()) * channels + 1) * product.outputs;
    const int warpgroup = threadIdx.x / WARPGROUP;
    start_barriers(*shared);
    take_turn();

    if (warpgroup == 0) {
        leave_registers<LOADER_REGISTERS>();
        Cursor<STAGES> cursor(0);
        for_each_piece(product, runs, parts, [&](const Piece& piece) {
            if (threadIdx.x >= 32) {
                clear_rest(partials, numbers, product, piece, threadIdx.x - 32, WARPGROUP - 32);
            } else if (threadIdx.x == 0) {
                load_boxes(*shared, x_map, dz_map, product, piece, cursor);
            }
        });
    } else {
        take_registers<CONSUMER_REGISTERS>();
        const int own_rows = (warpgroup - 1) * CONSUMER_ROWS;
        Cursor<STAGES> cursor(0);
        for_each_piece(product, runs, parts, [&](const Piece& piece) {
            Sums sums = {};
            multiply_piece(sums, *shared, cursor, piece.num_boxes, own_rows);
            float* part = partials + piece.part * numbers;
#pragma unroll
            for (int i = 0; i < MMA_ROWS; ++i) {
                store_sums_of(sums[i], part, product, piece, own_rows + 64 * i);
            }
        });
    }
}
