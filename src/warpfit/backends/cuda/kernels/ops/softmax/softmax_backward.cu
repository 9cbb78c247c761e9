// Computes: dz = y (dy - Σ dy y) along each row; with LOG, where y is the logarithm, dz = dy -
//   exp(y) Σ dy.
// Layout:   dy, y and dz (M, C), contiguous, beginning at multiples of 16 bytes.
// Launch:   as softmax_forward, but rows in shared memory are those of dy and of y: twice as many
//           bytes. Defines DTYPE, ITEMS, LONG_ROWS, STAGED, LOG.
// Numerics: computed in float32, or float64 for float64.
// Cost:     3 M · C · sizeof DTYPE bytes, and 2 more for what of a long row is kept nowhere (with
//   LOG y never is).
// Reference: softmax_backward and log_softmax_backward of backends/numpy/activation.py.
#include "ops/softmax/softmax.cuh"

// What dy and y add to a row's sum, and dz by that sum.
__device__ inline Acc addend(Acc dy, Acc y) { return LOG ? dy : dy * y; }
__device__ inline Acc gradient(Acc dy, Acc y, Acc sum) {
    return LOG ? dy - exponential(y) * sum : (dy - sum) * y;
}

__device__ inline void short_rows(const ShortRows& rows, const T* dy, const T* y, T* dz) {
    rows.fetch(0, dy);
    rows.fetch(1, y);
    rows.wait();
    for (int row = rows.row(); row < rows.capacity; row += rows.step()) {
        Acc dys[ITEMS], ys[ITEMS];
        rows.read(0, dy, row, 0, dys);
        rows.read(1, y, row, 0, ys);
        Acc sum = 0;
        each_item([&](int j) { sum += addend(dys[j], ys[j]); });
        sum = reduce_lanes<Sum>(sum, rows.lanes);
        each_item([&](int j) { dys[j] = gradient(dys[j], ys[j], sum); });
        rows.write(dz, row, dys);
    }
    rows.wait();
    rows.flush(dz);
}

__device__ inline void long_row(const LongRow& row, const T* dy, const T* y, T* dz, Vec<T>* kept,
                                Acc* shared) {
    Acc dys[ITEMS], ys[ITEMS];
    Acc sum = 0;
    for (int first = 0; first <= row.last(); first += row.round()) {
        row.read_and_keep(dy, kept, first, 0, dys);
        if (!LOG) row.read_and_keep(y, kept + row.capacity, first, 0, ys);
        if (LOG && first == row.last()) row.read(y, first, 0, ys);
        Acc part = 0;
        each_item([&](int j) { part += addend(dys[j], ys[j]); });
        sum += part;
    }
    sum = reduce_block<Sum>(sum, Acc(0), shared);
    for (int first = row.last(); first >= 0; first -= row.round()) {
        if (first < row.last()) {
            row.read_again(dy, kept, first, 0, dys);
            if (LOG) {
                row.read(y, first, 0, ys);
            } else {
                row.read_again(y, kept + row.capacity, first, 0, ys);
            }
        }
        each_item([&](int j) { dys[j] = gradient(dys[j], ys[j], sum); });
        row.write(dz, first, dys);
    }
}

extern "C" __global__ void __launch_bounds__(MOST_THREADS, HELD_WITH_TWO)
    softmax_backward(const T* dy, const T* y, T* dz, int64 num_rows, int num_columns, int lanes,
                     int capacity) {
    take_turn();
    DYNAMIC_SHARED(Vec<T>, kept);
#if LONG_ROWS
    __shared__ Acc shared[WARP];
    for (int64 row = blockIdx.x; row < num_rows; row += gridDim.x) {
        long_row(LongRow(row, num_columns, capacity), dy, y, dz, kept, shared);
    }
#else
    short_rows(ShortRows(num_rows, num_columns, lanes, capacity, kept->element), dy, y, dz);
#endif
}
