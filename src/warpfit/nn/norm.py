"""BatchNorm1d, BatchNorm2d and LayerNorm: y = (x - mean) / √(variance + eps) · weight + bias."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import Any, ClassVar

import numpy as np

from warpfit.backends import Activation, Array, Backend
from warpfit.backends.base import IDENTITY
from warpfit.errors import ConfigError, ShapeError
from warpfit.nn.batch_norm import Normalised, batch_norm, batch_norm_over_ranks
from warpfit.nn.layer import Layer
from warpfit.nn.module import Buffer, Parameter
from warpfit.nn.onnx_graph import Graph, HostArrays
from warpfit.nn.sizes import as_size
from warpfit.nn.spec import Arrays, Call, LayerSpec, ParameterSpec, Pullback, Shape, named


def layer_norm(
    ops: Backend,
    x: Array,
    weight: Array | None,
    bias: Array | None,
    *,
    num_axes: int = 1,
    eps: float = 1e-5,
) -> Normalised:
    """Return y, normalised over the last axes, and the function from dy to (dx, dweight, dbias)."""
    y, saved = ops.layer_norm_forward(x, weight, bias, num_axes=num_axes, eps=eps)
    return y, lambda dy: ops.layer_norm_backward(dy, x, weight, saved, num_axes=num_axes)


def weight_and_bias(shape: Shape) -> dict[str, ParameterSpec]:
    """Return what a norm multiplies by and adds."""
    return {"weight": ParameterSpec(shape, "ones"), "bias": ParameterSpec(shape, "zeros")}


def check_eps(layer: str, eps: float) -> None:
    """Raise ConfigError unless what joins a variance is at least 0."""
    if not eps >= 0:
        raise ConfigError(f"{layer}: expected eps of at least 0, got {eps!r}")


@dataclass(frozen=True)
class BatchNormSpec(LayerSpec):
    """y = f((x - mean) / √(variance + eps) · weight + bias) per channel, of images or rows."""

    kind: ClassVar[str] = "batch_norm"
    full_precision: ClassVar[bool] = True
    mixes_precisions: ClassVar[bool] = True
    num_features: int
    num_dims: int
    eps: float = 1e-5
    momentum: float = 0.1
    affine: bool = True
    activation: Activation = IDENTITY
    synchronized: bool = False

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.num_dims not in (1, 2):
            raise ConfigError(f"BatchNorm: expected num_dims 1 or 2, got {self.num_dims!r}")
        object.__setattr__(
            self, "num_features", as_size(self.layer, "num_features", self.num_features)
        )
        check_eps(self.layer, self.eps)
        if not 0 <= self.momentum <= 1:
            raise ConfigError(f"{self.layer}: expected momentum in [0, 1], got {self.momentum!r}")

    @classmethod
    def parse(cls, fields: dict[str, Any]) -> LayerSpec:
        # Files written before batch norms had an activation name none.
        return super().parse({"activation": asdict(IDENTITY), **fields})

    @property
    def layer(self) -> str:
        """Name of the layer's class."""
        return f"BatchNorm{self.num_dims}d"

    @property
    def least_rows(self) -> int:
        return 2 if self.num_dims == 1 else 1

    def parameters(self) -> dict[str, ParameterSpec]:
        return weight_and_bias((self.num_features,)) if self.affine else {}

    def buffers(self) -> dict[str, ParameterSpec]:
        shape = (self.num_features,)
        return {
            "running_mean": ParameterSpec(shape, "zeros"),
            "running_var": ParameterSpec(shape, "ones"),
        }

    def output_shape(self, input_shape: Shape) -> Shape:
        num_axes = (3,) if self.num_dims == 2 else (1, 2)
        if len(input_shape) not in num_axes or input_shape[-1] != self.num_features:
            channels = self.num_features
            expected = (
                f"(H, W, {channels})" if self.num_dims == 2 else f"({channels},) or (L, {channels})"
            )
            raise ShapeError(
                f"{self.layer}: expected samples of shape {expected}, got {input_shape}"
            )
        return input_shape

    def vjp(
        self,
        ops: Backend,
        arrays: Mapping[str, Array],
        x: Array,
        call: Call,
        *,
        needs_dx: bool = True,
        added: Array | None = None,
        activation: Activation | None = None,
    ) -> tuple[Array, Pullback]:
        """Return y and the pullback; the last two settings are those of a junction joined to it."""
        self.output_shape(x.shape[1:])  # for its error, which names the layer
        running = arrays["running_mean"], arrays["running_var"]
        own = (x, arrays.get("weight"), arrays.get("bias"), *running)
        settings: dict[str, Any] = {"momentum": self.momentum, "eps": self.eps, "added": added}
        settings["activation"] = self.activation if activation is None else activation
        if self.synchronized and call.training and call.ranks.size > 1:
            y, backward = batch_norm_over_ranks(ops, *own, call=call, **settings)
        else:
            y, backward = batch_norm(ops, *own, training=call.training, **settings)
        return y, named(backward, self.parameters(), needs_dx)

    def onnx(self, graph: Graph, x: str, arrays: HostArrays, input_shape: Shape) -> str:
        # By channels-last products: ONNX's own operator has channels first.
        scale = arrays.get("weight", 1) / np.sqrt(arrays["running_var"].astype("f8") + self.eps)
        centred = graph.add("Sub", x, graph.floats(arrays["running_mean"]))
        y = graph.add("Mul", centred, graph.floats(scale))
        y = graph.add("Add", y, graph.floats(arrays["bias"])) if self.affine else y
        return self.activation.formula.onnx(graph, y, self.activation.slope)


