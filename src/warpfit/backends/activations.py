"""The table of activations: an entry is all that is known of one on the host.

Kernels have the same formulas in ``ops/activation/activation.cuh``, under the same names. The
layers of the package are in ``nn/activations.py``. Everything else reads this table.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from math import pi, sqrt
from typing import Any, Protocol

import numpy as np
import numpy.typing as npt

from warpfit.checks import check_choice, check_number

Array = npt.NDArray[Any]


class OnnxGraph(Protocol):
    """What an activation needs of a graph to put itself into it."""

    def add(self, operator: str, *inputs: str | float, **attributes: Any) -> str:
        """Add an operator of named values and constants, and return the name of its output."""


@dataclass(frozen=True)
class Formula:
    """An entry of the table."""

    # `forward(z, slope, out)` writes f(z) to `out`, which may be z itself, and returns it.
    forward: Callable[[Array, float, Array], Array]
    # `backward(dy, y, z, slope, out)` writes dy · f'(z) to `out` and returns it.
    backward: Callable[[Array, Array, Any, float, Array], Array]
    # `onnx(graph, z, slope)` adds f to a graph, and returns the name of its output.
    onnx: Callable[[OnnxGraph, str, float], str]
    # Whether the derivative reads z, which then is kept for the backward pass; otherwise it reads
    # y.
    needs_input: bool = False
    sklearn: str | None = None  # scikit-learn's name, where it is another


@dataclass(frozen=True)
class Activation:
    """An elementwise function y = f(z).

    Parameters
    ----------
    name : str
        A key of ``ACTIVATIONS``; ``gelu`` is the form with erf, ``gelu_tanh`` its approximation.
    slope : float
        Factor of ``leaky_relu`` for negative input, at least 0.
    """

    name: str = "identity"
    slope: float = 0.01

    def __post_init__(self) -> None:
        check_choice("an activation", self.name, ACTIVATIONS)
        check_number("a leaky_relu slope", self.slope, 0)

    @property
    def formula(self) -> Formula:
        """The entry of the table."""
        return ACTIVATIONS[self.name]

    @property
    def needs_input(self) -> bool:
        """Whether the derivative needs z; otherwise y suffices."""
        return self.formula.needs_input


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
    from scipy.special import erfc

    return 0.5 * erfc(z * z.dtype.type(-sqrt(0.5)))


def _gelu_onnx(graph: OnnxGraph, z: str, slope: float) -> str:
    # By erf: ONNX has had an operator of that name only since 2023.
    erf = graph.add("Erf", graph.add("Mul", z, sqrt(0.5)))
    return graph.add("Mul", z, graph.add("Mul", graph.add("Add", erf, 1.0), 0.5))


def _gelu_forward(z: Array, slope: float, out: Array) -> Array:
    return np.multiply(z, _normal_cdf(z), out=out)


def _gelu_backward(dy: Array, y: Array, z: Array, slope: float, out: Array) -> Array:
    density = np.exp(-0.5 * z * z) / sqrt(2.0 * pi)
    return np.multiply(dy, _normal_cdf(z) + z * density, out=out)


_GELU_TANH_SCALE = sqrt(2.0 / pi)
_GELU_TANH_CUBIC = 0.044715


def _gelu_tanh_forward(z: Array, slope: float, out: Array) -> Array:
    t = np.tanh(_GELU_TANH_SCALE * (z + _GELU_TANH_CUBIC * z**3))
    return np.multiply(z, 0.5 * (1 + t), out=out)


def _gelu_tanh_backward(dy: Array, y: Array, z: Array, slope: float, out: Array) -> Array:
    t = np.tanh(_GELU_TANH_SCALE * (z + _GELU_TANH_CUBIC * z**3))
    dt = (1 - t * t) * _GELU_TANH_SCALE * (1 + 3 * _GELU_TANH_CUBIC * z * z)
    return np.multiply(dy, 0.5 * (1 + t) + 0.5 * z * dt, out=out)


def _gelu_tanh_onnx(graph: OnnxGraph, z: str, slope: float) -> str:
    cube = graph.add("Mul", graph.add("Mul", graph.add("Mul", z, z), z), _GELU_TANH_CUBIC)
    t = graph.add("Tanh", graph.add("Mul", graph.add("Add", z, cube), _GELU_TANH_SCALE))
    return graph.add("Mul", z, graph.add("Mul", graph.add("Add", t, 1.0), 0.5))


def _silu_forward(z: Array, slope: float, out: Array) -> Array:
    return np.multiply(z, sigmoid(z, np.empty_like(z)), out=out)


def _silu_backward(dy: Array, y: Array, z: Array, slope: float, out: Array) -> Array:
    s = sigmoid(z, np.empty_like(z))
    return np.multiply(dy, s * (1 + z * (1 - s)), out=out)


# PyTorch's constants.
_SELU_ALPHA, _SELU_SCALE = 1.6732632423543772848170429916717, 1.0507009873554804934193349852946


def _selu_forward(z: Array, slope: float, out: Array) -> Array:
    # exp(x) - 1 = 2 t / (1 - t), t = tanh(x / 2): as exact near 0 as expm1, which is slow.
    below = np.tanh(0.5 * np.minimum(z, 0))
    below *= 2 * _SELU_ALPHA / (1 - below)
    np.maximum(z, 0, out=out)
    out += below
    return np.multiply(out, _SELU_SCALE, out=out)


def _selu_backward(dy: Array, y: Array, z: Array, slope: float, out: Array) -> Array:
    # Sums take a third of what np.where does.
    above = np.multiply(y > 0, _SELU_SCALE - _SELU_SCALE * _SELU_ALPHA, dtype=y.dtype)
    return np.multiply(dy, np.minimum(y, 0) + _SELU_SCALE * _SELU_ALPHA + above, out=out)


def _mish_parts(z: Array) -> tuple[Array, Array]:
    """Return exp(z), up to that of 20, and tanh(log(1 + exp(z))), which is 1 from there on."""
    w = np.exp(np.minimum(z, 20))
    n = w * (w + 2)
    return w, n / (n + 2)


def _mish_forward(z: Array, slope: float, out: Array) -> Array:
    return np.multiply(z, _mish_parts(z)[1], out=out)


def _mish_backward(dy: Array, y: Array, z: Array, slope: float, out: Array) -> Array:
    w, t = _mish_parts(z)
    return np.multiply(dy, t + z * (1 - t * t) * (w / (1 + w)), out=out)


ACTIVATIONS: dict[str, Formula] = {
    "identity": Formula(_identity_forward, _identity_backward, lambda graph, z, slope: z),
    "relu": Formula(_relu_forward, _relu_backward, lambda graph, z, slope: graph.add("Relu", z)),
    "leaky_relu": Formula(
        _leaky_relu_forward,
        _leaky_relu_backward,
        lambda graph, z, slope: graph.add("LeakyRelu", z, alpha=slope),
    ),
    "tanh": Formula(_tanh_forward, _tanh_backward, lambda graph, z, slope: graph.add("Tanh", z)),
    "sigmoid": Formula(
        _sigmoid_forward,
        _sigmoid_backward,
        lambda graph, z, slope: graph.add("Sigmoid", z),
        sklearn="logistic",
    ),
    "gelu": Formula(_gelu_forward, _gelu_backward, _gelu_onnx, needs_input=True),
    "gelu_tanh": Formula(
        _gelu_tanh_forward, _gelu_tanh_backward, _gelu_tanh_onnx, needs_input=True
    ),
    "silu": Formula(
        _silu_forward,
        _silu_backward,
        lambda graph, z, slope: graph.add("Mul", z, graph.add("Sigmoid", z)),
        needs_input=True,
    ),
    "selu": Formula(
        _selu_forward,
        _selu_backward,
        lambda graph, z, slope: graph.add("Selu", z, alpha=_SELU_ALPHA, gamma=_SELU_SCALE),
    ),
    "mish": Formula(
        _mish_forward,
        _mish_backward,
        lambda graph, z, slope: graph.add("Mul", z, graph.add("Tanh", graph.add("Softplus", z))),
        needs_input=True,
    ),
}

IDENTITY = Activation()
