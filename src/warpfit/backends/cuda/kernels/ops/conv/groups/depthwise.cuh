// Depthwise convolutions: a thread takes WIDTH channels of a strip of columns, and goes down rows.
//
// Along an axis a position is STRIDE neighbouring pixels of the larger image and one of the
// smaller; it lies between REACH pixels of the smaller one that a pixel of the larger one meets. If
// windows are dilated, the pixels that meet each other are a phase: an image of its own. Everything
// is a thread's own.
#pragma once

#include "mma/fragments.cuh"
#include "ops/conv/groups/grouped.cuh"

constexpr int REACH_HEIGHT = (KERNEL_HEIGHT + STRIDE_HEIGHT - 1) / STRIDE_HEIGHT;
constexpr int REACH_WIDTH = (KERNEL_WIDTH + STRIDE_WIDTH - 1) / STRIDE_WIDTH;

// What a thread has of a pixel as it lies in memory: one number, or a word of two of half
// precision, whose halves the compiler would take apart, and put together.
template <int COUNT, class Number>
struct Held {
    using Values = Number;

    __device__ static void unpack(Acc (&to)[COUNT], Values from) { to[0] = load(from); }
    __device__ static Values pack(const Acc (&from)[COUNT]) { return store<Number>(from[0]); }
};
template <class Number>
struct Held<2, Number> {
    using Values = unsigned;

    __device__ static void unpack(Acc (&to)[2], Values from) {
        const float2 both = unpacked<Number>(from);
        to[0] = both.x;
        to[1] = both.y;
    }
    __device__ static Values pack(const Acc (&from)[2]) { return packed<Number>(from[0], from[1]); }
};
using Own = Held<WIDTH, T>;
using Values = Own::Values;
using Weights = Acc[KERNEL_HEIGHT][KERNEL_WIDTH][WIDTH];

// Where a thread's part of all positions begins.
struct Part {
    int channel, image;
    Pair phase, position;

    // rows: positions of a chunk; first: the image's first position.
    __device__ Part(int idx, int vectors, int strips, int chunks, int rows, Pair first,
                    int dilation_height) {
        channel = next(idx, vectors) * WIDTH;
        position.w = first.w + next(idx, strips) * COLUMNS;
        phase.w = next(idx, DILATION_WIDTH);
        position.h = first.h + next(idx, chunks) * rows;
        phase.h = next(idx, dilation_height);
        image = idx;
    }

    __device__ static int next(int& idx, int size) {
        const int quotient = idx / size, rest = idx - quotient * size;
        idx = quotient;
        return rest;
    }
};

// Where a part's first pixels are, of the larger image, and of the smaller one, which begins so
// many positions before.
__device__ inline Pair in_larger(const Part& part, Pair padding, int dilation_height) {
    return {dilation_height * STRIDE_HEIGHT * part.position.h + part.phase.h - padding.h,
            DILATION_WIDTH * STRIDE_WIDTH * part.position.w + part.phase.w - padding.w};
}
__device__ inline Pair in_smaller(const Part& part, Pair before, int dilation_height) {
    return {dilation_height * (part.position.h - before.h) + part.phase.h,
            DILATION_WIDTH * (part.position.w - before.w) + part.phase.w};
}

// COUNT columns of an image, from this place on, as far apart as taps are. Beside it are zeros.
// Distances are known when this is compiled, so that columns have one address between them.
template <int COUNT>
struct Columns {
    static constexpr int STEP = DILATION_WIDTH * CHANNELS;

    int64 first;  // of this thread's channels in the pixel at (0, column)
    Pair size;
    int row, row_step;
    unsigned inside;  // bit i: whether column i lies in the image

    __device__ Columns(const Part& part, Pair size_, int row_, int column, int row_step_)
        : first((static_cast<int64>(part.image) * size_.h * size_.w + column) * CHANNELS +
                part.channel),
          size(size_),
          row(row_),
          row_step(row_step_),
          inside(bits_of(size_.w - column) & ~bits_of(-column)) {}

    // Of the columns in the first so many pixels.
    __device__ static unsigned bits_of(int pixels) {
        static_assert(COUNT < 32, "one bit for each column");
        const int count = (max(0, pixels) + DILATION_WIDTH - 1) / DILATION_WIDTH;
        return (1u << min(COUNT, count)) - 1;
    }

    __device__ static bool is_below(int number, int end) {
        return static_cast<unsigned>(number) < static_cast<unsigned>(end);
    }
    // Which of a row's columns are there.
    __device__ unsigned there(int number) const {
        return is_below(row + number * row_step, size.h) ? inside : 0;
    }
    __device__ int64 place(int number) const {
        return first + static_cast<int64>(row + number * row_step) * size.w * CHANNELS;
    }

    // `wanted`: whether there is a row of this number at all.
    __device__ void load_row(Values (&to)[COUNT], const T* x, int number, bool wanted) const {
        const unsigned some = wanted ? there(number) : 0;
        const T* from = x + place(number);
#pragma unroll
        for (int i = 0; i < COUNT; ++i) {
            to[i] = {};
            if (some & 1u << i) to[i] = *reinterpret_cast<const Values*>(from + i * STEP);
        }
    }

    __device__ void store_row(T* y, const Values (&from)[COUNT], int number) const {
        const unsigned some = there(number);
        T* to = y + place(number);
#pragma unroll
        for (int i = 0; i < COUNT; ++i) {
            if (some & 1u << i) *reinterpret_cast<Values*>(to + i * STEP) = from[i];
        }
    }
};

template <int COUNT>
__device__ inline void unpack(Acc (&to)[COUNT][WIDTH], const Values (&from)[COUNT]) {
#pragma unroll
    for (int i = 0; i < COUNT; ++i) Own::unpack(to[i], from[i]);
}
