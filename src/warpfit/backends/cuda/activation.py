"""Elementwise activations, softmax and log-softmax."""

from __future__ import annotations

from math import prod
from typing import Any

from warpfit.backends.base import Activation, Array
from warpfit.backends.checks import (
    check_activation_backward,
    check_float,
    check_same_shape,
    check_shape,
)
from warpfit.backends.cuda.array import DeviceArray
from warpfit.backends.cuda.arrays import blocks_for
from warpfit.backends.cuda.rows import THREADS, RowOps, elements_of_block


class ActivationOps(RowOps):
    """y = f(z), and softmax along the last axis."""

    def activation_forward(
        self, activation: Activation, z: Array, out: Array | None = None
    ) -> Array:
        check_float("activation_forward", z, out)
        y = self.empty(z.shape, z.dtype) if out is None else out
        check_same_shape("activation_forward", z, y)
        n = prod(z.shape)
        if not n or (y is z and activation.name == "identity"):
            return y
        target = y if y.is_contiguous else self.empty(z.shape, z.dtype)
        kernel = self.kernel("activation_forward", DTYPE=z.dtype, ACTIVATION=activation.name)
        grid = blocks_for(n, elements_of_block(z.dtype.itemsize))
        kernel(grid, THREADS, self.contiguous(z), target, activation.slope, n)
        if target is not y:
            self._copy_into(y, target)
        return y

    def activation_backward(
        self,
        activation: Activation,
        dy: Array,
        y: Array,
        z: Array | None,
        *,
        plus: Array | None = None,
    ) -> Array:
        check_activation_backward("activation_backward", activation, dy, y, z)
        check_float("activation_backward", dy, plus)
        check_shape("activation_backward", "plus", plus, y.shape)
        saved: Any = z if activation.needs_input else y
        out = self.empty(y.shape, y.dtype)
        n = prod(y.shape)
        if n:
            defines = {"DTYPE": y.dtype, "ACTIVATION": activation.name}
            kernel = self.kernel("activation_backward", **defines, HAS_PLUS=int(plus is not None))
            grid = blocks_for(n, elements_of_block(y.dtype.itemsize))
            arrays = map(self.contiguous, (dy, saved, dy if plus is None else plus))
            kernel(grid, THREADS, *arrays, out, activation.slope, n)
        return out

    def softmax_forward(self, z: Array) -> Array:
        check_float("softmax_forward", z)
        return self._along_rows("softmax_forward", 1, z)

    def softmax_backward(self, dy: Array, y: Array) -> Array:
        check_float("softmax_backward", dy, y)
        check_same_shape("softmax_backward", dy, y)
        return self._along_rows("softmax_backward", 2, dy, y)

    def log_softmax_forward(self, z: Array) -> Array:
        check_float("log_softmax_forward", z)
        return self._along_rows("log_softmax_forward", 1, z)

    def log_softmax_backward(self, dy: Array, y: Array) -> Array:
        check_float("log_softmax_backward", dy, y)
        check_same_shape("log_softmax_backward", dy, y)
        return self._along_rows("log_softmax_backward", 2, dy, y)

    def _along_rows(self, name: str, num_kept: int, *arrays: DeviceArray) -> DeviceArray:
        """Return the kernel's result for each row of the arrays, which have one shape."""
        shape, dtype = arrays[0].shape, arrays[0].dtype
        out = self.empty(shape, dtype)
        if not prod(shape):
            return out
        num_columns = shape[-1] if shape else 1
        num_rows = prod(shape) // num_columns
        launch = self.row_launch(num_rows, num_columns, dtype.itemsize, num_kept, is_summed=False)
        is_log = name.startswith("log_")
        kernel = self.kernel(
            name.removeprefix("log_"), DTYPE=dtype, LOG=int(is_log), **launch.defines
        )
        inputs = [self.vectors(array) for array in arrays]
        sizes = (num_rows, num_columns, launch.lanes, launch.capacity)
        kernel(launch.grid, launch.block, *inputs, out, *sizes, shared_bytes=launch.shared_bytes)
        return out
