// Computes: what conv2d_grouped_forward.cu does, or, if ADJOINT, conv2d_grouped_backward_input.cu,
//           of groups of one channel and one output.
// Layout:   x (M, height, width, channels), y and z (M, out_height, out_width, channels); if
//           ADJOINT, x is dz and y is dx. w (KH, KW, channels), bias (channels) or null,
//           contiguous; WIDTH, which is 1, or 2 of half precision, divides channels, and all
//           arrays are aligned to as many numbers.
// Launch:   1-D grid of blocks of 128 threads, `count` in all, each for WIDTH channels of a strip
//           of COLUMNS positions times `rows` of a chunk, in `strips` and `chunks` from position
//           (first_height, first_width) on (depthwise.cuh); no shared memory. Defines: these,
//           DTYPE, CHANNELS, KERNEL_HEIGHT, KERNEL_WIDTH, STRIDE_HEIGHT, STRIDE_WIDTH,
//           DILATION_WIDTH, ACTIVATION, STORE_Z.
// Numerics: sums in float (double for float64), in the order bias, rows of taps (from the last one
//           on, if ADJOINT), their columns. Pixels beside the image count as zeros.
// Cost:     2 M out_height out_width channels FLOP for each tap, and as much for KH - 1 rows beside
//           each chunk; reads x once, and what chunks and strips share mostly from L1 and L2.
// Reference: conv2d_forward and conv2d_backward_input of backends/numpy/conv.py.
#include "ops/activation/activation.cuh"
#include "ops/conv/groups/depthwise.cuh"

constexpr int THREADS = 128;
// Inputs and outputs of a strip, and rows of both at each step.
constexpr int INPUTS =
    ADJOINT ? COLUMNS + REACH_WIDTH - 1 : STRIDE_WIDTH * (COLUMNS - 1) + KERNEL_WIDTH;
constexpr int OUTPUTS = ADJOINT ? COLUMNS * STRIDE_WIDTH : COLUMNS;
constexpr int ROWS_IN = ADJOINT ? 1 : STRIDE_HEIGHT, ROWS_OUT = ADJOINT ? STRIDE_HEIGHT : 1;

// Of the rows that are not complete, the next one first.
using Sums = Acc[REACH_HEIGHT][ROWS_OUT][OUTPUTS][WIDTH];

// The row of taps by which row `in` of a step's inputs reaches row `out` of a step's outputs, so
// many steps later.
__device__ constexpr int tap_row(int steps, int in, int out) {
    return ADJOINT ? out + STRIDE_HEIGHT * steps : in + STRIDE_HEIGHT * (REACH_HEIGHT - 1 - steps);
}

// Which input a tap brings to an output, or -1.
__device__ constexpr int input_of(int output, int tap) {
    return !ADJOINT ? STRIDE_WIDTH * output + tap
           : output % STRIDE_WIDTH == tap % STRIDE_WIDTH
               ? output / STRIDE_WIDTH - tap / STRIDE_WIDTH + REACH_WIDTH - 1
               : -1;
}

__device__ inline void add_row(Sums& sums, const Weights& weights,
                               const Acc (&inputs)[INPUTS][WIDTH], int in) {
#pragma unroll
    for (int steps = 0; steps < REACH_HEIGHT; ++steps) {
#pragma unroll
        for (int out = 0; out < ROWS_OUT; ++out) {
            const int kh = tap_row(steps, in, out);
            if (kh >= KERNEL_HEIGHT) continue;
#pragma unroll
            for (int kw = 0; kw < KERNEL_WIDTH; ++kw) {
#pragma unroll
                for (int o = 0; o < OUTPUTS; ++o) {
                    if (input_of(o, kw) < 0) continue;
#pragma unroll
                    for (int e = 0; e < WIDTH; ++e)
                        sums[steps][out][o][e] += weights[kh][kw][e] * inputs[input_of(o, kw)][e];
                }
            }
        }
    }
}

