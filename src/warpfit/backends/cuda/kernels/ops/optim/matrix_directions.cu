// Computes: v ← momentum · v + (1 - momentum) · g, and d = v, or with Nesterov's momentum d = (1 -
//           momentum) · g + momentum · v; and of every block the sums of the squares of w and of d.
// Layout:   lists g, v, w of DTYPE and d of DIRECTION of a TensorList, contiguous, of any
//           alignment; squares (2, blocks) float64.
// Launch:   blocks of 256 threads as the list says; no dynamic shared memory; defines DTYPE,
//           DIRECTION.
// Numerics: arithmetic in accumulator<DTYPE>, 1 - momentum in float64; squares and their sums in
//           float64, in the same order always; those of d before it is rounded.
// Cost:     4 · sizeof DTYPE + sizeof DIRECTION bytes and 9 FLOP an element.
// Reference: update_matrices of backends/numpy/optim.py.
#include "base/tensors.cuh"

using T = DTYPE;
using D = DIRECTION;
using Acc = accumulator<T>;

constexpr int W = Vec<T>::SIZE;

extern "C" __global__ void __launch_bounds__(256)
    matrix_directions(const __grid_constant__ TensorList list, double momentum, int nesterov,
                      double* squares) {
    take_turn();
    __shared__ double shared[WARP];
    const TensorEntry& entry = list.entries[tensor_of_block(list, blockIdx.x)];
    const T* gradients = reinterpret_cast<const T*>(entry.pointers[0]);
    T* averages = reinterpret_cast<T*>(entry.pointers[1]);
    D* directions = reinterpret_cast<D*>(entry.pointers[2]);
    const T* parameters = reinterpret_cast<const T*>(entry.pointers[3]);
    const bool wide = is_aligned(gradients) && is_aligned(averages) && is_aligned(directions) &&
                      is_aligned(parameters);
    const Acc kept = static_cast<Acc>(momentum), taken = static_cast<Acc>(1 - momentum);
    const int64 own = list.tiles_per_block * TENSOR_TILE<T>;
    const int64 begin = (blockIdx.x - entry.first_block) * own, end = min(entry.size, begin + own);
    double of_w = 0, of_d = 0;
    for (int64 at = begin + threadIdx.x * W; at < end; at += TENSOR_THREADS * W) {
        const auto g = load_group<W>(gradients, at, entry.size, wide);
        const auto w = load_group<W>(parameters, at, entry.size, wide);
        auto v = load_group<W>(averages, at, entry.size, wide);
        Group<D, W> d;
#pragma unroll
        for (int e = 0; e < W; ++e) {
            const Acc part = load(g.element[e]) * taken;
            const Acc average = load(v.element[e]) * kept + part;
            const Acc direction = nesterov ? part + kept * average : average;
            v.element[e] = store<T>(average);
            d.element[e] = store<D>(direction);
            of_d += static_cast<double>(direction) * direction;
            of_w += static_cast<double>(load(w.element[e])) * load(w.element[e]);
        }
        store_group<W>(averages, at, entry.size, wide, v);
        store_group<W>(directions, at, entry.size, wide, d);
    }
    of_w = reduce_block<Sum>(of_w, 0.0, shared);
    __syncthreads();
    of_d = reduce_block<Sum>(of_d, 0.0, shared);
    if (threadIdx.x > 0) return;
    squares[blockIdx.x] = of_w;
    squares[gridDim.x + blockIdx.x] = of_d;
}
