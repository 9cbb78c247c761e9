// Computes: for each product of a list, with r = 1 / max(√Σ squares of d, LEAST_NORM), and s =
//           scale r^power op(a) op(b): c = s + added_scale added + diagonal I. UPDATES: c ← kept n
//           c - rate s, n = √columns / max(√Σ squares of w, LEAST_NORM), or 1 unless it normalizes.
// Layout:   row-major and contiguous, a and b at multiples of 16 bytes; a (rows, depth), or (depth,
//           rows) where transposed has bit 0; b (depth, columns), or (columns, depth) where it has
//           bit 1; c and added (rows, columns); of DTYPE, or bfloat16 if TENSOR_CORES, but for c if
//           UPDATES; squares of w and of d (num_squares,) float64. No c is read by another block.
// Launch:   as many blocks as the products have tiles of 64 by 64, those of each from first_block
//           on; block 256; shared bytes: four stages of both operands if TENSOR_CORES, else two
//           tiles of 16 by 65 (`_shared_bytes`); defines DTYPE, UPDATES, TENSOR_CORES (float32
//           only).
// Numerics: sums in DTYPE, k ascending; r and n in float64.
// Cost:     2 rows columns depth FLOP; each element of a is read once for each tile along columns,
//           each of b for each along rows.
// Reference: update_matrices of backends/numpy/optim.py.
#include "base/reduce.cuh"
#include "base/scalar.cuh"
#include "ops/optim/matrix_tiles.cuh"

using T = DTYPE;
#if TENSOR_CORES
using X = bfloat16;
#else
using X = T;
#endif
#if UPDATES
using Out = T;
#else
using Out = X;
#endif

constexpr int MAX_PRODUCTS = 32;
constexpr double LEAST_NORM = 1e-7;

// Python packs the same bytes.
struct MatrixProduct {
    const X* a;
    const X* b;
    Out* c;
    const Out* added;
    const double* squares_of_w;
    const double* squares_of_d;
    double scale, added_scale, diagonal;
    int power, normalizes, num_squares;
    int rows, columns, depth, transposed;
    int64 first_block;
};

struct ProductList {
    int64 count;
    MatrixProduct products[MAX_PRODUCTS];
};

// 1 / √ of the sum of count numbers, in every thread.
__device__ inline double inverse_root(const double* squares, int count) {
    __shared__ double shared[WARP];
    double sum = 0;
    for (int i = threadIdx.x; i < count; i += THREADS) sum += squares[i];
    sum = reduce_block<Sum>(sum, 0.0, shared);
    __syncthreads();
    return 1 / fmax(sqrt(sum), LEAST_NORM);
}

__device__ inline int product_of_block(const ProductList& list) {
    int idx = 0;
    while (idx + 1 < list.count && list.products[idx + 1].first_block <= blockIdx.x) ++idx;
    return idx;
}

extern "C" __global__ void __launch_bounds__(256)
    matrix_products(const __grid_constant__ ProductList list, Scalar rate, Scalar kept) {
    take_turn();
    DYNAMIC_SHARED(X, shared);
    const MatrixProduct& product = list.products[product_of_block(list)];
    const int tiles_across = (product.columns + TILE - 1) / TILE;
    const int tile = blockIdx.x - static_cast<int>(product.first_block);
    const int first_row = tile / tiles_across * TILE, first_column = tile % tiles_across * TILE;
    const int depth = product.depth;
    TileSums<X> sums;
    sums.multiply({product.a, !(product.transposed & 1), first_row, product.rows, depth},
                  {product.b, (product.transposed & 2) != 0, first_column, product.columns, depth},
                  shared);

    double scale = product.scale, own_scale = product.added_scale;
    if (product.power) {
        const double r = inverse_root(product.squares_of_d, product.num_squares);
        scale *= product.power == 2 ? r * r : r;
    }
    if (UPDATES) {
        scale *= -read(rate);
        own_scale = read(kept);
    }
    if (UPDATES && product.normalizes) {
        own_scale *= sqrt(static_cast<double>(product.columns)) *
                     inverse_root(product.squares_of_w, product.num_squares);
    }
    const T of_sums = static_cast<T>(scale), of_added = static_cast<T>(own_scale);
    const T diagonal = static_cast<T>(product.diagonal);
#pragma unroll
    for (int i = 0; i < COUNT; ++i) {
        const int row = first_row + sums.row(i), column = first_column + sums.column(i);
        if (row >= product.rows || column >= product.columns) continue;
        const int64 at = static_cast<int64>(row) * product.columns + column;
        T result = of_sums * sums.sum(i);
        if (product.added) result += of_added * load(product.added[at]);
        if (row == column) result += diagonal;
        product.c[at] = store<Out>(result);
    }
}
