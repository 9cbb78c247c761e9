// Computes: dx = (g - mean(g) - x̂ · mean(g · x̂)) / σ with g = dy · weight and x̂ = (x - mean) /
//   σ, row by row.
// Layout:   dy, x, dx (num_rows, row_size), weight (row_size,) or null; statistics (3, num_rows) of
//           the arithmetic type: mean, its rest, 1 / σ. Where wide, row_size is a multiple of a
//           vector's elements and all are aligned.
// Launch:   a team of threads a row: blocks of 32 x n threads for n rows, or of more threads for
//           one row, up to 512 in whole warps; no dynamic shared memory; define DTYPE.
// Numerics: arithmetic and sums in accumulator<DTYPE>.
// Cost:     3 · sizeof DTYPE bytes and 11 FLOP an element; 5 for what of a long row is not kept in
//   registers.
// Reference: layer_norm_backward of backends/numpy/norm.py.
#include "ops/norm/rows.cuh"

using T = DTYPE;
using Acc = accumulator<T>;

constexpr int W = Vec<T>::SIZE;

// g and x̂; zeros past the row's end.
struct Part {
    Acc gradient[W];
    Acc value[W];
};

extern "C" __global__ void __launch_bounds__(512, 1)
    layer_norm_backward(const T* __restrict__ dy, const T* __restrict__ x,
                        const T* __restrict__ weight, const Acc* __restrict__ statistics,
                        T* __restrict__ dx, int64 num_rows, int row_size, int wide) {
    take_turn();
    __shared__ Acc shared[WARP];
    const int64 row = row_of_team();
    if (row >= num_rows) return;
    const Acc mean = statistics[row];
    const Acc rest = statistics[num_rows + row];
    const Acc inverse = statistics[2 * num_rows + row];
    const auto make = [&](int at) {
        const auto gradients = load_group<W>(dy + row * row_size, at, row_size, wide);
        const auto values = load_group<W>(x + row * row_size, at, row_size, wide);
        Group<T, W> weights;
        if (weight) weights = load_group<W>(weight, at, row_size, wide);
        Part part;
#pragma unroll
        for (int e = 0; e < W; ++e) {
            part.gradient[e] =
                load(gradients.element[e]) * (weight ? load(weights.element[e]) : Acc(1));
            part.value[e] =
                at + e < row_size ? ((load(values.element[e]) - mean) - rest) * inverse : Acc(0);
        }
        return part;
    };
    Part kept[GROUPS_KEPT];
    keep_groups<W>(kept, make);

    Acc sum = 0;
    Acc product = 0;
    for_each_group<W>(kept, row_size, make, [&](int, Part& part) {
#pragma unroll
        for (int e = 0; e < W; ++e) {
            sum += part.gradient[e];
            product += part.gradient[e] * part.value[e];
        }
    });
    const Acc mean_gradient = sum_over_team(sum, shared) / row_size;
    const Acc mean_product = sum_over_team(product, shared) / row_size;
    for_each_group<W>(kept, row_size, make, [&](int at, Part& part) {
        Group<T, W> result;
#pragma unroll
        for (int e = 0; e < W; ++e) {
            const Acc value = (part.gradient[e] - mean_gradient) - part.value[e] * mean_product;
            result.element[e] = store<T>(value * inverse);
        }
        store_group<W>(dx + row * row_size, at, row_size, wide, result);
    });
}
