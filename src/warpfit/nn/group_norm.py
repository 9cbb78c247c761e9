"""GroupNorm: y = (x - mean) / √(variance + eps) · weight + bias, over groups of channels."""

from __future__ import annotations

from dataclasses import dataclass
from math import prod
from typing import ClassVar

import numpy as np

from warpfit.backends import Array, Backend
from warpfit.errors import ConfigError, ShapeError
from warpfit.nn.layer import Layer
from warpfit.nn.norm import Normalised, check_eps, layer_norm, weight_and_bias
from warpfit.nn.onnx_graph import Graph, HostArrays
from warpfit.nn.sizes import as_size
from warpfit.nn.spec import Arrays, Call, LayerSpec, ParameterSpec, Pullback, Shape, named


def group_norm(
    ops: Backend,
    x: Array,
    weight: Array | None,
    bias: Array | None,
    *,
    num_groups: int,
    eps: float = 1e-5,
) -> Normalised:
    """Return y, normalised over each sample's groups, and the function from dy to gradients.

    x, y and dy (M, ..., C), weight and bias (C,). It is a layer norm of each group's entries.
    """
    channels = x.shape[-1]
    split = (x.shape[0], prod(x.shape[1:-1]), num_groups, channels // num_groups)

    def by_group(array: Array) -> Array:
        return ops.transpose(ops.reshape(array, split), (0, 2, 1, 3))

    def by_channel(array: Array) -> Array:
        return ops.reshape(ops.transpose(array, (0, 2, 1, 3)), x.shape)

    groups, of_groups = layer_norm(ops, by_group(x), None, None, num_axes=2, eps=eps)
    normal = by_channel(groups)
    y = normal if weight is None else ops.binary("mul", normal, weight)
    y = y if bias is None else ops.binary("add", y, bias)

    def backward(dy: Array) -> tuple[Array, Array, Array]:
        dweight = ops.unbroadcast(ops.binary("mul", dy, normal), (channels,))
        dbias = ops.unbroadcast(dy, (channels,))
        dnormal = dy if weight is None else ops.binary("mul", dy, weight)
        return by_channel(of_groups(by_group(dnormal))[0]), dweight, dbias

    return y, backward


@dataclass(frozen=True)
class GroupNormSpec(LayerSpec):
    """y = (x - mean) / √(variance + eps) · weight + bias over each sample's groups of channels."""

    kind: ClassVar[str] = "group_norm"
    full_precision: ClassVar[bool] = True
    num_groups: int
    num_channels: int
    eps: float = 1e-5
    affine: bool = True

    def __post_init__(self) -> None:
        super().__post_init__()
        for name in ("num_groups", "num_channels"):
            object.__setattr__(self, name, as_size("GroupNorm", name, getattr(self, name)))
        if self.num_channels % self.num_groups:
            raise ConfigError(
                f"GroupNorm: expected num_channels as a multiple of num_groups {self.num_groups}, "
                f"got {self.num_channels}"
            )
        check_eps("GroupNorm", self.eps)

    def parameters(self) -> dict[str, ParameterSpec]:
        return weight_and_bias((self.num_channels,)) if self.affine else {}

    def output_shape(self, input_shape: Shape) -> Shape:
        if input_shape[-1:] != (self.num_channels,):
            raise ShapeError(
                f"GroupNorm: expected samples of shape (..., {self.num_channels}), got "
                f"{input_shape}"
            )
        return input_shape

    def vjp(
        self, ops: Backend, arrays: Arrays, x: Array, call: Call, *, needs_dx: bool = True
    ) -> tuple[Array, Pullback]:
        self.output_shape(x.shape[1:])  # for its error, which names the layer
        weight, bias = arrays.get("weight"), arrays.get("bias")
        y, backward = group_norm(ops, x, weight, bias, num_groups=self.num_groups, eps=self.eps)
        return y, named(backward, self.parameters(), needs_dx)

    def onnx(self, graph: Graph, x: str, arrays: HostArrays, input_shape: Shape) -> str:
        # Each group as a channel of its own: its mean and variance are those of an instance.
        num_axes = len(input_shape) - 1
        first = graph.channels_first(x, num_axes)
        groups = graph.add(
            "InstanceNormalization",
            graph.reshaped(first, (self.num_groups, -1)),
            graph.floats(np.ones(self.num_groups)),
            graph.floats(np.zeros(self.num_groups)),
            epsilon=self.eps,
        )
        again = graph.reshaped(groups, (self.num_channels, *input_shape[:-1]))
        y = graph.channels_last(again, num_axes)
        if not self.affine:
            return y
        y = graph.add("Mul", y, graph.floats(arrays["weight"]))
        return graph.add("Add", y, graph.floats(arrays["bias"]))


class GroupNorm(Layer):
    """y = (x - mean) / √(variance + eps) · weight + bias, over groups of channels of each sample.

    Samples are of any shape (..., C), channels last. With one group it is a layer norm over all of
    a sample, with as many as channels an instance norm.

    Parameters
    ----------
    num_groups : int
        Into how many groups of neighbours the channels are split.
    num_channels : int
        A multiple of `num_groups`.
    eps : float
        Added to the variance.
    affine : bool
        Whether there are a weight and a bias.
    device, dtype
        See `Layer`.

    Attributes
    ----------
    weight, bias : Parameter, (num_channels,), only if `affine`

    Raises
    ------
    ConfigError, DTypeError, DeviceError
        If an argument is not what is described here.

    References
    ----------
    Wu, He: Group Normalization (2018).

    Examples
    --------
    >>> nn.GroupNorm(4, 16)(np.ones((2, 7, 7, 16))).shape
    (2, 7, 7, 16)
    """

    spec_type = GroupNormSpec

    def __init__(
        self,
        num_groups: int,
        num_channels: int,
        eps: float = 1e-5,
        affine: bool = True,
        *,
        device: str = "cpu",
        dtype: str = "float32",
    ) -> None:
        spec = GroupNormSpec(num_groups, num_channels, eps, affine)
        super().__init__(spec, device, dtype=dtype, seed=0)

    def extra_repr(self) -> str:
        spec = self.spec
        settings = f"{spec.num_groups}, {spec.num_channels}, eps={spec.eps}"
        return settings if spec.affine else f"{settings}, affine=False"
