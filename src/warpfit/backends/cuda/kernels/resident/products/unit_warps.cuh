// The two warpgroups of a block that have hidden units' weights: forward and backward products, and
// updates. A thread owns 8 weights of each slice of 16 features, in registers or its own places of
// shared memory. Owns h and dh until loss warps have them.
#pragma once

#include "ops/dropout/dropout.cuh"
#include "resident/update/unit_weights.cuh"

// What dropout leaves of the numbers of h that a thread has: a bit for each, and what those come
// times.
struct KeptUnits {
    unsigned bits;
    float scale;

    __device__ float factor(int i) const { return bits >> i & 1 ? scale : 0; }
};

// What these warps know of a network's run.
struct UnitWarps {
    ClusterShared& shared;
    Weights weights;
    const NetworkDropout* dropouts;       // of all networks
    KeptUnits kept = {~0u, 1};            // of the batch to come
    unsigned batches = 0, x_batches = 0;  // so far, over all networks
    double penalty = 0;                   // of the thread's weights, in an epoch

    __device__ UnitWarps(ClusterShared& shared, const NetworkDropout* dropouts)
        : shared(shared), weights(shared), dropouts(dropouts) {}

    // All warps are done with the batch before.
    __device__ void wait_for_others() {
        if (x_batches > 0) wait(shared.x_free[(x_batches - 1) % STAGES], (x_batches - 1) / STAGES);
    }

    // Of a box of the part's features, in uniform registers, as products take it.
    __device__ uint64 descriptor(unsigned stage, unsigned box, int panel_bytes) const {
        const unsigned place = box_at(stage, Thread().part_of_block(), box);
        return matrix_descriptor(uniform(shared_address(shared.x) + place), panel_bytes);
    }

    // -- forward

    // zᵀ of the part's features, of all rows.
    template <int COUNT>
    __device__ void multiply_forward(float (&z)[COUNT], unsigned stage) {
        constexpr int AHEAD = 2;
        const uint64 whole = descriptor(stage, 0, 0), tail = descriptor(stage, WHOLE, 0);
        unsigned a[AHEAD][4];
        float next[8];  // of a slice that comes from shared memory meanwhile
#pragma unroll
        for (int i = 0; i < OWN_SLICES; ++i) {
            float numbers[8];
            if (is_shared(i) && i > 0) {
#pragma unroll
                for (int j = 0; j < 8; ++j) numbers[j] = next[j];
            } else {
                weights.take(numbers, 0, i);
            }
            if (i + 1 < OWN_SLICES && is_shared(i + 1)) weights.take(next, 0, i + 1);
            if (i >= AHEAD) wgmma_wait<AHEAD - 1>();
            round_slice(a[i % AHEAD], numbers);
            wgmma_fence();
            const int box = i / SLICES_OF_BOX, in_box = i % SLICES_OF_BOX * SLICE_BYTES;
            RegisterProduct<T>::template add_to<false>(
                z, a[i % AHEAD],
                box < WHOLE ? moved(whole, box * BOX_BYTES + in_box) : moved(tail, in_box), i > 0);
            wgmma_commit();
        }
        wgmma_wait<0>();
    }

    // z of the part's rows and all features: z[4 j + 2 h + i] is unit Thread::unit() + 8 h, row 8 j
    // + Thread::column() + i.
    __device__ void find_z(float (&rows_of_part)[4 * OWN_TILES], unsigned stage) {
        if constexpr (PARTS == 1) {
            multiply_forward(rows_of_part, stage);
        } else {
            float z[32] = {};
            multiply_forward(z, stage);
            const Thread own;
            begin_exchange(own);
#pragma unroll
            for (int part = 0; part < PARTS; ++part) {  // counted from the block's first
                float rows[4 * OWN_TILES];
#pragma unroll
                for (int i = 0; i < 4 * OWN_TILES; ++i) rows[i] = z[part * 4 * OWN_TILES + i];
                const unsigned distance = (part + PARTS - own.part_of_block()) % PARTS;
                if (distance > 0) {
                    send_sums(own, rows, distance);
                } else {
#pragma unroll
                    for (int i = 0; i < 4 * OWN_TILES; ++i) rows_of_part[i] = rows[i];
                }
            }
            if (CLUSTER == 1) arrive_warp(shared.z_full[1 - own.group()]);
            add_sums(rows_of_part);
        }
    }

    __device__ void begin_exchange(const Thread& own) {
        // Others may still need what lies where sums come.
        if (REUSES_SUMS) {
            wait_for_others();
            wait(shared.h_free, batches + 1);
        }
        if (CLUSTER > 1 && own.of_group() == 0)
            mbarrier_expect(&shared.z_full[own.group()],
                            (PARTS - 1) * GROUP_THREADS * OWN_TILES * 16);
    }

