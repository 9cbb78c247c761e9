// Products of a layer's weights with the rows of a block: sums of 16 units by ROWS rows for each
// warp, or with few units, parts of them.
//
// Weights come from memory straight into registers, each once for all rows, and are loaded while
// what comes before them is still computed; of more than WARPS tiles of inputs some at a time.
// mma's A are units by inputs (in the backward pass inputs by units), its B those numbers by rows.
// A lane then has, of rows 2 t and 2 t + 1 of each eight, units g and g + 8: g = lane / 4, t = lane
// % 4.
#pragma once

#include "resident/exchange/grid_turns.cuh"
#include "tabular/table_shapes.cuh"

// Blocks that have left the gradients of hidden units and outputs, those of all else, what they
// have updated, and what they add to the validation error.
struct Turns {
    unsigned gradients, rows, updates, validations;
};

using Sums = float[ROW_TILES][4];

__device__ inline int own_warp() { return static_cast<int>(uniform(threadIdx.x / 32)); }
__device__ inline int own_lane() { return threadIdx.x % 32; }

// The unit of a tile and the row of a lane's sum.
__device__ inline int unit_of(int part) { return own_lane() / 4 + part / 2 * 8; }
__device__ inline int row_of(int n, int part) { return n * 8 + own_lane() % 4 * 2 + part % 2; }

// Whether this warp has one of so many tiles, of those WARPS at a time; or of all that come later.
template <int TILES>
__device__ inline bool has_tile(int round = 0) {
    return TILES >= (round + 1) * WARPS || own_warp() < TILES - round * WARPS;
}
__device__ constexpr int rounds_of(int tiles) { return (tiles + WARPS - 1) / WARPS; }

// A product with M tiles of results and K tiles that are added up over. A warp has a tile of
// results in each of so many rounds, and adds up over one piece after the other.
template <int M, int K, bool SPLIT>
struct Product {
    static constexpr int BUSY = SPLIT ? K : M;  // warps, if there were as many
    static constexpr int ROUNDS = rounds_of(BUSY), PIECES = SPLIT ? 1 : rounds_of(K);
    static constexpr int COUNT =  // tiles of a piece, or of all rounds
        SPLIT ? M * ROUNDS : (K + PIECES - 1) / PIECES;
    uint4 words[COUNT];

    __device__ static bool is_mine(int round = 0) { return has_tile<BUSY>(round); }

    // All warps load: a register that only some write would be kept for longer.
    __device__ void load(const uint4 (*tiles)[32], int round = 0, int piece = 0) {
        const int tile = is_mine(round) ? round * WARPS + own_warp() : 0;
        const uint4* first = &tiles[SPLIT ? tile : tile * K][own_lane()];
#pragma unroll
        for (int i = 0; i < (SPLIT ? M : COUNT); ++i) {
            const int k = smaller(piece * COUNT + i, K - 1);
            words[SPLIT ? round * M + i : i] = received(first + (SPLIT ? i * K : k) * 32);
        }
        if (SPLIT && round + 1 < ROUNDS) load(tiles, round + 1);
    }

    // What a lane has of eight rows' units, of two tiles that are added up over.
    struct Pair {
        unsigned words[4];

        __device__ Pair(const T (*units)[STRIDE], int n, int k) {
            const int lane = own_lane();
            const T* from = units[n * 8 + lane % 8] + smaller(k + lane / 16, K - 1) * 16;
            ldmatrix_x4(words[0], words[1], words[2], words[3], from + lane / 8 % 2 * 8);
        }

        __device__ void add(float (&sums)[4], const uint4& word, int half) const {
            const unsigned a[4] = {word.x, word.y, word.z, word.w},
                           b[2] = {words[2 * half], words[2 * half + 1]};
            TensorCore<T>::multiply(sums, a, b);
        }
    };

