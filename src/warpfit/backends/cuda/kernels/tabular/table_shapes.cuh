// What follows from the settings of table_networks.cu: the sizes of a network's layers, where each
// of its parameters lies, and a block's shared memory.
//
// All hidden layers have HIDDEN units. The parameters of a network are one array, in this order:
// weights of each layer, tile by tile of 16 inputs and 16 units (see TileState); of the periodic
// embedding frequencies and phases (NUMBERS, WAVES), weights (MADE, NUMBERS, WAVES) and biases
// (MADE, NUMBERS); of each hidden layer what its activation weighs (units,); the biases of each
// layer (units,); a factor for each input of the first layer; and the embeddings of codes
// (NUM_CODES, OF_CODE). Between weights and codes lie the vectors, whose gradients are sums over
// rows. The array ends at a multiple of 16 bytes.
#pragma once

#include "base/choice.cuh"
#include "base/reduce.cuh"
#include "mma/fragments.cuh"
#include "ops/activation/activation.cuh"
#include "resident/layout/sizes.cuh"

using T = DTYPE;

constexpr int WARPS = 16, THREADS = 32 * WARPS;
constexpr int ROWS = 8 * ROW_TILES;  // of a batch that a block takes at once
constexpr int WAVES = 16, MADE = 3, OF_CODE = 8;

constexpr int PLAIN = NUMBERS + INDICATORS, COLUMNS = PLAIN + CODES;
constexpr int INPUTS = MADE * NUMBERS + PLAIN + CODES * OF_CODE;  // of the first layer
constexpr int FIRST_CODE = MADE * NUMBERS + PLAIN;                // among them
constexpr int TARGET_WORDS = HAS_LABELS ? 1 : OUTPUTS;
constexpr int LAST = HIDDEN_LAYERS;  // layer
using Target = choice<HAS_LABELS, int64, float>;

// Tiles of 16.
__device__ constexpr int tiles_of(int size) { return (size + 15) / 16; }
constexpr int INPUT_TILES = tiles_of(INPUTS), HIDDEN_TILES = tiles_of(HIDDEN),
              OUTPUT_TILES = tiles_of(OUTPUTS);

__device__ constexpr float root_of(int layer) { return layer == 0 ? FIRST_ROOT : ROOT; }

// Of the layers before one their tiles of weights, and tiles of inputs.
__device__ constexpr int tiles_before(int layer) {
    return layer == 0 ? 0 : (INPUT_TILES + (layer - 1) * HIDDEN_TILES) * HIDDEN_TILES;
}
__device__ constexpr int inputs_before(int layer) {
    return layer == 0 ? 0 : INPUT_TILES + (layer - 1) * HIDDEN_TILES;
}

constexpr int ALL_TILES = tiles_before(LAST) + HIDDEN_TILES * OUTPUT_TILES;
constexpr int OF_TILE = 256;  // weights

// Where parameters begin.
constexpr int FREQUENCIES = ALL_TILES * OF_TILE, PHASES = FREQUENCIES + NUMBERS * WAVES,
              MIXES = PHASES + NUMBERS * WAVES, SHIFTS = MIXES + MADE * NUMBERS * WAVES,
              SLOPES = SHIFTS + MADE * NUMBERS, BIASES = SLOPES + HIDDEN_LAYERS * HIDDEN,
              FACTORS = BIASES + HIDDEN_LAYERS * HIDDEN + OUTPUTS, EMBEDDINGS = FACTORS + INPUTS,
              PARAMETERS = (EMBEDDINGS + NUM_CODES * OF_CODE + 3) / 4 * 4;
constexpr int VECTORS = EMBEDDINGS - FREQUENCIES;

constexpr int BATCH_TILES = tiles_of(BATCH);           // of 16 rows
constexpr int ROW_BLOCKS = (BATCH + ROWS - 1) / ROWS;  // of ROWS rows
constexpr int WIDTH_TILES = inputs_before(LAST) + HIDDEN_TILES + OUTPUT_TILES;

// A step's numbers, of all networks alike.
struct TableStep {
    float rate, eps, decay, kept_scale;
    uint32 dropped_below;
};

// A network and its data, as the host has them.
struct TableNetwork {
    const float* x;
    const Target* targets;
    const float* validation_x;
    const Target* validation_targets;
    const float* bounds;  // (2, OUTPUTS): what predictions are clipped to, of numbers
    float* parameters;    // and after them both moments, and the best parameters
    const uint32* keys;   // of each epoch's order
    float* losses;        // (steps, ROW_BLOCKS), sums over rows
    float* error_sums;    // (blocks of validation rows,)
    double* errors;       // of each epoch, and before them the least so far
    uint32 key[2];        // of dropout
    int num_rows, bits, num_validated, unused;
};

// What blocks leave each other of a network. Weights lie as products take them, the words of a lane
// together: the forward pass by (units, inputs), the backward pass by (inputs, units), tile by tile
// of 16 by 16. `rows` has the inputs of each layer in a batch, and `gradients` those of its units,
// as the products that make the gradients of weights take them: by tiles of 16 units and 16 rows.
struct TableMemory {
    uint4 forward[ALL_TILES][32], backward[ALL_TILES][32];
    uint4 rows[WIDTH_TILES][BATCH_TILES][32], gradients[WIDTH_TILES][BATCH_TILES][32];
    float sums[ROW_BLOCKS][VECTORS];  // of the gradients of vectors
    float code_gradients[BATCH][larger(CODES, 1) * OF_CODE];
    int codes[larger(CODES, 1)][BATCH];  // of the batch's rows, numbered through all columns
};
static_assert(sizeof(TableMemory) == MEMORY_BYTES, "the launcher gives as much");

constexpr int STRIDE =
    16 * larger(larger(INPUT_TILES, HIDDEN_TILES), OUTPUT_TILES) + 8;  // rows in different banks

// Products with few tiles of results are split among warps by what they add up over.
constexpr int MOST_SPLIT = 8;
constexpr bool SPLITS_FIRST = INPUT_TILES <= MOST_SPLIT;
static_assert(OUTPUT_TILES <= MOST_SPLIT, "outputs are added up over warps");
constexpr int SPLIT_UNITS = 16 * larger(OUTPUT_TILES, SPLITS_FIRST ? INPUT_TILES : 1);
using Parts = float[WARPS][ROWS][SPLIT_UNITS + 4];

// What the backward pass needs of a unit before its activation f: f(z) - z and f'(z) - 1.
struct Kept {
    float change, slope;
};

struct alignas(16) TableShared {
    T units[2][ROWS][STRIDE];  // a layer's inputs, or gradients of its units
    Parts parts;               // of split products
    Kept kept[HIDDEN_LAYERS][ROW_TILES][4][32 * HIDDEN_TILES];  // of each thread's units
    float vectors[VECTORS];                                     // as the last update left them
    float embedded[ROWS][INPUTS], gradients[ROWS][INPUTS];
    float x[ROWS][COLUMNS], targets[ROWS][TARGET_WORDS];
    float losses[ROWS];     // or what rows add to the validation error
    double best[NETWORKS];  // errors
    bool is_best[NETWORKS];

    __device__ const float* vector(int parameter) const {
        return vectors + parameter - FREQUENCIES;
    }
};
static_assert(sizeof(TableShared) <= SHARED_BYTES, "the launcher asks for as much");
