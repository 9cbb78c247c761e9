// The weights of one_launch_layers.cu: a block holds its part of each layer in registers, twice: by
// its units, which it multiplies by in the forward pass, and by its inputs, for the backward pass.
// Both copies are updated alike, from the same numbers in the same order, so that they stay the
// same.
#pragma once

#include "resident/rows/layer_sums.cuh"

// The optimizer state of a thread's weights in a tile of 16 by 16.
struct TileState {
    float slots[SLOT_PLACES][8];
};

// The optimizer state of all weights of a thread, tile by tile: of the first in registers, then in
// shared memory, and of those for which neither has room, in memory. Nobody but the thread looks at
// it.
struct Memory {
    LayersShared& shared;
    float4* far;
    TileState held[HELD_TILES > 0 ? HELD_TILES : 1];

    __device__ Memory(LayersShared& shared, const LayersRun& run)
        : shared(shared), far(run.far_slots + own_rank() * FAR_TILES * QUADS * THREADS) {}

    __device__ TileState load(int tile) const {
        if (tile < HELD_TILES) return held[tile];
        TileState numbers = {};
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

    __device__ void store(int tile, const TileState& numbers) {
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
        if constexpr (NEAR_TILES > 0) {
            if (nearer < NEAR_TILES)
                return part_of<NearSlots>(shared).quads[nearer][quad][threadIdx.x];
        }
        return far[((nearer - NEAR_TILES) * QUADS + quad) * THREADS + threadIdx.x];
    }
};

// The weights of a product; FIRST is the number of their first tile among a warp's.
template <class Product, int FIRST>
struct Matrix : Product {
    using Product::is_mine;
    using typename Product::Weights;
    static constexpr int NEXT = FIRST + Weights::MINE;

    Weights weights;

