// A block's rows through the hidden layers and back: y = z + (f(z) - z) a, a for each unit, then
// dropout.
//
// A warp has 16 units of each layer. What the backward pass needs of these in each row lies in
// shared memory, each thread's apart, but for whether dropout keeps the unit: a bit. Rows that no
// batch has have gradients of 0.
#pragma once

#include "tabular/table_inputs.cuh"

constexpr int BITS = 4 * ROW_TILES;  // that a lane has of a layer's units and rows in a round
constexpr int ALL_BITS = HIDDEN_LAYERS * UNIT_ROUNDS * BITS;
using Masks = choice<ALL_BITS <= 32, uint32, uint64>;
static_assert(ALL_BITS <= 64, "they fit two words");

// Which of a lane's units of a layer dropout keeps: a lane draws for four units of a row, and gets
// its own from others.
__device__ inline unsigned draw(const RowBlock& rows, int layer, int round) {
    unsigned kept = 0;
#pragma unroll
    for (int n = 0; n < ROW_TILES; ++n) {
        const uint32 row = rows.first_row() + n * 8 + own_lane() / 4;
        const uint32 group = (round * WARPS + own_warp()) * 4 + own_lane() % 4;
        const Words words = philox({{rows.step, static_cast<uint32>(layer), row, group}},
                                   rows.network.key[0], rows.network.key[1]);
        unsigned of_unit = 0;  // of a warp's units those that have this lane's place in their four
#pragma unroll
        for (int i = 0; i < 4; ++i) {
            const unsigned votes =
                __ballot_sync(FULL_WARP, words.word[i] >= rows.now.dropped_below);
            if (own_lane() / 4 % 4 == i) of_unit = votes;
        }
#pragma unroll
        for (int part = 0; part < 4; ++part) {
            const int lane = row_of(0, part) * 4 + unit_of(part) / 4;
            kept |= (of_unit >> lane & 1) << (n * 4 + part);
        }
    }
    return kept;
}

// Those of all layers; all of them in validation.
__device__ inline Masks draw_all(const RowBlock& rows) {
    if (!rows.trains) return ~Masks{0};
    Masks kept = 0;
#pragma unroll 1
    for (int i = 0; i < HIDDEN_LAYERS * UNIT_ROUNDS; ++i)
        kept |= static_cast<Masks>(draw(rows, i / UNIT_ROUNDS, i % UNIT_ROUNDS)) << i * BITS;
    return kept;
}

// The place of a lane's unit among those of all hidden layers, and whether it is there.
__device__ inline int own_unit(int part, int round) {
    return (round * WARPS + own_warp()) * 16 + unit_of(part);
}
__device__ inline bool has_unit(int part, int round) {
    return HIDDEN == HIDDEN_TILES * 16 || own_unit(part, round) < HIDDEN;
}

// What a lane has of a vector that all hidden layers have.
struct OfUnits {
    float values[2];

    __device__ OfUnits(const TableShared& shared, int vector, int layer, int round) {
#pragma unroll
        for (int h = 0; h < 2; ++h) {
            const float* first = shared.vector(vector) + layer * HIDDEN;
            values[h] = has_unit(2 * h, round) ? first[own_unit(2 * h, round)] : 0.0f;
        }
    }
};

// f(z) and f'(z), as near as 16 bits need them: IEEE quotients and expm1 would take some hundred
// cycles of each layer.
template <Activation KIND>
__device__ inline Activated<float> activated_near(float z) {
    constexpr float LOG2_E = 1.44269504088896340736f;
    if constexpr (KIND == Activation::selu) {
        constexpr float SCALE = SELU_SCALE, LEAST = SELU_SCALE * SELU_ALPHA;
        const float below = LEAST * power_of_2(z * LOG2_E);
        return {z > 0 ? SCALE * z : below - LEAST, z > 0 ? SCALE : below};
    } else if constexpr (KIND == Activation::mish) {
        const float w = power_of_2((z < 20 ? z : 20.0f) * LOG2_E), n = w * (w + 2);
        const float inverse = reciprocal((n + 2) * (w + 1));
        const float t = n * (w + 1) * inverse, sigmoid = w * (n + 2) * inverse;
        return {z * t, t + z * (1 - t * t) * sigmoid};
    } else {
        return activated<KIND>(z, SLOPE);
    }
}

// From the sums of a layer to its units, which the next layer takes.
__device__ inline void activate_units(TableShared& shared, const RowBlock& rows, int layer,
                                      Sums& sums, Masks masks, int round = 0) {
    if (!has_tile<HIDDEN_TILES>(round)) return;
    const OfUnits biases(shared, BIASES, layer, round), slopes(shared, SLOPES, layer, round);
    const float root = root_of(layer);
    const auto kept = static_cast<unsigned>(masks >> (layer * UNIT_ROUNDS + round) * BITS);
#pragma unroll
    for (int n = 0; n < ROW_TILES; ++n) {
#pragma unroll
        for (int part = 0; part < 4; ++part) {
            const float z = sums[n][part] * root + biases.values[part / 2];
            const Activated<float> f = activated_near<ACTIVATION>(z);
            const float y = z + (f.value - z) * slopes.values[part / 2];
            shared.kept[layer][n][part][round * THREADS + threadIdx.x] = {f.value - z,
                                                                          f.derivative - 1};
            sums[n][part] = kept >> (n * 4 + part) & 1 ? y * rows.now.kept_scale : 0.0f;
            shared.units[(layer + 1) % 2][row_of(n, part)][own_unit(part, round)] =
                store<T>(sums[n][part]);
        }
    }
    if (rows.trains)
        leave_rows(rows.memory.rows[inputs_before(layer + 1) + round * WARPS + own_warp()],
                   rows.index, sums);
}

