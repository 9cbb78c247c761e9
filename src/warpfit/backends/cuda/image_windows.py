"""A window of each image, a block for each."""

from __future__ import annotations

from warpfit.backends.base import Array, Pair
from warpfit.backends.checks import check_windows, check_windows_backward
from warpfit.backends.cuda.arrays import ArrayOps
from warpfit.backends.cuda.dtypes import DEVICE_FLOATS
from warpfit.errors import ShapeError

THREADS = 256
MOST_NUMBERS = 2**31  # of an image


class ImageWindowOps(ArrayOps):
    """Windows of padded images, and what gradient these have by them."""

    def take_windows(
        self,
        x: Array,
        bits: Array,
        size: Pair,
        *,
        padding: Pair = (0, 0),
        reflects: bool = False,
    ) -> Array:
        check_windows("take_windows", x, bits, size, padding, reflects)
        y = self.empty((x.shape[0], *size, x.shape[3]), x.dtype)
        self._start_windows("take_windows", x, bits, y, x.shape, size, padding, reflects)
        return y

    def take_windows_backward(
        self,
        dy: Array,
        bits: Array,
        x_shape: tuple[int, ...],
        *,
        padding: Pair = (0, 0),
        reflects: bool = False,
    ) -> Array:
        op, size = "take_windows_backward", dy.shape[1:3]
        check_windows_backward(op, dy, bits, x_shape, padding, reflects)
        dx = self.empty(tuple(x_shape), dy.dtype)
        self._start_windows(op, dy, bits, dx, x_shape, size, padding, reflects)
        return dx

    def _start_windows(
        self,
        op: str,
        given: Array,
        bits: Array,
        out: Array,
        x_shape: tuple[int, ...],
        size: tuple[int, ...],
        padding: Pair,
        reflects: bool,
    ) -> None:
        count, height, width, channels = x_shape
        if height * width * channels >= MOST_NUMBERS:
            raise ShapeError(f"{op}: expected images of fewer than 2**31 numbers, got {x_shape}")
        if not out.size:
            return
        axes = (height, size[0], padding[0], width, size[1], padding[1])
        arrays = (self.contiguous(given), self.contiguous(bits), out)
        kernel = self.kernel(op, DTYPE=out.dtype)
        kernel(count, THREADS, *arrays, channels, *axes, int(reflects))


def variants() -> list[tuple[str, dict[str, str]]]:
    """Return every kernel of this file with every set of defines that it is asked for."""
    return [
        (name, {"DTYPE": dtype})
        for name in ("take_windows", "take_windows_backward")
        for dtype in DEVICE_FLOATS
    ]
