"""Convolution and its gradients, as matrix products over blocks of windows."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from math import prod

import numpy as np

from warpfit.backends.base import IDENTITY, Activation, Array, Backend, Pair, Pairs
from warpfit.backends.checks import (
    check_conv2d,
    check_float,
    check_groups,
    check_images,
    check_joint,
    check_shape,
)
from warpfit.backends.numpy.groups import (
    backward_input_in_groups,
    backward_weight_in_groups,
    forward_in_groups,
)
from warpfit.backends.numpy.norm import sum_rows
from warpfit.backends.numpy.parallel import SumInOrder, each_part
from warpfit.backends.numpy.windows import axis_taps, blocks, taps, window_view

# Where a window has fewer numbers in a row (gray images), it is quicker to copy along the image's
# rows.
SHORT_RUN = 8

# From a block's samples to which of their rows, and these rows' windows as a matrix.
Columns = Callable[[slice], Iterator[tuple[slice, Array]]]


def _columns(windows: Array, scratch: Array) -> Array:
    """Return windows (m, oh, ow, KH, KW, C) as (m·oh·ow, KH·KW·C), in scratch if need be."""
    num_windows, num_features = prod(windows.shape[:3]), prod(windows.shape[3:])
    if windows.flags.c_contiguous:
        return windows.reshape(num_windows, num_features)
    scratch = scratch[: windows.size]
    if prod(windows.shape[4:]) >= SHORT_RUN:
        np.copyto(scratch.reshape(windows.shape), windows)
        return scratch.reshape(num_windows, num_features)
    by_feature = windows.transpose(3, 4, 5, 0, 1, 2)
    np.copyto(scratch.reshape(by_feature.shape), by_feature)
    return scratch.reshape(num_features, num_windows).T


def _inside(padded: Array, padding: Pair) -> Array:
    rows, columns = (
        slice(pad, size - pad) for size, pad in zip(padded.shape[1:3], padding, strict=True)
    )
    return padded[:, rows, columns]


class ConvOps(Backend):
    """y = f(x * w + b), channels last."""

    def conv2d_forward(
        self,
        x: Array,
        w: Array,
        b: Array | None,
        *,
        stride: Pair = (1, 1),
        padding: Pair = (0, 0),
        dilation: Pair = (1, 1),
        groups: int = 1,
        activation: Activation = IDENTITY,
    ) -> tuple[Array, Array | None]:
        op = "conv2d_forward"
        check_float(op, x, w, b)
        num_windows = check_conv2d(op, x.shape, w.shape, stride, padding, dilation, groups)
        check_shape(op, "b", b, w.shape[3:])
        pairs = (stride, padding, dilation)
        if groups != 1:
            return forward_in_groups(self, x, w, b, num_windows, pairs, groups, activation)

        z = self.empty((len(x), *num_windows, w.shape[3]), x.dtype)
        y = self.empty(z.shape, z.dtype) if activation.needs_input else z
        matrix = w.reshape(prod(w.shape[:3]), w.shape[3])
        samples, _, begin = self._columns(x, num_windows, w.shape, *pairs)

        def begin_forward() -> Callable[[slice], None]:
            columns_of = begin()

            def forward(own: slice) -> None:
                for rows, columns in columns_of(own):
                    part = z[own, rows]
                    np.matmul(columns, matrix, out=part.reshape(len(columns), w.shape[3]))
                    if b is not None:
                        part += b
                    self.activation_forward(activation, part, out=part if y is z else y[own, rows])

            return forward

        each_part(samples, begin_forward)
        return y, z if activation.needs_input else None

    def conv2d_backward_input(
        self,
        dz: Array,
        w: Array,
        x_shape: tuple[int, ...],
        *,
        stride: Pair = (1, 1),
        padding: Pair = (0, 0),
        dilation: Pair = (1, 1),
        groups: int = 1,
        x: Array | None = None,
        x_activation: Activation = IDENTITY,
        plus: Array | None = None,
    ) -> Array:
        op = "conv2d_backward_input"
        check_float(op, dz, w, x, plus)
        check_shape(op, "plus", plus, x_shape)
        check_joint(op, x, x_shape, x_activation)
        num_windows = check_conv2d(op, x_shape, w.shape, stride, padding, dilation, groups)
        check_shape(op, "dz", dz, (x_shape[0], *num_windows, w.shape[3]))
        if groups != 1:
            pairs = (stride, padding, dilation)
            dx = backward_input_in_groups(self, dz, w, x_shape, pairs, groups)
            return self.with_joints(dx, x, x_activation, plus)

        dx = self.empty(x_shape, dz.dtype)
        add = self._add_by_rows if stride[1] == 1 else self._add_by_taps
        add(dx, dz, w, stride, padding, dilation)
        return self.with_joints(dx, x, x_activation, plus)

    def _add_by_rows(
        self, dx: Array, dz: Array, w: Array, stride: Pair, padding: Pair, dilation: Pair
    ) -> None:
        """Let dx be what all taps give to it: one product tells what rows of dz give to rows of
        pixels, as a convolution of these rows.
        """
        (height, width, num_channels), (rows, columns, _, num_outputs) = dx.shape[1:], w.shape
        border = (columns - 1) * dilation[1] - padding[1]
        if border < 0:
            dz, border = dz[:, :, -border:border], 0
        matrix = self.empty((columns * num_outputs, rows * num_channels), w.dtype)
        by_column = matrix.reshape(columns, num_outputs, rows, num_channels)
        np.copyto(by_column, w[:, ::-1].transpose(1, 3, 0, 2))
        kernel = (1, columns, num_outputs, rows * num_channels)
        samples, most_windows, begin = self._columns(
            dz, (dz.shape[1], width), kernel, (1, 1), (0, border), (1, dilation[1])
        )

        def begin_adding() -> Callable[[slice], None]:
            columns_of = begin()
            scratch = self.empty((most_windows, rows * num_channels), dx.dtype)

            def add(own: slice) -> None:
                dx[own].fill(0)
                for of_rows, windows in columns_of(own):
                    product = np.matmul(windows, matrix, out=scratch[: len(windows)])
                    of_block = dz[own, of_rows].shape[:2]
                    part = product.reshape(*of_block, width, rows, num_channels)
                    pad = padding[0] - of_rows.start * stride[0]
                    taps_of_rows = axis_taps(height, of_block[1], rows, stride[0], pad, dilation[0])
                    for tap, (of_windows, of_pixels) in enumerate(taps_of_rows):
                        dx[own, of_pixels] += part[:, of_windows, :, tap]

            return add

        each_part(samples, begin_adding)

    def _add_by_taps(
        self, dx: Array, dz: Array, w: Array, stride: Pair, padding: Pair, dilation: Pair
    ) -> None:
        """Let dx be what all taps give to it, one product for each."""
        (*num_windows, num_outputs), num_channels = dz.shape[1:], dx.shape[3]
        sample_shape = (*num_windows, num_channels)
        samples, _ = blocks(len(dx), 1, prod(sample_shape) * dz.itemsize)
        matrices = w.reshape(prod(w.shape[:2]), num_channels, num_outputs)
        pairs = (num_windows, w.shape[:2], stride, padding, dilation)
        taps_of_kernel = list(taps(dx.shape[1:3], *pairs))

        def begin() -> Callable[[slice], None]:
            scratch = self.empty((samples[0].stop, *sample_shape), dz.dtype)

            def add(own: slice) -> None:
                dx_part, dz_part = dx[own], dz[own]
                dx_part.fill(0)
                product = scratch[: len(dz_part)]
                num_rows = prod(product.shape[:3])
                for matrix, (of_windows, of_pixels) in zip(matrices, taps_of_kernel, strict=True):
                    np.matmul(
                        dz_part.reshape(num_rows, num_outputs),
                        matrix.T,
                        out=product.reshape(num_rows, num_channels),
                    )
                    dx_part[of_pixels] += product[of_windows]

            return add

        each_part(samples, begin)

    def conv2d_backward_weight(
        self,
        dz: Array,
        x: Array,
        kernel: Pair,
        *,
        stride: Pair = (1, 1),
        padding: Pair = (0, 0),
        dilation: Pair = (1, 1),
        groups: int = 1,
        needs_db: bool = True,
        w: Array | None = None,
    ) -> tuple[Array, Array | None]:
        op = "conv2d_backward_weight"
        check_float(op, dz, x)
        check_images(op, "x", x.shape)
        check_images(op, "dz", dz.shape)
        check_groups(op, groups)
        w_shape = (*kernel, x.shape[-1] // groups, dz.shape[-1])
        num_windows = check_conv2d(op, x.shape, w_shape, stride, padding, dilation, groups)
        check_shape(op, "dz", dz, (len(x), *num_windows, w_shape[3]))
        pairs = (stride, padding, dilation)
        if groups != 1:
            return backward_weight_in_groups(self, dz, x, w_shape, pairs, groups, needs_db)
        dw = self._weight_gradient(dz, x, w_shape, pairs)
        return dw, sum_rows(dz) if needs_db else None

    def _weight_gradient(
        self, dz: Array, x: Array, w_shape: tuple[int, ...], pairs: Pairs
    ) -> Array:
        """Return dw of windows with a stride, padding and dilation."""
        num_windows, num_outputs = dz.shape[1:3], w_shape[3]
        dw = self.empty((prod(w_shape[:3]), num_outputs), x.dtype)
        dw.fill(0)
        total = SumInOrder(dw)
        samples, _, begin = self._columns(x, num_windows, w_shape, *pairs, least_bytes=dw.nbytes)

        def begin_gradient() -> Callable[[tuple[int, slice]], None]:
            columns_of = begin()

            def add(part: tuple[int, slice]) -> None:
                idx, own = part
                found = None
                for rows, columns in columns_of(own):
                    product = np.matmul(columns.T, dz[own, rows].reshape(len(columns), num_outputs))
                    found = product if found is None else np.add(found, product, out=found)
                total.add(idx, found)

            return add

        each_part(list(enumerate(samples)), begin_gradient)
        return dw.reshape(w_shape)

    def _columns(
        self,
        x: Array,
        num_windows: Pair,
        w_shape: tuple[int, ...],
        stride: Pair,
        padding: Pair,
        dilation: Pair,
        least_bytes: int = 0,
    ) -> tuple[list[slice], int, Callable[[], Columns]]:
        """Return the samples of each block, the most windows of a matrix, and what returns, for
        each thread, the function from samples to their windows; each of its matrices overwrites
        the one before.
        """
        kernel, num_outputs = (w_shape[0], w_shape[1]), w_shape[3]
        row_size = num_windows[1] * prod(w_shape[:3])
        row_bytes = num_windows[1] * max(prod(w_shape[:3]), num_outputs) * x.itemsize
        samples, rows = blocks(len(x), num_windows[0], row_bytes, least_bytes)
        largest = samples[0].stop if samples else 0
        most_rows = largest * rows[0].stop

        def begin() -> Columns:
            scratch = self.empty((most_rows * row_size,), x.dtype)
            padded = None if padding == (0, 0) else self._zeros_around(x, largest, padding)

            def columns_of(own: slice) -> Iterator[tuple[slice, Array]]:
                images = x[own]
                if padded is not None:
                    images = padded[: own.stop - own.start]
                    _inside(images, padding)[...] = x[own]
                windows = window_view(images, num_windows, kernel, stride, dilation)
                for of_rows in rows:
                    yield of_rows, _columns(windows[:, of_rows], scratch)

            return columns_of

        return samples, most_rows * num_windows[1], begin

    def _zeros_around(self, x: Array, count: int, padding: Pair) -> Array:
        """Return room for so many padded images."""
        sides = (size + 2 * pad for size, pad in zip(x.shape[1:3], padding, strict=True))
        padded = self.empty((count, *sides, x.shape[3]), x.dtype)
        padded.fill(0)
        return padded
