// Convolutions of a block of one_launch_images.cu, as products of matrices that lie in shared
// memory: rows are pixels, and k goes over the taps of a window. Warps share tiles of 16 pixels.
#pragma once

#include "ops/activation/activation.cuh"
#include "resident/images/image_shapes.cuh"

// How many of these steps of k are unrolled: all, so that places are constants, if they are few.
__device__ constexpr int unrolled(int steps) { return steps <= 32 ? steps : 2; }

// A lane's two neighbours of a tile of sums, and the same 8 rows below: f(row, column, first,
// second).
template <class F>
__device__ inline void each_pair(const float (&sums)[2][4], F f) {
    const int row = own_lane() / 4, column = own_lane() % 4 * 2;
    f(row, column, sums[0][0] + sums[1][0], sums[0][1] + sums[1][1]);
    f(row + 8, column, sums[0][2] + sums[1][2], sums[0][3] + sums[1][3]);
}

// Two slices of k of tiles side by side, as operands B. A lane gives a row of the first tile.
template <int COUNT>
__device__ inline void load_side_by_side(unsigned (&b)[COUNT][2][2], const T* row) {
#pragma unroll
    for (int i = 0; i < COUNT; ++i)
        ldmatrix_x4_trans(b[i][0][0], b[i][0][1], b[i][1][0], b[i][1][1], row + i * 8);
}

// Leaves a tile of sums, of pixels from `first` on and 8 units, with their biases.
template <int C>
__device__ inline void put_sums(ImagesShared& shared, int image, int first, int units,
                                const float (&sums)[2][4]) {
    using Own = Convolution<C>;
    const float* biases = shared.rounded.biases + BeforeConvolution<C>::BIASES;
    T* z = layer_of<C>(shared.convolutions).z[image];
    each_pair(sums, [&](int row, int column, float left, float right) {
        const int unit = units + column;
        if (first + row >= Own::Z_PIXELS) return;
        *reinterpret_cast<unsigned*>(z + (first + row) * Own::Z_PIXEL + unit) =
            packed<T>(left + biases[unit], right + biases[unit + 1]);
    });
}

// From the input of convolution C to what comes out, before its activation.
template <int C>
__device__ inline void convolve(ImagesShared& shared) {
    using Own = Convolution<C>;
    auto& part = layer_of<C>(shared.convolutions);
    const T* weights = shared.rounded.weights + BeforeConvolution<C>::WEIGHTS;
    const int lane = own_lane();
    constexpr int COUNT = Own::AT_ONCE, GROUPS = Own::UNIT_PIECES / COUNT;
    constexpr int UNROLLED = unrolled(Own::K_SLICES);
    each_of_warp<IMAGES * Own::PIXEL_SLICES * GROUPS>([&](int item) {
        const int units = item % GROUPS * COUNT * 8, tile = item / GROUPS;
        const int image = tile / Own::PIXEL_SLICES, first = tile % Own::PIXEL_SLICES * 16;
        const T* x = part.x[image] + in_x<C>(part, first + lane % 16);
        const T* w = weights + lane * Own::WEIGHT_ROW + units;
        float sums[COUNT][2][4] = {};
#pragma unroll UNROLLED
        for (int slice = 0; slice < Own::K_SLICES; slice += 2) {
            unsigned b[COUNT][2][2];
            // Of the last slice, if it is alone, all lanes give rows: weights beyond may be in
            // flight.
            const int row = slice * 16 - (slice + 1 < Own::K_SLICES ? 0 : lane / 16 * 16);
            load_side_by_side(b, w + row * Own::WEIGHT_ROW);
#pragma unroll
            for (int half = 0; half < 2; ++half) {
                const int piece = 2 * (slice + half);
                if (piece >= Own::K_PIECES) break;
                unsigned a[4];
                ldmatrix_x4(a[0], a[1], a[2], a[3],
                            x + (lane < 16 ? Own::in_window(piece) : Own::in_window(piece + 1)));
#pragma unroll
                for (int i = 0; i < COUNT; ++i)
                    TensorCore<T>::multiply(sums[i][half], a, b[i][half]);
            }
        }
#pragma unroll
        for (int i = 0; i < COUNT; ++i) put_sums<C>(shared, image, first, units + i * 8, sums[i]);
    });
}

