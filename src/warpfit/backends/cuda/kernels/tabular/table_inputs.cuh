// From a batch's rows to the inputs of the first layer, and from their gradients to those of the
// embeddings: numbers as waves and themselves, indicators, codes as vectors, all times a factor.
//
// A block has all columns of its rows in shared memory, in float32. Gradients of embeddings are
// sums over the block's rows; the update adds up the blocks.
#pragma once

#include "base/permutation.cuh"
#include "base/philox.cuh"
#include "tabular/table_products.cuh"

constexpr float PI = 3.14159265358979323846f;

// Rows that a block takes at once: some of a step's batch, or of those to validate on.
struct RowBlock {
    const TableNetwork& network;
    TableMemory& memory;
    TableStep now;
    bool trains;
    bool is_last;  // that this block of threads takes in the step
    int index;     // of the rows' block
    int num_rows;  // of the batch, or all to validate on
    uint32 first;  // position in the epoch of the batch's first row
    uint32 epoch;  // of the run
    uint32 step;   // likewise

    __device__ int first_row() const { return index * ROWS; }
    __device__ bool has(int row) const { return first_row() + row < num_rows; }
};

// The place of a row of a batch among all.
__device__ inline int64 place_in_epoch(const RowBlock& rows, int row) {
    const TableNetwork& network = rows.network;
    uint32 keys[8];
#pragma unroll
    for (int i = 0; i < 8; ++i) keys[i] = network.keys[rows.epoch * 8 + i];
    const uint32 position = rows.first + static_cast<uint32>(rows.first_row() + row);
    return permuted(position, static_cast<uint32>(network.num_rows), network.bits, keys);
}

// Brings rows and targets to shared memory; zeros for rows that are not there.
__device__ inline void read_rows(TableShared& shared, const RowBlock& rows) {
    const TableNetwork& network = rows.network;
    const float* x = rows.trains ? network.x : network.validation_x;
    const Target* targets = rows.trains ? network.targets : network.validation_targets;
    const int row = own_warp();
    if (row >= ROWS) return;
    const bool is_there = rows.has(row);
    const int64 place = !is_there     ? 0
                        : rows.trains ? place_in_epoch(rows, row)
                                      : rows.first_row() + row;
#pragma unroll 1
    for (int i = own_lane(); i < COLUMNS; i += 32)
        shared.x[row][i] = is_there ? x[place * COLUMNS + i] : 0.0f;
#pragma unroll 1
    for (int i = own_lane(); i < TARGET_WORDS; i += 32)
        shared.targets[row][i] =
            is_there ? static_cast<float>(targets[place * TARGET_WORDS + i]) : 0.0f;
}

// Vectors on their way to shared memory, as many as a thread holds at once. They are loaded before
// the first is stored, for a load does not overtake a store.
struct VectorsOfThread {
    static constexpr int COUNT = smaller(6, (VECTORS + THREADS - 1) / THREADS);
    float values[COUNT];

    __device__ void load(const TableNetwork& network, int first) {
        const float* from = network.parameters + FREQUENCIES;
#pragma unroll
        for (int i = 0; i < COUNT; ++i)
            values[i] = received(from + smaller(first + i * THREADS + threadIdx.x, VECTORS - 1));
    }

    __device__ void store(TableShared& shared, int first) const {
#pragma unroll
        for (int i = 0; i < COUNT; ++i) {
            const int place = first + i * THREADS + threadIdx.x;
            if (place < VECTORS) shared.vectors[place] = values[i];
        }
    }

    // All that are left.
    __device__ void bring_rest(TableShared& shared, const TableNetwork& network) {
        store(shared, 0);
#pragma unroll 1
        for (int first = COUNT * THREADS; first < VECTORS; first += COUNT * THREADS) {
            load(network, first);
            store(shared, first);
        }
    }
};

// An angle as a part of π, from -1 to 1, and its sine and cosine, as near as 16 bits need them.
struct Angle {
    float of_pi;

    __device__ explicit Angle(float any) : of_pi(any - 2 * rintf(any / 2)) {}
    __device__ float sine() const { return sine_near(PI * of_pi); }
    __device__ float cosine() const { return cosine_near(PI * of_pi); }
};

// What a lane has of a wave: its phase over π, and the weights of what is made of it.
struct Wave {
    float frequency, phase, mixes[MADE];

    __device__ Wave(const TableShared& shared, int number, int wave)
        : frequency(shared.vector(FREQUENCIES)[number * WAVES + wave]),
          phase(shared.vector(PHASES)[number * WAVES + wave] * (1 / PI)) {
#pragma unroll
        for (int j = 0; j < MADE; ++j)
            mixes[j] = shared.vector(MIXES)[(j * NUMBERS + number) * WAVES + wave];
    }

    __device__ Angle at(float x) const { return Angle(2 * frequency * x + phase); }
};

