// From the outputs of a block's rows to their losses and gradients, or to what they add to the
// validation error. A warp has a row, its lanes every 32nd output.
#pragma once

#include "tabular/table_layers.cuh"

constexpr int OF_LANE = (OUTPUTS + 31) / 32;
static_assert(ROWS <= WARPS, "a warp for each row");

struct OutputsOfRow {
    float values[OF_LANE] = {};

    __device__ OutputsOfRow(const TableShared& shared, int row) {
        each([&](int i, int output) {
            values[i] = LastForward::sum_of_parts(shared.parts, row, output) * ROOT +
                        shared.vector(BIASES)[HIDDEN_LAYERS * HIDDEN + output];
        });
    }

    // f(i, output) for each that this lane has.
    template <class F>
    __device__ static void each(F f) {
#pragma unroll
        for (int i = 0; i < OF_LANE; ++i) {
            const int output = i * 32 + own_lane();
            if (output < OUTPUTS) f(i, output);
        }
    }

    // Of labels: softmax less the smoothed label, and the loss, in `values` and returned.
    __device__ float differentiate_label(int label) {
        float most = -infinity(), total = 0;
        each([&](int i, int) { most = Max::join(most, values[i]); });
        most = reduce_warp<Max>(most);
        each([&](int i, int) { total += expf(values[i] - most); });
        total = reduce_warp<Sum>(total);
        const float log_total = logf(total), spread = SMOOTHING / OUTPUTS;
        float loss = 0;
        each([&](int i, int output) {
            const float target = (output == label ? 1 - SMOOTHING : 0.0f) + spread;
            const float log_share = values[i] - most - log_total;
            loss -= target * log_share;
            values[i] = expf(log_share) - target;
        });
        return reduce_warp<Sum>(loss);
    }

    // Of numbers: twice the distance over the outputs, and the mean of its square.
    __device__ float differentiate_numbers(const float* targets) {
        float loss = 0;
        each([&](int i, int output) {
            const float distance = values[i] - targets[output];
            loss += distance * distance;
            values[i] = 2 * distance / OUTPUTS;
        });
        return reduce_warp<Sum>(loss) / OUTPUTS;
    }

    // Whether the label is not the first of the largest outputs; NaN if an output is not finite.
    __device__ float is_wrong(int label) const {
        float most = -infinity(), finite = 0;
        each([&](int i, int) {
            most = Max::join(most, values[i]);
            finite += values[i] - values[i];
        });
        most = reduce_warp<Max>(most);
        int first = OUTPUTS;
        each([&](int i, int output) {
            if (values[i] == most && output < first) first = output;
        });
        return reduce_warp<Sum>(finite) + (reduce_warp<Min>(first) != label);
    }

    // The sum of the squared distances of clipped outputs.
    __device__ float squared_error(const float* targets, const float* bounds) const {
        float sum = 0;
        each([&](int i, int output) {
            const float value = values[i];
            const float low = bounds[output], high = bounds[OUTPUTS + output];
            const float clipped = value < low ? low : value > high ? high : value;
            sum += (clipped - targets[output]) * (clipped - targets[output]);
        });
        return reduce_warp<Sum>(sum);
    }
};

// The gradients of a block's outputs, times GRADIENT_SCALE, where the backward pass takes them, and
// the losses of its rows.
__device__ inline void differentiate_outputs(TableShared& shared, const RowBlock& rows) {
    const int row = own_warp();
    if (row >= ROWS) return;
    OutputsOfRow outputs(shared, row);
    const float loss = HAS_LABELS
                           ? outputs.differentiate_label(static_cast<int>(shared.targets[row][0]))
                           : outputs.differentiate_numbers(shared.targets[row]);
    if (own_lane() == 0) shared.losses[row] = rows.has(row) ? loss : 0.0f;
    T* place = shared.units[(LAST + 1) % 2][row];
    for (int i = OUTPUTS + own_lane(); i < OUTPUT_TILES * 16; i += 32) place[i] = T{};
    OutputsOfRow::each([&](int i, int output) {
        place[output] = store<T>(rows.has(row) ? outputs.values[i] * GRADIENT_SCALE : 0.0f);
    });
}

// Leaves those gradients where the update takes them, and the sums of those of biases.
__device__ inline void leave_outputs(const TableShared& shared, const RowBlock& rows) {
    if (!has_tile<OUTPUT_TILES>()) return;
    Sums gradients;
    float of_bias[2] = {};
#pragma unroll
    for (int n = 0; n < ROW_TILES; ++n) {
#pragma unroll
        for (int part = 0; part < 4; ++part) {
            const int unit = own_warp() * 16 + unit_of(part);
            gradients[n][part] = load(shared.units[(LAST + 1) % 2][row_of(n, part)][unit]);
            of_bias[part / 2] += gradients[n][part];
        }
    }
    leave_rows(rows.memory.gradients[inputs_before(LAST) + HIDDEN_TILES + own_warp()], rows.index,
               gradients);
#pragma unroll
    for (int h = 0; h < 2; ++h) {
        const int unit = own_warp() * 16 + unit_of(2 * h);
        const float bias = sum_over_rows(of_bias[h]);
        if (own_lane() % 4 == 0 && unit < OUTPUTS)
            rows.memory.sums[rows.index][BIASES - FREQUENCIES + HIDDEN_LAYERS * HIDDEN + unit] =
                bias;
    }
}

// What a block's rows add to the validation error, in `losses`.
__device__ inline void find_errors(TableShared& shared, const RowBlock& rows) {
    const int row = own_warp();
    if (row >= ROWS) return;
    const OutputsOfRow outputs(shared, row);
    const float error = HAS_LABELS
                            ? outputs.is_wrong(static_cast<int>(shared.targets[row][0]))
                            : outputs.squared_error(shared.targets[row], rows.network.bounds);
    if (own_lane() == 0) shared.losses[row] = rows.has(row) ? error : 0.0f;
}
