// The outputs of a network in a group (small_network.cuh): their logits, losses and gradients. A
// lane has a row. Logits lie a row after the other in shared memory; dz goes back in rows of 8, as
// products take it. A row is one lane's here, not four lanes' as in output_losses.cuh: formulas
// stand in both, as sums over lanes would cost this kernel two shuffles a sum, and its bits.
#pragma once

#include "resident/products/small_layers.cuh"

// The logits of the warp's rows, or other outputs, each to its row.
__device__ inline void find_logits(GroupShared& shared, const Parameters& own_parameters) {
    const Thread own;
    if (own.warp() * 16 >= ROWS) return;
    unsigned b[UNITS / 16][OUT_TILES][2];
#pragma unroll
    for (int tile = 0; tile < OUT_TILES; ++tile) {
#pragma unroll
        for (int k = 0; k < UNITS / 16; k += 2)
            ldmatrix_x4_trans(b[k][tile][0], b[k][tile][1], b[k + 1][tile][0], b[k + 1][tile][1],
                              shared.out_weights[tile][16 * k + own.lane()]);
    }
    float sums[LOSS_PARTS][OUT_TILES][4];
#pragma unroll
    for (int part = 0; part < LOSS_PARTS; ++part) {
#pragma unroll
        for (int i = 0; i < 4 * OUT_TILES; ++i)
            sums[part][i / 4][i % 4] =
                own_parameters.numbers[own_biases_at(HIDDEN) + i / 4 * 2 + i % 2];
    }
    const unsigned first = own.warp() * 16, row = first + own.lane() % 16;
#pragma unroll
    for (int k = 0; k < padded(HIDDEN) / 16; ++k) {
        const unsigned char* line =
            shared.h[HIDDEN - 1] + row * LINE_BYTES + ((2 * k + own.lane() / 16) ^ row % 8) * 16;
#pragma unroll
        for (int part = 0; part < LOSS_PARTS; ++part) {
            unsigned a[4];
            ldmatrix_x4(a[0], a[1], a[2], a[3], line + part * LOSS_STEP * LINE_BYTES);
#pragma unroll
            for (int tile = 0; tile < OUT_TILES; ++tile)
                TensorCore<T>::multiply(sums[part][tile], a, b[k][tile]);
        }
    }
#pragma unroll
    for (int part = 0; part < LOSS_PARTS; ++part) {
#pragma unroll
        for (int i = 0; i < 2 * OUT_TILES; ++i) {
            const unsigned col = i / 2 * 8 + own.column();
            const float* pair = sums[part][i / 2] + i % 2 * 2;
            if (col < OUTPUTS)
                shared.logits[first + LOSS_STEP * part + own.lane() / 4 + i % 2 * 8][col / 2] = {
                    pair[0], pair[1]};
        }
    }
    __syncwarp();
}

constexpr float LOG_2 = 0.6931471805599453f;

// Logits become `factor` times the gradients of their cross-entropy; returns that of the row.
__device__ inline RowLoss replace_logits(float (&values)[8 * OUT_TILES], const float* target,
                                         float factor, const LossSettings& loss) {
    const int label = label_of(target);
    float largest = values[0], sum = 0, of_label = 0, all = 0;
    bool is_before = false;
#pragma unroll
    for (int i = 1; i < OUTPUTS; ++i) largest = fmaxf(largest, values[i]);
#pragma unroll
    for (int i = 0; i < OUTPUTS; ++i) {
        if (i == label) of_label = values[i];
        is_before |= i < label && values[i] == largest;
        if (SMOOTHED) all += values[i];
        values[i] = power_of_2((values[i] - largest) * LOG2_E);
        sum += values[i];
    }
    const float share = factor * reciprocal(sum), on_each = SMOOTHED ? loss.setting / OUTPUTS : 0,
                on_label = SMOOTHED ? 1 - loss.setting : 1;
#pragma unroll
    for (int i = 0; i < OUTPUTS; ++i)
        values[i] = values[i] * share - factor * (i == label ? on_label + on_each : on_each);
    const float whole = LOG_2 * logarithm_of_2(sum) + largest - on_label * of_label;
    return {SMOOTHED ? whole - on_each * all : whole, !is_before && of_label == largest};
}
// Outputs become `factor` times the gradients of their loss, a sum of terms; returns the row's.
template <class Terms>
__device__ inline RowLoss replace_numbers(float (&values)[8 * OUT_TILES], const float* target,
                                          float factor, const LossSettings& loss) {
    float sum = 0;
    bool is_wrong = !COUNTS_ROWS;
#pragma unroll
    for (int i = 0; i < OUTPUTS; ++i) {
        const float t = target[i], p = values[i];
        sum += Terms::term(p, t, loss.setting);
        if (COUNTS_ROWS) is_wrong |= !is_on_side(p, t);
        values[i] = Terms::derivative(p, t, loss.setting) * (factor * loss.of_derivative);
    }
    return {sum * loss.of_term, !is_wrong};
}

