// Computes: the gradient of the mean loss of softmax_cross_entropy_forward with respect to the
//           logits, s_i / Σ s w · (p_c mass_i - (1 - ε) w[label] [c = label] - (ε / C) w_c), with
//           mass_i = (1 - ε) w[label] + (ε / C) Σ w.
// Layout:   probabilities and gradient (M, C), labels (M,) in [0, C), class_weight w (C,) and
//           sample_weight s (M,), null for ones, all contiguous; total_weight () of DTYPE's
//           arithmetic type.
// Launch:   1-D blocks of whole warps, at most 256 threads, each taking blockDim.x · 32 / sizeof
//           DTYPE elements; no dynamic shared memory; define DTYPE.
// Numerics: computed in float32, or float64 for float64; no weight gives zeros.
// Cost:     2 M · C · sizeof DTYPE bytes; with smoothing and class weights every block reads all of
//   these.
// Reference: softmax_cross_entropy_backward of backends/numpy/loss.py.
#include "base/stream.cuh"
#include "ops/loss/loss.cuh"

// By all threads of a block.
__device__ inline Acc sum_of(const T* values, int count, Acc* shared) {
    Acc sum = 0;
    for (int i = threadIdx.x; i < count; i += blockDim.x) sum += load(values[i]);
    return reduce_block<Sum>(sum, Acc(0), shared);
}

extern "C" __global__ void __launch_bounds__(256)
    softmax_cross_entropy_backward(const T* probabilities, const int64* labels,
                                   const Acc* total_weight, const T* class_weight,
                                   const T* sample_weight, T* gradient, double smoothing,
                                   int64 num_rows, int num_columns) {
    take_turn();
    __shared__ Acc shared[WARP];
    const Acc on_label = static_cast<Acc>(1 - smoothing);
    const Acc on_each = static_cast<Acc>(smoothing / num_columns);
    const Acc scale = inverse_or_zero(*total_weight);
    const bool spreads = class_weight && on_each != Acc(0);
    const Acc on_all = spreads ? on_each * sum_of(class_weight, num_columns, shared) : Acc(0);

    map_elements<1>({{probabilities}}, gradient, num_rows * num_columns, num_columns,
                    [=](const Acc(&x)[1], int64 row, int64 column) {
                        const int64 label = labels[row];
                        const Acc row_scale =
                            sample_weight ? scale * load(sample_weight[row]) : scale;
                        Acc result = x[0], here = on_label, everywhere = on_each;
                        if (class_weight) {
                            here *= load(class_weight[label]);
                            everywhere *= load(class_weight[column]);
                            result *= here + on_all;
                        }
                        if (column == label) result -= here;
                        return (result - everywhere) * row_scale;
                    });
}
