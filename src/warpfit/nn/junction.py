"""Where residual connections begin, change sides and end, in a network that is a chain of layers.

A chain keeps what a connection is to add later: ``keep`` keeps its numbers, ``swap`` exchanges them
with those kept last, and ``add`` adds these. So a residual block is ``keep``, its layers, ``swap``
and the layers of its shortcut, if it has any, and ``add``. In the backward pass ``keep`` adds
gradients, and ``add`` keeps one.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import ClassVar, TypeVar

from warpfit.backends import Array, Backend
from warpfit.errors import ConfigError, ShapeError
from warpfit.nn.layer import Layer
from warpfit.nn.onnx_graph import Graph
from warpfit.nn.spec import LayerSpec, Shape

__all__ = ["Junction", "JunctionSpec"]

PARTS = ("keep", "swap", "add")

X = TypeVar("X")


@dataclass(frozen=True)
class JunctionSpec(LayerSpec):
    """One of the places of a residual connection: ``'keep'``, ``'swap'`` or ``'add'``."""

    kind: ClassVar[str] = "junction"
    part: str

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

    def passed_back(self, dy: Array, kept: list[Array], ops: Backend) -> Array:
        """Return the gradient before the junction, of that after it and those kept."""
        if self.part == "add":
            kept.append(dy)
            return dy
        if self.part == "keep":
            return ops.binary("add", dy, kept.pop())
        kept[-1], dy = dy, kept[-1]
        return dy

    def passed_shape(self, shape: Shape, kept: list[Shape]) -> Shape:
        """Return the shape after the junction, or ShapeError."""
        return self.passed(shape, kept, _same)

    def passed_array(self, x: Array, kept: list[Array], ops: Backend) -> Array:
        """Return the numbers after the junction."""
        return self.passed(x, kept, lambda a, b: ops.binary("add", a, b))

    def passed_name(self, x: str, kept: list[str], graph: Graph) -> str:
        """Return the name in an ONNX graph of the numbers after the junction."""
        return self.passed(x, kept, lambda a, b: graph.add("Add", a, b))


class Junction(Layer):
    """A junction among a network's layers; `Residual` computes what several of them say."""

    spec_type = JunctionSpec


def _same(a: Shape, b: Shape) -> Shape:
    if a != b:
        raise ShapeError(f"Residual: expected layers and shortcut to give one shape, got {b}, {a}")
    return a