@dataclass(frozen=True)
class LayerNormSpec(LayerSpec):
    """y = (x - mean) / √(variance + eps) · weight + bias over each sample's last axes."""

    kind: ClassVar[str] = "layer_norm"
    full_precision: ClassVar[bool] = True
    normalized_shape: Shape
    eps: float = 1e-5
    elementwise_affine: bool = True
    bias: bool = True

    def __post_init__(self) -> None:
        super().__post_init__()
        sizes = tuple(
            as_size("LayerNorm", "normalized_shape", size) for size in self.normalized_shape
        )
        if not sizes:
            raise ConfigError("LayerNorm: expected normalized_shape of at least one axis, got ()")
        object.__setattr__(self, "normalized_shape", sizes)
        check_eps("LayerNorm", self.eps)

    def parameters(self) -> dict[str, ParameterSpec]:
        own = weight_and_bias(self.normalized_shape) if self.elementwise_affine else {}
        return {name: part for name, part in own.items() if self.bias or name == "weight"}

    def output_shape(self, input_shape: Shape) -> Shape:
        num_axes = len(self.normalized_shape)
        if input_shape[-num_axes:] != self.normalized_shape:
            raise ShapeError(
                f"LayerNorm: expected samples whose shape ends in {self.normalized_shape}, got "
                f"{input_shape}"
            )
        return input_shape

    def vjp(
        self, ops: Backend, arrays: Arrays, x: Array, call: Call, *, needs_dx: bool = True
    ) -> tuple[Array, Pullback]:
        self.output_shape(x.shape[1:])  # for its error, which names the layer
        num_axes = len(self.normalized_shape)
        y, backward = layer_norm(
            ops, x, arrays.get("weight"), arrays.get("bias"), num_axes=num_axes, eps=self.eps
        )
        return y, named(backward, self.parameters(), needs_dx)

    def onnx(self, graph: Graph, x: str, arrays: HostArrays, input_shape: Shape) -> str:
        weight = arrays.get("weight", np.ones(self.normalized_shape))
        return graph.add(
            "LayerNormalization",
            x,
            graph.floats(weight),
            *([graph.floats(arrays["bias"])] if "bias" in arrays else []),
            axis=-len(self.normalized_shape),
            epsilon=self.eps,
        )


class BatchNormLayer(Layer):
    """Base of the batch norms."""

    weight: Parameter
    bias: Parameter
    running_mean: Buffer
    running_var: Buffer
    spec_type = BatchNormSpec
    num_dims: ClassVar[int]

    def __init__(
        self,
        num_features: int,
        eps: float = 1e-5,
        momentum: float = 0.1,
        affine: bool = True,
        *,
        synchronized: bool = False,
        device: str = "cpu",
        dtype: str = "float32",
    ) -> None:
        spec = BatchNormSpec(
            num_features, self.num_dims, eps, momentum, affine, synchronized=synchronized
        )
        super().__init__(spec, device, dtype=dtype, seed=0)

    @classmethod
    def class_for(cls, spec: LayerSpec) -> type[Layer]:
        return (
            BatchNorm2d if isinstance(spec, BatchNormSpec) and spec.num_dims == 2 else BatchNorm1d
        )

    def extra_repr(self) -> str:
        spec = self.spec
        settings = f"{spec.num_features}, eps={spec.eps}, momentum={spec.momentum}"
        settings += "" if spec.affine else ", affine=False"
        return f"{settings}, synchronized=True" if spec.synchronized else settings


