// Computes: for each product of a list, with r = 1 / max(√trace(traced), LEAST_NORM), or 1 without
//           it, and s = scale r^power_of_sums (r^power op(a)) op(b): c = s + added_scale
//           r^added_power added + diagonal I. UPDATES: c ← kept n c - rate s, n = √columns /
//           max(√Σ squares, LEAST_NORM), or 1 without squares.
// Layout:   row-major and contiguous; a (rows, depth), or (depth, rows) where transposed has bit 0;
//           b (depth, columns), or (columns, depth) where it has bit 1; c and added (rows, columns),
//           traced (side, side), squares (num_squares,) float64. No c is read by another block.
// Launch:   as many blocks as the products have tiles of 64 by 64, those of each from first_block
//           on; block 256; static shared memory; defines DTYPE, UPDATES, TENSOR_CORES (float32
//           only).
// Numerics: sums in DTYPE, k ascending; on tensor cores of operands rounded to bfloat16; r and n in
//           float64.
// Cost:     2 rows columns depth FLOP; each element of a is read once for each tile along columns,
//           each of b for each along rows.
// Reference: update_matrices of backends/numpy/optim.py.
#include "base/reduce.cuh"
#include "base/scalar.cuh"
#include "mma/fragments.cuh"

using T = DTYPE;

constexpr int THREADS = 256;
constexpr int TILE = 64;
constexpr int MAX_PRODUCTS = 32;
constexpr double LEAST_NORM = 1e-7;

// Python packs the same bytes.
struct MatrixProduct {
    const T* a;
    const T* b;
    T* c;
    const T* added;
    const T* traced;
    const double* squares;
    double scale, added_scale, diagonal;
    int power, power_of_sums, added_power;
    int rows, columns, depth;
    int transposed, side, num_squares;
    int64 first_block;
};

struct ProductList {
    int64 count;
    MatrixProduct products[MAX_PRODUCTS];
};

// The sum of count numbers, `stride` apart, in every thread.
template <class Number>
__device__ inline double sum_of(const Number* from, int count, int stride) {
    __shared__ double shared[WARP];
    double sum = 0;
    for (int i = threadIdx.x; i < count; i += THREADS) {
        sum += from[static_cast<int64>(i) * stride];
    }
    return reduce_block<Sum>(sum, 0.0, shared);
}

__device__ inline double inverse_root(double sum) { return 1 / fmax(sqrt(sum), LEAST_NORM); }

__device__ inline double power_of(double base, int exponent) {
    double result = 1;
    for (int i = 0; i < exponent; ++i) result *= base;
    return result;
}

#if TENSOR_CORES
// A warp has 16 rows of a tile and half of its columns, as mma leaves them. Tiles lie along depth.
constexpr int STEP = 64, COUNT = 16;
constexpr int WARP_ROWS = 16, WARP_COLUMNS = 32;

struct alignas(16) Line {
    bfloat16 number[STEP + 8];
};
constexpr int LINES = TILE;

using Sums = float[WARP_COLUMNS / 8][4];

__device__ inline void put(Line* tile, int outer, int k, float number) {
    tile[outer].number[k] = store<bfloat16>(number);
}

__device__ inline int warp_row() { return threadIdx.x / WARP % 4 * WARP_ROWS; }
__device__ inline int warp_column() { return threadIdx.x / WARP / 4 * WARP_COLUMNS; }

__device__ inline void add_products(Sums& sums, const Line* tile_a, const Line* tile_b) {
#pragma unroll
    for (int k = 0; k < STEP; k += 16) {
        unsigned of_a[4];
        load_a(of_a, tile_a[warp_row()].number + k, STEP + 8);
#pragma unroll
        for (int pair = 0; pair < WARP_COLUMNS / 16; ++pair) {
            unsigned low[2], high[2];
            load_b_pair(low, high, tile_b[warp_column() + 16 * pair].number + k, STEP + 8);
            TensorCore<bfloat16>::multiply(sums[2 * pair], of_a, low);
            TensorCore<bfloat16>::multiply(sums[2 * pair + 1], of_a, high);
        }
    }
}

__device__ inline T sum_at(const Sums& sums, int i) { return sums[i / 4][i % 4]; }
__device__ inline int row_of(int i) { return warp_row() + i % 4 / 2 * 8 + threadIdx.x % WARP / 4; }
__device__ inline int column_of(int i) {
    return warp_column() + i / 4 * 8 + threadIdx.x % 4 * 2 + i % 2;
}
#else
// A thread has four rows and four columns of a tile, a quarter of it apart. Tiles lie across depth.
constexpr int STEP = 16, COUNT = 16;
constexpr int ACROSS = 16, OWN = 4;

struct Line {
    T number[TILE + 1];
};
constexpr int LINES = STEP;

using Sums = T[OWN][OWN];

__device__ inline void put(Line* tile, int outer, int k, T number) {
    tile[k].number[outer] = number;
}

