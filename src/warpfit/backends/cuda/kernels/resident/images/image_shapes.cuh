// What a block of one_launch_images.cu is made of: layers, shared memory, and the device memory
// through which blocks exchange activations, gradients and weights. All of it follows from the
// kernel's settings.
//
// Images lie pixel by pixel, channels side by side, in numbers of 16 bits. A pixel's channels are
// whole pieces of 8 numbers, the unit of k in products, and an odd number of them from pixel to
// pixel, so that ldmatrix has no bank conflicts. In a first layer of few channels, a pixel holds
// all columns of its window: it is SPREAD. Else padding of each column would multiply the products.
#pragma once

#include "mma/fragments.cuh"
#include "resident/exchange/grid_turns.cuh"
#include "resident/layout/layer_stack.cuh"
#include "resident/loss/output_losses.cuh"
#include "resident/record/steps.cuh"
#include "resident/update/parameters.cuh"

using T = DTYPE;

constexpr int THREADS = 32 * WARPS;
constexpr int ROW_BLOCKS = (BATCH + IMAGES - 1) / IMAGES;  // blocks with images
constexpr int BATCH_ROWS = up(BATCH, 16);                  // of a batch, for tensor cores
constexpr int X_WIDTH = IMAGE[0] * IMAGE[1] * IMAGE[2], X_STRIDE = up(X_WIDTH, 16) + 8;
constexpr int TARGET_WORDS = LOSS::HAS_LABELS ? 1 : OUTPUTS;
constexpr int MOST_IMAGES = 8;
static_assert(IMAGES <= MOST_IMAGES, "columns of an mma");

// The next number of whole pieces that is odd.
__device__ constexpr int spaced(int numbers) { return (up(numbers, 8) / 8 | 1) * 8; }

// Pixels along an axis, 0 for height, before convolution c.
__device__ constexpr int pixels_before(int c, int axis) {
    int size = IMAGE[axis];
    for (int i = 0; i < c; ++i) {
        const int padding = axis == 0 ? PADDING_HEIGHTS[i] : PADDING_WIDTHS[i];
        const int window = axis == 0 ? KERNEL_HEIGHTS[i] : KERNEL_WIDTHS[i];
        size = (size + 2 * padding - window + 1) / POOLS[i];
    }
    return size;
}

template <int C>
struct Convolution {
    static constexpr int HEIGHT = pixels_before(C, 0), WIDTH = pixels_before(C, 1);
    static constexpr int INPUTS = C == 0 ? IMAGE[2] : CHANNELS[C == 0 ? 0 : C - 1];
    static constexpr int WINDOW_HEIGHT = KERNEL_HEIGHTS[C], WINDOW_WIDTH = KERNEL_WIDTHS[C];
    static constexpr int TOP = PADDING_HEIGHTS[C], LEFT = PADDING_WIDTHS[C], POOL = POOLS[C];
    static constexpr int Z_HEIGHT = HEIGHT + 2 * TOP - WINDOW_HEIGHT + 1;
    static constexpr int Z_WIDTH = WIDTH + 2 * LEFT - WINDOW_WIDTH + 1;
    static constexpr int Z_PIXELS = Z_HEIGHT * Z_WIDTH;
    static constexpr int Y_WIDTH = Z_WIDTH / POOL, Y_PIXELS = Z_HEIGHT / POOL * Y_WIDTH;
    static_assert(Z_HEIGHT % POOL == 0 && Z_WIDTH % POOL == 0, "windows partition the images");

    // Of the input: taps, and numbers of each.
    static constexpr bool SPREAD =
        C == 0 && up(WINDOW_WIDTH * INPUTS, 8) < WINDOW_WIDTH * up(INPUTS, 8);
    static constexpr int COLUMNS = SPREAD ? 1 : WINDOW_WIDTH, TAPS = WINDOW_HEIGHT * COLUMNS;
    static constexpr int DEPTH = SPREAD ? WINDOW_WIDTH * INPUTS : INPUTS;
    static constexpr int PIECES = up(DEPTH, 8) / 8, X_PIXEL = spaced(DEPTH);
    // Rows are so long that the windows of eight pixels in a row lie in different banks, be they of
    // one row or of two.
    static constexpr int X_ROW =
        SPREAD ? Z_WIDTH : WIDTH + 2 * LEFT + ((Z_WIDTH - WIDTH - 2 * LEFT) & 7);
    static constexpr int X_NUMBERS = (HEIGHT + 2 * TOP) * X_ROW * X_PIXEL;

    // Where row after row of the input begins a window, pixels follow each other as those of the
    // output do; else a table says where a window begins.
    static constexpr bool HAS_TABLE = X_ROW != Z_WIDTH;

