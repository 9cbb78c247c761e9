// Computes:  for each part its share of dw[k, l, c, o] = sum of x[m, i stride + k dilation -
//            padding, ..., c] dz[m, i, j, o] over windows (m, i, j), on Hopper's tensor cores
//            through wgmma: x transposed times dz, a product for every tap and 64 channels.
// Layout:    x (M, height, width, channels) through x_map, in boxes of 64 windows, and dz (M, rows,
//            columns, outputs) through dz_map in the same, as image_boxes.cuh has them. partials: a
//            row for each part, of KH KW channels outputs numbers as dw, and as many outputs that
//            stay as they are.
// Launch:    grid: parts, each of as many blocks as there are tiles, in clusters of CLUSTER; a tile
//            has BLOCK_M / 64 panels, each 64 channels of a tap, and BLOCK_N outputs. block: as in
//            gemm/stages.cuh, whose defines these are. shared bytes: STAGES stages and barriers
//            (`WeightTiling.shared_bytes`).
// Numerics:  float32 sums, in the order of windows.
// Cost:      2 windows taps channels outputs FLOP, and those of what fills up tiles and boxes;
//            reads x for every BLOCK_N outputs, and dz for every CLUSTER BLOCK_M panels, mostly from
//            L2.
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

constexpr int PANEL = LINE_BYTES / sizeof(T);  // channels
constexpr int PANELS = BLOCK_M / PANEL;
static_assert(BLOCK_N / PANEL % CLUSTER == 0, "blocks of a cluster share whole panels of dz");

struct WeightProduct {
    Boxes boxes;
    AxisTaps rows, columns;
    int channels, outputs;

    __device__ int panels_of_tap() const { return (channels + PANEL - 1) / PANEL; }
    __device__ int num_taps() const { return rows.taps * columns.taps; }
    __device__ int row_tiles() const {
        const int panels = num_taps() * panels_of_tap();
        return (panels + CLUSTER * PANELS - 1) / (CLUSTER * PANELS);
    }
    __device__ int column_tiles() const { return (outputs + BLOCK_N - 1) / BLOCK_N; }
};

// Which tile of dw a block has, and which boxes of windows.
struct Share {
    int part, first_panel, first_output;
    int first_box, num_boxes;

    __device__ Share(const WeightProduct& product, int parts) {
        const int tiles = product.row_tiles() * product.column_tiles();
        const int cluster = blockIdx.x / CLUSTER, tile = cluster % tiles;
        part = cluster / tiles;
        first_panel = (tile / product.column_tiles() * CLUSTER + own_rank()) * PANELS;
        first_output = tile % product.column_tiles() * BLOCK_N;
        const int64 count = product.boxes.counts().count();
        first_box = static_cast<int>(count * part / parts);
        num_boxes = static_cast<int>(count * (part + 1) / parts) - first_box;
    }
};

__device__ inline void start_barriers(BoxShared& shared) {
    if (threadIdx.x == 0) {
        for (int i = 0; i < STAGES; ++i) {
            mbarrier_init(&shared.full[i], 1);
            mbarrier_init(&shared.empty[i], CONSUMER_WARPS * CLUSTER);
        }
        fence_mbarrier_init();
    }
    barrier_of_cluster();
}

// The panels of x that the windows of a box see; beyond the last tap's zeros.
__device__ inline void load_x(unsigned char* tile, Barrier& full, const TensorMap& x_map,
                              const WeightProduct& product, const Extent& first, int first_panel) {
#pragma unroll
    for (int i = 0; i < PANELS; ++i) {
        const int panel = first_panel + i, tap = panel / product.panels_of_tap();
        const int kh = tap / product.columns.taps, kw = tap - kh * product.columns.taps;
        const int channel = tap < product.num_taps()
                                ? (panel - tap * product.panels_of_tap()) * PANEL
                                : product.channels;
        copy_images(tile + i * TileA::PANEL_BYTES, &x_map, first.images,
                    product.rows.pixel(first.rows, kh), product.columns.pixel(first.columns, kw),
                    channel, &full);
    }
}

