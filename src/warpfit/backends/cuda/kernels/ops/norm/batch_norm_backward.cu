// Computes: dx = weight / σ · (dz - Σ dz / n - x̂ · Σ dz · x̂ / n), x̂ = (x - mean) / σ, n =
//           num_rows, dz = dy f'(x̂ weight + bias), f the define ACTIVATION; out of training dx =
//           weight / σ · dz. Σ dz · x̂ and Σ dz are factor · dweight and factor · dbias.
// Layout:   dy, x, dx (num_rows, channels), weight and bias (channels,) of PARAMETER or null;
//           statistics (3, channels),
//           that is mean, its rest and 1 / σ, dweight and dbias (channels,), of the arithmetic
//           type. Where wide, channels is a multiple of a vector's elements and dy, x and dx are
//           aligned.
// Launch:   grid (tiles of columns, blocks of rows), 1-D blocks of up to 256 threads in whole
//           warps: `width` threads along a row, the rest over rows; no shared memory; defines
//           DTYPE and these.
// Numerics: arithmetic in accumulator<DTYPE>.
// Cost:     3 · sizeof DTYPE bytes (2 out of training) and 6 FLOP an element.
// Reference: batch_norm_backward of backends/numpy/norm.py.
#include "ops/norm/columns.cuh"

using T = DTYPE;
using P = PARAMETER;
using Acc = accumulator<T>;

constexpr int UNROLL = 4;

template <int W>
__device__ inline void differentiate(const T* dy, const T* x, const P* weight, const P* bias,
                                     const Acc* statistics, const Acc* dweight, const Acc* dbias,
                                     T* dx, int64 num_rows, int channels, int width,
                                     int64 rows_per_block, double factor, double activation_slope,
                                     int training) {
    const ColumnPlace<W> place(width, channels, num_rows, rows_per_block);
    if (!place.active) return;
    constexpr bool IS_PLAIN = Activation::ACTIVATION == Activation::identity;
    Acc mean[W], rest[W], scale[W], slope[W], shift[W], own_bias[W];
#pragma unroll
    for (int e = 0; e < W; ++e) {
        const int c = place.column + e;
        const Acc inverse = statistics[2ll * channels + c];
        mean[e] = statistics[c];
        rest[e] = statistics[channels + c];
        scale[e] = weight ? inverse * load(weight[c]) : inverse;
        own_bias[e] = bias ? load(bias[c]) : Acc(0);
        const Acc share = scale[e] * static_cast<Acc>(factor) / static_cast<Acc>(num_rows);
        slope[e] = training ? share * inverse * dweight[c] : Acc(0);
        shift[e] = training ? share * dbias[c] : Acc(0);
    }
    for (int64 row = place.first_row + place.line; row < place.end_row;
         row += UNROLL * place.num_lines) {
        Group<T, W> gradients[UNROLL], values[UNROLL];
#pragma unroll
        for (int u = 0; u < UNROLL; ++u) {
            const int64 own =
                min(row + u * place.num_lines, num_rows - 1) * channels + place.column;
            gradients[u] = load_group<W>(dy + own, 0, W, true);
            if (training || !IS_PLAIN) values[u] = load_group<W>(x + own, 0, W, true);
        }
#pragma unroll
        for (int u = 0; u < UNROLL; ++u) {
            const int64 own = row + u * place.num_lines;
#pragma unroll
            for (int e = 0; e < W; ++e) {
                Acc result = load(gradients[u].element[e]);
                Acc centred = 0;
                if (training || !IS_PLAIN) {
                    centred = (load(values[u].element[e]) - mean[e]) - rest[e];
                    result = before_activation<Activation::ACTIVATION>(
                        result, centred * scale[e] + own_bias[e],
                        static_cast<Acc>(activation_slope));
                }
                result = result * scale[e];
                if (training) result = result - centred * slope[e] - shift[e];
                gradients[u].element[e] = store<T>(result);
            }
            if (own < place.end_row) {
                store_group<W>(dx + own * channels + place.column, 0, W, true, gradients[u]);
            }
        }
    }
}

extern "C" __global__ void __launch_bounds__(256)
    batch_norm_backward(const T* __restrict__ dy, const T* __restrict__ x,
                        const P* __restrict__ weight, const P* __restrict__ bias,
                        const Acc* __restrict__ statistics, const Acc* __restrict__ dweight,
                        const Acc* __restrict__ dbias, T* __restrict__ dx, int64 num_rows,
                        int channels, int width, int wide, int64 rows_per_block, double factor,
                        double activation_slope, int training) {
    take_turn();
    if (wide) {
        differentiate<Vec<T>::SIZE>(dy, x, weight, bias, statistics, dweight, dbias, dx, num_rows,
                                    channels, width, rows_per_block, factor, activation_slope,
                                    training);
    } else {
        differentiate<1>(dy, x, weight, bias, statistics, dweight, dbias, dx, num_rows, channels,
                         width, rows_per_block, factor, activation_slope, training);
    }
}
