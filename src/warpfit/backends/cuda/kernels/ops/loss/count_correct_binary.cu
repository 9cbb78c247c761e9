// Computes: how many rows have every (z > 0) equal to (t > 1/2).
// Layout:   logits z and target t (M, N), contiguous; count () int64; partials one for each block,
//           arrivals one zero, both null with a single block.
// Launch:   at least one 1-D block of whole warps, at most 256 threads; `lanes` adjacent threads, a
//           power of two up to 32, take a row at a time, in strides of the grid; no dynamic shared
//           memory; define DTYPE.
// Numerics: exact.
// Cost:     2 M · N · sizeof DTYPE bytes.
// Reference: count_correct_binary of backends/numpy/loss.py.
#include "ops/loss/loss.cuh"
#include "ops/loss/loss_terms.cuh"

using T = DTYPE;
using Acc = accumulator<T>;

extern "C" __global__ void __launch_bounds__(256)
    count_correct_binary(const T* logits, const T* target, int64* count, double* partials,
                         unsigned* arrivals, int64 num_rows, int num_columns, int lanes) {
    take_turn();
    const int64 thread = static_cast<int64>(blockIdx.x) * blockDim.x + threadIdx.x;
    const int64 step = static_cast<int64>(gridDim.x) * blockDim.x / lanes;
    const int lane = threadIdx.x % lanes;
    double sums[1] = {0};  // exact up to 2^53
    // All threads of a warp go round as often, since they vote together.
    for (int64 first = thread / WARP * WARP / lanes; first < num_rows; first += step) {
        const int64 row = first + threadIdx.x % WARP / lanes;
        int wrong = row >= num_rows;
        if (!wrong) {
            const T* z = logits + row * num_columns;
            const T* t = target + row * num_columns;
            for (int j = lane; j < num_columns; j += lanes)
                wrong |= !is_on_side(load(z[j]), load(t[j]));
        }
        for (int offset = lanes / 2; offset > 0; offset /= 2) {
            wrong |= __shfl_xor_sync(FULL_WARP, wrong, offset);
        }
        if (wrong == 0 && lane == 0) sums[0] += 1;
    }
    if (sum_over_grid(sums, partials, arrivals) && threadIdx.x == 0)
        *count = static_cast<int64>(sums[0]);
}
