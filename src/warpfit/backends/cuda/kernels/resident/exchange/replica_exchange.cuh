// Where replicas of one_launch_layers.cu leave each other gradients and weights, and how they find
// them.
//
// A thread's quads of all layers have one numbering, and so have tiles and a block's biases: the
// last layers come first, as their gradients do. A place belongs to who writes it.
#pragma once

#include "resident/exchange/marked_numbers.cuh"
#include "resident/rows/layer_sums.cuh"

constexpr int THREADS = 32 * WARPS;

template <int L>
struct BackwardTiles {
    static constexpr int COUNT = Backward<L>::Weights::MINE;
};
template <>
struct BackwardTiles<0> {
    static constexpr int COUNT = 0;
};

// The numbers of layer L's first tile among a warp's, and of its first bias among a block's. Last
// layers come first, as their gradients do.
template <int L>
struct First {
    static constexpr int FORWARD = First<L + 1>::NEXT_FORWARD,
                         NEXT_FORWARD = FORWARD + Forward<L>::Weights::MINE;
    static constexpr int BACKWARD = First<L + 1>::NEXT_BACKWARD,
                         NEXT_BACKWARD = BACKWARD + BackwardTiles<L>::COUNT;
    static constexpr int BIAS = First<L + 1>::NEXT_BIAS, NEXT_BIAS = BIAS + Shape<L>::BLOCK_WIDTH;
};
template <>
struct First<LAYERS> {
    static constexpr int NEXT_FORWARD = 0, NEXT_BACKWARD = 0, NEXT_BIAS = 0;
};

constexpr int FORWARD_TILES = First<0>::NEXT_FORWARD, BACKWARD_TILES = First<0>::NEXT_BACKWARD;
constexpr int QUADS = 2 * FORWARD_TILES, BACK_QUADS = larger(2 * BACKWARD_TILES, 1),
              BIASES = First<0>::NEXT_BIAS;
// Quads whose owner is the same thread, and biases of a thread.
constexpr int OWN_QUADS = (QUADS + REPLICAS - 1) / REPLICAS,
              OWN_BIASES = (BIASES + THREADS - 1) / THREADS;
// Quads that a thread waits for at once.
constexpr int AT_ONCE = 16;

template <int L>
struct LayerNumber {
    static constexpr int VALUE = L;
};

// f(layer, the tile's number in it) for a tile of a warp.
template <int L = LAYERS - 1, class F>
__device__ inline void at_tile(int tile, F f) {
    if constexpr (L > 0) {
        if (tile >= First<L>::NEXT_FORWARD) return at_tile<L - 1>(tile, f);
    }
    f(LayerNumber<L>{}, tile - First<L>::FORWARD);
}

template <int L = LAYERS - 1, class F>
__device__ inline void at_backward_tile(int tile, F f) {
    if constexpr (L > 1) {
        if (tile >= First<L>::NEXT_BACKWARD) return at_backward_tile<L - 1>(tile, f);
    }
    if constexpr (L > 0) f(LayerNumber<L>{}, tile - First<L>::BACKWARD);
}

// f(layer, unit) for a bias of a block.
template <int L = LAYERS - 1, class F>
__device__ inline void at_bias(int bias, F f) {
    if constexpr (L > 0) {
        if (bias >= First<L>::NEXT_BIAS) return at_bias<L - 1>(bias, f);
    }
    f(LayerNumber<L>{}, bias - First<L>::BIAS);
}

// Whether this warp has tile `tile` of a product.
template <class Product>
__device__ inline bool has_tile(int tile) {
    return Product::is_mine() && Product::Weights::has_tile(tile % Product::Weights::MINE_K);
}

// Where the blocks of a rank leave numbers, and find them. None is overwritten before it is read:
// who sends the next has seen what others made of it. Of what threads of other numbers read there
// are two, for even steps and odd ones, as a block may be a step ahead.
struct alignas(16) LayersExchange {
    uint4 gradients[REPLICAS][QUADS][THREADS];
    uint4 weights[QUADS][THREADS];
    uint4 backward[2][BACK_QUADS][THREADS];
    unsigned biases[2][REPLICAS][BIASES];
    unsigned squares[2][up(REPLICAS, 2)];
};
// Where the cards leave the blocks of a rank what the replicas of each have added up. Who sends the
// next but one has seen what others made of it, so there are two.
struct alignas(16) CardSums {
    struct {
        uint4 gradients[2][QUADS][THREADS];
        unsigned biases[2][BIASES];
    } of_cards[CARDS];
};
static_assert(CARDS == 1 || sizeof(CardSums) == CARD_SUMS_BYTES,
              "the launcher gives as much to each rank");
static_assert(CARDS == 1 || (REPLICAS > 1 && !STOPS), "cards have replicas, which do not stop");
static_assert(REPLICAS == 1 || sizeof(LayersExchange) == EXCHANGE_BYTES,
              "the launcher gives as much to each rank");
static_assert(REPLICAS == 1 || OWN_QUADS <= 32, "a bit for each");

// Takes the 16-bit words of tiles in, whose quads come in this turn: quad h of tile t is at
// place(t, h), and has the words that there(t, h) has bits of.
template <int TILES, class Place, class There>
__device__ inline void receive_tiles(unsigned (&fragments)[TERMS][TILES][4], int turn, Place place,
                                     There there) {
#pragma unroll
    for (int first = 0; first < 2 * TILES; first += AT_ONCE) {
        uint4 words[AT_ONCE];
        for (Patience patience;; patience.wait()) {
            unsigned missing = 0;
#pragma unroll
            for (int i = 0; i < AT_ONCE; ++i) {
                const int tile = (first + i) / 2, half = i % 2;
                words[i] = uint4{};
                if (tile < TILES && there(tile, half)) words[i] = load_relaxed(place(tile, half));
            }
#pragma unroll
            for (int i = 0; i < AT_ONCE; ++i) {
                const int tile = (first + i) / 2, half = i % 2;
                if (tile < TILES) missing |= missing_marks(words[i], turn, there(tile, half));
            }
            if (missing == 0) break;
        }
#pragma unroll
        for (int i = 0; i < AT_ONCE; ++i) {
            const int quad = first + i;
            if (quad >= 2 * TILES) break;
            const Pair lower(without_last_bit(words[i].x), without_last_bit(words[i].y)),
                upper(without_last_bit(words[i].z), without_last_bit(words[i].w));
#pragma unroll
            for (int term = 0; term < TERMS; ++term) {
                fragments[term][quad / 2][quad % 2] = lower.words[term];
                fragments[term][quad / 2][2 + quad % 2] = upper.words[term];
            }
        }
    }
}
