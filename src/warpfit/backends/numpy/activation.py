"""Elementwise activations, softmax and log-softmax, each formula beside its derivative."""

from __future__ import annotations

from collections.abc import Callable
from math import pi, sqrt

import numpy as np

from warpfit.backends.base import Activation, Array, Backend
from warpfit.backends.checks import check_activation_backward, check_float, check_same_shape
from warpfit.errors import ConfigError

__all__ = ["ActivationOps", "row_max", "sigmoid"]

_Forward = Callable[[Array, float, Array], Array]
_Backward = Callable[[Array, Array, Array, float, Array], Array]

_GELU_TANH_SCALE = sqrt(2.0 / pi)
_GELU_TANH_CUBIC = 0.044715


def sigmoid(z: Array, out: Array) -> Array:
    """Write 1 / (1 + exp(-z)) to out; exp is taken of -|z| only, so it cannot overflow."""
    small = np.exp(-np.abs(z))
    numerator = np.where(z >= 0, np.ones_like(small), small)
    return np.divide(numerator, small + 1, out=out)


def _identity_forward(z: Array, slope: float, out: Array) -> Array:
    if out is not z:
        out[...] = z
    return out


def _identity_backward(dy: Array, y: Array, z: Array, slope: float, out: Array) -> Array:
    out[...] = dy
    return out


def _relu_forward(z: Array, slope: float, out: Array) -> Array:
    return np.maximum(z, 0, out=out)


def _relu_backward(dy: Array, y: Array, z: Array, slope: float, out: Array) -> Array:
    # y is never negative, so its sign is the mask: 1 where the unit was active, else 0.
    np.sign(y, out=out)
    return np.multiply(out, dy, out=out)


def _leaky_relu_forward(z: Array, slope: float, out: Array) -> Array:
    return np.multiply(z, np.where(z > 0, z.dtype.type(1), z.dtype.type(slope)), out=out)


def _leaky_relu_backward(dy: Array, y: Array, z: Array, slope: float, out: Array) -> Array:
    return np.multiply(dy, np.where(y > 0, y.dtype.type(1), y.dtype.type(slope)), out=out)


def _tanh_forward(z: Array, slope: float, out: Array) -> Array:
    return np.tanh(z, out=out)


def _tanh_backward(dy: Array, y: Array, z: Array, slope: float, out: Array) -> Array:
    np.multiply(y, y, out=out)
    np.subtract(1, out, out=out)
    return np.multiply(out, dy, out=out)


def _sigmoid_forward(z: Array, slope: float, out: Array) -> Array:
    return sigmoid(z, out)


def _sigmoid_backward(dy: Array, y: Array, z: Array, slope: float, out: Array) -> Array:
    np.subtract(1, y, out=out)
    np.multiply(out, y, out=out)
    return np.multiply(out, dy, out=out)


def _normal_cdf(z: Array) -> Array:
    from scipy.special import erf

    return 0.5 * (1 + erf(z * z.dtype.type(sqrt(0.5))))


def _gelu_forward(z: Array, slope: float, out: Array) -> Array:
    return np.multiply(z, _normal_cdf(z), out=out)


def _gelu_backward(dy: Array, y: Array, z: Array, slope: float, out: Array) -> Array:
    density = np.exp(-0.5 * z * z) / sqrt(2.0 * pi)
    return np.multiply(dy, _normal_cdf(z) + z * density, out=out)


def _gelu_tanh_forward(z: Array, slope: float, out: Array) -> Array:
    t = np.tanh(_GELU_TANH_SCALE * (z + _GELU_TANH_CUBIC * z**3))
    return np.multiply(z, 0.5 * (1 + t), out=out)


def _gelu_tanh_backward(dy: Array, y: Array, z: Array, slope: float, out: Array) -> Array:
    t = np.tanh(_GELU_TANH_SCALE * (z + _GELU_TANH_CUBIC * z**3))
    dt = (1 - t * t) * _GELU_TANH_SCALE * (1 + 3 * _GELU_TANH_CUBIC * z * z)
    return np.multiply(dy, 0.5 * (1 + t) + 0.5 * z * dt, out=out)


def _silu_forward(z: Array, slope: float, out: Array) -> Array:
    return np.multiply(z, sigmoid(z, np.empty_like(z)), out=out)


def _silu_backward(dy: Array, y: Array, z: Array, slope: float, out: Array) -> Array:
    s = sigmoid(z, np.empty_like(z))
    return np.multiply(dy, s * (1 + z * (1 - s)), out=out)


_FUNCTIONS: dict[str, tuple[_Forward, _Backward]] = {
    "identity": (_identity_forward, _identity_backward),
    "relu": (_relu_forward, _relu_backward),
    "leaky_relu": (_leaky_relu_forward, _leaky_relu_backward),
    "tanh": (_tanh_forward, _tanh_backward),
    "sigmoid": (_sigmoid_forward, _sigmoid_backward),
    "gelu": (_gelu_forward, _gelu_backward),
    "gelu_tanh": (_gelu_tanh_forward, _gelu_tanh_backward),
    "silu": (_silu_forward, _silu_backward),
}


def _functions_of(activation: Activation) -> tuple[_Forward, _Backward]:
    if activation.name not in _FUNCTIONS:
        raise ConfigError(f"expected an activation among {', '.join(_FUNCTIONS)}, got {activation.name!r}")
    return _FUNCTIONS[activation.name]


def row_max(z: Array) -> Array:
    """Return the largest entry of each row, (..., 1); 0 for rows of no entries."""
    return np.maximum.reduce(z, axis=-1, keepdims=True, initial=-np.inf if z.shape[-1] else 0)


class ActivationOps(Backend):
    """y = f(z), and softmax along the last axis."""

    def activation_forward(self, activation: Activation, z: Array, out: Array | None = None) -> Array:
        check_float("activation_forward", z, out)
        if out is None:
            out = self.empty(z.shape, z.dtype)
        check_same_shape("activation_forward", z, out)
        forward, _ = _functions_of(activation)
        return forward(z, activation.slope, out)

    def activation_backward(self, activation: Activation, dy: Array, y: Array, z: Array | None) -> Array:
        check_activation_backward("activation_backward", activation, dy, y, z)
        out = self.empty(y.shape, y.dtype)
        _, backward = _functions_of(activation)
        return backward(dy, y, z, activation.slope, out)

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
