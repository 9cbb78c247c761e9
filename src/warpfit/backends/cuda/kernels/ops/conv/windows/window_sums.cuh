// From the sums of windows to memory: bias, activation, masks, and pooling.
//
// A lane has sums of two windows, as mma and wgmma leave them: of the outputs 8 j + 2 (lane % 4)
// and the next, sums[4 j + 2 h] and the next of window h. Of those that are pooled one lies below
// the other, and the lane four further on, or before, has their neighbours on the right, or left.
// Numbers of a lane's own windows; whole warps call.
// Users: conv2d_few_mma.cu, conv2d_sm90.cu.
#pragma once

#include "gemm/epilogue.cuh"
#include "ops/conv/windows/quads.cuh"

constexpr int EIGHTS = BLOCK_N / 8;

using Sums = float[BLOCK_N / 2];
using Words = unsigned[EIGHTS];  // pairs of numbers of a window, eight outputs from one to the next

__device__ inline T first_of(unsigned word) { return T{static_cast<uint16>(word)}; }
__device__ inline T second_of(unsigned word) { return T{static_cast<uint16>(word >> 16)}; }
__device__ inline unsigned pair_of(T first, T second) {
    return first.bits | static_cast<unsigned>(second.bits) << 16;
}

// The larger of two numbers, NaN if either is, and whether it is the second: of equal ones it is
// if `prefers_second`.
struct Larger {
    T value;
    bool is_second;

    __device__ Larger(T first, T second, bool prefers_second) {
        const Acc a = load(first), b = load(second);
        is_second = prefers_second ? b >= a : b > a;
        value = is_second || b != b ? second : first;
    }
};

// Of four windows, two of this lane and two of the one four further on or before, the largest
// numbers of half the outputs, those of words 2 i, or 2 i + 1 in the lane on the right; and where
// they are: 2 bits for each, row and column.
struct Pooled {
    static_assert(EIGHTS % 2 == 0 && EIGHTS <= 8, "lanes share words, whose places fit one");

    bool is_right;
    unsigned largest[EIGHTS / 2];
    unsigned taps;

    __device__ Pooled(const Words (&of_half)[2]) : is_right(threadIdx.x / 4 % 2), taps(0) {
        Words upright;
        unsigned rows = 0;
#pragma unroll
        for (int j = 0; j < EIGHTS; ++j) {
            const Larger first(first_of(of_half[0][j]), first_of(of_half[1][j]), false);
            const Larger second(second_of(of_half[0][j]), second_of(of_half[1][j]), false);
            upright[j] = pair_of(first.value, second.value);
            rows |= (first.is_second | second.is_second << 1) << 2 * j;
        }
        const unsigned other_rows = __shfl_xor_sync(FULL_WARP, rows, 4);
#pragma unroll
        for (int i = 0; i < EIGHTS / 2; ++i) {
            const unsigned low = upright[2 * i], high = upright[2 * i + 1];
            const unsigned own = is_right ? high : low;
            const unsigned other = __shfl_xor_sync(FULL_WARP, is_right ? low : high, 4);
            const int bit = 4 * i + 2 * is_right;
            largest[i] = pair_of(
                take(first_of(own), first_of(other), 2 * i, rows >> bit & 1, other_rows >> bit & 1),
                take(second_of(own), second_of(other), 2 * i + 1, rows >> (bit + 1) & 1,
                     other_rows >> (bit + 1) & 1));
        }
    }

    // Of equal numbers the one in the upper row counts, then the one on the left.
    __device__ T take(T own, T other, int idx, unsigned row, unsigned other_row) {
        const bool other_first = other_row != row ? other_row < row : is_right;
        const Larger larger(own, other, other_first);
        const unsigned of_row = larger.is_second ? other_row : row;
        taps |= (of_row << 1 | (larger.is_second != is_right)) << 2 * idx;
        return larger.value;
    }

