// Computes: gradient = s_i clip(p - t, -delta, delta) / (divisor Σ s), the gradient of huber_forward's mean.
// Layout:   prediction p, target t and gradient (M, N), sample_weight s (M,), null for ones, all contiguous;
//           total_weight Σ s () of DTYPE's arithmetic type.
// Launch:   1-D blocks of at most 256 threads, each taking blockDim.x · 32 / sizeof DTYPE elements; no shared
//           memory; define DTYPE.
// Numerics: computed in float32, or float64 for float64; no weight gives zeros.
// Cost:     3 M · N · sizeof DTYPE bytes.
// Reference: huber_backward of backends/numpy/loss.py.
#include "ops/loss/element_loss.cuh"

extern "C" __global__ void __launch_bounds__(256)
    huber_backward(const T* prediction, const T* target, const Acc* total_weight, const T* sample_weight,
                   T* gradient, double divisor, double delta, int64 num_rows, int64 num_columns) {
    take_turn();
    const Acc d = static_cast<Acc>(delta);
    gradient_of_mean(prediction, target, total_weight, sample_weight, gradient, divisor, num_rows,
                     num_columns, [=](Acc p, Acc t) { return huber_slope(p, t, d); });
}
