// From the sums of windows to memory: bias, activation, masks, and pooling.
//
// A lane has sums of two windows, as mma and wgmma leave them: of the outputs 8 j + 2 (lane % 4)
// and the next, sums[4 j + 2 h] and the next of window h. Of those that are pooled one lies below
// the other, and the lane four further on, or before, has their neighbours on the right, or left.
// Numbers of a lane's own windows; whole warps call.
#pragma once

#include "mma/fragments.cuh"
#include "ops/activation/activation.cuh"
#include "ops/conv/windows/quads.cuh"

using T = DTYPE;
using Acc = accumulator<T>;

constexpr int EIGHTS = BLOCK_N / 8;

using Sums = float[BLOCK_N / 2];
using Words = unsigned[EIGHTS];  // pairs of numbers of a window, eight outputs from one to the next

// Of four windows, two of this lane and two of the one four further on or before, the largest
// numbers of half the outputs, those of words 2 i, or 2 i + 1 in the lane on the right; and where
// they are. Of an odd number of words there is no last one on the right. Masks have all bits of a
// number, or none.
struct Pooled {
    static_assert(EIGHTS <= 16, "a word has the rows of all");
    static constexpr int COUNT = (EIGHTS + 1) / 2;
    static constexpr unsigned ONES = 0x10001u;  // the lowest bits of both numbers of a word

    bool is_right;
    unsigned largest[COUNT];
    unsigned taps[COUNT];  // row 2 + column; of ReLU 4 more, which is none, unless above 0

    __device__ Pooled(const Words (&of_half)[2]) : is_right(threadIdx.x / 4 % 2) {
        Words upright;
        unsigned rows = 0;  // bits j and 16 + j: whether those of word j are in the lower row
#pragma unroll
        for (int j = 0; j < EIGHTS; ++j) {
            const unsigned first = of_half[0][j], second = of_half[1][j];
            upright[j] = larger<T>(first, second);
            rows |= greater<T>(second, first) & ONES << j;
        }
        const unsigned other_rows = __shfl_xor_sync(FULL_WARP, rows, 4);
#pragma unroll
        for (int i = 0; i < COUNT; ++i) {
            const unsigned low = upright[2 * i];
            const unsigned high = 2 * i + 1 < EIGHTS ? upright[2 * i + 1] : 0;
            const unsigned own = is_right ? high : low;
            const unsigned other = __shfl_xor_sync(FULL_WARP, is_right ? low : high, 4);
            const int bit = 2 * i + is_right;
            take(i, own, other, (rows >> bit & ONES) * 0xffff, (other_rows >> bit & ONES) * 0xffff);
        }
    }

    // Of equal numbers the one in the upper row counts, then the one on the left.
    __device__ void take(int i, unsigned own, unsigned other, unsigned row, unsigned other_row) {
        const unsigned right = is_right ? ~0u : 0, differ = row ^ other_row;
        const unsigned other_first = (differ & row) | (~differ & right);
        const unsigned is_other =
            (at_least<T>(other, own) & other_first) | (greater<T>(other, own) & ~other_first);
        largest[i] = larger<T>(own, other);
        const unsigned of_row = (other_row & is_other) | (row & ~is_other);
        taps[i] = (of_row & 2 * ONES) | ((is_other ^ right) & ONES);
        if (Activation::ACTIVATION == Activation::relu) {
            taps[i] |= ~greater<T>(largest[i], 0) & 4 * ONES;
        }
    }

    __device__ bool has_last() const { return EIGHTS % 2 == 0 || !is_right; }

    // Taps of the two numbers of a word, a byte each.
    __device__ uint16 tap_pair(int i) const { return static_cast<uint16>(taps[i] | taps[i] >> 8); }
};

// What is made of the sums, (M, height, width, outputs): y = f(sum + bias), z the same without f if
// STORE_Z, or, if MASKS, y = sum f'(saved); if POOLS what pooling leaves of y, and its indices.
struct WindowResult {
    const T *bias, *saved;
    T *y, *z;
    uint8* indices;
    Acc slope;
    int height, width, outputs, first_output;
    int64 image;

