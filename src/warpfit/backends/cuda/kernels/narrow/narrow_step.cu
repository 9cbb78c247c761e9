// Computes:  of a batch through up to 8 linear layers y = f(x @ w + b), of which each is narrow:
//            record[row] = (the mean loss, the number of rows, how many are right), and in
//            `gradients`, by blocks, the sums over their rows of d loss / d w and d loss / d b,
//            times `scale`.
// Layout:    x (N, WIDTHS[0]) of SOURCE, contiguous: the batch, of DTYPE, or if GATHERS all rows,
//            of which it is those order[first + i], i < num_rows, with first = (read(first_step) +
//            offset) · rows_per_step, converted; targets likewise (N, outputs) float32, or with
//            cross-entropy labels (N,) int64; weights (inputs, outputs) and biases (outputs,) of
//            DTYPE, biases may be null; record (steps, 3) float64; gradients (blocks,
//            gradients_at(LAYERS)) float32: of each layer its weights', row by row, then its
//            biases'; partials two for each block, arrivals one zero, both null with a single
//            block.
// Launch:    1-D grid: at most as many blocks as tiles of 16 WARPS rows, which they take in turns;
//            1-D blocks of WARPS warps; shared bytes as narrow_step.py counts them. Settings:
//            NarrowStepConfig of resident_config.py.
// Numerics:  float32 sums of products of DTYPE; values and gradients between layers are rounded to
//            DTYPE, and so are derivatives that need their activation's input, but outputs are not;
//            losses in float32, their sums in float64; all in an order that follows from the grid.
// Cost:      6 M FLOP a weight, less 2 M for each of the first layer; x and targets are read once,
//            and weights by each block; 4 bytes written for each parameter and block.
// Reference: linear_forward, LOSS's operations and linear_backward of backends/numpy.
#include "ops/loss/loss_terms.cuh"
#include "ops/optim/update_rules.cuh"

namespace config {
#include <config>  // the settings, as the host declares them
}
using namespace config;

#include "narrow/narrow_pass.cuh"
#include "ops/loss/loss_step.cuh"

struct NarrowNetwork {
    const T* weights[MOST_LAYERS];
    const T* biases[MOST_LAYERS];
};

// -- what stays in shared memory ------------------------------------------------------------------

template <int L = 0>
__device__ inline void load_layers(T* shared, const NarrowNetwork& network) {
    for (int first = 16 * own_warp(); first < padded(L); first += 16 * WARPS) {
        const int row = first + own_lane() % 16;
        copy_rows<WIDTHS[L + 1], padded(L + 1)>(shared + weights_at(L) + first * stride_of(L + 1),
                                                stride_of(L + 1), network.weights[L],
                                                row < WIDTHS[L] ? row : -1, own_lane());
    }
    for (int i = threadIdx.x; i < padded(L + 1); i += THREADS) {
        shared[biases_at(L) + i] =
            i < WIDTHS[L + 1] && network.biases[L] ? network.biases[L][i] : T{};
    }
    if constexpr (L + 1 < LAYERS) load_layers<L + 1>(shared, network);
}

// -- the batch ------------------------------------------------------------------------------------

// The warp's rows of x. If some are fetched ahead, they are so as they are, to be converted when
// their turn comes, or, if they need not be, to a tile of their own.
template <class Source>
struct WarpRows {
    const Source* x;
    const int64* order;  // null without GATHERS
    T* tiles;            // the warp's rows of the first
    Source* raw;
    int64 num_rows;

    // Of a tile.
    __device__ int64 numbers(int64 tile) const {
        const int64 row = tile * ROWS + 16 * own_warp() + own_lane() % 16;
        return row >= num_rows ? -1 : GATHERS ? order[row] : row;
    }

    __device__ T* tile(int stage) const { return tiles + stage * X_TILE_SIZE; }

