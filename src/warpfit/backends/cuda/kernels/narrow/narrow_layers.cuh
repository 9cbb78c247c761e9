// A chain of narrow linear layers in a block's shared memory: all weights, and of the rows at hand
// what each layer takes and the gradients of what it gives. All of it follows from the settings of
// narrow_step.cu. Weights belong to the block; a warp writes its own 16 rows, and reads those of
// all for the gradients.
#pragma once

#include "base/reduce.cuh"
#include "mma/fragments.cuh"
#include "narrow/narrow_rows.cuh"
#include "resident/layout/sizes.cuh"

using T = DTYPE;

constexpr int THREADS = 32 * WARPS, ROWS = 16 * WARPS;
constexpr int MOST_LAYERS = 8;
static_assert(LAYERS <= MOST_LAYERS, "NarrowNetwork has room for all layers");

// Of width i: as tensor cores take it, and the distance of rows in shared memory.
__device__ constexpr int padded(int i) { return up(WIDTHS[i], 16); }
__device__ constexpr int stride_of(int i) { return padded(i) + 8; }

// Tiles of x: rows that come ahead and are converted later have a place of their own, raw_at().
constexpr int X_TILES = GATHERS ? 1 : X_STAGES;
// Pieces reach so many numbers beyond their layer at most: what copies are under way to lies behind
// a gap.
constexpr int GAP = 16 * (PIECE_M > PIECE_N ? PIECE_M : PIECE_N);
constexpr int X_TILE_SIZE = ROWS * stride_of(0) + GAP;

// Where things begin in shared memory, in numbers of type T. The values of width 0 are x.
__device__ constexpr int weights_at(int layer) {
    return layer == 0 ? 0 : weights_at(layer - 1) + padded(layer - 1) * stride_of(layer);
}
__device__ constexpr int values_at(int i) {
    if (i == 0) return weights_at(LAYERS);
    return values_at(i - 1) + (i == 1 ? X_TILES * X_TILE_SIZE : ROWS * stride_of(i - 1));
}
__device__ constexpr int dz_at(int layer) {
    return layer == 0 ? values_at(LAYERS) : dz_at(layer - 1) + ROWS * stride_of(layer);
}
__device__ constexpr int biases_at(int layer) {
    return layer == 0 ? dz_at(LAYERS) : biases_at(layer - 1) + padded(layer);
}

__device__ constexpr int raw_at() { return biases_at(LAYERS) + GAP; }

// Where a layer's gradients begin among those of all, in numbers: weights, row by row, then biases.
__device__ constexpr int gradients_at(int layer) {
    return layer == 0 ? 0
                      : gradients_at(layer - 1) + up((WIDTHS[layer - 1] + 1) * WIDTHS[layer], 4);
}

// Pieces of the gradients of layers before one: 16 PIECE_M inputs by 16 PIECE_N outputs each.
__device__ constexpr int pieces_before(int layer) {
    return layer == 0
               ? 0
               : pieces_before(layer - 1) + up(padded(layer - 1), 16 * PIECE_M) / (16 * PIECE_M) *
                                                (up(padded(layer), 16 * PIECE_N) / (16 * PIECE_N));
}
constexpr int PIECES = pieces_before(LAYERS), PIECES_OF_WARP = (PIECES + WARPS - 1) / WARPS;

// Fragments A of 16 rows.
template <int WIDTH>
struct RowFragments {
    static constexpr int COUNT = WIDTH / 16;
    unsigned words[COUNT][4];
};

// The accumulators of 16 rows: lane l has columns 2 (l % 4) and the next of each tile of 8, of rows
// l / 4 and l / 4 + 8.
template <int WIDTH>
struct RowSums {
    static constexpr int TILES = WIDTH / 8;
    float sums[TILES][4];

    // As what the next product takes.
    __device__ RowFragments<WIDTH> fragments() const {
        RowFragments<WIDTH> found;
#pragma unroll
        for (int tile = 0; tile < TILES; ++tile) {
            found.words[tile / 2][tile % 2 * 2] = packed<T>(sums[tile][0], sums[tile][1]);
            found.words[tile / 2][tile % 2 * 2 + 1] = packed<T>(sums[tile][2], sums[tile][3]);
        }
        return found;
    }
};

