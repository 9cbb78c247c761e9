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
from warpfit.backends.numpy.windows import blocks, taps, window_view

# Where a window has fewer numbers in a row (gray images), it is quicker to copy along the image's
# rows.
SHORT_RUN = 8


def _columns(windows: Array, scratch: Array) -> Array:
    """Copy windows (m, oh, ow, KH, KW, C) into scratch as a matrix (m·oh·ow, KH·KW·C)."""
    num_windows, num_features = prod(windows.shape[:3]), prod(windows.shape[3:])
    scratch = scratch[: windows.size]
    if prod(windows.shape[4:]) >= SHORT_RUN:
        np.copyto(scratch.reshape(windows.shape), windows)
        return scratch.reshape(num_windows, num_features)
    by_feature = windows.transpose(3, 4, 5, 0, 1, 2)
    np.copyto(scratch.reshape(by_feature.shape), by_feature)
    return scratch.reshape(num_features, num_windows).T


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
        num_samples, height, width, num_channels = x_shape
        kernel, num_outputs = w.shape[:2], w.shape[3]
        check_shape(op, "dz", dz, (num_samples, *num_windows, num_outputs))
        if groups != 1:
            settings = {"stride": stride, "padding": padding, "dilation": dilation}
            if is_depthwise(w.shape, groups):
                dx = depthwise_backward_input(self, dz, w, x_shape, **settings)
            else:
                dx = backward_input_by_group(self, dz, w, x_shape, groups, **settings)
            return self.with_joints(dx, x, x_activation, plus)

        dx = self.empty(x_shape, dz.dtype)
        dx.fill(0)
        sample_shape = (*num_windows, num_channels)
        spans = [span for span, _ in blocks(num_samples, 1, prod(sample_shape) * dz.itemsize)]
        largest = spans[0].stop if spans else 0
        scratch = self.empty((largest, *sample_shape), dz.dtype)
        matrices = w.reshape(prod(kernel), num_channels, num_outputs)
        taps_of_kernel = list(taps((height, width), num_windows, kernel, stride, padding, dilation))
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
        return self.with_joints(dx, x, x_activation, plus)

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
        windows = window_view(self._padded(x, padding), num_windows, kernel, stride, dilation)
        row_size = prod(windows.shape[2:])
        all_blocks = list(blocks(len(x), num_windows[0], row_size * x.itemsize))
        largest = windows[all_blocks[0]].size if all_blocks else 0
        scratch = self.empty((largest,), x.dtype)
        for block in all_blocks:
            yield block, _columns(windows[block], scratch)

    def _padded(self, x: Array, padding: Pair) -> Array:
        if padding == (0, 0):
            return x
        num_samples, height, width, num_channels = x.shape
        rows, columns = padding
        padded = self.empty(
            (num_samples, height + 2 * rows, width + 2 * columns, num_channels), x.dtype
        )
        padded.fill(0)
        padded[:, rows : rows + height, columns : columns + width] = x
        return padded