    // To begin when this stage is no longer read.
    __device__ void fetch(int64 numbers, [[maybe_unused]] int stage) const {
        if constexpr (!GATHERS) {
            copy_rows<WIDTHS[0], padded(0)>(tile(stage), stride_of(0), x, numbers, own_lane());
        } else if (X_STAGES > 1) {
            copy_rows<WIDTHS[0], WIDTHS[0]>(raw, WIDTHS[0], x, numbers, own_lane());
        }
        copy_async_commit();
    }

    // When everybody is done with the tile before: lets the warp read what was fetched.
    __device__ void arrive([[maybe_unused]] int64 numbers) const {
        copy_async_wait<0>();
        __syncwarp();
        if constexpr (GATHERS) {
            constexpr bool IS_TILE = X_STAGES > 1;
            const Source* from = IS_TILE ? raw : x;
            convert_rows<IS_TILE, WIDTHS[0], padded(0)>(tiles, stride_of(0), from, numbers,
                                                        own_lane());
            __syncwarp();
        }
    }
};

extern "C" __global__ void __launch_bounds__(THREADS, BLOCKS)
    narrow_step(const SOURCE* x, const int64* order, Scalar first_step, int64 offset,
                int64 rows_per_step, const __grid_constant__ NarrowNetwork network,
                const Target* targets, float* gradients, double* record, Scalar record_row,
                double* partials, unsigned* arrivals, double setting, double of_term,
                double of_derivative, int64 num_rows) {
    take_turn();
    DYNAMIC_SHARED(T, shared);
    const int own_rows = 16 * own_warp();
    const float derivative_factor =
        static_cast<float>(of_derivative) / static_cast<float>(num_rows);
    NarrowLoss loss{targets, static_cast<float>(setting), derivative_factor, {0, 0}};
    if (GATHERS) order = order_of_step(order, first_step, offset, rows_per_step);
    SOURCE* raw = reinterpret_cast<SOURCE*>(shared + raw_at()) + own_rows * WIDTHS[0];
    const WarpRows<SOURCE> rows{x, order, shared + values_at(0) + own_rows * stride_of(0), raw,
                                num_rows};
    load_layers(shared, network);
    int64 now = rows.numbers(blockIdx.x), next = rows.numbers(blockIdx.x + gridDim.x);
    rows.fetch(now, 0);
    copy_async_wait<0>();
    __syncthreads();

    PieceSums sums[PIECES_OF_WARP];
    const int64 num_tiles = (num_rows + ROWS - 1) / ROWS;
    int stage = 0;
    for (int64 tile = blockIdx.x; tile < num_tiles; tile += gridDim.x) {
        const RowTargets of_rows = loss.fetch(now);
        rows.arrive(now);
        if (X_STAGES > 1) rows.fetch(next, stage ^ 1);
        const int64 after_next = rows.numbers(tile + 2 * static_cast<int64>(gridDim.x));
        go_on<0>(shared, own_rows, load_fragments<padded(0)>(rows.tile(stage), stride_of(0)), loss,
                 of_rows);
        __syncthreads();
#pragma unroll
        for (int i = 0; i < PIECES_OF_WARP; ++i) {
            const int piece = own_warp() + i * WARPS;
            if (piece < PIECES) sums[i].add(piece_of(shared, stage, piece));
        }
        __syncthreads();
        if (X_TILES > 1) stage ^= 1;
        if (X_STAGES == 1) rows.fetch(next, 0);
        now = next;
        next = after_next;
    }
    copy_async_wait<0>();

    float* own_gradients = gradients + static_cast<int64>(blockIdx.x) * gradients_at(LAYERS);
#pragma unroll
    for (int i = 0; i < PIECES_OF_WARP; ++i) {
        const int piece = own_warp() + i * WARPS;
        if (piece < PIECES) sums[i].write(own_gradients, piece_of(shared, 0, piece));
    }
    if (sum_over_grid(loss.sums, partials, arrivals) && threadIdx.x == 0) {
        write_record(record, record_row, of_term * loss.sums[0], static_cast<double>(num_rows),
                     loss.sums[1]);
    }
}
