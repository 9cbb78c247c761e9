// Computes: y[o, p, j] = x[o, p, j], an element of x being that of axes before the indexed ones, of
//           a place along those, and of the axes after them.
// Layout:   x[o, p, j] lies at offset_of(outer, o) + places[p] + offset_of(inner, j); places
//           (num_places,) int64, offsets in elements; y contiguous, n elements, inner_size of them
//           for each (o, p).
// Launch:   n / 1024 blocks, rounded up, of 256 threads; no shared memory; define DTYPE, an
//           unsigned type of the elements' size.
// Numerics: exact.
// Cost:     2 n · sizeof DTYPE + 8 num_places bytes.
// Reference: take of backends/numpy/elementwise.py.
#include "ops/arrays/strided.cuh"

constexpr int THREADS = 256;
constexpr int EACH = 4;  // elements of a thread

extern "C" __global__ void __launch_bounds__(256)
    take(const DTYPE* x, Layout outer, const int64* places, int64 num_places, Layout inner,
         int64 inner_size, DTYPE* y, int64 n) {
    take_turn();
    const int64 begin = static_cast<int64>(blockIdx.x) * (THREADS * EACH);
    const int64 end = begin + THREADS * EACH < n ? begin + THREADS * EACH : n;
    if (inner_size % EACH == 0 && inner_stride(inner) == 1 && inner.ndim == 1 &&
        starts_run<EACH>(y)) {
        const int64 i = begin + threadIdx.x * EACH;
        if (i >= end) return;
        const int64 row = i / inner_size;
        const DTYPE* from =
            x + offset_of(outer, row / num_places) + places[row % num_places] + i % inner_size;
        Run<DTYPE, EACH> run;
        if (starts_run<EACH>(from)) {
            run = *reinterpret_cast<const Run<DTYPE, EACH>*>(from);
        } else {
#pragma unroll
            for (int j = 0; j < EACH; ++j) run.element[j] = from[j];
        }
        store_run(y + i, run);
        return;
    }
#pragma unroll 1
    for (int64 i = begin + threadIdx.x; i < end; i += THREADS) {
        const int64 row = i / inner_size;
        const int64 offset = offset_of(outer, row / num_places) + places[row % num_places];
        y[i] = x[offset + offset_of(inner, i % inner_size)];
    }
}