__device__ inline int own_warp() { return static_cast<int>(threadIdx.x) / 32; }
__device__ inline int own_lane() { return static_cast<int>(threadIdx.x) % 32; }

// Where a lane's words of a row fragment lie: those of its upper row, from the warp's first row on.
__device__ inline int word_offset(int stride) {
    return own_lane() / 4 * stride + own_lane() % 4 * 2;
}

template <int WIDTH>
__device__ inline void store_fragments(T* rows, int stride, const RowFragments<WIDTH>& fragments) {
    T* own = rows + word_offset(stride);
#pragma unroll
    for (int i = 0; i < RowFragments<WIDTH>::COUNT; ++i) {
#pragma unroll
        for (int word = 0; word < 4; ++word) {
            T* to = own + word % 2 * 8 * stride + 16 * i + word / 2 * 8;
            *reinterpret_cast<unsigned*>(to) = fragments.words[i][word];
        }
    }
}

template <int WIDTH>
__device__ inline RowFragments<WIDTH> load_fragments(const T* rows, int stride) {
    RowFragments<WIDTH> found;
#pragma unroll
    for (int i = 0; i < RowFragments<WIDTH>::COUNT; ++i)
        load_a(found.words[i], rows + 16 * i, stride);
    return found;
}

// sums += a @ w of a layer: w has its inputs as rows.
template <int INPUTS, int OUTPUTS>
__device__ inline void multiply(RowSums<OUTPUTS>& to, const RowFragments<INPUTS>& a, const T* w,
                                int stride) {
#pragma unroll
    for (int k = 0; k < INPUTS / 16; ++k) {
#pragma unroll
        for (int n = 0; n < OUTPUTS / 16; ++n) {
            unsigned low[2], high[2];
            load_b_pair_transposed(low, high, w + 16 * k * stride + 16 * n, stride);
            TensorCore<T>::multiply(to.sums[2 * n], a.words[k], low);
            TensorCore<T>::multiply(to.sums[2 * n + 1], a.words[k], high);
        }
    }
}

// sums = a @ wᵀ.
template <int INPUTS, int OUTPUTS>
__device__ inline void multiply_back(RowSums<INPUTS>& to, const RowFragments<OUTPUTS>& a,
                                     const T* w, int stride) {
#pragma unroll
    for (int tile = 0; tile < RowSums<INPUTS>::TILES; ++tile) {
#pragma unroll
        for (int i = 0; i < 4; ++i) to.sums[tile][i] = 0;
    }
#pragma unroll
    for (int n = 0; n < OUTPUTS / 16; ++n) {
#pragma unroll
        for (int k = 0; k < INPUTS / 16; ++k) {
            unsigned low[2], high[2];
            load_b_pair(low, high, w + 16 * k * stride + 16 * n, stride);
            TensorCore<T>::multiply(to.sums[2 * k], a.words[n], low);
            TensorCore<T>::multiply(to.sums[2 * k + 1], a.words[n], high);
        }
    }
}

// Which part of which layer's gradient a piece is, and what it is the product of.
struct Piece {
    const T *values, *dz;  // columns of all rows
    int values_stride, dz_stride;
    int at, row, col;     // where the layer's gradients begin; the first input and output
    int inputs, outputs;  // of the layer
    int weights_at, biases_at;
};

template <int L = 0>
__device__ inline Piece piece_of(const T* shared, int x_stage, int piece) {
    if constexpr (L + 1 < LAYERS) {
        if (piece >= pieces_before(L + 1)) return piece_of<L + 1>(shared, x_stage, piece);
    }
    constexpr int ACROSS = up(padded(L + 1), 16 * PIECE_N) / (16 * PIECE_N);
    const int own = piece - pieces_before(L);
    const int row = own / ACROSS * 16 * PIECE_M, col = own % ACROSS * 16 * PIECE_N;
    const int first = values_at(L) + (L == 0 ? x_stage * X_TILE_SIZE : 0);
    return {shared + first + row,
            shared + dz_at(L) + col,
            stride_of(L),
            stride_of(L + 1),
            gradients_at(L),
            row,
            col,
            WIDTHS[L],
            WIDTHS[L + 1],
            weights_at(L),
            biases_at(L)};
}

