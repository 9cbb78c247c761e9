// Computes: how many rows have their largest logit, the first if several, at the label.
// Layout:   logits (M, C) beginning at a multiple of 16 bytes, labels (M,), contiguous; count ()
//           int64; partials one for each block, arrivals one zero, both null with a single block.
// Launch:   as softmax_forward, at least one block. Defines DTYPE, ITEMS, LONG_ROWS, STAGED.
// Numerics: exact; as in NumPy's argmax a NaN counts as the largest.
// Cost:     M · C · sizeof DTYPE bytes.
// Reference: count_correct of backends/numpy/loss.py.
#include "ops/loss/cross_entropy.cuh"
#include "ops/loss/loss.cuh"
#include "ops/softmax/softmax.cuh"

__device__ inline int short_rows(const ShortRows& rows, const T* logits, const int64* labels) {
    rows.fetch(0, logits);
    rows.wait();
    int count = 0;
    for (int row = rows.row(); row < rows.capacity; row += rows.step()) {
        const int label =
            row < rows.num_rows ? column_of(labels[rows.first + row], rows.num_columns) : -1;
        Acc values[ITEMS];
        rows.read(0, logits, row, minus_infinity(), values);
        Acc of_label = minus_infinity();
        each_item([&](int j) {
            if (rows.column(j) == label) of_label = values[j];
        });
        of_label = reduce_lanes<Max>(of_label, rows.lanes);
        int beaten = label < 0;
        each_item([&](int j) {
            if (rows.column(j) < rows.num_columns)
                beaten |= beats(values[j], rows.column(j), of_label, label);
        });
        beaten = reduce_lanes<Sum>(beaten, rows.lanes);
        count += beaten == 0 && rows.lane() == 0;
    }
    return count;
}

__device__ inline int long_row(const LongRow& row, int64 given_label, const T* logits) {
    const int label = column_of(given_label, row.num_columns);
    const Acc of_label = label < 0 ? Acc(0) : load(logits[row.start + label]);
    int beaten = label < 0;
    for (int first = 0; first < row.num_vectors; first += row.round()) {
        Acc values[ITEMS];
        row.read(logits, first, minus_infinity(), values);
#pragma unroll
        for (int j = 0; j < ITEMS; ++j) {
            const int c = row.column(first, j);
            if (row.has(c)) beaten |= beats(values[j], c, of_label, label);
        }
    }
    return !__syncthreads_or(beaten) && threadIdx.x == 0;
}

extern "C" __global__ void __launch_bounds__(MOST_THREADS, LONG_ROWS ? 1 : 2)
    count_correct(const T* logits, const int64* labels, int64* count, double* partials,
                  unsigned* arrivals, int64 num_rows, int num_columns, int lanes, int capacity) {
    take_turn();
    double sums[1] = {0};  // exact up to 2^53
#if LONG_ROWS
    for (int64 row = blockIdx.x; row < num_rows; row += gridDim.x) {
        sums[0] += long_row(LongRow(row, num_columns, 0), labels[row], logits);
    }
#else
    DYNAMIC_SHARED(Vec<T>, staged);
    sums[0] = short_rows(ShortRows(num_rows, num_columns, lanes, capacity, staged->element), logits,
                         labels);
#endif
    if (sum_over_grid(sums, partials, arrivals) && threadIdx.x == 0)
        *count = static_cast<int64>(sums[0]);
}
