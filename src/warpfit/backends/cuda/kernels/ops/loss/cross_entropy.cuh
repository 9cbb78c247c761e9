// Softmax cross-entropy of a row of logits: what its classes and the row itself weigh, and whether
// its label has the largest logit. class_weight w (C,) and sample_weight s (M,) are of type W, null
// for ones; labels are (M,), or (any,), of which row i has number order[i].
#pragma once

#include "base/types.cuh"

// A label as a column, -1 if it is none.
__device__ inline int column_of(int64 label, int num_columns) {
    return static_cast<uint64>(label) < static_cast<uint64>(num_columns) ? static_cast<int>(label)
                                                                         : -1;
}

template <class W>
struct Targets {
    using A = accumulator<W>;

    const int64* labels;
    const int64* order;  // or null
    const W* class_weight;
    const W* sample_weight;
    A smoothing;
    int num_columns;

    // Where a row's label is.
    __device__ int64 place_of(int64 row) const { return order ? order[row] : row; }

    // -w_c p_c, given -p_c.
    __device__ A spread_of(int column, A loss) const {
        return class_weight ? load(class_weight[column]) * loss : loss;
    }

    // w[label]. Labels come unchecked: one that is no class must not lead outside of w.
    __device__ A weight_of(int64 label) const {
        if (!class_weight) return A(1);
        const int column = column_of(label, num_columns);
        return column < 0 ? A(0) : load(class_weight[column]);
    }

    // s w[label].
    __device__ A weight_of_row(int64 row) const {
        const A weight = weight_of(labels[place_of(row)]);
        return sample_weight ? weight * load(sample_weight[row]) : weight;
    }

    // A row's loss, given -log p[label] and -Σ_c w_c p_c, and its weight, s w[label].
    __device__ A loss_of_row(int64 row, A label_loss, A spread, A& weight) const {
        weight = weight_of(labels[place_of(row)]);
        A loss = label_loss * weight;
        if (smoothing != A(0)) loss = (A(1) - smoothing) * loss + smoothing / num_columns * spread;
        if (sample_weight) {
            loss *= load(sample_weight[row]);
            weight *= load(sample_weight[row]);
        }
        return loss;
    }
};

// Whether argmax prefers an entry to the label's. Without branches, of which there would be one an
// entry.
template <class A>
__device__ inline bool beats(A value, int column, A of_label, int label) {
    const bool is_nan = value != value, is_before = column < label;
    const bool is_larger = is_nan | (value > of_label) | ((value == of_label) & is_before);
    return of_label != of_label ? is_nan & is_before : is_larger;
}
