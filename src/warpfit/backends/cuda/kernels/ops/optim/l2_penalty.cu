// Computes: g ← g + share · w, and penalty = share / 2 · Σ w², with share = coefficient / divisor,
//   0 for a divisor of 0.
// Layout:   lists w, g of a TensorList, contiguous, of any alignment; partials (num_partials,)
//           float64; arrivals one counter, zero before and after; penalty () float64.
// Launch:   blocks of 256 threads as the list says; no dynamic shared memory; define DTYPE. Several
//           launches may serve one penalty: the blocks of each take the partials from first_partial
//           on, num_partials in all.
// Numerics: g in accumulator<DTYPE>; squares and sums in float64, in the same order always.
// Cost:     3 · sizeof DTYPE bytes and 4 FLOP an element.
// Reference: l2_penalty of backends/numpy/optim.py.
#include "base/scalar.cuh"
#include "base/tensors.cuh"

using T = DTYPE;
using Acc = accumulator<T>;

extern "C" __global__ void __launch_bounds__(256)
    l2_penalty(const __grid_constant__ TensorList list, double coefficient, Scalar divisor,
               double* partials, int first_partial, int num_partials, unsigned* arrivals,
               double* penalty) {
    take_turn();
    const double num_rows = read(divisor);
    const double exact = num_rows != 0 ? coefficient / num_rows : 0.0;
    const Acc share = static_cast<Acc>(exact);
    double sum = 0;
    for_each_element<T, 2, 2u>(list, [&](Acc(&value)[2]) {
        auto& [w, g] = value;
        g += share * w;
        sum += static_cast<double>(w) * w;
    });
    if (sum_over_blocks(sum, partials, first_partial, num_partials, arrivals))
        *penalty = exact / 2 * sum;
}