    // To the part so many further on.
    __device__ void send_sums(const Thread& own, const float (&rows)[4 * OWN_TILES],
                              unsigned distance) {
        const unsigned part = (own.part() + distance) % PARTS;
        const unsigned group = UNIT_TILES > 1 ? own.group() : part % PARTS_OF_BLOCK;
#pragma unroll
        for (int tile = 0; tile < OWN_TILES; ++tile) {
            unsigned words[4];
#pragma unroll
            for (int i = 0; i < 4; ++i) words[i] = __float_as_uint(rows[4 * tile + i]);
            unsigned char* place = sums_place(shared, group, distance, tile, own.of_group());
            if constexpr (CLUSTER > 1) {
                const unsigned rank = part / PARTS_OF_BLOCK;
                store_async_quad(place_in(rank, place), words,
                                 place_in(rank, &shared.z_full[group]));
            } else {
                *reinterpret_cast<uint4*>(place) = {words[0], words[1], words[2], words[3]};
            }
        }
    }

    __device__ void add_sums(float (&rows)[4 * OWN_TILES]) {
        const Thread own;
        wait(shared.z_full[own.group()], batches);
#pragma unroll
        for (int distance = 1; distance < PARTS; ++distance) {
#pragma unroll
            for (int tile = 0; tile < OWN_TILES; ++tile) {
                const float4 found = *reinterpret_cast<const float4*>(
                    sums_place(shared, own.group(), distance, tile, own.of_group()));
                rows[4 * tile] += found.x, rows[4 * tile + 1] += found.y;
                rows[4 * tile + 2] += found.z, rows[4 * tile + 3] += found.w;
            }
        }
        if (REUSES_SUMS) meet_group();
    }

    __device__ void meet_group() {
        arrive_warp(shared.group_met[own_group()]);
        wait(shared.group_met[own_group()], batches);
    }

    // Four units of a row are found at once, which four lanes have: each finds those of one place
    // in each tile, and gets its own from the others.
    __device__ KeptUnits find_kept(const Batch& batch) const {
        const Network& network = shared.network;
        if (!DROPS || !batch.trains(network)) return {~0u, 1};
        const Thread own;
        const NetworkDropout dropout = dropouts[shared.run.idx];
        const uint32 step = network.steps_before() + batch.epoch * network.num_steps() + batch.idx;
        const unsigned unit = own.lane() / 4 % 4, first_of_quad = own.lane() - 4 * unit;
        const uint32 row = own.part() * OWN_ROWS + own.column() + unit % 2,
                     group = own.tile() * (UNITS / 4) + (own.unit() + unit / 2 * 8) / 4;
        unsigned found = 0;
#pragma unroll
        for (int j = 0; j < OWN_TILES; ++j)
            found |= dropout.kept(step, row + 8 * j, group) << 4 * j;
        constexpr unsigned ONE_OF_EACH_TILE = 0x11111111;
        unsigned of_own = 0;
#pragma unroll
        for (unsigned i = 0; i < 4; ++i) {
            const unsigned of_pair = __shfl_sync(FULL_WARP, found, first_of_quad + 4 * i);
            of_own |= (of_pair >> unit & ONE_OF_EACH_TILE) << i;
        }
        return {of_own, dropout.of_layer.scale};
    }

    // z becomes the derivatives of h, which goes to shared memory.
    __device__ void activate(float (&z)[4 * OWN_TILES]) {
        constexpr Activation OF = ACTIVATION;
        const Thread own;
#pragma unroll
        for (int j = 0; j < OWN_TILES; ++j) {
#pragma unroll
            for (int h = 0; h < 2; ++h) {
                float values[2];
#pragma unroll
                for (int i = 0; i < 2; ++i) {
                    float& number = z[4 * j + 2 * h + i];
                    const Activated<float> found = activated<OF>(number, SLOPE);
                    const float factor = DROPS ? kept.factor(4 * j + 2 * h + i) : 1;
                    values[i] = found.value * factor;
                    number = found.derivative * factor;
                }
                unsigned char* place = h_place(shared, own.group(), own.unit() + 8 * h, j);
                reinterpret_cast<unsigned*>(place)[own.lane() % 4] =
                    packed<T>(values[0], values[1]);
            }
        }
    }

    // -- backward

    // dh of the warp's 16 units, slice by slice of all rows, as the operand of the product with x.
    using Gradients = unsigned[ROWS / 16][4];