// From the gradients of a layer's units to those before the activation, and the sums of those of
// its biases and activation.
__device__ inline void differentiate_units(TableShared& shared, const RowBlock& rows, int layer,
                                           Sums& sums, Masks masks, int round = 0) {
    if (!has_tile<HIDDEN_TILES>(round)) return;
    const OfUnits slopes(shared, SLOPES, layer, round);
    const float scale = ROOT * rows.now.kept_scale;
    const auto kept = static_cast<unsigned>(masks >> (layer * UNIT_ROUNDS + round) * BITS);
    float of_bias[2] = {}, of_slope[2] = {};
#pragma unroll
    for (int n = 0; n < ROW_TILES; ++n) {
#pragma unroll
        for (int part = 0; part < 4; ++part) {
            const Kept unit = shared.kept[layer][n][part][round * THREADS + threadIdx.x];
            const float dy = kept >> (n * 4 + part) & 1 ? sums[n][part] * scale : 0.0f;
            const float dz = dy + dy * slopes.values[part / 2] * unit.slope;
            of_slope[part / 2] += dy * unit.change;
            of_bias[part / 2] += dz;
            sums[n][part] = dz;
            shared.units[(layer + 1) % 2][row_of(n, part)][own_unit(part, round)] = store<T>(dz);
        }
    }
    leave_rows(rows.memory.gradients[inputs_before(layer + 1) + round * WARPS + own_warp()],
               rows.index, sums);
    float* all = rows.memory.sums[rows.index];
#pragma unroll
    for (int h = 0; h < 2; ++h) {
        const float bias = sum_over_rows(of_bias[h]), slope = sum_over_rows(of_slope[h]);
        if (own_lane() % 4 || !has_unit(2 * h, round)) continue;
        all[BIASES - FREQUENCIES + layer * HIDDEN + own_unit(2 * h, round)] = bias;
        all[SLOPES - FREQUENCIES + layer * HIDDEN + own_unit(2 * h, round)] = slope;
    }
}

// Whether registers hold weights of the first layer and those of the second.
constexpr bool LOADS_MIDDLE_AHEAD = LAST > 1 && FirstForward::COUNT <= 4;

// The products of the forward pass, each loaded while the one before it is computed, up to the
// parts of the outputs; `middle` has the weights of the second layer, if it is loaded ahead.
__device__ inline void go_forward(TableShared& shared, const RowBlock& rows, FirstForward& first,
                                  Middle& middle, Masks masks) {
    const auto& tiles = rows.memory.forward;
    LastForward last;
    Sums sums = {};
    __syncthreads();  // the inputs are there
    if (first.is_mine()) first.multiply(sums, shared.units[0]);
#pragma unroll
    for (int piece = 1; piece < FirstForward::PIECES; ++piece) {
        first.load(&tiles[0], 0, piece);
        if (first.is_mine()) first.multiply(sums, shared.units[0], piece);
    }
    last.load(&tiles[tiles_before(LAST)]);
    if (LAST > 1 && !LOADS_MIDDLE_AHEAD) middle.load(&tiles[tiles_before(1)]);
    activate_units(shared, rows, 0, sums, masks);
#pragma unroll
    for (int round = 1; round < UNIT_ROUNDS; ++round) {
        Sums next = {};
#pragma unroll
        for (int piece = 0; piece < FirstForward::PIECES; ++piece) {
            first.load(&tiles[0], round, piece);
            if (first.is_mine(round)) first.multiply(next, shared.units[0], piece);
        }
        activate_units(shared, rows, 0, next, masks, round);
    }
#pragma unroll 1
    for (int layer = 1; layer < LAST; ++layer) {
        __syncthreads();
        Sums next = {};
        if (middle.is_mine()) middle.multiply(next, shared.units[layer % 2]);
        if (layer + 1 < LAST) middle.load(&tiles[tiles_before(layer + 1)]);
        activate_units(shared, rows, layer, next, masks);
    }
    __syncthreads();
    last.multiply(shared.parts, shared.units[LAST % 2]);
    __syncthreads();
}

// The products of the backward pass, from the gradients of the outputs to those of the first
// layer's units; `middle` has the weights of the last layer but one, if that is not the first.
__device__ inline void go_back(TableShared& shared, const RowBlock& rows, const LastBackward& last,
                               Middle& middle, Masks masks) {
    const auto& tiles = rows.memory.backward;
    Sums sums = {};
    if (last.is_mine()) last.multiply(sums, shared.units[(LAST + 1) % 2]);
    differentiate_units(shared, rows, LAST - 1, sums, masks);
#pragma unroll
    for (int round = 1; round < UNIT_ROUNDS; ++round) {
        Sums next = {};
        LastBackward more;
        more.load(&tiles[tiles_before(LAST)], round);
        if (more.is_mine(round)) more.multiply(next, shared.units[(LAST + 1) % 2]);
        differentiate_units(shared, rows, LAST - 1, next, masks, round);
    }
#pragma unroll 1
    for (int layer = LAST - 1; layer > 0; --layer) {
        __syncthreads();
        Sums next = {};
        if (middle.is_mine()) middle.multiply(next, shared.units[(layer + 1) % 2]);
        if (layer > 1) middle.load(&tiles[tiles_before(layer - 1)]);
        differentiate_units(shared, rows, layer - 1, next, masks);
    }
}
