// Matrices (rows, channels) by columns: a thread keeps W neighbouring columns and walks down the
// rows; a block covers a tile of columns and a part of the rows. Sums of a column are its thread's
// own, until blocks leave partials.
#pragma once

#include "base/group.cuh"
#include "base/reduce.cuh"
#include "ops/activation/activation.cuh"

constexpr int COLUMN_THREADS = 256;
constexpr int MOST_SUMMED_THREADS = 512;

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

// Takes a thread's rows AT_ONCE at a time, of which the next are asked for before the last are
// taken: load(place, row) gives what take(loaded, is_there) gets; beyond the last row that is what
// the first one has.
template <int AT_ONCE, int W, class Load, class Take>
__device__ inline void for_each_row(const ColumnPlace<W>& place, Load load, Take take) {
    using Loaded = decltype(load(int64()));
    const auto load_some = [&](Loaded(&to)[AT_ONCE], int64 first) {
#pragma unroll
        for (int i = 0; i < AT_ONCE; ++i) {
            const int64 row = first + i * place.num_lines;
            to[i] = load(row < place.end_row ? row : place.first_row);
        }
    };
    int64 row = place.first_row + place.line;
    Loaded next[AT_ONCE];
    load_some(next, row);
#pragma unroll 2
    while (row < place.end_row) {
        Loaded own[AT_ONCE];
#pragma unroll
        for (int i = 0; i < AT_ONCE; ++i) own[i] = next[i];
        load_some(next, row + AT_ONCE * place.num_lines);
#pragma unroll
        for (int i = 0; i < AT_ONCE; ++i) {
            take(own[i], row + i * place.num_lines < place.end_row);
        }
        row += AT_ONCE * place.num_lines;
    }
}

// dz = dy f'(z) with z as batch_norm_forward finds it; f is KIND.
template <Activation KIND, class A>
__device__ inline A before_activation(A dy, A z, A slope) {
    if constexpr (KIND == Activation::identity) return dy;
    return dy * activated<KIND>(z, slope).derivative;
}

// What adding up two numbers of each of up to MOST columns in every thread takes.
template <class Number, int MOST>
struct SumRoom {
    Number numbers[MOST_SUMMED_THREADS * (2 * MOST + 1)];
    double parts[MOST_SUMMED_THREADS];
};

// Adds up two numbers of each of W columns in every thread over the lines of a block, and then over
// the blocks of a column, in float64 and always in the same order. The threads in front have a
// total each, `outs` of them: of a column the one kind, or W threads further on the other.
template <int W, class Number, int MOST>
struct ColumnSums {
    static constexpr int OWN = 2 * W, LINE = OWN + 1;  // an odd number: no bank conflicts
    static constexpr int AT_ONCE = 16;                 // numbers that are asked for together

    SumRoom<Number, MOST>& room;
    int width, channels;

    __device__ int outs() const { return width * OWN; }
    __device__ int out() const { return threadIdx.x % outs(); }
    __device__ int kind() const { return out() % OWN / W; }
    __device__ int column() const { return (blockIdx.x * width + out() / OWN) * W + out() % W; }
    __device__ bool is_out() const { return threadIdx.x < outs() && column() < channels; }

    // The sum of load(0), ..., load(count - 1) of this thread's total, in threads in front.
    template <class Load>
    __device__ double sum(int count, Load load) const {
        const int num_parts = blockDim.x / outs(), part = threadIdx.x / outs();
        double sum = 0;
        for (int first = part; first < count && part < num_parts; first += AT_ONCE * num_parts) {
            double found[AT_ONCE];
#pragma unroll
            for (int i = 0; i < AT_ONCE; ++i) {
                found[i] = load(min(first + i * num_parts, count - 1));
            }
#pragma unroll
            for (int i = 0; i < AT_ONCE; ++i) sum += first + i * num_parts < count ? found[i] : 0.0;
        }
        room.parts[threadIdx.x] = sum;
        __syncthreads();
        for (int i = 1; threadIdx.x < outs() && i < num_parts; ++i) {
            sum += room.parts[i * outs() + threadIdx.x];
        }
        __syncthreads();
        return sum;
    }

    // The total over all blocks; false in blocks but the last. partials (blocks of rows, 2,
    // channels).
    __device__ bool total(const Number (&own)[2][W], int num_lines, double* partials,
                          unsigned* arrivals, double& result) const {
#pragma unroll
        for (int i = 0; i < OWN; ++i) room.numbers[threadIdx.x * LINE + i] = own[i / W][i % W];
        __syncthreads();
        const int group = out() / OWN, item = out() % OWN;
        result = sum(num_lines, [&](int i) {
            return static_cast<double>(room.numbers[(i * width + group) * LINE + item]);
        });
        if (gridDim.y == 1) return true;
        const int64 at = static_cast<int64>(kind()) * channels + column();
        if (is_out()) partials[static_cast<int64>(blockIdx.y) * 2 * channels + at] = result;
        if (!is_last_block(arrivals + blockIdx.x, gridDim.y)) return false;
        const double* from = partials + (column() < channels ? at : 0);
        result = sum(gridDim.y,
                     [&](int i) { return __ldcg(from + static_cast<int64>(i) * 2 * channels); });
        return true;
    }
};

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
