// A network in a group of four warps, which multiply together: its shape, what lies where in shared
// memory, and its parameters. many_small_networks_sm90.cu says how a step goes. A group owns its
// Shared; a thread's parameters are two units' of each layer, as accumulators lie.
#pragma once

#include "base/choice.cuh"
#include "mma/fragments.cuh"
#include "mma/operand_tile.cuh"
#include "ptx/barriers.cuh"
#include "resident/feed/many_batches.cuh"
#include "resident/layout/sizes.cuh"
#include "resident/loss/output_losses.cuh"

using T = DTYPE;

template <class Number>
struct IsHalf {
    static constexpr bool VALUE = false;
};
template <>
struct IsHalf<float16> {
    static constexpr bool VALUE = true;
};
constexpr bool IS_HALF = IsHalf<T>::VALUE;

constexpr int HIDDEN = LAYERS - 1;

// All layers' units are filled up to a tile; rows of a batch and inputs of layers to slices of 16.
constexpr int WARPS = 4, GROUP_THREADS = WARPS * WARP, THREADS = (GROUPS + 1) * GROUP_THREADS,
              UNITS = 64;
constexpr int ROWS = BATCH <= 16   ? 16
                     : BATCH <= 32 ? 32
                     : BATCH <= 64 ? 64
                                   : 128,
              ROW_SLICES = ROWS / 16;
// Of a product's rows at once: all, where sums are of float16.
constexpr int PART_ROWS = ROWS > 64 && !IS_HALF ? 64 : ROWS;
__device__ constexpr int padded(int i) { return up(WIDTHS[i], 16); }
constexpr int X_WIDTH = padded(0), OUT_TILES = (OUTPUTS + 7) / 8;

__device__ constexpr bool all_fit() {
    for (int i = 0; i < LAYERS; ++i) {
        if (WIDTHS[i] > UNITS || (i > 0 && needs_input(ACTIVATIONS[i - 1]))) return false;
    }
    return HIDDEN > 0 && OUTPUTS <= 16 && BATCH <= 128;
}
static_assert(all_fit(), "many_small_networks_sm90.py knows what fits");

// A warp finds the losses of 16 rows of each of so many parts, if they are there.
constexpr int LOSS_PARTS = (ROWS + 16 * WARPS - 1) / (16 * WARPS), LOSS_STEP = 16 * WARPS;

// A line for each row. Both stages of x lie side by side in lines, if they can.
constexpr int TILE_BYTES = ROWS * LINE_BYTES, STAGES = 2;
constexpr bool SHARES_LINES = STAGES * X_WIDTH <= UNITS;
__device__ inline unsigned x_at(int stage) {
    return static_cast<unsigned>(stage) * (SHARES_LINES ? LINE_BYTES / STAGES : TILE_BYTES);
}

// Where layers begin among a network's parameters: weights (inputs, outputs), then biases.
__device__ constexpr int parameters_at(int layer) {
    return layer == 0 ? 0
                      : parameters_at(layer - 1) + up((WIDTHS[layer - 1] + 1) * WIDTHS[layer], 4);
}
constexpr int PARAMETERS = parameters_at(LAYERS);

// And where those that a thread has, among its own: of a hidden layer 16 weights of two units, as
// accumulators have them, for each 32 inputs, and two biases; of the outputs the weights of its
// units in each tile, and two biases.
__device__ constexpr int own_weights_at(int layer) {
    return layer == 0 ? 0 : own_weights_at(layer - 1) + padded(layer - 1) / 2 + 2;
}
__device__ constexpr int own_biases_at(int layer) {
    return own_weights_at(layer) + (layer == HIDDEN ? 4 * OUT_TILES : padded(layer) / 2);
}
constexpr int FIRST = SHARES_FIRST ? own_biases_at(0) : 0,
              OWN = own_biases_at(HIDDEN) + 2 * OUT_TILES;
// The optimizer state is in registers as far as it may, else in shared memory.
constexpr int SHARED_SLOTS = SLOTS - REGISTER_SLOTS;

// A network's run, as all of its warps know it.
struct GroupRun {
    int idx;      // of the network among all, -1 for none
    int batches;  // of an epoch
    int verdicts[2], ends_rung;
    float unscale, factors[2];  // of gradients: of a whole batch, and of an epoch's last
    EpochSums trained, validated;
};

