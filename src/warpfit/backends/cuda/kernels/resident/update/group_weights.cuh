// Weights of a small network in groups of four warps (group_network.cuh). A group has tiles of 16
// units of any layer, whose weights are a thread's as accumulators of wgmma lie, and updates them;
// so all groups do the same with other tiles. Of several blocks each has a tile of a bundle: it
// gets the others' sums, and gives them its weights.
#pragma once

#include "resident/layout/group_network.cuh"

// Leaves the warp's part of a tile to products.
__device__ inline void store_tile(SmallShared& shared, const Place& tile,
                                  const unsigned (&words)[4]) {
    stmatrix_x4(shared.weights[tile.layer] + place_of(16 * warp_of_group(), tile.column), words);
}

// -- other blocks ---------------------------------------------------------------------------------

template <class Number>
__device__ inline void send_quad(int to, const void* place, const Number* four,
                                 const Barrier& full) {
    store_async_quad(place_in(to, place), reinterpret_cast<const unsigned (&)[4]>(*four),
                     place_in(to, &full));
}

// Until what all others send of something in a phase is there; a thread of the group counts it.
__device__ inline void await_others(Barrier& full, int phase, unsigned bytes) {
    if (thread_of_group() == 0) mbarrier_expect(&full, bytes);
    wait(full, phase);
}

// Sends others their tiles' sums of a bundle, and keeps this block's.
template <int COUNT>
__device__ inline void send_sums(float (&own)[8], const float (&sums)[COUNT],
                                 const SmallShared& shared, int bundle) {
    Exchange& exchange = exchange_of(shared);
#pragma unroll
    for (int rank = 0; rank < COUNT / 8; ++rank) {
        const float* of_rank = sums + 8 * rank;
        if (rank == own_rank()) {
#pragma unroll
            for (int i = 0; i < 8; ++i) own[i] = of_rank[i];
        } else if (is_there(tile_of_block(bundle, rank))) {
            auto& place = own_part_of(exchange, rank).sums[bundle];
#pragma unroll
            for (int half = 0; half < 2; ++half)
                send_quad(rank, &place[half][thread_of_group()], of_rank + 4 * half,
                          exchange.sums_full[bundle]);
        }
    }
}

__device__ inline void add_others(float (&sums)[8], const SmallShared& shared, int bundle,
                                  int step) {
    Exchange& exchange = exchange_of(shared);
    await_others(exchange.sums_full[bundle], step, (CLUSTER - 1) * 32 * GROUP_THREADS);
#pragma unroll
    for (int i = 0; i < 2 * (CLUSTER - 1); ++i) {
        const float4 four = exchange.others[i / 2].sums[bundle][i % 2][thread_of_group()];
        const float numbers[4] = {four.x, four.y, four.z, four.w};
#pragma unroll
        for (int j = 0; j < 4; ++j) sums[4 * (i % 2) + j] += numbers[j];
    }
}

// The tiles of a bundle that others have updated.
__device__ inline void receive_words(SmallShared& shared, int bundle, int phase) {
    Exchange& exchange = exchange_of(shared);
    unsigned bytes = 0;
#pragma unroll
    for (int i = 0; i < CLUSTER - 1; ++i)
        bytes += is_there(tile_of_block(bundle, other_rank(i))) ? 16 * GROUP_THREADS : 0;
    await_others(exchange.words_full[bundle], phase, bytes);
#pragma unroll
    for (int i = 0; i < CLUSTER - 1; ++i) {
        const Place tile = tile_of_block(bundle, other_rank(i));
        if (!is_there(tile)) continue;
        const uint4 quad = exchange.others[i].words[bundle][thread_of_group()];
        store_tile(shared, tile, {quad.x, quad.y, quad.z, quad.w});
    }
}

// -- tiles ----------------------------------------------------------------------------------------

// What a thread has of a tile: of two inputs two neighbours each of the first 8 units, and of the
// others.
struct HeldTile {
    float numbers[8], slots[8][SLOT_PLACES];

    // Two neighbours, which share a reciprocal.
    __device__ void update_two(int i, const float (&sums)[8], const SmallRun& run,
                               const StepSettings& settings) {
#pragma unroll
        for (int j = i; j < i + 2; ++j) {
            if constexpr (OwnRule::IS_LINEAR)
                update_parameter(numbers[j], slots[j], sums[j], run.unscale, settings, run.rule);
            else
                fade_slots(slots[j], run.rule);
        }
        update_pair(pair_of(numbers[i]), pair_of(slots[i]), pair_of(sums[i]), run.unscale, settings,
                    run.rule);
    }

