// Computes: of logits = x @ w + b what softmax_cross_entropy_step does: record[row] = (mean loss,
//           rows, how many are right), and dz, its gradient times `scale`; and dx = (dz @ wᵀ) f'(x)
//           if that is not null, f the define ACTIVATION. No logits go to memory.
// Layout:   x and dx (M, K), w (K, OUTPUTS), b (OUTPUTS,) or null, dz (M, OUTPUTS) of DTYPE, a type
//           of half precision, contiguous; x, dx and w begin at multiples of 4 bytes, K is even;
//           labels, order, first_step, offset, rows_per_step and record as of
//           softmax_cross_entropy_step; partials two for each block, arrivals one zero, both null
//           with a single block.
// Launch:   any number of blocks of at most 256 threads, whole warps; no shared memory. Defines
//           DTYPE, OUTPUTS, at most 16, PAIRS (64 of K each) and ACTIVATION, which needs no input.
// Numerics: a row in float32, its logits not rounded; dx is that of dz as it is rounded; the sums
//           over rows in float64, in a fixed sequence.
// Cost:     4 M · K · OUTPUTS FLOP and 4 M (K + OUTPUTS) bytes; each warp reads all weights once,
//           and keeps them.
// Reference: linear_forward, softmax_cross_entropy_step and linear_backward_input, one after the
//           other.
#include "base/math.cuh"
#include "base/reduce.cuh"
#include "mma/fragments.cuh"
#include "ops/activation/activation.cuh"
#include "ops/loss/cross_entropy.cuh"
#include "ops/loss/loss_step.cuh"

using T = DTYPE;

constexpr int CLASSES = 16;  // as many as pairs of lanes
static_assert(sizeof(T) == 2 && OUTPUTS <= CLASSES, "a pair of lanes has one output of a row");

// This lane's class: of a row's sums it gets the one of its pair.
__device__ inline int own_class() { return threadIdx.x % WARP / 2; }

__device__ inline int word_of(int pair) { return pair * WARP + threadIdx.x % WARP; }

// Two rows of w for each pair of a row's inputs that this lane has, as words that lie in sequence.
struct Weights {
    unsigned words[PAIRS][OUTPUTS];

    __device__ Weights(const T* w, int num_words) {
#pragma unroll
        for (int pair = 0; pair < PAIRS; ++pair) {
            const auto* from =
                reinterpret_cast<const unsigned*>(w) + static_cast<int64>(word_of(pair)) * OUTPUTS;
#pragma unroll
            for (int i = 0; i < OUTPUTS; ++i) {
                words[pair][i] = word_of(pair) < num_words ? from[i] : 0;
            }
        }
    }

    __device__ float at(int pair, int row, int output) const {
        const int idx = row * OUTPUTS + output;
        const float2 both = unpacked<T>(words[pair][idx / 2]);
        return idx % 2 ? both.y : both.x;
    }
};

// The sum over all lanes of that one of their numbers which is this lane's class'.
__device__ inline float sum_of_class(float (&sums)[CLASSES]) {
#pragma unroll
    for (int half = CLASSES / 2; half > 0; half /= 2) {
        const bool is_upper = own_class() & half;
#pragma unroll
        for (int i = 0; i < half; ++i) {
            const float given = is_upper ? sums[i] : sums[i + half];
            const float kept = is_upper ? sums[i + half] : sums[i];
            sums[i] = kept + __shfl_xor_sync(FULL_WARP, given, 2 * half);
        }
    }
    return sums[0] + __shfl_xor_sync(FULL_WARP, sums[0], 1);
}

// Over the classes, for every lane.
template <class Op>
__device__ inline float over_classes(float value) {
#pragma unroll
    for (int offset = 2; offset < WARP; offset *= 2) {
        value = Op::join(value, __shfl_xor_sync(FULL_WARP, value, offset));
    }
    return value;
}

__device__ inline float logit_of(const unsigned (&x)[PAIRS], const Weights& weights, float bias) {
    float sums[CLASSES] = {};
#pragma unroll
    for (int pair = 0; pair < PAIRS; ++pair) {
        const float2 inputs = unpacked<T>(x[pair]);
#pragma unroll
        for (int i = 0; i < OUTPUTS; ++i) {
            sums[i] += inputs.x * weights.at(pair, 0, i) + inputs.y * weights.at(pair, 1, i);
        }
    }
    return sum_of_class(sums) + bias;
}

