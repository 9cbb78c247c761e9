// Matrices under a reduction along each row that is as long as the row: it is read once, and kept
// until its result is written. And the sum of exponentials of a row, which softmax and its
// relatives are made of.
//
// The define ITEMS says how many entries of a row a thread has in registers, a multiple of 16 /
// sizeof DTYPE. Where rows are short (define LONG_ROWS = 0), a block takes `capacity` of them,
// `lanes` adjacent threads for each, whose registers hold it. Rows that do not all begin at
// multiples of 16 bytes pass through shared memory (define STAGED = 1), so that global memory is
// read and written in whole vectors. Where rows are long (LONG_ROWS = 1), a block takes one at a
// time, in rounds of ITEMS entries a thread. The last round, for most rows the only one, stays in
// registers. Of what comes before, the first `capacity` vectors stay in shared memory, and only the
// rest is read again.
//
// Arrays (M, C) are contiguous and begin at multiples of 16 bytes.
#pragma once

#include "base/math.cuh"
#include "base/reduce.cuh"
#include "base/vec.cuh"

using T = DTYPE;
using Acc = accumulator<T>;

constexpr int WIDTH = Vec<T>::SIZE;
// What the registers suffice for.
constexpr int MOST_THREADS = LONG_ROWS ? 512 : 256;
// Blocks that a multiprocessor holds at once, at least: as many as there are registers for. Of
// kernels that have one array in registers, and of those that have two.
__device__ constexpr int blocks_held(int short_rows) {
    if (LONG_ROWS) return sizeof(Acc) == 8 ? 1 : 2;
    if (sizeof(Acc) == 8) return 2;
    return short_rows < THREADS_HELD / MOST_THREADS ? short_rows : THREADS_HELD / MOST_THREADS;
}
constexpr int HELD_WITH_ONE = blocks_held(STAGED ? (ITEMS <= 12 ? 5 : 4) : (ITEMS <= 8 ? 8 : 6));
constexpr int HELD_WITH_TWO = blocks_held(STAGED ? (ITEMS <= 8 ? 5 : 4) : (ITEMS <= 8 ? 6 : 4));

__device__ inline Acc minus_infinity() { return -infinity(); }

// Entries of a staged row that a thread is taken to have; those after it are often none: with 10
// columns, say.
constexpr int SURE = ITEMS * 5 / 8;

// f(j) for each entry that a thread holds.
template <class F>
__device__ inline void each_item(F f) {
#pragma unroll
    for (int j = 0; j < ITEMS; ++j) f(j);
}

// Joins the values of `lanes` adjacent threads, a power of two up to 32; every one gets the result.
template <class Op, class A>
__device__ inline A reduce_lanes(A value, int lanes) {
#pragma unroll 1
    for (int offset = lanes / 2; offset > 0; offset /= 2) {
        value = Op::join(value, __shfl_xor_sync(FULL_WARP, value, offset));
    }
    return value;
}

// `count` elements from one aligned place to another, by all threads of the block.
__device__ inline void copy_by_block(T* to, const T* from, int count) {
    constexpr int AT_ONCE = 4;
    const int num_vectors = count / WIDTH;
    for (int first = threadIdx.x; first < num_vectors; first += AT_ONCE * blockDim.x) {
        Vec<T> vectors[AT_ONCE];
#pragma unroll
        for (int u = 0; u < AT_ONCE; ++u) {
            const int i = first + u * blockDim.x;
            if (i < num_vectors) vectors[u] = load_vec(from + i * WIDTH);
        }
#pragma unroll
        for (int u = 0; u < AT_ONCE; ++u) {
            const int i = first + u * blockDim.x;
            if (i < num_vectors) store_vec(to + i * WIDTH, vectors[u]);
        }
    }
    for (int i = num_vectors * WIDTH + threadIdx.x; i < count; i += blockDim.x) to[i] = from[i];
}

