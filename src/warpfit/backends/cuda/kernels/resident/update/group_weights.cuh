// Parameters of a small network in groups of four warps (group_network.cuh): each group has some
// tiles of 16 units of all hidden layers, whose weights are a thread's as accumulators of wgmma
// lie; the first has the outputs', in shared memory, as all biases are. Who has them updates them.
// Users: one_launch_small_sm90.cu.
#pragma once

#include "resident/layout/group_network.cuh"

// What of layer L is a group's: so many bundles of tiles, from one of the layer and one of the
// group's on; and the tiles that there are of them.
template <int G, int L>
struct Share {
    static constexpr int BEGIN = BUNDLES * G / GROUPS, END = BUNDLES * (G + 1) / GROUPS;
    static constexpr int LAYER_BEGIN = bundles_before(L), LAYER_END = bundles_before(L + 1);
    static constexpr int FROM = larger(BEGIN, LAYER_BEGIN), TO = smaller(END, LAYER_END);
    static constexpr int COUNT = larger(TO - FROM, 0), OWN = FROM - BEGIN;
    static constexpr int FIRST_TILE = (FROM - LAYER_BEGIN) * CLUSTER,
                         TILES = smaller(COUNT * CLUSTER, tiles_of(L) - FIRST_TILE);

    // Whether there is the tile of a block in each bundle, whoever it is of.
    static constexpr bool ARE_WHOLE = TILES == COUNT * CLUSTER;

    __device__ static int own_tile(int bundle) { return FIRST_TILE + bundle * CLUSTER + own_rank(); }
    __device__ static bool has_own(int bundle) {
        return ARE_WHOLE || own_tile(bundle) < tiles_of(L);
    }
};

struct HeldWeights {
    float numbers[8 * MOST_BUNDLES], slots[SLOT_PLACES][8 * MOST_BUNDLES];

    // Two neighbours, which share a reciprocal.
    __device__ void update_two(int i, const float* sums, const SmallRun& run,
                               const StepSettings& step) {
        float pair[2], of_pair[2][SLOT_PLACES];
        const float gradients[2] = {sums[0], sums[1]};
#pragma unroll
        for (int j = 0; j < 2; ++j) {
            pair[j] = numbers[i + j];
#pragma unroll
            for (int slot = 0; slot < SLOTS; ++slot) of_pair[j][slot] = slots[slot][i + j];
            if constexpr (OwnRule::IS_LINEAR)
                update_parameter(pair[j], of_pair[j], gradients[j], run.unscale, step, run.rule);
            else
                fade_slots(of_pair[j], run.rule);
        }
        update_pair(pair, of_pair, gradients, run.unscale, step, run.rule);
#pragma unroll
        for (int j = 0; j < 2; ++j) {
            numbers[i + j] = pair[j];
#pragma unroll
            for (int slot = 0; slot < SLOTS; ++slot) slots[slot][i + j] = of_pair[j][slot];
        }
    }
};

// f(number, slot, place) for each weight of a group's share of all layers that there is, and its
// optimizer state; slot -1 is the weight itself, place that in the layer.
template <int G, int L = 0, class F>
__device__ inline void each_weight(HeldWeights& held, F f) {
    using Own = Share<G, L>;
#pragma unroll
    for (int i = 0; i < 8 * Own::COUNT; ++i) {
        const int input = 16 * warp_of_group() + own_lane() / 4 + i / 2 % 2 * 8,
                  unit = 16 * Own::own_tile(i / 8) + i / 4 % 2 * 8 + own_lane() % 4 * 2 + i % 2;
        if (input >= WIDTHS[L] || unit >= WIDTHS[L + 1]) continue;
        const int place = input * WIDTHS[L + 1] + unit;
        f.template operator()<L>(held.numbers[8 * Own::OWN + i], -1, place);
#pragma unroll
        for (int slot = 0; slot < SLOTS; ++slot)
            f.template operator()<L>(held.slots[slot][8 * Own::OWN + i], slot, place);
    }
    if constexpr (L + 1 < HIDDEN) each_weight<G, L + 1>(held, f);
}

