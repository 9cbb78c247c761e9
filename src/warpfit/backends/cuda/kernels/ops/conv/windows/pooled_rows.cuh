// Rows of a gradient in shared memory that max pooling of 2 by 2 windows, side by side, is yet to
// spread: each number goes to the pixel that was the largest, and 0 to the others.
// Pixels in shared memory as in image_planes.cuh; a thread has the pieces of windows.
#pragma once

#include "ops/conv/windows/image_planes.cuh"

// Eight numbers that each go to one pixel of their windows, row 2 + column.
struct PooledPiece {
    uint4 numbers;
    uint2 places;

    // Those of a pixel, the others being 0.
    __device__ uint4 at(unsigned place) const {
        // The sign of a byte says whether this is its place; both bytes of a number are masked.
        const unsigned low = 0x80808080u - (places.x ^ place * 0x01010101u);
        const unsigned high = 0x80808080u - (places.y ^ place * 0x01010101u);
        return uint4{
            numbers.x & permuted_bytes(low, 0x9988), numbers.y & permuted_bytes(low, 0xbbaa),
            numbers.z & permuted_bytes(high, 0x9988), numbers.w & permuted_bytes(high, 0xbbaa)};
    }
};

// Copies the rows to shared memory, of `gradient` (M, height / 2, width / 2, channels) and `places`
// like it, an image of which is (height, width, channels); channels are whole pieces.
template <int THREADS, int PLANES, class T, bool WHOLE, class Pieces>
__device__ inline void copy_pooled(const Pieces& to, const T* gradient, const uint8* places,
                                   int64 number, const ImageRows<T, WHOLE>& rows, int thread) {
    constexpr int AT_ONCE = 3;  // as each is waited for
    const int height = rows.height / 2, width = rows.width / 2;
    const int64 image = number * height * width * rows.channels;
    const int first_row = rows.top >> 1, first_col = rows.left >> 1;
    const int num_rows = ((rows.top + rows.rows - 1) >> 1) - first_row + 1;
    const int num_cols = ((rows.left + rows.pitch - 1) >> 1) - first_col + 1;
    Counter at(thread, THREADS, num_cols, PLANES);
    while (at.a < num_rows) {
        PooledPiece pieces[AT_ONCE];
        int row[AT_ONCE], col[AT_ONCE], plane[AT_ONCE];
#pragma unroll
        for (int i = 0; i < AT_ONCE; ++i) {
            const int channel = rows.first_channel + at.c * IN_PIECE<T>;
            row[i] = first_row + at.a, col[i] = first_col + at.b, plane[i] = at.c;
            const bool inside = (static_cast<unsigned>(row[i]) < static_cast<unsigned>(height)) &
                                (static_cast<unsigned>(col[i]) < static_cast<unsigned>(width)) &
                                (channel < rows.channels) & (at.a < num_rows);
            const int64 from =
                inside ? image + (row[i] * width + col[i]) * rows.channels + channel : 0;
            pieces[i] = {*reinterpret_cast<const uint4*>(gradient + from),
                         *reinterpret_cast<const uint2*>(places + from)};
            if (!inside) pieces[i].numbers = uint4{0, 0, 0, 0};
            at.advance();
        }
#pragma unroll
        for (int i = 0; i < AT_ONCE; ++i) {
#pragma unroll
            for (int place = 0; place < 4; ++place) {
                const int own_row = 2 * row[i] + place / 2 - rows.top;
                const int own_col = 2 * col[i] + place % 2 - rows.left;
                const bool wanted =
                    (static_cast<unsigned>(own_row) < static_cast<unsigned>(rows.rows)) &
                    (static_cast<unsigned>(own_col) < static_cast<unsigned>(rows.pitch));
                if (!wanted) continue;
                *reinterpret_cast<uint4*>(to.piece(own_row * rows.pitch + own_col, plane[i])) =
                    pieces[i].at(place);
            }
        }
    }
}

// Copies rows of a gradient, `image` of which is the first one's, as they lie, or pooled.
template <int THREADS, int PLANES, bool POOLED, class T, class Pieces>
__device__ inline void copy_gradient(const Pieces& to, const uint8* places, int64 number,
                                     ImageRows<T, true> rows, int thread) {
    if constexpr (POOLED) {
        copy_pooled<THREADS, PLANES>(to, rows.image, places, number, rows, thread);
    } else {
        rows.image += number * rows.height * rows.width * rows.channels;
        rows.template copy_to<THREADS, PLANES>(to, thread);
    }
}
