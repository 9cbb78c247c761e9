// Weights of a small network in groups of four warps (group_network.cuh). A group has tiles of 16
// units of any layer, whose weights are a thread's as accumulators of wgmma lie, and updates them;
// so all groups do the same with other tiles. Of several blocks each has a tile of a bundle: it
// gets the others' sums, and gives them its weights.
#pragma once

#include "resident/layout/group_network.cuh"

// -- other blocks ---------------------------------------------------------------------------------

// Leaves sums of a bundle's tiles to the blocks that have these, from the next rank on. Which those
// are follows from the block's own rank: so there is code for each OWN.
template <int COUNT, int OWN = 0>
__device__ inline void send_sums(const float (&sums)[COUNT], const SmallShared& shared,
                                 int bundle) {
    if constexpr (OWN + 1 < CLUSTER)
        if (own_rank() != OWN) return send_sums<COUNT, OWN + 1>(sums, shared, bundle);
    Exchange& exchange = exchange_of(shared);
    float4* place = &exchange.sums[OWN][bundle][0][thread_of_group()];
#pragma unroll
    for (int i = 0; i < CLUSTER; ++i) {
        const int rank = (OWN + 1 + i) % CLUSTER;
        if (8 * rank >= COUNT || !is_there(tile_of_block(bundle, rank))) continue;
        const float* own = sums + 8 * rank;
        if (rank == OWN) {
            place[0] = {own[0], own[1], own[2], own[3]};
            place[GROUP_THREADS] = {own[4], own[5], own[6], own[7]};
            continue;
        }
        const unsigned far = place_in(rank, place),
                       full = place_in(rank, &exchange.sums_full[bundle]);
        const auto& words = reinterpret_cast<const unsigned (&)[2][4]>(*own);
        store_async_quad(far, words[0], full);
        store_async_quad(far + GROUP_THREADS * sizeof(float4), words[1], full);
    }
}

// Adds up those of all blocks, in the order of their ranks; a thread of the group counts others'.
__device__ inline void add_ranks(float (&sums)[8], const SmallShared& shared, int bundle,
                                 int step) {
    Exchange& exchange = exchange_of(shared);
    Barrier& full = exchange.sums_full[bundle];
    if (thread_of_group() == 0) mbarrier_expect(&full, (CLUSTER - 1) * 32 * GROUP_THREADS);
    wait(full, step);
#pragma unroll
    for (int i = 0; i < 2 * CLUSTER; ++i) {
        const float4 four = exchange.sums[i / 2][bundle][i % 2][thread_of_group()];
        const float numbers[4] = {four.x, four.y, four.z, four.w};
#pragma unroll
        for (int j = 0; j < 4; ++j) {
            float& sum = sums[4 * (i % 2) + j];
            sum = i < 2 ? numbers[j] : sum + numbers[j];
        }
    }
}

// Until all weights that other blocks have updated are there. A group calls.
__device__ inline void await_words(SmallShared& shared, int phase) {
    Barrier& full = exchange_of(shared).words_full;
    int own = 0;
#pragma unroll
    for (int bundle = 0; bundle < BUNDLES; ++bundle)
        own += is_there(tile_of_block(bundle, own_rank()));
    if (thread_of_group() == 0) mbarrier_expect(&full, (ALL_TILES - own) * 16 * GROUP_THREADS);
    wait(full, phase);
}

// -- tiles ----------------------------------------------------------------------------------------

// What a thread has of a tile: of two inputs two neighbours each of the first 8 units, and of the
// others.
struct HeldTile {
    float numbers[8], slots[8][SLOT_PLACES];

    // What optimizer state keeps does not wait for gradients.
    __device__ void fade(const SmallRun& run) {
#pragma unroll
        for (int i = 0; i < 8; ++i) fade_slots(slots[i], run.rule);
    }

