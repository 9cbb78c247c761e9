// Computes: out[j] = scale Σ_i x[i, j].
// Layout:   x (M, N) of DTYPE, out (N,) of OUT, partials (gridDim.y, N) of DTYPE's arithmetic type,
//           or null where gridDim.y is 1; all contiguous. A block sums `width` adjacent columns of
//           rows_per_split rows: its threads are a table of blockDim.x / width rows by `width`
//           columns. With a width of 0, of float32 and float64 only, each thread sums the columns
//           of 16 bytes, at multiples of 16 bytes, of all rows, which are few.
// Launch:   grid (N / width rounded up, M / rows_per_split rounded up), at least (1, 1), or a
//           thread for every 16 bytes of a row; 1-D blocks of up to 512 threads, width ≤
//           blockDim.x; arrivals one zero for each block along x; no dynamic shared memory; defines
//           DTYPE, OUT.
// Numerics: a tree in a fixed sequence, in float32, or float64 for float64; the last block of some
//           columns adds their partial sums, in their order. Few rows in their order.
// Cost:     M · N · sizeof DTYPE bytes, M · N FLOP.
// Reference: sum_columns of backends/numpy/dense.py.
#include "base/reduce.cuh"
#include "base/vec.cuh"

using T = DTYPE;
using Acc = accumulator<T>;

constexpr int MOST_THREADS = 512;
constexpr int BLOCKS_AT_ONCE = THREADS_HELD >= 1536 ? 3 : 2;  // of a multiprocessor

// The sum of every `step`-th entry of a column from row `begin` on, before row `end`. Loads are in
// flight together, 32 bytes of them.
template <class From>
__device__ inline Acc sum_of_rows(const From* column, int64 begin, int64 end, int step,
                                  int num_columns) {
    constexpr int UNROLL = 32 / sizeof(From);
    const int64 stride = static_cast<int64>(step) * num_columns;
    const From* at = column + begin * num_columns;
    Acc total = 0;
    for (int64 row = begin; row < end; row += UNROLL * step) {
        Acc values[UNROLL];
#pragma unroll
        for (int u = 0; u < UNROLL; ++u) {
            values[u] = row + u * step < end ? load(at[u * stride]) : Acc(0);
        }
#pragma unroll
        for (int half = UNROLL / 2; half > 0; half /= 2) {
#pragma unroll
            for (int u = 0; u < half; ++u) values[u] += values[u + half];
        }
        total += values[0];
        at += UNROLL * stride;
    }
    return total;
}

// Adds up the table's rows; the threads of row 0 get the sums.
__device__ inline Acc sum_of_table(Acc value, Acc* table, int row, int num_rows, int width) {
    table[threadIdx.x] = value;
    __syncthreads();
    while (num_rows > 1) {
        const int half = (num_rows + 1) / 2;
        if (row < num_rows - half) table[threadIdx.x] += table[threadIdx.x + half * width];
        num_rows = half;
        __syncthreads();
    }
    return table[threadIdx.x];
}

// A thread's columns of 16 bytes, over few rows.
template <class From>
__device__ inline void sum_few_rows(const From* x, From* out, Acc scale, int num_rows,
                                    int num_columns) {
    constexpr int SIZE = Vec<From>::SIZE, AT_ONCE = 4;
    const int column = (blockIdx.x * blockDim.x + threadIdx.x) * SIZE;
    if (column >= num_columns) return;
    Acc sums[SIZE] = {};
    for (int row = 0; row < num_rows; row += AT_ONCE) {
        Vec<From> values[AT_ONCE];
#pragma unroll
        for (int u = 0; u < AT_ONCE; ++u) {
            const int64 own = row + u < num_rows ? row + u : row;
            values[u] = load_vec(x + own * num_columns + column);
        }
#pragma unroll
        for (int u = 0; u < AT_ONCE; ++u) {
#pragma unroll
            for (int i = 0; i < SIZE; ++i) {
                sums[i] += row + u < num_rows ? load(values[u].element[i]) : Acc(0);
            }
        }
    }
    Vec<From> result;
#pragma unroll
    for (int i = 0; i < SIZE; ++i) result.element[i] = store<From>(sums[i] * scale);
    store_vec(out + column, result);
}

extern "C" __global__ void __launch_bounds__(512, BLOCKS_AT_ONCE)
    sum_columns(const T* x, OUT* out, Acc* partials, unsigned* arrivals, double scale,
                int64 num_rows, int num_columns, int width, int64 rows_per_split) {
    take_turn();
    if (width == 0) {
        sum_few_rows(reinterpret_cast<const Acc*>(x), reinterpret_cast<Acc*>(out),
                     static_cast<Acc>(scale), static_cast<int>(num_rows), num_columns);
        return;
    }
    __shared__ Acc table[MOST_THREADS];
    const int table_rows = blockDim.x / width;
    const int row = threadIdx.x / width;
    const int column = blockIdx.x * width + threadIdx.x % width;
    const bool takes_part = row < table_rows && column < num_columns;

    const int64 begin = blockIdx.y * rows_per_split;
    const int64 end = begin + rows_per_split < num_rows ? begin + rows_per_split : num_rows;
    Acc sum =
        takes_part ? sum_of_rows(x + column, begin + row, end, table_rows, num_columns) : Acc(0);
    sum = sum_of_table(sum, table, row, table_rows, width);
    if (gridDim.y > 1) {
        if (takes_part && row == 0)
            partials[static_cast<int64>(blockIdx.y) * num_columns + column] = sum;
        if (!is_last_block(arrivals + blockIdx.x, gridDim.y)) return;
        sum = takes_part ? sum_of_rows(partials + column, row, gridDim.y, table_rows, num_columns)
                         : Acc(0);
        sum = sum_of_table(sum, table, row, table_rows, width);
    }
    if (takes_part && row == 0) out[column] = store<OUT>(sum * static_cast<Acc>(scale));
}
