"""Elementwise activations, by the table's formulas; softmax and its logarithm."""

from __future__ import annotations

import numpy as np

from warpfit.backends.activations import Activation
from warpfit.backends.base import Array, Backend
from warpfit.backends.checks import (
    check_activation_backward,
    check_float,
    check_same_shape,
    check_shape,
)
from warpfit.backends.numpy.parallel import each_rows


def row_max(z: Array) -> Array:
    """Return the largest entry of each row, (..., 1); 0 for rows of no entries."""
    return np.maximum.reduce(z, axis=-1, keepdims=True, initial=-np.inf if z.shape[-1] else 0)


class ActivationOps(Backend):
    """y = f(z), and softmax along the last axis."""

    def activation_forward(
        self, activation: Activation, z: Array, out: Array | None = None
    ) -> Array:
        check_float("activation_forward", z, out)
        if out is None:
            out = self.empty(z.shape, z.dtype)
        check_same_shape("activation_forward", z, out)
        return activation.formula.forward(z, activation.slope, out)

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
        if plus is not None:
            dy = np.add(dy, plus, out=self.empty(y.shape, y.dtype))
        out = self.empty(y.shape, y.dtype)

        def backward(dy: Array, y: Array, out: Array, z: Array | None = None) -> None:
            activation.formula.backward(dy, y, z, activation.slope, out)

        each_rows(backward, dy, y, out, *(() if z is None else (z,)))
        return out

    def softmax_forward(self, z: Array) -> Array:
        check_float("softmax_forward", z)
        y = np.subtract(z, row_max(z), out=self.empty(z.shape, z.dtype))
        np.exp(y, out=y)
        return np.divide(y, np.add.reduce(y, axis=-1, keepdims=True), out=y)

    def softmax_backward(self, dy: Array, y: Array) -> Array:
        check_float("softmax_backward", dy, y)
        check_same_shape("softmax_backward", dy, y)
        inner = np.add.reduce(dy * y, axis=-1, keepdims=True)
        dz = np.subtract(dy, inner, out=self.empty(y.shape, y.dtype))
        return np.multiply(dz, y, out=dz)

    def log_softmax_forward(self, z: Array) -> Array:
        check_float("log_softmax_forward", z)
        y = np.subtract(z, row_max(z), out=self.empty(z.shape, z.dtype))
        if not y.size:
            return y
        return np.subtract(y, np.log(np.add.reduce(np.exp(y), axis=-1, keepdims=True)), out=y)

    def log_softmax_backward(self, dy: Array, y: Array) -> Array:
        check_float("log_softmax_backward", dy, y)
        check_same_shape("log_softmax_backward", dy, y)
        dz = np.multiply(
            np.exp(y), np.add.reduce(dy, axis=-1, keepdims=True), out=self.empty(y.shape, y.dtype)
        )
        return np.subtract(dy, dz, out=dz)