// What the network of a group has.
struct alignas(1024) GroupShared {
    unsigned char x[SHARES_LINES ? TILE_BYTES : STAGES * TILE_BYTES];
    // What each hidden layer gives; later, the gradient of what it takes its activation of.
    unsigned char h[HIDDEN][TILE_BYTES];
    // The weights of each hidden layer but the first, a line for each unit.
    unsigned char weights[HIDDEN - 1 > 0 ? HIDDEN - 1 : 1][HIDDEN > 1 ? UNITS * LINE_BYTES : 16];
    float4 first[FIRST > 0 ? FIRST / 4 : 1][FIRST > 0 ? GROUP_THREADS : 1];
    T out_weights[OUT_TILES][UNITS][8];
    T dz[OUT_TILES][ROWS][8];
    float slots[SHARED_SLOTS > 0 ? SHARED_SLOTS * OWN : 1][SHARED_SLOTS > 0 ? GROUP_THREADS : 1];
    float2 logits[ROWS][(OUTPUTS + 1) / 2];
    float targets[STAGES][ROWS][TARGET_WORDS];
    int order[ORDER_RING];
    uint8 rounds[RoundTable::ENTRIES];
    alignas(16) StepSettings settings[STAGES];
    alignas(16) Network network;
    EpochSums sums[WARPS];
    GroupRun run;
    // From the warp that brings rows, and back; a network to it, and a verdict on an epoch.
    Barrier batch_full[STAGES], batch_free[STAGES], network_full, verdict_full[2];
};

static_assert(GROUPS * sizeof(GroupShared) == SHARED_BYTES,
              "many_small_networks_sm90.py counts these bytes");

struct Thread {
    unsigned idx;  // in its group

    __device__ Thread() : idx(unforeseen(threadIdx.x) % GROUP_THREADS) {}

    __device__ unsigned lane() const { return idx % WARP; }
    __device__ unsigned warp() const { return idx / WARP; }
    // Of accumulators: the first of the thread's two units, the other being 8 further on, and the
    // first of its pairs of columns, 8 apart.
    __device__ unsigned unit() const { return 16 * warp() + lane() / 4; }
    __device__ unsigned column() const { return lane() % 4 * 2; }
    // Of 16 lines of the warp's units, and the rows that ldmatrix and stmatrix take of the lane: 16
    // units of 16 rows of a tile that has a line for each row.
    __device__ unsigned across() const {
        const unsigned piece = 2 * warp() + lane() / 8 % 2, row = lane() % 8;
        return lane() / 16 * ATOM_BYTES + row * LINE_BYTES + (piece ^ row) * 16;
    }
};

// All warps of the group.
__device__ inline void meet() { meet_at<GROUP_THREADS>(1 + threadIdx.x / GROUP_THREADS); }

// What has been stored is there for all, and for products.
__device__ inline void hand_over() {
    fence_async();
    meet();
}

// The row whose loss a thread finds: ROWS or more for none.
__device__ inline unsigned own_row(const Thread& own) {
    static_assert(LOSS_PARTS <= 2, "a lane has at most a row");
    return own.lane() / 16 * LOSS_STEP + own.warp() * 16 + own.lane() % 16;
}

using Batch = RunBatch<ROWS>;

// -- parameters -----------------------------------------------------------------------------------

struct Parameters {
    GroupShared& shared;
    float numbers[OWN];  // the first FIRST are in shared memory
    float slots[REGISTER_SLOTS > 0 ? REGISTER_SLOTS : 1][OWN];

    __device__ explicit Parameters(GroupShared& shared) : shared(shared) {}

    __device__ float4& four_of_first(int i) const {
        return shared.first[i / 4][threadIdx.x % GROUP_THREADS];
    }

    __device__ float& at(int i) {
        return i < FIRST ? reinterpret_cast<float*>(&four_of_first(i))[i % 4] : numbers[i];
    }

    __device__ float& slot(int idx, int i) {
        return idx < REGISTER_SLOTS
                   ? slots[REGISTER_SLOTS > 0 ? idx : 0][i]
                   : shared.slots[(idx - REGISTER_SLOTS) * OWN + i][threadIdx.x % GROUP_THREADS];
    }

    __device__ void update(const NetworkStep& step, int i, float sum) {
        update(step, numbers[i], i, sum);
    }

