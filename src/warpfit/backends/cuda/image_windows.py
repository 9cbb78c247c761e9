"""A window of each image, a block for each."""

from __future__ import annotations

from itertools import chain
from math import prod

from warpfit.backends.base import Array, ImageWindows
from warpfit.backends.checks import check_windows, check_windows_backward
from warpfit.backends.cuda.arrays import ArrayOps
from warpfit.errors import ShapeError

THREADS = 256
# Of an image, or a window; a thread's place goes on by so many threads.
MOST_NUMBERS = 2**31 - THREADS


class ImageWindowOps(ArrayOps):
    """Windows of padded images, and what gradient these have by them."""

    def take_windows(self, x: Array, bits: Array, windows: ImageWindows) -> Array:
        op = "take_windows"
        check_windows(op, x, bits, windows)
        return self._shown(op, x, bits, x.shape, windows, (len(x), *windows.size, x.shape[3]))

    def take_windows_backward(
        self, dy: Array, bits: Array, x_shape: tuple[int, ...], windows: ImageWindows
    ) -> Array:
        op = "take_windows_backward"
        check_windows_backward(op, dy, bits, x_shape, windows)
        return self._shown(op, dy, bits, x_shape, windows, tuple(x_shape))

    def _shown(
        self,
        op: str,
        given: Array,
        bits: Array,
        x_shape: tuple[int, ...],
        windows: ImageWindows,
        out_shape: tuple[int, ...],
    ) -> Array:
        count, *image, channels = x_shape
        if max(prod(image), prod(windows.size)) * channels > MOST_NUMBERS:
            raise ShapeError(
                f"{op}: expected images and windows of at most {MOST_NUMBERS} numbers, got "
                f"{x_shape[1:]} and {windows.size}"
            )
        out = self.empty(out_shape, given.dtype)
        if out.size:
            axes = chain(*zip(image, windows.size, windows.padding, strict=True))
            arrays = (self.contiguous(given), self.contiguous(bits), out)
            kernel = self.kernel(op, DTYPE=out.dtype)
            kernel(count, THREADS, *arrays, channels, *axes, int(windows.reflects))
        return out