// The sums over all waves of three numbers that their lanes have: a lane gets that of number
// `made_by(wave)`. Each exchange halves what a lane still needs.
__device__ constexpr int made_by(int wave) { return wave < 8 ? wave / 4 : 2; }
__device__ inline float sum_over_waves(int wave, float first, float second, float third) {
    static_assert(WAVES == 16 && MADE == 3, "as many as these exchanges are for");
    const auto other = [](float number, int lane) {
        return __shfl_xor_sync(FULL_WARP, number, lane);
    };
    const bool is_third = wave >= 8, is_second = made_by(wave) == 1;
    const float low = (is_third ? third : first) + other(is_third ? first : third, 8);
    const float high = second + other(second, 8);
    float sum = (is_second ? high : low) + other(is_second || is_third ? low : high, 4);
    sum += other(sum, 2);
    return sum + other(sum, 1);
}

// A number in a row becomes MADE sums of its waves, of which a lane has one.
__device__ inline float embed_number(const TableShared& shared, int number, int row) {
    const int wave = threadIdx.x % WAVES;
    const Wave own(shared, number, wave);
    const float cosine = own.at(shared.x[row][number]).cosine();
    return sum_over_waves(wave, own.mixes[0] * cosine, own.mixes[1] * cosine,
                          own.mixes[2] * cosine) +
           shared.vector(SHIFTS)[made_by(wave) * NUMBERS + number];
}

// All of them; some are computed before the first is stored.
__device__ inline void embed_numbers(TableShared& shared) {
    constexpr int AT_A_TIME = 3, EACH = THREADS / WAVES, COUNT = ROWS * NUMBERS;
    const int wave = threadIdx.x % WAVES;
    for (int first = threadIdx.x / WAVES; first - static_cast<int>(threadIdx.x) / WAVES < COUNT;
         first += AT_A_TIME * EACH) {
        float made[AT_A_TIME];
#pragma unroll
        for (int i = 0; i < AT_A_TIME; ++i) {
            const int item = smaller(first + i * EACH, COUNT - 1);
            made[i] = embed_number(shared, item / ROWS, item % ROWS);
        }
#pragma unroll
        for (int i = 0; i < AT_A_TIME; ++i) {
            const int item = first + i * EACH;
            if (item < COUNT && wave % 4 == 0 && wave < 4 * MADE)
                shared.embedded[item % ROWS][wave / 4 * NUMBERS + item / ROWS] = made[i];
        }
    }
}

__device__ inline void embed_codes(TableShared& shared, const RowBlock& rows) {
#pragma unroll 1
    for (int i = threadIdx.x; i < ROWS * CODES * OF_CODE; i += THREADS) {
        const int row = i / (CODES * OF_CODE), place = i % (CODES * OF_CODE);
        const int column = place / OF_CODE;
        const int code = CODE_STARTS[column] + static_cast<int>(shared.x[row][PLAIN + column]);
        shared.embedded[row][FIRST_CODE + place] =
            received(rows.network.parameters + EMBEDDINGS + code * OF_CODE + place % OF_CODE);
    }
}

// A tile of the first layer's inputs, times their factors, which a warp leaves.
__device__ inline void scale_inputs(TableShared& shared, const RowBlock& rows, int tile) {
    Sums inputs;
#pragma unroll
    for (int n = 0; n < ROW_TILES; ++n) {
#pragma unroll
        for (int part = 0; part < 4; ++part) {
            const int input = tile * 16 + unit_of(part), row = row_of(n, part);
            inputs[n][part] =
                input < INPUTS ? shared.embedded[row][input] * shared.vector(FACTORS)[input] : 0.0f;
            shared.units[0][row][input] = store<T>(inputs[n][part]);
        }
    }
    if (rows.trains) leave_rows(rows.memory.rows[tile], rows.index, inputs);
}

// All inputs of the first layer, before and after their factors.
__device__ inline void embed(TableShared& shared, const RowBlock& rows) {
    embed_numbers(shared);
#pragma unroll 1
    for (int i = threadIdx.x; i < ROWS * PLAIN; i += THREADS)
        shared.embedded[i / PLAIN][MADE * NUMBERS + i % PLAIN] = shared.x[i / PLAIN][i % PLAIN];
    if constexpr (CODES > 0) embed_codes(shared, rows);
    __syncthreads();
#pragma unroll 1
    for (int tile = own_warp(); tile < INPUT_TILES; tile += WARPS) scale_inputs(shared, rows, tile);
}

