// A row of numbers from one place to another, converted (convert.cuh) and partitioned among lanes:
// 8 numbers at a time where the row has a multiple of 8 and both places are aligned for it. Lanes
// of a team have the columns in turns; who reads the row waits for the team.
#pragma once

#include "base/convert.cuh"

constexpr int UNIT = 8;

template <class T>
struct alignas(sizeof(T) == 1 ? UNIT : 16) Unit {
    T element[UNIT];
};

// Whether rows of this size can be copied by units, if the first ones are at these places.
template <class From, class To>
__device__ inline bool has_units(const From* from, const To* to, int row_size) {
    return row_size % UNIT == 0 && reinterpret_cast<uint64>(from) % alignof(Unit<From>) == 0 &&
           reinterpret_cast<uint64>(to) % alignof(Unit<To>) == 0;
}

template <class From, class To>
__device__ inline void copy_row(const From* from, To* to, int row_size, bool by_units, int lane,
                                int lanes) {
    if (!by_units) {
        for (int i = lane; i < row_size; i += lanes) to[i] = convert<To>(from[i]);
        return;
    }
    for (int i = lane; i < row_size / UNIT; i += lanes) {
        const Unit<From> unit = reinterpret_cast<const Unit<From>*>(from)[i];
        Unit<To> converted;
#pragma unroll
        for (int j = 0; j < UNIT; ++j) converted.element[j] = convert<To>(unit.element[j]);
        reinterpret_cast<Unit<To>*>(to)[i] = converted;
    }
}
