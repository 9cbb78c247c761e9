// Computes: finite = false if any element of a list is NaN or infinite; otherwise it stays as it
//   is.
// Layout:   one list of a TensorList, contiguous, of any alignment; finite () bool, true before the
//   first launch.
// Launch:   blocks of 256 threads as the list says; no dynamic shared memory; define DTYPE.
// Numerics: exact; every thread that writes writes the same.
// Cost:     sizeof DTYPE bytes an element.
// Reference: all_finite of backends/numpy/arrays.py.
#include "base/tensors.cuh"

using T = DTYPE;
using Acc = accumulator<T>;

extern "C" __global__ void __launch_bounds__(256)
    all_finite(const __grid_constant__ TensorList list, bool* finite) {
    take_turn();
    bool every = true;
    // x - x is 0 for every finite x, and NaN for all others.
    for_each_element<T, 1, 0u>(
        list, [&](Acc(&value)[1]) { every = every && value[0] - value[0] == Acc(0); });
    if (!every) *finite = false;
}