// The short rows of a block. A thread holds the entries column(0), ..., column(ITEMS - 1) of its
// row.
struct ShortRows {
    int64 first;
    int num_rows, num_columns, lanes, capacity;
    int own_lane, own_row, rows_at_once;
    // Entries that a thread has at most; odd if staged, which spreads them over the banks.
    int used;
    T* staged;

    __device__ ShortRows(int64 total_rows, int columns, int lanes_of_row, int rows_of_block,
                         T* shared)
        : first(static_cast<int64>(blockIdx.x) * rows_of_block),
          num_columns(columns),
          lanes(lanes_of_row),
          capacity(rows_of_block),
          own_lane(threadIdx.x & (lanes_of_row - 1)),
          own_row(threadIdx.x / lanes_of_row),
          rows_at_once(blockDim.x / lanes_of_row),
          used(ITEMS),
          staged(shared) {
        if (STAGED) used = (num_columns + lanes - 1) / lanes | 1;
        num_rows = total_rows - first < capacity ? static_cast<int>(total_rows - first) : capacity;
    }

    __device__ int lane() const { return own_lane; }
    // A thread's rows are row(), row() + step(), ... below capacity; those from num_rows on are not
    // there.
    __device__ int row() const { return own_row; }
    __device__ int step() const { return rows_at_once; }

    __device__ int column(int j) const {
        if (STAGED) return j < used ? lane() * used + j : num_columns;
        return (lane() + j / WIDTH * lanes) * WIDTH + j % WIDTH;
    }

    // How many entries of a staged row this thread has, if positive.
    __device__ int num_staged() const {
        const int left = num_columns - lane() * used;
        return left < used ? left : used;
    }

    // Where array number `slot` lies in shared memory.
    __device__ T* slot(int number) const {
        return staged + number * ((capacity * num_columns + WIDTH - 1) / WIDTH * WIDTH);
    }

    __device__ void fetch(int number, const T* x) const {
        if (STAGED) copy_by_block(slot(number), x + first * num_columns, num_rows * num_columns);
    }

    // To be called between fetch and read, and before flush.
    __device__ void wait() const {
        if (STAGED) __syncthreads();
    }

    __device__ void flush(T* y) const {
        if (STAGED) copy_by_block(y + first * num_columns, slot(0), num_rows * num_columns);
    }

    // Reads this thread's part of a row of the array that was fetched into a slot; `absent` is what
    // is not there.
    __device__ void read(int number, const T* x, int row, Acc absent, Acc (&values)[ITEMS]) const {
        if (STAGED) {
            const T* from = slot(number) + row * num_columns + lane() * used;
            const int count = row < num_rows ? num_staged() : 0;
            each_item([&](int j) { values[j] = j < count ? load(from[j]) : absent; });
            return;
        }
        const T* from = x + (first + row) * num_columns;
#pragma unroll
        for (int j = 0; j < ITEMS; j += WIDTH) {
            const int c = column(j);
            const bool is_there = row < num_rows && c < num_columns;
            Vec<T> vector;
            if (is_there) vector = load_vec(from + c);
#pragma unroll
            for (int k = 0; k < WIDTH; ++k)
                values[j + k] = is_there ? load(vector.element[k]) : absent;
        }
    }

    // Writes it, by way of slot 0.
    __device__ void write(T* y, int row, const Acc (&values)[ITEMS]) const {
        if (row >= num_rows) return;
        if (STAGED) {
            T* to = slot(0) + row * num_columns + lane() * used;
            const int count = num_staged();
            each_item([&](int j) {
                if (j < count) to[j] = store<T>(values[j]);
            });
            return;
        }
        T* to = y + (first + row) * num_columns;
#pragma unroll
        for (int j = 0; j < ITEMS; j += WIDTH) {
            const int c = column(j);
            if (c >= num_columns) break;
            Vec<T> vector;
#pragma unroll
            for (int k = 0; k < WIDTH; ++k) vector.element[k] = store<T>(values[j + k]);
            store_vec(to + c, vector);
        }
    }
};

