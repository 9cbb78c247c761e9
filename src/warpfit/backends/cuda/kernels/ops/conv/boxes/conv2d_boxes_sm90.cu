// Computes:  y = EPILOGUE(z), z[m, i, j, o] = sum of w[k, l, c, o] x[m, i, j shifted by tap (k, l),
//            c] over taps and channels c, x being 0 outside of the image, on Hopper's tensor cores
//            through wgmma; ADJOINT: dx of dz, that is the same of dz with w[k, l, o, c]. Of a
//            stride, pixels of dx that see other taps are other phases: those y_step apart, from
//            first_y_row or the row after it on, and likewise the columns.
// Layout:    x (M, height, width, channels) through x_map, in boxes of windows as image_boxes.cuh
//            has them, y (M, y_rows, y_columns, outputs) contiguous; w (KH KW C, O) through w_map,
//            in boxes of 64 rows and a line, of BLOCK_N / CLUSTER rows if ADJOINT. Of these
//            channels are C and outputs O, or the other way round if ADJOINT. outputs are a
//            multiple of 8, y begins at one of 16 bytes. Which taps and pixels count is told by
//            AxisTaps of the phases of rows, two at most, and then of columns.
//            bias (outputs), saved and z like y, as gemm/epilogue.cuh takes them.
// Launch:    grid: at most as many blocks as run at once, in clusters of CLUSTER, which take tiles
//            of BLOCK_M windows and BLOCK_N outputs in turns; block: as in gemm/stages.cuh, whose
//            defines these are, and ADJOINT. shared bytes: STAGES stages and barriers
//            (`BoxTiling.shared_bytes`).
// Numerics:  float32 sums, in the order of taps and channels.
// Cost:      2 windows taps channels outputs FLOP, and those of windows and outputs that fill up
//            tiles; reads x once for each tap and BLOCK_N outputs, mostly from L2.
// Reference: conv2d_forward and conv2d_backward_input of backends/numpy/conv.py; PTX ISA 9.7.15
//            (wgmma), 9.7.9.25.5 (tensor copies).
#define SHARED_ALIGNMENT 1024
#define TRANSPOSE_A 0
#define TRANSPOSE_B ADJOINT

#include "gemm/stages.cuh"
#include "ops/conv/boxes/image_boxes.cuh"
#include "ops/conv/windows/quads.cuh"

struct BoxShared {
    unsigned char stages[STAGES][STAGE_BYTES];
    Barrier full[STAGES], empty[STAGES];
};

// Which phase of each axis a tile has.
struct Phases {
    int row, column;
};

// A product, and how it falls into tiles: a box of windows of each block of a cluster, and the same
// outputs and phases.
struct BoxProduct {
    Boxes boxes;
    PhaseTaps rows, columns;
    int channels, outputs, kernel_width;