// Two neighbouring channels of a pixel of what convolution C gives come to where the next layer
// takes them.
template <int C>
__device__ inline void put_outputs(ImagesShared& shared, const ImagesRun& run, int image, int pixel,
                                   int channel, const float (&values)[2]) {
    using Own = Convolution<C>;
    if constexpr (C + 1 < CONVOLUTIONS) {
        using Next = Convolution<C + 1>;
        const int y = pixel / Own::Y_WIDTH + Next::TOP, x = pixel % Own::Y_WIDTH + Next::LEFT;
        T* place = layer_of<C + 1>(shared.convolutions).x[image] + Next::in_x(0, y, x) + channel;
        *reinterpret_cast<unsigned*>(place) = packed<T>(values[0], values[1]);
    } else {
        const int row = first_row() + image;
        for (int i = 0; i < 2; ++i) {
            if (channel + i >= Own::OUT) break;
            const int input = pixel * Own::OUT + channel + i;
            const T value = store<T>(values[i]);
            layer_of<0>(shared.layers).x[image][input] = value;
            if (row < BATCH) layer_of<0>(run.exchange.rows).x[row][input] = value;
        }
    }
}

// The first pixel of the window of a pooled one.
template <int C>
__device__ inline int in_z(int pixel) {
    using Own = Convolution<C>;
    const int y = pixel / Own::Y_WIDTH, x = pixel % Own::Y_WIDTH;
    return (y * Own::Z_WIDTH + x) * Own::POOL * Own::Z_PIXEL;
}

// f(member, where it lies) for each pixel of a window.
template <int C, class F>
__device__ inline void each_member(T* window, F f) {
    using Own = Convolution<C>;
#pragma unroll
    for (int i = 0; i < Own::POOL * Own::POOL; ++i)
        f(i, window + (i / Own::POOL * Own::Z_WIDTH + i % Own::POOL) * Own::Z_PIXEL);
}

// The activation, then max pooling.
template <int C>
__device__ inline void activate_pixels(ImagesShared& shared, const ImagesRun& run) {
    using Own = Convolution<C>;
    auto& part = layer_of<C>(shared.convolutions);
    constexpr int PAIRS = Own::UNITS / 2;
    each_of_thread<IMAGES * Own::Y_PIXELS * PAIRS>([&](int i) {
        const int channel = i % PAIRS * 2, pixel = i / PAIRS % Own::Y_PIXELS;
        const int image = i / (PAIRS * Own::Y_PIXELS);
        float values[2], derivatives[2];
        int taken[2];
        each_member<C>(part.z[image] + in_z<C>(pixel) + channel, [&](int member, const T* z) {
            const float2 both = unpacked<T>(*reinterpret_cast<const unsigned*>(z));
#pragma unroll
            for (int side = 0; side < 2; ++side) {
                const auto found =
                    activated<CONV_ACTIVATIONS[C]>(side == 0 ? both.x : both.y, CONV_SLOPES[C]);
                const bool is_taken =
                    member == 0 || found.value > values[side] || found.value != found.value;
                values[side] = is_taken ? found.value : values[side];
                derivatives[side] = is_taken ? found.derivative : derivatives[side];
                taken[side] = is_taken ? member : taken[side];
            }
        });
        const int place = pixel * Own::UNITS + channel;
        *reinterpret_cast<unsigned*>(part.derivatives[image] + place) =
            packed<T>(derivatives[0], derivatives[1]);
        *reinterpret_cast<uint16*>(part.taken[image] + place) =
            static_cast<uint16>(taken[0] | taken[1] << 8);
        put_outputs<C>(shared, run, image, pixel, channel, values);
    });
}

// The gradient of an output of convolution C comes to the pixel that was taken, and 0 to others of
// the window.
template <int C>
__device__ inline void put_gradient(ImagesShared& shared, int image, int pixel, int channel,
                                    float gradient) {
    auto& part = layer_of<C>(shared.convolutions);
    const int place = pixel * Convolution<C>::UNITS + channel, taken = part.taken[image][place];
    const T own = store<T>(gradient * load(part.derivatives[image][place]));
    each_member<C>(part.z[image] + in_z<C>(pixel) + channel,
                   [&](int member, T* z) { *z = member == taken ? own : T{0}; });
}

