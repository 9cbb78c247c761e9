// Computes: y = (x - mean) / √(variance + eps) · weight + bias, row by row.
// Layout:   x, y (num_rows, row_size), weight and bias (row_size,) or null; statistics (3,
//           num_rows) of the arithmetic type: mean, its rest, 1 / σ. Where wide, row_size is a
//           multiple of a vector's elements and x, y, weight and bias are aligned.
// Launch:   a team of threads a row: blocks of 32 x n threads for n rows, or of more threads for
//           one row, up to 512 in whole warps; no dynamic shared memory; define DTYPE.
// Numerics: means in accumulator<DTYPE>, taken twice: that of the row, then that of what is left,
//           which is the rounding error of the first. Exact where the mean is far larger than the
//           spread.
// Cost:     2 · sizeof DTYPE bytes and 8 FLOP an element; 5 for what of a long row is not kept in
//   registers.
// Reference: layer_norm_forward of backends/numpy/norm.py.
#include "base/math.cuh"
#include "ops/norm/rows.cuh"

using T = DTYPE;
using Acc = accumulator<T>;

constexpr int W = Vec<T>::SIZE;

struct Part {
    Acc x[W];
};

extern "C" __global__ void __launch_bounds__(512, 1)
    layer_norm_forward(const T* __restrict__ x, const T* __restrict__ weight,
                       const T* __restrict__ bias, T* __restrict__ y, Acc* __restrict__ statistics,
                       int64 num_rows, int row_size, double eps, int wide) {
    take_turn();
    __shared__ Acc shared[WARP];
    const int64 row = row_of_team();
    if (row >= num_rows) return;
    const T* from = x + row * row_size;
    T* to = y + row * row_size;
    const auto make = [&](int at) {
        const auto group = load_group<W>(from, at, row_size, wide);
        Part part;
#pragma unroll
        for (int e = 0; e < W; ++e) part.x[e] = load(group.element[e]);
        return part;
    };
    Part kept[GROUPS_KEPT];
    keep_groups<W>(kept, make);

    Acc sum = 0;
    for_each_group<W>(kept, row_size, make, [&](int, Part& part) {
#pragma unroll
        for (int e = 0; e < W; ++e) sum += part.x[e];
    });
    const Acc mean = sum_over_team(sum, shared) / row_size;

    sum = 0;
    for_each_group<W>(kept, row_size, make, [&](int at, Part& part) {
#pragma unroll
        for (int e = 0; e < W; ++e) sum += at + e < row_size ? part.x[e] - mean : Acc(0);
    });
    const Acc rest = sum_over_team(sum, shared) / row_size;

    Acc squares = 0;
    for_each_group<W>(kept, row_size, make, [&](int at, Part& part) {
#pragma unroll
        for (int e = 0; e < W; ++e) {
            const Acc centred = at + e < row_size ? (part.x[e] - mean) - rest : Acc(0);
            squares += centred * centred;
        }
    });
    const Acc variance = sum_over_team(squares, shared) / row_size;
    const Acc inverse = Acc(1) / square_root(variance + static_cast<Acc>(eps));
    if (threadIdx.x == 0) {
        statistics[row] = mean;
        statistics[num_rows + row] = rest;
        statistics[2 * num_rows + row] = inverse;
    }
    for_each_group<W>(kept, row_size, make, [&](int at, Part& part) {
        Group<T, W> result;
        Group<T, W> weights;
        Group<T, W> biases;
        if (weight) weights = load_group<W>(weight, at, row_size, wide);
        if (bias) biases = load_group<W>(bias, at, row_size, wide);
#pragma unroll
        for (int e = 0; e < W; ++e) {
            Acc value = ((part.x[e] - mean) - rest) * inverse;
            if (weight) value *= load(weights.element[e]);
            if (bias) value += load(biases.element[e]);
            result.element[e] = store<T>(value);
        }
        store_group<W>(to, at, row_size, wide, result);
    });
}
