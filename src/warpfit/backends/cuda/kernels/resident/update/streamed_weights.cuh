// Weights of one_launch_card.cu that have no room on the card: each block's lie in memory, in the
// order in which it goes over them, and come through a ring of pieces in shared memory.
//
// A layer is stages of 64 inputs by 128 units, one after the other along units. A stage is two
// pieces: rounded weights, as wgmma takes them (two panels of 64 units), and their low halves,
// fragment by fragment. Forward, only the first comes. Back, a stage is multiplied by the gradients
// of its units, then updated in place, and goes back to memory: each weight is read twice a step
// and written once.
//
// A thread copies the same bytes of every piece both ways, so that it overtakes nobody. Each pass
// begins the next one's copies, which so come while numbers of other blocks do.
#pragma once

#include "resident/update/card_weights.cuh"

// Pieces that are on their way forward, and back.
constexpr int AHEAD_FORWARD = Piece::COUNT - 1, AHEAD_BACK = Piece::COUNT - 2;

template <int L>
struct Stages {
    static constexpr int IN_A_ROW = WeightTile<L>::UNITS / PIECE_UNITS,
                         COUNT = WeightTile<L>::INPUTS / PIECE_INPUTS * IN_A_ROW,
                         BYTES = 2 * Piece::BYTES;

    __device__ static unsigned char* first(const CardRun& run) {
        return reinterpret_cast<unsigned char*>(run.far + far_quads_before<L>());
    }
};

// Where a pass over a layer finds its pieces.
struct Pass {
    unsigned char* first;
    int stride, count;
};
template <int L>
__device__ inline Pass forward_pass(const CardRun& run) {
    return {Stages<L>::first(run), Stages<L>::BYTES, Stages<L>::COUNT};
}
template <int L>
__device__ inline Pass backward_pass(const CardRun& run) {
    return {Stages<L>::first(run), Piece::BYTES, 2 * Stages<L>::COUNT};
}

// The pieces in shared memory, of which `head` is the next.
struct Ring {
    Piece* pieces;
    int head;

    __device__ unsigned char* at(int i) const {
        const int place = head + i;
        return pieces[place < Piece::COUNT ? place : place - Piece::COUNT].bytes;
    }
    __device__ void advance(int by) {
        head += by;
        head -= head < Piece::COUNT ? 0 : Piece::COUNT;
    }

    // f(byte) for each 16 bytes of a piece that fall to this thread.
    template <class F>
    __device__ static void each_16_bytes(F f) {
        const int thread = this_thread();
#pragma unroll
        for (int i = 0; i < Piece::BYTES / 16 / THREADS; ++i) f((i * THREADS + thread) * 16);
    }

    // Begins to copy a pass's piece, if there is one, to the i-th place from the head on.
    __device__ void fetch(int i, const Pass& pass, int piece) const {
        if (piece < pass.count) {
            unsigned char* to = at(i);
            const unsigned char* from = pass.first + static_cast<int64>(piece) * pass.stride;
            each_16_bytes([&](int byte) { copy_async_16(to + byte, from + byte, true); });
        }
        copy_async_commit();
    }
    __device__ void begin(const Pass& pass, int ahead) const {
        for (int i = 0; i < ahead; ++i) fetch(i, pass, i);
    }
    // Copies the two pieces of a stage back from their places.
    __device__ void put_back(int i, unsigned char* stage) const {
#pragma unroll
        for (int half = 0; half < 2; ++half) {
            const unsigned char* from = at(i + half);
            unsigned char* to = stage + half * Piece::BYTES;
            each_16_bytes([&](int byte) {
                *reinterpret_cast<uint4*>(to + byte) = *reinterpret_cast<const uint4*>(from + byte);
            });
        }
    }
};

// What a lane has of the i-th of 8 fragments that fall to its warp of a stage: of 16 inputs all
// units of a panel.
__device__ inline LaneWeights streamed_weights(unsigned char* rounded, unsigned char* low_halves,
                                               int i) {
    const int thread = this_thread(), warp = thread / 32, lane = thread % 32;
    unsigned char* upper = rounded + warp / 4 * (Piece::BYTES / 2) +
                           (warp % 4 * 16 + lane / 4) * LINE_BYTES + (i ^ lane / 4) * 16 +
                           lane % 4 * 4;
    LaneWeights own{};
    own.upper = reinterpret_cast<unsigned*>(upper);
    own.lower = reinterpret_cast<unsigned*>(upper + ATOM_BYTES);
    own.low_halves = reinterpret_cast<uint2*>(low_halves) + (warp * 8 + i) * 32 + lane;
    return own;
}
// Its first input and unit in the stage.
__device__ inline int streamed_input() { return this_thread() / 32 % 4 * 16; }
__device__ inline int streamed_unit(int i) { return this_thread() / 128 * 64 + i * 8; }

// f(lane's weights, input, unit) for each fragment of layer L, in memory.
template <int L, class F>
__device__ inline void each_streamed_fragment(const CardRun& run, F f) {
    for (int stage = 0; stage < Stages<L>::COUNT; ++stage) {
        unsigned char* at = Stages<L>::first(run) + static_cast<int64>(stage) * Stages<L>::BYTES;
        const int input = stage / Stages<L>::IN_A_ROW * PIECE_INPUTS + streamed_input(),
                  unit = stage % Stages<L>::IN_A_ROW * PIECE_UNITS;
#pragma unroll
        for (int i = 0; i < 8; ++i)
            f(streamed_weights(at, at + Piece::BYTES, i), input, unit + streamed_unit(i));
    }
}

