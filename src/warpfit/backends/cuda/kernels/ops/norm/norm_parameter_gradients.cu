// Computes: dweight = factor · Σ dz · x̂ and dbias = factor · Σ dz over the rows, with x̂ = (x -
//           mean) / σ and dz = dy f'(x̂ weight + bias), f the define ACTIVATION.
// Layout:   dy, x (num_rows, channels); weight and bias (channels,) of PARAMETER or null, read if f
//           is not the identity, which it is if per_row; statistics, mean, its rest and 1 / σ, (3,
//           rows) if per_row (layer norm), else (3, channels), or null for x̂ = x; dweight and
//           dbias (channels,), of the arithmetic type; partials (blocks of rows, 2, channels)
//           float64; arrivals one counter for every tile of columns, zero before and after. Where
//           wide, channels is a multiple of a vector's elements and dy and x are aligned.
// Launch:   grid (tiles of columns, blocks of rows), 1-D blocks of up to 512 threads in whole
//           warps: `width` threads along a row, the rest over rows; no dynamic shared memory;
//           defines DTYPE and these.
// Numerics: a thread sums in accumulator<DTYPE>, threads and blocks are added in float64, in the
//           same order always.
// Cost:     2 · sizeof DTYPE bytes and 6 FLOP an element.
// Reference: batch_norm_backward and layer_norm_backward of backends/numpy/norm.py.
#include "ops/norm/columns.cuh"

using T = DTYPE;
using P = PARAMETER;
using Acc = accumulator<T>;

constexpr int UNROLL = 4;

using Room = SumRoom<Acc, Vec<T>::SIZE>;

// One for vectors of columns and single ones.
__device__ inline Room& sum_room() {
    __shared__ Room room;
    return room;
}

// Of a thread: Σ dz · x̂ and Σ dz of its columns.
template <int W>
using Sums = Acc[2][W];

// The sums over a thread's rows.
template <int W>
__device__ inline void sum_rows(Sums<W>& sums, const T* dy, const T* x, const P* weights,
                                const P* biases, const Acc* statistics, int64 num_rows,
                                int channels, int per_row, Acc slope, const ColumnPlace<W>& place) {
    constexpr bool IS_PLAIN = Activation::ACTIVATION == Activation::identity;
    const int64 num_statistics = per_row ? num_rows : channels;
    Acc mean[W], rest[W], inverse[W], scale[W], shift[W];
#pragma unroll
    for (int e = 0; e < W; ++e) {
        const int64 at = per_row ? 0 : place.column + e;
        mean[e] = statistics ? statistics[at] : Acc(0);
        rest[e] = statistics ? statistics[num_statistics + at] : Acc(0);
        inverse[e] = statistics ? statistics[2 * num_statistics + at] : Acc(1);
        if (IS_PLAIN) continue;
        scale[e] = weights ? inverse[e] * load(weights[at]) : inverse[e];
        shift[e] = biases ? load(biases[at]) : Acc(0);
    }
    for (int64 row = place.first_row + place.line; row < place.end_row;
         row += UNROLL * place.num_lines) {
        Group<T, W> gradients[UNROLL], values[UNROLL];
#pragma unroll
        for (int u = 0; u < UNROLL; ++u) {
            const int64 own =
                min(row + u * place.num_lines, num_rows - 1) * channels + place.column;
            gradients[u] = load_group<W>(dy + own, 0, W, true);
            values[u] = load_group<W>(x + own, 0, W, true);
        }
#pragma unroll
        for (int u = 0; u < UNROLL; ++u) {
            const int64 own = row + u * place.num_lines;
            if (own >= place.end_row) break;
            const Acc row_mean = per_row ? statistics[own] : Acc(0);
            const Acc row_rest = per_row ? statistics[num_rows + own] : Acc(0);
            const Acc row_inverse = per_row ? statistics[2 * num_rows + own] : Acc(0);
#pragma unroll
            for (int e = 0; e < W; ++e) {
                Acc gradient = load(gradients[u].element[e]);
                const Acc centred = (load(values[u].element[e]) - (per_row ? row_mean : mean[e])) -
                                    (per_row ? row_rest : rest[e]);
                if constexpr (!IS_PLAIN) {
                    gradient = before_activation<Activation::ACTIVATION>(
                        gradient, centred * scale[e] + shift[e], slope);
                }
                sums[0][e] += gradient * (centred * (per_row ? row_inverse : inverse[e]));
                sums[1][e] += gradient;
            }
        }
    }
}

