// Computes: gradient = s_i (sigmoid(z) - t) / (divisor Σ s), the gradient of the mean of
//           binary_cross_entropy_forward.
// Layout:   logits z, target t and gradient (M, N), sample_weight s (M,), null for ones, all contiguous;
//           total_weight Σ s () of DTYPE's arithmetic type.
// Launch:   1-D blocks of at most 256 threads, each taking blockDim.x · 32 / sizeof DTYPE elements; no shared
//           memory; define DTYPE.
// Numerics: computed in float32, or float64 for float64; no weight gives zeros.
// Cost:     3 M · N · sizeof DTYPE bytes.
// Reference: binary_cross_entropy_backward of backends/numpy/loss.py.
#include "ops/loss/element_loss.cuh"

extern "C" __global__ void __launch_bounds__(256)
    binary_cross_entropy_backward(const T* logits, const T* target, const Acc* total_weight,
                                  const T* sample_weight, T* gradient, double divisor, int64 num_rows,
                                  int64 num_columns) {
    take_turn();
    gradient_of_mean(logits, target, total_weight, sample_weight, gradient, divisor, num_rows, num_columns,
                     [=](Acc z, Acc t) { return binary_cross_entropy_slope(z, t, Acc(0)); });
}