// Waits for all pieces but so many, for all threads, and for wgmma.
template <int PENDING>
__device__ inline void meet_for_piece() {
    copy_async_wait<PENDING>();
    fence_async();
    __syncthreads();
}

// f(quad, unit, first row) for each quad that falls to this warpgroup of layer L's units.
template <int L, bool TRAINS, class Inputs, class F>
__device__ inline void stream_forward(Inputs& inputs, const CardRun& run, Ring& ring, F f) {
    constexpr int IN_A_ROW = Stages<L>::IN_A_ROW;
    const Pass pass = forward_pass<L>(run);
    const int warp = this_thread() / 32;
    float sums[IN_A_ROW][ROWS / 2] = {};
#pragma unroll 1
    for (int row = 0; row < Stages<L>::COUNT / IN_A_ROW; ++row) {
        const uint64 b = matrix_descriptor(shared_address(inputs.numbers) + row * ROWS * LINE_BYTES,
                                           ROWS * LINE_BYTES);
#pragma unroll
        for (int i = 0; i < IN_A_ROW; ++i) {
            meet_for_piece<AHEAD_FORWARD - 1>();
            ring.fetch(AHEAD_FORWARD, pass, row * IN_A_ROW + i + AHEAD_FORWARD);
            const uint64 a = matrix_descriptor(
                shared_address(ring.at(0)) + warp / 4 * (Piece::BYTES / 2), Piece::BYTES / 2);
            wgmma_fence();
#pragma unroll
            for (int slice = 0; slice < PIECE_INPUTS / 16; ++slice)
                SliceProduct<T, true, false>::add_to(sums[i], moved(a, slice * 16 * LINE_BYTES),
                                                     moved(b, slice * SLICE_BYTES), true);
            wgmma_commit();
            wgmma_wait<0>();
            ring.advance(1);
        }
    }
    if constexpr (L + 1 < HIDDEN_LAYERS) {
        ring.begin(forward_pass<L + 1>(run), AHEAD_FORWARD);
    } else if constexpr (TRAINS) {
        ring.begin(backward_pass<L>(run), AHEAD_BACK);
    } else {
        ring.begin(forward_pass<0>(run), AHEAD_FORWARD);
    }
#pragma unroll
    for (int i = 0; i < IN_A_ROW; ++i)
        each_quad_of(sums[i], i * PIECE_UNITS + warp / 4 * 64 + warp % 4 * 16, f);
}

// sums += a stage's weights times the gradients of its units, the i-th 128 of them.
template <class Dz>
__device__ inline void multiply_stage(float (&sums)[ROWS / 2], const unsigned char* rounded, Dz& dz,
                                      int i) {
    const uint64 a = matrix_descriptor(shared_address(rounded), Piece::BYTES / 2),
                 b = matrix_descriptor(shared_address(dz.numbers) + 2 * i * ROWS * LINE_BYTES,
                                       ROWS * LINE_BYTES);
    wgmma_fence();
#pragma unroll
    for (int slice = 0; slice < PIECE_UNITS / 16; ++slice) {
        const int panel = slice / SLICES, in_panel = slice % SLICES * SLICE_BYTES;
        SliceProduct<T, false, false>::add_to(sums, moved(a, panel * Piece::BYTES / 2 + in_panel),
                                              moved(b, panel * ROWS * LINE_BYTES + in_panel), true);
    }
    wgmma_commit();
    wgmma_wait<0>();
}

// f(quad, input, first row) for each quad of the gradients of layer L's inputs that falls to this
// warpgroup, and all weights' update.
template <int L, class Inputs, class Dz, class F>
__device__ inline void stream_back(Inputs& inputs, Dz& dz, const CardRun& run, Ring& ring,
                                   const Now& now, F f) {
    constexpr int IN_A_ROW = Stages<L>::IN_A_ROW;
    const Pass pass = backward_pass<L>(run);
    const int warp = this_thread() / 32, lane = this_thread() % 32;
    unsigned char* stage = pass.first;
#pragma unroll 1
    for (int row = 0; row < Stages<L>::COUNT / IN_A_ROW; ++row) {
        const bool is_own = L > 0 && row % 2 == warp / 4;
        float products[ROWS / 2] = {};
        unsigned of_a[ROW_TILES][4];
        load_inputs(of_a, inputs, row * (PIECE_INPUTS / 16) + warp % 4, lane);
#pragma unroll
        for (int i = 0; i < IN_A_ROW; ++i) {
            meet_for_piece<AHEAD_BACK - 2>();
            if (i > 0 || row > 0) ring.put_back(AHEAD_BACK, stage - Stages<L>::BYTES);
            const int next = 2 * (row * IN_A_ROW + i) + AHEAD_BACK;
            ring.fetch(AHEAD_BACK, pass, next);
            ring.fetch(AHEAD_BACK + 1, pass, next + 1);
            if (is_own) multiply_stage(products, ring.at(0), dz, i);
            __syncthreads();
#pragma unroll
            for (int own = 0; own < 8; ++own) {
                float sums[4] = {};
                multiply_rows(sums, of_a, dz, i * (PIECE_UNITS / 8) + warp / 4 * 8 + own, lane);
                update_weights(streamed_weights(ring.at(0), ring.at(1), own), sums, run, now);
            }
            ring.advance(2);
            stage += Stages<L>::BYTES;
        }
        if (is_own) each_quad_of(products, row * PIECE_INPUTS + warp % 4 * 16, f);
    }
    __syncthreads();
    ring.put_back(AHEAD_BACK, stage - Stages<L>::BYTES);
    if constexpr (L > 0) {
        ring.begin(backward_pass<L - 1>(run), AHEAD_BACK);
    } else {
        ring.begin(forward_pass<0>(run), AHEAD_FORWARD);
    }
}
