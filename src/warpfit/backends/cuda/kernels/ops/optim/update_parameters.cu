// Computes: an optimizer's step of all parameters, each by its gradient, with the rule that the
//           define RULE names (a Step of ops/optim/update_rules.cuh).
// Layout:   lists w, g and SLOTS of optimizer state of a TensorList, contiguous, of any alignment;
//           further lists may be null, and are left alone.
// Launch:   blocks of 256 threads as the list says; no shared memory; defines DTYPE, RULE and its
//   SLOTS.
// Numerics: arithmetic in accumulator<DTYPE>, IEEE square root and division; 1 - beta is taken in
//   float64.
// Cost:     (3 + 2 SLOTS) · sizeof DTYPE bytes and up to 14 FLOP an element.
// Reference: the rule of backends/update_rules.py.
#include "base/tensors.cuh"
#include "ops/optim/update_rules.cuh"

using T = DTYPE;
using Acc = accumulator<T>;

// Of the lists w, g, slots all change but g.
constexpr unsigned CHANGED = 1u | ((1u << SLOTS) - 1) << 2;

extern "C" __global__ void __launch_bounds__(256)
    update_parameters(const __grid_constant__ TensorList list, Scalar first, Scalar second,
                      Scalar third, Scalar fourth, Scalar fifth, Scalar sixth) {
    take_turn();
    const RULE<Acc, SLOTS> rule(first, second, third, fourth, fifth, sixth);
    for_each_element<T, 2 + SLOTS, CHANGED>(
        list, [&](Acc(&value)[2 + SLOTS]) { rule.apply(value[0], value[1], value + 2); });
}
