// Replicas of one_launch.cu: clusters that have the same weights, and share out the rows of each batch. What each has
// found of the gradient they add up through memory, thread by thread: a thread sends to those of its number in the
// blocks of its rank, and to no others.
//
// Of the weights that x meets, a replica updates a part, and sends the others what it has become. The output layer and
// the biases are updated by all alike, from the same sums in the same order.
//
// Numbers are on their way without their last bit. In its place is one that changes from step to step, so that who
// looks for a number sees whether it has come: no barrier, no fence, and no bytes beside the numbers.
#pragma once

#include "trained_block.cuh"

#if REPLICAS > 1
constexpr unsigned LAST_BIT = 1;

// The last bit of numbers that a place takes in this turn of its. Before the first, 0, it has zeros.
__device__ inline unsigned mark_of(int turn) { return (turn + 1) & LAST_BIT; }

// What arrives of a number.
__device__ inline float without_last_bit(unsigned word) { return __uint_as_float(word & ~LAST_BIT); }

// Sends quads of numbers to places that lie `stride` apart.
template <int QUADS>
__device__ inline void send(uint4* place, int stride, int turn, const float (&numbers)[QUADS][4]) {
#pragma unroll
    for (int i = 0; i < QUADS; ++i) {
        unsigned words[4];
#pragma unroll
        for (int part = 0; part < 4; ++part)
            words[part] = (__float_as_uint(numbers[i][part]) & ~LAST_BIT) | mark_of(turn);
        store_relaxed(place + i * stride, uint4{words[0], words[1], words[2], words[3]});
    }
}

// Not 0 if a number of a quad has not come.
__device__ inline unsigned missing_marks(const uint4& words, int turn) {
    const unsigned mark = mark_of(turn);
    return ((words.x ^ mark) | (words.y ^ mark) | (words.z ^ mark) | (words.w ^ mark)) & LAST_BIT;
}

// Waits for the quads at place(i) for all i below QUADS.
template <int QUADS, class F>
__device__ inline void receive(float (&numbers)[QUADS][4], int turn, F place) {
    uint4 words[QUADS];
    for (Patience patience;; patience.wait()) {
        unsigned missing = 0;
#pragma unroll
        for (int i = 0; i < QUADS; ++i) words[i] = load_relaxed(place(i));
#pragma unroll
        for (int i = 0; i < QUADS; ++i) missing |= missing_marks(words[i], turn);
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

// Adds up what all replicas have sent, in their order; quad i of a replica is at place(replica, i). As many quads at
// once as a thread has registers for.
template <int AT_ONCE, int QUADS, class F>
__device__ inline void receive_sums(float (&sums)[QUADS][4], int turn, F place) {
#pragma unroll
    for (int first = 0; first < QUADS; first += AT_ONCE) {
        float numbers[REPLICAS * AT_ONCE][4];
        receive(numbers, turn, [&](int i) { return place(i / AT_ONCE, first + i % AT_ONCE); });
#pragma unroll
        for (int i = 0; i < AT_ONCE * 4; ++i) {
            float& sum = sums[first + i / 4][i % 4];
            sum = 0;
#pragma unroll
            for (int replica = 0; replica < REPLICAS; ++replica)
                sum += numbers[replica * AT_ONCE + i / 4][i % 4];
        }
    }
}

constexpr int WEIGHT_THREADS = 32 * WEIGHT_WARPS;
// What the output warps add up, in quads of a lane: three for each tile of the output layer, one for those of biases.
constexpr int OUTPUT_QUADS = HIDDEN ? UNIT_TILES * (3 * OUT_TILES + 1) : OUT_TILES;

// Where blocks of the same rank leave numbers. None is overwritten that somebody has not read: who sends the next has
// seen what others made of it. Of the outputs there are two, as a replica may be a step ahead with them.
struct Exchange {
    uint4 gradients[REPLICAS][Weights::MINE * 2][WEIGHT_THREADS];
    uint4 weights[Weights::MINE * 2][WEIGHT_THREADS];
    uint4 outputs[2][REPLICAS][OUTPUT_QUADS][32];
};
static_assert(sizeof(Exchange) == EXCHANGE_BYTES, "the launcher gives as much to each rank");

// The tiles of a thread's weights that its replica updates: every REPLICAS-th.
struct OwnWeights {
    static constexpr int COUNT = (Weights::MINE + REPLICAS - 1) / REPLICAS;
    float weights[COUNT][8], velocities[COUNT][8];

    // f(i, tile) for each.
    template <class F>
    __device__ static void each(F f) {
#pragma unroll
        for (int i = 0; i < COUNT; ++i) {
            const int tile = i * REPLICAS + own_replica();
            if (tile < Weights::MINE) f(i, tile);
        }
    }

    // f(number, its place in the whole array) for each of `held` that is there.
    template <class F>
    __device__ static void each_number(float (&held)[COUNT][8], F f) {
        const Part units = own_units(), features = own_features();
        each([&](int i, int tile) {
#pragma unroll
            for (int part = 0; part < 8; ++part) {
                const int unit = Weights::unit_of(tile / Weights::MINE_K, part);
                const int feature = Weights::feature_of(tile % Weights::MINE_K, part);
                if (unit < units.count && feature < features.count) {
                    f(held[i][part],
                      static_cast<int64>(features.first + feature) * ALL_UNITS + units.first + unit);
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
    __device__ static void send_gradient(const Run& run, int step, int tile, const float (&gradient)[2][4]) {
        send(&run.exchanges[own_rank()].gradients[own_replica()][2 * tile][threadIdx.x], WEIGHT_THREADS, step,
             gradient);
    }

    // Updates this replica's tiles with the gradients of all, and takes all tiles in.
    __device__ void update(const Run& run, int step, float rate, Weights::Fragments& b) {
        Exchange& exchange = run.exchanges[own_rank()];
        each([&](int i, int tile) {
            float gradient[2][4], updated[2][4];
            receive_sums<2>(gradient, step, [&](int replica, int quad) {
                return &exchange.gradients[replica][2 * tile + quad][threadIdx.x];
            });
#pragma unroll
            for (int part = 0; part < 8; ++part) {
                run.update(weights[i][part], velocities[i][part], gradient[part / 4][part % 4], rate);
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
#endif
