// Computes:  of a batch through up to 8 linear layers y = f(x @ w + b), of which each is narrow: record[row] = (the mean
//            loss, the number of rows, how many are right), and in `gradients`, by blocks, the sums over their rows of
//            d loss / d w and d loss / d b, times `scale`.
// Layout:    x (N, SIZES[0]) of SOURCE, contiguous: the batch, of DTYPE, or if GATHERS all rows, of which it is those
//            order[first + i], i < num_rows, with first = (read(first_step) + offset) · rows_per_step, converted; targets
//            likewise (N, outputs) float32, or with CROSS_ENTROPY labels (N,) int64; weights (inputs, outputs) and biases
//            (outputs,) of DTYPE, biases may be null; record (steps, 3) float64; gradients (blocks, gradients_at(LAYERS))
//            float32: of each layer its weights', row by row, then its biases'; partials two for each block, arrivals one
//            zero, both null with a single block.
// Launch:    1-D grid: at most as many blocks as tiles of 16 WARPS rows, which they take in turns; 1-D blocks of WARPS
//            warps; shared bytes as narrow_step.py counts them. Defines DTYPE, SOURCE, GATHERS, LAYERS, WIDTHS, ACTIVATIONS
//            and SLOPES (of each layer), LOSS, CROSS_ENTROPY, SMOOTHED, COUNTS_ROWS, WARPS, BLOCKS (of a multiprocessor),
//            X_STAGES (2: the next x comes while this one is computed with), PIECE_M and PIECE_N (tiles of 16 inputs and
//            outputs of which a warp sums up the gradients).
// Numerics:  float32 sums of products of DTYPE; values and gradients between layers are rounded to DTYPE, and so are derivatives
//            that need their activation's input, but outputs are not; losses in float32, their sums in float64; all in an order
//            that follows from the grid.
// Cost:      6 M FLOP a weight, less 2 M for each of the first layer; x and targets are read once, and weights by each block;
//            4 bytes written for each parameter and block.
// Reference: linear_forward, LOSS's operations and linear_backward of backends/numpy.
#include "include/loss_step.cuh"
#include "include/narrow_layers.cuh"
#include "include/output_losses.cuh"

struct NarrowNetwork {
    const T* weights[MOST_LAYERS];
    const T* biases[MOST_LAYERS];
};

static_assert(sizeof(NarrowNetwork) == 128, "narrow_step.py packs this struct");

constexpr int OUTPUTS = SIZES[LAYERS], OUT_WIDTH = padded(LAYERS);

// What a loss of outputs in registers is held against, fetched before they are computed: numbers, or labels of two rows.
struct RowTargets {
    bool are_there[2];
#if CROSS_ENTROPY
    int labels[2];
#else
    float numbers[OUT_WIDTH / 8][4];
#endif
};

using Target =
#if CROSS_ENTROPY
    int64;
#else
    float;
#endif

struct NarrowLoss {
    const Target* targets;
    float setting, of_slope;  // slopes come times the scale, over the number of rows
    double sums[2];           // of losses, and of rows that are right

    // Of the warp's 16 rows, with these numbers.
    __device__ RowTargets fetch(int64 numbers) const {
        RowTargets found;
#pragma unroll
        for (int below = 0; below < 2; ++below) {
            const int64 row = __shfl_sync(FULL_WARP, numbers, own_lane() / 4 + 8 * below);
            const bool is_there = row >= 0;
            found.are_there[below] = is_there;
#if CROSS_ENTROPY
            found.labels[below] = is_there ? column_of(targets[row]) : 0;
#else
            const float* of_row = targets + row * OUTPUTS + own_lane() % 4 * 2;
            const bool by_pairs = OUTPUTS % 2 == 0 && reinterpret_cast<uint64>(targets) % 8 == 0;
#pragma unroll
            for (int tile = 0; tile < OUT_WIDTH / 8; ++tile) {
                const int col = 8 * tile + own_lane() % 4 * 2;
                float2 pair = {0, 0};
                if (by_pairs) {
                    if (is_there && col < OUTPUTS) pair = *reinterpret_cast<const float2*>(of_row + 8 * tile);
                } else {
                    if (is_there && col < OUTPUTS) pair.x = of_row[8 * tile];
                    if (is_there && col + 1 < OUTPUTS) pair.y = of_row[8 * tile + 1];
                }
                found.numbers[tile][2 * below] = pair.x;
                found.numbers[tile][2 * below + 1] = pair.y;
            }
#endif
        }
        return found;
    }