    // Of the output, behind which lies a pixel of zeros. Where outputs are k, for the gradient of
    // the input, they come in slices of 16.
    static constexpr int OUT = CHANNELS[C], UNITS = up(OUT, 8), UNIT_PIECES = UNITS / 8;
    static constexpr int UNIT_SLICES = up(OUT, 16) / 16;
    static constexpr int Z_PIXEL = spaced(C == 0 ? OUT : 16 * UNIT_SLICES);
    static constexpr int ZEROS = Z_PIXELS * Z_PIXEL, Z_NUMBERS = ZEROS + Z_PIXEL;

    // Slices of k are two pieces; weights have a row for each number of a piece of each tap.
    static constexpr int K_PIECES = TAPS * PIECES, K_SLICES = (K_PIECES + 1) / 2;
    static constexpr int WEIGHT_ROWS = 16 * K_SLICES, WEIGHT_ROW = Z_PIXEL;
    static constexpr int WEIGHTS = WEIGHT_ROWS * WEIGHT_ROW;
    // Of the parameters there are a row for each number of each tap, and the biases.
    static constexpr int PARAMETER_ROWS = TAPS * DEPTH;
    static constexpr int ITEMS = (PARAMETER_ROWS + 1) * UNIT_PIECES;

    // Gradients of weights: tiles of 16 rows, of which the last is the biases', by some pieces of
    // units; and how many warps partition the pixels of each.
    static constexpr int PIXEL_SLICES = (Z_PIXELS + 15) / 16;
    static constexpr int AT_ONCE = UNIT_PIECES % 4 == 0   ? 4
                                   : UNIT_PIECES % 3 == 0 ? 3
                                   : UNIT_PIECES % 2 == 0 ? 2
                                                          : 1;
    static constexpr int GRADIENT_TILES = (K_SLICES + 1) * (UNIT_PIECES / AT_ONCE);
    static constexpr int SPLITS =
        larger(1, smaller(WARPS / GRADIENT_TILES, (PIXEL_SLICES + 1) / 2));
    static constexpr int GRADIENT_ROWS = WEIGHT_ROWS + 1, GRADIENTS = GRADIENT_ROWS * UNITS;

    // Where a tap's window of a pixel begins in the input.
    __device__ static constexpr int in_x(int tap, int y, int x) {
        return ((y + tap / COLUMNS) * X_ROW + x + tap % COLUMNS) * X_PIXEL;
    }
    __device__ static int in_x(int pixel) { return in_x(0, pixel / Z_WIDTH, pixel % Z_WIDTH); }
    // Where a piece of k lies in a window.
    __device__ static constexpr int in_window(int piece) {
        return piece < K_PIECES ? in_x(piece / PIECES, 0, 0) + piece % PIECES * 8 : 0;
    }
};

template <int L>
struct Linear {
    static constexpr bool IS_LAST = L + 1 == LAYERS;
    static constexpr int INPUTS = WIDTHS[L], OUT = WIDTHS[L + 1];
    static constexpr int ROWS = up(INPUTS, 16), UNITS = up(OUT, 16);
    // A tile of units may reach beyond a row: nobody takes these sums, and their gradients are 0.
    static constexpr int WEIGHT_ROW = spaced(OUT), WEIGHTS = ROWS * WEIGHT_ROW + 8;
    static constexpr int INPUT_TILES = ROWS / 16, UNIT_TILES = UNITS / 16;
    // Tiles of units of a warp, which share what it loads of the inputs, and warps that partition
    // these inputs.
    static constexpr int AT_ONCE = UNIT_TILES % 2 == 0 ? 2 : 1;
    static constexpr int SPLITS = larger(1, smaller(WARPS* AT_ONCE / UNIT_TILES, INPUT_TILES));
    // Tiles of 16 by 16 parameters; the last row of them is the biases.
    static constexpr int ITEMS = (INPUT_TILES + 1) * UNIT_TILES;
};

// Sums over some layers and one more: rounded weights, biases, and items of parameters.
template <class Others, class Last>
struct AndOne {
    static constexpr int WEIGHTS = Others::WEIGHTS + Last::WEIGHTS;
    static constexpr int BIASES = Others::BIASES + Last::UNITS;
    static constexpr int ITEMS = Others::ITEMS + Last::ITEMS;
};
// Over those before one.
template <int C>
struct BeforeConvolution : AndOne<BeforeConvolution<C - 1>, Convolution<C - 1>> {};
template <>
struct BeforeConvolution<0> {
    static constexpr int WEIGHTS = 0, BIASES = 0, ITEMS = 0;
};
template <int L>
struct BeforeLinear : AndOne<BeforeLinear<L - 1>, Linear<L - 1>> {
    using Last = Linear<L - 1>;
    static constexpr int MOST_SUMS =
        larger(BeforeLinear<L - 1>::MOST_SUMS, larger(Last::SPLITS* Last::UNITS, Last::ROWS));
};
template <>
struct BeforeLinear<0> : BeforeConvolution<CONVOLUTIONS> {
    static constexpr int MOST_SUMS = 0;
};
using AllLayers = BeforeLinear<LAYERS>;