    // This lane's first number of a window.
    __device__ int64 place(int64 pixel) const {
        return pixel * outputs + first_output + threadIdx.x % 4 * 2;
    }
};

// A window, and whether it is one of those that the block has to write, but for the image's end.
struct Place {
    int row, col;
    bool is_own;
};

// A lane's two windows, and the words of what is to be stored; before that of what the sums need.
struct TwoWindows {
    Place lower;
    bool are_inside[2];
    int64 pixels[2];
    Words words[2] = {};

    // Asks for what the sums need: before the products.
    __device__ TwoWindows(const WindowResult& to, const Place (&places)[2]) : lower(places[1]) {
#pragma unroll
        for (int h = 0; h < 2; ++h) {
            const Place& at = places[h];
            are_inside[h] = at.is_own & (at.row < to.height) & (at.col < to.width);
            pixels[h] = are_inside[h] ? (to.image * to.height + at.row) * to.width + at.col : 0;
            if (MASKS) load(words[h], to.saved + to.place(pixels[h]));
        }
        if (HAS_BIAS) load(words[0], to.bias + to.place(0));
    }

    __device__ static void load(Words& words, const T* from) {
#pragma unroll
        for (int j = 0; j < EIGHTS; ++j) {
            words[j] = *reinterpret_cast<const unsigned*>(from + 8 * j);
        }
    }

    __device__ void finish(const WindowResult& to, const Sums& sums) {
#pragma unroll
        for (int j = 0; j < EIGHTS; ++j) {
            const unsigned bias = words[0][j];
#pragma unroll
            for (int h = 0; h < 2; ++h) {
                const float2 pair{sums[4 * j + 2 * h], sums[4 * j + 2 * h + 1]};
                words[h][j] = MASKS ? masked(pair, words[h][j], to.slope)
                                    : activated(to, pair, bias, pixels[h], j, are_inside[h]);
            }
        }
        if (POOLS) {
            store_pooled(to, Pooled(words));
            return;
        }
#pragma unroll
        for (int h = 0; h < 2; ++h) {
            store_quads<1>(words[h], to.y + pixels[h] * to.outputs + to.first_output,
                           are_inside[h]);
        }
    }

    __device__ static unsigned masked(float2 pair, unsigned saved, Acc slope) {
        constexpr auto KIND = Activation::ACTIVATION;
        const float2 of = unpacked<T>(saved);
        return packed<T>(pair.x * activation_derivative<KIND>(of.x, of.x, slope),
                         pair.y * activation_derivative<KIND>(of.y, of.y, slope));
    }

    __device__ static unsigned activated(const WindowResult& to, float2 pair, unsigned bias,
                                         int64 pixel, int j, bool is_inside) {
        constexpr auto KIND = Activation::ACTIVATION;
        if (HAS_BIAS) {
            const float2 of = unpacked<T>(bias);
            pair = {pair.x + of.x, pair.y + of.y};
        }
        if (STORE_Z && is_inside) {
            *reinterpret_cast<unsigned*>(to.z + to.place(pixel) + 8 * j) =
                packed<T>(pair.x, pair.y);
        }
        return packed<T>(activate<KIND>(pair.x, to.slope), activate<KIND>(pair.y, to.slope));
    }

    // The largest numbers of windows 2 by 2, and which they are.
    __device__ void store_pooled(const WindowResult& to, const Pooled& pooled) const {
        const int height = to.height / 2, width = to.width / 2;
        const int row = lower.row / 2, col = lower.col / 2;
        const bool is_inside = lower.is_own & (row < height) & (col < width);
        const int64 pixel = is_inside ? (to.image * height + row) * width + col : 0;
        const int64 at = pixel * to.outputs + to.first_output + 8 * pooled.is_right;
        store_quads<2>(pooled.largest, to.y + at, is_inside, pooled.has_last());
        if (!is_inside) return;
#pragma unroll
        for (int i = 0; i < Pooled::COUNT; ++i) {
            if (i + 1 == Pooled::COUNT && !pooled.has_last()) break;
            *reinterpret_cast<uint16*>(to.indices + at + 16 * i + threadIdx.x % 4 * 2) =
                pooled.tap_pair(i);
        }
    }
};