// Leaves the warp's part of a tile of weights to products.
__device__ inline void store_tile(unsigned char* lines, int tile, const unsigned (&words)[4]) {
    stmatrix_x4(lines + place_of(16 * warp_of_group(), tile), words);
}

// Slices of rows that wait for a product together: their operands are in registers.
constexpr int AT_ONCE = 4;

// The product of what layer L takes, across, with the gradients of a share.
template <int G, int L, class F>
__device__ inline void multiply_across(float (&sums)[8 * Share<G, L>::TILES],
                                       const SmallShared& shared, int stage, F meanwhile) {
    const auto gradients = [&](int k) {
        return operand_at(shared.dz[L], 16 * k * LINE_BYTES + Share<G, L>::FIRST_TILE * SLICE_BYTES);
    };
    if constexpr (L > 0) {
        wgmma_fence();
#pragma unroll
        for (int k = 0; k < ROW_SLICES; ++k)
            SliceProduct<T, true, true>::add_to(
                sums, operand_at(shared.h[L - 1], 16 * k * LINE_BYTES), gradients(k), k > 0);
        wgmma_commit();
        meanwhile();
        wgmma_wait<0>();
    } else {
#pragma unroll
        for (int first = 0; first < ROW_SLICES; first += AT_ONCE) {
            unsigned a[AT_ONCE][4] = {};
            const int column = 16 * warp_of_group();
#pragma unroll
            for (int i = 0; i < AT_ONCE; ++i) {
                if (first + i < ROW_SLICES && column < padded(0))
                    load_a_transposed(a[i], &shared.x[stage][16 * (first + i)][column], X_STRIDE);
            }
            wgmma_fence();
#pragma unroll
            for (int i = 0; i < AT_ONCE; ++i) {
                if (first + i < ROW_SLICES)
                    RegisterProduct<T>::template add_to<true>(sums, a[i], gradients(first + i),
                                                              first + i > 0);
            }
            wgmma_commit();
            if (first == 0) meanwhile();
            wgmma_wait<0>();
        }
    }
}

// -- a share of a layer ---------------------------------------------------------------------------

// What a share adds up over this block's rows: of its tiles, and of the biases of 16 units, which a
// warp has of each (lane / 4 and the one 8 further on).
template <int G, int L>
struct ShareSums {
    float weights[8 * larger(Share<G, L>::TILES, 1)];
    float2 biases;
};

template <int G, int L>
__device__ inline float2 add_biases(const SmallShared& shared) {
    const unsigned one = packed<T>(1, 1), ones[2] = {one, one};
    float sums[2][4] = {};
#pragma unroll
    for (int k = 0; k < ROW_SLICES; ++k) {
        unsigned a[4];
        ldmatrix_x4_trans(a[0], a[1], a[2], a[3],
                          shared.dz[L] + place_across(16 * k, Share<G, L>::FIRST_TILE +
                                                                  warp_of_group()));
        TensorCore<T>::multiply(sums[k % 2], a, ones);
    }
    return {sums[0][0] + sums[1][0], sums[0][2] + sums[1][2]};
}

// Where another block's FromOther is in the shared memory of block `to`, which this one fills.
__device__ inline FromOther& own_place_at(const SmallShared& shared, int to) {
    return exchange_of(shared).others[(own_rank() - to + CLUSTER) % CLUSTER - 1];
}

__device__ inline int other_rank(int i) { return (own_rank() + 1 + i) % CLUSTER; }

__device__ inline void send_quad(int to, const void* place, const float* numbers,
                                 const Barrier& full) {
    const unsigned words[4] = {__float_as_uint(numbers[0]), __float_as_uint(numbers[1]),
                               __float_as_uint(numbers[2]), __float_as_uint(numbers[3])};
    store_async_quad(place_in(to, place), words, place_in(to, &full));
}

