"""Embedding: y = weight[x], a row of the weights for each index."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, ClassVar

import numpy as np
import numpy.typing as npt

from warpfit.backends import Array, Backend
from warpfit.errors import ConfigError, DataError, DTypeError
from warpfit.nn.layer import Layer
from warpfit.nn.onnx_graph import Graph, HostArrays
from warpfit.nn.sizes import as_size
from warpfit.nn.spec import Arrays, Call, LayerSpec, ParameterSpec, Pullback, Shape

# Engines hand x over as float32, which holds all integers up to here.
MOST_INDICES = 1 << 24


def embedding(
    ops: Backend, x: Array, weight: Array, *, needs_dx: bool = True
) -> tuple[Array, Callable[[Array], tuple[Array | None, Array]]]:
    """Return y = weight[x], and the function from dy to (dx, dweight).

    x (M, ...) holds integers from 0 to V - 1 in any dtype, and is read on the host; weight (V, D),
    y and dy (M, ..., D). dweight has the rows of dy added up by index, in their order; dx is 0.
    """
    indices = as_indices("the input of Embedding", ops.to_numpy(x), len(weight))

    def backward(dy: Array) -> tuple[Array | None, Array]:
        dweight = ops.add_at(weight.shape, weight.dtype, indices, dy)
        return ops.full(x.shape, 0.0, weight.dtype) if needs_dx else None, dweight

    return ops.take(weight, indices), backward


def as_indices(name: str, values: npt.NDArray[Any], count: int) -> npt.NDArray[np.int64]:
    """Return values as int64, or raise, by `name`, unless they are integers in [0, count)."""
    if values.dtype == np.uint8:
        raise DTypeError(
            f"expected {name} to hold indices in another dtype than uint8, which means x / 255; "
            "x.astype('int32') is one"
        )
    is_right = (values >= 0) & (values < count)
    if values.dtype.kind == "f":
        is_right &= np.floor(values) == values
    if not is_right.all():
        place = np.unravel_index(int(np.argmin(is_right)), values.shape)
        row = f" in row {place[0]}" if place else ""
        column = f", column {', '.join(map(str, place[1:]))}" if len(place) > 1 else ""
        raise DataError(
            f"expected {name} to hold indices from 0 to {count - 1}, got {values[place]:g}"
            f"{row}{column}"
        )
    return values.astype(np.int64)


@dataclass(frozen=True)
class EmbeddingSpec(LayerSpec):
    """y = weight[x], weight (num_embeddings, embedding_dim)."""

    kind: ClassVar[str] = "embedding"
    num_embeddings: int
    embedding_dim: int

    def __post_init__(self) -> None:
        for name in ("num_embeddings", "embedding_dim"):
            object.__setattr__(self, name, as_size("Embedding", name, getattr(self, name)))
        if self.num_embeddings > MOST_INDICES:
            raise ConfigError(
                f"Embedding: expected num_embeddings of at most {MOST_INDICES:,}, got "
                f"{self.num_embeddings:,}"
            )
        super().__post_init__()

    @property
    def num_indices(self) -> int | None:
        return self.num_embeddings

    def parameters(self) -> dict[str, ParameterSpec]:
        shape = (self.num_embeddings, self.embedding_dim)
        return {"weight": ParameterSpec(shape, "normal")}

    def output_shape(self, input_shape: Shape) -> Shape:
        return (*input_shape, self.embedding_dim)

    def vjp(
        self, ops: Backend, arrays: Arrays, x: Array, call: Call, *, needs_dx: bool = True
    ) -> tuple[Array, Pullback]:
        y, backward = embedding(ops, x, arrays["weight"], needs_dx=needs_dx)

        def pullback(dy: Array) -> tuple[Array | None, dict[str, Array]]:
            dx, dweight = backward(dy)
            return dx, {"weight": dweight}

        return y, pullback

    def onnx(self, graph: Graph, x: str, arrays: HostArrays, input_shape: Shape) -> str:
        indices = graph.add("Cast", x, to=graph.onnx.TensorProto.INT64)
        return graph.add("Gather", graph.floats(arrays["weight"]), indices)


class Embedding(Layer):
    """y = weight[x]: for each index its row of the weights, which training changes.

    It takes integers of any dtype but uint8, (M, ...), and gives (M, ..., embedding_dim). In
    `Sequential` it comes first, mostly before `Flatten`; in a module of one's own it takes columns,
    ``self.colour(x[:, 3])``. It runs on the engine ``'layerwise'``, in float32, tf32 or float64; on
    a GPU each step waits until the host has its indices.

    Parameters
    ----------
    num_embeddings : int
        How many indices there are, from 0; at most 2²⁴.
    embedding_dim : int
        Numbers of each.
    device : str
        Where the parameters live.
    seed, dtype
        See `Layer`. The start is normal, of deviation 1, as PyTorch's.

    Attributes
    ----------
    weight : Parameter, (num_embeddings, embedding_dim)

    Raises
    ------
    ConfigError, DTypeError, DeviceError
        If an argument is not what is described here.
    DataError
        When it is called, or before training starts, if x holds something else than such indices.

    Examples
    --------
    >>> layers = [nn.Embedding(10, 4, seed=0), nn.Flatten(), nn.Linear(3 * 4, 2, seed=1)]
    >>> model = nn.Sequential(layers)
    >>> x = np.random.default_rng(0).integers(0, 10, (200, 3))
    >>> opt = optim.Adam(model.parameters(), lr=0.01)
    >>> asked = {"optimizer": opt, "epochs": 30, "device": "cpu", "verbose": False}
    >>> history = wf.fit(model, x, x[:, 0] > 4, **asked)
    >>> model[0](x).shape, history["accuracy"][-1] > 0.9
    ((200, 3, 4), True)
    """

    spec_type = EmbeddingSpec

    def __init__(
        self,
        num_embeddings: int,
        embedding_dim: int,
        device: str = "cpu",
        *,
        seed: int | None = None,
        dtype: str = "float32",
    ) -> None:
        super().__init__(
            EmbeddingSpec(num_embeddings, embedding_dim), device, dtype=dtype, seed=seed
        )

    def extra_repr(self) -> str:
        return f"{self.spec.num_embeddings}, {self.spec.embedding_dim}"
