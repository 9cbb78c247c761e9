// The output warps of one_launch.cu: they update the output layer and the biases, and keep the
// record. Owns the output layer and all biases in shared memory; copies in half precision
// alternate, as row warps still read the one of the step before. Only the first block of a replica
// writes the record.
#pragma once

#include "base/reduce.cuh"
#include "resident/exchange/replicas.cuh"

// Sums of 16 columns of dz, tile after tile; in the lanes of which l % 4 is 0, [0] is that of
// column l / 4, and [2] that of column l / 4 + 8.
template <int STRIDE, int CHUNK = 8, int BARRIERS>
__device__ inline void add_columns(int step, Barrier (&full)[BARRIERS], const T* dz,
                                   float (&sums)[4]) {
    const unsigned ones = packed<T>(1.0f, 1.0f);
    const unsigned b[2] = {ones, ones};
#pragma unroll 1
    for (int group = 0; group < GROUPS; ++group) {
        unsigned a[GROUP][4];
        if (group % (GROUPS / BARRIERS) == 0) wait(full[group * BARRIERS / GROUPS], step);
#pragma unroll
        for (int i = 0; i < GROUP; ++i)
            load_a_transposed(a[i], dz + (group * GROUP + i) * 16 * STRIDE, STRIDE, CHUNK);
#pragma unroll
        for (int i = 0; i < GROUP; ++i) TensorCore<T>::multiply(sums, a[i], b);
    }
}

// A tile of 16 units by 16 columns of the output layer's weights after a hidden layer; the first of
// its columns also has their biases.
struct OutputTile {
    static constexpr int COUNT = HIDDEN ? UNIT_TILES * OUT_TILES : 0;
    static constexpr int QUADS = 3;  // weights of each 8 columns, and biases
    // Tiles of rows whose operands are loaded before the first is multiplied.
    static constexpr int AT_ONCE = GROUP < 4 && ROW_TILES % 4 == 0 && DIVIDED ? 4 : GROUP;
    int number;

    __device__ static int first_of(int warp) { return warp; }
    __device__ int first_quad() const { return number * QUADS; }

    __device__ void find(OneLaunchShared& shared, int step, float (&sums)[3][4]) const {
        const int u = number / OUT_TILES, o = number % OUT_TILES;
        const unsigned one = packed<T>(1.0f, 1.0f), ones[4] = {one, one, one, one};
        float of_bias[2][4] = {};
#pragma unroll 1
        for (int first = 0; first < ROW_TILES; first += AT_ONCE) {
            unsigned a[AT_ONCE][4], low[AT_ONCE][2], high[AT_ONCE][2];
#pragma unroll
            for (int i = 0; i < AT_ONCE; ++i) {
                const int row = (first + i) * 16;
                if (i % GROUP == 0) wait(shared.dz_full[(first + i) / GROUP], step);
                load_a_transposed(a[i], shared.h[row] + 2 * u * UNIT_CHUNK, UNIT_STRIDE,
                                  UNIT_CHUNK);
                load_b_pair_transposed(low[i], high[i], &shared.dz[row][o * 16], OUT_STRIDE);
            }
#pragma unroll
            for (int i = 0; i < AT_ONCE; ++i) {
                TensorCore<T>::multiply(sums[0], a[i], low[i]);
                TensorCore<T>::multiply(sums[1], a[i], high[i]);
                TensorCore<T>::multiply(of_bias[0], ones, low[i]);
                TensorCore<T>::multiply(of_bias[1], ones, high[i]);
            }
        }
#pragma unroll
        for (int part = 0; part < 4; ++part) sums[2][part] = of_bias[part / 2][part % 2];
    }

