// The weights that x meets where one_launch.cu is ADAPTIVE, with what the optimizer remembers of them: of a warp's first
// tiles in registers, and in shared memory of the NEAR_TILES for which registers have no room. Nobody but the thread that
// has a weight looks at it.
#pragma once

#include "trained_block.cuh"

#if ADAPTIVE
struct AdaptiveWeights {
    // Tiles of a warp along the features of which registers have what is remembered; then shared memory.
    static constexpr int HELD_K =
        NEAR_TILES > 0 ? (Weights::FEATURE_TILES - NEAR_TILES) / WARPS_K : Weights::MINE_K;
    static constexpr int FIRST_NEAR = HELD_K * WARPS_K;
    static_assert(NEAR_TILES == 0 || FIRST_NEAR + NEAR_TILES == Weights::FEATURE_TILES,
                  "all warps hold as many");

    // Of the eight weights of a tile that a thread has.
    struct Remembered {
        float slots[SLOTS][8];
    };

    Shared& shared;
    Weights weights;
    Remembered held[Weights::MINE_U][HELD_K > 0 ? HELD_K : 1];

    __device__ explicit AdaptiveWeights(Shared& shared) : shared(shared) {}

    __device__ void read(const LayerArrays& layer) {
        const Part units = own_units(), features = own_features();
        weights.read(layer.w + first_number(), ALL_UNITS, units.count, features.count, 1);
        each_slot([&](int slot, int unit, int feature, float& number) {
            const bool is_there = unit < units.count && feature < features.count;
            number = is_there ? layer.w_slots[slot][place_of(unit, feature)] : 0;
        });
    }

    __device__ void write(const LayerArrays& layer) {
        const Part units = own_units(), features = own_features();
        weights.write(layer.w + first_number(), ALL_UNITS, units.count, features.count, 1);
        each_slot([&](int slot, int unit, int feature, float& number) {
            if (unit < units.count && feature < features.count)
                layer.w_slots[slot][place_of(unit, feature)] = number;
        });
    }

    // Takes in the gradients of a batch, whose tiles lie at x, tile by tile: while tensor cores multiply one, others are
    // updated.
    __device__ void update(const Run& run, const StepRule& now, const T* dz, const T* const (&x)[ROW_TILES]) {
        unsigned a[ROW_TILES][Weights::MINE_U][4];
        Weights::load_gradients(a, dz, UNIT_STRIDE);
        float sums[2][Weights::MINE_U][2][4] = {};  // of a tile, and of the next one
        Weights::add_to_sums(sums[0], a, x, X_STRIDE, 0);
#pragma unroll
        for (int j = 0; j < Weights::MINE_K; ++j) {
            if (!Weights::has_tile(j)) break;
            if (j + 1 < Weights::MINE_K && Weights::has_tile(j + 1))
                Weights::add_to_sums(sums[(j + 1) % 2], a, x, X_STRIDE, j + 1);
#pragma unroll
            for (int u = 0; u < Weights::MINE_U; ++u) {
                update_tile(run, now, u, j, sums[j % 2][u]);
#pragma unroll
                for (int i = 0; i < 8; ++i) sums[j % 2][u][i / 4][i % 4] = 0;
            }
        }
    }

  private:
    __device__ static int64 first_number() {
        return static_cast<int64>(own_features().first) * ALL_UNITS + own_units().first;
    }
    __device__ static int64 place_of(int unit, int feature) {
        return first_number() + static_cast<int64>(feature) * ALL_UNITS + unit;
    }

    __device__ void update_tile(const Run& run, const StepRule& now, int u, int j,
                                const float (&sums)[2][4]) {
        Remembered numbers = load(u, j);
#pragma unroll
        for (int pair = 0; pair < 4; ++pair) {
            float (&w)[2] = reinterpret_cast<float (&)[2]>(weights.tiles[u][j][pair / 2][pair % 2 * 2]);
            const float of_pair[2] = {sums[pair / 2][pair % 2 * 2], sums[pair / 2][pair % 2 * 2 + 1]};
            float slots[2][SLOT_PLACES];
#pragma unroll
            for (int i = 0; i < 2 * SLOTS; ++i) slots[i % 2][i / 2] = numbers.slots[i / 2][2 * pair + i % 2];
            update_pair(w, slots, of_pair, run.gradient_unscale, now, run.rule);
#pragma unroll
            for (int i = 0; i < 2 * SLOTS; ++i) numbers.slots[i / 2][2 * pair + i % 2] = slots[i % 2][i / 2];
        }
        store(u, j, numbers);
    }

    // f(slot, unit, feature, number) for all that is remembered.
    template <class F>
    __device__ void each_slot(F f) {
#pragma unroll
        for (int j = 0; j < Weights::MINE_K; ++j) {
            if (!Weights::has_tile(j)) break;
#pragma unroll
            for (int u = 0; u < Weights::MINE_U; ++u) {
                Remembered numbers = load(u, j);
#pragma unroll
                for (int i = 0; i < SLOTS * 8; ++i)
                    f(i / 8, Weights::unit_of(u, i % 8), Weights::feature_of(j, i % 8),
                      numbers.slots[i / 8][i % 8]);
                store(u, j, numbers);
            }
        }
    }

    __device__ Remembered load(int u, int j) const {
        if (j < HELD_K) return held[u][j];
        Remembered numbers;
#if NEAR_TILES > 0
#pragma unroll
        for (int i = 0; i < 2 * SLOTS; ++i)
            *reinterpret_cast<float4*>(&numbers.slots[i / 2][i % 2 * 4]) = place(u, j, i);
#endif
        return numbers;
    }

    __device__ void store(int u, int j, const Remembered& numbers) {
        if (j < HELD_K) {
            held[u][j] = numbers;
            return;
        }
#if NEAR_TILES > 0
#pragma unroll
        for (int i = 0; i < 2 * SLOTS; ++i)
            place(u, j, i) = *reinterpret_cast<const float4*>(&numbers.slots[i / 2][i % 2 * 4]);
#endif
    }

#if NEAR_TILES > 0
    __device__ float4& place(int u, int j, int quad) const {
        return shared.near_slots[Weights::first_unit_tile() + u][Weights::feature_tile(j) - FIRST_NEAR][quad]
                                [threadIdx.x % 32];
    }
#endif
};
#endif
