// Computes: w ← w - lr · d with g ← g + weight_decay · w, s ← alpha · s + (1 - alpha) · g² and
//           d = g / (√s + eps); with momentum v ← momentum · v + d takes the place of d.
// Layout:   lists w, g, s, v of a TensorList, contiguous, of any alignment; v may be null without momentum,
//           which leaves it alone.
// Launch:   blocks of 256 threads as the list says; no shared memory; define DTYPE.
// Numerics: arithmetic in accumulator<DTYPE>, IEEE square root and division; 1 - alpha is taken in float64.
// Cost:     5 · sizeof DTYPE bytes an element, 7 with momentum; some 12 FLOP.
// Reference: rmsprop_update of backends/numpy/optim.py.
#include "base/tensors.cuh"
#include "ops/optim/update_steps.cuh"

using T = DTYPE;
using Acc = accumulator<T>;

extern "C" __global__ void __launch_bounds__(256)
    rmsprop_update(const __grid_constant__ TensorList list, Scalar lr, Scalar alpha, Scalar eps,
                   Scalar weight_decay, Scalar momentum) {
    take_turn();
    const RmspropStep<Acc> step(lr, alpha, eps, weight_decay, momentum);
    if (step.momentum == 0) {
        for_each_element<T, 3, 5u>(list, [&](Acc(&value)[3]) { step.apply(value[0], value[1], value[2]); });
    } else {
        for_each_element<T, 4, 13u>(
            list, [&](Acc(&value)[4]) { step.apply(value[0], value[1], value[2], value[3]); });
    }
}
