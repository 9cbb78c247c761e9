// Convolutions as matrix products of which one operand is never stored: what their three kernels
// share.
//
// The matrix of windows has a row for each window (m, oh, ow) and a column for each feature (kh,
// kw, c): the number of image m that tap (kh, kw) of the window sees in channel c, or 0 outside of
// the image. Threads find these numbers while they copy tiles to shared memory, 16 bytes at once
// where channels are whole chunks of 16 bytes (C_VECTOR, and O_VECTOR for the outputs' channels),
// else one by one.
//
// A kernel chooses TENSOR_CORES (ops/conv/mma_product.cuh) or not (ops/conv/fma_product.cuh),
// BLOCK_M, BLOCK_N and STAGES; it has THREADS threads, and k advances by BLOCK_K, which is 64
// bytes.
//
// Channels and outputs may fall into GROUPS, each a convolution of its own, of which all sizes are.
// A block has a tile of one group.
#pragma once

#include "base/reduce.cuh"
#include "ops/conv/counter.cuh"
#include "ops/conv/padded_tile.cuh"

constexpr int THREADS = 128;
constexpr int BLOCK_K = 64 / static_cast<int>(sizeof(T));

#if TENSOR_CORES
#include "ops/conv/mma_product.cuh"
#else
#include "ops/conv/fma_product.cuh"
#endif

struct Pair {
    int h, w;
};

// What all windows of a convolution have in common. image and windows are the sizes (H, W) and (OH,
// OW).
struct Geometry {
    Pair image, windows, kernel, stride, padding, dilation;
};

__device__ inline int own_group() { return blockIdx.x % GROUPS; }
__device__ inline unsigned own_tile() { return blockIdx.x / GROUPS; }

// The images that windows look at, (samples, size.h, size.w, GROUPS channels), from a group's first
// channel on.
struct Images {
    const T* data;
    Pair size;
    int channels;

    __device__ bool has(int row, int col) const {
        return (static_cast<unsigned>(row) < static_cast<unsigned>(size.h)) &
               (static_cast<unsigned>(col) < static_cast<unsigned>(size.w));
    }

    __device__ int64 sample(int number) const {
        return static_cast<int64>(size.h) * size.w * (GROUPS * channels) * number;
    }

    // Offset of a pixel in its image.
    __device__ int64 pixel(int row, int col) const {
        return static_cast<int64>(row * size.w + col) * (GROUPS * channels);
    }
};

// Where a number lies, if it is not one of the zeros around images and matrices.
struct Spot {
    int64 offset;
    bool inside;
};

__device__ inline const T* address(const T* data, const Spot& spot) {
    return data + (spot.inside ? spot.offset : 0);
}

__device__ inline void copy_whole(unsigned char* to, const T* data, const Spot& spot) {
    copy_async_16(to, address(data, spot), spot.inside);
}

// Copies a chunk of a tile number by number: spot(0), spot(1), ... say where they lie.
template <class E, class Find>
__device__ inline void copy_numbers(unsigned char* to, const E* data, Find spot) {
    if constexpr (sizeof(E) == 2) {
        unsigned words[4] = {};
#pragma unroll
        for (int j = 0; j < CHUNK<T>; ++j) {
            const Spot at = spot(j);
            const unsigned bits = at.inside ? data[at.offset].bits : 0;
            words[j / 2] |= bits << (j % 2 * 16);
        }
        *reinterpret_cast<uint4*>(to) = uint4{words[0], words[1], words[2], words[3]};
    } else {
#pragma unroll
        for (int j = 0; j < CHUNK<T>; ++j) {
            const Spot at = spot(j);
            if (sizeof(E) == 4) {
                copy_async_4(to + 4 * j, address(data, at), at.inside);
            } else {
                copy_async_8(to + 8 * j, address(data, at), at.inside);
            }
        }
    }
}

// Which chunks of a tile a thread copies: one of every ROW_STEP rows, all in one column of chunks.
template <class Tile>
struct Share {
    static constexpr int ROW_STEP = THREADS / Tile::ROW_CHUNKS;
    static constexpr int COUNT = Tile::ROWS / ROW_STEP;
    static_assert(THREADS % Tile::ROW_CHUNKS == 0 && Tile::ROWS % ROW_STEP == 0,
                  "all threads copy as much");

    __device__ static int row(int i) { return threadIdx.x / Tile::ROW_CHUNKS + i * ROW_STEP; }
    __device__ static int col() { return threadIdx.x % Tile::ROW_CHUNKS * CHUNK<T>; }
    __device__ static unsigned char* place(unsigned char* tile, int i) {
        return tile + Tile::offset(row(i), col());
    }
};

// Rows are windows, and k runs along their features. ADJOINT: the windows are the pixels of an
// image, and their features the numbers of all windows of the convolution that saw the pixel; with
// strides (GAPS) these do not lie side by side.
template <class Tile, bool ADJOINT, bool GAPS, bool VECTOR_ROWS>
struct WindowRows {
    using My = Share<Tile>;

