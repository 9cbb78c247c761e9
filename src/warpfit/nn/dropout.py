"""Dropout: each unit is 0 with probability p, else x / (1 - p)."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import ClassVar

from warpfit.backends import Activation, Array, Backend
from warpfit.backends.base import Number
from warpfit.checks import ranged
from warpfit.nn.layer import RandomLayer
from warpfit.nn.onnx_graph import Graph, HostArrays
from warpfit.nn.spec import Arrays, Call, LayerSpec, Pullback, Shape


def dropout(
    ops: Backend,
    x: Array,
    p: float,
    *,
    seed: int,
    step: Number,
    layer_idx: int,
    first_row: int = 0,
) -> tuple[Array, Callable[[Array], Array]]:
    """Return x with units dropped, the others times 1 / (1 - p), and the function from dy to dx."""
    y, mask = ops.dropout_forward(
        x, p=p, seed=seed, step=step, layer_idx=layer_idx, first_row=first_row
    )
    return y, lambda dy: ops.dropout_backward(dy, mask)


@dataclass(frozen=True)
class DropoutSpec(LayerSpec):
    """y = x · mask in training, else x; `layer_idx` tells the random layers of a network apart."""

    kind: ClassVar[str] = "dropout"
    p: float = ranged("in [0, 1)", 0.5)
    layer_idx: int = 0

    def passes(self, activation: Activation) -> bool:
        # What is kept is only scaled, and what is dropped has no gradient.
        return activation.name in ("relu", "leaky_relu")

    def vjp(
        self, ops: Backend, arrays: Arrays, x: Array, call: Call, *, needs_dx: bool = True
    ) -> tuple[Array, Pullback]:
        if not call.training or self.p == 0:
            return x, lambda dy: (dy if needs_dx else None, {})
        y, backward = dropout(ops, x, self.p, layer_idx=self.layer_idx, **call.place)
        return y, lambda dy: (backward(dy) if needs_dx else None, {})

    def onnx(self, graph: Graph, x: str, arrays: HostArrays, input_shape: Shape) -> str:
        return x


class Dropout(RandomLayer):
    """y = x / (1 - p), or 0 with probability p for each unit, in training; y = x in evaluation.

    In `fit` the run's seed and step decide the masks. Elsewhere the layer's own seed does, and
    every call in training has another mask.

    Parameters
    ----------
    p : float
        Probability of 0, in [0, 1).
    seed : int, optional
        Fixes the masks outside of `fit`; drawn from `warpfit.manual_seed`'s sequence if None.

    References
    ----------
    Srivastava, Hinton, Krizhevsky, Sutskever, Salakhutdinov: Dropout (2014).

    Examples
    --------
    >>> model = nn.Sequential(nn.Linear(64, 32), nn.ReLU(), nn.Dropout(0.2), nn.Linear(32, 10))
    """

    spec_type = DropoutSpec

    def __init__(self, p: float = 0.5, *, seed: int | None = None) -> None:
        super().__init__(DropoutSpec(p), seed)

    def extra_repr(self) -> str:
        return f"p={self.spec.p}"