// The gradients of the first layer's inputs; `product` has the weights of the first round.
__device__ inline void find_input_gradients(TableShared& shared, const RowBlock& rows,
                                            FirstBackward& product) {
    const auto& units = shared.units[1];
    if constexpr (SPLITS_FIRST) {
        product.multiply(shared.parts, units);
        __syncthreads();
        for (int i = threadIdx.x; i < ROWS * INPUTS; i += THREADS) {
            const int row = i / INPUTS, input = i % INPUTS;
            shared.gradients[row][input] =
                FirstBackward::sum_of_parts(shared.parts, row, input) * FIRST_ROOT;
        }
    } else {
#pragma unroll 1
        for (int round = 0; round < FirstBackward::ROUNDS; ++round) {
            if (round > 0) product.load(&rows.memory.backward[0], round);
            if (!product.is_mine(round)) return;
            Sums sums = {};
            product.multiply(sums, units);
#pragma unroll
            for (int piece = 1; piece < FirstBackward::PIECES; ++piece) {
                product.load(&rows.memory.backward[0], round, piece);
                product.multiply(sums, units, piece);
            }
#pragma unroll
            for (int n = 0; n < ROW_TILES; ++n) {
#pragma unroll
                for (int part = 0; part < 4; ++part) {
                    const int input = (round * WARPS + own_warp()) * 16 + unit_of(part);
                    if (input < INPUTS)
                        shared.gradients[row_of(n, part)][input] = sums[n][part] * FIRST_ROOT;
                }
            }
        }
    }
}

// The gradients of factors, and from those of the inputs to those of what was embedded.
__device__ inline void differentiate_factors(TableShared& shared, float* sums) {
#pragma unroll 1
    for (int input = threadIdx.x; input < INPUTS; input += THREADS) {
        const float factor = shared.vector(FACTORS)[input];
        float sum = 0;
#pragma unroll
        for (int row = 0; row < ROWS; ++row) {
            const float gradient = shared.gradients[row][input];
            sum += gradient * shared.embedded[row][input];
            shared.gradients[row][input] = gradient * factor;
        }
        sums[FACTORS - FREQUENCIES + input] = sum;
    }
}

// The gradients of a wave's parameters: two lanes have half of the rows each.
__device__ inline void differentiate_wave(const TableShared& shared, float* sums, int place,
                                          bool is_there) {
    const int number = place / WAVES;
    const Wave wave(shared, number, place % WAVES);
    float of_frequency = 0, of_phase = 0, of_mixes[MADE] = {};
#pragma unroll 2
    for (int row = threadIdx.x % 2; row < ROWS; row += 2) {
        const float x = shared.x[row][number];
        const Angle angle = wave.at(x);
        const float sine = angle.sine(), cosine = angle.cosine();
        float of_cosine = 0;
#pragma unroll
        for (int j = 0; j < MADE; ++j) {
            const float gradient = shared.gradients[row][j * NUMBERS + number];
            of_mixes[j] += gradient * cosine;
            of_cosine += gradient * wave.mixes[j];
        }
        of_phase -= of_cosine * sine;
        of_frequency -= of_cosine * sine * x * (2 * PI);
    }
    const auto write = [&](int vector, float half) {
        const float sum = half + __shfl_xor_sync(FULL_WARP, half, 1);
        if (is_there && threadIdx.x % 2 == 0) sums[vector - FREQUENCIES + place] = sum;
    };
    write(FREQUENCIES, of_frequency);
    write(PHASES, of_phase);
#pragma unroll
    for (int j = 0; j < MADE; ++j) write(MIXES + j * NUMBERS * WAVES, of_mixes[j]);
}

// The embeddings' gradients: of vectors their sums over the block's rows, of codes row by row.
__device__ inline void differentiate_embeddings(TableShared& shared, const RowBlock& rows) {
    float* sums = rows.memory.sums[rows.index];
    differentiate_factors(shared, sums);
    __syncthreads();
    constexpr int NUM_WAVES = NUMBERS * WAVES;
    for (int first = 0; first < NUM_WAVES; first += THREADS / 2) {
        const int place = first + threadIdx.x / 2;
        if (first + own_warp() * 16 < NUM_WAVES)  // for whole warps
            differentiate_wave(shared, sums, smaller(place, NUM_WAVES - 1), place < NUM_WAVES);
    }
#pragma unroll 1
    for (int made = threadIdx.x; made < MADE * NUMBERS; made += THREADS) {
        float sum = 0;
#pragma unroll
        for (int row = 0; row < ROWS; ++row) sum += shared.gradients[row][made];
        sums[SHIFTS - FREQUENCIES + made] = sum;
    }
#pragma unroll 1
    for (int i = threadIdx.x; i < ROWS * CODES * OF_CODE; i += THREADS) {
        const int row = i % ROWS, place = i / ROWS, column = place / OF_CODE;
        if (!rows.has(row)) continue;
        const int of_batch = rows.first_row() + row;
        rows.memory.code_gradients[of_batch][place] = shared.gradients[row][FIRST_CODE + place];
        rows.memory.codes[column][of_batch] =
            CODE_STARTS[column] + static_cast<int>(shared.x[row][PLAIN + column]);
    }
}