    // Taps of the two numbers of a word, a byte each.
    __device__ uint16 tap_pair(int i) const {
        const unsigned two = taps >> 4 * i;
        return static_cast<uint16>((two & 3) | (two >> 2 & 3) << 8);
    }
};

// What is written: y, of images (height, width), or, if POOLS, what pooling leaves of it.
struct WindowResult {
    const Epilogue& epilogue;
    uint8* indices;
    int64 image;
    int height, width, first_output;
};

// A window, and whether it is one of those that the block has to write, but for the image's end.
struct Place {
    int row, col;
    bool is_own;
};

// A lane's two windows, and the words of what is to be stored: before that, if MASKS, of what was
// saved.
struct TwoWindows {
    Place lower;
    bool are_inside[2];
    int64 pixels[2];
    Words words[2] = {};

    // Asks for what was saved: before the products that it masks.
    __device__ TwoWindows(const WindowResult& to, const Place (&places)[2]) : lower(places[1]) {
#pragma unroll
        for (int h = 0; h < 2; ++h) {
            const Place& at = places[h];
            are_inside[h] = at.is_own & (at.row < to.height) & (at.col < to.width);
            pixels[h] = are_inside[h] ? (to.image * to.height + at.row) * to.width + at.col : 0;
            if (!MASKS) continue;
            const T* from = to.epilogue.saved + pixels[h] * to.epilogue.ldc + to.first_output +
                            threadIdx.x % 4 * 2;
#pragma unroll
            for (int j = 0; j < EIGHTS; ++j) {
                words[h][j] = *reinterpret_cast<const unsigned*>(from + 8 * j);
            }
        }
    }

    __device__ void finish(const WindowResult& to, const Sums& sums) {
#pragma unroll
        for (int h = 0; h < 2; ++h) {
            find(to, sums, h);
            if (POOLS) continue;
            store_quads<1>(words[h], to.epilogue.c + pixels[h] * to.epilogue.ldc + to.first_output,
                           are_inside[h]);
        }
        if (POOLS) store_pooled(to, Pooled(words));
    }

    // Hands the sums of a window to EPILOGUE, or masks them.
    __device__ void find(const WindowResult& to, const Sums& sums, int h) {
        const int first = to.first_output + threadIdx.x % 4 * 2;
        if (!are_inside[h]) return;
#pragma unroll
        for (int j = 0; j < EIGHTS; ++j) {
            Acc pair[2] = {sums[4 * j + 2 * h], sums[4 * j + 2 * h + 1]};
            if (MASKS) {
                const Acc saved[2] = {load(first_of(words[h][j])), load(second_of(words[h][j]))};
#pragma unroll
                for (int i = 0; i < 2; ++i) {
                    pair[i] *= activation_derivative<Activation::ACTIVATION>(saved[i], saved[i],
                                                                             to.epilogue.slope);
                }
            } else {
                EPILOGUE<2>(to.epilogue, pixels[h] * to.epilogue.ldc + first + 8 * j, first + 8 * j,
                            pair);
            }
            words[h][j] = pair_of(store<T>(pair[0]), store<T>(pair[1]));
        }
    }

    // The largest numbers of windows 2 by 2, and which they are.
    __device__ void store_pooled(const WindowResult& to, const Pooled& pooled) const {
        const int height = to.height / 2, width = to.width / 2;
        const int row = lower.row / 2, col = lower.col / 2;
        const bool is_inside = lower.is_own & (row < height) & (col < width);
        const int64 pixel = is_inside ? (to.image * height + row) * width + col : 0;
        const int64 at = pixel * to.epilogue.ldc + to.first_output + 8 * pooled.is_right;
        store_quads<2>(pooled.largest, to.epilogue.c + at, is_inside);
        if (!is_inside) return;
#pragma unroll
        for (int i = 0; i < EIGHTS / 2; ++i) {
            *reinterpret_cast<uint16*>(to.indices + at + 16 * i + threadIdx.x % 4 * 2) =
                pooled.tap_pair(i);
        }
    }
};