// The gradient of this lane's logit; the row's loss and whether it is right join `sums` of lane 0.
__device__ inline float gradient_of(float logit, int64 row, const Targets<float>& targets,
                                    float scale, double (&sums)[2]) {
    const int own = own_class();
    const bool is_there = own < OUTPUTS;
    const int label = column_of(targets.labels[targets.place_of(row)], OUTPUTS);
    const float value = is_there ? logit : -infinity();
    const float largest = over_classes<Max>(value), power = exponential(value - largest);
    const float sum = over_classes<Sum>(power), log_sum = logarithm(sum);
    const float of_label =
        label < 0 ? -infinity() : __shfl_sync(FULL_WARP, value, 2 * max(label, 0));
    const float loss = is_there ? log_sum - (value - largest) : 0.0f;
    const float spread = targets.smoothing != 0 ? over_classes<Sum>(loss) : 0.0f;
    const bool beaten = label < 0 || (is_there && beats(value, own, of_label, label));
    const bool is_right = !__any_sync(FULL_WARP, beaten);
    if (threadIdx.x % WARP == 0) {
        float weight;
        sums[0] += targets.loss_of_row(row, log_sum - (of_label - largest), spread, weight);
        sums[1] += is_right;
    }
    const float on_label = own == label ? 1 - targets.smoothing : 0.0f;
    return (power / sum - on_label - targets.smoothing / OUTPUTS) * scale;
}

__device__ inline void write_inputs(const unsigned (&x)[PAIRS], const Weights& weights, float dz,
                                    float slope, unsigned* dx, int num_words) {
    float sums[PAIRS][2] = {};
#pragma unroll
    for (int i = 0; i < OUTPUTS; ++i) {
        const float gradient = __shfl_sync(FULL_WARP, dz, 2 * i);
#pragma unroll
        for (int pair = 0; pair < PAIRS; ++pair) {
            sums[pair][0] += gradient * weights.at(pair, 0, i);
            sums[pair][1] += gradient * weights.at(pair, 1, i);
        }
    }
#pragma unroll
    for (int pair = 0; pair < PAIRS; ++pair) {
        if (word_of(pair) >= num_words) continue;
        const float2 y = unpacked<T>(x[pair]);
        const float first = derivative_by_value<Activation::ACTIVATION>(y.x, slope);
        const float second = derivative_by_value<Activation::ACTIVATION>(y.y, slope);
        dx[word_of(pair)] = packed<T>(sums[pair][0] * first, sums[pair][1] * second);
    }
}

extern "C" __global__ void __launch_bounds__(256)
    linear_cross_entropy_step(const T* x, const T* w, const T* b, const int64* labels,
                              const int64* order, Scalar first_step, int64 offset,
                              int64 rows_per_step, T* dz, T* dx, double* record, Scalar record_row,
                              double* partials, unsigned* arrivals, double smoothing, double scale,
                              double slope, int64 num_rows, int num_inputs) {
    take_turn();
    const int num_words = num_inputs / 2, own = own_class();
    const Weights weights(w, num_words);
    const float bias = b && own < OUTPUTS ? load(b[own]) : 0.0f;
    const int64* own_order = order_of_step(order, first_step, offset, rows_per_step);
    const Targets<float> targets{labels, own_order, nullptr, nullptr, static_cast<float>(smoothing),
                                 OUTPUTS};
    const float of_row = static_cast<float>(scale) / static_cast<float>(num_rows);
    double sums[2] = {0, 0};
    const int warps = blockDim.x / WARP;
    for (int64 row = static_cast<int64>(blockIdx.x) * warps + threadIdx.x / WARP; row < num_rows;
         row += static_cast<int64>(gridDim.x) * warps) {
        unsigned inputs[PAIRS];
#pragma unroll
        for (int pair = 0; pair < PAIRS; ++pair) {
            const auto* from = reinterpret_cast<const unsigned*>(x) + row * num_words;
            inputs[pair] = word_of(pair) < num_words ? from[word_of(pair)] : 0;
        }
        const float logit = logit_of(inputs, weights, bias);
        const T gradient = store<T>(gradient_of(logit, row, targets, of_row, sums));
        if (threadIdx.x % 2 == 0 && own < OUTPUTS) dz[row * OUTPUTS + own] = gradient;
        if (!dx) continue;
        write_inputs(inputs, weights, load(gradient), static_cast<float>(slope),
                     reinterpret_cast<unsigned*>(dx) + row * num_words, num_words);
    }
    if (sum_over_grid(sums, partials, arrivals) && threadIdx.x == 0) {
        write_record(record, record_row, sums[0], static_cast<double>(num_rows), sums[1]);
    }
}
