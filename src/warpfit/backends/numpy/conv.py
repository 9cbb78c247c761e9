"""Convolution and its gradients, as matrix products over blocks of windows."""

from __future__ import annotations

from collections.abc import Iterator
from math import prod

import numpy as np

from warpfit.backends.base import IDENTITY, Activation, Array, Backend, Pair
from warpfit.backends.checks import (
    check_conv2d,
    check_float,
    check_images,
    check_joint,
    check_shape,
)
from warpfit.backends.grouped import (
    backward_input_by_group,
    backward_weight_by_group,
    forward_by_group,
)
from warpfit.backends.numpy.depthwise import (
    depthwise_backward_input,
    depthwise_backward_weight,
    depthwise_forward,
    is_depthwise,
)
from warpfit.backends.numpy.norm import sum_rows
from warpfit.backends.numpy.windows import axis_taps, blocks, taps, window_view

# Where a window has fewer numbers in a row (gray images), it is quicker to copy along the image's
# rows.
SHORT_RUN = 8


def _columns(windows: Array, scratch: Array) -> Array:
    """Return windows (m, oh, ow, KH, KW, C) as a matrix (m·oh·ow, KH·KW·C), in scratch unless they
    lie like that.
    """
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
        num_outputs = w.shape[3]
        check_shape(op, "b", b, (num_outputs,))
        if groups != 1:
            settings = {"stride": stride, "padding": padding, "dilation": dilation}
            if not is_depthwise(w.shape, groups):
                return forward_by_group(self, x, w, b, groups, activation, **settings)
            z = depthwise_forward(self, x, w, b, num_windows, **settings)
            y = self.activation_forward(activation, z)
            return y, z if activation.needs_input else None

        z = self.empty((len(x), *num_windows, num_outputs), x.dtype)
        y = self.empty(z.shape, z.dtype) if activation.needs_input else z
        matrix = w.reshape(prod(w.shape[:3]), num_outputs)
        for block, columns in self._column_blocks(
            x, num_windows, w.shape[:2], stride, padding, dilation
        ):
            part = z[block]
            np.matmul(columns, matrix, out=part.reshape(len(columns), num_outputs))
            if b is not None:
                part += b
            self.activation_forward(activation, part, out=part if y is z else y[block])
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
            settings = {"stride": stride, "padding": padding, "dilation": dilation}
            if is_depthwise(w.shape, groups):
                dx = depthwise_backward_input(self, dz, w, x_shape, **settings)
            else:
                dx = backward_input_by_group(self, dz, w, x_shape, groups, **settings)
            return self.with_joints(dx, x, x_activation, plus)

        dx = self.empty(x_shape, dz.dtype)
        dx.fill(0)
        add = self._add_by_rows if stride[1] == 1 else self._add_by_taps
        add(dx, dz, w, stride, padding, dilation)
        return self.with_joints(dx, x, x_activation, plus)

    def _add_by_rows(
        self, dx: Array, dz: Array, w: Array, stride: Pair, padding: Pair, dilation: Pair
    ) -> None:
        """Add to dx what all taps give to it: one product tells what rows of dz give to rows of
        pixels, as a convolution of these rows.
        """
        (height, width, num_channels), (rows, columns, _, num_outputs) = dx.shape[1:], w.shape
        border = (columns - 1) * dilation[1] - padding[1]
        if border < 0:
            dz, border = dz[:, :, -border:border], 0
        matrix = self.empty((columns * num_outputs, rows * num_channels), w.dtype)
        by_column = matrix.reshape(columns, num_outputs, rows, num_channels)
        np.copyto(by_column, w[:, ::-1].transpose(1, 3, 0, 2))
        scratch = None
        for (of_samples, of_rows), windows in self._column_blocks(
            dz, (dz.shape[1], width), (1, columns), (1, 1), (0, border), (1, dilation[1])
        ):
            if scratch is None:  # the first block is the largest
                scratch = self.empty((len(windows), rows * num_channels), dx.dtype)
            product = np.matmul(windows, matrix, out=scratch[: len(windows)])
            block = dz[of_samples, of_rows].shape[:2]
            part = product.reshape(*block, width, rows, num_channels)
            pad = padding[0] - of_rows.start * stride[0]
            taps_of_rows = axis_taps(height, block[1], rows, stride[0], pad, dilation[0])
            for tap, (of_windows, of_pixels) in enumerate(taps_of_rows):
                dx[of_samples, of_pixels] += part[:, of_windows, :, tap]

    def _add_by_taps(
        self, dx: Array, dz: Array, w: Array, stride: Pair, padding: Pair, dilation: Pair
    ) -> None:
        """Add to dx what all taps give to it, one product for each."""
        (*num_windows, num_outputs), num_channels = dz.shape[1:], dx.shape[3]
        sample_shape = (*num_windows, num_channels)
        spans = [span for span, _ in blocks(len(dx), 1, prod(sample_shape) * dz.itemsize)]
        largest = spans[0].stop if spans else 0
        scratch = self.empty((largest, *sample_shape), dz.dtype)
        matrices = w.reshape(prod(w.shape[:2]), num_channels, num_outputs)
        pairs = (num_windows, w.shape[:2], stride, padding, dilation)
        taps_of_kernel = list(taps(dx.shape[1:3], *pairs))
        for span in spans:
            dx_part, dz_part = dx[span], dz[span]
            product = scratch[: len(dz_part)]
            num_rows = prod(product.shape[:3])
            for matrix, (of_windows, of_pixels) in zip(matrices, taps_of_kernel, strict=True):
                np.matmul(
                    dz_part.reshape(num_rows, num_outputs),
                    matrix.T,
                    out=product.reshape(num_rows, num_channels),
                )
                dx_part[of_pixels] += product[of_windows]

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
        w_shape = (*kernel, x.shape[-1] // groups, dz.shape[-1])
        num_windows = check_conv2d(op, x.shape, w_shape, stride, padding, dilation, groups)
        num_outputs = w_shape[3]
        check_shape(op, "dz", dz, (len(x), *num_windows, num_outputs))
        if groups != 1:
            settings = {"stride": stride, "padding": padding, "dilation": dilation}
            if not is_depthwise(w_shape, groups):
                return backward_weight_by_group(
                    self, dz, x, kernel, groups, needs_db=needs_db, **settings
                )
            dw = depthwise_backward_weight(self, dz, x, kernel, **settings)
            return dw, sum_rows(dz) if needs_db else None

        dw = self.empty((prod(w_shape[:3]), num_outputs), x.dtype)
        dw.fill(0)
        product = self.empty(dw.shape, dw.dtype)
        for block, columns in self._column_blocks(
            x, num_windows, kernel, stride, padding, dilation
        ):
            dw += np.matmul(columns.T, dz[block].reshape(len(columns), num_outputs), out=product)
        return dw.reshape(w_shape), sum_rows(dz) if needs_db else None

    def _column_blocks(
        self, x: Array, num_windows: Pair, kernel: Pair, stride: Pair, padding: Pair, dilation: Pair
    ) -> Iterator[tuple[tuple[slice, slice], Array]]:
        """Yield (block, the block's windows as a matrix); every matrix overwrites the one
        before.
        """
        row_size = num_windows[1] * prod(kernel) * x.shape[3]
        all_blocks = list(blocks(len(x), num_windows[0], row_size * x.itemsize))
        if not all_blocks:
            return
        largest, rows = (span.stop for span in all_blocks[0])
        scratch = self.empty((largest * rows * row_size,), x.dtype)
        padded = None if padding == (0, 0) else self._zeros_around(x, largest, padding)
        images = x if padded is None else padded
        windows = window_view(images, num_windows, kernel, stride, dilation)
        for of_samples, of_rows in all_blocks:
            own = of_samples
            if padded is not None:
                own = slice(of_samples.stop - of_samples.start)
                if not of_rows.start:
                    _inside(padded[own], padding)[...] = x[of_samples]
            yield (of_samples, of_rows), _columns(windows[own, of_rows], scratch)

    def _zeros_around(self, x: Array, count: int, padding: Pair) -> Array:
        """Return room for so many padded images."""
        sides = (size + 2 * pad for size, pad in zip(x.shape[1:3], padding, strict=True))
        padded = self.empty((count, *sides, x.shape[3]), x.dtype)
        padded.fill(0)
        return padded