// Either.
template <class Loss = LOSS>
__device__ inline RowLoss replace_outputs(float (&values)[8 * OUT_TILES], const float* target,
                                          float factor, const LossSettings& loss) {
    if constexpr (Loss::HAS_LABELS) {
        return replace_logits(values, target, factor, loss);
    } else {
        return replace_numbers<Loss>(values, target, factor, loss);
    }
}

// Of the batch's rows, of which so many are there: the lane's loss, and to all the gradients of its
// outputs, times `factor`.
__device__ inline RowLoss find_losses(GroupShared& shared, const Parameters& parameters,
                                      const LossSettings& loss, int num_rows, float factor,
                                      int stage) {
    find_logits(shared, parameters);
    const Thread own;
    const unsigned row = own_row(own);
    if (row >= ROWS) return {0, 0};
    float values[8 * OUT_TILES] = {};
#pragma unroll
    for (int i = 0; i < OUTPUTS; ++i) {
        const float2& pair = shared.logits[row][i / 2];
        values[i] = i % 2 ? pair.y : pair.x;
    }
    const bool is_there = static_cast<int>(row) < num_rows;
    const RowLoss found =
        replace_outputs(values, shared.targets[stage][row], is_there ? factor : 0, loss);
#pragma unroll
    for (int tile = 0; tile < OUT_TILES; ++tile) {
        uint4 words;
        const float* of_tile = values + 8 * tile;
        words.x = packed<T>(of_tile[0], of_tile[1]);
        words.y = packed<T>(of_tile[2], of_tile[3]);
        words.z = packed<T>(of_tile[4], of_tile[5]);
        words.w = packed<T>(of_tile[6], of_tile[7]);
        *reinterpret_cast<uint4*>(shared.dz[tile][row]) = words;
    }
    return {is_there ? found.loss : 0, is_there && found.is_correct};
}

// From the gradients of the outputs, which all have: those of the last hidden layer's z, in place
// of what it gives; and an update of the outputs.
__device__ inline void back_from_outputs(Words& words, GroupShared& shared,
                                         Parameters& own_parameters, const NetworkStep& step) {
    const Thread own;
    float of_weights[OUT_TILES][4] = {}, of_biases[OUT_TILES][4] = {};
    unsigned weights[2 * OUT_TILES];
#pragma unroll
    for (int i = 0; i < 2 * OUT_TILES; ++i)
        weights[i] = own_parameters.pair(own_weights_at(HIDDEN) + 2 * i);
    const unsigned one = packed<T>(1, 1), ones[4] = {one, one, one, one};
    constexpr int AT_ONCE = ROW_SLICES > 1 ? 2 : 1;  // slices that ldmatrix takes
#pragma unroll
    for (int first = 0; first < ROW_SLICES; first += AT_ONCE) {
#pragma unroll
        for (int tile = 0; tile < OUT_TILES; ++tile) {
            unsigned gradients[2][2];  // of 16 rows each
            ldmatrix_x4_trans(gradients[0][0], gradients[0][1], gradients[1][0], gradients[1][1],
                              shared.dz[tile][16 * first + own.lane() % (16 * AT_ONCE)]);
#pragma unroll
            for (int i = 0; i < AT_ONCE; ++i) {
                TensorCore<T>::multiply(of_weights[tile], words.slices[first + i], gradients[i]);
                TensorCore<T>::multiply(of_biases[tile], ones, gradients[i]);
            }
        }
    }
#pragma unroll
    for (int first = 0; first < ROW_SLICES; first += AT_ONCE) {
        unsigned gradients[OUT_TILES][4];  // of eight rows each
#pragma unroll
        for (int tile = 0; tile < OUT_TILES; ++tile)
            ldmatrix_x4(gradients[tile][0], gradients[tile][1], gradients[tile][2],
                        gradients[tile][3],
                        shared.dz[tile][16 * first + own.lane() % (16 * AT_ONCE)]);
#pragma unroll
        for (int eight = 0; eight < 2 * AT_ONCE; ++eight) {
            unsigned of_rows[OUT_TILES];
#pragma unroll
            for (int tile = 0; tile < OUT_TILES; ++tile) of_rows[tile] = gradients[tile][eight];
            LayerSum dh[IS_HALF ? 2 : 4] = {};
            TensorCore<T>::multiply(dh, weights, of_rows);
            unsigned (&h)[4] = words.slices[first + eight / 2];
            const int half = eight % 2 * 2;
            h[half] = chained_pair<HIDDEN - 1>(dh, 0, h[half]);
            h[half + 1] = chained_pair<HIDDEN - 1>(dh, 1, h[half + 1]);
        }
    }
#pragma unroll
    for (int i = 0; i < 4 * OUT_TILES; ++i)
        own_parameters.update(step, own_weights_at(HIDDEN) + i, of_weights[i / 4][i % 4]);
#pragma unroll
    for (int i = 0; i < 2 * OUT_TILES; ++i)
        own_parameters.update(step, own_biases_at(HIDDEN) + i, of_biases[i / 2][i % 2]);
    own_parameters.store_out_weights();
}
