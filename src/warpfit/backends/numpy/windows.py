"""Windows that slide over images: what convolution and pooling share.

An image is ``(M, H, W, C)``. Along each of H and W, tap k of window i meets position
``i · stride + k · dilation - padding``.
"""

from __future__ import annotations

from collections.abc import Iterator
from itertools import product

from numpy.lib.stride_tricks import as_strided

from warpfit.backends.base import Array, Pair
from warpfit.backends.numpy.parallel import spans

# Scratch memory of one block: small enough for the cache, large enough for a quick matrix product.
BLOCK_BYTES = 4 << 20

Index = tuple[slice, ...]


def window_view(x: Array, num_windows: Pair, kernel: Pair, stride: Pair, dilation: Pair) -> Array:
    """Return a read-only view (M, OH, OW, KH, KW, C) of the windows over unpadded images."""
    sample, row, column, channel = x.strides
    steps = (row * stride[0], column * stride[1], row * dilation[0], column * dilation[1])
    shape = (x.shape[0], *num_windows, *kernel, x.shape[3])
    return as_strided(x, shape, (sample, *steps, channel), writeable=False)


def blocks(
    num_samples: int, num_rows: int, row_bytes: int, least_bytes: int = 0
) -> tuple[list[slice], list[slice]]:
    """Return slices of samples, and of the rows of each, whose products cover them all: blocks have
    as many samples as they hold, or parts of one.
    """
    rows = max(1, max(BLOCK_BYTES, least_bytes) // max(1, row_bytes))
    return spans(num_samples, max(1, rows // max(1, num_rows))), spans(num_rows, rows)


def taps(
    image: Pair,
    num_windows: Pair,
    kernel: Pair,
    stride: Pair,
    padding: Pair,
    dilation: Pair = (1, 1),
) -> Iterator[tuple[Index, Index]]:
    """Yield (which windows, which pixels) for every tap of the kernel, in row-major order.

    The windows are those whose tap lies inside the image; the pixels are what that tap meets there.
    """
    axes = zip(image, num_windows, kernel, stride, padding, dilation, strict=True)
    rows, columns = (list(axis_taps(*axis)) for axis in axes)
    for (window_rows, pixel_rows), (window_columns, pixel_columns) in product(rows, columns):
        yield (slice(None), window_rows, window_columns), (slice(None), pixel_rows, pixel_columns)


def axis_taps(
    size: int, num_windows: int, kernel: int, stride: int, padding: int, dilation: int
) -> Iterator[tuple[slice, slice]]:
    """Yield the same of one axis; the padding may be negative."""
    for tap in range(kernel):
        offset = tap * dilation - padding
        first = max(0, -(offset // stride))
        last = min(num_windows - 1, (size - 1 - offset) // stride)
        if first > last:
            yield slice(0, 0), slice(0, 0)
        else:
            pixels = slice(first * stride + offset, last * stride + offset + 1, stride)
            yield slice(first, last + 1), pixels
