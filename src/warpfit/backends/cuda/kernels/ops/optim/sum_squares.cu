// Computes: norm = √ Σ g² over all elements of a list.
// Layout:   list g of a TensorList, contiguous, of any alignment; partials (num_partials,) float64;
//           arrivals one counter, zero before and after; norm () float64.
// Launch:   blocks of 256 threads as the list says; no dynamic shared memory; define DTYPE. Several
//           launches may serve one norm: the blocks of each take the partials from first_partial
//           on, num_partials in all.
// Numerics: squares and sums in float64, in the same order always.
// Cost:     sizeof DTYPE bytes and 2 FLOP an element.
// Reference: clip_by_norm of backends/numpy/optim.py.
#include "base/tensors.cuh"

using T = DTYPE;
using Acc = accumulator<T>;

extern "C" __global__ void __launch_bounds__(256)
    sum_squares(const __grid_constant__ TensorList list, double* partials, int first_partial,
                int num_partials, unsigned* arrivals, double* norm) {
    take_turn();
    double sum = 0;
    for_each_element<T, 1, 0u>(list, [&](Acc(&value)[1]) {
        const double g = value[0];
        sum += g * g;
    });
    if (sum_over_blocks(sum, partials, first_partial, num_partials, arrivals)) *norm = sqrt(sum);
}