    __device__ void update(const NetworkStep& step, float& number, int i, float sum) {
        step.update(number, [&](int idx) -> float& { return slot(idx, i); }, sum);
    }

    // Of a hidden layer.
    template <int L>
    __device__ void update_weights(const NetworkStep& step, const float (&sums)[padded(L) / 2]) {
#pragma unroll
        for (int i = 0; i < padded(L) / 2; i += 4) {
            if constexpr (L == 0 && FIRST > 0) {
                float4 four = four_of_first(i);
                update(step, four.x, i, sums[i]);
                update(step, four.y, i + 1, sums[i + 1]);
                update(step, four.z, i + 2, sums[i + 2]);
                update(step, four.w, i + 3, sums[i + 3]);
                four_of_first(i) = four;
            } else {
#pragma unroll
                for (int j = i; j < i + 4; ++j) update(step, own_weights_at(L) + j, sums[j]);
            }
        }
    }

    // f(i, place) for each of the thread's numbers, with its place among a network's parameters: -1
    // for what pads layers.
    template <class F, int L = 0>
    __device__ static void each(F f) {
        const Thread own;
#pragma unroll
        for (int i = 0; i < own_biases_at(L) - own_weights_at(L); ++i) {
            const int below = i / 2 % 2 * 8, col = i / 4 * 8 + own.column() + i % 2,
                      unit = own.unit() + below;
            const int input = L < HIDDEN ? col : unit, output = L < HIDDEN ? unit : col;
            const bool is_there = input < WIDTHS[L] && output < WIDTHS[L + 1];
            f(own_weights_at(L) + i,
              is_there ? parameters_at(L) + input * WIDTHS[L + 1] + output : -1);
        }
#pragma unroll
        for (int i = 0; i < (L < HIDDEN ? 2 : 2 * OUT_TILES); ++i) {
            const int output = L < HIDDEN ? own.unit() + 8 * i : i / 2 * 8 + own.column() + i % 2;
            f(own_biases_at(L) + i,
              output < WIDTHS[L + 1] ? parameters_at(L) + WIDTHS[L] * WIDTHS[L + 1] + output : -1);
        }
        if constexpr (L < HIDDEN) each<F, L + 1>(f);
    }

    __device__ void read(const float* parameters) {
        each([&](int i, int place) {
            at(i) = place >= 0 ? parameters[place] : 0;
#pragma unroll
            for (int idx = 0; idx < SLOTS; ++idx)
                slot(idx, i) = place >= 0 ? parameters[(1 + idx) * PARAMETERS + place] : 0;
        });
    }

    // Biases are several threads' own, and the same.
    template <int LAST_SLOT = SLOTS>
    __device__ void write(float* parameters) {
        each([&](int i, int place) {
            if (place < 0) return;
            parameters[place] = at(i);
#pragma unroll
            for (int idx = 0; idx < LAST_SLOT; ++idx)
                parameters[(1 + idx) * PARAMETERS + place] = slot(idx, i);
        });
    }

    // Two neighbours beyond the first layer, as products take them.
    __device__ unsigned pair(int i) const { return packed<T>(numbers[i], numbers[i + 1]); }

    // 16 inputs of a hidden layer, as the operand of a product.
    template <int L>
    __device__ void load_slice(unsigned (&a)[4], int slice) const {
#pragma unroll
        for (int half = 0; half < 2; ++half) {
            const int i = own_weights_at(L) + 8 * slice + 4 * half;
            const float4 four = L == 0 && FIRST > 0 ? four_of_first(i)
                                                    : float4{numbers[i], numbers[i + 1],
                                                             numbers[i + 2], numbers[i + 3]};
            a[2 * half] = packed<T>(four.x, four.y);
            a[2 * half + 1] = packed<T>(four.z, four.w);
        }
    }

    __device__ void store_out_weights() {
        const Thread own;
#pragma unroll
        for (int tile = 0; tile < OUT_TILES; ++tile) {
#pragma unroll
            for (int h = 0; h < 2; ++h) {
                *reinterpret_cast<unsigned*>(
                    &shared.out_weights[tile][own.unit() + 8 * h][own.column()]) =
                    pair(own_weights_at(HIDDEN) + 4 * tile + 2 * h);
            }
        }
    }
};
