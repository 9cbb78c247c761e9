// Updates of a network's parameters by Adam, by tasks: a tile of weights, eight vectors, or the
// embedding of a code. In every step a warp has the same tasks.
//
// A tile's gradient is a product of what the blocks of rows have left. Whoever updates its weights
// writes them for both products, too. Tiles behind the first layer come first: their gradients are
// there while those of the embeddings are still computed.
#pragma once

#include "tabular/table_outputs.cuh"

constexpr int AT_ONCE = 8;  // vectors of a task
constexpr int VECTOR_TASKS = (VECTORS + AT_ONCE - 1) / AT_ONCE;
constexpr int FIRST_TILES = INPUT_TILES * HIDDEN_TILES;
constexpr int EARLY_TASKS = ALL_TILES - FIRST_TILES,
              LATE_TASKS = FIRST_TILES + VECTOR_TASKS + NUM_CODES, TASKS = EARLY_TASKS + LATE_TASKS;

// What multiplies rate and decay of a parameter.
struct LearningFactors {
    float rate, decay;
};

__device__ inline LearningFactors factors_of_vector(int parameter) {
    if (parameter >= FACTORS) return {6.0f, 1.0f};
    return {0.1f, parameter >= BIASES ? 0.0f : 1.0f};
}

// w ← kept w - rate m / (√v + eps), the host having put the bias corrections into rate and eps.
struct Adam {
    float rate, eps, kept;

    // Decay is decoupled, and takes both factors twice.
    __device__ Adam(const TableStep& now, LearningFactors of)
        : rate(now.rate * of.rate),
          eps(now.eps),
          kept(1 - now.decay * of.rate * of.rate * of.decay * of.decay) {}

    __device__ void apply(float& value, float gradient, float& mean, float& square) const {
        mean = BETA1 * mean + (1 - BETA1) * gradient;
        square = BETA2 * square + (1 - BETA2) * gradient * gradient;
        value = kept * value - rate * mean * reciprocal(square_root_near(square) + eps);
    }
};

// Updates a parameter with its gradient, which comes scaled.
__device__ inline void update(const Adam& rule, float* place, float gradient) {
    float value = place[0], mean = place[PARAMETERS], square = place[2 * PARAMETERS];
    rule.apply(value, gradient * GRADIENT_UNSCALE, mean, square);
    place[0] = value;
    place[PARAMETERS] = mean;
    place[2 * PARAMETERS] = square;
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

// What a lane has of a tile: weights, and both moments, of either half h of the units; of inputs
// unit_of(part), of units 8 h + row_of(0, part).
struct TileState {
    float numbers[3][2][4];

    __device__ static float4* place(const TableNetwork& network, int tile, int i) {
        float* first = network.parameters + i / 2 * PARAMETERS + tile * OF_TILE + i % 2 * 128;
        return reinterpret_cast<float4*>(first) + own_lane();
    }

    __device__ void load(const TableNetwork& network, int tile) {
#pragma unroll
        for (int i = 0; i < 6; ++i)
            reinterpret_cast<float4&>(numbers[i / 2][i % 2]) = *place(network, tile, i);
    }

    __device__ void store(const TableNetwork& network, int tile) const {
#pragma unroll
        for (int i = 0; i < 6; ++i)
            *place(network, tile, i) = reinterpret_cast<const float4&>(numbers[i / 2][i % 2]);
    }
};

__device__ inline void update_tile(const TableNetwork& network, TableMemory& memory,
                                   const TableStep& now, int number, TileState& state) {
    const TilePlace tile(number);
    float gradient[2][4] = {};
    multiply_rows(gradient, memory, tile);
    const Adam rule(now, {1, 1});
    const float unscale = GRADIENT_UNSCALE * root_of(tile.layer);
#pragma unroll
    for (int h = 0; h < 2; ++h) {
#pragma unroll
        for (int part = 0; part < 4; ++part)
            rule.apply(state.numbers[0][h][part], gradient[h][part] * unscale,
                       state.numbers[1][h][part], state.numbers[2][h][part]);
    }
    write_tile(memory, tile, state.numbers[0]);
    state.store(network, number);
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
    update(Adam(now, factors_of_vector(parameter)), network.parameters + parameter, sum);
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
        update(Adam(now, {1, 1}), network.parameters + EMBEDDINGS + code * OF_CODE + part, sum);
}

// The tile of a task below ALL_TILES: those behind the first layer come first.
__device__ inline int tile_of(int task) {
    return task < EARLY_TASKS ? FIRST_TILES + task : task - EARLY_TASKS;
}

// `state` is that of the tile, if the task is one.
__device__ inline void update_by_task(const TableNetwork& network, TableMemory& memory,
                                      const TableStep& now, int task, TileState& state) {
    if (task < ALL_TILES) return update_tile(network, memory, now, tile_of(task), state);
    task -= ALL_TILES;
    if (task < VECTOR_TASKS) return update_vectors(network, memory, now, task);
    if (NUM_CODES > 0) update_code(network, memory, now, task - VECTOR_TASKS);
}

// Keeps what a task updates, as the best so far.
__device__ inline void keep_by_task(const TableNetwork& network, int task) {
    int first = tile_of(task) * OF_TILE, end = first + OF_TILE;
    if (task >= ALL_TILES + VECTOR_TASKS) {
        first = EMBEDDINGS + (task - ALL_TILES - VECTOR_TASKS) * OF_CODE;
        end = first + OF_CODE;
    } else if (task >= ALL_TILES) {
        first = FREQUENCIES + (task - ALL_TILES) * AT_ONCE;
        end = smaller(first + AT_ONCE, EMBEDDINGS);
    }
#pragma unroll 4
    for (int i = first + own_lane(); i < end; i += 32)
        network.parameters[3 * PARAMETERS + i] = network.parameters[i];
}
