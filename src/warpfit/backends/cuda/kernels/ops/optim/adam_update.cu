// Computes: w ← shrink · w - rate · m / (√v + eps) with g ← g + weight_decay · w,
//           m ← beta1 · m + (1 - beta1) · g, v ← beta2 · v + (1 - beta2) · g².
//           The caller puts the bias corrections into rate and eps.
// Layout:   lists w, g, m, v of a TensorList, contiguous, of any alignment.
// Launch:   blocks of 256 threads as the list says; no shared memory; define DTYPE.
// Numerics: arithmetic in accumulator<DTYPE>, IEEE square root and division; 1 - beta is taken in float64.
// Cost:     7 · sizeof DTYPE bytes and some 14 FLOP an element.
// Reference: adam_update of backends/numpy/optim.py.
#include "base/tensors.cuh"
#include "ops/optim/update_steps.cuh"

using T = DTYPE;
using Acc = accumulator<T>;

extern "C" __global__ void __launch_bounds__(256)
    adam_update(const __grid_constant__ TensorList list, Scalar rate, Scalar eps, Scalar shrink, Scalar beta1,
                Scalar beta2, Scalar weight_decay) {
    take_turn();
    const AdamStep<Acc> step(rate, eps, shrink, beta1, beta2, weight_decay);
    for_each_element<T, 4, 13u>(list,
                                [&](Acc(&value)[4]) { step.apply(value[0], value[1], value[2], value[3]); });
}
