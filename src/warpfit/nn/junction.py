"""Where residual connections begin, change sides and end, in a network that is a chain of layers.

A chain keeps what a connection is to add later: ``keep`` keeps its numbers, ``swap`` exchanges them
with those kept last, and ``add`` adds these. So a residual block is ``keep``, its layers, ``swap``
and the layers of its shortcut, if it has any, and ``add``. In the backward pass ``keep`` adds
gradients, and ``add`` keeps one.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from typing import ClassVar, TypeVar

from warpfit.backends import Activation, Array, Backend
from warpfit.backends.base import IDENTITY
from warpfit.errors import ConfigError, ShapeError
from warpfit.nn.layer import Layer
from warpfit.nn.onnx_graph import Graph
from warpfit.nn.spec import LayerSpec, Shape

PARTS = ("keep", "swap", "add")

X = TypeVar("X")
# From the gradient after a junction and those kept to the gradient before it.
Through = Callable[[Array, list[Array]], Array]


@dataclass(frozen=True)
class JunctionSpec(LayerSpec):
    """A place of a residual connection: ``'keep'``, ``'swap'``, or ``'add'``, f of the sum."""

    kind: ClassVar[str] = "junction"
    part: str
    activation: Activation = IDENTITY

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.part not in PARTS:
            raise ConfigError(f"expected a junction of {', '.join(PARTS)}, got {self.part!r}")

    def passed(self, x: X, kept: list[X], add: Callable[[X, X], X]) -> X:
        """Return what comes after the junction, of what comes before it and what is kept."""
        if self.part == "keep":
            kept.append(x)
            return x
        if not kept:
            raise ConfigError(f"expected a junction 'keep' before {self.part!r}, got none")
        if self.part == "add":
            return add(x, kept.pop())
        kept[-1], x = x, kept[-1]
        return x

    def passed_shape(self, shape: Shape, kept: list[Shape]) -> Shape:
        """Return the shape after the junction, or ShapeError."""
        return self.passed(shape, kept, _same)

    def through(
        self,
        ops: Backend,
        x: Array,
        kept: list[Array],
        *,
        is_done: bool = False,
        takes_dz: bool = False,
        x_activation: Activation = IDENTITY,
    ) -> tuple[Array, Through]:
        """Return the numbers after the junction, and the function of the gradient there and those
        kept to that before.

        The settings join an ``add`` with the layer before it, which has done it, and with the
        ``keep`` after it, which takes over the derivative of its f, `x_activation` there, unless
        the layer after that does what it would do.
        """
        is_added = is_done and self.part == "add"
        y = x if is_added else self.passed(x, kept, partial(self._sum, ops))

        def back(dy: Array, gradients: list[Array]) -> Array:
            if self.part == "add":
                if not takes_dz and self.activation.name != "identity":
                    dy = ops.activation_backward(self.activation, dy, y, None)
                gradients.append(dy)
            elif self.part == "swap":
                gradients[-1], dy = dy, gradients[-1]
            elif not is_done:
                saved = None if x_activation.name == "identity" else x
                dy = ops.with_joints(dy, saved, x_activation, gradients.pop())
            return dy

        return y, back

    def _sum(self, ops: Backend, a: Array, b: Array) -> Array:
        total = ops.binary("add", a, b)
        is_plain = self.activation.name == "identity"
        return total if is_plain else ops.activation_forward(self.activation, total)

    def passed_name(self, x: str, kept: list[str], graph: Graph) -> str:
        """Return the name in an ONNX graph of the numbers after the junction."""

        def added(a: str, b: str) -> str:
            total = graph.add("Add", a, b)
            return self.activation.formula.onnx(graph, total, self.activation.slope)

        return self.passed(x, kept, added)


class Junction(Layer):
    """A junction among a network's layers; `Residual` computes what several of them say."""

    spec_type = JunctionSpec


def _same(a: Shape, b: Shape) -> Shape:
    if a != b:
        raise ShapeError(f"Residual: expected layers and shortcut to give one shape, got {b}, {a}")
    return a
