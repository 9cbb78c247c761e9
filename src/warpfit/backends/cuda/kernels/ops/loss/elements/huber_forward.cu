// Computes: the mean loss scale Σ_i s_i Σ_j h(p - t) / (divisor Σ s), and Σ s;
//           h(d) = d² / 2 where |d| ≤ delta, else delta (|d| - delta / 2).
// Layout:   prediction p and target t (M, N), sample_weight s (M,), null for ones, all contiguous; loss and
//           weight (); partials two for each block, arrivals one zero, both null with a single block.
// Launch:   at least one 1-D block of whole warps, at most 256 threads, which take blockDim.x · 32 / sizeof
//           DTYPE elements at once until none is left; no dynamic shared memory; define DTYPE.
// Numerics: terms in float32, or float64 for float64; their sums in float64, in a fixed sequence. The mean
//           over nothing is 0.
// Cost:     2 M · N · sizeof DTYPE bytes.
// Reference: huber_forward of backends/numpy/loss.py.
#include "ops/loss/element_loss.cuh"

extern "C" __global__ void __launch_bounds__(256)
    huber_forward(const T* prediction, const T* target, const T* sample_weight, Acc* loss, Acc* weight,
                  double* partials, unsigned* arrivals, double scale, double divisor, double delta,
                  int64 num_rows, int64 num_columns) {
    take_turn();
    const Acc d = static_cast<Acc>(delta);
    mean_of_terms(prediction, target, sample_weight, loss, weight, partials, arrivals, scale, divisor,
                  num_rows, num_columns, [=](Acc p, Acc t) { return huber_term(p, t, d); });
}
