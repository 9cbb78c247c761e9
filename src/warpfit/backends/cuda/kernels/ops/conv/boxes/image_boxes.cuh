// Boxes of pixels that products of convolutions take at once: some rows and columns of some images,
// side by side, whose pixels are the rows of a tile (mma/operand_tile.cuh). Tensor copies bring
// those that a tap of the kernel sees, and zeros from outside of the images.
#pragma once

#include "base/types.cuh"

// Images, rows and columns: of pixels, of a box, or where a box begins.
struct Extent {
    int images, rows, columns;

    __device__ int count() const { return images * rows * columns; }
};

// The boxes over windows, one after the other along columns, rows and images.
struct Boxes {
    Extent windows, box;

    __device__ Extent counts() const {
        return {(windows.images + box.images - 1) / box.images,
                (windows.rows + box.rows - 1) / box.rows,
                (windows.columns + box.columns - 1) / box.columns};
    }

    // Where a box begins.
    __device__ Extent first(int idx) const {
        const Extent all = counts();
        return {idx / (all.rows * all.columns) * box.images,
                idx / all.columns % all.rows * box.rows, idx % all.columns * box.columns};
    }

    // From where a box begins to where the next one does.
    __device__ void advance(Extent& first) const {
        first.columns += box.columns;
        if (first.columns < windows.columns) return;
        first.columns = 0;
        first.rows += box.rows;
        if (first.rows < windows.rows) return;
        first.rows = 0;
        first.images += box.images;
    }

    // Window `idx` of a box that begins at `first`.
    __device__ Extent window(const Extent& first, int idx) const {
        const int row = idx / box.columns;
        return {first.images + row / box.rows, first.rows + row % box.rows,
                first.columns + idx - row * box.columns};
    }
};

// Along one axis, the taps that count and what they see: tap number first_tap + q tap_step, for
// each q below `taps`, of window i pixel i stride + first + q step.
struct AxisTaps {
    int taps, first_tap, tap_step;
    int stride, first, step;

    __device__ int pixel(int window, int q) const { return window * stride + first + q * step; }
    __device__ int tap(int q) const { return first_tap + q * tap_step; }
};

// Those of one or two phases of an axis.
struct PhaseTaps {
    AxisTaps first, second;
    int count;

    __device__ int bits() const { return count - 1; }

    // By its fields, so that no table goes to local memory.
    __device__ AxisTaps of(int phase) const {
        return {
            phase ? second.taps : first.taps,         phase ? second.first_tap : first.first_tap,
            phase ? second.tap_step : first.tap_step, phase ? second.stride : first.stride,
            phase ? second.first : first.first,       phase ? second.step : first.step};
    }
};