// A long row. Vectors begin at multiples of 16 bytes, so that the first and the last may be there
// in part only. Threads go through it in rounds of ITEMS entries each, from vector 0, round(), ...,
// last() on, and back.
struct LongRow {
    static constexpr int VECTORS = ITEMS / WIDTH;

    int64 start;
    int num_columns, shift, num_vectors, capacity;

    __device__ LongRow(int64 row, int columns, int kept_vectors)
        : start(row * columns),
          num_columns(columns),
          shift(-static_cast<int>(start % WIDTH)),
          num_vectors((columns - shift + WIDTH - 1) / WIDTH),
          capacity(kept_vectors) {}

    __device__ int round() const { return VECTORS * blockDim.x; }
    __device__ int last() const { return (num_vectors - 1) / round() * round(); }

    // The number of this thread's vector u in the round from vector `first` on; it may be past the
    // last.
    __device__ int vector(int first, int u) const {
        return first + u * static_cast<int>(blockDim.x) + static_cast<int>(threadIdx.x);
    }

    // The column of entry j in that round; outside of [0, num_columns) there is none.
    __device__ int column(int first, int j) const {
        return shift + vector(first, j / WIDTH) * WIDTH + j % WIDTH;
    }

    __device__ bool has(int c) const { return c >= 0 && c < num_columns; }

    // Reads a round of x from memory; `absent` is what is not there.
    __device__ void read(const T* x, int first, Acc absent, Acc (&values)[ITEMS]) const {
        Vec<T> vectors[VECTORS];
        if (is_whole(first)) {
#pragma unroll
            for (int u = 0; u < VECTORS; ++u)
                vectors[u] = load_vec(x + start + column(first, u * WIDTH));
            unpack(vectors, values);
            return;
        }
#pragma unroll
        for (int u = 0; u < VECTORS; ++u)
            vectors[u] = load_part(x, column(first, u * WIDTH), absent);
        unpack(vectors, values);
    }

    // Reads a round of x from memory, and keeps what belongs to its first `capacity` vectors.
    __device__ void read_and_keep(const T* x, Vec<T>* kept, int first, Acc absent,
                                  Acc (&values)[ITEMS]) const {
        read(x, first, absent, values);
        keep(kept, first, values);
    }

    // Rounds are kept as a whole or not at all.
    __device__ void keep(Vec<T>* kept, int first, const Acc (&values)[ITEMS]) const {
        if (first + round() > capacity) return;
#pragma unroll
        for (int u = 0; u < VECTORS; ++u) kept[vector(first, u)] = packed(values, u);
    }

    // Reads a round again, from what was kept by this thread and from memory.
    __device__ void read_again(const T* x, const Vec<T>* kept, int first, Acc absent,
                               Acc (&values)[ITEMS]) const {
        if (first + round() > capacity) {
            read(x, first, absent, values);
            return;
        }
        Vec<T> vectors[VECTORS];
#pragma unroll
        for (int u = 0; u < VECTORS; ++u) vectors[u] = kept[vector(first, u)];
        unpack(vectors, values);
    }

    __device__ void write(T* y, int first, const Acc (&values)[ITEMS]) const {
        if (is_whole(first)) {
#pragma unroll
            for (int u = 0; u < VECTORS; ++u) {
                store_vec(y + start + column(first, u * WIDTH), packed(values, u));
            }
            return;
        }
#pragma unroll
        for (int j = 0; j < ITEMS; ++j) {
            const int c = column(first, j);
            if (has(c)) y[start + c] = store<T>(values[j]);
        }
    }

  private:
    // Whether all entries of a round are there, for all threads.
    __device__ bool is_whole(int first) const {
        return first * WIDTH + shift >= 0 && (first + round()) * WIDTH + shift <= num_columns;
    }