// Likewise of two channels side by side.
template <int C>
__device__ inline void put_gradients(ImagesShared& shared, int image, int pixel, int channel,
                                     float left, float right) {
    auto& part = layer_of<C>(shared.convolutions);
    const int place = pixel * Convolution<C>::UNITS + channel;
    const float2 derivatives =
        unpacked<T>(*reinterpret_cast<const unsigned*>(part.derivatives[image] + place));
    const unsigned both = packed<T>(left * derivatives.x, right * derivatives.y);
    const unsigned taken = *reinterpret_cast<const uint16*>(part.taken[image] + place);
    each_member<C>(part.z[image] + in_z<C>(pixel) + channel, [&](unsigned member, T* z) {
        const unsigned first = member == (taken & 0xff) ? both & 0xffff : 0,
                       second = member == taken >> 8 ? both & 0xffff0000 : 0;
        *reinterpret_cast<unsigned*>(z) = first | second;
    });
}

// How many tiles the gradient of the input of convolution C has.
template <int C>
constexpr int INPUT_TILES =
    C == 0 ? 0
           : IMAGES * ((Convolution<C>::HEIGHT * Convolution<C>::WIDTH + 15) / 16) *
                 Convolution<C>::PIECES;

// Of the rows and columns of a window at a pixel of the input, bits say which have an output.
template <int C>
struct Seen {
    using Own = Convolution<C>;
    unsigned rows = 0, columns = 0;

    __device__ Seen(int y, int x) {
#pragma unroll
        for (int i = 0; i < Own::WINDOW_HEIGHT; ++i) rows |= bit(y - i, Own::Z_HEIGHT) << i;
#pragma unroll
        for (int i = 0; i < Own::WINDOW_WIDTH; ++i) columns |= bit(x - i, Own::Z_WIDTH) << i;
    }

    __device__ static unsigned bit(int i, int size) { return 0 <= i && i < size; }
    __device__ bool has(int i, int j) const { return (rows >> i & 1 ? columns : 0) >> j & 1; }
};

// One of them: k goes over taps and outputs.
template <int C>
__device__ inline void differentiate_inputs(ImagesShared& shared, int item) {
    using Own = Convolution<C>;
    constexpr int PIXELS = Own::HEIGHT * Own::WIDTH, TILES = (PIXELS + 15) / 16;
    constexpr int OF_TAP = Own::UNIT_SLICES, SLICES = Own::TAPS * OF_TAP;
    constexpr int TAP_ROWS = Own::PIECES * 8, UNROLLED = unrolled(SLICES);
    auto& part = layer_of<C>(shared.convolutions);
    const int lane = own_lane(), tile = item / Own::PIECES;
    const int image = tile / TILES, first = tile % TILES * 16, channels = item % Own::PIECES * 8;
    const int pixel = smaller(first + lane % 16, PIXELS - 1);
    const int y = pixel / Own::WIDTH + Own::TOP, x = pixel % Own::WIDTH + Own::LEFT;
    const Seen<C> seen(y, x);
    const T* zeros = part.z[image] + Own::ZEROS + lane / 16 * 8;
    const T* z = part.z[image] + (y * Own::Z_WIDTH + x) * Own::Z_PIXEL + lane / 16 * 8;
    const auto in_weights = [](int slice) {
        return slice / OF_TAP * TAP_ROWS * Own::WEIGHT_ROW + slice % OF_TAP * 16;
    };
    const T* w = shared.rounded.weights + BeforeConvolution<C>::WEIGHTS +
                 (channels + lane % 8) * Own::WEIGHT_ROW + lane / 8 % 2 * 8;
    float sums[2][4] = {};
    unsigned b[2][2];
#pragma unroll UNROLLED
    for (int slice = 0; slice < SLICES; ++slice) {
        const int tap = slice / OF_TAP, i = tap / Own::COLUMNS, j = tap % Own::COLUMNS;
        if (slice % 2 == 0) {
            const int to_next = slice + 1 < SLICES ? in_weights(slice + 1) - in_weights(slice) : 0;
            ldmatrix_x4(b[0][0], b[0][1], b[1][0], b[1][1],
                        w + (lane < 16 ? 0 : to_next) + in_weights(slice));
        }
        const T* from = seen.has(i, j) ? z - (i * Own::Z_WIDTH + j) * Own::Z_PIXEL : zeros;
        unsigned a[4];
        ldmatrix_x4(a[0], a[1], a[2], a[3], from + slice % OF_TAP * 16);
        TensorCore<T>::multiply(sums[slice % 2], a, b[slice % 2]);
    }
    each_pair(sums, [&](int row, int column, float left, float right) {
        if (first + row < PIXELS)
            put_gradients<C - 1>(shared, image, first + row, channels + column, left, right);
    });
}

