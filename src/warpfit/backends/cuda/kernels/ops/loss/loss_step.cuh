// What a step's loss needs in one kernel: the step's rows of an epoch's order, the weight of all
// rows before the first gradient, and a row of the record at the end. The record's row is written
// by one thread of the last block.
#pragma once

#include "base/scalar.cuh"
#include "ops/loss/loss.cuh"

// The numbers of a step's rows, those of an epoch's order from (first_step + offset) ·
// rows_per_step on; null without an order.
__device__ inline const int64* order_of_step(const int64* order, const Scalar& first_step,
                                             int64 offset, int64 rows_per_step) {
    return order ? order + (static_cast<int64>(read(first_step)) + offset) * rows_per_step
                 : nullptr;
}

// Σ weight_of(row) over all rows, for all threads of a block; every block finds the same bits.
template <class F>
__device__ inline double sum_of_rows(int64 num_rows, F weight_of) {
    __shared__ double shared[WARP];
    double sum = 0;
#pragma unroll 4
    for (int64 row = threadIdx.x; row < num_rows; row += blockDim.x) sum += weight_of(row);
    return reduce_block<Sum>(sum, 0.0, shared);
}

// record[row] = (total / weight, weight, correct) of a record (steps, 3).
__device__ inline void write_record(double* record, const Scalar& row, double total, double weight,
                                    double correct) {
    double* to = record + 3 * static_cast<int64>(read(row));
    write_mean(to, total, weight);
    to[1] = weight;
    to[2] = correct;
}