// This block's part of the panels of dz that the cluster shares.
__device__ inline void load_dz(unsigned char* tile, Barrier& full, const TensorMap& dz_map,
                               const Extent& first, int first_output) {
    constexpr int OWN = BLOCK_N / PANEL / CLUSTER;
#pragma unroll
    for (int i = 0; i < OWN; ++i) {
        const int panel = own_rank() * OWN + i;
        unsigned char* to = tile + panel * TileB::PANEL_BYTES;
        const int output = first_output + panel * PANEL;
        if constexpr (CLUSTER > 1) {
            copy_images_to_cluster(to, &dz_map, first.images, first.rows, first.columns, output,
                                   &full, (1 << CLUSTER) - 1);
        } else {
            copy_images(to, &dz_map, first.images, first.rows, first.columns, output, &full);
        }
    }
}

__device__ inline void load_boxes(BoxShared& shared, const TensorMap& x_map,
                                  const TensorMap& dz_map, const WeightProduct& product,
                                  const Share& share) {
    Cursor<STAGES> cursor(0);
    for (int box = 0; box < share.num_boxes; ++box) {
        const Extent first = product.boxes.first(share.first_box + box);
        Barrier& full = shared.full[cursor.slot];
        unsigned char* stage = shared.stages[cursor.slot];
        wait(shared.empty[cursor.slot], cursor.round + 1);
        mbarrier_expect(&full, STAGE_BYTES);
        load_x(stage, full, x_map, product, first, share.first_panel);
        load_dz(stage + TileA::BYTES, full, dz_map, first, share.first_output);
        cursor.advance<1>();
    }
}

// Stores the sums of 64 rows, which are channels of a tap.
__device__ inline void store_panel(const float (&sums)[BLOCK_N / 2], float* part,
                                   const WeightProduct& product, int panel, int first_output) {
    const int tap = panel / product.panels_of_tap(), lane = threadIdx.x % 32;
    if (tap >= product.num_taps()) return;
    const int first = (panel - tap * product.panels_of_tap()) * PANEL;
#pragma unroll
    for (int h = 0; h < 2; ++h) {
        const int channel = first + threadIdx.x / 32 % 4 * 16 + h * 8 + lane / 4;
        if (channel >= product.channels) continue;
        float* to = part + (static_cast<int64>(tap) * product.channels + channel) * product.outputs;
#pragma unroll
        for (int j = 0; j < BLOCK_N / 8; ++j) {
            const int output = first_output + 8 * j + lane % 4 * 2;
            if (output >= product.outputs) continue;
            *reinterpret_cast<float2*>(to + output) =
                float2{sums[4 * j + 2 * h], sums[4 * j + 2 * h + 1]};
        }
    }
}

extern "C" __global__ void __launch_bounds__(THREADS, 1)
    conv2d_backward_weight_boxes_sm90(const __grid_constant__ TensorMap x_map,
                                      const __grid_constant__ TensorMap dz_map, float* partials,
                                      int parts, int num_images, int num_rows, int num_columns,
                                      int box_images, int box_rows, int box_columns, int channels,
                                      int outputs, int kernel_height, int kernel_width,
                                      int row_stride, int column_stride, int row_padding,
                                      int column_padding, int row_dilation, int column_dilation) {
    DYNAMIC_SHARED(BoxShared, shared);
    const WeightProduct product{
        {{num_images, num_rows, num_columns}, {box_images, box_rows, box_columns}},
        {kernel_height, 0, 1, row_stride, -row_padding, row_dilation},
        {kernel_width, 0, 1, column_stride, -column_padding, column_dilation},
        channels,
        outputs};
    const Share share(product, parts);
    const int warpgroup = threadIdx.x / WARPGROUP;
    start_barriers(*shared);
    take_turn();

    if (warpgroup == 0) {
        leave_registers<LOADER_REGISTERS>();
        if (threadIdx.x == 0) load_boxes(*shared, x_map, dz_map, product, share);
    } else {
        take_registers<CONSUMER_REGISTERS>();
        const int own_rows = (warpgroup - 1) * CONSUMER_ROWS;
        Cursor<STAGES> cursor(0);
        Sums sums = {};
        if (share.num_boxes > 0) multiply_piece(sums, *shared, cursor, share.num_boxes, own_rows);
        const int64 numbers =
            (static_cast<int64>(product.num_taps()) * channels + 1) * product.outputs;
        float* part = partials + share.part * numbers;
#pragma unroll
        for (int i = 0; i < MMA_ROWS; ++i) {
            const int panel = share.first_panel + (own_rows + 64 * i) / PANEL;
            store_panel(sums[i], part, product, panel, share.first_output);
        }
    }
    if (CLUSTER > 1) barrier_of_cluster();  // others may still write to this block's shared memory
}