    __device__ static int column_of(int64 label) {
        return static_cast<uint64>(label) < static_cast<uint64>(OUTPUTS) ? static_cast<int>(label) : -1;
    }

    // Adds the losses of 16 rows, whose outputs become their gradients: 0 of rows that are not there.
    __device__ void replace(RowSums<OUT_WIDTH>& outputs, const RowTargets& of_rows) {
#pragma unroll
        for (int below = 0; below < 2; ++below) {
            const bool is_there = of_rows.are_there[below];
#if CROSS_ENTROPY
            replace_logits(outputs, of_rows, below, is_there);
#else
            replace_numbers(outputs, of_rows, below, is_there);
#endif
        }
    }

#if CROSS_ENTROPY
    __device__ void replace_logits(RowSums<OUT_WIDTH>& outputs, const RowTargets& of_rows, int below,
                                   bool is_there) {
        OutputRows<OUT_WIDTH / 8, OUTPUTS> rows{outputs.sums};
        const EvenClasses classes;
        const int label = of_rows.labels[below];
        const OutputRest rest = rows.replace_logits(below, label, is_there ? of_slope : 0, setting, classes);
        bool is_correct;
        const float loss = cross_entropy(rest, label, setting, OUTPUTS, classes, is_correct);
        if (own_lane() % 4 != 0 || !is_there) return;
        sums[0] += label < 0 ? infinity() : loss;
        sums[1] += is_correct && label >= 0;
    }
#else
    __device__ void replace_numbers(RowSums<OUT_WIDTH>& outputs, const RowTargets& of_rows, int below,
                                    bool is_there) {
        float loss = 0;
        int wrong = !is_there;
#pragma unroll
        for (int part = 0; part < OUT_WIDTH / 4; ++part) {
            const int col = part / 2 * 8 + own_lane() % 4 * 2 + part % 2, idx = 2 * below + part % 2;
            float& value = outputs.sums[part / 2][idx];
            const float t = of_rows.numbers[part / 2][idx], p = value;
            const bool counts = is_there && col < OUTPUTS;
            loss += counts ? ACTIVATION_NAME(LOSS, _term)(p, t, setting) : 0;
            if (COUNTS_ROWS) wrong |= col < OUTPUTS && !is_on_side(p, t);
            value = counts ? ACTIVATION_NAME(LOSS, _slope)(p, t, setting) * of_slope : 0;
        }
        sums[0] += loss;
        if (COUNTS_ROWS) {
            wrong |= __shfl_xor_sync(FULL_WARP, wrong, 1);
            wrong |= __shfl_xor_sync(FULL_WARP, wrong, 2);
            sums[1] += own_lane() % 4 == 0 && !wrong;
        }
    }
#endif
};

// -- what stays in shared memory --------------------------------------------------------------------------------------

template <int L = 0>
__device__ inline void load_layers(T* shared, const NarrowNetwork& network) {
    for (int first = 16 * own_warp(); first < padded(L); first += 16 * WARPS) {
        const int row = first + own_lane() % 16;
        copy_rows<SIZES[L + 1], padded(L + 1)>(shared + weights_at(L) + first * stride_of(L + 1),
                                               stride_of(L + 1), network.weights[L],
                                               row < SIZES[L] ? row : -1, own_lane());
    }
    for (int i = threadIdx.x; i < padded(L + 1); i += THREADS) {
        shared[biases_at(L) + i] = i < SIZES[L + 1] && network.biases[L] ? network.biases[L][i] : T{};
    }
    if constexpr (L + 1 < LAYERS) load_layers<L + 1>(shared, network);
}