    Images images;
    Pair tap_step, stride;
    Counter feature;    // (kh, kw, channel) of this thread's next chunk
    int features_left;  // from there on
    int top[My::COUNT], left[My::COUNT];
    int64 corner[My::COUNT];  // offset of (top, left), inside or not; GAPS: of the image

    __device__ WindowRows(const Images& images_, const Geometry& g, int first_window,
                          int num_windows)
        : images(images_),
          tap_step{ADJOINT ? -g.dilation.h : g.dilation.h, ADJOINT ? -g.dilation.w : g.dilation.w},
          stride(g.stride),
          feature(My::col(), BLOCK_K, g.kernel.w, images_.channels),
          features_left(g.kernel.h * g.kernel.w * images_.channels - My::col()) {
        constexpr int NOWHERE = -(1 << 30);  // no tap leads back into the image
        const Pair grid = ADJOINT ? g.image : g.windows;
        Counter window(first_window + My::row(0), My::ROW_STEP, grid.h, grid.w);
#pragma unroll
        for (int i = 0; i < My::COUNT; ++i) {
            top[i] = ADJOINT ? window.b + g.padding.h : window.b * g.stride.h - g.padding.h;
            left[i] = ADJOINT ? window.c + g.padding.w : window.c * g.stride.w - g.padding.w;
            corner[i] = images.sample(window.a) + (GAPS ? 0 : images.pixel(top[i], left[i]));
            if (first_window + My::row(i) >= num_windows) top[i] = NOWHERE;
            window.advance();
        }
    }

    // Which window began at `place`, or -1.
    __device__ static int window_at(int place, int stride_) {
        if (place < 0) return -1;
        const int window = place / stride_;
        return window * stride_ == place ? window : -1;
    }

    __device__ Spot spot(int i, const Counter& f, bool inside) const {
        const Pair tap{f.a * tap_step.h, f.b * tap_step.w};
        const int row = top[i] + tap.h, col = left[i] + tap.w;
        if (!GAPS) {
            return {corner[i] + (images.pixel(tap.h, tap.w) + f.c),
                    static_cast<bool>(inside & images.has(row, col))};
        }
        const int h = window_at(row, stride.h), w = window_at(col, stride.w);
        return {corner[i] + images.pixel(h, w) + f.c, static_cast<bool>(inside & images.has(h, w))};
    }

    // Starts to copy the next tile.
    __device__ void copy(unsigned char* tile) {
#pragma unroll
        for (int i = 0; i < My::COUNT; ++i) {
            if (VECTOR_ROWS) {
                copy_whole(My::place(tile, i), images.data, spot(i, feature, features_left > 0));
            } else {
                Counter f = feature;
                copy_numbers(My::place(tile, i), images.data, [&](int j) {
                    const Spot at = spot(i, f, j < features_left);
                    f.next();
                    return at;
                });
            }
        }
        feature.advance();
        features_left -= BLOCK_K;
    }
};

// The same matrix, with k along the windows: rows of a tile are windows, its columns the features
// from first_feature on.
template <class Tile, bool VECTOR_ROWS>
struct WindowColumns {
    using My = Share<Tile>;

    Images images;
    Pair stride, padding, dilation;
    Counter window;   // (m, oh, ow) of this thread's next chunk
    Counter feature;  // (kh, kw, channel) of its first number
    int features_left, windows_left;

    __device__ WindowColumns(const Images& images_, const Geometry& g, int first_feature,
                             int first_window, int end_window)
        : images(images_),
          stride(g.stride),
          padding(g.padding),
          dilation(g.dilation),
          window(first_window + My::row(0), My::ROW_STEP, g.windows.h, g.windows.w),
          feature(first_feature + My::col(), 1, g.kernel.w, images_.channels),
          features_left(g.kernel.h * g.kernel.w * images_.channels - first_feature - My::col()),
          windows_left(end_window - first_window - My::row(0)) {}

    __device__ Spot spot(const Counter& f, bool inside) const {
        const int row = window.b * stride.h - padding.h + f.a * dilation.h;
        const int col = window.c * stride.w - padding.w + f.b * dilation.w;
        return {images.sample(window.a) + images.pixel(row, col) + f.c,
                static_cast<bool>(inside & images.has(row, col))};
    }

    __device__ void copy(unsigned char* tile) {
#pragma unroll
        for (int i = 0; i < My::COUNT; ++i) {
            const int inside = windows_left > 0 ? features_left : 0;
            if (VECTOR_ROWS) {
                copy_whole(My::place(tile, i), images.data, spot(feature, inside > 0));
            } else {
                Counter f = feature;
                copy_numbers(My::place(tile, i), images.data, [&](int j) {
                    const Spot at = spot(f, j < inside);
                    f.next();
                    return at;
                });
            }
            window.advance();
            windows_left -= My::ROW_STEP;
        }
    }
};

// A group's columns of a stored matrix (k, GROUPS cols) whose rows follow each other along k.
template <class Tile, bool VECTOR_ROWS>
struct MatrixRows {
    using My = Share<Tile>;

    const T* data;
    int64 next;  // offset of this thread's next chunk
    int ld, rows_left, cols_left;

