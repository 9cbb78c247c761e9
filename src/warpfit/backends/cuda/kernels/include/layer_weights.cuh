// The weights of one_launch_layers.cu: a block holds its part of each layer in registers, twice: by its units,
// which it multiplies by on the way forward, and by its inputs, for the way back. Both copies are updated
// alike, from the same numbers in the same order, so that they stay the same.
#pragma once

#include "layer_shapes.cuh"

// How many groups of warps share out so many tiles along the units: what leaves each warp the fewest, and of
// those the most groups, as each adds up what it finds over the others.
__device__ constexpr int groups_along_units(int feature_tiles, int unit_tiles) {
    int best = 1, least = (feature_tiles + WARPS - 1) / WARPS * unit_tiles;
    for (int groups = 2; groups <= WARPS; groups *= 2) {
        if (unit_tiles % groups || WARPS % groups) continue;
        const int along_features = WARPS / groups;
        const int tiles = (feature_tiles + along_features - 1) / along_features * (unit_tiles / groups);
        if (tiles <= least) {
            best = groups;
            least = tiles;
        }
    }
    return best;
}

__device__ constexpr int smaller(int a, int b) { return a < b ? a : b; }

// What the optimizer remembers of a thread's weights in a tile of 16 by 16.
struct Remembered {
    float slots[SLOT_PLACES][8];
};

// What it remembers of all weights of a thread, tile by tile: of the first in registers, then in shared memory,
// and of those for which neither has room, in memory. Nobody but the thread looks at it.
struct Memory {
    Shared& shared;
    float4* far;
    Remembered held[HELD_TILES > 0 ? HELD_TILES : 1];

    __device__ Memory(Shared& shared, const Run& run)
        : shared(shared), far(run.far_slots + own_rank() * FAR_TILES * QUADS * THREADS) {}

    __device__ Remembered load(int tile) const {
        if (tile < HELD_TILES) return held[tile];
        Remembered numbers = {};
#pragma unroll
        for (int i = 0; i < QUADS; ++i) {
            const float4 quad = place(tile, i);
            float* to = &numbers.slots[0][0] + 4 * i;
            to[0] = quad.x;
            to[1] = quad.y;
            to[2] = quad.z;
            to[3] = quad.w;
        }
        return numbers;
    }

    __device__ void store(int tile, const Remembered& numbers) {
        if (tile < HELD_TILES) {
            held[tile] = numbers;
            return;
        }
#pragma unroll
        for (int i = 0; i < QUADS; ++i) {
            const float* from = &numbers.slots[0][0] + 4 * i;
            place(tile, i) = float4{from[0], from[1], from[2], from[3]};
        }
    }

  private:
    static constexpr int QUADS = 2 * SLOTS, THREADS = 32 * WARPS;

    __device__ float4& place(int tile, int quad) const {
        const int nearer = tile - HELD_TILES;
#if NEAR_TILES > 0
        if (nearer < NEAR_TILES) return shared.near_slots[nearer][quad][threadIdx.x];
#endif
        return far[((nearer - NEAR_TILES) * QUADS + quad) * THREADS + threadIdx.x];
    }
};

// Weights from FEATURES to UNITS, multiples of 16; FIRST is the number of their first tile among a warp's.
template <int FEATURES, int UNITS, int FIRST>
struct Matrix {
    static constexpr int UNIT_TILES = UNITS / 16, FEATURE_TILES = FEATURES / 16;
    static constexpr int GROUPS_U = groups_along_units(FEATURE_TILES, UNIT_TILES);
    static constexpr int GROUPS_K = smaller(WARPS / GROUPS_U, FEATURE_TILES);
    using Weights = HeldWeights<T, FEATURES, UNITS, GROUPS_K, GROUPS_U>;
    // Tiles of 16 rows that are multiplied at once.
    static constexpr int AT_ONCE = ROW_TILES % 4 == 0 && Weights::MINE_U == 1 ? 4
                                   : ROW_TILES % 2 == 0                       ? 2
                                                                              : 1;
    // Parts of the product that lie in shared memory: see `sums_of`.
    static constexpr int SUMS_NEEDED = GROUPS_K * ROW_TILES * UNIT_TILES * 2;
    static_assert(SUMS_NEEDED <= SUMS, "the launcher gives room for all sums");

    // Whether there are registers for all rows of a warp's units at once.
    static constexpr bool STAYS = ROW_TILES * Weights::MINE_U <= 4;

    static constexpr int NEXT = FIRST + Weights::MINE;

    Weights weights;

    // Whether this warp has a part.
    __device__ static bool is_mine() { return static_cast<int>(threadIdx.x) / 32 < GROUPS_K * GROUPS_U; }

