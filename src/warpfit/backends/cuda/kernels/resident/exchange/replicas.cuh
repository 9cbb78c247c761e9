// Replicas of one_launch.cu: clusters that have the same weights, and partition the rows of each
// batch. What each has found of the gradient they add up through memory, thread by thread: a thread
// sends to those of its number in the blocks of its rank, and to no others.
//
// Of the weights that x meets, a replica updates a part, and sends the others what it has become.
// The output layer and the biases are updated by all alike, from the same sums in the same order.
#pragma once

#include "resident/exchange/marked_numbers.cuh"
#include "resident/layout/trained_block.cuh"

constexpr int WEIGHT_THREADS = 32 * WEIGHT_WARPS;
// What the output warps add up, in quads of a lane: three for each tile of the output layer, one
// for those of biases.
constexpr int OUTPUT_QUADS = HIDDEN ? UNIT_TILES * (3 * OUT_TILES + 1) : OUT_TILES;

// Where blocks of the same rank leave numbers. None is overwritten before it is read: who sends the
// next has seen what others made of it. Of the outputs there are two, as a replica may be a step
// ahead with them.
struct OneLaunchExchange {
    uint4 gradients[REPLICAS][Weights::MINE * 2][WEIGHT_THREADS];
    uint4 weights[Weights::MINE * 2][WEIGHT_THREADS];
    uint4 outputs[2][REPLICAS][OUTPUT_QUADS][32];
};
static_assert(REPLICAS == 1 || sizeof(OneLaunchExchange) == EXCHANGE_BYTES,
              "the launcher gives as much to each rank");

// The tiles of a thread's weights that its replica updates: every SHARERS-th.
template <int SHARERS>
struct OwnWeights {
    static constexpr int COUNT = (Weights::MINE + SHARERS - 1) / SHARERS;
    float weights[COUNT][8], velocities[COUNT][8];

    // f(i, tile) for each.
    template <class F>
    __device__ static void each(F f) {
#pragma unroll
        for (int i = 0; i < COUNT; ++i) {
            const int tile = i * SHARERS + own_replica();
            if (tile < Weights::MINE) f(i, tile);
        }
    }

    // f(number, its place in the whole array) for each of `held` that is there.
    template <class F>
    __device__ static void each_number(float (&held)[COUNT][8], F f) {
        const Part units = held_units(), features = held_features();
        each([&](int i, int tile) {
#pragma unroll
            for (int part = 0; part < 8; ++part) {
                const int unit = Weights::unit_of(tile / Weights::MINE_K, part);
                const int feature = Weights::feature_of(tile % Weights::MINE_K, part);
                if (unit < units.count && feature < features.count) {
                    f(held[i][part], static_cast<int64>(features.first + feature) * ALL_UNITS +
                                         units.first + unit);
                }
            }
        });
    }

    __device__ static void read(float (&held)[COUNT][8], const float* from, float scale) {
#pragma unroll
        for (int i = 0; i < COUNT * 8; ++i) held[i / 8][i % 8] = 0;
        each_number(held, [&](float& number, int64 place) { number = from[place] * scale; });
    }

    __device__ static void write(float (&held)[COUNT][8], float* to, float unscale) {
        each_number(held, [&](float number, int64 place) { to[place] = number * unscale; });
    }

    // Sends the gradient of a tile to the replica that updates it.
    __device__ static void send_gradient(const OneLaunchRun& run, int step, int tile,
                                         const float (&gradient)[2][4]) {
        send(&run.exchanges[own_rank()].gradients[own_replica()][2 * tile][threadIdx.x],
             WEIGHT_THREADS, step, gradient);
    }

    // Updates this replica's tiles with the gradients of all, and takes all tiles in.
    __device__ void update(const OneLaunchRun& run, int step, float rate, Weights::Fragments& b) {
        OneLaunchExchange& exchange = run.exchanges[own_rank()];
        each([&](int i, int tile) {
            float gradient[2][4], updated[2][4];
            receive_sums<SHARERS, 2>(gradient, step, [&](int replica, int quad) {
                return &exchange.gradients[replica][2 * tile + quad][threadIdx.x];
            });
#pragma unroll
            for (int part = 0; part < 8; ++part) {
                run.update(
                    weights[i][part], [&](int) -> float& { return velocities[i][part]; },
                    gradient[part / 4][part % 4], rate);
                updated[part / 4][part % 4] = weights[i][part] * run.unscale;
            }
            send(&exchange.weights[2 * tile][threadIdx.x], WEIGHT_THREADS, step, updated);
        });
        float all[Weights::MINE * 2][4];
        receive(all, step, [&](int quad) { return &exchange.weights[quad][threadIdx.x]; });
        Weights::set_fragments(b, [&](int tile, int pair) {
            const float* numbers = &all[2 * tile + pair / 2][pair % 2 * 2];
            return packed<T>(numbers[0], numbers[1]);
        });
    }
};
