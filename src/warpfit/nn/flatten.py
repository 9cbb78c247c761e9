"""Flatten: several axes of a sample become one."""

from __future__ import annotations

from dataclasses import dataclass
from math import prod
from typing import ClassVar

from warpfit.autograd import formulas
from warpfit.backends import Activation, Array, Backend
from warpfit.errors import ConfigError, ShapeError
from warpfit.nn.layer import Layer
from warpfit.nn.onnx_graph import Graph, HostArrays
from warpfit.nn.spec import Arrays, Call, LayerSpec, Pullback, Shape


@dataclass(frozen=True)
class FlattenSpec(LayerSpec):
    """Axes `start_dim` to `end_dim` of a batch become one; axis 0 is the batch."""

    kind: ClassVar[str] = "flatten"
    start_dim: int = 1
    end_dim: int = -1

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.start_dim == 0:
            raise ConfigError(
                "Flatten: expected start_dim of a sample's axis, got 0, which is the batch"
            )

    def passes(self, activation: Activation) -> bool:
        return True

    def output_shape(self, input_shape: Shape) -> Shape:
        num_axes = len(input_shape) + 1
        start, end = (dim + num_axes if dim < 0 else dim for dim in (self.start_dim, self.end_dim))
        if not 1 <= start <= end < num_axes:
            raise ShapeError(
                f"Flatten: expected samples with axes {self.start_dim} to {self.end_dim} of the "
                f"batch, got samples of shape {input_shape}"
            )
        return (*input_shape[: start - 1], prod(input_shape[start - 1 : end]), *input_shape[end:])

    def vjp(
        self, ops: Backend, arrays: Arrays, x: Array, call: Call, *, needs_dx: bool = True
    ) -> tuple[Array, Pullback]:
        y, backward = formulas.reshape(ops, x, shape=(x.shape[0], *self.output_shape(x.shape[1:])))
        return y, lambda dy: (backward(dy)[0] if needs_dx else None, {})

    def onnx(self, graph: Graph, x: str, arrays: HostArrays, input_shape: Shape) -> str:
        return graph.reshaped(x, self.output_shape(input_shape))


class Flatten(Layer):
    """Axes `start_dim` to `end_dim` become one: (M, H, W, C) → (M, H·W·C) by default.

    Parameters
    ----------
    start_dim, end_dim : int
        First and last axis, counted in the batch, from its end if negative; axis 0, the batch,
        stays.

    Examples
    --------
    >>> nn.Flatten()(np.ones((2, 4, 4, 3))).shape
    (2, 48)
    """

    spec_type = FlattenSpec

    def __init__(self, start_dim: int = 1, end_dim: int = -1) -> None:
        super().__init__(FlattenSpec(start_dim, end_dim))

    def extra_repr(self) -> str:
        spec = self.spec
        return (
            "" if spec == FlattenSpec() else f"start_dim={spec.start_dim}, end_dim={spec.end_dim}"
        )