// Leaves a tile of gradients of convolution C's parameters, in rows from `first` on.
template <int C>
__device__ inline void leave_gradients(float* part, int first, int units,
                                       const float (&sums)[2][4]) {
    using Own = Convolution<C>;
    each_pair(sums, [&](int row, int column, float left, float right) {
        if (first == Own::WEIGHT_ROWS && row > 0) return;  // of the biases there is one
        float* to = part + (first + row) * Own::UNITS + units + column;
        *reinterpret_cast<float2*>(to) = float2{left, right};
    });
}

// A tile of the gradients of convolution C's weights, or of its biases, over some of the pixels of
// this block's images: k goes over these.
template <int C>
__device__ inline void differentiate_weights(ImagesShared& shared, const ImagesRun& run, int item) {
    using Own = Convolution<C>;
    constexpr int COUNT = Own::AT_ONCE, GROUPS = Own::UNIT_PIECES / COUNT;
    auto& part = layer_of<C>(shared.convolutions);
    const int lane = own_lane(), split = item % Own::SPLITS;
    const int units = item / Own::SPLITS % GROUPS * COUNT * 8;
    const int tile = item / (Own::SPLITS * GROUPS);
    const bool are_biases = tile == Own::K_SLICES;
    const int in_window = Own::in_window(smaller(tile * 2 + lane / 8 % 2, Own::K_PIECES - 1));
    const int of_lane = lane % 8 + lane / 16 * 8;
    const unsigned ones = packed<T>(1, 1);
    float sums[COUNT][2][4] = {};
#pragma unroll 1
    for (int image = 0; image < IMAGES; ++image) {
        const T* x = part.x[image] + in_window;
#pragma unroll 2
        for (int slice = 2 * split; slice < Own::PIXEL_SLICES; slice += 2 * Own::SPLITS) {
            const int pixel = slice * 16 + lane;
            const T* z = part.z[image] + smaller(pixel, Own::Z_PIXELS) * Own::Z_PIXEL + units;
            unsigned b[COUNT][2][2];
            load_side_by_side(b, z);
#pragma unroll
            for (int half = 0; half < 2; ++half) {
                if (slice + half >= Own::PIXEL_SLICES) break;
                unsigned a[4] = {ones, ones, ones, ones};
                if (!are_biases)
                    ldmatrix_x4_trans(a[0], a[1], a[2], a[3],
                                      x + in_x<C>(part, (slice + half) * 16 + of_lane));
#pragma unroll
                for (int i = 0; i < COUNT; ++i)
                    TensorCore<T>::multiply(sums[i][half], a, b[i][half]);
            }
        }
    }
    auto& parts = layer_of<C>(run.exchange.gradients).parts;
    float* gradients = parts[static_cast<int>(blockIdx.x) * Own::SPLITS + split];
#pragma unroll
    for (int i = 0; i < COUNT; ++i)
        leave_gradients<C>(gradients, tile * 16, units + i * 8, sums[i]);
}

// From the gradients of convolution C's outputs to those of its weights, and of its inputs.
template <int C>
__device__ inline void differentiate_convolution(ImagesShared& shared, const ImagesRun& run) {
    constexpr int TILES = INPUT_TILES<C>;
    each_of_warp<TILES + Convolution<C>::GRADIENT_TILES * Convolution<C>::SPLITS>([&](int item) {
        if constexpr (C > 0) {
            if (item < TILES) return differentiate_inputs<C>(shared, item);
        }
        differentiate_weights<C>(shared, run, item - TILES);
    });
}