    __device__ int phase_bits() const { return rows.bits() + columns.bits(); }
    __device__ int column_tiles() const { return (outputs + BLOCK_N - 1) / BLOCK_N; }
    __device__ int num_tiles() const {
        return (boxes.counts().count() + CLUSTER - 1) / CLUSTER * column_tiles() << phase_bits();
    }
    // Phases of a box follow each other, from another one on in every round of blocks.
    __device__ Phases phases(int tile) const {
        if (phase_bits() == 0) return {0, 0};
        const int turn =
            (tile >> phase_bits() << phase_bits()) / static_cast<int>(gridDim.x / CLUSTER);
        const int phase = (tile + turn) & ((1 << phase_bits()) - 1);
        return {phase >> columns.bits(), phase & columns.bits()};
    }
    __device__ Extent first_window(int tile) const {
        return boxes.first((tile >> phase_bits()) / column_tiles() * CLUSTER + own_rank());
    }
    __device__ int first_output(int tile) const {
        return (tile >> phase_bits()) % column_tiles() * BLOCK_N;
    }
    __device__ int num_blocks(Phases own) const {
        return rows.of(own.row).taps * columns.of(own.column).taps *
               ((channels + BLOCK_K - 1) / BLOCK_K);
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

// This block's part of the tile of weights that the cluster shares.
__device__ inline void load_weights(unsigned char* tile, Barrier& full, const TensorMap& w_map,
                                    const BoxProduct& product, int tap, int channel, int output) {
    const int row = ADJOINT ? tap * product.outputs + output : output;
    const int k = ADJOINT ? channel : tap * product.channels + channel;
    TileB::for_each_box<CLUSTER>(own_rank(), row, k, [&](int byte, int box_row, int box_col) {
        if constexpr (CLUSTER > 1) {
            copy_tensor_to_cluster(tile + byte, &w_map, box_row, box_col, &full,
                                   (1 << CLUSTER) - 1);
        } else {
            copy_tensor(tile + byte, &w_map, box_row, box_col, &full);
        }
    });
}

// One thread: the stages of all of this block's tiles, each as soon as all that read it before have
// left it.
__device__ inline void load_tiles(BoxShared& shared, const TensorMap& x_map, const TensorMap& w_map,
                                  const BoxProduct& product) {
    Cursor<STAGES> cursor(0);
    for (int idx = blockIdx.x / CLUSTER; idx < product.num_tiles(); idx += gridDim.x / CLUSTER) {
        const Phases phases = product.phases(idx);
        const AxisTaps rows = product.rows.of(phases.row),
                       columns = product.columns.of(phases.column);
        const Extent first = product.first_window(idx);
        const int output = product.first_output(idx);
        for (int kh = 0; kh < rows.taps; ++kh) {
            for (int kw = 0; kw < columns.taps; ++kw) {
                const int tap = rows.tap(kh) * product.kernel_width + columns.tap(kw);
                for (int channel = 0; channel < product.channels; channel += BLOCK_K) {
                    Barrier& full = shared.full[cursor.slot];
                    unsigned char* stage = shared.stages[cursor.slot];
                    wait(shared.empty[cursor.slot], cursor.round + 1);
                    mbarrier_expect(&full, STAGE_BYTES);
                    copy_images(stage, &x_map, first.images, rows.pixel(first.rows, kh),
                                columns.pixel(first.columns, kw), channel, &full);
                    load_weights(stage + TileA::BYTES, full, w_map, product, tap, channel, output);
                    cursor.advance<1>();
                }
            }
        }
    }
}

// Where windows of the product lie in y.
struct Places {
    int step, first_row, first_column, images, rows, columns;

    // The pixel of a window, -1 if there is none.
    __device__ int64 pixel(Phases own, const Extent& at) const {
        const int row = at.rows * step + first_row + own.row,
                  column = at.columns * step + first_column + own.column;
        if (at.images >= images || row >= rows || column >= columns) return -1;
        return (static_cast<int64>(at.images) * rows + row) * columns + column;
    }
};

// Hands the sums of a window, those of half h of 16 rows, to EPILOGUE, and stores them.
__device__ inline void store_window(const Epilogue& epilogue, const float (&sums)[BLOCK_N / 2],
                                    int h, int64 pixel, int first_output) {
    const bool is_inside = pixel >= 0;
    const int64 at = is_inside ? pixel * epilogue.ldc : 0;
#pragma unroll
    for (int first = 0; first < BLOCK_N / 8; first += 4) {
        unsigned words[4] = {};
#pragma unroll
        for (int j = 0; j < 4; ++j) {
            const int col = first_output + 8 * (first + j) + threadIdx.x % 4 * 2;
            if (!is_inside || col >= epilogue.n) continue;
            Acc pair[2] = {sums[4 * (first + j) + 2 * h], sums[4 * (first + j) + 2 * h + 1]};
            EPILOGUE<2>(epilogue, at + col, col, pair);
            words[j] = store<T>(pair[0]).bits | static_cast<unsigned>(store<T>(pair[1]).bits) << 16;
        }
        const int col = first_output + 8 * first;
        const bool is_stored =
            is_inside & (col + static_cast<int>(threadIdx.x) % 4 * 8 < epilogue.n);
        store_quads<1>(words, epilogue.c + at + col, is_stored);
    }
}

extern "C" __global__ void __launch_bounds__(THREADS, 1)
    conv2d_boxes_sm90(const __grid_constant__ TensorMap x_map,
                      const __grid_constant__ TensorMap w_map, T* y, const T* bias, const T* saved,
                      T* z, double slope, int num_images, int num_rows, int num_columns,
                      int box_images, int box_rows, int box_columns, int channels, int outputs,
                      int kernel_width, int row_phases, int column_phases, int row_taps,
                      int row_first_tap, int row_tap_step, int row_stride, int row_first,
                      int row_step, int next_row_taps, int next_row_first_tap,
                      int next_row_tap_step, int next_row_stride, int next_row_first,
                      int next_row_step, int column_taps, int column_first_tap, int column_tap_step,
                      int column_stride, int column_first, int column_step, int next_column_taps,
                      int next_column_first_tap, int next_column_tap_step, int next_column_stride,
                      int next_column_first, int next_column_step, int y_step, int first_y_row,
                      int first_y_column, int y_rows, int y_columns) {
    DYNAMIC_SHARED(BoxShared, shared);
    const BoxProduct product{
        {{num_images, num_rows, num_columns}, {box_images, box_rows, box_columns}},
        {{row_taps, row_first_tap, row_tap_step, row_stride, row_first, row_step},
         {next_row_taps, next_row_first_tap, next_row_tap_step, next_row_stride, next_row_first,
          next_row_step},
         row_phases},
        {{column_taps, column_first_tap, column_tap_step, column_stride, column_first, column_step},
         {next_column_taps, next_column_first_tap, next_column_tap_step, next_column_stride,
          next_column_first, next_column_step},
         column_phases},
        channels,
        outputs,
        kernel_width};
    const int warpgroup = threadIdx.x / WARPGROUP;
    start_barriers(*shared);
    take_turn();

    if (warpgroup == 0) {
        leave_registers<LOADER_REGISTERS>();
        if (threadIdx.x == 0) load_tiles(*shared, x_map, w_map, product);
    } else {
        take_registers<CONSUMER_REGISTERS>();
        const Epilogue epilogue{y, bias,    saved,  z, Acc(1), static_cast<Acc>(slope),
                                0, outputs, outputs};
        const Places places{y_step, first_y_row, first_y_column, num_images, y_rows, y_columns};
        const int own_rows = (warpgroup - 1) * CONSUMER_ROWS;
        const int own_row = threadIdx.x / 32 % 4 * 16 + threadIdx.x % 32 / 4;
        Cursor<STAGES> cursor(0);
        for (int idx = blockIdx.x / CLUSTER; idx < product.num_tiles();
             idx += gridDim.x / CLUSTER) {
            const Phases phases = product.phases(idx);
            const int num_blocks = product.num_blocks(phases);
            Sums sums = {};
            if (num_blocks > 0) multiply_piece(sums, *shared, cursor, num_blocks, own_rows);
            const Extent first = product.first_window(idx);
            const int output = product.first_output(idx);
#pragma unroll
            for (int i = 0; i < MMA_ROWS; ++i) {
#pragma unroll
                for (int h = 0; h < 2; ++h) {
                    const Extent at =
                        product.boxes.window(first, own_rows + 64 * i + own_row + 8 * h);
                    store_window(epilogue, sums[i], h, places.pixel(phases, at), output);
                }
            }
        }
    }
    if (CLUSTER > 1) barrier_of_cluster();  // others may still write to this block's shared memory
}