    __device__ void update(OneLaunchShared& shared, const OneLaunchRun& run, const StepRule& now,
                           int step, const float (&sums)[3][4]) const {
        OutputLayer& layer = shared.outputs;
        const int lane = threadIdx.x % 32, u = number / OUT_TILES, o = number % OUT_TILES;
#pragma unroll
        for (int part = 0; part < 4; ++part) {
            const int col = o * 16 + part / 2 * 8 + lane * 2 + part % 2;
            if (u > 0 || lane >= 4) break;
            run.update(
                shared.output_bias[col],
                [&](int slot) -> float& { return shared.output_bias_slots[slot][col]; },
                sums[2][part], now);
        }
#pragma unroll
        for (int part = 0; part < 4; ++part) {
            const int unit = u * 16 + lane / 4 + part % 2 * 8,
                      col = o * 16 + part / 2 * 8 + lane % 4 * 2;
            float updated[2];
#pragma unroll
            for (int i = 0; i < 2; ++i) {
                float& weight = layer.w[unit][col + i];
                run.update(
                    weight,
                    [&](int slot) -> float& {
                        return layer.slots[slot][SLOTS ? unit : 0][col + i];
                    },
                    sums[part / 2][part % 2 * 2 + i], now);
                updated[i] = weight * run.unscale;
            }
            *reinterpret_cast<unsigned*>(&layer.half[(step + 1) % 2][unit][col]) =
                packed<T>(updated[0], updated[1]);
        }
    }
};

// 16 biases of the layer that takes the features: of hidden units, or of outputs.
struct BiasTile {
    static constexpr int COUNT = HIDDEN ? UNIT_TILES : OUT_TILES, QUADS = 1;
    int number;

    // Warps that have less of the output layer come first.
    __device__ static int first_of(int warp) {
        return (warp + OUTPUT_WARPS - OutputTile::COUNT % OUTPUT_WARPS) % OUTPUT_WARPS;
    }
    __device__ int first_quad() const { return OutputTile::COUNT * OutputTile::QUADS + number; }

    __device__ void find(OneLaunchShared& shared, int step, float (&sums)[1][4]) const {
        if constexpr (HIDDEN > 0) {
            add_columns<UNIT_STRIDE, UNIT_CHUNK>(
                step, shared.dh_full, own_dh(shared, step) + 2 * number * UNIT_CHUNK, sums[0]);
        } else {
            add_columns<OUT_STRIDE>(step, shared.dz_full, &shared.dz[0][number * 16], sums[0]);
        }
    }

    __device__ void update(OneLaunchShared& shared, const OneLaunchRun& run, const StepRule& now,
                           int, const float (&sums)[1][4]) const {
        const int lane = threadIdx.x % 32, i = number * 16 + lane / 4;
        if (lane % 4 != 0) return;
        float *biases = HIDDEN ? shared.bias : shared.output_bias,
              *slots = HIDDEN ? shared.bias_slots[0] : shared.output_bias_slots[0];
        const auto slot_of = [&](int slot) -> float& { return slots[slot * UNIT_WIDTH + i]; };
        run.update(biases[i], slot_of, sums[0][0], now);
        slots += 8;
        run.update(biases[i + 8], slot_of, sums[0][2], now);
    }
};

// Sends the gradients of this block's units to the blocks that multiply by the other features.
// Where the next sums but one leave from the place of the next ones, these have been received.
__device__ inline void send_unit_gradients(OneLaunchShared& shared, int step, bool has_next) {
    DividedPart& own = divided(shared);
    if (SENT_SLOTS == 1 && has_next)
        wait(own.sums_full[(step + 1) % SUM_SLOTS], (step + 1) / SUM_SLOTS);
    auto& sent = own.dh[step % 2][own_part()];
    Barrier& full = own.dh_full[step % 2];
    const int lane = threadIdx.x % 32;
    if (lane == 0) mbarrier_expect(&full, (FEATURE_PARTS - 1) * sizeof sent);
    if (lane == 0 || lane >= FEATURE_PARTS) return;
    const unsigned rank = own_rank() - own_part() + (own_part() + lane) % FEATURE_PARTS;
    copy_to_block(place_in(rank, &sent), &sent, sizeof sent, place_in(rank, &full));
}

// f(tile) for each that falls to this warp.
template <class Tile, class F>
__device__ inline void each_tile(int warp, F f) {
    for (int i = Tile::first_of(warp); i < Tile::COUNT; i += OUTPUT_WARPS) f(Tile{i});
}

