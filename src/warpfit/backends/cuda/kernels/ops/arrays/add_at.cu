// Computes: y[o, t, j] = Σ values[o, order[i], j] over i in [starts[t], starts[t + 1]): what `take`
//           took from one place comes back to it, added up.
// Layout:   y[o, t, j] lies at offset_of(outer, o) + targets[t] + offset_of(inner, j); values
//           (num_outer, num_places, inner_size) contiguous; targets (num_targets,), starts
//           (num_targets + 1,) and order (num_places,) int64, no target twice. Elements of y that
//           no target names are left alone.
// Launch:   n / 256 blocks, rounded up, of 256 threads, n = num_outer · num_targets · inner_size;
//           no shared memory; define DTYPE.
// Numerics: added in the order given, in float, or double for float64, as four sums of every fourth
//   value.
// Cost:     (num_outer · num_places · inner_size + n) · sizeof DTYPE + 8 num_places bytes.
// Reference: add_at of backends/numpy/elementwise.py.
#include "ops/arrays/strided.cuh"

using T = DTYPE;
using Acc = accumulator<T>;

constexpr int STREAMS = 4;  // sums under way at once, and loads

extern "C" __global__ void __launch_bounds__(256)
    add_at(const DTYPE* values, const int64* targets, const int64* starts, const int64* order,
           int64 num_targets, int64 num_places, DTYPE* y, Layout outer, Layout inner,
           int64 inner_size, int64 n) {
    take_turn();
    const int64 own = static_cast<int64>(blockIdx.x) * blockDim.x + threadIdx.x;
    if (own >= n) return;
    const int64 row = own / inner_size, j = own % inner_size;
    const int64 o = row / num_targets, target = row % num_targets;
    const T* from = values + o * num_places * inner_size + j;
    const int64 end = starts[target + 1];
    int64 i = starts[target];
    Acc sums[STREAMS] = {};
#pragma unroll 1
    for (; i + STREAMS <= end; i += STREAMS) {
#pragma unroll
        for (int k = 0; k < STREAMS; ++k) sums[k] += load(from[order[i + k] * inner_size]);
    }
#pragma unroll 1
    for (; i < end; ++i) sums[0] += load(from[order[i] * inner_size]);
    const Acc sum = (sums[0] + sums[1]) + (sums[2] + sums[3]);
    y[offset_of(outer, o) + targets[target] + offset_of(inner, j)] = store<T>(sum);
}