    // Of the own rows, from the derivatives of h; to all parts.
    __device__ void go_back(Gradients& dh, const float (&derivatives)[4 * OWN_TILES]) {
        const Thread own;
        unsigned a[4];
        load_a(a, &shared.w2[units_of(own) * 16][0], OUT_STRIDE);
        arrive_warp(shared.w2_free);
#pragma unroll
        for (int pair = 0; pair < ROW_PAIRS; ++pair) {
            unsigned b[2][2];
            load_b_pair(b[0], b[1], &shared.dz[own.part_of_block() * OWN_ROWS + 16 * pair][0],
                        OUT_STRIDE);
            unsigned words[2][2];
#pragma unroll
            for (int half = 0; half < 2; ++half) {
                const int j = 2 * pair + half;
                if (j >= OWN_TILES) continue;
                float of_tile[4] = {};
                TensorCore<T>::multiply(of_tile, a, b[half]);
#pragma unroll
                for (int h = 0; h < 2; ++h) {
                    const float* of_words = &derivatives[4 * j + 2 * h];
                    words[half][h] =
                        packed<T>(of_tile[2 * h] * of_words[0], of_tile[2 * h + 1] * of_words[1]);
                }
                if (OWN_DH_STAYS) {
                    dh[pair][2 * half] = words[half][0];
                    dh[pair][2 * half + 1] = words[half][1];
                } else {
                    *dh_place(shared, own, own.part_of_block() * OWN_TILES + j) = {words[half][0],
                                                                                   words[half][1]};
                }
            }
            send_dh(own, pair, words);
        }
        if (SENT_TILES > 0)
            arrive_for_bytes(own, shared.dh_full[units_of(own)], OWN_TILES * WARP * 8);
    }

    // A pair of tiles to all other blocks, each of which has its own rows first.
    __device__ void send_dh([[maybe_unused]] const Thread& own, [[maybe_unused]] int pair,
                            [[maybe_unused]] const unsigned (&words)[2][2]) {
#pragma unroll
        for (int distance = 1; distance < CLUSTER; ++distance) {
            const unsigned to = own.rank_after(distance),
                           barrier = place_in(to, &shared.dh_full[units_of(own)]);
            const unsigned tile =
                (CLUSTER - distance) * BLOCK_TILES + own.part_of_block() * OWN_TILES + 2 * pair;
            const unsigned place = place_in(to, dh_place(shared, own, tile));
            if (OWN_TILES > 1) {
                store_async_quad(place, {words[0][0], words[0][1], words[1][0], words[1][1]},
                                 barrier);
            } else {
                store_async_pair(place, words[0][0], words[0][1], barrier);
            }
        }
    }

    // What comes from other warps of dh.
    __device__ void take_dh(Gradients& dh) {
        if (SENT_TILES == 0) return;
        const Thread own;
        wait(shared.dh_full[units_of(own)], batches);
#pragma unroll
        for (int k = FIRST_SENT / 2; k < ROWS / 16; ++k) {
            const uint4 words = *reinterpret_cast<const uint4*>(dh_place(shared, own, 2 * k));
            dh[k][0] = words.x, dh[k][1] = words.y, dh[k][2] = words.z, dh[k][3] = words.w;
        }
    }

    // Adds dhᵀ x to the weights, box by box.
    __device__ void multiply_backward(const Gradients& dh, unsigned stage, const NetworkStep& step,
                                      int num_rows) {
        const uint64 whole = descriptor(stage, 0, BOX_BYTES),
                     tail = descriptor(stage, WHOLE, BOX_BYTES);
        const auto place = [&](int slice) {
            const int box = slice / SLICES_OF_BOX, in_box = slice % SLICES_OF_BOX * SLICE_BYTES;
            return box < WHOLE ? moved(whole, box * BOX_BYTES + in_box) : moved(tail, in_box);
        };
        float sums[8 * SLICES_OF_BOX] = {};
#pragma unroll
        for (int i = 0; i < SLICES_OF_BOX * WHOLE; i += SLICES_OF_BOX) {
            add_slices<SLICES_OF_BOX>(sums, step, num_rows, dh, place(i), i);
        }
        // Not two at once: of such products the compiler lets each wait for the one before.
        constexpr int AT_ONCE = TAIL == 0 || TAIL == 2 ? 1 : TAIL;
        if constexpr (TAIL > 0) {
            float of_tail[8 * AT_ONCE] = {};
#pragma unroll
            for (int i = SLICES_OF_BOX * WHOLE; i < OWN_SLICES; i += AT_ONCE) {
                add_slices<AT_ONCE>(of_tail, step, num_rows, dh, place(i), i);
            }
        }
    }

