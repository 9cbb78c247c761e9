// Tiles of images in shared memory, of some whole groups of GROUP channels and as many outputs.
//
// All threads of a block write them; a lane reads what its windows see. A window of a tile has a
// number, by which its pixels are found.
#pragma once

#include "mma/fragments.cuh"
#include "ops/conv/counter.cuh"
#include "ops/conv/groups/grouped.cuh"

constexpr int THREADS = 256, WARPS = THREADS / 32;
constexpr int TAPS = KERNEL_HEIGHT * KERNEL_WIDTH;
constexpr int CHANNELS = 64 / GROUP * GROUP;  // of a block
static_assert(CHANNELS % 8 == 0, "groups lie in whole pieces of 16 bytes");

// Numbers from a pixel to the next: an odd number of pieces, so that banks differ.
constexpr int LINE = (CHANNELS / 8 | 1) * 8;

// A convolution, and how it is cut into tiles: windows of some images, rows and columns, which are
// STEP_H by STEP_W pixels apart.
template <int STEP_H, int STEP_W>
struct Tiling {
    Pair image, windows, padding, dilation, tile;
    int num_images, images, channels;  // images: of a tile
    Pair counts, seen;                 // of tiles; and the pixels of an image that one sees
    Divisor columns, in_image;

    __device__ Tiling(Pair image_, Pair windows_, Pair padding_, Pair dilation_, Pair tile_,
                      int num_images_, int images_, int channels_)
        : image(image_),
          windows(windows_),
          padding(padding_),
          dilation(dilation_),
          tile(tile_),
          num_images(num_images_),
          images(images_),
          channels(channels_),
          counts{(windows.h + tile.h - 1) / tile.h, (windows.w + tile.w - 1) / tile.w},
          seen{(tile.h - 1) * STEP_H + (KERNEL_HEIGHT - 1) * dilation.h + 1,
               (tile.w - 1) * STEP_W + (KERNEL_WIDTH - 1) * dilation.w + 1},
          columns(tile.w),
          in_image(tile.h * tile.w) {}

    __device__ int num_tiles() const {
        return (num_images + images - 1) / images * counts.h * counts.w;
    }
    __device__ int num_windows() const { return images * in_image.number; }
    __device__ int num_pixels() const { return images * seen.h * seen.w; }

    // The first window of a tile, and the first pixel that it sees.
    __device__ Place first(int idx) const {
        const Place at = place_of(idx, counts);
        return {at.image * images, at.row * tile.h, at.column * tile.w};
    }
    __device__ Place first_pixel(const Place& at) const {
        return {at.image, at.row * STEP_H - padding.h, at.column * STEP_W - padding.w};
    }

    // Where a window of a tile is in it.
    __device__ Place window(int number) const {
        const int own = in_image.quotient(number), rest = number - own * in_image.number;
        const int row = columns.quotient(rest);
        return {own, row, rest - row * tile.w};
    }
    // Which of a tile's pixels a window sees first.
    __device__ int pixel(int number) const {
        const Place at = window(number < num_windows() ? number : num_windows() - 1);
        return (at.image * seen.h + at.row * STEP_H) * seen.w + at.column * STEP_W;
    }
    // Which window of all it is, if there is one, else -1.
    __device__ int64 index(const Place& first, int number) const {
        const Place own = window(number);
        const int64 at = first.image + own.image;
        const int row = first.row + own.row, column = first.column + own.column;
        const bool is_there = (at < num_images) & (row < windows.h) & (column < windows.w);
        return is_there ? (at * windows.h + row) * windows.w + column : -1;
    }

    // Pixels from the first one to that of a tap.
    __device__ int distance(int tap) const {
        const int kh = tap / KERNEL_WIDTH, kw = tap - kh * KERNEL_WIDTH;
        return kh * dilation.h * seen.w + kw * dilation.w;
    }

    // Copies pixels of the tile's images, `part` of each from `from` on, of `octets` times eight
    // channels. Pixels are APART_H by APART_W apart, with zeros between them and beside images.
    template <int PITCH, int APART_H, int APART_W>
    __device__ void copy(T* to, const T* array, Pair size, int octets, const Place& from,
                         Pair part) const {
        const Divisor rows(part.h);
        Counter at(threadIdx.x, THREADS, part.w, octets);
        for (int i = threadIdx.x; i < images * part.h * part.w * octets; i += THREADS) {
            const int own = rows.quotient(at.a);
            const int h = from.row + at.a - own * part.h, w = from.column + at.b;
            const int row = h / APART_H, column = w / APART_W;
            const bool is_inside = (h >= 0) & (w >= 0) & (row < size.h) & (column < size.w) &
                                   (row * APART_H == h) & (column * APART_W == w) &
                                   (from.image + own < num_images);
            const int64 idx =
                (static_cast<int64>(from.image + own) * size.h + row) * size.w + column;
            copy_async_16(to + (at.a * part.w + at.b) * PITCH + at.c * 8,
                          is_inside ? array + idx * channels + at.c * 8 : array, is_inside);
            at.advance();
        }
    }
};
