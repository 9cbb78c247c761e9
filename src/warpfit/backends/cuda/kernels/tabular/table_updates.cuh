// Updates of a network's parameters by Adam, by tasks: a tile of weights, eight vectors, or the
// embedding of a code. In every step a warp has the same tasks.
//
// A tile's gradient is a product of what the blocks of rows have left; its weights in float32 lie
// in memory as the host has them, and whoever updates them writes them for both products, too.
// Tiles behind the first layer come first: their gradients are there while those of the embeddings
// are still computed.
//
// Users: table_networks.cu.
#pragma once

#include "ops/optim/update_rules.cuh"
#include "tabular/table_outputs.cuh"

constexpr int AT_ONCE = 8;  // vectors of a task
constexpr int VECTOR_TASKS = (VECTORS + AT_ONCE - 1) / AT_ONCE;
constexpr int FIRST_TILES = INPUT_TILES * HIDDEN_TILES;
constexpr int EARLY_TASKS = ALL_TILES - FIRST_TILES,
              LATE_TASKS = FIRST_TILES + VECTOR_TASKS + NUM_CODES,
              TASKS = EARLY_TASKS + LATE_TASKS;

// What multiplies rate and decay of a parameter.
struct LearningFactors {
    float rate, decay;
};

__device__ inline LearningFactors factors_of_vector(int parameter) {
    if (parameter >= FACTORS) return {6.0f, 1.0f};
    return {0.1f, parameter >= BIASES ? 0.0f : 1.0f};
}

// Adam with decoupled decay, which takes both factors twice.
__device__ inline AdamStep<float, 2> rule_of(const TableStep& now, LearningFactors factors) {
    const auto number = [](double value) { return Scalar{nullptr, value}; };
    const float kept =
        1 - now.decay * factors.rate * factors.rate * factors.decay * factors.decay;
    return {number(now.rate * factors.rate), number(now.eps), number(kept),
            number(BETA1),                   number(BETA2),   number(0)};
}

// Updates a parameter with its gradient, which comes scaled.
__device__ inline void update(const AdamStep<float, 2>& rule, float* place, float gradient) {
    float value = place[0], moments[2] = {place[PARAMETERS], place[2 * PARAMETERS]};
    rule.apply(value, gradient * GRADIENT_UNSCALE, moments);
    place[0] = value;
    place[PARAMETERS] = moments[0];
    place[2 * PARAMETERS] = moments[1];
}

// Where the weights of a tile lie: a lane has of rows g and g + 8 of inputs the units 2 t, 2 t + 1,
// and those plus 8.
struct TilePlace {
    int layer, input_tile, unit_tile;

    // By its number among those of all layers.
    __device__ explicit TilePlace(int tile) {
        constexpr int OF_MIDDLE = HIDDEN_TILES * HIDDEN_TILES;
        const int behind = tile - FIRST_TILES;
        layer = behind < 0 ? 0 : smaller(1 + behind / OF_MIDDLE, LAST);
        tile -= tiles_before(layer);
        input_tile = tile / unit_tiles();
        unit_tile = tile % unit_tiles();
    }

    __device__ int unit_tiles() const { return layer == LAST ? OUTPUT_TILES : HIDDEN_TILES; }
    __device__ int input_tiles() const { return layer == 0 ? INPUT_TILES : HIDDEN_TILES; }

    // f(place, h, part) for each that is there, of both halves h of the units.
    template <class F>
    __device__ void each(F f) const {
        const int inputs = inputs_of(layer), units = units_of(layer);
#pragma unroll
        for (int h = 0; h < 2; ++h) {
#pragma unroll
            for (int part = 0; part < 4; ++part) {
                const int input = input_tile * 16 + unit_of(part),
                          unit = unit_tile * 16 + h * 8 + row_of(0, part);
                if (input < inputs && unit < units)
                    f(weights_before(layer) + input * units + unit, h, part);
            }
        }
    }
};

// A matrix of 8 by 8 that a warp has in words, transposed.
__device__ inline unsigned transposed(unsigned word) {
    const int lane = own_lane(), row = lane % 4 * 2, column = lane / 4;
    const unsigned first = __shfl_sync(FULL_WARP, word, row * 4 + column / 2),
                   second = __shfl_sync(FULL_WARP, word, (row + 1) * 4 + column / 2);
    const int shift = column % 2 * 16;
    return (first >> shift & 0xffff) | (second >> shift << 16);
}

// Writes a tile of weights as both products take it.
__device__ inline void write_tile(TableMemory& memory, const TilePlace& tile,
                                  const float (&weights)[2][4]) {
    unsigned words[2][2];
#pragma unroll
    for (int h = 0; h < 2; ++h) {
#pragma unroll
        for (int r = 0; r < 2; ++r)
            words[h][r] = packed<T>(weights[h][2 * r], weights[h][2 * r + 1]);
    }
    const int first = tiles_before(tile.layer);
    const int back = first + tile.input_tile * tile.unit_tiles() + tile.unit_tile,
              forth = first + tile.unit_tile * tile.input_tiles() + tile.input_tile;
    memory.backward[back][own_lane()] = uint4{words[0][0], words[0][1], words[1][0], words[1][1]};
    memory.forward[forth][own_lane()] = uint4{transposed(words[0][0]), transposed(words[1][0]),
                                              transposed(words[0][1]), transposed(words[1][1])};
}

