// Rows of an image in shared memory, as the planes of mma/planes.cuh, and the windows that products
// find there.
//
// A pixel is a row of the planes, and the pixels of an image's rows follow each other, `pitch` in
// each, zeros around the image included. So the pixel that tap (kh, kw) of a window sees lies a
// fixed number of rows further on, whatever window it is: a product of all windows with one tap's
// weights reads the same planes as the others, from another row on.
//
// Users: conv2d_sm90.cu.
#pragma once

#include "mma/operand_tile.cuh"
#include "mma/planes.cuh"
#include "ops/conv/counter.cuh"

template <class T>
constexpr int IN_PIECE = PIECE_BYTES / static_cast<int>(sizeof(T));

// Planes in shared memory, `stride` bytes apart.
struct Planes {
    unsigned char* data;
    int stride;

    __device__ unsigned char* piece(int row, int plane) const {
        return data + plane * stride + row * PIECE_BYTES;
    }
};

// Some rows of an image (height, width, channels), from `top` and `left` on, which may lie outside
// of it: there are zeros.
template <class T>
struct ImageRows {
    const T* image;
    int height, width, channels;
    int top, left;
    int rows, pitch;  // to be copied

    template <int THREADS>
    __device__ void copy_to(const Planes& planes) const {
        const int pieces = channels / IN_PIECE<T>;
        Counter at(threadIdx.x, THREADS, pitch, pieces);
        for (; at.a < rows; at.advance()) {
            const int row = top + at.a, col = left + at.b;
            const bool inside = (static_cast<unsigned>(row) < static_cast<unsigned>(height)) &
                                (static_cast<unsigned>(col) < static_cast<unsigned>(width));
            const int64 offset =
                static_cast<int64>(row * width + col) * channels + at.c * IN_PIECE<T>;
            copy_async_16(planes.piece(at.a * pitch + at.b, at.c), image + (inside ? offset : 0),
                          inside);
        }
    }
};
