"""Batch and layer normalisation.

Means are taken twice: that of the input, then that of what is left after subtracting it, which is
the rounding error of the first. So the result stays exact where the mean is far larger than the
spread. What backward needs is (mean, rest, 1/σ): the two means and the reciprocal of √(variance +
eps).
"""

from __future__ import annotations

from math import prod

import numpy as np

from warpfit.backends.base import IDENTITY, Activation, Array, Backend
from warpfit.backends.checks import (
    check_batch_norm,
    check_float,
    check_layer_norm,
    check_same_shape,
    check_shape,
)


def sum_rows(x: Array) -> Array:
    """Return the sum over all axes but the last, as a product: quicker and more exact."""
    rows = _rows(x)
    return np.ones(len(rows), rows.dtype) @ rows


def _rows(x: Array, num_axes: int = 1) -> Array:
    """Return x as a matrix whose columns are its last `num_axes` axes."""
    split = x.ndim - num_axes
    return x.reshape(prod(x.shape[:split]), prod(x.shape[split:]))


def _mean_columns(rows: Array) -> Array:
    return np.add.reduce(rows, axis=1, keepdims=True) / max(1, rows.shape[1])


def _move_running(running: Array, value: Array, momentum: float) -> None:
    running *= 1 - momentum
    running += momentum * value


class NormOps(Backend):
    """y = (x - mean) / √(variance + eps) · weight + bias."""

    def batch_norm_forward(
        self,
        x: Array,
        weight: Array | None,
        bias: Array | None,
        running_mean: Array,
        running_var: Array,
        *,
        training: bool,
        momentum: float = 0.1,
        eps: float = 1e-5,
        activation: Activation = IDENTITY,
        added: Array | None = None,
    ) -> tuple[Array, tuple[Array, ...]]:
        op = "batch_norm_forward"
        check_float(op, x, weight, bias, running_mean, running_var, added)
        check_shape(op, "added", added, x.shape)
        statistics = {"running_mean": running_mean, "running_var": running_var}
        check_batch_norm(op, x, training, weight=weight, bias=bias, **statistics)
        rows = _rows(x)
        num_rows = len(rows)
        y = self.empty(rows.shape, x.dtype)
        if training:
            mean = sum_rows(rows) / num_rows
            np.subtract(rows, mean, out=y)
            rest = sum_rows(y) / num_rows
            y -= rest
            variance = sum_rows(np.multiply(y, y, out=self.empty(y.shape, y.dtype))) / num_rows
            _move_running(running_mean, mean + rest, momentum)
            _move_running(running_var, variance * (num_rows / (num_rows - 1)), momentum)
        else:
            mean, rest, variance = running_mean.copy(), np.zeros_like(running_mean), running_var
            np.subtract(rows, mean, out=y)
        inverse_std = 1 / np.sqrt(variance + eps)
        y *= inverse_std if weight is None else inverse_std * weight
        if bias is not None:
            y += bias
        z = y.reshape(x.shape)
        if added is not None:
            z += added
        if activation.name == "identity":
            return z, (mean, rest, inverse_std)
        y = self.activation_forward(activation, z)
        return y, (mean, rest, inverse_std, y, z)

    def batch_norm_backward(
        self,
        dy: Array,
        x: Array,
        weight: Array | None,
        saved: tuple[Array, ...],
        *,
        training: bool,
        bias: Array | None = None,
        activation: Activation = IDENTITY,
    ) -> tuple[Array, Array, Array]:
        check_float("batch_norm_backward", dy, x, weight, bias)
        check_same_shape("batch_norm_backward", dy, x)
        check_shape("batch_norm_backward", "weight", weight, x.shape[-1:])
        mean, rest, inverse_std, *results = saved
        if activation.name != "identity":
            dy = self.activation_backward(activation, dy, *results)
        rows, dy_rows = _rows(x), _rows(dy)
        centred = np.subtract(rows, mean, out=self.empty(rows.shape, x.dtype))
        centred -= rest
        scratch = np.multiply(dy_rows, centred, out=self.empty(rows.shape, x.dtype))
        dweight, dbias = sum_rows(scratch) * inverse_std, sum_rows(dy_rows)
        scale = inverse_std if weight is None else inverse_std * weight
        np.multiply(dy_rows, scale, out=scratch)
        if not training:
            return scratch.reshape(x.shape), dweight, dbias
        # The statistics depend on x too: dx = scale · (dy - mean of dy - x̂ · mean of dy · x̂).
        centred *= scale * inverse_std * dweight / len(rows)
        scratch -= centred
        scratch -= scale * dbias / len(rows)
        return scratch.reshape(x.shape), dweight, dbias

    def layer_norm_forward(
        self,
        x: Array,
        weight: Array | None,
        bias: Array | None,
        *,
        num_axes: int = 1,
        eps: float = 1e-5,
    ) -> tuple[Array, tuple[Array, Array, Array]]:
        check_float("layer_norm_forward", x, weight, bias)
        check_layer_norm("layer_norm_forward", x, weight, bias, num_axes)
        rows = _rows(x, num_axes)
        mean = _mean_columns(rows)
        y = np.subtract(rows, mean, out=self.empty(rows.shape, x.dtype))
        rest = _mean_columns(y)
        y -= rest
        variance = _mean_columns(np.multiply(y, y, out=self.empty(y.shape, y.dtype)))
        inverse_std = 1 / np.sqrt(variance + eps)
        y *= inverse_std
        if weight is not None:
            y *= weight.reshape(-1)
        if bias is not None:
            y += bias.reshape(-1)
        return y.reshape(x.shape), (mean, rest, inverse_std)

    def layer_norm_backward(
        self,
        dy: Array,
        x: Array,
        weight: Array | None,
        saved: tuple[Array, Array, Array],
        *,
        num_axes: int = 1,
    ) -> tuple[Array, Array, Array]:
        check_float("layer_norm_backward", dy, x, weight)
        check_same_shape("layer_norm_backward", dy, x)
        check_layer_norm("layer_norm_backward", x, weight, None, num_axes)
        mean, rest, inverse_std = saved
        rows, dy_rows = _rows(x, num_axes), _rows(dy, num_axes)
        x_hat = np.subtract(rows, mean, out=self.empty(rows.shape, x.dtype))
        x_hat -= rest
        x_hat *= inverse_std
        scratch = np.multiply(dy_rows, x_hat, out=self.empty(rows.shape, x.dtype))
        parameter_shape = x.shape[x.ndim - num_axes :]
        dweight, dbias = (sum_rows(part).reshape(parameter_shape) for part in (scratch, dy_rows))

        dx = self.empty(rows.shape, x.dtype)
        np.multiply(dy_rows, 1 if weight is None else weight.reshape(-1), out=dx)
        x_hat *= _mean_columns(np.multiply(dx, x_hat, out=scratch))
        dx -= _mean_columns(dx)
        dx -= x_hat
        dx *= inverse_std
        return dx.reshape(x.shape), dweight, dbias