// To the blocks that update the tiles, and all that update the biases.
template <int G, int L>
__device__ inline void send_sums(const SmallShared& shared, const ShareSums<G, L>& sums) {
    using Own = Share<G, L>;
    const Barrier& full = exchange_of(shared).sums_full[L][G];
    const int own = threadIdx.x % GROUP_THREADS;
#pragma unroll
    for (int tile = 0; tile < Own::TILES; ++tile) {
        const int to = tile % CLUSTER;
        if (to == own_rank()) continue;
        auto& place = own_place_at(shared, to).sums[Own::FROM + tile / CLUSTER];
        send_quad(to, &place[0][own], sums.weights + 8 * tile, full);
        send_quad(to, &place[1][own], sums.weights + 8 * tile + 4, full);
    }
    if (warp_of_group() >= Own::TILES || own_lane() % 4) return;
    const int pair = 8 * (Own::FIRST_TILE + warp_of_group()) + own_lane() / 4;
#pragma unroll
    for (int i = 0; i < OTHERS; ++i) {
        const int to = other_rank(i);
        store_async_pair(place_in(to, &own_place_at(shared, to).biases[L][pair]),
                         __float_as_uint(sums.biases.x), __float_as_uint(sums.biases.y),
                         place_in(to, &full));
    }
}

// Until what all others send of something in a step is there; a thread of the group counts it.
__device__ inline void await_others(Barrier& full, int step, unsigned bytes) {
    if (threadIdx.x % GROUP_THREADS == 0) mbarrier_expect(&full, bytes);
    wait(full, step);
}

__device__ inline void update_shared(float* number, int apart, float sum, const SmallRun& run,
                                     const StepSettings& step) {
    update_in_place(
        *number, [&](int slot) -> float& { return number[(1 + slot) * apart]; }, sum, run.unscale,
        step, run.rule);
}

// The sum over all blocks in the order of their ranks; of_other(i) is the i-th other's.
template <class F>
__device__ inline float sum_of_ranks(float own, F of_other) {
    float sum = 0;
#pragma unroll
    for (int rank = 0; rank < CLUSTER; ++rank)
        sum += rank == own_rank() ? own : of_other((rank - own_rank() + CLUSTER) % CLUSTER - 1);
    return sum;
}

template <int G, int L>
__device__ inline void update_biases(SmallShared& shared, const SmallRun& run,
                                     const StepSettings& step, float2 sums) {
    using Own = Share<G, L>;
    if (warp_of_group() >= Own::TILES) return;
    const int tile = Own::FIRST_TILE + warp_of_group(), pair = 8 * tile + own_lane() / 4,
              half = own_lane() % 4, unit = 16 * tile + own_lane() / 4 + 8 * half;
    if (half > 1) return;
    float sum = half ? sums.y : sums.x;
    if constexpr (CLUSTER > 1) {
        const Exchange& exchange = exchange_of(shared);
        sum = sum_of_ranks(sum, [&](int i) {
            const float2 found = exchange.others[i].biases[L][pair];
            return half ? found.y : found.x;
        });
    }
    update_shared(&shared.biases[L][0][unit], UNITS, sum, run, step);
}

template <int G, int L>
__device__ inline void multiply_share(SmallShared& shared, ShareSums<G, L>& sums, int stage) {
    using Own = Share<G, L>;
    if constexpr (Own::COUNT > 0) {
#pragma unroll
        for (float& number : sums.weights) number = 0;
        multiply_across<G, L>(sums.weights, shared, stage, [&] {
            if (warp_of_group() < Own::TILES) sums.biases = add_biases<G, L>(shared);
        });
        if constexpr (CLUSTER > 1) send_sums(shared, sums);
    }
}

