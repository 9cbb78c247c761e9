// The weight warps of one_launch.cu where blocks divide the features: FEATURE_PARTS blocks multiply
// the 64 units of all of them, each by its part of the features, and send each other sums. One
// warpgroup holds the weights, as the accumulators of wgmma that their gradients come in; rounded,
// the same registers are its operand A. x, its operand B, comes from shared memory in both passes.
#pragma once

#include "resident/layout/trained_block.cuh"

#if __CUDA_ARCH__ == 900
#include "mma/operand_tile.cuh"
#include "mma/planes.cuh"

// Products of a warpgroup: TILES of 64 units by 16 features, with a batch of x whose address is
// given.
template <int TILES>
struct DividedProduct {
    static constexpr int PLANE_BYTES = ROWS * PIECE_BYTES;
    // Tiles whose weights are rounded, or whose gradients are found, while others are in flight.
    static constexpr int AT_ONCE = TILES < PIECE_TILES ? TILES : PIECE_TILES,
                         REST = TILES % AT_ONCE;

    // z (64 units, ROWS rows) = the weights times rows of x; await(piece) for pieces of these,
    // round(words, tile) gives the weights of a tile as operand A.
    template <class A, class F>
    __device__ static void multiply(float (&z)[ROWS / 2], unsigned x, A await, F round) {
#pragma unroll
        for (float& sum : z) sum = 0;
        const uint64 rows = planes_descriptor(x, PLANE_BYTES, EIGHT_PIECES);
        unsigned a[TILES][4];
#pragma unroll
        for (int tile = 0; tile < TILES; ++tile) round(a[tile], tile);
#pragma unroll
        for (int piece = 0; piece < PIECES; ++piece) await(piece);
        wgmma_fence();
#pragma unroll
        for (int tile = 0; tile < TILES; ++tile) {
            RegisterProduct<T>::template add_to<false>(
                z, a[tile], moved(rows, 2 * tile * PLANE_BYTES), tile > 0);
        }
        wgmma_commit();
        wgmma_wait<0>();
    }

    // take(first, sums) for the gradients of a piece's tiles from `first` on, while the next are
    // found.
    template <class F>
    __device__ static void find_gradients(const unsigned (&dh)[ROW_TILES][4], unsigned x, F take) {
        float sums[2][8 * AT_ONCE], rest[REST > 0 ? 8 * REST : 8];
        begin_gradients(sums[0], dh, x, 0);
#pragma unroll
        for (int first = 0; first < TILES - REST; first += AT_ONCE) {
            const int next = first + AT_ONCE, turn = first / AT_ONCE % 2;
            if (next + AT_ONCE <= TILES) {
                begin_gradients(sums[1 - turn], dh, x, next);
                wgmma_wait<1>();
            } else if (REST > 0) {
                begin_gradients(rest, dh, x, next);
                wgmma_wait<1>();
            } else {
                wgmma_wait<0>();
            }
            take(first, sums[turn]);
        }
        if constexpr (REST > 0) {
            wgmma_wait<0>();
            take(TILES - REST, rest);
        }
    }

  private:
    template <int COUNT>
    __device__ static void begin_gradients(float (&sums)[COUNT], const unsigned (&dh)[ROW_TILES][4],
                                           unsigned x, int first) {
#pragma unroll
        for (float& sum : sums) sum = 0;
        const uint64 features =
            planes_descriptor(x + 2 * first * PLANE_BYTES, EIGHT_PIECES, PLANE_BYTES);
        wgmma_fence();
#pragma unroll
        for (int r = 0; r < ROW_TILES; ++r) {
            RegisterProduct<T>::template add_to<true>(sums, dh[r],
                                                      moved(features, r * 2 * EIGHT_PIECES), r > 0);
        }
        wgmma_commit();
    }
};

// Leaves sums of a warp's 16 units, which have as many rows, as accumulators of wgmma.
template <int COUNT>
__device__ inline void leave_sums(UnitSums& place, const float (&z)[COUNT]) {
    const int lane = threadIdx.x % 32;
#pragma unroll
    for (int r = 0; r < COUNT / 8; ++r) {
        unsigned words[4];
#pragma unroll
        for (int i = 0; i < 4; ++i) {
            const float* pair = &z[r * 8 + i % 2 * 4 + i / 2 * 2];
            words[i] = upper_bits(pair[0], pair[1]);
        }
        stmatrix_x4_trans(place.upper[lane / 16][r * 16 + lane % 16], words);
    }
#pragma unroll
    for (int r = 0; r < COUNT / 8; r += 2) {
        unsigned words[4];
#pragma unroll
        for (int i = 0; i < 4; ++i) {
            const float* own = &z[r * 8 + i * 4];  // two rows of one unit, then of the other
            words[i] = lower_bits(own[0], own[2], own[1], own[3]);
        }
        stmatrix_x4_trans(place.lower[r * 16 + lane], words);
    }
}