    // Leaves weights to products, of other blocks, too.
    __device__ void share(SmallShared& shared, int bundle) const {
        const float (&own)[8] = numbers;
        const unsigned words[4] = {packed<T>(own[0], own[1]), packed<T>(own[2], own[3]),
                                   packed<T>(own[4], own[5]), packed<T>(own[6], own[7])};
        store_tile(shared, tile_of_block(bundle, own_rank()), words);
        if constexpr (CLUSTER == 1) return;
        Exchange& exchange = exchange_of(shared);
#pragma unroll
        for (int i = 0; i < CLUSTER - 1; ++i) {
            const int rank = other_rank(i);
            send_quad(rank, &own_part_of(exchange, rank).words[bundle][thread_of_group()], words,
                      exchange.words_full[bundle]);
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
        for (int i = 0; i < 8; ++i) {
            const int input = 16 * warp_of_group() + own_lane() / 4 + i / 2 % 2 * 8,
                      unit = 16 * place.column + i / 4 * 8 + own_lane() % 4 * 2 + i % 2;
            if (input >= place.inputs || unit >= place.units) continue;
            f(numbers[i], of_layer[0] + input * place.units + unit);
#pragma unroll
            for (int slot = 0; slot < SLOTS; ++slot)
                f(slots[i][slot], of_layer[1 + slot] + input * place.units + unit);
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
    HeldTile tiles[MOST] = {};

    // f(bundle, the which of the group's it is).
    template <class F>
    __device__ void each_bundle(F f) {
        if constexpr (OF_OUTPUTS) return f(OUT_BUNDLE, 0);
#pragma unroll
        for (int i = 0; i < MOST; ++i) {
            const int bundle = static_cast<int>(group) + i * GROUPS;
            if (OUT_BUNDLE % GROUPS == 0 || bundle < OUT_BUNDLE) f(bundle, i);
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

    __device__ void receive(SmallShared& shared, int phase) {
        if constexpr (CLUSTER > 1)
            each_bundle([&](int bundle, int) { receive_words(shared, bundle, phase); });
    }

    // Before the first step.
    __device__ void begin(SmallShared& shared, const Arrays& arrays) {
        each(arrays, [](float& number, const float* place) { number = *place; });
        each_tile([&](HeldTile& tile, int bundle) { tile.share(shared, bundle); });
        receive(shared, 0);
    }

    // Starts the product of what a bundle's layer takes, across, and the gradients of its units.
    __device__ static void multiply(Sums& sums, const SmallShared& shared, int bundle) {
        const Place place = place_of_bundle(bundle);
        const uint64 inputs = operand_at(shared.inputs[place.layer], 0),
                     gradients =
                         operand_at(shared.dz[place.layer], place.column * CLUSTER * SLICE_BYTES);
#pragma unroll
        for (float& number : sums) number = 0;
        wgmma_fence();
#pragma unroll
        for (int k = 0; k < ROW_SLICES; ++k)
            SliceProduct<T, true, true>::add_to(sums, moved(inputs, 16 * k * LINE_BYTES),
                                                moved(gradients, 16 * k * LINE_BYTES), k > 0);
        wgmma_commit();
    }

    // All bundles take a step's gradients in.
    __device__ void update(SmallShared& shared, const SmallRun& run, const StepSettings& settings,
                           int step) {
        if constexpr (CLUSTER == 1) {
            Sums sums[MOST];
            each_bundle([&](int bundle, int i) { multiply(sums[i], shared, bundle); });
            wgmma_wait<0>();
            each_bundle([&](int bundle, int i) {
                tiles[i].update(shared, run, settings, sums[i], bundle);
            });
        } else {
            float own[MOST][8];
            each_bundle([&](int bundle, int i) {
                Sums sums;
                multiply(sums, shared, bundle);
                wgmma_wait<0>();
                send_sums(own[i], sums, shared, bundle);
            });
            each_bundle([&](int bundle, int i) {
                if (!is_there(tile_of_block(bundle, own_rank()))) return;
                add_others(own[i], shared, bundle, step);
                tiles[i].update(shared, run, settings, own[i], bundle);
            });
            receive(shared, step + 1);
        }
    }
};