// The sums over all blocks' rows of the tile of a bundle that is this block's.
template <int G, int L>
__device__ inline void find_sums(float (&found)[8], const SmallShared& shared,
                                 const ShareSums<G, L>& sums, int bundle) {
#pragma unroll
    for (int i = 0; i < 8; ++i) {
        found[i] = sums.weights[8 * CLUSTER * bundle + i];
#pragma unroll
        for (int rank = 1; rank < CLUSTER; ++rank) {
            if (CLUSTER * bundle + rank < Share<G, L>::TILES && rank == own_rank())
                found[i] = sums.weights[8 * (CLUSTER * bundle + rank) + i];
        }
    }
    if constexpr (CLUSTER > 1) {
#pragma unroll
        for (int i = 0; i < OTHERS; ++i) {
            auto& place = exchange_of(shared).others[i].sums[Share<G, L>::FROM + bundle];
#pragma unroll
            for (int half = 0; half < 2; ++half) {
                const float4 four = place[half][threadIdx.x % GROUP_THREADS];
                found[4 * half] += four.x;
                found[4 * half + 1] += four.y;
                found[4 * half + 2] += four.z;
                found[4 * half + 3] += four.w;
            }
        }
    }
}

template <int G, int L>
__device__ inline void update_share(SmallShared& shared, const SmallRun& run,
                                    const StepSettings& settings, HeldWeights& held,
                                    const ShareSums<G, L>& sums, int step) {
    using Own = Share<G, L>;
    if constexpr (Own::COUNT > 0) {
        if constexpr (CLUSTER > 1) {
            int tiles = 0;
#pragma unroll
            for (int i = 0; i < Own::COUNT; ++i) tiles += Own::has_own(i);
            await_others(exchange_of(shared).sums_full[L][G], step,
                         OTHERS * (tiles * 32 * GROUP_THREADS + 8 * 8 * Own::TILES));
        }
        update_biases<G, L>(shared, run, settings, sums.biases);
        if (16 * warp_of_group() >= padded(L) && CLUSTER == 1) return;
#pragma unroll
        for (int bundle = 0; bundle < Own::COUNT; ++bundle) {
            if (!Own::has_own(bundle)) continue;
            float found[8];
            find_sums(found, shared, sums, bundle);
            const int at = 8 * (Own::OWN + bundle);
#pragma unroll
            for (int i = 0; i < 8; i += 2) held.update_two(at + i, found + i, run, settings);
            const float* own = held.numbers + at;
            const unsigned words[4] = {packed<T>(own[0], own[1]), packed<T>(own[2], own[3]),
                                       packed<T>(own[4], own[5]), packed<T>(own[6], own[7])};
            store_tile(shared.weights[L], Own::own_tile(bundle), words);
            if constexpr (CLUSTER > 1) {
                Exchange& exchange = exchange_of(shared);
#pragma unroll
                for (int i = 0; i < OTHERS; ++i) {
                    const int to = other_rank(i);
                    store_async_quad(
                        place_in(to, &own_place_at(shared, to)
                                          .words[Own::FROM + bundle][threadIdx.x % GROUP_THREADS]),
                        words, place_in(to, &exchange.words_full[L][G]));
                }
            }
        }
    }
}

// The weights that others have updated.
template <int G, int L>
__device__ inline void receive_share(SmallShared& shared, int step) {
    using Own = Share<G, L>;
    if constexpr (CLUSTER > 1 && Own::COUNT > 0) {
        Exchange& exchange = exchange_of(shared);
        int tiles = 0;
#pragma unroll
        for (int i = 0; i < Own::COUNT; ++i) tiles += Own::has_own(i);
        await_others(exchange.words_full[L][G], step, (Own::TILES - tiles) * 16 * GROUP_THREADS);
#pragma unroll
        for (int tile = 0; tile < Own::TILES; ++tile) {
            const int from = tile % CLUSTER;
            if (from == own_rank()) continue;
            const FromOther& other = exchange.others[(from - own_rank() + CLUSTER) % CLUSTER - 1];
            const uint4 quad = other.words[Own::FROM + tile / CLUSTER][threadIdx.x % GROUP_THREADS];
            store_tile(shared.weights[L], Own::FIRST_TILE + tile, {quad.x, quad.y, quad.z, quad.w});
        }
    }
}