    __device__ MatrixRows(const T* matrix, int cols, int first_row, int end_row, int first_col)
        : data(matrix),
          next(static_cast<int64>(first_row + My::row(0)) * (GROUPS * cols) + first_col +
               My::col()),
          ld(GROUPS * cols),
          rows_left(end_row - first_row - My::row(0)),
          cols_left(cols - first_col - My::col()) {}

    __device__ void copy(unsigned char* tile) {
#pragma unroll
        for (int i = 0; i < My::COUNT; ++i) {
            const int inside = rows_left > 0 ? cols_left : 0;
            if (VECTOR_ROWS) {
                copy_whole(My::place(tile, i), data, {next, inside > 0});
            } else {
                copy_numbers(My::place(tile, i), data,
                             [&](int j) { return Spot{next + j, j < inside}; });
            }
            next += static_cast<int64>(My::ROW_STEP) * ld;
            rows_left -= My::ROW_STEP;
        }
    }
};

// A group's weights of (KH, KW, C, GROUPS O) with k along taps and outputs: rows of a tile are
// channels.
template <class Tile, bool VECTOR_ROWS>
struct WeightRows {
    using My = Share<Tile>;

    const T* data;
    Counter feature;  // (0, tap, output) of this thread's next chunk
    int channels, outputs, first_channel, features_left;

    __device__ WeightRows(const T* w, const Geometry& g, int channels_, int outputs_,
                          int first_channel_)
        : data(w),
          feature(My::col(), BLOCK_K, g.kernel.h * g.kernel.w + 1, outputs_),
          channels(channels_),
          outputs(outputs_),
          first_channel(first_channel_),
          features_left(g.kernel.h * g.kernel.w * outputs_ - My::col()) {}

    __device__ int64 offset(int channel, const Counter& f) const {
        return (static_cast<int64>(f.b) * channels + channel) * (GROUPS * outputs) + f.c;
    }

    __device__ void copy(unsigned char* tile) {
#pragma unroll
        for (int i = 0; i < My::COUNT; ++i) {
            const int channel = first_channel + My::row(i);
            const int inside = channel < channels ? features_left : 0;
            if (VECTOR_ROWS) {
                copy_whole(My::place(tile, i), data, {offset(channel, feature), inside > 0});
            } else {
                Counter f = feature;
                copy_numbers(My::place(tile, i), data, [&](int j) {
                    const Spot at{offset(channel, f), j < inside};
                    f.next();
                    return at;
                });
            }
        }
        feature.advance();
        features_left -= BLOCK_K;
    }
};

// Does nothing with a stage's tiles but multiply them.
struct NothingElse {
    __device__ void take(const unsigned char*) {}
};

// product += the products of `count` blocks of k. STAGES - 1 blocks are under way while one is
// multiplied. `beside` sees every tile of B.
template <class Product, class CopyA, class CopyB, class Beside>
__device__ inline void multiply_blocks(Product& product, CopyA& a, CopyB& b, unsigned char* ring,
                                       int count, Beside& beside) {
    constexpr int A_BYTES = Product::TileA::BYTES, STAGE_BYTES = A_BYTES + Product::TileB::BYTES;
#pragma unroll 1
    for (int stage = 0; stage < STAGES - 1; ++stage) {
        if (stage < count) {
            a.copy(ring + stage * STAGE_BYTES);
            b.copy(ring + stage * STAGE_BYTES + A_BYTES);
        }
        copy_async_commit();
    }
    int read = 0, write = STAGES - 1;
#pragma unroll 1
    for (int block = 0; block < count; ++block) {
        copy_async_wait<STAGES - 2>();
        __syncthreads();  // the block is there for all threads, and all have left the one before
        if (block + STAGES - 1 < count) {
            a.copy(ring + write * STAGE_BYTES);
            b.copy(ring + write * STAGE_BYTES + A_BYTES);
        }
        copy_async_commit();
        const unsigned char* stage = ring + read * STAGE_BYTES;
        product.multiply(stage, stage + A_BYTES);
        beside.take(stage + A_BYTES);
        read = read + 1 < STAGES ? read + 1 : 0;
        write = write + 1 < STAGES ? write + 1 : 0;
    }
}

// Lets all sums begin with the bias of their column, or with 0 if there is none.
template <class Product>
__device__ inline void begin_with_bias(Product& product, const T* bias, int first_col,
                                       int num_cols) {
#pragma unroll
    for (int unit = 0; unit < Product::UNITS; ++unit) {
#pragma unroll
        for (int j = 0; j < Product::WIDTH; ++j) {
            const int col = first_col + product.col(unit) + j;
            product.sum(unit, j) = bias != nullptr && col < num_cols ? load(bias[col]) : Acc(0);
        }
    }
}

template <class Product>
__device__ inline void write_product(Product& product, const Epilogue& epilogue, int first_row,
                                     int first_col) {
#pragma unroll
    for (int unit = 0; unit < Product::UNITS; ++unit) {
        Acc sums[Product::WIDTH];
#pragma unroll
        for (int j = 0; j < Product::WIDTH; ++j) sums[j] = product.sum(unit, j);
        write_sums<Product::WIDTH>(epilogue, first_row + product.row(unit),
                                   first_col + product.col(unit), sums);
    }
}
