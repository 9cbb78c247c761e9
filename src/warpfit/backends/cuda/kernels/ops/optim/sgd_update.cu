// Computes: w ← w - lr · d with g ← g + weight_decay · w, v ← momentum · v + g; d is g without momentum, v
//           with it, g + momentum · v with Nesterov's. With lr_in_velocity v ← momentum · v - lr · g, and
//           w ← w + v or w + momentum · v - lr · g.
// Layout:   lists w, g, v of a TensorList, contiguous, of any alignment; v may be null without momentum, when
//           it is left alone.
// Launch:   blocks of 256 threads as the list says; no shared memory; define DTYPE.
// Numerics: arithmetic in accumulator<DTYPE>; without weight decay g is not touched by w.
// Cost:     3 · sizeof DTYPE bytes an element, 5 with momentum; up to 8 FLOP.
// Reference: sgd_update of backends/numpy/optim.py.
#include "base/tensors.cuh"
#include "ops/optim/update_steps.cuh"

using T = DTYPE;
using Acc = accumulator<T>;

extern "C" __global__ void __launch_bounds__(256)
    sgd_update(const __grid_constant__ TensorList list, Scalar lr, Scalar momentum, Scalar weight_decay,
               Scalar nesterov, Scalar lr_in_velocity) {
    take_turn();
    const SgdStep<Acc> step(lr, momentum, weight_decay, nesterov, lr_in_velocity);
    if (step.momentum == 0) {
        for_each_element<T, 2, 1u>(list, [&](Acc(&value)[2]) { step.apply(value[0], value[1]); });
    } else {
        for_each_element<T, 3, 5u>(list, [&](Acc(&value)[3]) { step.apply(value[0], value[1], value[2]); });
    }
}