// The gradient of a piece over all rows that a block has had: of weights, and of biases in the
// first row of pieces. Columns of other layers, where a piece reaches beyond its own, are summed up
// with them and left out at the end.
struct PieceSums {
    float weights[PIECE_M][2 * PIECE_N][4];
    float biases[PIECE_N][4];  // of outputs lane / 4 (0 and 1) and lane / 4 + 8

    __device__ PieceSums() : weights{}, biases{} {}

    __device__ void add(const Piece& piece) {
        const unsigned ones = packed<T>(1, 1), pair_of_ones[2] = {ones, ones};
#pragma unroll 2
        for (int k = 0; k < ROWS; k += 16) {
            unsigned a[PIECE_M][4], low[PIECE_N][2], high[PIECE_N][2];
#pragma unroll
            for (int n = 0; n < PIECE_N; ++n) {
                load_b_pair_transposed(low[n], high[n], piece.dz + k * piece.dz_stride + 16 * n,
                                       piece.dz_stride);
            }
#pragma unroll
            for (int m = 0; m < PIECE_M; ++m) {
                load_a_transposed(a[m], piece.values + k * piece.values_stride + 16 * m,
                                  piece.values_stride);
            }
#pragma unroll
            for (int n = 0; n < PIECE_N; ++n) {
#pragma unroll
                for (int m = 0; m < PIECE_M; ++m) {
                    TensorCore<T>::multiply(weights[m][2 * n], a[m], low[n]);
                    TensorCore<T>::multiply(weights[m][2 * n + 1], a[m], high[n]);
                }
                // Fragments B are those of the transposed matrix as A.
                const unsigned turned[4] = {low[n][0], high[n][0], low[n][1], high[n][1]};
                TensorCore<T>::multiply(biases[n], turned, pair_of_ones);
            }
        }
    }

    // f(i, row, col) for each i-th pair of weights that the layer has, of one input and two
    // outputs; the second is not there if it is beyond the outputs.
    template <class F>
    __device__ static void each_pair(const Piece& piece, F f) {
#pragma unroll
        for (int i = 0; i < 4 * PIECE_M * PIECE_N; ++i) {
            const int m = i / 4 / PIECE_N, tile = i / 2 % (2 * PIECE_N), below = i % 2;
            const int row = piece.row + 16 * m + own_lane() / 4 + 8 * below;
            const int col = piece.col + 8 * tile + own_lane() % 4 * 2;
            if (row < piece.inputs && col < piece.outputs) f(i, row, col);
        }
    }

    // f(i, col) for each i-th gradient of a bias, which four lanes have.
    template <class F>
    __device__ static void each_bias(const Piece& piece, F f) {
        if (piece.row > 0) return;
#pragma unroll
        for (int i = 0; i < 2 * PIECE_N; ++i) {
            const int col = piece.col + i / 2 * 16 + own_lane() / 4 + 8 * (i % 2);
            if (col < piece.outputs) f(i, col);
        }
    }

    __device__ float2 pair(int i) const {
        const float (&tile)[4] = weights[i / 4 / PIECE_N][i / 2 % (2 * PIECE_N)];
        return {tile[i % 2 * 2], tile[i % 2 * 2 + 1]};
    }
    __device__ float bias(int i) const { return biases[i / 2][i % 2 * 2]; }

    // `to` are the gradients of all layers.
    __device__ void write(float* to, const Piece& piece) const {
        float* of_layer = to + piece.at;
        each_pair(piece, [&](int i, int row, int col) {
            float* own = of_layer + row * piece.outputs + col;
            if (piece.outputs % 2 == 0) {
                *reinterpret_cast<float2*>(own) = pair(i);
            } else {
                own[0] = pair(i).x;
                if (col + 1 < piece.outputs) own[1] = pair(i).y;
            }
        });
        each_bias(piece, [&](int i, int col) {
            if (own_lane() % 4 == 0) of_layer[piece.inputs * piece.outputs + col] = bias(i);
        });
    }
};
