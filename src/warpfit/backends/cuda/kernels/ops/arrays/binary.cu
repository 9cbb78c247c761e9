// Computes: y[i] = f(a[i], b[i]), f the define FUNCTION; bool for comparisons.
// Layout:   a and b of the shape of y (n elements), with strides of their own, 0 where they repeat;
//           or null, which stands for a_number and b_number. y contiguous.
// Launch:   n · sizeof DTYPE / 8192 blocks, rounded up, of 256 threads; no shared memory; defines
//           FUNCTION (a name of BINARY or COMPARISONS), DTYPE.
// Numerics: computed in float, or double for float64; numbers are rounded to DTYPE first; NumPy's
//           values for infinities, NaN and outside of f's domain.
// Cost:     3 n · sizeof DTYPE bytes, less for what repeats.
// Reference: binary of backends/numpy/elementwise.py.
#include "ops/arrays/elementwise.cuh"
#include "ops/arrays/strided.cuh"

using T = DTYPE;
using Acc = accumulator<T>;
using Result = Stored<decltype(FUNCTION_OF(Acc(), Acc())), T>;

__device__ inline Result::type value_of(T a, T b) {
    return Result::of(FUNCTION_OF(load(a), load(b)));
}

extern "C" __global__ void __launch_bounds__(256)
    binary(const DTYPE* a, Layout a_layout, double a_number, const DTYPE* b, Layout b_layout,
           double b_number, Result::type* y, int64 n) {
    take_turn();
    constexpr int WIDTH = 16 / sizeof(T);
    using Block = Tile<WIDTH>;
    const Block tile(n);
    const Operand<T, WIDTH> left(a, a_layout, store<T>(a_number));
    const Operand<T, WIDTH> right(b, b_layout, store<T>(b_number));
    if (!(tile.is_whole() && left.has_runs && right.has_runs && starts_run<WIDTH>(y))) {
#pragma unroll 1
        for (int64 i = tile.begin + threadIdx.x; i < tile.end; i += Block::THREADS) {
            y[i] = value_of(left.at(i), right.at(i));
        }
        return;
    }
    Run<T, WIDTH> left_runs[Block::RUNS], right_runs[Block::RUNS];
    left.load(tile, left_runs);
    right.load(tile, right_runs);
#pragma unroll
    for (int k = 0; k < Block::RUNS; ++k) {
        Run<Result::type, WIDTH> values;
#pragma unroll
        for (int j = 0; j < WIDTH; ++j) {
            values.element[j] = value_of(left_runs[k].element[j], right_runs[k].element[j]);
        }
        store_run(y + tile.run(k), values);
    }
}
