"""Max and average pooling: forward a thread for every window, backward one for every pixel."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from math import prod
from typing import Any, ClassVar

import numpy as np

from warpfit.backends.base import HALF_DTYPES, Array, Pair
from warpfit.backends.checks import check_float, check_pool2d, check_pool2d_backward
from warpfit.backends.cuda.arrays import ArrayOps
from warpfit.backends.cuda.dtypes import DEVICE_FLOATS
from warpfit.errors import DTypeError, ShapeError

THREADS, VECTOR_BYTES = 256, 16
# Places inside a launch's arrays are 32-bit integers, also those of the last block that nothing
# lies at.
MOST_ELEMENTS = 2**31 - 1024


# The pooling that convolutions on Hopper's tensor cores do themselves, and whose gradient they
# spread: a thread takes the places of a piece of 16 bytes at once.
HALVING = {"kernel": (2, 2), "stride": (2, 2), "padding": (0, 0)}
PLACES_BYTES = 8


@dataclass(eq=False)
class PooledGradient:
    """The gradient of what was pooled by `HALVING`, yet to be spread, in half precision."""

    float_dtypes: ClassVar[tuple[str, ...]] = DEVICE_FLOATS
    dy: Array  # (M, H // 2, W // 2, C)
    indices: Array  # array like dy, uint8: as `max_pool2d_forward` returns them
    shape: tuple[int, ...]  # (M, H, W, C)
    array: Array | None = None  # (M, H, W, C): once it is spread

    @property
    def dtype(self) -> Any:
        return self.dy.dtype

    @property
    def pointer(self) -> int:
        return self.dy.pointer


class PoolOps(ArrayOps):
    """The largest entry, or the mean, of every window."""

    def max_pool2d_forward(
        self,
        x: Array,
        *,
        kernel: Pair,
        stride: Pair,
        padding: Pair = (0, 0),
        of_positive: bool = False,
    ) -> tuple[Array, Array]:
        op = "max_pool2d_forward"
        check_float(op, x)
        num_windows = check_pool2d(op, x.shape, kernel, stride, padding)
        x = self.contiguous(x)
        y = self.empty((x.shape[0], *num_windows, x.shape[3]), x.dtype)
        indices = self.empty(y.shape, _index_dtype(op, kernel, of_positive))
        windows = (x.shape, num_windows, kernel, stride, padding)
        self._pool(op, x, y, indices, *windows, of_positive=of_positive)
        return y, indices

    def max_pool2d_backward(
        self,
        dy: Array,
        indices: Array,
        x_shape: tuple[int, ...],
        *,
        kernel: Pair,
        stride: Pair,
        padding: Pair = (0, 0),
    ) -> Array:
        op = "max_pool2d_backward"
        num_windows = check_pool2d_backward(op, dy, x_shape, kernel, stride, padding, indices)
        if indices.itemsize > 4:
            raise DTypeError(f"{op}: expected indices of at most 32 bits, got {indices.dtype}")
        dy, indices = self.contiguous(dy), self.contiguous(indices)
        dx = self.empty(x_shape, dy.dtype)
        self._pool(op, dy, dx, indices, x_shape, num_windows, kernel, stride, padding)
        return dx

    def max_pool2d_backward_joined(
        self, dy: Array, indices: Array, x_shape: tuple[int, ...], pool: Mapping[str, Pair]
    ) -> Array:
        """Return a `PooledGradient` where that can be."""
        op = "max_pool2d_backward_joined"
        check_pool2d_backward(op, dy, x_shape, **pool, indices=indices)
        if dy.size:
            _images_at_a_time(op, x_shape, (dy.shape[1], dy.shape[2]))  # refuses larger images
        dy, indices = self.contiguous(dy), self.contiguous(indices)
        in_pieces = not (x_shape[3] % PLACES_BYTES or dy.pointer % VECTOR_BYTES)
        in_pieces = in_pieces and not indices.pointer % PLACES_BYTES
        if pool == HALVING and dy.dtype in HALF_DTYPES and indices.itemsize == 1 and in_pieces:
            return PooledGradient(dy, indices, x_shape)
        return super().max_pool2d_backward_joined(dy, indices, x_shape, pool)

    def contiguous_or_pooled(self, dz: Array | PooledGradient) -> Array | PooledGradient:
        """Return what kernels take that spread gradients, or an array."""
        return dz if isinstance(dz, PooledGradient) else self.contiguous(dz)

    def spread(self, dz: Array | PooledGradient) -> Array:
        """Return an array for kernels that do not."""
        if not isinstance(dz, PooledGradient):
            return dz
        if dz.array is None:
            dz.array = self.max_pool2d_backward(dz.dy, dz.indices, dz.shape, **HALVING)
        return dz.array

    def avg_pool2d_forward(
        self, x: Array, *, kernel: Pair, stride: Pair, padding: Pair = (0, 0)
    ) -> Array:
        op = "avg_pool2d_forward"
        check_float(op, x)
        num_windows = check_pool2d(op, x.shape, kernel, stride, padding)
        x = self.contiguous(x)
        y = self.empty((x.shape[0], *num_windows, x.shape[3]), x.dtype)
        self._pool(op, x, y, None, x.shape, num_windows, kernel, stride, padding)
        return y

    def avg_pool2d_backward(
        self,
        dy: Array,
        x_shape: tuple[int, ...],
        *,
        kernel: Pair,
        stride: Pair,
        padding: Pair = (0, 0),
    ) -> Array:
        op = "avg_pool2d_backward"
        num_windows = check_pool2d_backward(op, dy, x_shape, kernel, stride, padding)
        dy = self.contiguous(dy)
        dx = self.empty(x_shape, dy.dtype)
        self._pool(op, dy, dx, None, x_shape, num_windows, kernel, stride, padding)
        return dx

    def _pool(
        self,
        op: str,
        source: Array,
        out: Array,
        indices: Array | None,
        x_shape: tuple[int, ...],
        num_windows: Pair,
        kernel: Pair,
        stride: Pair,
        padding: Pair,
        of_positive: bool = False,
    ) -> None:
        """Launch a kernel that gives every vector of `out` a thread; a mean has no indices."""
        num_images, channels = x_shape[0], x_shape[3]
        per_image = prod(out.shape[1:])
        if not num_images * per_image:
            return
        in_vector = VECTOR_BYTES // out.itemsize
        num_units = per_image
        if op.endswith("_backward") and stride == kernel and padding == (0, 0):  # a thread a window
            num_units = channels * prod(
                -(-size // own) for size, own in zip(x_shape[1:3], kernel, strict=True)
            )
        rows, columns = zip(x_shape[1:3], num_windows, kernel, stride, padding, strict=True)
        index_bytes = 0 if indices is None else indices.itemsize
        launch = self.kernel(op.partition("_")[2], DTYPE=out.dtype, MAX=int(indices is not None))
        at_a_time = _images_at_a_time(op, x_shape, num_windows)
        for start in range(0, num_images, at_a_time):
            count = min(at_a_time, num_images - start)
            images = slice(start, start + count)
            part = [None if array is None else array[images] for array in (source, out, indices)]
            pointers = 0
            for array in part:
                pointers |= 0 if array is None else array.pointer
            wide = not (channels % in_vector or pointers % VECTOR_BYTES)
            num_threads = count * num_units // (in_vector if wide else 1)
            grid = -(-num_threads // THREADS)
            settings = (index_bytes, 1 / prod(kernel), num_threads, channels, wide)
            own = (of_positive,) if op.endswith("_forward") else ()
            launch(grid, THREADS, *part, *settings, *own, *rows, *columns)


def _index_dtype(op: str, kernel: Pair, of_positive: bool) -> Any:
    if prod(kernel) > MOST_ELEMENTS:
        raise ShapeError(f"{op}: expected a kernel of less than 2**31 pixels, got {kernel}")
    return np.min_scalar_type(prod(kernel) - 1 + of_positive)


def _images_at_a_time(op: str, x_shape: tuple[int, ...], num_windows: Pair) -> int:
    """Return how many images one launch can index."""
    _, height, width, channels = x_shape
    per_image = channels * max(height * width, num_windows[0] * num_windows[1])
    if per_image > MOST_ELEMENTS:
        raise ShapeError(f"{op}: expected images of less than 2**31 numbers, got {x_shape[1:]}")
    return MOST_ELEMENTS // per_image