    // Adds a piece to the sums of this warp's tile; two chains, so that one does not wait for the
    // other.
    __device__ void multiply(Sums& sums, const T (*units)[STRIDE], int piece = 0) const {
        static_assert(!SPLIT, "a split product has no sums yet");
#pragma unroll
        for (int n = 0; n < ROW_TILES; ++n) {
            float odd[4] = {};
#pragma unroll
            for (int i = 0; i < COUNT; i += 2) {
                const int k = piece * COUNT + i;
                const Pair pair(units, n, k);
                if (k < K) pair.add(sums[n], words[i], 0);
                if (i + 1 < COUNT && k + 1 < K) pair.add(odd, words[i + 1], 1);
            }
#pragma unroll
            for (int part = 0; part < 4; ++part) sums[n][part] += odd[part];
        }
    }

    // This warp's part of all sums, to shared memory.
    template <int ROUND = 0>
    __device__ void multiply(Parts& parts, const T (*units)[STRIDE]) const {
        static_assert(SPLIT, "there are parts of split products alone");
        if (!is_mine(ROUND)) return;
#pragma unroll
        for (int n = 0; n < ROW_TILES; ++n) {
            const Pair pair(units, n, ROUND * WARPS + own_warp());
#pragma unroll
            for (int m = 0; m < M; ++m) {
                float sums[4] = {};
                pair.add(sums, words[ROUND * M + m], 0);
#pragma unroll
                for (int part = 0; part < 4; ++part) {
                    float& sum = parts[own_warp()][row_of(n, part)][m * 16 + unit_of(part)];
                    sum = ROUND > 0 ? sum + sums[part] : sums[part];
                }
            }
        }
        if constexpr (ROUND + 1 < ROUNDS) multiply<ROUND + 1>(parts, units);
    }

    __device__ static float sum_of_parts(const Parts& parts, int row, int unit) {
        float sum = 0;
#pragma unroll
        for (int warp = 0; warp < smaller(K, WARPS); ++warp) sum += parts[warp][row][unit];
        return sum;
    }
};

// Of the forward pass, and of the backward pass.
using FirstForward = Product<HIDDEN_TILES, INPUT_TILES, false>;
using LastForward = Product<OUTPUT_TILES, HIDDEN_TILES, true>;
using Middle = Product<HIDDEN_TILES, HIDDEN_TILES, false>;  // both ways
using LastBackward = Product<HIDDEN_TILES, OUTPUT_TILES, false>;
using FirstBackward = Product<INPUT_TILES, HIDDEN_TILES, SPLITS_FIRST>;

// Of a layer's tiles of units each warp has one; of a single layer's two, one after the other.
constexpr int UNIT_ROUNDS = rounds_of(HIDDEN_TILES);
static_assert(UNIT_ROUNDS == 1 || LAST == 1, "behind a layer with more tiles come the outputs");

// Leaves a warp's numbers of 16 units and a block's rows where products that add up over rows take
// them: (units, rows) as A, and (rows, units) as B, are the same words.
__device__ inline void leave_rows(uint4 (*rows)[32], int block, const Sums& numbers) {
    unsigned words[ROW_TILES][2];
#pragma unroll
    for (int n = 0; n < ROW_TILES; ++n) {
#pragma unroll
        for (int h = 0; h < 2; ++h)
            words[n][h] = packed<T>(numbers[n][2 * h], numbers[n][2 * h + 1]);
    }
    if constexpr (ROW_TILES == 2) {
        rows[block][own_lane()] = uint4{words[0][0], words[0][1], words[1][0], words[1][1]};
    } else {
        uint2* halves = reinterpret_cast<uint2*>(&rows[block / 2][own_lane()]);
        halves[block % 2] = uint2{words[0][0], words[0][1]};
    }
}

// The sum of a number over the rows that the lanes of a unit have; all of them get it.
__device__ inline float sum_over_rows(float number) {
    number += __shfl_xor_sync(FULL_WARP, number, 1);
    return number + __shfl_xor_sync(FULL_WARP, number, 2);
}
