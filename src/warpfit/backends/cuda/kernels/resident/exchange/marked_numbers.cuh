// Numbers that blocks leave each other in memory.
//
// They are on their way without their last bit. In its place is one that changes from turn to turn,
// so that who looks for a number sees whether it has come: no barrier, no fence, and no bytes
// beside the numbers.
#pragma once

#include "ptx/barriers.cuh"

constexpr unsigned LAST_BIT = 1;

// The last bit of numbers that a place takes in this turn of its. Before the first, 0, it has
// zeros.
__device__ inline unsigned mark_of(int turn) { return (turn + 1) & LAST_BIT; }

__device__ inline unsigned marked(float number, int turn) {
    return (__float_as_uint(number) & ~LAST_BIT) | mark_of(turn);
}

// What arrives of a number.
__device__ inline float without_last_bit(unsigned word) {
    return __uint_as_float(word & ~LAST_BIT);
}

// Looks at a place in memory, and leaves something there, OF_CARDS if others than this one use it.
template <bool OF_CARDS, class Words>
__device__ inline Words look(const Words* place) {
    if constexpr (OF_CARDS) {
        return load_system(place);
    } else {
        return load_relaxed(place);
    }
}
template <bool OF_CARDS, class Words>
__device__ inline void leave(Words* place, Words words) {
    OF_CARDS ? store_system(place, words) : store_relaxed(place, words);
}

// Sends quads of numbers to places that lie `stride` apart.
template <bool OF_CARDS = false, int QUADS>
__device__ inline void send(uint4* place, int stride, int turn, const float (&numbers)[QUADS][4]) {
#pragma unroll
    for (int i = 0; i < QUADS; ++i) {
        unsigned words[4];
#pragma unroll
        for (int part = 0; part < 4; ++part) words[part] = marked(numbers[i][part], turn);
        leave<OF_CARDS>(place + i * stride, uint4{words[0], words[1], words[2], words[3]});
    }
}

// Not 0 if a number of a quad has not come.
__device__ inline unsigned missing_marks(const uint4& words, int turn) {
    const unsigned mark = mark_of(turn);
    return ((words.x ^ mark) | (words.y ^ mark) | (words.z ^ mark) | (words.w ^ mark)) & LAST_BIT;
}

// Likewise of the words that `there` has bits of.
constexpr unsigned ALL_WORDS = 15;
__device__ inline unsigned missing_marks(const uint4& words, int turn, unsigned there) {
    const unsigned mark = mark_of(turn);
    const unsigned missing = ((words.x ^ mark) & there) | ((words.y ^ mark) & there >> 1) |
                             ((words.z ^ mark) & there >> 2) | ((words.w ^ mark) & there >> 3);
    return missing & LAST_BIT;
}

// Waits for the quads at place(i) for all i below QUADS for which comes(i); the others are 0.
template <bool OF_CARDS = false, int QUADS, class F, class P>
__device__ inline void receive(float (&numbers)[QUADS][4], int turn, F place, P comes) {
    uint4 words[QUADS];
    for (Patience patience;; patience.wait()) {
        unsigned missing = 0;
#pragma unroll
        for (int i = 0; i < QUADS; ++i) {
            words[i] = uint4{};
            if (comes(i)) words[i] = look<OF_CARDS>(place(i));
        }
#pragma unroll
        for (int i = 0; i < QUADS; ++i) missing |= comes(i) ? missing_marks(words[i], turn) : 0;
        if (missing == 0) break;
    }
#pragma unroll
    for (int i = 0; i < QUADS; ++i) {
        numbers[i][0] = without_last_bit(words[i].x);
        numbers[i][1] = without_last_bit(words[i].y);
        numbers[i][2] = without_last_bit(words[i].z);
        numbers[i][3] = without_last_bit(words[i].w);
    }
}

template <int QUADS, class F>
__device__ inline void receive(float (&numbers)[QUADS][4], int turn, F place) {
    receive(numbers, turn, place, [](int) { return true; });
}

// Adds up what SENDERS have sent, in their order; quad i of a sender is at place(sender, i). As
// many quads at once as a thread has registers for.
template <int SENDERS, int AT_ONCE, int QUADS, class F>
__device__ inline void receive_sums(float (&sums)[QUADS][4], int turn, F place) {
#pragma unroll
    for (int first = 0; first < QUADS; first += AT_ONCE) {
        float numbers[SENDERS * AT_ONCE][4];
        receive(numbers, turn, [&](int i) { return place(i / AT_ONCE, first + i % AT_ONCE); });
#pragma unroll
        for (int i = 0; i < AT_ONCE * 4; ++i) {
            float& sum = sums[first + i / 4][i % 4];
            sum = 0;
#pragma unroll
            for (int sender = 0; sender < SENDERS; ++sender)
                sum += numbers[sender * AT_ONCE + i / 4][i % 4];
        }
    }
}
