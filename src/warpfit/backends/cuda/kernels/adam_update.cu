// Computes: w ← shrink · w - rate · m / (√v + eps) with g ← g + weight_decay · w,
//           m ← beta1 · m + (1 - beta1) · g, v ← beta2 · v + (1 - beta2) · g².
//           The caller puts the bias corrections into rate and eps.
// Layout:   lists w, g, m, v of a TensorList, contiguous, of any alignment.
// Launch:   blocks of 256 threads as the list says; no shared memory; define DTYPE.
// Numerics: arithmetic in accumulator<DTYPE>, IEEE square root and division; 1 - beta is taken in float64.
// Cost:     7 · sizeof DTYPE bytes and some 14 FLOP an element.
// Reference: adam_update of backends/numpy/optim.py.
#include "include/math.cuh"
#include "include/scalar.cuh"
#include "include/tensors.cuh"

using T = DTYPE;
using Acc = accumulator<T>;

extern "C" __global__ void __launch_bounds__(256)
    adam_update(const __grid_constant__ TensorList list, Scalar rate, Scalar eps, Scalar shrink, double beta1,
                double beta2, double weight_decay) {
    take_turn();
    const Acc keep1 = static_cast<Acc>(beta1);
    const Acc take1 = static_cast<Acc>(1 - beta1);
    const Acc keep2 = static_cast<Acc>(beta2);
    const Acc take2 = static_cast<Acc>(1 - beta2);
    const Acc decay = static_cast<Acc>(weight_decay);
    const Acc smallest = static_cast<Acc>(read(eps));
    const Acc step_size = static_cast<Acc>(read(rate));
    const Acc rest = static_cast<Acc>(read(shrink));
    for_each_element<T, 4, 13u>(list, [&](Acc(&value)[4]) {
        auto& [w, g, m, v] = value;
        w *= rest;
        if (weight_decay != 0) g += decay * w;
        m = m * keep1 + g * take1;
        v = v * keep2 + g * g * take2;
        w -= step_size * (m / (square_root(v) + smallest));
    });
}
