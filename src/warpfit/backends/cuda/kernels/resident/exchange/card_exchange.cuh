// How blocks of one_launch_card.cu come to have each other's numbers. Ranks that are apart leave
// each other in memory what those of a cluster send.
//
// Within a cluster they send them to each other's shared memory, where a barrier counts the bytes.
// What one sends of a layer shows that it has all that was sent of the layer before, and so that it
// reads nothing of what came before that: hence two places, for layers in turns. Between clusters
// numbers go through memory, marked (marked_numbers.cuh). Nobody leaves a number of a pass before
// it has parts of the outputs of the pass before of all clusters, and these have read all that came
// two passes before: hence two places for passes in turns, or for steps, of what only these leave.
#pragma once

#include "resident/products/card_products.cuh"

template <int L>
constexpr int PARITY_OF = L % 2;
// How many of the first COUNT layers have the parity of L: of L itself, whose number among these is
// L / 2.
template <int L, int COUNT>
constexpr int PHASES = (COUNT - L % 2 + 1) / 2;

// Sends a quad of numbers to where `rank` has what lies at `place` here.
__device__ inline void send_quad(int rank, const float* place, const float (&numbers)[4],
                                 const Barrier& full) {
    const unsigned words[4] = {__float_as_uint(numbers[0]), __float_as_uint(numbers[1]),
                               __float_as_uint(numbers[2]), __float_as_uint(numbers[3])};
    store_async_quad(place_in(rank, place), words, place_in(rank, &full));
}

// The 16-bit words of eight lanes, which go to `place` of all ranks: each lane sends them to some.
// The other ranks' barriers count them; this one's threads see them when they have met.
__device__ inline void broadcast(float number, T* place, const Barrier& full, bool is_there) {
    const int lane = threadIdx.x % 32;
    const float next = __shfl_xor_sync(FULL_WARP, number, 1);
    const unsigned pair = lane % 2 ? packed<T>(next, number) : packed<T>(number, next);
    const unsigned next_pair = __shfl_xor_sync(FULL_WARP, pair, 2);
    const bool is_second = lane / 2 % 2, is_upper = lane / 4 % 2;
    const unsigned first = is_second ? next_pair : pair, second = is_second ? pair : next_pair;
    const unsigned other_first = __shfl_xor_sync(FULL_WARP, first, 4),
                   other_second = __shfl_xor_sync(FULL_WARP, second, 4);
    const unsigned words[4] = {is_upper ? other_first : first, is_upper ? other_second : second,
                               is_upper ? first : other_first, is_upper ? second : other_second};
    if (!is_there) return;
    for (int rank = lane % 8; rank < RANKS; rank += 8) {
        if (rank == rank_here()) {
            *reinterpret_cast<uint4*>(place) = uint4{words[0], words[1], words[2], words[3]};
        } else {
            store_async_quad(place_in(rank, place), words, place_in(rank, &full));
        }
    }
}

// f(turn, i, is_there) for each number of COUNT that falls to this thread; whole warps call it.
template <int COUNT, class F>
__device__ inline void each_number(F f) {
    const int thread = this_thread();
#pragma unroll
    for (int turn = 0; turn < (COUNT + THREADS - 1) / THREADS; ++turn) {
        const int i = turn * THREADS + thread;
        if (i / 32 * 32 < COUNT) f(turn, i, i < COUNT);
    }
}

// Leaves a quad of sums in memory.
__device__ inline void leave_quad(unsigned* words, const Quad& quad, int turn) {
    const float numbers[1][4] = {
        {quad.numbers[0], quad.numbers[1], quad.numbers[2], quad.numbers[3]}};
    send(reinterpret_cast<uint4*>(words), 0, turn, numbers);
}

// Likewise of a tile of sums at place(row, column), as far as columns are sent.
template <class F>
__device__ inline void leave_tile(const float (&sums)[4], int turn, F place) {
    const Quad quad(sums);
    unsigned* words = place(quad.row, quad.column);
    if (words != nullptr) leave_quad(words, quad, turn);
}

// store(row, column, words) for each quad of COLUMNS columns, from `first` on, of all rows that
// others leave in memory, SENT each; 0 where nothing is sent.
template <int COLUMNS, int SENT, class F>
__device__ inline void receive_rows(const unsigned* words, int first, int turn, F store) {
    constexpr int QUADS = COLUMNS / 4, TURNS = (ROWS * QUADS + THREADS - 1) / THREADS;
    const int thread = this_thread();
    const auto row_of = [=](int i) { return (i * THREADS + thread) / QUADS; };
    const auto column_of = [=](int i) { return (i * THREADS + thread) % QUADS * 4; };
    float numbers[TURNS][4];
    receive(
        numbers, turn,
        [&](int i) {
            return reinterpret_cast<const uint4*>(words + row_of(i) * SENT + first + column_of(i));
        },
        [&](int i) { return row_of(i) < ROWS && first + column_of(i) < SENT; });
#pragma unroll
    for (int i = 0; i < TURNS; ++i)
        if (row_of(i) < ROWS) store(row_of(i), column_of(i), numbers[i]);
}

// Two words for the quad's numbers, rounded.
__device__ inline uint2 packed_quad(const float (&quad)[4]) {
    return {packed<T>(quad[0], quad[1]), packed<T>(quad[2], quad[3])};
}

// What SENDERS have left of a number, added up; `words` is where the first has it, and the three
// beside it. Of each four lanes, all call with the place of the same quad, and each gets one number
// of it.
template <int SENDERS>
__device__ inline float sum_of(const unsigned* words, int stride, int turn, bool is_there) {
    constexpr int MINE = (SENDERS + 3) / 4;
    const int lane = threadIdx.x % 32;
    float numbers[MINE][4];
    receive(
        numbers, turn,
        [&](int i) { return reinterpret_cast<const uint4*>(words + (lane % 4 + 4 * i) * stride); },
        [&](int i) { return is_there && lane % 4 + 4 * i < SENDERS; });
    float sums[4];
#pragma unroll
    for (int part = 0; part < 4; ++part) {
        sums[part] = numbers[0][part];
#pragma unroll
        for (int i = 1; i < MINE; ++i) sums[part] += numbers[i][part];
    }
    const bool is_upper = lane / 2 % 2, is_odd = lane % 2;
    const float even = (is_upper ? sums[2] : sums[0]) +
                       __shfl_xor_sync(FULL_WARP, is_upper ? sums[0] : sums[2], 2);
    const float odd = (is_upper ? sums[3] : sums[1]) +
                      __shfl_xor_sync(FULL_WARP, is_upper ? sums[1] : sums[3], 2);
    return (is_odd ? odd : even) + __shfl_xor_sync(FULL_WARP, is_odd ? even : odd, 1);
}

// What layer L multiplies, and gradients of its units.
template <int L>
__device__ inline auto& inputs_of(CardShared& shared, const Now& now) {
    return part_of<L>(shared).inputs[now.pass.index() % LayerPart<L>::BATCHES];
}

template <int L>
__device__ inline RowsOfUnits& gradients_of(CardShared& shared) {
    return shared.gradients(PARITY_OF<L>);
}
