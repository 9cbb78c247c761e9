// Computes: record[row] = (the mean loss of softmax_cross_entropy_forward, its denominator, how
//           many rows have their largest logit, the first if several, at the label), and gradient,
//           that of softmax_cross_entropy_backward times `scale`.
// Layout:   logits and gradient (M, C) beginning at multiples of 16 bytes; labels (M,), or with an
//           order int64, else null, (any,), of which row i of the batch has number
//           order[(read(first_step) + offset) · rows_per_step + i]; class_weight w (C,) and
//           sample_weight s (M,) of DTYPE's arithmetic type, null for ones, all contiguous; record
//           (steps, 3) float64; partials two for each block, arrivals one zero, both null with a
//           single block.
// Launch:   as softmax_forward, at least one block. Defines DTYPE, ITEMS, LONG_ROWS, STAGED.
// Numerics: a row in float32, or float64 for float64; the sums over rows in float64, in a fixed
//           sequence. The mean over no weight is 0, and so is its gradient.
// Cost:     2 M · C · sizeof DTYPE bytes, and once more what of a long row is kept nowhere; every
//           block reads all weights.
// Reference: softmax_cross_entropy_forward, softmax_cross_entropy_backward and count_correct of
//           backends/numpy/loss.py.
#include "ops/loss/cross_entropy.cuh"
#include "ops/loss/loss_step.cuh"
#include "ops/softmax/softmax.cuh"

// Fewer than elsewhere: the gradient needs a row's logits and exponentials at once.
constexpr int BLOCKS_HELD = LONG_ROWS ? 1 : blocks_held(ITEMS > 12 ? 2 : 3);

// The gradient with respect to a row's logits, from its softmax.
struct Gradients {
    // What is taken off at the label and at each class before class weights, and joins the
    // softmax's factor.
    Acc on_label, on_each, on_all;
    Acc scale;  // over the weight of all rows

    // By all threads of a block.
    __device__ Gradients(const Targets<Acc>& targets, double total_weight, double loss_scale)
        : on_label(Acc(1) - targets.smoothing),
          on_each(targets.smoothing / targets.num_columns),
          on_all(0),
          scale(inverse_or_zero(static_cast<Acc>(total_weight)) * static_cast<Acc>(loss_scale)) {
        if (!targets.class_weight || on_each == Acc(0)) return;
        on_all = on_each * static_cast<Acc>(sum_of_rows(targets.num_columns, [&](int64 column) {
                     return targets.class_weight[column];
                 }));
    }
};

struct RowGradients {
    const Acc* class_weight;
    Acc on_label, on_each, share, scale;
    int label;

    __device__ RowGradients(const Gradients& gradients, const Targets<Acc>& targets, int64 row,
                            int label_of_row)
        : class_weight(targets.class_weight),
          on_label(gradients.on_label * targets.weight_of(label_of_row)),
          on_each(gradients.on_each),
          share(class_weight ? on_label + gradients.on_all : Acc(1)),
          scale(targets.sample_weight ? gradients.scale * targets.sample_weight[row]
                                      : gradients.scale),
          label(label_of_row) {}

    __device__ Acc at(int column, Acc probability) const {
        Acc result = probability * share;
        if (column == label) result -= on_label;
        return (result - (class_weight ? on_each * class_weight[column] : on_each)) * scale;
    }
};

__device__ inline void short_rows(const ShortRows& rows, const Targets<Acc>& targets,
                                  const Gradients& gradients, const T* logits, T* gradient,
                                  double (&sums)[2]) {
    rows.wait();
    for (int row = rows.row(); row < rows.capacity; row += rows.step()) {
        const bool is_there = row < rows.num_rows;
        const int64 number = rows.first + (is_there ? row : 0);
        const int64 place = targets.place_of(number);
        Acc values[ITEMS], terms[ITEMS];
        rows.read(0, logits, row, minus_infinity(), values);
        const int label = is_there ? column_of(targets.labels[place], rows.num_columns) : -1;
        const ExpSum exp_sum(rows, values, terms);
        const Acc log_sum = logarithm(exp_sum.sum), scale = Acc(1) / exp_sum.sum;
        Acc of_label = minus_infinity(), spread = 0;
        each_item([&](int j) {
            if (rows.column(j) == label) of_label = values[j];
        });
        of_label = reduce_lanes<Max>(of_label, rows.lanes);
        if (targets.smoothing != Acc(0)) {
            each_item([&](int j) {
                const int c = rows.column(j);
                if (c < rows.num_columns)
                    spread += targets.spread_of(c, log_sum - (values[j] - exp_sum.largest));
            });
            spread = reduce_lanes<Sum>(spread, rows.lanes);
        }
        int beaten = label < 0;
        const RowGradients of_row(gradients, targets, number, label);
        each_item([&](int j) {
            const int c = rows.column(j);
            if (c >= rows.num_columns) return;
            beaten |= beats(values[j], c, of_label, label);
            terms[j] = of_row.at(c, terms[j] * scale);
        });
        beaten = reduce_lanes<Sum>(beaten, rows.lanes);
        rows.write(gradient, row, terms);
        if (is_there && rows.lane() == 0) {
            Acc weight;
            const Acc label_loss = log_sum - (of_label - exp_sum.largest);
            sums[0] += targets.loss_of_row(number, label_loss, spread, weight);
            sums[1] += beaten == 0;
        }
    }
    rows.wait();
    rows.flush(gradient);
}

