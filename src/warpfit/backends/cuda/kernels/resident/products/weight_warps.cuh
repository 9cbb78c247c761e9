// The weight warps of one_launch.cu: they hold the weights that x meets, multiply tiles of x by
// them, and let them take the gradient in. Owns the weights of all tiles of its warps; reads x from
// the ring, and leaves sums in slots.
#pragma once

#include "resident/exchange/replicas.cuh"
#include "resident/products/divided_weights.cuh"
#include "resident/update/adaptive_weights.cuh"

// Where a weight warp stands in the ring of x.
struct Reader {
    Cursor<X_SLOTS> tile;
    Cursor<GROUPS_AHEAD> group;

    __device__ explicit Reader(int first) : tile(first), group(first / GROUP) {}

    template <int TILES>
    __device__ void skip() {
        tile.advance<TILES>();
        group.advance<TILES / GROUP>();
    }

    // Waits for the tiles of the next group.
    __device__ void await(OneLaunchShared& shared) {
        wait(shared.x_full[group.slot], group.round);
        group.advance<1>();
    }

    // The next tiles and their slots.
    template <int TILES>
    __device__ void read(const OneLaunchShared& shared, const T* (&x)[TILES], int (&slots)[TILES]) {
#pragma unroll
        for (int i = 0; i < TILES; ++i) {
            slots[i] = tile.slot;
            x[i] = &shared.x[tile.slot][0][0];
            tile.advance<1>();
        }
    }
};

// The weights as products take them; with look-ahead, what is known of the next ones.
__device__ inline void round_weights(const OneLaunchRun& run, const Weights& weights,
                                     const Weights& velocities, const Forecast& forecast,
                                     Weights::Fragments& b) {
    const Forecast unscaled = forecast.times(run.unscale);
    weights.round(b, velocities, [&](float weight, float velocity) {
        return AHEAD ? unscaled.value(weight, velocity) : weight * run.unscale;
    });
}

// Multiplies the tiles of a batch by the weights, and leaves the parts of the sums to the row
// warps.
__device__ inline void multiply_batch(OneLaunchShared& shared, const Weights::Fragments& b,
                                      int step, Reader& reader) {
    const int lane = threadIdx.x % 32;
#pragma unroll 1
    for (int first = 0; first < ROW_TILES; first += GROUP) {
        const T* x[GROUP];
        int x_slots[GROUP];
        reader.await(shared);
        reader.read(shared, x, x_slots);
        Weights::Sums z[GROUP];
        Weights::multiply(b, z, [&](unsigned (&a)[4], int t, int tile) {
            load_a(a, x[t] + tile * 16, X_STRIDE);
        });
#pragma unroll
        for (int i = 0; i < GROUP; ++i) {
            const unsigned place = place_of_sums(step, first + i), slot = place % SUM_SLOTS;
            // Where each place has a slot, it is free again when the gradients of its last tile
            // have come.
            if (SUM_SLOTS < SUM_PLACES) wait(shared.sums_empty[slot], place / SUM_SLOTS + 1);
#pragma unroll
            for (int part = 0; part < Weights::MINE_U * 2; ++part) {
                const float* sums = z[i][part / 2][part % 2];
                shared.sums[slot][Weights::warp_k()][Weights::first_unit_tile() + part / 2]
                           [part % 2][lane] = float4{sums[0], sums[1], sums[2], sums[3]};
            }
            arrive_warp(shared.sums_full[place % SUM_BARRIERS]);
            if (first < ROW_TILES - KEPT) arrive_warp(shared.x_empty[x_slots[i]]);
        }
    }
}

// Decay, and what momentum does before the gradient comes; with it the gradient is added to the
// velocity.
__device__ inline void begin_update(const OneLaunchRun& run, float rate, Weights& weights,
                                    Weights& velocities) {
    if (!MOMENTUM) {
        if (run.rule.decay != 0)
            weights.each([&](float& weight) { weight *= 1 - rate * run.rule.decay; });
        return;
    }
    weights.each_with(velocities, [&](float& weight, float& velocity) {
        velocity *= run.rule.momentum;
        const float decay = run.rule.decay * weight;
        if (NESTEROV) weight += rate * velocity;
        velocity += decay;
    });
}