// -- rows of a warp ---------------------------------------------------------------------------------------------------

template <int WIDTH>
__device__ inline RowSums<WIDTH> begin_with(const T* biases) {
    RowSums<WIDTH> found;
#pragma unroll
    for (int tile = 0; tile < RowSums<WIDTH>::TILES; ++tile) {
        const float2 pair =
            unpacked<T>(*reinterpret_cast<const unsigned*>(biases + 8 * tile + own_lane() % 4 * 2));
        found.sums[tile][0] = found.sums[tile][2] = pair.x;
        found.sums[tile][1] = found.sums[tile][3] = pair.y;
    }
    return found;
}

// The derivatives of a layer's activation are found by its values, or are kept where its gradients will lie.
template <int L>
__device__ inline float2 derivatives(const T* values, const T* kept) {
    if constexpr (needs_input(ACTIVATION_OF[L])) {
        return unpacked<T>(*reinterpret_cast<const unsigned*>(kept));
    } else {
        const float2 y = unpacked<T>(*reinterpret_cast<const unsigned*>(values));
        return {derivative_by_value<ACTIVATION_OF[L]>(y.x, SLOPE_OF[L]),
                derivative_by_value<ACTIVATION_OF[L]>(y.y, SLOPE_OF[L])};
    }
}

// From gradients of what layer L gives, before its activation, to those of all layers below, all of which stay behind.
template <int L>
__device__ inline void go_back(T* shared, int own_rows, const RowFragments<padded(L + 1)>& slopes) {
    constexpr int WIDTH = padded(L), STRIDE = stride_of(L);
    store_fragments<padded(L + 1)>(shared + slopes_at(L) + own_rows * stride_of(L + 1), stride_of(L + 1),
                                   slopes);
    if constexpr (L > 0) {
        RowSums<WIDTH> found;
        multiply_back<WIDTH, padded(L + 1)>(found, slopes, shared + weights_at(L), stride_of(L + 1));
        const int own = own_rows * STRIDE + word_offset(STRIDE);
        const T *values = shared + values_at(L) + own, *kept = shared + slopes_at(L - 1) + own;
#pragma unroll
        for (int tile = 0; tile < RowSums<WIDTH>::TILES; ++tile) {
#pragma unroll
            for (int below = 0; below < 2; ++below) {
                const int at = below * 8 * STRIDE + 8 * tile;
                const float2 factors = derivatives<L - 1>(values + at, kept + at);
                found.sums[tile][2 * below] *= factors.x;
                found.sums[tile][2 * below + 1] *= factors.y;
            }
        }
        go_back<L - 1>(shared, own_rows, found.fragments());
    }
}

// Makes sums the values that follow from them, and returns their derivatives.
template <int L>
__device__ inline RowSums<padded(L + 1)> activate_sums(RowSums<padded(L + 1)>& sums) {
    RowSums<padded(L + 1)> derivatives;
#pragma unroll
    for (int tile = 0; tile < RowSums<padded(L + 1)>::TILES; ++tile) {
#pragma unroll
        for (int i = 0; i < 4; ++i) {
            const Activated<float> found = activated<ACTIVATION_OF[L]>(sums.sums[tile][i], SLOPE_OF[L]);
            sums.sums[tile][i] = found.value;
            derivatives.sums[tile][i] = found.derivative;
        }
    }
    return derivatives;
}

