// Computes: y[i] = f(x[i]), f the define FUNCTION.
// Layout:   x (n elements) of any strides, given by its Layout; y contiguous.
// Launch:   n · sizeof DTYPE / 8192 blocks, rounded up, of 256 threads; no shared memory; defines
//           FUNCTION (a name of UNARY), DTYPE.
// Numerics: computed in float, or double for float64; NumPy's values for infinities, NaN and
//           outside of f's domain.
// Cost:     2 n · sizeof DTYPE bytes.
// Reference: unary of backends/numpy/elementwise.py.
#include "ops/arrays/elementwise.cuh"
#include "ops/arrays/strided.cuh"

extern "C" __global__ void __launch_bounds__(256)
    unary(const DTYPE* x, Layout layout, DTYPE* y, int64 n) {
    take_turn();
    using T = DTYPE;
    constexpr int WIDTH = 16 / sizeof(T);
    using Block = Tile<WIDTH>;
    const Block tile(n);
    const Operand<T, WIDTH> operand(x, layout);
    if (!(tile.is_whole() && operand.has_runs && starts_run<WIDTH>(y))) {
#pragma unroll 1
        for (int64 i = tile.begin + threadIdx.x; i < tile.end; i += Block::THREADS) {
            y[i] = store<T>(FUNCTION_OF(load(operand.at(i))));
        }
        return;
    }
    Run<T, WIDTH> runs[Block::RUNS];
    operand.load(tile, runs);
#pragma unroll
    for (int k = 0; k < Block::RUNS; ++k) {
#pragma unroll
        for (int j = 0; j < WIDTH; ++j)
            runs[k].element[j] = store<T>(FUNCTION_OF(load(runs[k].element[j])));
        store_run(y + tile.run(k), runs[k]);
    }
}