// Updates tiles with the gradient of a batch.
template <class Tile>
__device__ inline void update_tiles(OneLaunchShared& shared, const OneLaunchRun& run,
                                    const StepRule& now, int step, int warp) {
    each_tile<Tile>(warp, [&](const Tile& tile) {
        float sums[Tile::QUADS][4] = {};
        tile.find(shared, step, sums);
        tile.update(shared, run, now, step, sums);
    });
}

static_assert(REPLICAS == 1 || OUTPUT_QUADS == OutputTile::COUNT * OutputTile::QUADS +
                                                   BiasTile::COUNT * BiasTile::QUADS,
              "replicas have room for what they send");

// The gradients of tiles: sent, and later added up over the replicas for the update.
template <class Tile>
__device__ inline void send_tiles(OneLaunchShared& shared, OneLaunchExchange& exchange, int step,
                                  int warp) {
    each_tile<Tile>(warp, [&](const Tile& tile) {
        float sums[Tile::QUADS][4] = {};
        tile.find(shared, step, sums);
        send(&exchange.outputs[step % 2][own_replica()][tile.first_quad()][threadIdx.x % 32], 32,
             step / 2, sums);
    });
}

template <class Tile>
__device__ inline void update_tiles(OneLaunchShared& shared, const OneLaunchRun& run,
                                    const OneLaunchExchange& exchange, const StepRule& now,
                                    int step, int warp) {
    each_tile<Tile>(warp, [&](const Tile& tile) {
        float sums[Tile::QUADS][4];
        receive_sums<REPLICAS, 1>(sums, step / 2, [&](int replica, int quad) {
            return &exchange.outputs[step % 2][replica][tile.first_quad() + quad][threadIdx.x % 32];
        });
        tile.update(shared, run, now, step, sums);
    });
}

__device__ inline void update_outputs(OneLaunchShared& shared, const OneLaunchRun& run,
                                      const StepRule& now, int step, int warp) {
    if constexpr (REPLICAS > 1) {
        OneLaunchExchange& exchange = run.exchanges[own_rank()];
        send_tiles<OutputTile>(shared, exchange, step, warp);
        send_tiles<BiasTile>(shared, exchange, step, warp);
        update_tiles<OutputTile>(shared, run, exchange, now, step, warp);
        update_tiles<BiasTile>(shared, run, exchange, now, step, warp);
    } else {
        update_tiles<OutputTile>(shared, run, now, step, warp);
        if (!AHEAD) update_tiles<BiasTile>(shared, run, now, step, warp);
    }
}

__device__ inline void train_outputs(OneLaunchShared& shared, const OneLaunchRun& run,
                                     double* record, int warp) {
    const bool has_record = own_rank() == 0 && warp == OUTPUT_WARPS - 1;
    Step step = run.first_step();
    for (StepRules rules(run.rules, step); step.is_there(); rules.advance(step)) {
        update_outputs(shared, run, rules.now, step.index, warp);
        // All warps wait for all that changes once a step, lest they fall a round behind.
#pragma unroll 1
        for (int group = 0; group < GROUPS; ++group) wait(shared.dz_full[group], step.index);
        if constexpr (CLUSTER > 1) {
            if (has_record && threadIdx.x % 32 == 0)
                mbarrier_expect(&shared.losses_full[step.index % 2], ROWS * sizeof(RowLoss));
        }
        arrive_warp(shared.outputs_ready);
        if constexpr (DIVIDED) {
            if (warp == 1) {
                wait(shared.dh_full[0], step.index);
                send_unit_gradients(shared, step.index, !step.is_last_of_epoch());
            }
        }
        if (AHEAD) {  // the next step's outputs do not wait for its biases
            update_tiles<BiasTile>(shared, run, rules.now, step.index, warp);
            wait(shared.dh_full[0], step.index);  // of a warp without biases, too
            arrive_warp(shared.biases_ready);
        }
        if (has_record) {
            const int even = step.index % 2;
            if (CLUSTER > 1) wait(shared.losses_full[even], step.index / 2);
            const int count = step.count();
            write_record(record + 3 * (step.index * REPLICAS + own_replica()), shared.losses[even],
                         own_rows(count), count, own_rows(count));
        }
        step.advance();
    }
}