    // The part of a product that group k finds, of row tile r and half a tile of units.
    __device__ static int place_of_sums(int k, int r, int half_tile) {
        return (k * ROW_TILES + r) * UNIT_TILES * 2 + half_tile;
    }

    // f(number, unit, feature, which of the slots, or -1 for the weight) for each that this thread has.
    template <class F>
    __device__ void each_number(Memory& memory, int num_units, int num_features, F f) {
        weights.each_below(num_units, num_features,
                           [&](int unit, int feature, float& w) { f(w, unit, feature, -1); });
        if (SLOTS == 0) return;
#pragma unroll
        for (int tile = 0; tile < Weights::MINE; ++tile) {
            const int u = tile / Weights::MINE_K, j = tile % Weights::MINE_K;
            Remembered numbers = memory.load(FIRST + tile);
#pragma unroll
            for (int i = 0; i < SLOTS * 8; ++i) {
                const int unit = Weights::unit_of(u, i % 8), feature = Weights::feature_of(j, i % 8);
                if (unit < num_units && feature < num_features)
                    f(numbers.slots[i / 8][i % 8], unit, feature, i / 8);
            }
            memory.store(FIRST + tile, numbers);
        }
    }

    __device__ void clear(Memory& memory) {
        weights.each([](float& w) { w = 0; });
        if (SLOTS == 0) return;
#pragma unroll
        for (int tile = 0; tile < Weights::MINE; ++tile) memory.store(FIRST + tile, Remembered{});
    }

    // The product of all rows with the weights, in parts, to shared memory.
    template <class Rows>
    __device__ void multiply(Shared& shared, const Rows& rows) const {
        if (!is_mine()) return;
        typename Weights::Fragments b;
        weights.round(b, weights, [](float w, float) { return w; });
#pragma unroll 1
        for (int first = 0; first < ROW_TILES; first += AT_ONCE) {
            typename Weights::Sums z[AT_ONCE];
            Weights::multiply(b, z, [&](unsigned (&a)[4], int r, int tile) {
                load_a(a, tile_of(rows, first + r, 2 * tile), Rows::STRIDE, Rows::NEXT_CHUNK);
            });
#pragma unroll
            for (int i = 0; i < AT_ONCE * Weights::MINE_U * 2; ++i) {
                const float* sums = z[i / (2 * Weights::MINE_U)][i / 2 % Weights::MINE_U][i % 2];
                const int half_tile = Weights::first_unit_tile() * 2 + i % (2 * Weights::MINE_U);
                float2(&place)[2][32] =
                    shared
                        .sums[place_of_sums(Weights::warp_k(), first + i / (2 * Weights::MINE_U), half_tile)];
                place[0][threadIdx.x % 32] = float2{sums[0], sums[1]};
                place[1][threadIdx.x % 32] = float2{sums[2], sums[3]};
            }
        }
    }

    // The whole product of a piece of 8 rows and 8 units, as lanes have it.
    __device__ static float2 sums_of(const Shared& shared, int eighth, int chunk) {
        const int lane = threadIdx.x % 32;
        float2 sum = shared.sums[place_of_sums(0, eighth / 2, chunk)][eighth % 2][lane];
#pragma unroll
        for (int k = 1; k < GROUPS_K; ++k) {
            const float2 part = shared.sums[place_of_sums(k, eighth / 2, chunk)][eighth % 2][lane];
            sum = float2{sum.x + part.x, sum.y + part.y};
        }
        return sum;
    }

    // f(u, j, sums) for the gradient of each tile, which is dyᵀ x: dy has the units from a chunk on, x the
    // features.
    template <class Rows, class F>
    __device__ static void each_gradient(const UnitRows& dy, int chunk, const Rows& x, F f) {
        if (!is_mine()) return;
        unsigned a[STAYS ? ROW_TILES : 1][Weights::MINE_U][4];
        if (STAYS) {
#pragma unroll
            for (int r = 0; r < ROW_TILES; ++r) load_units(a[STAYS ? r : 0], dy, chunk, r);
        }
#pragma unroll
        for (int j = 0; j < Weights::MINE_K; ++j) {
            if (!Weights::has_tile(j)) break;
            float sums[Weights::MINE_U][2][4] = {};
#pragma unroll
            for (int r = 0; r < ROW_TILES; ++r) {
                unsigned low[2], high[2];
                load_b_pair_transposed(low, high, tile_of(x, r, 2 * Weights::feature_tile(j)), Rows::STRIDE,
                                       Rows::NEXT_CHUNK);
                if (!STAYS) load_units(a[0], dy, chunk, r);
#pragma unroll
                for (int u = 0; u < Weights::MINE_U; ++u) {
                    TensorCore<T>::multiply(sums[u][0], a[STAYS ? r : 0][u], low);
                    TensorCore<T>::multiply(sums[u][1], a[STAYS ? r : 0][u], high);
                }
            }
#pragma unroll
            for (int u = 0; u < Weights::MINE_U; ++u) f(u, j, sums[u]);
        }
    }

