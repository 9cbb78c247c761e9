// Rows on their way to a warp's 16 rows in shared memory: by 16 bytes, without waiting, where all
// rows begin and end at such addresses; else number by number.
//
// Which rows, the lanes of the warp have together: lane l the number of row l % 16, or -1 for one
// that is not there, which is zeros.
#pragma once

#include "base/convert.cuh"
#include "base/reduce.cuh"

constexpr int WARP_ROWS = 16;

// Calls use(row, col, number of the row) for every UNIT-th column of the 16 rows.
template <int WIDTH, int UNIT, class F>
__device__ inline void for_each_unit(int64 numbers, int lane, F use) {
    constexpr int UNITS = WIDTH / UNIT, ALL = WARP_ROWS * UNITS;
#pragma unroll 4
    for (int first = 0; first < ALL; first += WARP) {
        const int i = first + lane, row = i / UNITS;
        const int64 number = __shfl_sync(FULL_WARP, numbers, row % WARP_ROWS);
        if (ALL % WARP == 0 || i < ALL) use(row, i % UNITS * UNIT, number);
    }
}

// Copies rows of a matrix (any, SIZE) to rows `stride` apart, filled up with zeros to WIDTH
// numbers. Whoever reads them waits for copy_async_wait first.
template <int SIZE, int WIDTH, class Number>
__device__ inline void copy_rows(Number* to, int stride, const Number* matrix, int64 numbers,
                                 int lane) {
    constexpr int UNIT = 16 / sizeof(Number);
    if (SIZE % UNIT == 0 && reinterpret_cast<uint64>(matrix) % 16 == 0) {
        for_each_unit<WIDTH, SIZE % UNIT ? 1 : UNIT>(
            numbers, lane, [&](int row, int col, int64 number) {
                const bool is_there = number >= 0 && col < SIZE;
                copy_async_16(to + row * stride + col,
                              is_there ? matrix + number * SIZE + col : matrix, is_there);
            });
        return;
    }
    for_each_unit<WIDTH, 1>(numbers, lane, [&](int row, int col, int64 number) {
        to[row * stride + col] = number >= 0 && col < SIZE ? matrix[number * SIZE + col] : Number{};
    });
}

// At most 16 bytes come at once.
template <class Number>
struct alignas(sizeof(Number) < 4 ? 4 * sizeof(Number) : 16) FourNumbers {
    Number element[4];
};

// Likewise converted (convert.cuh), and there when the function returns. If IS_TILE, `from` are the
// 16 rows themselves.
template <bool IS_TILE, int SIZE, int WIDTH, class To, class From>
__device__ inline void convert_rows(To* to, int stride, const From* from, int64 numbers, int lane) {
    constexpr int UNIT = SIZE % 4 ? 1 : 4;
    if (UNIT == 4 &&
        (IS_TILE || reinterpret_cast<uint64>(from) % alignof(FourNumbers<From>) == 0)) {
        for_each_unit<WIDTH, UNIT>(numbers, lane, [&](int row, int col, int64 number) {
            FourNumbers<To> converted = {};
            if (number >= 0 && col < SIZE) {
                const From* place = from + (IS_TILE ? row : number) * SIZE + col;
                const FourNumbers<From> four = *reinterpret_cast<const FourNumbers<From>*>(place);
#pragma unroll
                for (int i = 0; i < 4; ++i) converted.element[i] = convert<To>(four.element[i]);
            }
            *reinterpret_cast<FourNumbers<To>*>(to + row * stride + col) = converted;
        });
        return;
    }
    for_each_unit<WIDTH, 1>(numbers, lane, [&](int row, int col, int64 number) {
        const bool is_there = number >= 0 && col < SIZE;
        to[row * stride + col] =
            is_there ? convert<To>(from[(IS_TILE ? row : number) * SIZE + col]) : To{};
    });
}
