// Computes: gradient = of_derivative s_i d term(p, t) / dp / Σ s, the gradient of
//           element_loss_forward's mean but for constant factors; the derivative is that of the
//           define LOSS in ops/loss/loss_terms.cuh, with its setting.
// Layout:   prediction (or logits) p, target t and gradient (M, N), sample_weight s (M,), null for
//           ones, all contiguous; total_weight Σ s () of DTYPE's arithmetic type.
// Launch:   1-D blocks of at most 256 threads, each taking blockDim.x · 32 / sizeof DTYPE elements;
//           no shared memory; defines DTYPE, LOSS.
// Numerics: computed in float32, or float64 for float64; no weight gives zeros.
// Cost:     3 M · N · sizeof DTYPE bytes.
// Reference: element_loss_backward of backends/numpy/loss.py.
#include "base/stream.cuh"
#include "ops/loss/loss.cuh"
#include "ops/loss/loss_terms.cuh"

extern "C" __global__ void __launch_bounds__(256)
    element_loss_backward(const T* prediction, const T* target, const Acc* total_weight,
                          const T* sample_weight, T* gradient, double of_derivative, double setting,
                          int64 num_rows, int64 num_columns) {
    take_turn();
    const Acc own_setting = static_cast<Acc>(setting);
    const auto slope = [=](const Acc(&x)[2]) { return LOSS::derivative(x[0], x[1], own_setting); };
    const Inputs<2> inputs{{prediction, target}};
    const Acc scale = inverse_or_zero(static_cast<Acc>(*total_weight / of_derivative));
    if (sample_weight) {
        map_elements(inputs, gradient, num_rows * num_columns, num_columns,
                     [=](const Acc(&x)[2], int64 row, int64) {
                         return slope(x) * (load(sample_weight[row]) * scale);
                     });
    } else {
        map_elements(inputs, gradient, num_rows * num_columns, 0,
                     [=](const Acc(&x)[2], int64, int64) { return slope(x) * scale; });
    }
}