    // This warp's units, of those from a chunk on, of tile r of dy.
    __device__ static void load_units(unsigned (&a)[Weights::MINE_U][4], const UnitRows& dy, int chunk,
                                      int r) {
#pragma unroll
        for (int u = 0; u < Weights::MINE_U; ++u) {
            load_a_transposed(a[u], tile_of(dy, r, chunk + 2 * (Weights::first_unit_tile() + u)),
                              UnitRows::STRIDE, UnitRows::NEXT_CHUNK);
        }
    }

    // f(unit, sum) for the sums of dy over the rows, which are the gradients of biases. It falls to the warps
    // that have the fewest tiles.
    template <class F>
    __device__ static void each_bias_gradient(const UnitRows& dy, int chunk, F f) {
        if (!is_mine() || Weights::warp_k() < GROUPS_K - 1) return;
        const unsigned one = packed<T>(1.0f, 1.0f), ones[2] = {one, one};
        const int lane = threadIdx.x % 32;
        float sums[Weights::MINE_U][4] = {};  // of units l / 4 and l / 4 + 8, in all columns
#pragma unroll
        for (int r = 0; r < ROW_TILES; ++r) {
            unsigned a[Weights::MINE_U][4];
            load_units(a, dy, chunk, r);
#pragma unroll
            for (int u = 0; u < Weights::MINE_U; ++u) TensorCore<T>::multiply(sums[u], a[u], ones);
        }
        if (lane % 4) return;
#pragma unroll
        for (int i = 0; i < Weights::MINE_U * 2; ++i) {
            f((Weights::first_unit_tile() + i / 2) * 16 + lane / 4 + i % 2 * 8, sums[i / 2][i % 2 * 2]);
        }
    }

    // Takes the gradient in; unscale is what its sums are multiplied by.
    template <class Rows>
    __device__ void update(const RuleSettings& rule, const StepSettings& step, float unscale, Memory& memory,
                           const UnitRows& dy, int chunk, const Rows& x) {
        each_gradient(dy, chunk, x, [&](int u, int j, const float (&sums)[2][4]) {
            const int tile = FIRST + u * Weights::MINE_K + j;
            Remembered numbers = {};
            if (SLOTS > 0) numbers = memory.load(tile);
#pragma unroll
            for (int part = 0; part < 8; ++part) {
                float remembered[SLOT_PLACES];
#pragma unroll
                for (int i = 0; i < SLOTS; ++i) remembered[i] = numbers.slots[i][part];
                update_parameter(weights.tiles[u][j][part / 4][part % 4], remembered,
                                 sums[part / 4][part % 4], unscale, step, rule);
#pragma unroll
                for (int i = 0; i < SLOTS; ++i) numbers.slots[i][part] = remembered[i];
            }
            if (SLOTS > 0) memory.store(tile, numbers);
        });
    }

    template <class OfBiases>
    __device__ static void update_biases(const RuleSettings& rule, const StepSettings& step, float unscale,
                                         const UnitRows& dy, int chunk, OfBiases& biases) {
        each_bias_gradient(dy, chunk, [&](int unit, float sum) {
            float remembered[SLOT_PLACES];
#pragma unroll
            for (int i = 0; i < SLOTS; ++i) remembered[i] = biases.slots[i][unit];
            update_parameter(biases.values[unit], remembered, sum, unscale, step, rule);
#pragma unroll
            for (int i = 0; i < SLOTS; ++i) biases.slots[i][unit] = remembered[i];
        });
    }

    // The sum of the squares of this thread's weights of `count` units.
    __device__ float sum_squared_weights(int count) const {
        float squares = 0;
        if (!is_mine()) return squares;
#pragma unroll
        for (int i = 0; i < Weights::MINE * 8; ++i) {
            const int tile = i / 8, u = tile / Weights::MINE_K, j = tile % Weights::MINE_K;
            const float w = weights.tiles[u][j][i % 8 / 4][i % 4];
            if (Weights::unit_of(u, i % 8) < count) squares += w * w;
        }
        return squares;
    }

    // The sum of the squares of what this thread finds of the gradients of `count` units and their biases.
    template <class Rows>
    __device__ static float sum_squares(const UnitRows& dy, int chunk, const Rows& x, int count) {
        float squares = 0;
        each_gradient(dy, chunk, x, [&](int u, int, const float (&sums)[2][4]) {
#pragma unroll
            for (int part = 0; part < 8; ++part) {
                const float sum = sums[part / 4][part % 4];
                if (Weights::unit_of(u, part) < count) squares += sum * sum;
            }
        });
        each_bias_gradient(dy, chunk, [&](int unit, float sum) { squares += unit < count ? sum * sum : 0; });
        return squares;
    }
};

