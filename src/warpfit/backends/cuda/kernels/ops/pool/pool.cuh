// Windows that slide over images (M, H, W, C): which pixels a window covers, and which windows
// cover a pixel. Images of one launch have less than 2^31 elements in all, so that places fit 32
// bits.
// Places only: each thread writes numbers that no other writes.
#pragma once

#include "base/group.cuh"

constexpr int POOL_THREADS = 256;

// One axis of the images: sizes in pixels and windows.
struct Axis {
    int size, num_windows, kernel, stride, padding;
};

struct Range {
    int first, end;
};

// The taps of a window that lie inside the image.
__device__ inline Range taps_inside(const Axis& axis, int window) {
    const int start = window * axis.stride - axis.padding;
    return {max(0, -start), min(axis.kernel, axis.size - start)};
}

// The windows that cover a pixel.
__device__ inline Range windows_over(const Axis& axis, int pixel) {
    const int place = pixel + axis.padding;
    const int before =
        place - axis.kernel;  // the last place that a window over the pixel does not start at
    return {before < 0 ? 0 : before / axis.stride + 1,
            min(axis.num_windows, place / axis.stride + 1)};
}

// What thread number `thread` works on: an image's place (row, column) and W channels from
// `channel` on.
struct Spot {
    int image, row, column, channel;
};

template <int W>
__device__ inline Spot spot_of(int thread, int num_rows, int num_columns, int channels) {
    const uint32 groups = channels / W;
    const uint32 pixel = static_cast<uint32>(thread) / groups;
    const uint32 line = pixel / num_columns;
    const uint32 image = line / num_rows;
    return {static_cast<int>(image), static_cast<int>(line - image * num_rows),
            static_cast<int>(pixel - line * num_columns),
            static_cast<int>((thread - pixel * groups) * W)};
}

// Indices of taps, stored as unsigned integers of 1, 2 or 4 bytes.
template <class Index, int W>
__device__ inline void store_indices_as(void* indices, int at, const int (&index)[W]) {
    Group<Index, W> group;
#pragma unroll
    for (int e = 0; e < W; ++e) group.element[e] = static_cast<Index>(index[e]);
    *reinterpret_cast<Group<Index, W>*>(static_cast<Index*>(indices) + at) = group;
}

template <int W>
__device__ inline void store_indices(void* indices, int bytes, int at, const int (&index)[W]) {
    if (bytes == 1) {
        store_indices_as<uint8>(indices, at, index);
    } else if (bytes == 2) {
        store_indices_as<uint16>(indices, at, index);
    } else {
        store_indices_as<uint32>(indices, at, index);
    }
}

template <class Index, int W>
__device__ inline void load_indices_as(const void* indices, int at, int (&index)[W]) {
    const auto group =
        *reinterpret_cast<const Group<Index, W>*>(static_cast<const Index*>(indices) + at);
#pragma unroll
    for (int e = 0; e < W; ++e) index[e] = static_cast<int>(group.element[e]);
}

template <int W>
__device__ inline void load_indices(const void* indices, int bytes, int at, int (&index)[W]) {
    if (bytes == 1) {
        load_indices_as<uint8>(indices, at, index);
    } else if (bytes == 2) {
        load_indices_as<uint16>(indices, at, index);
    } else {
        load_indices_as<uint32>(indices, at, index);
    }
}
