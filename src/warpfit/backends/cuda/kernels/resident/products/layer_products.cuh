// The products of one_launch_layers.cu: how the warps of a block partition a matrix, and what they
// find with it and of its gradient. Who holds the weights, and how they are updated, is said
// elsewhere. Parts of sums lie in shared memory, written by one warp each and read by all.
#pragma once

#include "resident/layout/layer_shapes.cuh"

// How many groups of warps partition so many tiles along the units: what leaves each warp the
// fewest, and of those the most groups, as each adds up what it finds over the others.
__device__ constexpr int groups_along_units(int feature_tiles, int unit_tiles) {
    int best = 1, least = (feature_tiles + WARPS - 1) / WARPS * unit_tiles;
    for (int groups = 2; groups <= WARPS; groups *= 2) {
        if (unit_tiles % groups || WARPS % groups) continue;
        const int along_features = WARPS / groups;
        const int tiles =
            (feature_tiles + along_features - 1) / along_features * (unit_tiles / groups);
        if (tiles <= least) {
            best = groups;
            least = tiles;
        }
    }
    return best;
}

// Parts of products, of each 8 rows as a warp's lanes hold them.
using Parts = float2[2][32];

// A matrix from FEATURES, a multiple of 16, to UNITS.
template <int FEATURES, int UNITS>
struct Product {
    static constexpr int UNIT_TILES = (UNITS + 15) / 16, FEATURE_TILES = FEATURES / 16;
    static constexpr int GROUPS_U = groups_along_units(FEATURE_TILES, UNIT_TILES);
    static constexpr int GROUPS_K = smaller(WARPS / GROUPS_U, FEATURE_TILES);
    using Weights = HeldWeights<T, FEATURES, UNITS, GROUPS_K, GROUPS_U>;
    // Tiles of 16 rows that are multiplied at once.
    static constexpr int AT_ONCE = ROW_TILES % 4 == 0 && Weights::MINE_U == 1 ? 4
                                   : ROW_TILES % 2 == 0                       ? 2
                                                                              : 1;
    // Parts of the product that lie in shared memory: see `sums_of`.
    static constexpr int SUMS_NEEDED = GROUPS_K * ROW_TILES * Weights::HALF_TILES;
    static_assert(SUMS_NEEDED <= SUMS, "the launcher gives room for all sums");

    // Whether there are registers for all rows of a warp's units at once.
    static constexpr bool STAYS = TERMS * ROW_TILES * Weights::MINE_U <= 4;

    // The weights as they are multiplied by, term by term.
    using Fragments = typename Weights::Fragments[TERMS];

    // Whether this warp has a part.
    __device__ static bool is_mine() {
        return static_cast<int>(threadIdx.x) / 32 < GROUPS_K * GROUPS_U;
    }

    // The part of a product that group k finds, of row tile r and half a tile of units.
    __device__ static int place_of_sums(int k, int r, int half_tile) {
        return (k * ROW_TILES + r) * Weights::HALF_TILES + half_tile;
    }

    // The product of all rows with the weights, in parts.
    template <class Rows>
    __device__ static void multiply(Parts* parts, const Rows& rows, const Fragments& b) {
#pragma unroll 1
        for (int first = 0; first < ROW_TILES; first += AT_ONCE) {
            typename Weights::Sums z[AT_ONCE];
            multiply_terms(rows, first, 0, b[0], z);
            if (TERMS > 1) {
                add_terms(rows, first, 0, b[TERMS - 1], z);
                add_terms(rows, first, TERMS - 1, b[0], z);
            }
#pragma unroll
            for (int i = 0; i < AT_ONCE * Weights::MINE_U * 2; ++i) {
                const float* sums = z[i / (2 * Weights::MINE_U)][i / 2 % Weights::MINE_U][i % 2];
                if (!Weights::has_half(i % (2 * Weights::MINE_U))) continue;
                const int half_tile = Weights::first_unit_tile() * 2 + i % (2 * Weights::MINE_U);
                Parts& place = parts[place_of_sums(Weights::warp_k(),
                                                   first + i / (2 * Weights::MINE_U), half_tile)];
                place[0][threadIdx.x % 32] = float2{sums[0], sums[1]};
                place[1][threadIdx.x % 32] = float2{sums[2], sums[3]};
            }
        }
    }

    // The products of tiles of rows from `first` on, of a term of theirs with a term of the
    // weights.
    template <class Rows>
    __device__ static void multiply_terms(const Rows& rows, int first, int term,
                                          const typename Weights::Fragments& b,
                                          typename Weights::Sums (&z)[AT_ONCE]) {
        Weights::multiply(b, z, [&](unsigned (&a)[4], int r, int tile) {
            load_a(a, tile_of(rows, first + r, 2 * tile, term), Rows::STRIDE, Rows::NEXT_CHUNK);
        });
    }

