// Computes: y = f((x - mean) / √(variance + eps) · weight + bias, + added if HAS_ADDED), f the
//           define ACTIVATION; out of training from the running
//           statistics, which are noted in `statistics` then, as batch_norm_statistics does in
//           training.
// Layout:   x, added, y (num_rows, channels), all else (channels,) of PARAMETER, weight and bias
//           may be null; statistics (3, channels) of the arithmetic type: mean, its rest, 1 / σ.
//           Where wide, channels is a multiple of a vector's elements and x, added and y are
//           aligned.
// Launch:   grid (tiles of columns, blocks of rows), 1-D blocks of up to 256 threads in whole
//           warps: `width` threads along a row, the rest over rows; no shared memory; defines
//           these, DTYPE.
// Numerics: arithmetic in accumulator<DTYPE>.
// Cost:     2 · sizeof DTYPE bytes, or 3, and 4 FLOP an element.
// Reference: batch_norm_forward of backends/numpy/norm.py.
#include "base/math.cuh"
#include "ops/norm/columns.cuh"

using T = DTYPE;
using P = PARAMETER;
using Acc = accumulator<T>;

constexpr int UNROLL = 4;

template <int W>
__device__ inline void normalise(const T* x, const P* weight, const P* bias, const P* running_mean,
                                 const P* running_var, const T* added, Acc* statistics, T* y,
                                 int64 num_rows, int channels, int width, int64 rows_per_block,
                                 double eps, double slope, int training) {
    const ColumnPlace<W> place(width, channels, num_rows, rows_per_block);
    if (!place.active) return;
    Acc mean[W], rest[W], scale[W], shift[W];
#pragma unroll
    for (int e = 0; e < W; ++e) {
        const int c = place.column + e;
        Acc inverse;
        if (training) {
            mean[e] = statistics[c];
            rest[e] = statistics[channels + c];
            inverse = statistics[2ll * channels + c];
        } else {
            mean[e] = load(running_mean[c]);
            rest[e] = 0;
            inverse = Acc(1) / square_root(load(running_var[c]) + static_cast<Acc>(eps));
            if (blockIdx.y == 0 && place.line == 0) {
                statistics[c] = mean[e];
                statistics[channels + c] = 0;
                statistics[2ll * channels + c] = inverse;
            }
        }
        scale[e] = weight ? inverse * load(weight[c]) : inverse;
        shift[e] = bias ? load(bias[c]) : Acc(0);
    }
    for (int64 row = place.first_row + place.line; row < place.end_row;
         row += UNROLL * place.num_lines) {
        Group<T, W> rows[UNROLL], others[UNROLL];
#pragma unroll
        for (int u = 0; u < UNROLL; ++u) {
            const int64 own = min(row + u * place.num_lines, num_rows - 1);
            rows[u] = load_group<W>(x + own * channels + place.column, 0, W, true);
            if (HAS_ADDED)
                others[u] = load_group<W>(added + own * channels + place.column, 0, W, true);
        }
#pragma unroll
        for (int u = 0; u < UNROLL; ++u) {
            const int64 own = row + u * place.num_lines;
#pragma unroll
            for (int e = 0; e < W; ++e) {
                const Acc centred = (load(rows[u].element[e]) - mean[e]) - rest[e];
                Acc z = centred * scale[e] + shift[e];
                if (HAS_ADDED) z += load(others[u].element[e]);
                rows[u].element[e] =
                    store<T>(activate<Activation::ACTIVATION>(z, static_cast<Acc>(slope)));
            }
            if (own < place.end_row)
                store_group<W>(y + own * channels + place.column, 0, W, true, rows[u]);
        }
    }
}

extern "C" __global__ void __launch_bounds__(256)
    batch_norm_forward(const T* __restrict__ x, const P* __restrict__ weight,
                       const P* __restrict__ bias, const P* __restrict__ running_mean,
                       const P* __restrict__ running_var, const T* __restrict__ added,
                       Acc* statistics, T* __restrict__ y, int64 num_rows, int channels, int width,
                       int wide, int64 rows_per_block, double eps, double slope, int training) {
    take_turn();
    if (wide) {
        normalise<Vec<T>::SIZE>(x, weight, bias, running_mean, running_var, added, statistics, y,
                                num_rows, channels, width, rows_per_block, eps, slope, training);
    } else {
        normalise<1>(x, weight, bias, running_mean, running_var, added, statistics, y, num_rows,
                     channels, width, rows_per_block, eps, slope, training);
    }
}