class BatchNorm1d(BatchNormLayer):
    """y = (x - mean) / √(variance + eps) · weight + bias, per channel of rows (M, C) or (M, L, C).

    Training takes mean and variance from the batch, which must hold at least two values a channel,
    and moves the running statistics towards them; evaluation takes the running statistics.

    Parameters
    ----------
    num_features : int
        Number of channels C.
    eps : float
        Added to the variance.
    momentum : float
        Share of the batch's statistics in the running ones.
    affine : bool
        Whether there are a weight and a bias.
    synchronized : bool
        Whether mean and variance are of the whole batch where several devices share it, and not of
        each device's rows.
    device, dtype
        See `Layer`.

    Attributes
    ----------
    weight, bias : Parameter, (num_features,), only if `affine`
    running_mean, running_var : Buffer, (num_features,)

    Raises
    ------
    ConfigError, DTypeError, DeviceError
        If an argument is not what is described here.

    References
    ----------
    Ioffe, Szegedy: Batch Normalization (2015).

    Examples
    --------
    >>> nn.Sequential(nn.Linear(64, 32), nn.BatchNorm1d(32), nn.ReLU())(x).shape
    (200, 32)
    """

    num_dims = 1


class BatchNorm2d(BatchNormLayer):
    """y = (x - mean) / √(variance + eps) · weight + bias, per channel of images (M, H, W, C).

    Parameters
    ----------
    num_features, eps, momentum, affine, synchronized, device, dtype
        As `BatchNorm1d`'s, and so are the attributes.

    Raises
    ------
    ConfigError, DTypeError, DeviceError
        If an argument is not what is described here.

    References
    ----------
    Ioffe, Szegedy: Batch Normalization (2015).

    Examples
    --------
    >>> nn.Sequential(nn.Conv2d(1, 4, 3), nn.BatchNorm2d(4))(np.ones((1, 8, 8, 1))).shape
    (1, 6, 6, 4)
    """

    num_dims = 2


class LayerNorm(Layer):
    """y = (x - mean) / √(variance + eps) · weight + bias, over the last axes of each sample.

    Parameters
    ----------
    normalized_shape : int or sequence of int
        Sizes of the axes that are normalised together.
    eps : float
        Added to the variance.
    elementwise_affine : bool
        Whether there is a weight.
    bias : bool
        Whether there is a bias too.
    device, dtype
        See `Layer`.

    Attributes
    ----------
    weight, bias : Parameter, of `normalized_shape`

    Raises
    ------
    ConfigError, DTypeError, DeviceError
        If an argument is not what is described here.

    References
    ----------
    Ba, Kiros, Hinton: Layer Normalization (2016).

    Examples
    --------
    >>> nn.LayerNorm(2)(np.array([[1.0, 3.0]])).round(2)
    array([[-1.,  1.]], dtype=float32)
    """

    weight: Parameter
    bias: Parameter
    spec_type = LayerNormSpec

    def __init__(
        self,
        normalized_shape: int | Sequence[int],
        eps: float = 1e-5,
        elementwise_affine: bool = True,
        bias: bool = True,
        *,
        device: str = "cpu",
        dtype: str = "float32",
    ) -> None:
        shape = (
            tuple(normalized_shape)
            if isinstance(normalized_shape, Sequence)
            else (normalized_shape,)
        )
        spec = LayerNormSpec(shape, eps, elementwise_affine, bias)
        super().__init__(spec, device, dtype=dtype, seed=0)

    def extra_repr(self) -> str:
        spec = self.spec
        settings = f"{spec.normalized_shape}, eps={spec.eps}"
        if not spec.elementwise_affine:
            return f"{settings}, elementwise_affine=False"
        return settings if spec.bias else f"{settings}, bias=False"
