// Rows of an image in shared memory, as the planes of mma/planes.cuh, and the windows that products
// find there.
//
// A pixel is a row of the planes, and the pixels of an image's rows follow each other, `pitch` in
// each, zeros around the image included. So the pixel that tap (kh, kw) of a window sees lies a
// fixed number of rows further on, whatever window it is: a product of all windows with one tap's
// weights reads the same planes as the others, from another row on.
//
// Users: conv2d_backward_weight_sm90.cu, conv2d_sm90.cu.
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
// of it: there are zeros, as in channels that planes have beyond those of the image. WHOLE: pixels
// consist of whole pieces, at multiples of 16 bytes.
template <class T, bool WHOLE>
struct ImageRows {
    const T* image;
    int height, width, channels;
    int top, left;
    int rows, pitch;                // to be copied
    int first_channel, num_planes;  // to be copied

    template <int THREADS>
    __device__ void copy_to(const Planes& planes) const {
        Counter at(threadIdx.x, THREADS, pitch, num_planes);
        for (; at.a < rows; at.advance()) {
            const int row = top + at.a, col = left + at.b;
            const int channel = first_channel + at.c * IN_PIECE<T>;
            const bool inside = (static_cast<unsigned>(row) < static_cast<unsigned>(height)) &
                                (static_cast<unsigned>(col) < static_cast<unsigned>(width)) &
                                (channel < channels);
            const T* from = image + static_cast<int64>(row * width + col) * channels + channel;
            unsigned char* to = planes.piece(at.a * pitch + at.b, at.c);
            if constexpr (WHOLE) {
                copy_async_16(to, inside ? from : image, inside);
            } else {
                copy_numbers(to, from, inside ? channels - channel : 0);
            }
        }
    }

    __device__ static void copy_numbers(unsigned char* to, const T* from, int count) {
        unsigned words[4] = {};
#pragma unroll
        for (int j = 0; j < IN_PIECE<T>; ++j) {
            if (j < count) words[j / 2] |= static_cast<unsigned>(from[j].bits) << j % 2 * 16;
        }
        *reinterpret_cast<uint4*>(to) = uint4{words[0], words[1], words[2], words[3]};
    }
};