// Leaves sums of a warp's 16 units, and sends them to the block whose units they are.
template <int COUNT>
__device__ inline void send_sums(OneLaunchShared& shared, int step, const float (&z)[COUNT]) {
    DividedPart& own = divided(shared);
    const int warp = threadIdx.x / 32;
    const int part = warp / UNIT_TILES, tile = warp % UNIT_TILES,
              distance = (part - own_part() + FEATURE_PARTS) % FEATURE_PARTS;
    const int slot = step % SUM_SLOTS;
    UnitSums &received = own.sums[slot][own_part()][tile],
             &sent = distance == 0 ? received : own.sent[step % SENT_SLOTS][distance - 1][tile];
    Barrier& full = own.sums_full[slot];
    leave_sums(sent, z);
    fence_async();
    __syncwarp();
    if (threadIdx.x % 32 > 0) return;
    const int rank = own_rank() - own_part() + part;
    if (distance == 0) {
        mbarrier_expect(&full, (FEATURE_PARTS - 1) * sizeof(UnitSums));
    } else {
        copy_to_block(place_in(rank, &received), &sent, sizeof(UnitSums), place_in(rank, &full));
    }
}

// Where a warpgroup stands in the ring of x.
struct BatchReader {
    Cursor<X_SLOTS> slot;
    Cursor<GROUPS_AHEAD> full;

    __device__ unsigned address(const OneLaunchShared& shared) const {
        return shared_address(shared.x[slot.slot]);
    }
    __device__ void await_piece(OneLaunchShared& shared) {
        wait(shared.x_full[full.slot], full.round);
        full.template advance<1>();
    }
    __device__ void free_piece(OneLaunchShared& shared, int piece) const {
        arrive_warp(shared.x_empty[slot.slot * PIECES + piece]);
    }
};

// Multiplies a batch; round(words, tile) gives the weights of a tile as operand A. What was sent
// from the same place has been received: gradients have come back from there, or outputs.
template <class Product, class F>
__device__ inline void multiply_divided(OneLaunchShared& shared, int step, BatchReader& reader,
                                        F round) {
    float z[ROWS / 2];
    Product::multiply(z, reader.address(shared), [&](int) { reader.await_piece(shared); }, round);
    send_sums(shared, step, z);
    reader.slot.template advance<1>();
}

// take(first, sums) for the gradients of all tiles of a batch.
template <class Product, class F>
__device__ inline void take_divided_gradients(OneLaunchShared& shared, int step,
                                              BatchReader& reader, F take) {
    DividedPart& own = divided(shared);
    const int warp = threadIdx.x / 32;
    wait(own.dh_full[step % 2], step / 2);
    const T* of_units = own.dh[step % 2][warp / UNIT_TILES][warp % UNIT_TILES * 2][0];
    unsigned dh[ROW_TILES][4];
#pragma unroll
    for (int r = 0; r < ROW_TILES; ++r)
        load_a_transposed(dh[r], of_units + r * 16 * UNIT_STRIDE, UNIT_STRIDE, UNIT_CHUNK);
    Product::find_gradients(dh, reader.address(shared), [&](int first, const auto& sums) {
        take(first, sums);
        reader.free_piece(shared, first / PIECE_TILES);
    });
    arrive_warp(shared.dh_empty);
    reader.slot.template advance<1>();
}

// All of the weights of this block's part.
template <class Held, class Product = DividedProduct<Held::MINE_K>>
__device__ inline void train_divided(OneLaunchShared& shared, const OneLaunchRun& run,
                                     const LayerArrays& layer) {
    const Part units = held_units(), features = held_features();
    const int64 place = first_weight(features, units);
    Held weights;
    weights.read(layer.w + place, ALL_UNITS, units.count, features.count, run.scale);
    float* held = &weights.tiles[0][0][0][0];
    BatchReader forward, backward;
    Step step = run.first_step();
    int next = 0;  // batch to be multiplied
    for (StepRules rates(run.rules, step); step.is_there();) {
        const float kept = 1 - rate_of(rates.now) * run.rule.decay;
#pragma unroll 1
        for (; next <= step.index + !step.is_last_of_epoch(); ++next) {
            const bool is_ahead = next > step.index;
            if (SENT_SLOTS == 1 && is_ahead && step.is_first_of_epoch()) {
                for (Barrier& full : shared.dz_full) wait(full, step.index);
            }
            const float factor = (is_ahead ? kept : 1) * run.unscale;
            multiply_divided<Product>(shared, next, forward, [&](unsigned (&words)[4], int tile) {
#pragma unroll
                for (int i = 0; i < 4; ++i) {
                    const float* pair = &held[tile * 8 + i * 2];
                    words[i] = packed<T>(pair[0] * factor, pair[1] * factor);
                }
            });
        }
        // Here the next rate comes while this warp waits.
        Step following = step;
        following.advance();
        rates.advance(following);
        take_divided_gradients<Product>(shared, step.index, backward,
                                        [&](int first, const auto& sums) {
#pragma unroll
                                            for (int i = 0; i < sizeof(sums) / sizeof(float); ++i) {
                                                float& weight = held[first * 8 + i];
                                                weight = weight * kept + sums[i];
                                            }
                                        });
        step = following;
    }
    // As if their places were not known: else the compiler would keep them all the while.
    weights.write(unforeseen(layer.w + place), ALL_UNITS, unforeseen(units.count),
                  unforeseen(features.count), run.unscale);
}
#endif