    // f(number, unit, feature, which of the slots, or -1 for the weight) for each that this thread
    // has.
    template <class F>
    __device__ void each_number(Memory& memory, int num_units, int num_features, F f) {
        weights.each_below(num_units, num_features,
                           [&](int unit, int feature, float& w) { f(w, unit, feature, -1); });
        if (SLOTS == 0) return;
#pragma unroll
        for (int tile = 0; tile < Weights::MINE; ++tile) {
            const int u = tile / Weights::MINE_K, j = tile % Weights::MINE_K;
            TileState numbers = memory.load(FIRST + tile);
#pragma unroll
            for (int i = 0; i < SLOTS * 8; ++i) {
                const int unit = Weights::unit_of(u, i % 8),
                          feature = Weights::feature_of(j, i % 8);
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
        for (int tile = 0; tile < Weights::MINE; ++tile) memory.store(FIRST + tile, TileState{});
    }

    // The product of all rows with the weights times `scale`, in parts.
    template <class Rows>
    __device__ void multiply(Parts* parts, const Rows& rows, float scale) const {
        if (!is_mine()) return;
        typename Product::Fragments b;
#pragma unroll
        for (int i = 0; i < Weights::MINE * 4; ++i) {
            const float* weight = &weights.tiles[0][0][0][0] + 2 * i;
            const Pair pair(weight[0] * scale, weight[1] * scale);
#pragma unroll
            for (int term = 0; term < TERMS; ++term)
                (&b[term][0][0][0][0])[i / 4 * 4 + i % 2 * 2 + i % 4 / 2] = pair.words[term];
        }
        Product::multiply(parts, rows, b);
    }

    // Takes the gradient in; unscale is what its sums are multiplied by.
    template <class Rows>
    __device__ void update(const RuleSettings& rule, const StepSettings& step, float unscale,
                           Memory& memory, const UnitRows& dy, int chunk, const Rows& x) {
        Product::each_gradient(dy, chunk, x, [&](int u, int j, const float (&sums)[2][4]) {
            const int tile = FIRST + u * Weights::MINE_K + j;
            TileState numbers = {};
            if (SLOTS > 0) numbers = memory.load(tile);
#pragma unroll
            for (int part = 0; part < 8; ++part) {
                const auto slot = [&](int i) -> float& { return numbers.slots[i][part]; };
                update_in_place(weights.tiles[u][j][part / 4][part % 4], slot,
                                sums[part / 4][part % 4], unscale, step, rule);
            }
            if (SLOTS > 0) memory.store(tile, numbers);
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
};

// Both copies of layer L's weights. Nothing goes back through the first layer.
template <int L>
struct HeldLayer {
    Matrix<Forward<L>, HeldLayer<L - 1>::NEXT> forward;
    Matrix<Backward<L>, decltype(forward)::NEXT> backward;
    static constexpr int NEXT = decltype(backward)::NEXT;
};
template <>
struct HeldLayer<0> {
    Matrix<Forward<0>, 0> forward;
    static constexpr int NEXT = decltype(forward)::NEXT;
};
// f(number in a register, its place in memory) for what this thread has of layer L's weights
// (inputs, units).
template <int L, class F>
__device__ inline void each_forward(HeldLayer<L>& held, Memory& memory, const Arrays& arrays, F f) {
    if (!decltype(held.forward)::is_mine()) return;
    held.forward.each_number(
        memory, Shape<L>::count(), WIDTHS[L], [&](float& number, int unit, int input, int slot) {
            f(number, arrays.weights<L>(slot) + static_cast<int64>(input) * WIDTHS[L + 1] +
                          Shape<L>::first() + unit);
        });
}

template <int L, class F>
__device__ inline void each_backward(HeldLayer<L>& held, Memory& memory, const Arrays& arrays,
                                     F f) {
    if (!decltype(held.backward)::is_mine()) return;
    held.backward.each_number(
        memory, Shape<L - 1>::count(), WIDTHS[L + 1],
        [&](float& number, int input, int unit, int slot) {
            f(number, arrays.weights<L>(slot) +
                          static_cast<int64>(Shape<L - 1>::first() + input) * WIDTHS[L + 1] + unit);
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

// Copies the weights of all layers to where the best are kept.
template <int L = 0>
__device__ inline void keep_weights(Stack<HeldLayer>& held, const BestArrays& best) {
    auto& forward = layer_of<L>(held).forward;
    if ((Shape<L>::IS_SHARED_OUT || own_rank() == 0) && forward.is_mine()) {
        float* weights = best.weights<L>(-1) + Shape<L>::first();
        forward.weights.each_below(
            Shape<L>::count(), WIDTHS[L], [&](int unit, int input, float weight) {
                weights[static_cast<int64>(input) * WIDTHS[L + 1] + unit] = weight;
            });
    }
    if constexpr (L + 1 < LAYERS) keep_weights<L + 1>(held, best);
}

// Blocks that have the same weights, those of the outputs, leave writing to the first.
template <int L = 0>
__device__ inline void write_weights(Stack<HeldLayer>& held, Memory& memory, const Arrays& arrays) {
    if (Shape<L>::IS_SHARED_OUT || own_rank() == 0) {
        each_forward<L>(layer_of<L>(held), memory, arrays,
                        [](float number, float* place) { *place = number; });
    }
    if constexpr (L + 1 < LAYERS) write_weights<L + 1>(held, memory, arrays);
}

// How a step updates: what clips gradients, and its settings.
struct Update {
    float clip;
    StepSettings step;
    RuleSettings of_weights, of_biases;
};

// Layer L's weights by this block's units, and its biases, take their gradients in, found with rows
// x.
template <int L, class Rows>
__device__ inline void update_forward(LayersShared& shared, const Update& update,
                                      const LayerScales& scales, Memory& memory, HeldLayer<L>& held,
                                      const Rows& x) {
    const UnitRows dz = gradients_of<L>(shared);
    const int chunk = Shape<L>::first_gradient() / CHUNK_UNITS;
    Biases<L>& biases = layer_of<L>(shared.layers).biases;
    held.forward.update(update.of_weights, update.step, scales.of_weights * update.clip, memory, dz,
                        chunk, x);
    Forward<L>::each_bias_gradient(dz, chunk, [&](int unit, float sum) {
        biases.update(unit, sum, scales.of_biases * update.clip, update.step, update.of_biases);
    });
}

// All of layer L's take their gradients of a pass in.
template <int L>
__device__ inline void update_layer(LayersShared& shared, const LayersRun& run,
                                    const Update& update, int pass, Memory& memory,
                                    HeldLayer<L>& held) {
    const auto x = inputs_of<L>(shared, pass);
    const LayerScales scales = scales_of<L>(shared, run);
    update_forward<L>(shared, update, scales, memory, held, x);
    if constexpr (L > 0)
        held.backward.update(update.of_weights, update.step, scales.of_weights * update.clip,
                             memory, x, Shape<L - 1>::first() / CHUNK_UNITS,
                             gradients_of<L>(shared));
}

template <int L = LAYERS - 1>
__device__ inline void update_layers(LayersShared& shared, const LayersRun& run,
                                     const Update& update, int pass, Memory& memory,
                                     Stack<HeldLayer>& held) {
    update_layer(shared, run, update, pass, memory, layer_of<L>(held));
    if constexpr (L > 0) update_layers<L - 1>(shared, run, update, pass, memory, held);
}

// The sum of the squares of what this thread finds of all gradients, each by one block.
template <int L = 0>
__device__ inline float sum_squares(LayersShared& shared, const LayersRun& run, const Now& now) {
    float squares = 0;
    if (Shape<L>::IS_SHARED_OUT || own_rank() == 0) {
        using Weights = typename Forward<L>::Weights;
        const UnitRows dz = gradients_of<L>(shared);
        const int chunk = Shape<L>::first_gradient() / CHUNK_UNITS, count = Shape<L>::count();
        const LayerScales scales = of_gradients<L>(shared, run);
        const auto add = [&](int unit, float gradient) {
            if (unit < count) squares += gradient * gradient;
        };
        Forward<L>::each_gradient(dz, chunk, inputs_of<L>(shared, now.pass.index()),
                                  [&](int u, int, const float (&sums)[2][4]) {
#pragma unroll
                                      for (int part = 0; part < 8; ++part)
                                          add(Weights::unit_of(u, part),
                                              sums[part / 4][part % 4] * scales.of_weights);
                                  });
        Forward<L>::each_bias_gradient(
            dz, chunk, [&](int unit, float sum) { add(unit, sum * scales.of_biases); });
    }
    if constexpr (!Shape<L>::IS_LAST) squares += sum_squares<L + 1>(shared, run, now);
    return squares;
}

// The sum of the squares of this thread's weights, each of one block.
template <int L = 0>
__device__ inline float sum_squared_weights(const Stack<HeldLayer>& held) {
    const bool has_part = Shape<L>::IS_SHARED_OUT || own_rank() == 0;
    float squares = has_part ? layer_of<L>(held).forward.sum_squared_weights(Shape<L>::count()) : 0;
    if constexpr (!Shape<L>::IS_LAST) squares += sum_squared_weights<L + 1>(held);
    return squares;
}

// All weights of a block, which no other block updates.
template <int NUM_TILES>
struct HeldNetwork {
    static_assert(HeldLayer<LAYERS - 1>::NEXT == NUM_TILES, "each tile has its place");
    Stack<HeldLayer> layers;
    Memory memory;

    __device__ HeldNetwork(LayersShared& shared, const LayersRun& run) : memory(shared, run) {}

    __device__ void read(const Arrays& arrays) { read_weights(layers, memory, arrays); }
    __device__ void write(const Arrays& arrays) { write_weights(layers, memory, arrays); }
    __device__ void keep(const BestArrays& best) { keep_weights(layers, best); }
    __device__ void begin(int) {}

    template <int L, class Rows>
    __device__ void multiply_forward(LayersShared& shared, const LayersRun& run,
                                     const Rows& rows) const {
        const float scale = scales_of<L>(shared, run).weights;
        layer_of<L>(layers).forward.multiply(shared.sums, rows, scale);
    }
    template <int L>
    __device__ void multiply_backward(LayersShared& shared, const LayersRun& run,
                                      const UnitRows& rows) const {
        const float scale = scales_of<L>(shared, run).weights;
        layer_of<L>(layers).backward.multiply(shared.sums, rows, scale);
    }

    // Layer L's gradients are there: where their norm need not be known, they are taken in.
    template <int L>
    __device__ void take(LayersShared& shared, const LayersRun& run, const Now& now) {
        if (CLIPS || (L == 1 && now.leads_on())) return;
        const Update update{1, now.settings, now.of_weights, run.rule};
        update_layer(shared, run, update, now.pass.index(), memory, layer_of<L>(layers));
    }

    // All gradients are there.
    __device__ void finish(LayersShared& shared, const LayersRun& run, const Now& now) {
        if (!CLIPS) return;
        const float squares = sum_of_cluster(shared, now.step, sum_squares(shared, run, now));
        const Update update{clip_factor(run, squares), now.settings, now.of_weights, run.rule};
        update_layers(shared, run, update, now.pass.index(), memory, layers);
    }

    // The second layer takes in what the step before has left to this one.
    template <int SECOND = 1>
    __device__ void catch_up(LayersShared& shared, const LayersRun& run, const Now& now) {
        const Update update{1, now.last_settings, run.rule, run.rule};
        if constexpr (SECOND < LAYERS)
            update_layer(shared, run, update, now.pass.index() - 1, memory,
                         layer_of<SECOND>(layers));
    }

    // The sum of the squares of this thread's weights.
    __device__ float sum_squared() const { return sum_squared_weights(layers); }
};