__device__ inline void add_products(Sums& sums, const Line* tile_a, const Line* tile_b) {
    const int x = threadIdx.x % ACROSS, y = threadIdx.x / ACROSS;
#pragma unroll
    for (int k = 0; k < STEP; ++k) {
        T rows[OWN], columns[OWN];
#pragma unroll
        for (int i = 0; i < OWN; ++i) {
            rows[i] = tile_a[k].number[y + i * ACROSS];
            columns[i] = tile_b[k].number[x + i * ACROSS];
        }
#pragma unroll
        for (int i = 0; i < OWN; ++i) {
#pragma unroll
            for (int j = 0; j < OWN; ++j) sums[i][j] += rows[i] * columns[j];
        }
    }
}

__device__ inline T sum_at(const Sums& sums, int i) { return sums[i / OWN][i % OWN]; }
__device__ inline int row_of(int i) { return threadIdx.x / ACROSS + i / OWN * ACROSS; }
__device__ inline int column_of(int i) { return threadIdx.x % ACROSS + i % OWN * ACROSS; }
#endif

// A thread's numbers of a tile of TILE (rows of a, columns of b) by STEP (of depth), on their way
// from memory to shared memory. `along`: whether depth is what neighbours in memory differ by.
struct Piece {
    static constexpr int COUNT = TILE * STEP / THREADS;
    T number[COUNT];

    __device__ static void place(int i, bool along, int& outer, int& k) {
        const int at = threadIdx.x + i * THREADS;
        outer = along ? at / STEP : at % TILE;
        k = along ? at % STEP : at / TILE;
    }

    __device__ void load(const T* from, bool along, int first, int outers, int first_k, int depth) {
#pragma unroll
        for (int i = 0; i < COUNT; ++i) {
            int outer, k;
            place(i, along, outer, k);
            outer += first;
            k += first_k;
            const int64 at = along ? static_cast<int64>(outer) * depth + k
                                   : static_cast<int64>(k) * outers + outer;
            number[i] = outer < outers && k < depth ? from[at] : T(0);
        }
    }

    __device__ void store(Line* tile, bool along, T factor) const {
#pragma unroll
        for (int i = 0; i < COUNT; ++i) {
            int outer, k;
            place(i, along, outer, k);
            put(tile, outer, k, number[i] * factor);
        }
    }
};

// Tiles are multiplied from shared memory while the next ones come to registers.
__device__ inline void multiply(Sums& sums, const MatrixProduct& product, T of_a, int first_row,
                                int first_column) {
    __shared__ __align__(16) Line tile_a[LINES];
    __shared__ __align__(16) Line tile_b[LINES];
    const bool a_along = !(product.transposed & 1), b_along = product.transposed & 2;
    Piece a, b;
    const int depth = product.depth;
    a.load(product.a, a_along, first_row, product.rows, 0, depth);
    b.load(product.b, b_along, first_column, product.columns, 0, depth);
    for (int first_k = 0; first_k < depth; first_k += STEP) {
        a.store(tile_a, a_along, of_a);
        b.store(tile_b, b_along, T(1));
        __syncthreads();
        a.load(product.a, a_along, first_row, product.rows, first_k + STEP, depth);
        b.load(product.b, b_along, first_column, product.columns, first_k + STEP, depth);
        add_products(sums, tile_a, tile_b);
        __syncthreads();
    }
}

__device__ inline int product_of_block(const ProductList& list) {
    int idx = 0;
    while (idx + 1 < list.count && list.products[idx + 1].first_block <= blockIdx.x) ++idx;
    return idx;
}

extern "C" __global__ void __launch_bounds__(256)
    matrix_products(const __grid_constant__ ProductList list, Scalar rate, Scalar kept) {
    take_turn();
    const MatrixProduct& product = list.products[product_of_block(list)];
    const double r =
        product.traced ? inverse_root(sum_of(product.traced, product.side, product.side + 1)) : 1.0;
    const double n = product.squares
                         ? sqrt(static_cast<double>(product.columns)) *
                               inverse_root(sum_of(product.squares, product.num_squares, 1))
                         : 1.0;
    const int tiles_across = (product.columns + TILE - 1) / TILE;
    const int tile = blockIdx.x - static_cast<int>(product.first_block);
    const int first_row = tile / tiles_across * TILE, first_column = tile % tiles_across * TILE;
    Sums sums = {};
    multiply(sums, product, static_cast<T>(power_of(r, product.power)), first_row, first_column);

    const double scale = product.scale * power_of(r, product.power_of_sums);
    const T of_sums = static_cast<T>(UPDATES ? -read(rate) * scale : scale);
    const T of_added = static_cast<T>(
        UPDATES ? read(kept) * n : product.added_scale * power_of(r, product.added_power));
    const T* added = UPDATES ? product.c : product.added;
    const T diagonal = static_cast<T>(product.diagonal);
#pragma unroll
    for (int i = 0; i < COUNT; ++i) {
        const int row = first_row + row_of(i), column = first_column + column_of(i);
        if (row >= product.rows || column >= product.columns) continue;
        const int64 at = static_cast<int64>(row) * product.columns + column;
        T result = of_sums * sum_at(sums, i);
        if (added) result += of_added * added[at];
        if (!UPDATES && row == column) result += diagonal;
        product.c[at] = result;
    }
}