// Those of all layers from L down.
template <int G, int L = HIDDEN - 1>
struct GroupSums : GroupSums<G, L - 1> {
    ShareSums<G, L> own;
};
template <int G>
struct GroupSums<G, -1> {};

template <int G, int L = HIDDEN - 1>
__device__ inline void multiply_layers(SmallShared& shared, GroupSums<G, L>& sums, int stage) {
    multiply_share<G, L>(shared, sums.own, stage);
    if constexpr (L > 0) multiply_layers<G, L - 1>(shared, sums, stage);
}

template <int G, int L = HIDDEN - 1>
__device__ inline void update_layers(SmallShared& shared, const SmallRun& run,
                                     const StepSettings& settings, HeldWeights& held,
                                     GroupSums<G, L>& sums, int stage, int step) {
    if constexpr (CLUSTER == 1) multiply_share<G, L>(shared, sums.own, stage);
    update_share<G, L>(shared, run, settings, held, sums.own, step);
    if constexpr (L > 0) update_layers<G, L - 1>(shared, run, settings, held, sums, stage, step);
}

template <int G, int L = 0>
__device__ inline void receive_layers(SmallShared& shared, int step) {
    receive_share<G, L>(shared, step);
    if constexpr (L + 1 < HIDDEN) receive_layers<G, L + 1>(shared, step);
}

// -- outputs --------------------------------------------------------------------------------------

__device__ inline void store_out_weights(SmallShared& shared) {
    const int own = threadIdx.x % GROUP_THREADS;
#pragma unroll
    for (int i = 0; i < 2 * OUT_TILES; ++i) {
        const int unit = 16 * warp_of_group() + own_lane() / 4 + i % 2 * 8;
        *reinterpret_cast<unsigned*>(&shared.out_weights[i / 2][unit][own_lane() % 4 * 2]) =
            packed<T>(shared.out_numbers[0][2 * i][own], shared.out_numbers[0][2 * i + 1][own]);
    }
}

// f(number, slot, place) for each weight of the outputs that a thread has.
template <class F>
__device__ inline void each_out_weight(SmallShared& shared, F f) {
    const int own = threadIdx.x % GROUP_THREADS;
#pragma unroll
    for (int i = 0; i < 4 * OUT_TILES; ++i) {
        const int input = 16 * warp_of_group() + own_lane() / 4 + i / 2 % 2 * 8,
                  unit = i / 4 * 8 + own_lane() % 4 * 2 + i % 2;
        if (input >= WIDTHS[HIDDEN] || unit >= OUTPUTS) continue;
        for (int slot = -1; slot < SLOTS; ++slot)
            f(shared.out_numbers[1 + slot][i][own], slot, input * OUTPUTS + unit);
    }
}

struct OutSums {
    float weights[OUT_TILES][4], biases[OUT_TILES][4];
};

__device__ inline void add_outputs(OutSums& sums, const SmallShared& shared) {
    const int warp = warp_of_group();
    const unsigned one = packed<T>(1, 1), ones[4] = {one, one, one, one};
#pragma unroll
    for (int k = 0; k < ROW_SLICES; k += 2) {
        constexpr int LAST = ROW_SLICES - 1;
        unsigned b[OUT_TILES][2][2];
#pragma unroll
        for (int tile = 0; tile < OUT_TILES; ++tile)
            ldmatrix_x4_trans(b[tile][0][0], b[tile][0][1], b[tile][1][0], b[tile][1][1],
                              shared.dz_out[tile][16 * k + own_lane() % (k < LAST ? 32 : 16)]);
#pragma unroll
        for (int i = 0; i < 2; ++i) {
            if (k + i > LAST) continue;
            unsigned a[4];
            ldmatrix_x4_trans(a[0], a[1], a[2], a[3],
                              shared.h[HIDDEN - 1] + place_across(16 * (k + i), warp));
#pragma unroll
            for (int tile = 0; tile < OUT_TILES; ++tile) {
                TensorCore<T>::multiply(sums.weights[tile], a, b[tile][i]);
                if (warp == 0) TensorCore<T>::multiply(sums.biases[tile], ones, b[tile][i]);
            }
        }
    }
}