// From what layer L takes to the loss, and back. `own_rows` is the first of the warp's rows in the tile.
template <int L>
__device__ inline void go_on(T* shared, int own_rows, const RowFragments<padded(L)>& values, NarrowLoss& loss,
                             const RowTargets& targets) {
    constexpr int WIDTH = padded(L + 1), STRIDE = stride_of(L + 1);
    RowSums<WIDTH> found = begin_with<WIDTH>(shared + biases_at(L));
    multiply<padded(L), WIDTH>(found, values, shared + weights_at(L), STRIDE);
    [[maybe_unused]] const RowSums<WIDTH> derivatives = activate_sums<L>(found);
    if constexpr (L + 1 < LAYERS) {
        if constexpr (needs_input(ACTIVATION_OF[L])) {
            store_fragments<WIDTH>(shared + slopes_at(L) + own_rows * STRIDE, STRIDE,
                                   derivatives.fragments());
        }
        const RowFragments<WIDTH> next = found.fragments();
        store_fragments<WIDTH>(shared + values_at(L + 1) + own_rows * STRIDE, STRIDE, next);
        go_on<L + 1>(shared, own_rows, next, loss, targets);
    } else {
        loss.replace(found, targets);
        if constexpr (ACTIVATION_OF[L] != Activation::identity) {
#pragma unroll
            for (int tile = 0; tile < RowSums<WIDTH>::TILES; ++tile) {
#pragma unroll
                for (int i = 0; i < 4; ++i) found.sums[tile][i] *= derivatives.sums[tile][i];
            }
        }
        go_back<L>(shared, own_rows, found.fragments());
    }
}

// -- the batch --------------------------------------------------------------------------------------------------------

// The warp's rows of x. If some are fetched ahead, they are so as they are, to be converted when their turn comes, or, if
// they need not be, to a tile of their own.
struct WarpRows {
    const SOURCE* x;
    const int64* order;  // null without GATHERS
    T* tiles;            // the warp's rows of the first
    SOURCE* raw;
    int64 num_rows;

    // Of a tile.
    __device__ int64 numbers(int64 tile) const {
        const int64 row = tile * ROWS + 16 * own_warp() + own_lane() % 16;
        return row >= num_rows ? -1 : GATHERS ? order[row] : row;
    }

    __device__ T* tile(int stage) const { return tiles + stage * X_TILE_SIZE; }

    // To begin when nobody reads this stage any more.
    __device__ void fetch(int64 numbers, [[maybe_unused]] int stage) const {
#if !GATHERS
        copy_rows<SIZES[0], padded(0)>(tile(stage), stride_of(0), x, numbers, own_lane());
#else
        if (X_STAGES > 1) copy_rows<SIZES[0], SIZES[0]>(raw, SIZES[0], x, numbers, own_lane());
#endif
        copy_async_commit();
    }

    // When everybody is done with the tile before: lets the warp read what was fetched.
    __device__ void arrive([[maybe_unused]] int64 numbers) const {
        copy_async_wait<0>();
        __syncwarp();
#if GATHERS
        if (X_STAGES > 1) {
            convert_rows<true, SIZES[0], padded(0)>(tiles, stride_of(0), raw, numbers, own_lane());
        } else {
            convert_rows<false, SIZES[0], padded(0)>(tiles, stride_of(0), x, numbers, own_lane());
        }
        __syncwarp();
#endif
    }
};

extern "C" __global__ void __launch_bounds__(THREADS, BLOCKS)
    narrow_step(const SOURCE* x, const int64* order, Scalar first_step, int64 offset, int64 rows_per_step,
                const __grid_constant__ NarrowNetwork network, const Target* targets, float* gradients,
                double* record, Scalar record_row, double* partials, unsigned* arrivals, double setting,
                double of_term, double of_slope, int64 num_rows) {
    take_turn();
    DYNAMIC_SHARED(T, shared);
    const int own_rows = 16 * own_warp();
    const float slope_factor = static_cast<float>(of_slope) / static_cast<float>(num_rows);
    NarrowLoss loss{targets, static_cast<float>(setting), slope_factor, {0, 0}};
    if (GATHERS) order = order_of_step(order, first_step, offset, rows_per_step);
    SOURCE* raw = reinterpret_cast<SOURCE*>(shared + raw_at()) + own_rows * SIZES[0];
    const WarpRows rows{x, order, shared + values_at(0) + own_rows * stride_of(0), raw, num_rows};
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
        go_on<0>(shared, own_rows, load_fragments<padded(0)>(rows.tile(stage), stride_of(0)), loss, of_rows);
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
        write_record(record, record_row, of_term * loss.sums[0], 1.0, static_cast<double>(num_rows),
                     loss.sums[1]);
    }
}