// Both copies of layer L's weights. Nothing goes back through the first layer.
template <int L>
struct HeldLayer {
    Matrix<Shape<L - 1>::WIDTH, Shape<L>::BLOCK_WIDTH, HeldLayer<L - 1>::NEXT> forward;
    Matrix<Shape<L>::WIDTH, Shape<L - 1>::BLOCK_WIDTH, decltype(forward)::NEXT> backward;
    static constexpr int NEXT = decltype(backward)::NEXT;
};
template <>
struct HeldLayer<0> {
    Matrix<X_WIDTH, Shape<0>::BLOCK_WIDTH, 0> forward;
    static constexpr int NEXT = decltype(forward)::NEXT;
};
static_assert(HeldLayer<LAYERS - 1>::NEXT == HELD_TILES + NEAR_TILES + FAR_TILES, "each tile has its place");

// A parameter's array in memory, and those of what the optimizer remembers of it.
struct Arrays {
    float* const* of_layers;

    template <int L>
    __device__ float* weights(int slot) const {
        return of_layers[2 * L * (1 + SLOTS) + 1 + slot];
    }
    template <int L>
    __device__ float* biases(int slot) const {
        return of_layers[(2 * L + 1) * (1 + SLOTS) + 1 + slot];
    }
};

// f(number in a register, its place in memory) for what this thread has of layer L's weights (inputs, units).
template <int L, class F>
__device__ inline void each_forward(HeldLayer<L>& held, Memory& memory, const Arrays& arrays, F f) {
    if (!decltype(held.forward)::is_mine()) return;
    held.forward.each_number(
        memory, Shape<L>::count(), SIZES[L], [&](float& number, int unit, int input, int slot) {
            f(number,
              arrays.weights<L>(slot) + static_cast<int64>(input) * SIZES[L + 1] + Shape<L>::first() + unit);
        });
}

template <int L, class F>
__device__ inline void each_backward(HeldLayer<L>& held, Memory& memory, const Arrays& arrays, F f) {
    if (!decltype(held.backward)::is_mine()) return;
    held.backward.each_number(
        memory, Shape<L - 1>::count(), SIZES[L + 1], [&](float& number, int input, int unit, int slot) {
            f(number, arrays.weights<L>(slot) +
                          static_cast<int64>(Shape<L - 1>::first() + input) * SIZES[L + 1] + unit);
        });
}

template <int L = 0>
__device__ inline void read_weights(Stack<HeldLayer>& held, Memory& memory, const Arrays& arrays) {
    HeldLayer<L>& own = layer_of<L>(held);
    const auto read = [](float& number, const float* place) { number = *place; };
    own.forward.clear(memory);
    each_forward<L>(own, memory, arrays, read);
    if constexpr (L > 0) {
        own.backward.clear(memory);
        each_backward<L>(own, memory, arrays, read);
    }
    if constexpr (L + 1 < LAYERS) read_weights<L + 1>(held, memory, arrays);
}

#if STOPS
// Copies the weights and biases of all layers to where their best are kept.
template <int L = 0>
__device__ inline void keep_parameters(Shared& shared, Stack<HeldLayer>& held, float* const* places) {
    auto& forward = layer_of<L>(held).forward;
    if (Shape<L>::IS_SHARED_OUT || own_rank() == 0) {
        float *weights = places[2 * L] + Shape<L>::first(), *biases = places[2 * L + 1] + Shape<L>::first();
        if (forward.is_mine()) {
            forward.weights.each_below(Shape<L>::count(), SIZES[L], [&](int unit, int input, float weight) {
                weights[static_cast<int64>(input) * SIZES[L + 1] + unit] = weight;
            });
        }
        for (int i = threadIdx.x; i < Shape<L>::count(); i += 32 * WARPS)
            biases[i] = layer_of<L>(shared.layers).biases.values[i];
    }
    if constexpr (L + 1 < LAYERS) keep_parameters<L + 1>(shared, held, places);
}
#endif

// Blocks that have the same weights, those of the outputs, leave writing to the first.
template <int L = 0>
__device__ inline void write_weights(Stack<HeldLayer>& held, Memory& memory, const Arrays& arrays) {
    if (Shape<L>::IS_SHARED_OUT || own_rank() == 0) {
        each_forward<L>(layer_of<L>(held), memory, arrays,
                        [](float number, float* place) { *place = number; });
    }
    if constexpr (L + 1 < LAYERS) write_weights<L + 1>(held, memory, arrays);
}
