// Computes: y[i] = a[i] where condition[i], else b[i].
// Layout:   condition, a and b of the shape of y (n elements), with strides of their own, 0 where
//           they repeat; a or b may be null, which stands for a_number or b_number. y contiguous.
// Launch:   n · sizeof DTYPE / 8192 blocks, rounded up, of 256 threads; no shared memory; define
//   DTYPE.
// Numerics: exact; numbers are rounded to DTYPE.
// Cost:     n · (1 + 3 sizeof DTYPE) bytes, less for what repeats.
// Reference: where of backends/numpy/elementwise.py.
#include "ops/arrays/strided.cuh"

extern "C" __global__ void __launch_bounds__(256)
    where(const bool* condition, Layout condition_layout, const DTYPE* a, Layout a_layout,
          double a_number, const DTYPE* b, Layout b_layout, double b_number, DTYPE* y, int64 n) {
    take_turn();
    using T = DTYPE;
    constexpr int WIDTH = 16 / sizeof(T);
    using Block = Tile<WIDTH>;
    const Block tile(n);
    const Operand<bool, WIDTH> chosen(condition, condition_layout);
    const Operand<T, WIDTH> left(a, a_layout, store<T>(a_number));
    const Operand<T, WIDTH> right(b, b_layout, store<T>(b_number));
    const bool has_runs =
        chosen.has_runs && left.has_runs && right.has_runs && starts_run<WIDTH>(y);
    if (!(tile.is_whole() && has_runs)) {
#pragma unroll 1
        for (int64 i = tile.begin + threadIdx.x; i < tile.end; i += Block::THREADS) {
            y[i] = chosen.at(i) ? left.at(i) : right.at(i);
        }
        return;
    }
    Run<bool, WIDTH> choices[Block::RUNS];
    Run<T, WIDTH> values[Block::RUNS], others[Block::RUNS];
    chosen.load(tile, choices);
    left.load(tile, values);
    right.load(tile, others);
#pragma unroll
    for (int k = 0; k < Block::RUNS; ++k) {
#pragma unroll
        for (int j = 0; j < WIDTH; ++j) {
            if (!choices[k].element[j]) values[k].element[j] = others[k].element[j];
        }
        store_run(y + tile.run(k), values[k]);
    }
}
