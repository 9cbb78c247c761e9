// Computes: the mean loss of_term Σ_i s_i Σ_j term(p, t) / Σ s, and Σ s; the term is that of the
//           define LOSS in ops/loss/loss_terms.cuh, with its setting.
// Layout:   prediction (or logits) p and target t (M, N), sample_weight s (M,), null for ones, all
//           contiguous; loss and weight (); partials two for each block, arrivals one zero, both
//           null with a single block.
// Launch:   at least one 1-D block of whole warps, at most 256 threads, which take blockDim.x · 32
//           / sizeof DTYPE elements at once until none is left; no dynamic shared memory; defines
//           DTYPE, LOSS.
// Numerics: terms in float32, or float64 for float64; their sums in float64, in a fixed sequence.
//           The mean over nothing is 0.
// Cost:     2 M · N · sizeof DTYPE bytes.
// Reference: element_loss_forward of backends/numpy/loss.py.
#include "base/stream.cuh"
#include "ops/loss/loss.cuh"
#include "ops/loss/loss_terms.cuh"

extern "C" __global__ void __launch_bounds__(256)
    element_loss_forward(const T* prediction, const T* target, const T* sample_weight, Acc* loss,
                         Acc* weight, double* partials, unsigned* arrivals, double of_term,
                         double setting, int64 num_rows, int64 num_columns) {
    take_turn();
    const Acc own_setting = static_cast<Acc>(setting);
    const auto term = [=](const Acc(&x)[2]) { return LOSS::term(x[0], x[1], own_setting); };
    const Inputs<2> inputs{{prediction, target}};
    double sums[2] = {0, 0};
    if (sample_weight) {
        sums[0] = sum_elements(
            inputs, num_rows * num_columns, num_columns,
            [=](const Acc(&x)[2], int64 row, int64) { return term(x) * load(sample_weight[row]); });
        const int64 step = static_cast<int64>(gridDim.x) * blockDim.x;
        for (int64 row = static_cast<int64>(blockIdx.x) * blockDim.x + threadIdx.x; row < num_rows;
             row += step) {
            sums[1] += load(sample_weight[row]);
        }
    } else {
        sums[0] = sum_elements(inputs, num_rows * num_columns, 0,
                               [=](const Acc(&x)[2], int64, int64) { return term(x); });
    }
    if (!sum_over_grid(sums, partials, arrivals) || threadIdx.x != 0) return;
    const double total_weight = sample_weight ? sums[1] : static_cast<double>(num_rows);
    write_mean(loss, of_term * sums[0], total_weight);
    *weight = static_cast<Acc>(total_weight);
}
