// Computes: w ← w - lr · d with g ← g + weight_decay · w, v ← momentum · v + g; d is g without momentum, v
//           with it, g + momentum · v with Nesterov's. With lr_in_velocity v ← momentum · v - lr · g, and
//           w ← w + v or w + momentum · v - lr · g.
// Layout:   lists w, g, v of a TensorList, contiguous, of any alignment; v may be null without momentum, when
//           it is left alone.
// Launch:   blocks of 256 threads as the list says; no shared memory; define DTYPE.
// Numerics: arithmetic in accumulator<DTYPE>; without weight decay g is not touched by w.
// Cost:     3 · sizeof DTYPE bytes an element, 5 with momentum; up to 8 FLOP.
// Reference: sgd_update of backends/numpy/optim.py.
#include "include/scalar.cuh"
#include "include/tensors.cuh"

using T = DTYPE;
using Acc = accumulator<T>;

extern "C" __global__ void __launch_bounds__(256)
    sgd_update(const __grid_constant__ TensorList list, Scalar lr, double momentum, double weight_decay,
               int nesterov, int lr_in_velocity) {
    take_turn();
    const Acc keep = static_cast<Acc>(momentum);
    const Acc decay = static_cast<Acc>(weight_decay);
    const Acc step_size = static_cast<Acc>(read(lr));
    // A learning rate inside the velocity scales what goes in; outside, what comes out.
    const Acc rate = lr_in_velocity ? Acc(1) : -step_size;
    if (momentum == 0) {
        for_each_element<T, 2, 1u>(list, [&](Acc(&value)[2]) {
            auto& [w, g] = value;
            if (weight_decay != 0) g += decay * w;
            w -= step_size * g;
        });
        return;
    }
    for_each_element<T, 3, 5u>(list, [&](Acc(&value)[3]) {
        auto& [w, g, v] = value;
        if (weight_decay != 0) g += decay * w;
        if (lr_in_velocity) g *= -step_size;
        v = v * keep + g;
        w += rate * (nesterov ? keep * v + g : v);
    });
}