    __device__ Vec<T> load_part(const T* x, int c, Acc absent) const {
        if (has(c) && has(c + WIDTH - 1)) return load_vec(x + start + c);
        Vec<T> part;
#pragma unroll
        for (int k = 0; k < WIDTH; ++k)
            part.element[k] = has(c + k) ? x[start + c + k] : store<T>(absent);
        return part;
    }

    __device__ static Vec<T> packed(const Acc (&values)[ITEMS], int u) {
        Vec<T> vector;
#pragma unroll
        for (int k = 0; k < WIDTH; ++k) vector.element[k] = store<T>(values[u * WIDTH + k]);
        return vector;
    }

    __device__ static void unpack(const Vec<T> (&vectors)[VECTORS], Acc (&values)[ITEMS]) {
        each_item([&](int j) { values[j] = load(vectors[j / WIDTH].element[j % WIDTH]); });
    }
};

__device__ inline float larger(float a, float b) { return fmaxf(a, b); }
__device__ inline double larger(double a, double b) { return fmax(a, b); }

// The largest entry of a row, m, and Σ exp(entry - m). A row with +inf, NaN or nothing but -inf has
// a sum of
// NaN: the largest entry need not be one of NaN for that.
struct ExpSum {
    Acc largest, sum;

    // The sum over a short row, of which every thread holds a part; `terms` receives exp(entry -
    // m).
    __device__ ExpSum(const ShortRows& rows, const Acc (&values)[ITEMS], Acc (&terms)[ITEMS])
        : largest(minus_infinity()), sum(0) {
        each_item([&](int j) { largest = larger(largest, values[j]); });
        largest = reduce_lanes<Larger>(largest, rows.lanes);
#pragma unroll
        for (int j = 0; j < SURE; ++j) {
            terms[j] = exponential(values[j] - largest);
            sum += terms[j];
        }
#pragma unroll
        for (int j = SURE; j < ITEMS; ++j) terms[j] = 0;
        if (!STAGED || rows.used > SURE) {
#pragma unroll
            for (int j = SURE; j < ITEMS; ++j) {
                terms[j] = exponential(values[j] - largest);
                sum += terms[j];
            }
        }
        sum = reduce_lanes<Sum>(sum, rows.lanes);
    }

    // The sum over a long row, by all threads of a block, which keep its rounds but the last. Of
    // the last, `values` receives the entries, and `terms` exp(entry - m) / factor. `shared` holds
    // 32 entries.
    __device__ ExpSum(const LongRow& row, const T* x, Vec<T>* kept, Acc* shared,
                      Acc (&values)[ITEMS], Acc (&terms)[ITEMS], Acc& factor)
        : largest(minus_infinity()), sum(0) {
        row.read(x, 0, minus_infinity(), values);
        for (int first = 0; first < row.last(); first += row.round()) {
            Acc next[ITEMS];
            row.read(x, first + row.round(), minus_infinity(),
                     next);  // under way while the others are added
            row.keep(kept, first, values);
            add(values, terms);
            each_item([&](int j) { values[j] = next[j]; });
        }
        add(values, terms);
        const Acc whole = reduce_block<Larger>(largest, minus_infinity(), shared);
        factor = exponential(largest - whole);
        sum = reduce_block<Sum>(sum * factor, Acc(0), shared);
        largest = whole;
    }

  private:
    struct Larger {
        __device__ static Acc join(Acc a, Acc b) { return larger(a, b); }
    };

    // Takes in `values`; absent ones are -inf. `terms` receives exp(value - the largest so far).
    __device__ void add(const Acc (&values)[ITEMS], Acc (&terms)[ITEMS]) {
        Acc next = largest;
        each_item([&](int j) { next = larger(next, values[j]); });
        // With nothing but -inf so far, the terms are 0.
        const Acc reference = next == minus_infinity() ? Acc(0) : next;
        sum *= exponential(largest - reference);
        each_item([&](int j) {
            terms[j] = exponential(values[j] - reference);
            sum += terms[j];
        });
        largest = next;
    }
};
