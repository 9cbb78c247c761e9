"""RealMLP's network, and its initial values, which depend on the data."""

from __future__ import annotations

from collections.abc import Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass
from itertools import count, pairwise
from math import pi, sqrt
from typing import Any

import numpy as np
import numpy.typing as npt

from warpfit import backends, random
from warpfit.autograd import Tensor, concatenate, no_grad, record
from warpfit.nn import Module, ModuleList
from warpfit.nn.dropout import dropout
from warpfit.tabular.layers import (
    Embedding,
    NTKLinear,
    ParametricActivation,
    PeriodicEmbedding,
    Scale,
)

Array = npt.NDArray[Any]

HIDDEN, FREQUENCY_SCALE = (256, 256, 256), 0.1
MOST_ROWS = 1 << 10  # that initial values are made of; more say nearly the same
POINTS = 5  # of the data, between which each unit's kink lies at first


@dataclass(frozen=True)
class Columns:
    """What the columns of a network's input are, in this order."""

    num_numbers: int  # that become periodic embeddings
    num_indicators: int = 0  # of categories, taken as they are
    # For each column of codes, which become embeddings, how many codes there are.
    num_codes: tuple[int, ...] = ()

    @property
    def num_plain(self) -> int:
        """How many columns come before the codes."""
        return self.num_numbers + self.num_indicators

    @property
    def num_embedded(self) -> int:
        """How many inputs the first linear layer has."""
        numbers = self.num_numbers * PeriodicEmbedding.SIZE
        return numbers + self.num_indicators + len(self.num_codes) * Embedding.SIZE


class RealMLP(Module):
    """Embeddings, a scale, and hidden layers with parametric activations and dropout.

    x (M, columns) becomes (M, num_outputs). Parameters are zeros and ones until
    `set_initial_values`. Dropout's `p` and `step` change from step to step.

    Parameters
    ----------
    columns : Columns
    num_outputs : int
    activation : str
        Of the hidden layers: ``'selu'`` for classes, ``'mish'`` for numbers.
    seed : int
        Of dropout.
    dtype : {'float32', 'float64'}
    hidden : tuple of int, optional
        Widths of the hidden layers; three of 256 if none are given.
    """

    p, step = 0.0, 0

    def __init__(
        self,
        columns: Columns,
        num_outputs: int,
        activation: str,
        *,
        seed: int = 0,
        dtype: str = "float32",
        hidden: tuple[int, ...] | None = None,
    ) -> None:
        self.columns, self.seed = columns, seed
        hidden = HIDDEN if hidden is None else hidden
        self.numbers = PeriodicEmbedding(columns.num_numbers, dtype)
        self.codes = Embedding(columns.num_codes, dtype)
        self.scale = Scale(columns.num_embedded, dtype)
        sizes = (columns.num_embedded, *hidden, num_outputs)
        self.linears = ModuleList(
            NTKLinear(fan_in, fan_out, dtype) for fan_in, fan_out in pairwise(sizes)
        )
        self.activations = ModuleList(
            ParametricActivation(activation, size, dtype) for size in hidden
        )

    def embedded(self, x: Tensor) -> Tensor:
        """Return what the first linear layer takes, (M, num_embedded)."""
        numbers, plain = self.columns.num_numbers, self.columns.num_plain
        parts = []
        if numbers:
            parts.append(self.numbers(x[:, :numbers]))
        if plain > numbers:
            parts.append(x[:, numbers:plain])
        if self.columns.num_codes:
            parts.append(self.codes(x[:, plain:]))
        return self.scale(concatenate(parts, axis=1))

    def forward(self, x: Tensor) -> Tensor:
        x = self.embedded(x)
        *hidden, last = self.linears
        for idx, (linear, activation) in enumerate(zip(hidden, self.activations, strict=True)):
            x = self._dropped(activation(linear(x)), idx)
        return last(x)

    def _dropped(self, x: Tensor, idx: int) -> Tensor:
        if not self.training or self.p == 0:
            return x
        y, pullback = dropout(
            backends.of(x.data), x.data, self.p, seed=self.seed, step=self.step, layer_idx=idx
        )
        return record(y, (x,), lambda dy: (pullback(dy),))