    // Two neighbours, which share a reciprocal.
    __device__ void update_two(int i, const float (&sums)[8], const SmallRun& run,
                               const StepSettings& settings) {
        if constexpr (OwnRule::IS_LINEAR)
#pragma unroll
            for (int j = i; j < i + 2; ++j)
                update_parameter(numbers[j], slots[j], sums[j], run.unscale(), settings, run.rule);
        update_pair(pair_of(numbers[i]), pair_of(slots[i]), pair_of(sums[i]), run.unscale(),
                    settings, run.rule);
    }

    // Leaves weights to products, of other blocks, too: a lane sends the 16 bytes that it has a
    // place for.
    __device__ void share(SmallShared& shared, int bundle) const {
        const Place tile = tile_of_block(bundle, own_rank());
        const float (&own)[8] = numbers;
        unsigned char* place =
            shared.weights[tile.layer] + place_of(16 * warp_of_group(), tile.column);
        stmatrix_x4(place, {packed<T>(own[0], own[1]), packed<T>(own[2], own[3]),
                            packed<T>(own[4], own[5]), packed<T>(own[6], own[7])});
        if constexpr (CLUSTER > 1) {
            __syncwarp();
            const uint4 quad = *reinterpret_cast<const uint4*>(place);
#pragma unroll
            for (int i = 0; i < CLUSTER - 1; ++i)
                store_async_quad(place_in(other_rank(i), place), {quad.x, quad.y, quad.z, quad.w},
                                 place_in(other_rank(i), &exchange_of(shared).words_full));
        }
    }

    __device__ void update(SmallShared& shared, const SmallRun& run, const StepSettings& settings,
                           const float (&sums)[8], int bundle) {
        const Place tile = tile_of_block(bundle, own_rank());
        // Of layers of few inputs some warps have none.
        if (CLUSTER == 1 && 16 * warp_of_group() >= tile.inputs) return;
        const bool is_whole = tile.units - 16 * tile.column > 8;  // or has only the first 8 units
#pragma unroll
        for (int i = 0; i < 8; i += 2)
            if (i < 4 || is_whole) update_two(i, sums, run, settings);
        share(shared, bundle);
    }

    // f(number, its place in memory) for each that the layer has, and its optimizer state.
    template <class F>
    __device__ void each(const Place& place, const Arrays& arrays, F f) {
        float* const* of_layer = arrays.of_layers + 2 * place.layer * (1 + SLOTS);
#pragma unroll
        for (int slot = -1; slot < SLOTS; ++slot) {
            float* const first = of_layer[1 + slot];
#pragma unroll
            for (int i = 0; i < 8; ++i) {
                const int input = 16 * warp_of_group() + own_lane() / 4 + i / 2 % 2 * 8,
                          unit = 16 * place.column + i / 4 * 8 + own_lane() % 4 * 2 + i % 2;
                if (input < place.inputs && unit < place.units)
                    f(slot < 0 ? numbers[i] : slots[i][slot < 0 ? 0 : slot],
                      first + input * place.units + unit);
            }
        }
    }
};

// A group's tiles, of the bundles from `first` on: of the hidden layers', or the outputs' alone.
template <bool OF_OUTPUTS>
struct HeldWeights {
    static constexpr int MOST = OF_OUTPUTS ? 1 : (OUT_BUNDLE + GROUPS - 1) / GROUPS,
                         TILES = OF_OUTPUTS ? 1 : CLUSTER;  // of a bundle
    using Sums = float[8 * TILES];

    unsigned group;
    HeldTile tiles[MOST];

    // f(bundle, the which of the group's it is).
    template <class F>
    __device__ void each_bundle(F f) {
        if constexpr (OF_OUTPUTS) {
            f(OUT_BUNDLE, 0);
        } else {
#pragma unroll
            for (int i = MOST - 1; i >= 0; --i) {
                const int bundle = static_cast<int>(group) + i * GROUPS;
                if (OUT_BUNDLE % GROUPS == 0 || bundle < OUT_BUNDLE) f(bundle, i);
            }
        }
    }

    // f(tile, its bundle) for those that this block updates.
    template <class F>
    __device__ void each_tile(F f) {
        each_bundle([&](int bundle, int i) {
            if (is_there(tile_of_block(bundle, own_rank()))) f(tiles[i], bundle);
        });
    }

