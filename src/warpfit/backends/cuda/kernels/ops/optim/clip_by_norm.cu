// Computes: g ← g · max_norm / (norm + 1e-6) if norm > max_norm - 1e-6, else nothing.
// Layout:   list g of a TensorList, contiguous, of any alignment; norm () float64.
// Launch:   blocks of 256 threads as the list says; no shared memory; define DTYPE.
// Numerics: the factor is taken in float64 and rounded to accumulator<DTYPE>; a norm of NaN clips
//   nothing.
// Cost:     2 · sizeof DTYPE bytes and 1 FLOP an element, if it clips.
// Reference: clip_by_norm of backends/numpy/optim.py.
#include "base/tensors.cuh"

using T = DTYPE;
using Acc = accumulator<T>;

constexpr double CLIP_EPS = 1e-6;

extern "C" __global__ void __launch_bounds__(256)
    clip_by_norm(const __grid_constant__ TensorList list, const double* norm, double max_norm) {
    take_turn();
    const double measured = *norm;
    if (!(measured > max_norm - CLIP_EPS)) return;
    const Acc factor = static_cast<Acc>(max_norm / (measured + CLIP_EPS));
    for_each_element<T, 1, 1u>(list, [&](Acc(&value)[1]) { value[0] *= factor; });
}