__device__ inline void send_outputs(const SmallShared& shared, const OutSums& sums) {
    const int own = threadIdx.x % GROUP_THREADS;
    const Barrier& full = exchange_of(shared).outputs_full;
#pragma unroll
    for (int i = 0; i < OTHERS; ++i) {
        const int to = other_rank(i);
        FromOther& place = own_place_at(shared, to);
#pragma unroll
        for (int tile = 0; tile < OUT_TILES; ++tile) {
            send_quad(to, &place.out_weights[tile][own], sums.weights[tile], full);
            if (own < 4)
                store_async_pair(place_in(to, &place.out_biases[tile][own]),
                                 __float_as_uint(sums.biases[tile][0]),
                                 __float_as_uint(sums.biases[tile][1]), place_in(to, &full));
        }
    }
}

__device__ inline void join_outputs(SmallShared& shared, OutSums& sums, int step) {
    const int own = threadIdx.x % GROUP_THREADS;
    Exchange& exchange = exchange_of(shared);
    await_others(exchange.outputs_full, step, OTHERS * OUT_TILES * (16 * GROUP_THREADS + 4 * 8));
#pragma unroll
    for (int tile = 0; tile < OUT_TILES; ++tile) {
#pragma unroll
        for (int i = 0; i < 4; ++i)
            sums.weights[tile][i] = sum_of_ranks(sums.weights[tile][i], [&](int other) {
                return reinterpret_cast<const float*>(
                    &exchange.others[other].out_weights[tile][own])[i];
            });
#pragma unroll
        for (int i = 0; i < 2; ++i)
            sums.biases[tile][i] = sum_of_ranks(sums.biases[tile][i], [&](int other) {
                return reinterpret_cast<const float*>(
                    &exchange.others[other].out_biases[tile][own % 4])[i];
            });
    }
}

__device__ inline void update_outputs(SmallShared& shared, const SmallRun& run,
                                      const StepSettings& settings, OutSums& sums, int step) {
    const int own = threadIdx.x % GROUP_THREADS;
    if constexpr (CLUSTER > 1) join_outputs(shared, sums, step);
#pragma unroll
    for (int i = 0; i < 4 * OUT_TILES; ++i)
        update_shared(&shared.out_numbers[0][i][own], 4 * OUT_TILES * GROUP_THREADS,
                      sums.weights[i / 4][i % 4], run, settings);
    store_out_weights(shared);
    if (own >= 4) return;
#pragma unroll
    for (int i = 0; i < 2 * OUT_TILES; ++i)
        update_shared(&shared.out_biases[0][i / 2 * 8 + own * 2 + i % 2], 8 * OUT_TILES,
                      sums.biases[i / 2][i % 2], run, settings);
}

// All of a group's in a step; the first group has the outputs', too.
template <int G>
__device__ inline void update_group(SmallShared& shared, const SmallRun& run,
                                    const StepSettings& settings, HeldWeights& held, int stage,
                                    int step) {
    OutSums sums = {};
    if constexpr (G == 0) {
        add_outputs(sums, shared);
        if constexpr (CLUSTER > 1) send_outputs(shared, sums);
    }
    GroupSums<G> of_layers;
    if constexpr (CLUSTER > 1) multiply_layers<G>(shared, of_layers, stage);
    update_layers<G>(shared, run, settings, held, of_layers, stage, step);
    if constexpr (G == 0) update_outputs(shared, run, settings, sums, step);
    if constexpr (CLUSTER > 1) receive_layers<G>(shared, step);
}