    template <class Rows>
    __device__ static void add_terms(const Rows& rows, int first, int term,
                                     const typename Weights::Fragments& b,
                                     typename Weights::Sums (&z)[AT_ONCE]) {
        typename Weights::Sums more[AT_ONCE];
        multiply_terms(rows, first, term, b, more);
#pragma unroll
        for (int i = 0; i < AT_ONCE * Weights::MINE_U * 8; ++i)
            (&z[0][0][0][0])[i] += (&more[0][0][0][0])[i];
    }

    // The whole product of a piece of 8 rows and 8 units, as lanes have it.
    __device__ static float2 sums_of(const Parts* parts, int eighth, int chunk) {
        const int lane = threadIdx.x % 32;
        float2 sum = parts[place_of_sums(0, eighth / 2, chunk)][eighth % 2][lane];
#pragma unroll
        for (int k = 1; k < GROUPS_K; ++k) {
            const float2 part = parts[place_of_sums(k, eighth / 2, chunk)][eighth % 2][lane];
            sum = float2{sum.x + part.x, sum.y + part.y};
        }
        return sum;
    }

    // f(u, j, sums) for the gradient of each tile, which is dyᵀ x: dy has the units from a chunk
    // on, x the features.
    template <class Rows, class F>
    __device__ static void each_gradient(const UnitRows& dy, int chunk, const Rows& x, F f) {
        if (!is_mine()) return;
        unsigned a[STAYS ? ROW_TILES : 1][TERMS][Weights::MINE_U][4];
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
                if (!STAYS) load_units(a[0], dy, chunk, r);
#pragma unroll
                for (int term = 0; term < TERMS; ++term) {
                    unsigned low[2], high[2];
                    load_b_pair_transposed(low, high,
                                           tile_of(x, r, 2 * Weights::feature_tile(j), term),
                                           Rows::STRIDE, Rows::NEXT_CHUNK);
                    // The last terms' product is too small to count.
#pragma unroll
                    for (int i = 0; i < Weights::MINE_U * (TERMS - term); ++i) {
                        const int u = i / (TERMS - term);
                        const unsigned (&units)[4] = a[STAYS ? r : 0][i % (TERMS - term)][u];
                        TensorCore<T>::multiply(sums[u][0], units, low);
                        TensorCore<T>::multiply(sums[u][1], units, high);
                    }
                }
            }
#pragma unroll
            for (int u = 0; u < Weights::MINE_U; ++u) f(u, j, sums[u]);
        }
    }

    // This warp's units, of those from a chunk on, of tile r of dy.
    __device__ static void load_units(unsigned (&a)[TERMS][Weights::MINE_U][4], const UnitRows& dy,
                                      int chunk, int r) {
#pragma unroll
        for (int i = 0; i < TERMS * Weights::MINE_U; ++i) {
            const int term = i / Weights::MINE_U, u = i % Weights::MINE_U;
            load_a_transposed(a[term][u],
                              tile_of(dy, r, chunk + 2 * (Weights::first_unit_tile() + u), term),
                              UnitRows::STRIDE, UnitRows::NEXT_CHUNK);
        }
    }

    // f(unit, sum) for the sums of dy over the rows, which are the gradients of biases. It falls to
    // the warps that have the fewest tiles.
    template <class F>
    __device__ static void each_bias_gradient(const UnitRows& dy, int chunk, F f) {
        if (!is_mine() || Weights::warp_k() < GROUPS_K - 1) return;
        const unsigned one = packed<T>(1.0f, 1.0f), ones[2] = {one, one};
        const int lane = threadIdx.x % 32;
        float sums[Weights::MINE_U][4] = {};  // of units l / 4 and l / 4 + 8, in all columns
#pragma unroll
        for (int r = 0; r < ROW_TILES; ++r) {
            unsigned a[TERMS][Weights::MINE_U][4];
            load_units(a, dy, chunk, r);
#pragma unroll
            for (int i = 0; i < TERMS * Weights::MINE_U; ++i) {
                const int term = i / Weights::MINE_U, u = i % Weights::MINE_U;
                TensorCore<T>::multiply(sums[u], a[term][u], ones);
            }
        }
        if (lane % 4) return;
#pragma unroll
        for (int i = 0; i < Weights::MINE_U * 2; ++i) {
            f((Weights::first_unit_tile() + i / 2) * 16 + lane / 4 + i % 2 * 8,
              sums[i / 2][i % 2 * 2]);
        }
    }
};

// Layer L's matrix by this block's units, which the forward pass takes; and by its inputs, for
// the backward pass.
template <int L>
struct Forward : Product<Shape<L - 1>::WIDTH, Shape<L>::BLOCK_UNITS> {};
template <>
struct Forward<0> : Product<X_WIDTH, Shape<0>::BLOCK_UNITS> {};
template <int L>
struct Backward : Product<Shape<L>::WIDTH, Shape<L - 1>::BLOCK_UNITS> {};