// Moves all sums one step on.
__device__ inline void advance(Sums& sums, const Acc (&bias)[WIDTH]) {
#pragma unroll
    for (int steps = 0; steps < REACH_HEIGHT; ++steps) {
#pragma unroll
        for (int out = 0; out < ROWS_OUT; ++out) {
#pragma unroll
            for (int o = 0; o < OUTPUTS; ++o) {
#pragma unroll
                for (int e = 0; e < WIDTH; ++e) {
                    const bool is_new = steps == REACH_HEIGHT - 1;
                    sums[steps][out][o][e] = is_new ? bias[e] : sums[steps + !is_new][out][o][e];
                }
            }
        }
    }
}

__device__ inline void store_row(const Acc (&sums)[OUTPUTS][WIDTH], const Columns<OUTPUTS>& columns,
                                 T* y, T* z, int number, Acc slope) {
    Values before[OUTPUTS], results[OUTPUTS];
#pragma unroll
    for (int o = 0; o < OUTPUTS; ++o) {
        Acc activated[WIDTH];
#pragma unroll
        for (int e = 0; e < WIDTH; ++e)
            activated[e] = activate<Activation::ACTIVATION>(sums[o][e], slope);
        before[o] = Own::pack(sums[o]);
        results[o] = Own::pack(activated);
    }
    if (STORE_Z) columns.store_row(z, before, number);
    columns.store_row(y, results, number);
}

extern "C" __global__ void __launch_bounds__(THREADS)
    conv2d_depthwise(const T* x, const T* w, const T* bias, T* y, T* z, double slope, int count,
                     int height, int width, int out_height, int out_width, int padding_height,
                     int padding_width, int dilation_height, int first_height, int first_width,
                     int strips, int chunks, int rows) {
    take_turn();
    const int idx = static_cast<int>(blockIdx.x) * THREADS + threadIdx.x;
    if (idx >= count) return;
    const Part part(idx, CHANNELS / WIDTH, strips, chunks, rows, {first_height, first_width},
                    dilation_height);
    const Pair before{ADJOINT ? REACH_HEIGHT - 1 : 0, ADJOINT ? REACH_WIDTH - 1 : 0};
    const Pair larger = in_larger(part, {padding_height, padding_width}, dilation_height);
    const Pair smaller = in_smaller(part, before, dilation_height);
    const Pair in = ADJOINT ? smaller : larger, out = ADJOINT ? larger : smaller;
    const Columns<INPUTS> inputs(part, {height, width}, in.h, in.w, dilation_height);
    const Columns<OUTPUTS> outputs(part, {out_height, out_width}, out.h, out.w, dilation_height);

    Weights weights;
#pragma unroll
    for (int kh = 0; kh < KERNEL_HEIGHT; ++kh) {
#pragma unroll
        for (int kw = 0; kw < KERNEL_WIDTH; ++kw) {
            const int64 at = static_cast<int64>(kh * KERNEL_WIDTH + kw) * CHANNELS + part.channel;
            Own::unpack(weights[kh][kw], *reinterpret_cast<const Values*>(w + at));
        }
    }
    Acc biases[WIDTH];
#pragma unroll
    for (int e = 0; e < WIDTH; ++e) biases[e] = bias ? load(bias[part.channel + e]) : Acc(0);
    Sums sums;
#pragma unroll
    for (int steps = 0; steps < REACH_HEIGHT; ++steps) advance(sums, biases);

    const int num_steps = rows + REACH_HEIGHT - 1;
    Values next[INPUTS];
    inputs.load_row(next, x, 0, true);
#pragma unroll 1
    for (int step = 0; step < num_steps; ++step) {
#pragma unroll
        for (int row = 0; row < ROWS_IN; ++row) {
            Acc current[INPUTS][WIDTH];
            unpack(current, next);
            const int coming = step * ROWS_IN + row + 1;
            inputs.load_row(next, x, coming, coming < num_steps * ROWS_IN);
            add_row(sums, weights, current, row);
        }
        const int complete = step - (REACH_HEIGHT - 1);
        if (complete >= 0) {
#pragma unroll
            for (int row = 0; row < ROWS_OUT; ++row)
                store_row(sums[0][row], outputs, y, z, complete * ROWS_OUT + row,
                          static_cast<Acc>(slope));
        }
        advance(sums, biases);
    }
}