class _Draws:
    """Random numbers for one tensor after the other."""

    def __init__(self, seed: int) -> None:
        self._key, self._idx = random.stream_key(seed, random.INIT), count()

    def normal(self, shape: tuple[int, ...]) -> Array:
        return random.normal(shape, self._key, next(self._idx))

    def uniform(self, shape: tuple[int, ...], bound: float = 1.0) -> Array:
        """Return uniform numbers in [-bound, bound)."""
        return bound * (2 * random.uniform(shape, self._key, next(self._idx)) - 1)

    def of_layer(self, linear: Any, threads: ThreadPoolExecutor) -> list[Future[Array]]:
        """Let threads draw a layer's weights, and for each unit some rows and their shares."""
        points = (linear.weight.shape[1], POINTS)
        kinds = (random.normal, linear.weight.shape), (random.uniform, points)
        return [
            threads.submit(draw, shape, self._key, next(self._idx))
            for draw, shape in (*kinds, kinds[1])
        ]


@no_grad()
def set_initial_values(
    network: RealMLP, x: Array, seed: int, frequency_scale: float = FREQUENCY_SCALE
) -> None:
    """Set the parameters of a network on the CPU as training begins with them.

    Each linear layer's outputs, before the bias, have standard deviation 1 over the rows ("std"),
    and minus the bias is a random convex combination of five of them ("he+5"), which puts the
    unit's kink among the data.

    Parameters
    ----------
    network : RealMLP
    x : ndarray (N, columns)
        Training rows; of more than 2**10 as many at even distances count.
    seed : int
    frequency_scale : float
        Standard deviation of the periodic embeddings' frequencies.
    """
    draws = _Draws(seed)
    _set(network.codes.weight, draws.normal(network.codes.weight.shape))
    numbers, bound = network.numbers, 1 / sqrt(PeriodicEmbedding.WAVES)
    _set(numbers.frequency, frequency_scale * draws.normal(numbers.frequency.shape))
    _set(numbers.phase, draws.uniform(numbers.phase.shape, pi))
    _set(numbers.weight, draws.uniform(numbers.weight.shape, bound))
    _set(numbers.bias, draws.uniform(numbers.bias.shape, bound))

    network.eval()
    some = x[:: max(1, -(-len(x) // MOST_ROWS))]
    linears, activations = list(network.linears), [*network.activations, None]
    with ThreadPoolExecutor(len(linears)) as threads:
        drawn = [draws.of_layer(linear, threads) for linear in linears]
        hidden = network.embedded(network.input_tensor(some)).numpy()
        for linear, activation, own in zip(linears, activations, drawn, strict=True):
            outputs = _set_linear(linear, hidden, own)
            if activation is not None:
                # Its weight is 1 so far.
                kind = activation.activation
                hidden = kind.formula.forward(outputs, kind.slope, np.empty_like(outputs))


def _set_linear(linear: Any, hidden: Array, drawn: Sequence[Future[Array]]) -> Array:
    """Set weight and bias of a linear layer, whose bias is 0 so far, by its inputs; return its
    outputs.
    """
    weights, rows, shares = (each.result() for each in drawn)
    _set(linear.weight, weights)
    outputs: Array = linear(Tensor(hidden)).numpy()
    deviations = _deviations(outputs)
    _set(linear.weight, linear.weight.data / deviations)
    outputs /= deviations.astype(outputs.dtype)
    places = (rows * len(outputs)).astype(np.int64)
    chosen = outputs[places, np.arange(outputs.shape[1])[:, None]]
    _set(linear.bias, -(chosen * _simplex(shares)).sum(axis=1))
    outputs += linear.bias.data
    return outputs


def _simplex(uniform: Array) -> Array:
    """Return weights that add up to 1 along the last axis, uniformly distributed, of numbers in
    [0, 1).
    """
    parts = -np.log1p(-uniform)
    return np.asarray(parts / parts.sum(axis=-1, keepdims=True))


def _set(parameter: Tensor, values: Array) -> None:
    parameter.data[...] = values


def _deviations(outputs: Array) -> Array:
    """Return each column's standard deviation; 1 where all rows are alike but for rounding."""
    deviations = outputs.std(axis=0, dtype=np.float64)
    smallest = 1e-6 * np.abs(outputs).max(axis=0, initial=0)
    return np.where(deviations > smallest, deviations, 1.0)
