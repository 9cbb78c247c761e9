// Computes: v ← momentum · v + (1 - momentum) · g, and d = v, or with Nesterov's momentum d = (1 -
//           momentum) · g + momentum · v; and of every block the sum of the squares of w.
// Layout:   lists g, v, d and w of a TensorList, contiguous, of any alignment; squares (blocks,)
//           float64.
// Launch:   blocks of 256 threads as the list says; no dynamic shared memory; define DTYPE.
// Numerics: arithmetic in accumulator<DTYPE>, 1 - momentum in float64; squares and their sums in
//           float64, in the same order always.
// Cost:     5 · sizeof DTYPE bytes and 7 FLOP an element.
// Reference: update_matrices of backends/numpy/optim.py.
#include "base/tensors.cuh"

using T = DTYPE;
using Acc = accumulator<T>;

// Of the lists g, v, d, w.
constexpr unsigned CHANGED = 1u << 1 | 1u << 2;

extern "C" __global__ void __launch_bounds__(256)
    matrix_directions(const __grid_constant__ TensorList list, double momentum, int nesterov,
                      double* squares) {
    take_turn();
    __shared__ double shared[WARP];
    const Acc kept = static_cast<Acc>(momentum);
    const Acc taken = static_cast<Acc>(1 - momentum);
    double sum = 0;
    for_each_element<T, 4, CHANGED>(list, [&](Acc(&value)[4]) {
        const Acc g = value[0] * taken;
        value[1] = value[1] * kept + g;
        value[2] = nesterov ? g + kept * value[1] : value[1];
        const double w = value[3];
        sum += w * w;
    });
    sum = reduce_block<Sum>(sum, 0.0, shared);
    if (threadIdx.x == 0) squares[blockIdx.x] = sum;
}
