// Computes: the mean loss Σ s_i l_i / Σ s_i w[label_i], its denominator, and the softmax of every
//           row; with log-probabilities p and smoothing ε, l = -(1 - ε) w[label] p[label] - (ε / C)
//           Σ_c w_c p_c.
// Layout:   logits and probabilities (M, C) beginning at multiples of 16 bytes, labels (M,),
//           class_weight w (C,) and sample_weight s (M,), null for ones, all contiguous; loss and
//           weight (); partials two for each block, arrivals one zero, both null with a single
//           block.
// Launch:   as softmax_forward, at least one block. Defines DTYPE, ITEMS, LONG_ROWS, STAGED.
// Numerics: a row in float32, or float64 for float64; the sums over rows in float64, in a fixed
//           sequence. The mean over no weight is 0.
// Cost:     2 M · C · sizeof DTYPE bytes, and once more what of a long row is kept nowhere.
// Reference: softmax_cross_entropy_forward of backends/numpy/loss.py.
#include "ops/loss/cross_entropy.cuh"
#include "ops/loss/loss.cuh"
#include "ops/softmax/softmax.cuh"

// Fewer than elsewhere: smoothing needs a row's logits and exponentials at once.
constexpr int BLOCKS_HELD = blocks_held(ITEMS > 12 ? 2 : STAGED ? 3 : 4);

// Adds a row's loss and weight, given -log p[label] and -Σ_c w_c p_c.
__device__ inline void add_row(const Targets<T>& targets, int64 row, Acc label_loss, Acc spread,
                               double (&sums)[2]) {
    Acc weight;
    sums[0] += targets.loss_of_row(row, label_loss, spread, weight);
    sums[1] += weight;
}

__device__ inline void short_rows(const ShortRows& rows, const Targets<T>& targets, const T* logits,
                                  T* probabilities, double (&sums)[2]) {
    rows.fetch(0, logits);
    rows.wait();
    for (int row = rows.row(); row < rows.capacity; row += rows.step()) {
        const bool is_there = row < rows.num_rows;
        const int64 label = is_there ? targets.labels[rows.first + row] : -1;
        Acc values[ITEMS], terms[ITEMS];
        rows.read(0, logits, row, minus_infinity(), values);
        const ExpSum exp_sum(rows, values, terms);
        const Acc log_sum = logarithm(exp_sum.sum), scale = Acc(1) / exp_sum.sum;
        Acc of_label = minus_infinity(), spread = 0;
        each_item([&](int j) {
            if (rows.column(j) == label) of_label = values[j];
            terms[j] *= scale;
        });
        if (targets.smoothing != Acc(0)) {
            each_item([&](int j) {
                const int c = rows.column(j);
                if (c < rows.num_columns)
                    spread += targets.spread_of(c, log_sum - (values[j] - exp_sum.largest));
            });
            spread = reduce_lanes<Sum>(spread, rows.lanes);
        }
        of_label = reduce_lanes<Max>(of_label, rows.lanes);
        rows.write(probabilities, row, terms);
        if (is_there && rows.lane() == 0) {
            add_row(targets, rows.first + row, log_sum - (of_label - exp_sum.largest), spread,
                    sums);
        }
    }
    rows.wait();
    rows.flush(probabilities);
}

__device__ inline void long_row(int64 number, const LongRow& row, const Targets<T>& targets,
                                const T* logits, T* probabilities, Vec<T>* kept, Acc* shared,
                                double (&sums)[2]) {
    Acc values[ITEMS], terms[ITEMS], factor;
    const ExpSum exp_sum(row, logits, kept, shared, values, terms, factor);
    const Acc log_sum = logarithm(exp_sum.sum), scale = Acc(1) / exp_sum.sum;
    factor *= scale;
    each_item([&](int j) { terms[j] *= factor; });
    row.write(probabilities, row.last(), terms);
    Acc spread = 0;
    for (int first = row.last(); first >= 0; first -= row.round()) {
        if (first < row.last()) row.read_again(logits, kept, first, minus_infinity(), values);
        if (targets.smoothing != Acc(0)) {
#pragma unroll
            for (int j = 0; j < ITEMS; ++j) {
                const int c = row.column(first, j);
                if (row.has(c))
                    spread += targets.spread_of(c, log_sum - (values[j] - exp_sum.largest));
            }
        }
        if (first == row.last()) continue;
        each_item([&](int j) { values[j] = exponential(values[j] - exp_sum.largest) * scale; });
        row.write(probabilities, first, values);
    }
    if (targets.smoothing != Acc(0)) spread = reduce_block<Sum>(spread, Acc(0), shared);
    if (threadIdx.x != 0) return;
    const int64 label = targets.labels[number];
    const bool is_known = static_cast<uint64>(label) < static_cast<uint64>(row.num_columns);
    const Acc of_label = is_known ? load(logits[row.start + label]) : minus_infinity();
    add_row(targets, number, log_sum - (of_label - exp_sum.largest), spread, sums);
}

extern "C" __global__ void __launch_bounds__(MOST_THREADS, BLOCKS_HELD)
    softmax_cross_entropy_forward(const T* logits, const int64* labels, const T* class_weight,
                                  const T* sample_weight, T* probabilities, Acc* loss, Acc* weight,
                                  double* partials, unsigned* arrivals, double smoothing,
                                  int64 num_rows, int num_columns, int lanes, int capacity) {
    take_turn();
    DYNAMIC_SHARED(Vec<T>, kept);
    const Targets<T> targets{
        labels, nullptr, class_weight, sample_weight, static_cast<Acc>(smoothing), num_columns};
    double sums[2] = {0, 0};
#if LONG_ROWS
    __shared__ Acc shared[WARP];
    for (int64 row = blockIdx.x; row < num_rows; row += gridDim.x) {
        long_row(row, LongRow(row, num_columns, capacity), targets, logits, probabilities, kept,
                 shared, sums);
    }
#else
    const ShortRows rows(num_rows, num_columns, lanes, capacity, kept->element);
    short_rows(rows, targets, logits, probabilities, sums);
#endif
    if (sum_over_grid(sums, partials, arrivals) && threadIdx.x == 0) {
        write_mean(loss, sums[0], sums[1]);
        *weight = static_cast<Acc>(sums[1]);
    }
}
