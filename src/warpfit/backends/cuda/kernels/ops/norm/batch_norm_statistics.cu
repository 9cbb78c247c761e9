// Computes: per channel the batch's mean, the rest that rounding took off it, and 1 / √(variance +
//           eps); running ← (1 - momentum) · running + momentum · (mean, variance · n / (n - 1)).
// Layout:   x (num_rows, channels), running_mean and running_var (channels,), statistics (3,
//           channels) of the arithmetic type; partials (blocks of rows, 2, channels) float64;
//           arrivals one counter for every tile of columns, zero before and after. Where wide,
//           channels is a multiple of a vector's elements and x is aligned.
// Launch:   grid (tiles of columns, blocks of rows), 1-D blocks of up to 256 threads, of half
//           precision 512, in whole warps: `width` threads along a row, the rest over rows; no
//           dynamic shared memory; define DTYPE.
// Numerics: one pass. Values are taken relative to the first row's. Of half precision a thread sums
//           them and their squares in float32, MOST_ROWS at most, and float64 the threads'. Of
//           other types groups of rows give mean and sum of squared deviations in the arithmetic
//           type, which join in float64: exact to rounding however large the mean. In the same
//           order always.
// Cost:     sizeof DTYPE bytes and some 6 FLOP an element.
// Reference: batch_norm_forward of backends/numpy/norm.py; Chan, Golub, LeVeque: Updating formulae
//            and a pairwise algorithm for computing sample variances (1979).
#include "ops/norm/columns.cuh"

using T = DTYPE;
using P = PARAMETER;
using Acc = accumulator<T>;

constexpr int MOST_THREADS = sizeof(T) == 2 ? MOST_SUMMED_THREADS : COLUMN_THREADS;

using Room = SumRoom<Acc, Vec<T>::SIZE>;

// One for vectors of columns and single ones.
__device__ inline Room& sum_room() {
    __shared__ Room room;
    return room;
}

// Count, mean and sum of squared deviations from it of some numbers, for each of W columns.
template <int W>
struct Moments {
    double count;
    double mean[W];
    double squares[W];
};

template <int W>
__device__ inline void join_moments(Moments<W>& a, const Moments<W>& b) {
    const double count = a.count + b.count;
    const double share = count > 0 ? b.count / count : 0;
#pragma unroll
    for (int e = 0; e < W; ++e) {
        const double difference = b.mean[e] - a.mean[e];
        a.mean[e] += difference * share;
        a.squares[e] += b.squares[e] + difference * difference * share * a.count;
    }
    a.count = count;
}

template <int W, int UNROLL>
__device__ inline void add_rows(Moments<W>& moments, const Group<T, W> (&rows)[UNROLL],
                                const Acc (&origin)[W], int num_rows) {
    const Acc count = static_cast<Acc>(moments.count);
    const double share = static_cast<Acc>(num_rows) / (count + static_cast<Acc>(num_rows));
#pragma unroll
    for (int e = 0; e < W; ++e) {
        Acc value[UNROLL];
        Acc mean = 0;
#pragma unroll
        for (int u = 0; u < UNROLL; ++u) {
            value[u] = load(rows[u].element[e]) - origin[e];
            if (u < num_rows) mean += value[u];
        }
        mean /= static_cast<Acc>(num_rows);
        Acc squares = 0;
#pragma unroll
        for (int u = 0; u < UNROLL; ++u) {
            if (u < num_rows) squares += (value[u] - mean) * (value[u] - mean);
        }
        const double difference = mean - moments.mean[e];
        moments.mean[e] += difference * share;
        moments.squares[e] += squares + difference * difference * share * moments.count;
    }
    moments.count += num_rows;
}

// The moments of a thread's rows.
template <int W>
__device__ inline Moments<W> moments_of(const T* column, const Acc (&origin)[W],
                                        const ColumnPlace<W>& place, int64 num_rows, int channels) {
    constexpr int UNROLL = W <= 4 ? 8 : 4;
    Moments<W> moments = {};
    for (int64 row = place.first_row + place.line; row < place.end_row;
         row += UNROLL * place.num_lines) {
        Group<T, W> rows[UNROLL];
        int count = 0;
#pragma unroll
        for (int u = 0; u < UNROLL; ++u) {
            const int64 own = row + u * place.num_lines;
            rows[u] = load_group<W>(column + min(own, num_rows - 1) * channels, 0, W, true);
            count += own < place.end_row;
        }
        add_rows(moments, rows, origin, count);
    }
    return moments;
}

// Of half precision: sums of a thread's rows relative to the origin, and of their squares.
template <int W>
__device__ inline void sum_half_rows(Acc (&sums)[2][W], const T* column, const Acc (&origin)[W],
                                     const ColumnPlace<W>& place, int channels) {
    const auto take = [&](const Group<T, W>& values, bool is_there) {
#pragma unroll
        for (int e = 0; e < W; ++e) {
            const Acc value = is_there ? load(values.element[e]) - origin[e] : Acc(0);
            sums[0][e] += value;
            sums[1][e] += value * value;
        }
    };
    for_each_row<4>(
        place, [&](int64 row) { return load_group<W>(column + row * channels, 0, W, true); }, take);
}

// The sum of two numbers, and its rounding error in `error`.
__device__ inline double exact_sum(double a, double b, double& error) {
    const double sum = __dadd_rn(a, b);
    const double of_b = __dadd_rn(sum, -a);
    error = __dadd_rn(__dadd_rn(a, -__dadd_rn(sum, -of_b)), __dadd_rn(b, -of_b));
    return sum;
}