// The same of half precision, where statistics are those of channels: a mean that is rounded is
// exact enough, and 1 / σ can wait for the total.
template <int W>
__device__ inline void sum_half_rows(Sums<W>& sums, const T* dy, const T* x, const P* weights,
                                     const P* biases, const Acc* statistics, int channels,
                                     Acc slope, const ColumnPlace<W>& place) {
    constexpr bool IS_PLAIN = Activation::ACTIVATION == Activation::identity;
    Acc mean[W], scale[W], shift[W];
#pragma unroll
    for (int e = 0; e < W; ++e) {
        const int c = place.column + e;
        mean[e] = statistics ? statistics[c] + statistics[channels + c] : Acc(0);
        if (IS_PLAIN) continue;
        const Acc inverse = statistics ? statistics[2ll * channels + c] : Acc(1);
        scale[e] = weights ? inverse * load(weights[c]) : inverse;
        shift[e] = biases ? load(biases[c]) : Acc(0);
    }
    struct Row {
        Group<T, W> gradients, values;
    };
    const auto load_row = [&](int64 row) {
        const int64 at = row * channels + place.column;
        return Row{load_group<W>(dy + at, 0, W, true), load_group<W>(x + at, 0, W, true)};
    };
    for_each_row<2>(place, load_row, [&](const Row& row, bool is_there) {
#pragma unroll
        for (int e = 0; e < W; ++e) {
            Acc gradient = is_there ? load(row.gradients.element[e]) : Acc(0);
            const Acc centred = load(row.values.element[e]) - mean[e];
            if constexpr (!IS_PLAIN) {
                gradient = before_activation<Activation::ACTIVATION>(
                    gradient, centred * scale[e] + shift[e], slope);
            }
            sums[0][e] += gradient * centred;
            sums[1][e] += gradient;
        }
    });
}

template <int W>
__device__ inline void sum_gradients(const T* dy, const T* x, const P* weights, const P* biases,
                                     const Acc* statistics, Acc* dweight, Acc* dbias,
                                     double* partials, unsigned* arrivals, int64 num_rows,
                                     int channels, int width, int64 rows_per_block, int per_row,
                                     double factor, double slope) {
    Room& room = sum_room();
    const ColumnPlace<W> place(width, channels, num_rows, rows_per_block);
    constexpr bool WAITS = sizeof(T) == 2;
    Sums<W> sums = {};
    if (place.active && WAITS && !per_row) {
        sum_half_rows<W>(sums, dy, x, weights, biases, statistics, channels,
                         static_cast<Acc>(slope), place);
    } else if (place.active) {
        sum_rows<W>(sums, dy, x, weights, biases, statistics, num_rows, channels, per_row,
                    static_cast<Acc>(slope), place);
    }
    const ColumnSums<W, Acc, Vec<T>::SIZE> columns{room, width, channels};
    double total;
    if (!columns.total(sums, place.num_lines, partials, arrivals, total) || !columns.is_out()) {
        return;
    }
    const int column = columns.column();
    if (columns.kind() == 1) {
        dbias[column] = static_cast<Acc>(total * factor);
    } else {
        const bool has_waited = WAITS && !per_row && statistics;
        const double inverse = has_waited ? statistics[2ll * channels + column] : Acc(1);
        dweight[column] = static_cast<Acc>(total * inverse * factor);
    }
}

extern "C" __global__ void __launch_bounds__(MOST_SUMMED_THREADS)
    norm_parameter_gradients(const T* __restrict__ dy, const T* __restrict__ x,
                             const P* __restrict__ weights, const P* __restrict__ biases,
                             const Acc* __restrict__ statistics, Acc* dweight, Acc* dbias,
                             double* partials, unsigned* arrivals, int64 num_rows, int channels,
                             int width, int wide, int64 rows_per_block, int per_row, double factor,
                             double slope) {
    take_turn();
    if (wide) {
        sum_gradients<Vec<T>::SIZE>(dy, x, weights, biases, statistics, dweight, dbias, partials,
                                    arrivals, num_rows, channels, width, rows_per_block, per_row,
                                    factor, slope);
    } else {
        sum_gradients<1>(dy, x, weights, biases, statistics, dweight, dbias, partials, arrivals,
                         num_rows, channels, width, rows_per_block, per_row, factor, slope);
    }
}
