"""Convolutions in groups: narrow ones, such as depthwise convolutions, by kernels of their own."""

from __future__ import annotations

from itertools import chain
from math import prod

from warpfit.backends.base import Activation, Array, Pair
from warpfit.backends.checks import check_conv2d, check_float, check_shape
from warpfit.backends.cuda.conv_boxes_sm90 import BoxOps
from warpfit.backends.cuda.dtypes import acc_dtype
from warpfit.backends.grouped import (
    backward_input_by_group,
    backward_weight_by_group,
    forward_by_group,
)

Shape = tuple[int, ...]

THREADS, COLUMNS, VECTOR_BYTES = 256, 32, 16
# Channels or outputs of a group from which on it is a convolution of its own.
LEAST_WIDE = 32
# Blocks of a multiprocessor that share the windows of a gradient of weights.
BLOCKS_SUMMED = 8


def _is_wide(w_shape: Shape, groups: int) -> bool:
    return min(w_shape[2], w_shape[3] // groups) >= LEAST_WIDE


def _in_thread(w_shape: Shape, groups: int, itemsize: int, *arrays: Array | None) -> int:
    """Return how many channels a thread has: of a depthwise convolution, if aligned, a vector."""
    in_vector = VECTOR_BYTES // itemsize
    is_depthwise = w_shape[2] == 1 and w_shape[3] == groups and groups % in_vector == 0
    pointers = [array.pointer for array in arrays if array is not None]
    return in_vector if is_depthwise and not any(p % VECTOR_BYTES for p in pointers) else 1


class GroupedOps(BoxOps):
    """Convolutions whose channels fall into groups, each of which makes outputs of its own."""

    def grouped_forward(
        self,
        x: Array,
        w: Array,
        b: Array | None,
        pairs: tuple[Pair, Pair, Pair],
        groups: int,
        activation: Activation,
    ) -> tuple[Array, Array | None]:
        """Return what `conv2d_forward` does; `pairs` are stride, padding and dilation."""
        op = "conv2d_forward"
        check_float(op, x, w, b)
        counts = check_conv2d(op, x.shape, w.shape, *pairs, groups)
        check_shape(op, "b", b, w.shape[3:])
        if _is_wide(w.shape, groups):
            return forward_by_group(self, x, w, b, groups, activation, **_named(pairs))
        x, w, b = self.contiguous(x), self.contiguous(w), self.contiguous_or_none(b)
        y = self.empty((x.shape[0], *counts, w.shape[3]), x.dtype)
        z = self.empty(y.shape, y.dtype) if activation.needs_input else None
        width = _in_thread(w.shape, groups, x.itemsize, x, w, b, y, z)
        own = {"ACTIVATION": activation.name, "STORE_Z": int(activation.needs_input)}
        kernel = self.kernel("conv2d_grouped_forward", DTYPE=x.dtype, WIDTH=width, **own)
        if y.size:
            sizes = _sizes(x.shape, w.shape, counts, pairs, groups)
            arrays = (x, w, b, y, z, activation.slope, prod(y.shape[:3]))
            kernel(-(-y.size // (width * THREADS)), THREADS, *arrays, *sizes)
        return y, z

    def grouped_backward_input(
        self, dz: Array, w: Array, x_shape: Shape, pairs: tuple[Pair, Pair, Pair], groups: int
    ) -> Array:
        """Return dx."""
        op = "conv2d_backward_input"
        check_float(op, dz, w)
        counts = check_conv2d(op, x_shape, w.shape, *pairs, groups)
        check_shape(op, "dz", dz, (x_shape[0], *counts, w.shape[3]))
        if _is_wide(w.shape, groups):
            return backward_input_by_group(self, dz, w, x_shape, groups, **_named(pairs))
        dz, w = self.contiguous(dz), self.contiguous(w)
        dx = self.empty(x_shape, dz.dtype)
        width = _in_thread(w.shape, groups, dz.itemsize, dz, w, dx)
        kernel = self.kernel("conv2d_grouped_backward_input", DTYPE=dz.dtype, WIDTH=width)
        if dx.size:
            sizes = _sizes(x_shape, w.shape, counts, pairs, groups)
            arrays = (dz, w, dx, prod(x_shape[:3]))
            kernel(-(-dx.size // (width * THREADS)), THREADS, *arrays, *sizes)
        return dx

    def grouped_backward_weight(
        self,
        dz: Array,
        x: Array,
        kernel_size: Pair,
        pairs: tuple[Pair, Pair, Pair],
        groups: int,
        needs_db: bool,
    ) -> tuple[Array, Array | None]:
        """Return dw and db as `conv2d_backward_weight` does."""
        op = "conv2d_backward_weight"
        check_float(op, dz, x)
        w_shape = (*kernel_size, x.shape[3] // groups, dz.shape[3])
        counts = check_conv2d(op, x.shape, w_shape, *pairs, groups)
        check_shape(op, "dz", dz, (x.shape[0], *counts, w_shape[3]))
        if _is_wide(w_shape, groups):
            named = _named(pairs)
            return backward_weight_by_group(
                self, dz, x, kernel_size, groups, needs_db=needs_db, **named
            )
        dz, x, dtype = self.contiguous(dz), self.contiguous(x), acc_dtype(x.dtype)
        scale = 1 / self.loss_scale if x.itemsize == 2 else 1.0
        num_windows, rows = prod(dz.shape[:3]), prod(w_shape[:3])
        tiles = -(-w_shape[3] // COLUMNS)
        most = BLOCKS_SUMMED * self.runtime.num_multiprocessors // max(1, tiles * rows)
        parts = max(1, min(most, num_windows // THREADS))
        partials = self.empty((parts, prod(w_shape)), dtype)
        kernel = self.kernel("conv2d_grouped_backward_weight", DTYPE=x.dtype)
        if partials.size:
            sizes = _sizes(x.shape, w_shape, counts, pairs, groups)
            kernel((rows * tiles, 1, parts), THREADS, *(dz, x, partials, num_windows), *sizes)
        dw = self.reshape(self.column_sums(partials, dtype, scale), w_shape)
        if not needs_db:
            return dw, None
        return dw, self.column_sums(self.reshape(dz, (num_windows, w_shape[3])), dtype, scale)


def _named(pairs: tuple[Pair, Pair, Pair]) -> dict[str, Pair]:
    return dict(zip(("stride", "padding", "dilation"), pairs, strict=True))


def _sizes(
    x_shape: Shape, w_shape: Shape, counts: Pair, pairs: tuple[Pair, Pair, Pair], groups: int
) -> tuple[int, ...]:
    """Return what all kernels take last."""
    of_images = (*x_shape[1:3], *counts, *w_shape[:2], *chain(*pairs))
    return (*of_images, x_shape[3], w_shape[3], w_shape[2], w_shape[3] // groups)
