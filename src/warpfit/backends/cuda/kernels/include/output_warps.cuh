// The output warps of one_launch.cu: they update the output layer and the biases, and keep the record.
#pragma once

#include "reduce.cuh"
#include "trained_block.cuh"

// Updates 16 biases from `first` on with the sums of their columns of dz, tile after tile.
template <int STRIDE, int BARRIERS>
__device__ inline void update_biases(const Run& run, float rate, int step, Barrier (&full)[BARRIERS],
                                     const T (&dz)[ROWS][STRIDE], int first, float* bias, float* velocity) {
    const int lane = threadIdx.x % 32;
    const unsigned ones = packed<T>(1.0f, 1.0f);
    const unsigned b[2] = {ones, ones};
    float sums[4] = {};  // in the lanes of which l % 4 is 0: [0] of column l / 4, and [2] of column l / 4 + 8
#pragma unroll 1
    for (int group = 0; group < GROUPS; ++group) {
        unsigned a[GROUP][4];
        if (group % (GROUPS / BARRIERS) == 0) wait(full[group * BARRIERS / GROUPS], step);
#pragma unroll
        for (int i = 0; i < GROUP; ++i) load_a_transposed(a[i], &dz[(group * GROUP + i) * 16][first], STRIDE);
#pragma unroll
        for (int i = 0; i < GROUP; ++i) TensorCore<T>::multiply(sums, a[i], b);
    }
    if (lane % 4 != 0) return;
    const int i = first + lane / 4;
    run.update(bias[i], velocity[i], sums[0], rate);
    run.update(bias[i + 8], velocity[i + 8], sums[2], rate);
}

#if HIDDEN
// Updates tile (u, o) of the output layer's weights with the gradient of a batch, tile after tile; the first of its
// columns also their biases.
__device__ inline void update_output_tile(Shared& shared, const Run& run, float rate, int step, int u,
                                          int o) {
    OutputLayer& layer = shared.outputs;
    const int lane = threadIdx.x % 32;
    const unsigned one = packed<T>(1.0f, 1.0f), ones[4] = {one, one, one, one};
    float sums[2][4] = {}, of_bias[2][4] = {};
#pragma unroll 1
    for (int group = 0; group < GROUPS; ++group) {
        wait(shared.dz_full[group], step);
#pragma unroll
        for (int i = 0; i < GROUP; ++i) {
            const int row = (group * GROUP + i) * 16;
            unsigned a[4], low[2], high[2];
            load_a_transposed(a, &shared.h[row][u * 16], UNIT_STRIDE);
            load_b_pair_transposed(low, high, &shared.dz[row][o * 16], OUT_STRIDE);
            TensorCore<T>::multiply(sums[0], a, low);
            TensorCore<T>::multiply(sums[1], a, high);
            TensorCore<T>::multiply(of_bias[0], ones, low);
            TensorCore<T>::multiply(of_bias[1], ones, high);
        }
    }
#pragma unroll
    for (int part = 0; part < 4; ++part) {
        const int col = o * 16 + part / 2 * 8 + lane * 2 + part % 2;
        if (u > 0 || lane >= 4) break;
        run.update(shared.output_bias[col], shared.output_bias_velocity[col], of_bias[part / 2][part % 2],
                   rate);
    }
#pragma unroll
    for (int part = 0; part < 4; ++part) {
        const int unit = u * 16 + lane / 4 + part % 2 * 8, col = o * 16 + part / 2 * 8 + lane % 4 * 2;
        float updated[2];
#pragma unroll
        for (int i = 0; i < 2; ++i) {
            float& weight = layer.w[unit][col + i];
            run.update(weight, layer.v[MOMENTUM ? unit : 0][col + i], sums[part / 2][part % 2 * 2 + i], rate);
            updated[i] = weight * run.unscale;
        }
        *reinterpret_cast<unsigned*>(&layer.half[(step + 1) % 2][unit][col]) =
            packed<T>(updated[0], updated[1]);
    }
}

// The output layer.
__device__ inline void update_outputs(Shared& shared, const Run& run, float rate, int step, int warp) {
    for (int task = warp; task < UNIT_TILES * OUT_TILES; task += OUTPUT_WARPS)
        update_output_tile(shared, run, rate, step, task / OUT_TILES, task % OUT_TILES);
}

// The biases of the hidden units; warps that have less of the output layer come first.
__device__ inline void update_hidden(Shared& shared, const Run& run, float rate, int step, int warp) {
    const int first = (warp + OUTPUT_WARPS - UNIT_TILES * OUT_TILES % OUTPUT_WARPS) % OUTPUT_WARPS;
    for (int u = first; u < UNIT_TILES; u += OUTPUT_WARPS)
        update_biases(run, rate, step, shared.dh_full, shared.dh, u * 16, shared.bias, shared.bias_velocity);
}
#else
__device__ inline void update_hidden(Shared&, const Run&, float, int, int) {}

__device__ inline void update_outputs(Shared& shared, const Run& run, float rate, int step, int warp) {
    for (int task = warp; task < OUT_TILES; task += OUTPUT_WARPS) {
        update_biases(run, rate, step, shared.dz_full, shared.dz, task * 16, shared.output_bias,
                      shared.output_bias_velocity);
    }
}
#endif

// Writes a row of the record.
__device__ inline void record_step(Shared& shared, double* row, int step, int count) {
    const int lane = threadIdx.x % 32;
    if (CLUSTER > 1) wait(shared.losses_full[step % 2], step / 2);
    double loss = 0;
    unsigned correct = 0;
    for (int i = lane; i < count; i += 32) {
        loss += shared.losses[step % 2][i].loss;
        correct += shared.losses[step % 2][i].is_correct;
    }
    loss = reduce_warp<Sum>(loss) / count;
    correct = reduce_warp<Sum>(correct);
    if (lane == 0) {
        row[0] = loss;
        row[1] = count;
        row[2] = correct;
    }
}

__device__ inline void train_outputs(Shared& shared, const Run& run, double* record, int warp) {
    const bool has_record = own_rank() == 0 && warp == OUTPUT_WARPS - 1;
    Step step = run.first_step();
    for (Rates rates(run.rates, step); step.is_there(); rates.advance(step)) {
        update_outputs(shared, run, rates.now, step.index, warp);
        if (!AHEAD) update_hidden(shared, run, rates.now, step.index, warp);
        // All warps wait for all that changes once a step, lest they fall a round behind.
#pragma unroll 1
        for (int group = 0; group < GROUPS; ++group) wait(shared.dz_full[group], step.index);
#if CLUSTER > 1
        if (has_record && threadIdx.x % 32 == 0) {
            mbarrier_expect(&shared.losses_full[step.index % 2], ROWS * sizeof(RowLoss));
        }
#endif
        arrive_warp(shared.outputs_ready);
        if (AHEAD) {  // the next step's outputs do not wait for its biases
            update_hidden(shared, run, rates.now, step.index, warp);
            wait(shared.dh_full[0], step.index);  // of a warp without biases, too
            arrive_warp(shared.biases_ready);
        }
        if (has_record) record_step(shared, record + 3 * step.index, step.index, step.count());
        step.advance();
    }
}
