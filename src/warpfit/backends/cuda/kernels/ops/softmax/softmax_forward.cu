// Computes: y = exp(z - m) / Σ exp(z - m) along each row, m its largest entry; with LOG its
//   logarithm.
// Layout:   z and y (M, C), contiguous, beginning at multiples of 16 bytes.
// Launch:   1-D blocks of whole warps; defines DTYPE, ITEMS, LONG_ROWS, STAGED, LOG. LONG_ROWS = 0:
//           M / capacity blocks, rounded up, of at most 256 threads. `lanes` of these, a power of
//           two up to 32, take a row: (ITEMS - 1) · lanes ≥ C, and shared memory for `capacity`
//           rows, a multiple of blockDim.x / lanes, rounded up to 16 bytes; or, if C · sizeof DTYPE
//           is a multiple of 16, ITEMS · lanes ≥ C and no shared memory. LONG_ROWS = 1: blocks of
//           at most MOST_THREADS threads, a row at a time; shared memory for `capacity` vectors of
//           16 bytes.
// Numerics: computed in float32, or float64 for float64; an entry of -inf gets 0, or with LOG
//           stays; a row with +inf, NaN or nothing but -inf becomes NaN.
// Cost:     2 M · C · sizeof DTYPE bytes, and once more what of a long row is kept nowhere.
// Reference: softmax_forward and log_softmax_forward of backends/numpy/activation.py.
#include "ops/softmax/softmax.cuh"

__device__ inline void short_rows(const ShortRows& rows, const T* z, T* y) {
    rows.fetch(0, z);
    rows.wait();
    for (int row = rows.row(); row < rows.capacity; row += rows.step()) {
        Acc values[ITEMS];
        rows.read(0, z, row, minus_infinity(), values);
        Acc terms[ITEMS];
        const ExpSum sums(rows, values, terms);
        const Acc of_sum = LOG ? logarithm(sums.sum) : Acc(1) / sums.sum;
        each_item(
            [&](int j) { terms[j] = LOG ? values[j] - sums.largest - of_sum : terms[j] * of_sum; });
        rows.write(y, row, terms);
    }
    rows.wait();
    rows.flush(y);
}

__device__ inline void long_row(const LongRow& row, const T* z, T* y, Vec<T>* kept, Acc* shared) {
    Acc values[ITEMS], terms[ITEMS], factor;
    const ExpSum sums(row, z, kept, shared, values, terms, factor);
    const Acc of_sum = LOG ? logarithm(sums.sum) : Acc(1) / sums.sum;
    factor *= of_sum;
    each_item(
        [&](int j) { terms[j] = LOG ? values[j] - sums.largest - of_sum : terms[j] * factor; });
    row.write(y, row.last(), terms);
    for (int first = row.last() - row.round(); first >= 0; first -= row.round()) {
        row.read_again(z, kept, first, minus_infinity(), values);
        each_item([&](int j) {
            const Acc distance = values[j] - sums.largest;
            values[j] = LOG ? distance - of_sum : exponential(distance) * of_sum;
        });
        row.write(y, first, values);
    }
}

extern "C" __global__ void __launch_bounds__(MOST_THREADS, HELD_WITH_ONE)
    softmax_forward(const T* z, T* y, int64 num_rows, int num_columns, int lanes, int capacity) {
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