// The gradient of a tile of weights: the rows of a batch are added up.
__device__ inline void multiply_rows(float (&gradient)[2][4], const TableMemory& memory,
                                     const TilePlace& tile) {
    const uint4* rows = &memory.rows[inputs_before(tile.layer) + tile.input_tile][0][own_lane()];
    const uint4* gradients =
        &memory.gradients[inputs_before(tile.layer + 1) + tile.unit_tile][0][own_lane()];
#pragma unroll 8
    for (int i = 0; i < BATCH_TILES; ++i) {
        const uint4 a = received(rows + i * 32), b = received(gradients + i * 32);
        const unsigned of_rows[4] = {a.x, a.y, a.z, a.w}, low[2] = {b.x, b.z}, high[2] = {b.y, b.w};
        TensorCore<T>::multiply(gradient[0], of_rows, low);
        TensorCore<T>::multiply(gradient[1], of_rows, high);
    }
}

// Updates a tile, or before the first step only writes it for the products.
__device__ inline void update_tile(const TableNetwork& network, TableMemory& memory,
                                   const TableStep* now, int number) {
    const TilePlace tile(number);
    float weights[2][4] = {}, moments[2][4][2] = {};
    tile.each([&](int place, int h, int part) {
        weights[h][part] = network.parameters[place];
        moments[h][part][0] = network.parameters[PARAMETERS + place];
        moments[h][part][1] = network.parameters[2 * PARAMETERS + place];
    });
    if (now) {
        float gradient[2][4] = {};
        multiply_rows(gradient, memory, tile);
        const AdamStep<float, 2> rule = rule_of(*now, {1, 1});
        const float unscale = GRADIENT_UNSCALE * root_of(tile.layer);
#pragma unroll
        for (int i = 0; i < 8; ++i)
            rule.apply(weights[i / 4][i % 4], gradient[i / 4][i % 4] * unscale,
                       moments[i / 4][i % 4]);
        tile.each([&](int place, int h, int part) {
            network.parameters[place] = weights[h][part];
            network.parameters[PARAMETERS + place] = moments[h][part][0];
            network.parameters[2 * PARAMETERS + place] = moments[h][part][1];
        });
    }
    write_tile(memory, tile, weights);
}

// Lanes have a vector each, and every fourth block of rows.
__device__ inline void update_vectors(const TableNetwork& network, const TableMemory& memory,
                                      const TableStep& now, int task) {
    const int vector = task * AT_ONCE + own_lane() % AT_ONCE;
    float sum = 0;
    if (vector < VECTORS) {
#pragma unroll 8
        for (int block = own_lane() / AT_ONCE; block < ROW_BLOCKS; block += 32 / AT_ONCE)
            sum += received(&memory.sums[block][vector]);
    }
    sum += __shfl_xor_sync(FULL_WARP, sum, 8);
    sum += __shfl_xor_sync(FULL_WARP, sum, 16);
    if (own_lane() >= AT_ONCE || vector >= VECTORS) return;
    const int parameter = FREQUENCIES + vector;
    update(rule_of(now, factors_of_vector(parameter)), network.parameters + parameter, sum);
}

// A code's embedding: lanes look for the rows that have it, and add them up in their order.
__device__ inline void update_code(const TableNetwork& network, const TableMemory& memory,
                                   const TableStep& now, int code) {
    int column = 0;
    while (column + 1 < CODES && CODE_STARTS[column + 1] <= code) ++column;
    const int part = own_lane() % OF_CODE;
    float sum = 0;
    for (int first = 0; first < BATCH; first += 32) {
        const int row = first + own_lane();
        const bool has_it = row < BATCH && received(&memory.codes[column][row]) == code;
        const unsigned votes = __ballot_sync(FULL_WARP, has_it);
        for (int i = 0; i < 32; ++i) {
            if (votes >> i & 1)
                sum += received(&memory.code_gradients[first + i][column * OF_CODE + part]);
        }
    }
    if (own_lane() < OF_CODE)
        update(rule_of(now, {1, 1}),
               network.parameters + EMBEDDINGS + code * OF_CODE + part, sum);
}

// The tile of a task below ALL_TILES: those behind the first layer come first.
__device__ inline int tile_of(int task) {
    return task < EARLY_TASKS ? FIRST_TILES + task : task - EARLY_TASKS;
}

__device__ inline void update_by_task(const TableNetwork& network, TableMemory& memory,
                                      const TableStep& now, int task) {
    if (task < ALL_TILES) return update_tile(network, memory, &now, tile_of(task));
    task -= ALL_TILES;
    if (task < VECTOR_TASKS) return update_vectors(network, memory, now, task);
    if (NUM_CODES > 0) update_code(network, memory, now, task - VECTOR_TASKS);
}

// Keeps what a task updates, as the best so far.
__device__ inline void keep_by_task(const TableNetwork& network, int task) {
    float* best = network.parameters + 3 * PARAMETERS;
    const auto keep = [&](int place) { best[place] = network.parameters[place]; };
    if (task < ALL_TILES)
        return TilePlace(tile_of(task)).each([&](int place, int, int) { keep(place); });
    task -= ALL_TILES;
    if (task < VECTOR_TASKS) {
        const int vector = task * AT_ONCE + own_lane();
        if (own_lane() < AT_ONCE && vector < VECTORS) keep(FREQUENCIES + vector);
    } else if (own_lane() < OF_CODE) {
        keep(EMBEDDINGS + (task - VECTOR_TASKS) * OF_CODE + own_lane());
    }
}
