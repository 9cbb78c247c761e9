// Images of few channels in shared memory, number by number, and where the taps of a window lie
// there: fragments of mma are gathered from them.
// Pixels in shared memory, which all threads of a block write; a lane reads what its windows see.
#pragma once

#include "mma/fragments.cuh"
#include "ops/conv/counter.cuh"

struct Pair {
    int h, w;
};

// Some rows of an image (height, width, CHANNELS), from `top` and `left` on, which may lie outside
// of it: there are zeros.
template <class T>
struct NumberRows {
    const T* image;
    Pair size;
    int top, left;
    int rows, pitch;  // to be copied

    template <int THREADS>
    __device__ void copy_to(T* to) const {
        constexpr int AT_ONCE = 4;  // as each is waited for
        const int count = rows * pitch * CHANNELS;
        Counter at(threadIdx.x, THREADS, pitch, CHANNELS);
        for (int first = threadIdx.x; first < count; first += AT_ONCE * THREADS) {
            T numbers[AT_ONCE];
#pragma unroll
            for (int i = 0; i < AT_ONCE; ++i) {
                const int row = top + at.a, col = left + at.b;
                const bool inside = (first + i * THREADS < count) &
                                    (static_cast<unsigned>(row) < static_cast<unsigned>(size.h)) &
                                    (static_cast<unsigned>(col) < static_cast<unsigned>(size.w));
                numbers[i] = inside ? image[(row * size.w + col) * CHANNELS + at.c] : T{};
                at.advance();
            }
#pragma unroll
            for (int i = 0; i < AT_ONCE; ++i) {
                if (first + i * THREADS < count) to[first + i * THREADS] = numbers[i];
            }
        }
    }
};

// Numbers from a window's first one to that of a feature, a tap and a channel.
__device__ inline int place_of_feature(int feature, int pitch, const Pair& dilation) {
    const int tap = feature / CHANNELS;
    const int pixel = tap / KERNEL_WIDTH * dilation.h * pitch + tap % KERNEL_WIDTH * dilation.w;
    return pixel * CHANNELS + feature % CHANNELS;
}