// All weights, rounded, and biases, as blocks copy them from device memory.
struct alignas(16) RoundedParameters {
    T weights[AllLayers::WEIGHTS];
    float biases[AllLayers::BIASES];
};

// Where the windows of pixels begin, and of those behind the last, the last one's.
template <int COUNT>
struct WindowTable {
    int in_x[COUNT];
};
template <>
struct WindowTable<0> {};

// Of a convolution: its input; what comes out of it, which makes room for its gradient; and of the
// pooled output derivatives of the activation, and which pixel of a window was taken.
template <int C>
struct alignas(16) ConvolutionPart
    : WindowTable<Convolution<C>::HAS_TABLE ? Convolution<C>::PIXEL_SLICES * 16 : 0> {
    using Own = Convolution<C>;
    T x[IMAGES][Own::X_NUMBERS], z[IMAGES][Own::Z_NUMBERS];
    T derivatives[IMAGES][Own::Y_PIXELS * Own::UNITS];
    uint8 taken[IMAGES][up(Own::Y_PIXELS * Own::UNITS, 16)];
};

// Of a linear layer: its input, the gradients of its units, and the derivatives of their
// activation.
template <int L>
struct alignas(16) LinearPart {
    T x[IMAGES][Linear<L>::ROWS], dz[IMAGES][Linear<L>::UNITS],
        derivatives[IMAGES][Linear<L>::UNITS];
};

struct alignas(16) ImagesShared {
    RoundedParameters rounded;
    Stack<ConvolutionPart, CONVOLUTIONS> convolutions;
    Stack<LinearPart> layers;
    float sums[IMAGES][AllLayers::MOST_SUMS];  // parts of units, or gradients of inputs
    T images[IMAGES][X_STRIDE];                // the next ones
    float targets[2][IMAGES][TARGET_WORDS];
    Barrier full[2];  // of convolutions' parameters and biases, and of the other weights
};
static_assert(sizeof(ImagesShared) == SHARED_BYTES, "the launcher asks for as much");

// Of a batch, inputs of a linear layer and gradients of its units. Rows and columns that are not
// there stay 0.
template <int L>
struct alignas(16) LinearRows {
    T x[BATCH_ROWS][Linear<L>::ROWS], dz[BATCH_ROWS][Linear<L>::UNITS];
};

// Sums of the gradients of a convolution's weights over a block's images, in parts.
template <int C>
struct alignas(16) GradientParts {
    static constexpr int COUNT = ROW_BLOCKS * Convolution<C>::SPLITS;
    float parts[COUNT][Convolution<C>::GRADIENTS];
};

// Blocks that have left gradients of their images, and what they have updated.
struct ImageTurns {
    unsigned rows, updates;
};

struct ImagesExchange {
    ImageTurns turns;
    RoundedParameters rounded;
    Stack<LinearRows> rows;
    Stack<GradientParts, CONVOLUTIONS> gradients;
    RowLoss losses[BATCH_ROWS];
};
static_assert(sizeof(ImagesExchange) == EXCHANGE_BYTES, "the launcher gives as much");

// What does not change in a run.
struct ImagesRun {
    const T* batches;
    const float* targets;
    Arrays arrays;  // convolutions come first
    double* record;
    float scale, unscale;
    LossSettings loss;
    RuleSettings rule;
    ImagesExchange& exchange;
};

__device__ inline int own_warp() { return static_cast<int>(threadIdx.x) / 32; }
__device__ inline int own_lane() { return static_cast<int>(threadIdx.x) % 32; }

// The first image of this block in a batch.
__device__ inline int first_row() { return static_cast<int>(blockIdx.x) * IMAGES; }

// Where the window of a pixel begins in an image, or that of the last pixel, if there are fewer.
template <int C>
__device__ inline int in_x(const ConvolutionPart<C>& part, int pixel) {
    using Own = Convolution<C>;
    if constexpr (Own::HAS_TABLE) {
        return part.in_x[pixel];
    } else {
        return smaller(pixel, Own::Z_PIXELS - 1) * Own::X_PIXEL;
    }
}

// f(i) for each of COUNT items that falls to this warp.
template <int COUNT, class F>
__device__ inline void each_of_warp(F f) {
#pragma unroll 1
    for (int i = own_warp(); i < COUNT; i += WARPS) f(i);
}

// Likewise of this thread: as `each_of_block`, but not unrolled, which would cost registers.
template <int COUNT, class F>
__device__ inline void each_of_thread(F f) {
#pragma unroll 1
    for (int i = threadIdx.x; i < COUNT; i += THREADS) f(i);
}
