// Computes: w ← w - lr · d with g ← g + weight_decay · w, s ← alpha · s + (1 - alpha) · g² and
//           d = g / (√s + eps); with momentum v ← momentum · v + d takes the place of d.
// Layout:   lists w, g, s, v of a TensorList, contiguous, of any alignment; v may be null without momentum,
//           which leaves it alone.
// Launch:   blocks of 256 threads as the list says; no shared memory; define DTYPE.
// Numerics: arithmetic in accumulator<DTYPE>, IEEE square root and division; 1 - alpha is taken in float64.
// Cost:     5 · sizeof DTYPE bytes an element, 7 with momentum; some 12 FLOP.
// Reference: rmsprop_update of backends/numpy/optim.py.
#include "include/math.cuh"
#include "include/scalar.cuh"
#include "include/tensors.cuh"

using T = DTYPE;
using Acc = accumulator<T>;

extern "C" __global__ void __launch_bounds__(256)
    rmsprop_update(const __grid_constant__ TensorList list, Scalar lr, double alpha, double eps,
                   double weight_decay, double momentum) {
    take_turn();
    const Acc keep = static_cast<Acc>(alpha);
    const Acc take = static_cast<Acc>(1 - alpha);
    const Acc decay = static_cast<Acc>(weight_decay);
    const Acc smallest = static_cast<Acc>(eps);
    const Acc step_size = static_cast<Acc>(read(lr));
    const Acc inertia = static_cast<Acc>(momentum);
    const auto direction = [&](Acc w, Acc g, Acc& s) {
        if (weight_decay != 0) g += decay * w;
        s = s * keep + take * g * g;
        return g / (square_root(s) + smallest);
    };
    if (momentum == 0) {
        for_each_element<T, 3, 5u>(list, [&](Acc(&value)[3]) {
            auto& [w, g, s] = value;
            w -= step_size * direction(w, g, s);
        });
        return;
    }
    for_each_element<T, 4, 13u>(list, [&](Acc(&value)[4]) {
        auto& [w, g, s, v] = value;
        v = v * inertia + direction(w, g, s);
        w -= step_size * v;
    });
}