    template <int COUNT>
    __device__ void add_slices(float (&sums)[8 * COUNT], const NetworkStep& step, int num_rows,
                               const Gradients& dh, uint64 x, int first) {
        wgmma_fence();
#pragma unroll
        for (int k = 0; k < ROWS / 16; ++k) {
            RegisterProduct<T>::template add_to<true>(sums, dh[k], moved(x, k * 16 * LINE_BYTES),
                                                      k > 0);
        }
        wgmma_commit();
        wgmma_wait<0>();
#pragma unroll
        for (int i = 0; i < COUNT; ++i) {
            Slice slice;
            slice.take(weights, first + i);
            if constexpr (PENALIZED) {
                const float squares =
                    slice.update(step.of_weights(num_rows), step, sums + 8 * i, first + i);
                penalty += 0.5 * step.settings.penalty * squares;
            } else {
                slice.update(step, sums + 8 * i);
            }
            slice.put(weights, first + i);
        }
    }

    // -- the run

    // To its last epoch, or until a verdict ends it.
    __device__ void train(float* best) {
        kept = find_kept({0, 0});
        for (Batch batch = {0, 0}; batch.epoch < shared.network.num_epochs;
             batch = batch.after(shared)) {
            take_batch(batch);
            if (!batch.is_last(shared)) continue;
            send_penalty();
            const int verdict = verdict_on(shared, batch.epoch);
            if (KEEPS_BEST && (verdict & IS_BETTER))
                weights.write<0, 0>(own_numbers(best, shared, PARAMETERS));
            if (!(verdict & IS_OVER)) continue;
            if (batch.epoch + 1 < shared.network.num_epochs) skip_batch();
            return;
        }
    }

    // Rows that are on their way already.
    __device__ void skip_batch() {
        wait(shared.x_full[x_batches % STAGES], x_batches / STAGES);
        arrive_warp(shared.x_free[x_batches % STAGES]);
        ++x_batches;
    }

    __device__ void take_batch(const Batch& batch) {
        const unsigned stage = x_batches % STAGES;
        wait(shared.x_full[stage], x_batches / STAGES);
        float own[4 * OWN_TILES] = {};
        find_z(own, stage);
        wait(shared.h_free, batches + 1);
        activate(own);
        arrive_warp(shared.h_full);
        kept = find_kept(batch.after(shared));  // while losses are found
        wait(shared.dz_full, batches);
        if (batch.trains(shared.network)) {
            take_step(own, stage, batch.num_rows(shared.network));
        } else {
            acknowledge();
        }
        arrive_warp(shared.x_free[stage]);
        ++batches;
        ++x_batches;
    }

    // `derivatives` are those of the own rows' h.
    __device__ void take_step(const float (&derivatives)[4 * OWN_TILES], unsigned stage,
                              int num_rows) {
        Gradients dh;
        go_back(dh, derivatives);
        take_dh(dh);
        const NetworkStep step{shared.settings[stage], shared.network.rule, shared.run.unscale};
        multiply_backward(dh, stage, step, num_rows);
    }

    // All blocks get what the warp has added up in an epoch, with the epoch's losses, and it begins
    // anew.
    __device__ void send_penalty() {
        if constexpr (!PENALIZED) return;
        const Thread own;
        const double of_warp = reduce_warp<Sum>(penalty);
        penalty = 0;
        double* to = &part_of<Penalties>(shared).of_warps[own.rank * WARPS + own.warp()];
        if constexpr (CLUSTER > 1) {
            const uint64 bits = __double_as_longlong(of_warp);
            if (own.lane() < CLUSTER) {
                store_async_pair(place_in(own.lane(), to), static_cast<unsigned>(bits),
                                 static_cast<unsigned>(bits >> 32),
                                 place_in(own.lane(), &shared.sums_full));
            }
        } else {
            if (own.lane() == 0) *to = of_warp;
            arrive_warp(shared.sums_full);
        }
    }

    // The others learn that their sums have been read.
    __device__ void acknowledge() {
        if (PARTS == 1) return;
        const Thread own;
        if (own.lane() == 0) {
#pragma unroll
            for (int distance = 1; distance < CLUSTER; ++distance) {
                const unsigned to = own.rank_after(distance),
                               tile = (CLUSTER - distance) * BLOCK_TILES +
                                      own.part_of_block() * OWN_TILES;
                store_async_pair(place_in(to, dh_place(shared, own, tile)), 0, 0,
                                 place_in(to, &shared.dh_full[units_of(own)]));
            }
        }
        arrive_for_bytes(own, shared.dh_full[units_of(own)], 8);
        wait(shared.dh_full[units_of(own)], batches);
    }
};