// Of a column's mean relative to an origin, and its sum of squared deviations.
__device__ inline void finish(double count, double mean_of_rest, double squares, double origin,
                              P* running_mean, P* running_var, Acc* statistics, int channels,
                              int column, double momentum, double eps) {
    const Acc keep = static_cast<Acc>(1 - momentum);
    const Acc take = static_cast<Acc>(momentum);
    double error;
    const double exact = exact_sum(origin, mean_of_rest, error);
    const Acc mean = static_cast<Acc>(exact);
    statistics[column] = mean;
    statistics[channels + column] = static_cast<Acc>((exact - mean) + error);
    statistics[2ll * channels + column] = static_cast<Acc>(1 / sqrt(squares / count + eps));
    running_mean[column] = store<P>(load(running_mean[column]) * keep + take * mean);
    running_var[column] =
        store<P>(load(running_var[column]) * keep + take * static_cast<Acc>(squares / (count - 1)));
}

// The same of half precision.
template <int W>
__device__ inline void find_half_statistics(const T* x, P* running_mean, P* running_var,
                                            Acc* statistics, double* partials, unsigned* arrivals,
                                            int64 num_rows, int channels, int width,
                                            int64 rows_per_block, double momentum, double eps) {
    Room& room = sum_room();
    const ColumnPlace<W> place(width, channels, num_rows, rows_per_block);
    Acc sums[2][W] = {};
    if (place.active) {
        const auto first = load_group<W>(x + place.column, 0, W, true);
        Acc origin[W];
#pragma unroll
        for (int e = 0; e < W; ++e) origin[e] = load(first.element[e]);
        sum_half_rows<W>(sums, x + place.column, origin, place, channels);
    }
    const ColumnSums<W, Acc, Vec<T>::SIZE> columns{room, width, channels};
    double total;
    if (!columns.total(sums, place.num_lines, partials, arrivals, total)) return;
    room.parts[threadIdx.x] = total;
    __syncthreads();
    if (!columns.is_out() || columns.kind() == 1) return;
    const int column = columns.column();
    const double mean = total / num_rows;
    finish(num_rows, mean, room.parts[threadIdx.x + W] - total * mean, load(x[column]),
           running_mean, running_var, statistics, channels, column, momentum, eps);
}

template <int W>
__device__ inline void find_statistics(const T* x, P* running_mean, P* running_var, Acc* statistics,
                                       double* partials, unsigned* arrivals, int64 num_rows,
                                       int channels, int width, int64 rows_per_block,
                                       double momentum, double eps) {
    __shared__ Moments<W> shared[COLUMN_THREADS];
    const ColumnPlace<W> place(width, channels, num_rows, rows_per_block);
    Moments<W> moments = {};
    Acc origin[W] = {};
    const T* column = x + place.column;
    if (place.active) {
        const auto first = load_group<W>(column, 0, W, true);
#pragma unroll
        for (int e = 0; e < W; ++e) origin[e] = load(first.element[e]);
        moments = moments_of<W>(column, origin, place, num_rows, channels);
    }
    join_lines(moments, place.line, place.num_lines, width, shared, join_moments<W>);
    if (gridDim.y > 1) {
        double* own = partials + static_cast<int64>(blockIdx.y) * 2 * channels + place.column;
        if (place.active && place.line == 0) {
#pragma unroll
            for (int e = 0; e < W; ++e) {
                own[e] = moments.mean[e];
                own[channels + e] = moments.squares[e];
            }
        }
        if (!is_last_block(arrivals + blockIdx.x, gridDim.y)) return;
        moments = {};
        if (place.active) {
#pragma unroll(W <= 4 ? 4 : 2)
            for (int64 block = place.line; block < gridDim.y; block += place.num_lines) {
                const double* from = partials + block * 2 * channels + place.column;
                Moments<W> part;
                part.count =
                    static_cast<double>(min(rows_per_block, num_rows - block * rows_per_block));
#pragma unroll
                for (int e = 0; e < W; ++e) {
                    part.mean[e] = __ldcg(from + e);
                    part.squares[e] = __ldcg(from + channels + e);
                }
                join_moments(moments, part);
            }
        }
        join_lines(moments, place.line, place.num_lines, width, shared, join_moments<W>);
    }
    if (!place.active || place.line > 0) return;
#pragma unroll
    for (int e = 0; e < W; ++e) {
        finish(moments.count, moments.mean[e], moments.squares[e], origin[e], running_mean,
               running_var, statistics, channels, place.column + e, momentum, eps);
    }
}

template <int W, class... Arguments>
__device__ inline void find(Arguments... arguments) {
    if constexpr (sizeof(T) == 2) {
        find_half_statistics<W>(arguments...);
    } else {
        find_statistics<W>(arguments...);
    }
}

extern "C" __global__ void __launch_bounds__(MOST_THREADS)
    batch_norm_statistics(const T* __restrict__ x, P* running_mean, P* running_var, Acc* statistics,
                          double* partials, unsigned* arrivals, int64 num_rows, int channels,
                          int width, int wide, int64 rows_per_block, double momentum, double eps) {
    take_turn();
    if (wide) {
        find<Vec<T>::SIZE>(x, running_mean, running_var, statistics, partials, arrivals, num_rows,
                           channels, width, rows_per_block, momentum, eps);
    } else {
        find<1>(x, running_mean, running_var, statistics, partials, arrivals, num_rows, channels,
                width, rows_per_block, momentum, eps);
    }
}
