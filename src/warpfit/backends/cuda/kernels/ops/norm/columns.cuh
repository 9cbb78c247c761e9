// Matrices (rows, channels) by columns: a thread keeps W neighbouring columns and walks down the
// rows; a block covers a tile of columns and a part of the rows. Sums of a column are its thread's
// own, until blocks leave partials.
// Users: batch_norm_backward.cu, batch_norm_forward.cu, batch_norm_statistics.cu,
// norm_parameter_gradients.cu.
#pragma once

#include "base/group.cuh"
#include "base/reduce.cuh"
#include "ops/activation/activation.cuh"

constexpr int COLUMN_THREADS = 256;

// Where a thread of a block of `width` column groups stands. Threads of the last, partial line of a
// block, and those beyond the last column, have nothing to do.
template <int W>
struct ColumnPlace {
    int line, num_lines, column;
    bool active;
    int64 first_row, end_row;

    __device__ ColumnPlace(int width, int channels, int64 num_rows, int64 rows_per_block) {
        line = threadIdx.x / width;
        num_lines = blockDim.x / width;
        column = (blockIdx.x * width + threadIdx.x - line * width) * W;
        active = line < num_lines && column < channels;
        first_row = blockIdx.y * rows_per_block;
        end_row = min(num_rows, first_row + rows_per_block);
    }
};

// dz = dy f'(z) with z as batch_norm_forward finds it; f is KIND.
template <Activation KIND, class A>
__device__ inline A before_activation(A dy, A z, A slope) {
    if constexpr (KIND == Activation::identity) return dy;
    return dy * activated<KIND>(z, slope).derivative;
}

// Joins the values of all lines of a block, column by column and always in the same order: line 0
// has the results. Pass every thread's own; `shared` holds one for every thread.
template <class Value, class Join>
__device__ inline void join_lines(Value& value, int line, int num_lines, int width, Value* shared,
                                  Join join) {
    shared[threadIdx.x] = value;
    for (int lines = num_lines; lines > 1;) {
        const int half = (lines + 1) / 2;
        __syncthreads();
        if (line + half < lines) {
            join(value, shared[threadIdx.x + half * width]);
            shared[threadIdx.x] = value;
        }
        lines = half;
    }
    __syncthreads();
}