__device__ inline void end_update(const OneLaunchRun& run, float rate, Weights& weights,
                                  Weights& velocities) {
    if (!MOMENTUM) return;
    const float step = NESTEROV ? rate * (1 + run.rule.momentum) : rate;
    weights.each_with(velocities,
                      [&](float& weight, float& velocity) { weight -= step * velocity; });
}

// take(dz, x, whether they are the last) for groups of tiles of a batch whose gradients are there.
template <class F>
__device__ inline void each_gradient_group(OneLaunchShared& shared, int step, Reader& reader,
                                           F take) {
#pragma unroll 1
    for (int first = 0; first < ROW_TILES; first += BACK_GROUP) {
        const T* x[BACK_GROUP];
        int x_slots[BACK_GROUP];
        if (KEPT == 0) reader.await(shared);
        reader.read(shared, x, x_slots);
        const T* dz = HIDDEN ? shared.dh[first * 16] : shared.dz[first * 16];
        if constexpr (HIDDEN > 0) {
            if (first % HIDDEN_GROUP == 0) wait(shared.dh_full[first / HIDDEN_GROUP], step);
        } else {
#pragma unroll
            for (int i = 0; i < BACK_GROUP / GROUP; ++i)
                wait(shared.dz_full[first / GROUP + i], step);
        }
        take(dz, x, first + BACK_GROUP == ROW_TILES);
#pragma unroll
        for (int tile = 0; tile < BACK_GROUP; ++tile) arrive_warp(shared.x_empty[x_slots[tile]]);
    }
    if (AHEAD) arrive_warp(shared.dh_empty);
}

// Adds the gradient of a batch to `target`; finish(tile, numbers) for each tile that is done.
template <class F>
__device__ inline void add_gradients(OneLaunchShared& shared, Weights& target, int step,
                                     Reader& reader, F finish) {
    each_gradient_group(shared, step, reader,
                        [&](const T* dz, const T* const(&x)[BACK_GROUP], bool is_last) {
                            target.add_product(dz, UNIT_STRIDE, x, X_STRIDE,
                                               [&](int tile, const float (&numbers)[2][4]) {
                                                   if (is_last) finish(tile, numbers);
                                               });
                        });
}

// Multiplies the batch of a step or, with look-ahead, those up to the next one of the epoch that
// have not been yet.
__device__ inline void multiply_batches(OneLaunchShared& shared, const OneLaunchRun& run,
                                        float rate, const Weights& weights,
                                        const Weights& velocities, const Step& step, int& next,
                                        Reader& reader) {
    if constexpr (!AHEAD) {
        Weights::Fragments b;
        round_weights(run, weights, velocities, Forecast{1, 0, 0}, b);
        multiply_batch(shared, b, step.index, reader);
    } else {
#pragma unroll 1
        for (; next <= step.index + !step.is_last_of_epoch(); ++next) {
            const Forecast forecast =
                next > step.index ? forecast_of(rate, run.rule) : Forecast{1, 0, 0};
            Weights::Fragments b;
            round_weights(run, weights, velocities, forecast, b);
            multiply_batch(shared, b, next, reader);
        }
    }
}

// By a rule that takes the whole gradient of a batch at once.
template <int NUM_NEAR, class Rule>
__device__ inline void train_adaptively(OneLaunchShared& shared, const OneLaunchRun& run,
                                        const Rule* rules, const LayerArrays& layer) {
    AdaptiveWeights<NUM_NEAR> own(shared);
    own.read(layer);
    Reader forward(0);
    for (Step step = run.first_step(); step.is_there(); step.advance()) {
        Reader backward = forward;
        const Rule now = rules[step.index];  // on its way while the batch is
        Weights::Fragments b;
        round_weights(run, own.weights, own.weights, Forecast{1, 0, 0}, b);
        multiply_batch(shared, b, step.index, forward);
        own.begin_update(run, now);
        each_gradient_group(shared, step.index, backward,
                            [&](const T* dz, const T* const(&x)[ROW_TILES], bool) {
                                own.end_update(run, now, dz, x);
                            });
    }
    own.write(layer);
}

