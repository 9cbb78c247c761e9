"""The parts of RealMLP's network: formulas over tensors, and how fast each parameter learns.

References
----------
Holzmüller, Grinsztajn, Steinwart: Better by Default: Strong Pre-Tuned MLPs and Boosted Trees on
Tabular Data (2024).
"""

from __future__ import annotations

from collections.abc import Mapping
from math import pi, sqrt
from typing import ClassVar, NamedTuple

import numpy as np

from warpfit import backends
from warpfit.autograd import Tensor, concatenate, formulas, record
from warpfit.backends import Activation, Array, Backend
from warpfit.nn import Module, Parameter
from warpfit.nn.linear import linear


class Factors(NamedTuple):
    """What multiplies the learning rate and the weight decay of a parameter."""

    rate: float = 1.0
    decay: float = 1.0


class TabularLayer(Module):
    """A module whose parameters learn at rates of their own: `factors`, by their names."""

    factors: ClassVar[Mapping[str, Factors]] = {}


class Scale(TabularLayer):
    """y = x · weight, a factor for each input: x (M, K), weight (K,)."""

    factors: ClassVar = {"weight": Factors(rate=6.0)}

    def __init__(self, size: int, dtype: str = "float32") -> None:
        self.weight = Parameter(np.ones(size, dtype))

    def forward(self, x: Tensor) -> Tensor:
        return x * self.weight


class NTKLinear(TabularLayer):
    """y = x @ weight / √K + bias, the NTK parametrisation: x (M, K), weight (K, N), bias (N,)."""

    factors: ClassVar = {"weight": Factors(), "bias": Factors(rate=0.1, decay=0.0)}

    def __init__(self, in_features: int, out_features: int, dtype: str = "float32") -> None:
        self.weight = Parameter(np.zeros((in_features, out_features), dtype))
        self.bias = Parameter(np.zeros(out_features, dtype))

    def forward(self, x: Tensor) -> Tensor:
        ops, scale = backends.of(x.data), 1 / sqrt(max(1, x.shape[1]))
        scaled = ops.binary("mul", x.data, scale)
        y, pullback = linear(
            ops, scaled, self.weight.data, self.bias.data, needs_dx=x.requires_grad
        )

        def to_inputs(dy: Array) -> tuple[Array | None, ...]:
            dx, *others = pullback(dy)
            return (None if dx is None else ops.binary("mul", dx, scale), *others)

        return record(y, (x, self.weight, self.bias), to_inputs)


def parametric_activation(
    ops: Backend, x: Array, weight: Array, *, activation: Activation
) -> tuple[Array, formulas.Pullback]:
    """y = x + (f(x) - x) · w; dx = dy · (1 - w) + dy · w · f'(x), dw = Σ dy · (f(x) - x).

    x, y and dy (M, N), w (N,).
    """
    f = ops.activation_forward(activation, x)
    change = ops.binary("sub", f, x)
    y = ops.binary("add", x, ops.binary("mul", change, weight))

    def pullback(dy: Array, needed: object = None) -> tuple[Array, Array]:
        through = ops.binary("mul", dy, weight)
        dx = ops.binary("sub", dy, through)
        dx = ops.binary("add", dx, ops.activation_backward(activation, through, f, x))
        return dx, ops.unbroadcast(ops.binary("mul", dy, change), weight.shape)

    return y, pullback


class ParametricActivation(TabularLayer):
    """y = x + (f(x) - x) · weight, f an activation by its name: x (M, N), weight (N,)."""

    factors: ClassVar = {"weight": Factors(rate=0.1)}

    def __init__(self, activation: str, size: int, dtype: str = "float32") -> None:
        self.activation = Activation(activation)
        self.weight = Parameter(np.ones(size, dtype))

    def forward(self, x: Tensor) -> Tensor:
        y, pullback = parametric_activation(
            backends.of(x.data), x.data, self.weight.data, activation=self.activation
        )
        return record(y, (x, self.weight), pullback)


class PeriodicEmbedding(TabularLayer):
    """PBLD: three numbers for each number, made of its waves, and the number itself.

    e[m, j, i] = Σ_k cos(2π x[m, i] · frequency[i, k] + phase[i, k]) · weight[j, i, k] + bias[j, i].
    x (M, F) becomes (M, 4 F): e with its last axes joined, then x.
    """

    WAVES, MADE = 16, 3
    SIZE = MADE + 1  # that a number has afterwards
    factors: ClassVar = dict.fromkeys(("frequency", "phase", "weight", "bias"), Factors(rate=0.1))

    def __init__(self, num_features: int, dtype: str = "float32") -> None:
        waves, made = (num_features, self.WAVES), (self.MADE, num_features)
        self.frequency = Parameter(np.zeros(waves, dtype))
        self.phase = Parameter(np.zeros(waves, dtype))
        self.weight = Parameter(np.zeros((*made, self.WAVES), dtype))
        self.bias = Parameter(np.zeros(made, dtype))

    def forward(self, x: Tensor) -> Tensor:
        waves = (x.unsqueeze(2) * (self.frequency * (2 * pi)) + self.phase).cos()
        made = (waves.unsqueeze(1) * self.weight).sum(axis=3) + self.bias
        return concatenate([made.flatten(1), x], axis=1)


class Embedding(TabularLayer):
    """y[m] = the rows of `weight` that the codes x[m] name, one after the other.

    x (M, C) holds integers as floats: for each of C columns a code below its number of codes.
    weight (all columns' codes, SIZE), y (M, C · SIZE). Codes are read on the host.
    """

    SIZE = 8
    factors: ClassVar = {"weight": Factors()}

    def __init__(self, num_codes: tuple[int, ...], dtype: str = "float32") -> None:
        self.starts = np.cumsum([0, *num_codes])[:-1]
        self.weight = Parameter(np.zeros((sum(num_codes), self.SIZE), dtype))

    def forward(self, x: Tensor) -> Tensor:
        return self.weight[x.numpy().astype(np.int64) + self.starts].flatten(1)
