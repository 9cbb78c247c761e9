// Windows of padded images, each where 32 bits of its own say: 16 along each axis, the highest
// first. What lies outside of an image is 0, or its reflection, whose border is not repeated.
// Values only; images are contiguous, channels last.
#pragma once

#include "base/reduce.cuh"

// An axis of images and windows.
struct WindowAxis {
    int size, window, padding;

    // The first pixel of a window, in those of the image, by a number of 16 bits.
    __device__ int first(unsigned number) const {
        const unsigned count = size + 2 * padding - window + 1;
        return static_cast<int>(static_cast<uint64>(number) * count >> 16) - padding;
    }
};

// The pixel that a place beyond the border shows.
__device__ inline int reflected(int pixel, int size) {
    if (pixel < 0) return -pixel;
    return pixel < size ? pixel : 2 * (size - 1) - pixel;
}

struct FirstPixel {
    int row, column;
};

// Where the window of an image begins; every warp finds it by itself.
__device__ inline FirstPixel first_pixel(const float* bits, int64 image, const WindowAxis& rows,
                                         const WindowAxis& columns) {
    const unsigned last_first = WARP - 1 - threadIdx.x % WARP;
    const unsigned found = __ballot_sync(FULL_WARP, bits[image * WARP + last_first] != 0);
    return {rows.first(found >> 16), columns.first(found & 0xffff)};
}