// Those that a replica updates.
template <int SHARERS>
__device__ inline void train_own_part(OneLaunchShared& shared, const OneLaunchRun& run,
                                      const LayerArrays& layer) {
    OwnWeights<SHARERS> own;
    own.read(own.weights, layer.w, run.scale);
    if (MOMENTUM) own.read(own.velocities, layer.w_slots[0], run.scale);
    Weights gradients;
    Weights::Fragments b;
    const Part units = held_units(), features = held_features();
    gradients.read(layer.w + first_weight(features, units), ALL_UNITS, units.count, features.count,
                   run.scale);
    // As they would come from the replicas, so that where a run is cut changes no bit.
    gradients.each([](float& weight) { weight = without_last_bit(__float_as_uint(weight)); });
    round_weights(run, gradients, gradients, Forecast{1, 0, 0}, b);
    Reader forward(0), backward(ROW_TILES - KEPT);
    Step step = run.first_step();
    for (StepRules rates(run.rules, step); step.is_there(); rates.advance(step)) {
        multiply_batch(shared, b, step.index, forward);
        gradients.each([](float& gradient) { gradient = 0; });
        add_gradients(shared, gradients, step.index, backward,
                      [&](int tile, const float (&numbers)[2][4]) {
                          own.send_gradient(run, step.index, tile, numbers);
                      });
        own.update(run, step.index, rate_of(rates.now), b);
        forward.skip<ROW_TILES - KEPT>();
        backward.skip<ROW_TILES - KEPT>();
        step.advance();
    }
    own.write(own.weights, layer.w, run.unscale);
    if (MOMENTUM) own.write(own.velocities, layer.w_slots[0], run.unscale);
}

// All of them.
__device__ inline void train_alone(OneLaunchShared& shared, const OneLaunchRun& run,
                                   const LayerArrays& layer) {
    const Part units = held_units(), features = held_features();
    const int64 own = first_weight(features, units);
    Weights weights, velocities;
    weights.read(layer.w + own, ALL_UNITS, units.count, features.count, run.scale);
    if (MOMENTUM)
        velocities.read(layer.w_slots[0] + own, ALL_UNITS, units.count, features.count, run.scale);
    // The backward pass reads the tiles that are kept, or those that came again.
    Reader forward(0), backward(ROW_TILES - KEPT);
    Step step = run.first_step();
    int next = 0;  // batch to be multiplied
    for (StepRules rates(run.rules, step); step.is_there(); rates.advance(step)) {
        multiply_batches(shared, run, rate_of(rates.now), weights, velocities, step, next, forward);
        begin_update(run, rate_of(rates.now), weights, velocities);
        add_gradients(shared, MOMENTUM ? velocities : weights, step.index, backward,
                      [](int, const float (&)[2][4]) {});
        end_update(run, rate_of(rates.now), weights, velocities);
        forward.skip<ROW_TILES - KEPT>();
        backward.skip<ROW_TILES - KEPT>();
        step.advance();
    }
    weights.write(layer.w + own, ALL_UNITS, units.count, features.count, run.unscale);
    if (MOMENTUM)
        velocities.write(layer.w_slots[0] + own, ALL_UNITS, units.count, features.count,
                         run.unscale);
}

__device__ inline void train_weights(OneLaunchShared& shared, const OneLaunchRun& run,
                                     const LayerArrays& layer) {
#if __CUDA_ARCH__ == 900
    if constexpr (DIVIDED) return train_divided<Weights>(shared, run, layer);
#else
    static_assert(!DIVIDED, "wgmma is Hopper's alone");
#endif
    if constexpr (ADAPTIVE) {
        train_adaptively<NEAR_TILES>(shared, run, run.rules, layer);
    } else if constexpr (REPLICAS > 1) {
        train_own_part<REPLICAS>(shared, run, layer);
    } else {
        train_alone(shared, run, layer);
    }
}
