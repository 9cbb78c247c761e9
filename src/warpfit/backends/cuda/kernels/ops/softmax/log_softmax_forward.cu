// Computes: y = z - m - log Σ exp(z - m) along each row, m its largest entry.
// Layout:   z and y (M, C), contiguous, beginning at multiples of 16 bytes.
// Launch:   as softmax_forward; defines DTYPE, ITEMS, LONG_ROWS, STAGED.
// Numerics: computed in float32, or float64 for float64; an entry of -inf stays; a row with +inf, NaN or
//           nothing but -inf becomes NaN.
// Cost:     2 M · C · sizeof DTYPE bytes, and once more what of a long row is kept nowhere.
// Reference: log_softmax_forward of backends/numpy/activation.py.
#include "ops/softmax/softmax.cuh"

__device__ inline void short_rows(const ShortRows& rows, const T* z, T* y) {
    rows.fetch(0, z);
    rows.wait();
    for (int row = rows.row(); row < rows.capacity; row += rows.step()) {
        Acc values[ITEMS];
        rows.read(0, z, row, minus_infinity(), values);
        Acc terms[ITEMS];
        const ExpSum sums(rows, values, terms);
        const Acc log_sum = logarithm(sums.sum);
        each_item([&](int j) { values[j] = values[j] - sums.largest - log_sum; });
        rows.write(y, row, values);
    }
    rows.wait();
    rows.flush(y);
}

__device__ inline void long_row(const LongRow& row, const T* z, T* y, Vec<T>* kept, Acc* shared) {
    Acc values[ITEMS], terms[ITEMS], factor;
    const ExpSum sums(row, z, kept, shared, values, terms, factor);
    const Acc log_sum = logarithm(sums.sum);
    for (int first = row.last(); first >= 0; first -= row.round()) {
        if (first < row.last()) row.read_again(z, kept, first, minus_infinity(), values);
        each_item([&](int j) { values[j] = values[j] - sums.largest - log_sum; });
        row.write(y, first, values);
    }
}

extern "C" __global__ void __launch_bounds__(MOST_THREADS, HELD_WITH_ONE)
    log_softmax_forward(const T* z, T* y, int64 num_rows, int num_columns, int lanes, int capacity) {
    take_turn();
    DYNAMIC_SHARED(Vec<T>, kept);
#if LONG_ROWS
    __shared__ Acc shared[WARP];
    for (int64 row = blockIdx.x; row < num_rows; row += gridDim.x) {
        long_row(LongRow(row, num_columns, capacity), z, y, kept, shared);
    }
#else
    short_rows(ShortRows(num_rows, num_columns, lanes, capacity, kept->element), z, y);
#endif
}
