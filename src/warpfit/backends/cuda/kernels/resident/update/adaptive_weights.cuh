// The weights that x meets where one_launch.cu is ADAPTIVE, with their optimizer state: of a warp's
// first tiles in registers, and in shared memory of the NEAR_TILES for which registers have no
// room. Nobody but the thread that has a weight looks at it.
#pragma once

#include "resident/layout/trained_block.cuh"

template <int NUM_NEAR>
struct AdaptiveWeights {
    // Tiles of a warp along the features of which registers hold the optimizer state; then shared
    // memory.
    static constexpr int HELD_K =
        NUM_NEAR > 0 ? (Weights::FEATURE_TILES - NUM_NEAR) / WARPS_K : Weights::MINE_K;
    static constexpr int FIRST_NEAR = HELD_K * WARPS_K;
    static_assert(NUM_NEAR == 0 || FIRST_NEAR + NUM_NEAR == Weights::FEATURE_TILES,
                  "all warps hold as many");

    // Of the eight weights of a tile that a thread has.
    struct alignas(16) TileState {
        float slots[8][SLOT_PLACES];
    };

    OneLaunchShared& shared;
    Weights weights;
    TileState held[Weights::MINE_U][HELD_K > 0 ? HELD_K : 1];

    __device__ explicit AdaptiveWeights(OneLaunchShared& shared) : shared(shared) {}

    __device__ void read(const LayerArrays& layer) {
        const Part units = held_units(), features = held_features();
        weights.read(layer.w + first_weight(features, units), ALL_UNITS, units.count,
                     features.count, 1);
        each_slot(layer, [](float& number, const float* place) {
            number = place != nullptr ? *place : 0;
        });
    }

    __device__ void write(const LayerArrays& layer) {
        const Part units = held_units(), features = held_features();
        weights.write(layer.w + first_weight(features, units), ALL_UNITS, units.count,
                      features.count, 1);
        each_slot(layer, [](float number, float* place) {
            if (place != nullptr) *place = number;
        });
    }

    // What need not wait for the gradients: weights decay, and what registers have of averages
    // fades.
    __device__ void begin_update(const OneLaunchRun& run, const StepSettings& now) {
        weights.each([&](float& w) { w *= now.kept; });
#pragma unroll
        for (int u = 0; u < Weights::MINE_U; ++u) {
#pragma unroll
            for (int j = 0; j < HELD_K; ++j) fade(run, held[u][j]);
        }
    }

    // Takes in the gradients of a batch, whose tiles lie at x. While one tile is updated, tensor
    // cores find the gradient of the next one.
    __device__ void end_update(const OneLaunchRun& run, const StepSettings& now, const T* dz,
                               const T* const (&x)[ROW_TILES]) {
        const StepSettings rest{now.rate, now.eps, 1, now.ahead};
        // A number that the compiler does not know: so each tile has a branch, beyond which
        // instructions do not go. Else it leaves the next tile's products for last, to save
        // registers.
        const int num_tiles = __shfl_sync(FULL_WARP, Weights::num_feature_tiles(), 0);
        unsigned a[ROW_TILES][Weights::MINE_U][4];
        Weights::load_gradients(a, dz, UNIT_STRIDE);
        typename Weights::Sums sums[2];  // of a tile, and of the next one
        if (Weights::has_tile(0)) Weights::find_product(sums[0], a, x, X_STRIDE, 0);
#pragma unroll
        for (int j = 0; j < Weights::MINE_K; ++j) {
            if (j >= num_tiles) break;
            if (j + 1 < Weights::MINE_K && Weights::has_tile(j + 1))
                Weights::find_product(sums[(j + 1) % 2], a, x, X_STRIDE, j + 1);
#pragma unroll
            for (int u = 0; u < Weights::MINE_U; ++u) end_tile(run, rest, u, j, sums[j % 2][u]);
        }
    }

  private:
    __device__ static void fade(const OneLaunchRun& run, TileState& numbers) {
#pragma unroll
        for (int part = 0; part < 8; ++part) fade_slots(numbers.slots[part], run.rule);
    }

    __device__ void end_tile(const OneLaunchRun& run, const StepSettings& rest, int u, int j,
                             const float (&sums)[2][4]) {
        TileState numbers = load(u, j);
        if (j >= HELD_K) fade(run, numbers);
#pragma unroll
        for (int part = 0; part < 8; part += 2) {
            update_pair(pair_of(weights.tiles[u][j][part / 4][part % 4]),
                        pair_of(numbers.slots[part]), pair_of(sums[part / 4][part % 4]),
                        run.gradient_unscale, rest, run.rule);
        }
        store(u, j, numbers);
    }

    // f(number, its place in memory, or null where it pads a tile) for all optimizer state.
    template <class F>
    __device__ void each_slot(const LayerArrays& layer, F f) {
        const Part units = held_units(), features = held_features();
#pragma unroll
        for (int j = 0; j < Weights::MINE_K; ++j) {
            if (!Weights::has_tile(j)) break;
#pragma unroll
            for (int u = 0; u < Weights::MINE_U; ++u) {
                TileState numbers = load(u, j);
#pragma unroll
                for (int part = 0; part < 8; ++part) {
                    const int unit = Weights::unit_of(u, part),
                              feature = Weights::feature_of(j, part);
                    const bool is_there = unit < units.count && feature < features.count;
                    const int64 place = first_weight(features, units) +
                                        static_cast<int64>(feature) * ALL_UNITS + unit;
#pragma unroll
                    for (int slot = 0; slot < SLOTS; ++slot)
                        f(numbers.slots[part][slot],
                          is_there ? layer.w_slots[slot] + place : nullptr);
                }
                store(u, j, numbers);
            }
        }
    }

    __device__ TileState load(int u, int j) const {
        if (NUM_NEAR == 0 || j < HELD_K) return held[u][j];
        TileState numbers;
#pragma unroll
        for (int i = 0; i < 2 * SLOTS; ++i) reinterpret_cast<float4*>(&numbers)[i] = place(u, j, i);
        return numbers;
    }

    __device__ void store(int u, int j, const TileState& numbers) {
        if (NUM_NEAR == 0 || j < HELD_K) {
            held[u][j] = numbers;
            return;
        }
#pragma unroll
        for (int i = 0; i < 2 * SLOTS; ++i)
            place(u, j, i) = reinterpret_cast<const float4*>(&numbers)[i];
    }

    __device__ float4& place(int u, int j, int quad) const {
        return part_behind<NearTiles, OneLaunchRest>(shared)
            .quads[Weights::first_unit_tile() + u][Weights::feature_tile(j) - FIRST_NEAR][quad]
                  [threadIdx.x % 32];
    }
};
