// Rows of an image in shared memory, as the planes of mma/planes.cuh, and the windows that products
// find there.
//
// A pixel is a row of the planes, and the pixels of an image's rows follow each other, `pitch` in
// each, zeros around the image included. So the pixel that tap (kh, kw) of a window sees lies a
// fixed number of rows further on, whatever window it is: a product of all windows with one tap's
// weights reads the same planes as the others, from another row on.
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
    int rows, pitch;  // to be copied
    int first_channel;

    // To PLANES `planes`, which are `Planes`, or `Lines` (mma/lines.cuh); THREADS share the work,
    // of which this is number `thread`. What lies beside the image, and channels that it does not
    // have, are zeros already.
    template <int THREADS, int PLANES, class Pieces>
    __device__ void copy_to(const Pieces& planes, int thread) const {
        if constexpr (WHOLE) {
            static_assert(THREADS == 0 || THREADS >= PLANES, "a thread for each plane");
            copy_whole<THREADS / PLANES, PLANES>(planes, thread);
        } else {
            // Some at once, as each is waited for.
            constexpr int AT_ONCE = 4;
            Counter at(thread, THREADS, pitch, PLANES);
            while (at.a < rows) {
                uint4 pieces[AT_ONCE];
                unsigned char* to[AT_ONCE];
#pragma unroll
                for (int i = 0; i < AT_ONCE; ++i) {
                    to[i] = at.a < rows ? planes.piece(at.a * pitch + at.b, at.c) : nullptr;
                    pieces[i] = piece_of(source(at));
                    at.advance();
                }
#pragma unroll
                for (int i = 0; i < AT_ONCE; ++i) {
                    if (to[i] != nullptr) *reinterpret_cast<uint4*>(to[i]) = pieces[i];
                }
            }
        }
    }

    // A thread has a plane of every STEP-th pixel of a row; of narrow images some rows at once.
    template <int STEP, int PLANES, class Pieces>
    __device__ void copy_whole(const Pieces& planes, int thread) const {
        const int plane = thread % PLANES, channel = first_channel + plane * IN_PIECE<T>;
        const int begin = max(left, 0), last = min(left + pitch, width);
        const int of_row = max(1, min(STEP, last - begin)), at_once = STEP / of_row;
        const int first_row = thread / PLANES / of_row;
        if (first_row >= at_once || channel >= channels) return;
        const int first = begin + thread / PLANES - first_row * of_row;
#pragma unroll 1
        for (int r = first_row; r < rows; r += at_once) {
            const bool inside = static_cast<unsigned>(top + r) < static_cast<unsigned>(height);
            const T* from = image + static_cast<int64>(inside ? top + r : 0) * width * channels;
#pragma unroll 2
            for (int col = first; col < last; col += of_row) {
                copy_async_16(planes.piece(r * pitch + col - left, plane),
                              from + static_cast<int64>(col) * channels + channel, inside);
            }
        }
    }

    // Where a piece comes from, and how many numbers of it are there.
    struct Source {
        const T* first;
        int count;
    };

    __device__ Source source(const Counter& at) const {
        const int row = top + at.a, col = left + at.b;
        const int channel = first_channel + at.c * IN_PIECE<T>;
        const bool inside = (static_cast<unsigned>(row) < static_cast<unsigned>(height)) &
                            (static_cast<unsigned>(col) < static_cast<unsigned>(width)) &
                            (channel < channels) & (at.a < rows);
        if (!inside) return {image, 0};
        return {image + static_cast<int64>(row * width + col) * channels + channel,
                channels - channel};
    }

    __device__ static uint4 piece_of(const Source& from) {
        unsigned words[4] = {};
#pragma unroll
        for (int j = 0; j < IN_PIECE<T>; ++j) {
            if (j < from.count) {
                words[j / 2] |= static_cast<unsigned>(from.first[j].bits) << j % 2 * 16;
            }
        }
        return uint4{words[0], words[1], words[2], words[3]};
    }
};
