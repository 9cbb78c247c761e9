// Computes: what conv2d_grouped_backward_weight.cu does, of groups of one channel and one output.
// Layout:   dz (M, out_height, out_width, channels), x (M, height, width, channels), contiguous,
//           aligned to WIDTH numbers, which divides channels; partials (parts, KH KW, channels) of
//           the arithmetic type.
// Launch:   grid (slices of the channels, parts); blocks of 256 threads: `lanes` of WIDTH channels
//           by lines, which take turns at `count` chunks of `rows` times COLUMNS windows, as
//           conv2d_depthwise.cu. 16 KiB of shared memory, of float64 32. Defines: these, DTYPE,
//           KERNEL_HEIGHT, KERNEL_WIDTH, STRIDE_HEIGHT, STRIDE_WIDTH.
// Numerics: a thread's sums in float (double for float64), in the order of chunks, rows of x,
//           columns of windows; then those of a block's lines in their order. A number that is not
//           finite may reach all taps of its channel.
// Cost:     2 M out_height out_width channels FLOP for each tap, and as much for KH - 1 rows beside
//           each chunk; reads dz and x once, and what chunks and strips share from L1 and L2.
// Reference: conv2d_backward_weight of backends/numpy/conv.py.
#include "ops/conv/groups/depthwise.cuh"

constexpr int THREADS = 256;
constexpr int INPUTS = STRIDE_WIDTH * (COLUMNS - 1) + KERNEL_WIDTH;
constexpr int NUMBERS = KERNEL_HEIGHT * KERNEL_WIDTH * WIDTH, AT_ONCE = 16;
// Registers of a thread for sums, windows and inputs, and for loads in flight.
constexpr int WORDS = NUMBERS + (REACH_HEIGHT * COLUMNS + INPUTS) * WIDTH + INPUTS + COLUMNS;
// Blocks of a multiprocessor whose numbers registers hold: of two a thread has 128. The compiler
// keeps more of far strides than their numbers.
constexpr bool FIT_TWICE = sizeof(T) == 2 && NUMBERS <= 32 && WORDS <= 112 && STRIDE_WIDTH <= 2;
constexpr int HELD = FIT_TWICE ? 2 : 1;

// dz of this step's windows first, then of those before.
using Windows = Acc[REACH_HEIGHT][COLUMNS][WIDTH];

__device__ inline void add_row(Weights& sums, const Windows& windows,
                               const Acc (&inputs)[INPUTS][WIDTH], int row) {
#pragma unroll
    for (int before = 0; before < REACH_HEIGHT; ++before) {
        const int kh = row + STRIDE_HEIGHT * before;
        if (kh >= KERNEL_HEIGHT) continue;
#pragma unroll
        for (int o = 0; o < COLUMNS; ++o) {
#pragma unroll
            for (int kw = 0; kw < KERNEL_WIDTH; ++kw) {
#pragma unroll
                for (int e = 0; e < WIDTH; ++e)
                    sums[kh][kw][e] += windows[before][o][e] * inputs[STRIDE_WIDTH * o + kw][e];
            }
        }
    }
}

__device__ inline void advance(Windows& windows, const Values (&coming)[COLUMNS]) {
#pragma unroll
    for (int before = REACH_HEIGHT - 1; before > 0; --before) {
#pragma unroll
        for (int o = 0; o < COLUMNS; ++o) {
#pragma unroll
            for (int e = 0; e < WIDTH; ++e) windows[before][o][e] = windows[before - 1][o][e];
        }
    }
    unpack(windows[0], coming);
}

// Adds a chunk's products to the sums.
__device__ inline void add_chunk(Weights& sums, const T* dz, const T* x,
                                 const Columns<COLUMNS>& outputs, const Columns<INPUTS>& inputs,
                                 int rows) {
    const int num_steps = rows + REACH_HEIGHT - 1;
    Windows windows = {};
    Values coming[COLUMNS], next[INPUTS];
    outputs.load_row(coming, dz, 0, true);
    inputs.load_row(next, x, 0, true);
#pragma unroll 1
    for (int step = 0; step < num_steps; ++step) {
        advance(windows, coming);
        outputs.load_row(coming, dz, step + 1, step + 1 < rows);
#pragma unroll
        for (int row = 0; row < STRIDE_HEIGHT; ++row) {
            Acc current[INPUTS][WIDTH];
            unpack(current, next);
            const int number = step * STRIDE_HEIGHT + row + 1;
            inputs.load_row(next, x, number, number < num_steps * STRIDE_HEIGHT);
            add_row(sums, windows, current, row);
        }
    }
}

// Adds up what lines have, and stores it from `to` on.
__device__ inline void store_sums(const Weights& sums, Acc* to, int lanes, int vectors) {
    __shared__ Acc shared[AT_ONCE][THREADS];
    const int lines = THREADS / lanes;
#pragma unroll
    for (int first = 0; first < NUMBERS; first += AT_ONCE) {
        __syncthreads();
#pragma unroll
        for (int i = first; i < first + AT_ONCE && i < NUMBERS; ++i) {
            const int tap = i / WIDTH;
            shared[i - first][threadIdx.x] =
                sums[tap / KERNEL_WIDTH][tap % KERNEL_WIDTH][i % WIDTH];
        }
        __syncthreads();
        const int count = first + AT_ONCE < NUMBERS ? AT_ONCE : NUMBERS - first;
        for (int i = threadIdx.x; i < count * lanes; i += THREADS) {
            const int number = i / lanes, lane = i - number * lanes;
            if (lane >= vectors) continue;
            Acc sum = shared[number][lane];
            for (int line = 1; line < lines; ++line) sum += shared[number][line * lanes + lane];
            const int tap = (first + number) / WIDTH, element = (first + number) % WIDTH;
            to[static_cast<int64>(tap) * CHANNELS + lane * WIDTH + element] = sum;
        }
    }
}

extern "C" __global__ void __launch_bounds__(THREADS, HELD)
    conv2d_depthwise_backward_weight(const T* dz, const T* x, Acc* partials, int count, int height,
                                     int width, int out_height, int out_width, int padding_height,
                                     int padding_width, int dilation_height, int strips, int chunks,
                                     int rows, int lanes) {
    take_turn();
    const int first = static_cast<int>(blockIdx.x) * lanes;
    const int vectors = min(lanes, CHANNELS / WIDTH - first), lines = THREADS / lanes;
    const int line = threadIdx.x / lanes, lane = threadIdx.x - line * lanes;
    Weights sums = {};
    const bool is_busy = line < lines && lane < vectors;
#pragma unroll 1
    for (int idx = is_busy ? static_cast<int>(blockIdx.y) * lines + line : count; idx < count;
         idx += gridDim.y * lines) {
        Part part(idx, 1, strips, chunks, rows, {0, 0}, dilation_height);
        part.channel = (first + lane) * WIDTH;
        const Pair in = in_larger(part, {padding_height, padding_width}, dilation_height);
        const Pair out = in_smaller(part, {0, 0}, dilation_height);
        add_chunk(sums, dz, x, {part, {out_height, out_width}, out.h, out.w, dilation_height},
                  {part, {height, width}, in.h, in.w, dilation_height}, rows);
    }
    Acc* own = partials + static_cast<int64>(blockIdx.y) * (NUMBERS / WIDTH) * CHANNELS;
    store_sums(sums, own + first * WIDTH, lanes, vectors);
}
