// The row warps of one_launch.cu where they look ahead: while a batch is on its way through the
// cluster, the weight warps multiply the next one, x, by weights W that lack its gradient x'ᵀ dh.
// What they lack is added to the product:
//
//     x (W + x'ᵀ dh) = x W + (x x'ᵀ) dh,
//
// where x x'ᵀ, the Gram matrix of the two batches, has been found before (gram_batches.cu), with 1
// added for the biases. Nothing is approximate. So the way of a step is from the gradients of one
// batch's hidden units to those of the next; products with x are found beside it. At the end of an
// epoch, all come to a rest.
//
// Each row warp has one tile.
#pragma once

#include "resident/rows/row_warps.cuh"

// Where a row of the Gram matrix takes many registers, it comes when the outputs have gone.
constexpr bool READS_GRAM_LATE = ROW_TILES > 4;

// What a warp holds of its tile of the next batch.
struct TileAhead {
    float z[UNIT_TILES][2][4];  // of its hidden units
    FragmentWords gram[ROW_TILES];
    float gram_scale;
    float bias[UNIT_TILES][2][2];  // of its hidden units

    // The tile's rows of the Gram matrix of a batch and the one before, as A fragments.
    __device__ void read_gram(const OneLaunchRun& run, int step, int r) {
#pragma unroll
        for (int other = 0; other < ROW_TILES; ++other) {
            const int64 place = (static_cast<int64>(step) * ROW_TILES + r) * ROW_TILES + other;
            gram[other] = run.gram[place * 32 + threadIdx.x % 32];
        }
        gram_scale = run.gram_scales[step];
    }

    // Biases as `forecast` has them: before this warp's gradients are there, as these change them.
    __device__ void read_biases(const OneLaunchShared& shared, const OneLaunchRun& run,
                                const Forecast& forecast) {
#pragma unroll
        for (int i = 0; i < 4 * UNIT_TILES; ++i) {
            const int unit = i / 2 * 8 + static_cast<int>(threadIdx.x) % 4 * 2 + i % 2;
            bias[i / 4][i / 2 % 2][i % 2] =
                forecast.value(shared.bias[unit], shared.bias_slots[0][unit]) * run.unscale;
        }
    }

    // The sums of a tile that the weight warps have multiplied, with these biases.
    __device__ void take_sums(OneLaunchShared& shared, int step, int r) {
        await_sums(shared, step, r);
#pragma unroll
        for (int u = 0; u < UNIT_TILES; ++u) {
            ::take_sums(shared, step, r, u, z[u]);
#pragma unroll
            for (int i = 0; i < 8; ++i) z[u][i / 4][i % 4] += bias[u][i / 4][i % 2];
        }
        release_sums(shared, step, r);
    }

    // Adds what the gradient of batch `step` adds to the sums of the next.
    __device__ void add_gradients(OneLaunchShared& shared, int step, float factor) {
        wait(shared.dh_full[0], step);
#pragma unroll
        for (int u = 0; u < UNIT_TILES; ++u) {
            float sums[2][2][4] =
                {};  // of even and odd tiles: an mma need not wait for the one before
#pragma unroll
            for (int other = 0; other < ROW_TILES; ++other) {
                unsigned low[2], high[2];
                load_b_pair_transposed(
                    low, high, own_dh(shared, step) + other * 16 * UNIT_STRIDE + 2 * u * UNIT_CHUNK,
                    UNIT_STRIDE, UNIT_CHUNK);
                TensorCore<T>::multiply(sums[other % 2][0], gram[other].words, low);
                TensorCore<T>::multiply(sums[other % 2][1], gram[other].words, high);
            }
#pragma unroll
            for (int i = 0; i < 8; ++i)
                z[u][i / 4][i % 4] +=
                    (sums[0][i / 4][i % 4] + sums[1][i / 4][i % 4]) * factor * gram_scale;
        }
    }

    // The outputs, as far as this block's units make them up, without the bias.
    __device__ void find_outputs(OneLaunchShared& shared, const OneLaunchRun& run, int step, int r,
                                 unsigned (&derivatives)[UNIT_TILES][4], Outputs& outputs) const {
        unsigned a[UNIT_TILES][4];
#pragma unroll
        for (int u = 0; u < UNIT_TILES; ++u) activate_units(run, u, z[u], a[u], derivatives[u]);
        wait(shared.outputs_ready, step + 1);
#pragma unroll
        for (int i = 0; i < 8 * OUT_TILES; ++i) outputs[i / 4][i % 4] = 0;
#pragma unroll
        for (int i = 0; i < UNIT_TILES * OUT_TILES; ++i) {
            const int u = i / OUT_TILES, o = i % OUT_TILES;
            unsigned low[2], high[2];
            load_b_pair_transposed(low, high, &shared.outputs.half[step % 2][u * 16][o * 16],
                                   OUT_STRIDE);
            TensorCore<T>::multiply(outputs[2 * o], a[u], low);
            TensorCore<T>::multiply(outputs[2 * o + 1], a[u], high);
        }
#pragma unroll
        for (int u = 0; u < UNIT_TILES; ++u) store_units(shared.h[0], r, u, a[u]);
    }
};

// What a step needs to know, found while a warp would wait: a division takes long.
struct StepNumbers {
    int count;
    float factor;
    Forecast forecast;

    __device__ StepNumbers(const OneLaunchRun& run, const Step& step, float rate)
        : count(step.count()),
          factor(factor_of(run, rate, count)),
          forecast(forecast_of(rate, run.rule)) {}
};

// Takes tile r of each batch through its stages.
__device__ inline void look_ahead(OneLaunchShared& shared, const OneLaunchRun& run, int r) {
    if (r >= ROW_TILES) return;
    TileAhead tile;
    Step step = run.first_step();
    StepRules rates(run.rules, step);
    StepNumbers numbers(run, step, rate_of(rates.now)), last = numbers;
    while (step.is_there()) {
        const int index = step.index;
        if (step.is_first_of_epoch()) {
            wait(shared.biases_ready, index + 1);
            tile.read_biases(shared, run, Forecast{1, 0, 0});
            tile.take_sums(shared, index, r);
        }
        unsigned derivatives[UNIT_TILES][4];
        Outputs outputs;
        tile.find_outputs(shared, run, index, r, derivatives, outputs);
        begin_tile(shared, run, index, numbers.count, numbers.factor, r, outputs);
        const bool has_next = !step.is_last_of_epoch();
        if (has_next && !READS_GRAM_LATE) tile.read_gram(run, index + 1, r);
        wait(shared.biases_ready, index + 1);
        if (CLUSTER > 1 && is_own(r))
            finish_rows(shared, run, index, numbers.count, numbers.factor, r);
        last = numbers;
        step.advance();
        rates.advance(step);
        numbers = StepNumbers(run, step, rate_of(rates.now));
        if (has_next) tile.read_biases(shared, run, last.forecast);
        if (has_next && !DIVIDED) tile.take_sums(shared, index + 1, r);
        if (has_next && READS_GRAM_LATE) tile.read_gram(run, index + 1, r);
        wait(shared.dh_empty, index + 1);
        find_unit_gradients(shared, index, r,
                            [&](int u, int part) { return derivatives[u][part]; });
        if (has_next && DIVIDED) tile.take_sums(shared, index + 1, r);
        if (has_next) tile.add_gradients(shared, index, last.forecast.of_gradient * run.unscale);
        if (ROWS_READ_DH) arrive_warp(shared.dh_empty);
    }
}