__device__ inline void long_row(int64 number, const LongRow& row, const Targets<Acc>& targets,
                                const Gradients& gradients, const T* logits, T* gradient,
                                Vec<T>* kept, Acc* shared, double (&sums)[2]) {
    Acc values[ITEMS], terms[ITEMS], factor;
    const ExpSum exp_sum(row, logits, kept, shared, values, terms, factor);
    const Acc log_sum = logarithm(exp_sum.sum), scale = Acc(1) / exp_sum.sum;
    const int label = column_of(targets.labels[targets.place_of(number)], row.num_columns);
    const Acc of_label = label < 0 ? minus_infinity() : load(logits[row.start + label]);
    const RowGradients of_row(gradients, targets, number, label);
    factor *= scale;
    each_item([&](int j) { terms[j] *= factor; });
    Acc spread = 0;
    int beaten = label < 0;
    for (int first = row.last(); first >= 0; first -= row.round()) {
        if (first < row.last()) {
            row.read_again(logits, kept, first, minus_infinity(), values);
            each_item([&](int j) { terms[j] = exponential(values[j] - exp_sum.largest) * scale; });
        }
        each_item([&](int j) {
            const int c = row.column(first, j);
            if (!row.has(c)) return;
            if (targets.smoothing != Acc(0))
                spread += targets.spread_of(c, log_sum - (values[j] - exp_sum.largest));
            beaten |= beats(values[j], c, of_label, label);
            terms[j] = of_row.at(c, terms[j]);
        });
        row.write(gradient, first, terms);
    }
    if (targets.smoothing != Acc(0)) spread = reduce_block<Sum>(spread, Acc(0), shared);
    beaten = __syncthreads_or(beaten);
    if (threadIdx.x != 0) return;
    Acc weight;
    sums[0] += targets.loss_of_row(number, log_sum - (of_label - exp_sum.largest), spread, weight);
    sums[1] += beaten == 0;
}

extern "C" __global__ void __launch_bounds__(MOST_THREADS, BLOCKS_HELD)
    softmax_cross_entropy_step(const T* logits, const int64* labels, const int64* order,
                               Scalar first_step, int64 offset, int64 rows_per_step,
                               const Acc* class_weight, const Acc* sample_weight, T* gradient,
                               double* record, Scalar record_row, double* partials,
                               unsigned* arrivals, double smoothing, double scale, int64 num_rows,
                               int num_columns, int lanes, int capacity) {
    take_turn();
    DYNAMIC_SHARED(Vec<T>, kept);
    const int64* own_order = order_of_step(order, first_step, offset, rows_per_step);
    const Targets<Acc> targets{
        labels, own_order, class_weight, sample_weight, static_cast<Acc>(smoothing), num_columns};
#if !LONG_ROWS
    const ShortRows rows(num_rows, num_columns, lanes, capacity, kept->element);
    rows.fetch(0, logits);
#endif
    double total_weight = num_rows;
    if (class_weight || sample_weight) {
        total_weight = sum_of_rows(num_rows, [&](int64 row) { return targets.weight_of_row(row); });
    }
    const Gradients gradients(targets, total_weight, scale);
    double sums[2] = {0, 0};
#if LONG_ROWS
    __shared__ Acc shared[WARP];
    for (int64 row = blockIdx.x; row < num_rows; row += gridDim.x) {
        long_row(row, LongRow(row, num_columns, capacity), targets, gradients, logits, gradient,
                 kept, shared, sums);
    }
#else
    short_rows(rows, targets, gradients, logits, gradient, sums);
#endif
    if (sum_over_grid(sums, partials, arrivals) && threadIdx.x == 0) {
        write_record(record, record_row, sums[0], total_weight, sums[1]);
    }
}