    // f(number, its place in memory) for these.
    template <class F>
    __device__ void each(const Arrays& arrays, F f) {
        each_tile([&](HeldTile& tile, int bundle) {
            tile.each(tile_of_block(bundle, own_rank()), arrays, f);
        });
    }

    // Zeros that follow from nothing: others would be in registers before the group has its own.
    __device__ void clear() {
        const float zero = __uint_as_float(unforeseen(0u));
#pragma unroll
        for (HeldTile& tile : tiles) {
#pragma unroll
            for (int i = 0; i < 8; ++i) {
                tile.numbers[i] = zero;
#pragma unroll
                for (float& slot : tile.slots[i]) slot = zero;
            }
        }
    }

    // Before the first step.
    __device__ void begin(SmallShared& shared, const Arrays& arrays) {
        clear();
        each(arrays, [](float& number, const float* place) { number = *place; });
        each_tile([&](HeldTile& tile, int bundle) { tile.share(shared, bundle); });
        if (CLUSTER > 1 && group == 0) await_words(shared, 0);
    }

    // Starts the product of what a layer takes, across, and the gradients of its units from
    // `column` on.
    template <int COUNT>
    __device__ static void multiply(float (&sums)[COUNT], const SmallShared& shared, int layer,
                                    int column) {
        const uint64 inputs = operand_at(shared.inputs[layer], 0),
                     gradients = operand_at(shared.dz[layer], column * SLICE_BYTES);
#pragma unroll
        for (float& number : sums) number = 0;
        wgmma_fence();
#pragma unroll
        for (int k = 0; k < ROW_SLICES; ++k)
            SliceProduct<T, true, true>::add_to(sums, moved(inputs, 16 * k * LINE_BYTES),
                                                moved(gradients, 16 * k * LINE_BYTES),
                                                begins_or_adds(k));
        wgmma_commit();
    }

    __device__ static void multiply_bundle(Sums& sums, const SmallShared& shared, int bundle) {
        const Place place = place_of_bundle(bundle);
        multiply(sums, shared, place.layer, place.column * CLUSTER);
    }

    // All tiles of a layer at once, where one group has them.
    template <int L = 0>
    __device__ static void multiply_layers(float (&sums)[MOST][8], const SmallShared& shared) {
        constexpr int FIRST = bundles_before(L), TILES_OF = bundles_before(L + 1) - FIRST;
        multiply(reinterpret_cast<float (&)[8 * TILES_OF]>(sums[FIRST]), shared, L, 0);
        if constexpr (L + 1 < HIDDEN) multiply_layers<L + 1>(sums, shared);
    }

    __device__ void fade(const SmallRun& run) {
#pragma unroll
        for (HeldTile& tile : tiles) tile.fade(run);
    }

    // All bundles take a step's gradients in.
    __device__ void update(SmallShared& shared, const SmallRun& run, const StepSettings& settings,
                           int step) {
        if constexpr (CLUSTER == 1) {
            Sums sums[MOST];
            if constexpr (GROUPS == 1 && !OF_OUTPUTS)
                multiply_layers(sums, shared);
            else
                each_bundle([&](int bundle, int i) { multiply_bundle(sums[i], shared, bundle); });
            fade(run);
            wgmma_wait<0>();
            each_bundle([&](int bundle, int i) {
                tiles[i].update(shared, run, settings, sums[i], bundle);
            });
        } else {
            each_bundle([&](int bundle, int) {
                Sums sums;
                multiply_bundle(sums, shared, bundle);
                wgmma_wait<0>();
                send_sums(sums, shared, bundle);
            });
            fade(run);
            each_bundle([&](int bundle, int i) {
                if (!is_there(tile_of_block(bundle, own_rank()))) return;
                float sums[8];
                add_ranks(sums, shared, bundle, step);
                tiles[i].update(shared, run, settings, sums, bundle);
            });
            if (group == 0) await_words(shared, step + 1);
        }
    }
};
