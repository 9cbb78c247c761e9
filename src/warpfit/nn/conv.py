"""Conv2d: y = f(x * w + b) over images, channels last."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, ClassVar

import numpy as np

from warpfit.backends import Activation, Array, Backend
from warpfit.backends.base import IDENTITY, Pair
from warpfit.backends.checks import window_counts
from warpfit.errors import ConfigError, ShapeError
from warpfit.nn.layer import Layer
from warpfit.nn.module import Parameter
from warpfit.nn.onnx_graph import Graph, HostArrays
from warpfit.nn.sizes import as_padding, as_pair, as_size
from warpfit.nn.spec import Call, LayerSpec, ParameterSpec, Pullback, Shape, named

Gradients = tuple[Any, Array | None, Array | None]


def conv2d(
    ops: Backend,
    x: Array,
    w: Array,
    b: Array | None = None,
    activation: Activation = IDENTITY,
    *,
    stride: Pair = (1, 1),
    padding: Pair = (0, 0),
    dilation: Pair = (1, 1),
    groups: int = 1,
    needs_dx: bool = True,
    needs_dw: bool = True,
    x_activation: Activation = IDENTITY,
    takes_dz: bool = False,
    pool: Mapping[str, Pair] | None = None,
    plus: Callable[[], Array] | None = None,
    dx_later: bool = False,
) -> tuple[Array, Callable[[Array], Gradients]]:
    """Return y = f(x * w + b) and the function from dy to (dx, dw, db).

    x (M, H, W, groups C), w (KH, KW, C, O), b (O,) or None, y and dy (M, OH, OW, O). Layers can be
    joined as linear ones are; see `linear`. Max pooling with settings `pool` may be joined, if f'
    is known from f's result: y and dy then are what the pooling gives and gets. `plus` gives
    another gradient of x, once dx is asked for. With `dx_later` dx is a function that computes it.
    """
    pairs = {"stride": stride, "padding": padding, "dilation": dilation}
    windows: dict[str, Any] = {**pairs, **({} if groups == 1 else {"groups": groups})}
    if pool is None:
        y, z = ops.conv2d_forward(x, w, b, **windows, activation=activation)
    else:
        y, places = ops.conv2d_pooled_forward(x, w, b, **windows, activation=activation, pool=pool)
        z = None

    def backward(dy: Array) -> Gradients:
        is_dz = takes_dz or activation.name == "identity"
        if not (needs_dx or needs_dw) and pool is None:
            return None, None, ops.bias_gradient(IDENTITY if is_dz else activation, dy, y, z)
        dz = dy if is_dz else ops.activation_backward(activation, dy, y, z)
        if pool is not None:
            shape = (len(x), *window_counts("conv2d", x.shape[1:3], w.shape[:2], *pairs.values()))
            dz = ops.max_pool2d_backward_joined(dz, places, (*shape, w.shape[3]), pool)
        dw, db = ops.conv2d_backward_weight(
            dz, x, w.shape[:2], **windows, needs_db=b is not None, w=w
        )
        if not needs_dx:
            return None, dw, db
        below: dict[str, Any] = (
            {} if x_activation == IDENTITY else {"x": x, "x_activation": x_activation}
        )

        def to_dx() -> Array:
            more = {} if plus is None else {"plus": plus()}
            return ops.conv2d_backward_input(dz, w, x.shape, **windows, **below, **more)

        return to_dx if dx_later else to_dx(), dw, db

    return y, backward


@dataclass(frozen=True)
class Conv2dSpec(LayerSpec):
    """y = f(x * weight + bias), weight (height, width, in_channels / groups, out_channels)."""

    kind: ClassVar[str] = "conv2d"
    joins: ClassVar[bool] = True
    layer: ClassVar[str] = "Conv2d"
    in_channels: int
    out_channels: int
    kernel_size: Pair
    stride: Pair = (1, 1)
    padding: Pair = (0, 0)
    dilation: Pair = (1, 1)
    bias: bool = True
    activation: Activation = IDENTITY
    groups: int = 1

    def __post_init__(self) -> None:
        for name in ("in_channels", "out_channels", "groups"):
            object.__setattr__(self, name, as_size(self.layer, name, getattr(self, name)))
        for name, least in (("kernel_size", 1), ("stride", 1), ("padding", 0), ("dilation", 1)):
            object.__setattr__(self, name, as_pair(self.layer, name, getattr(self, name), least))
        if self.in_channels % self.groups or self.out_channels % self.groups:
            raise ConfigError(
                f"{self.layer}: expected groups that divide in_channels {self.in_channels} and "
                f"out_channels {self.out_channels}, got {self.groups}"
            )
        super().__post_init__()

    def parameters(self) -> dict[str, ParameterSpec]:
        taps = self.kernel_size[0] * self.kernel_size[1]
        channels = self.in_channels // self.groups
        fans = (taps * channels, taps * self.out_channels)
        weight = ParameterSpec((*self.kernel_size, channels, self.out_channels), "weight", *fans)
        if not self.bias:
            return {"weight": weight}
        return {"weight": weight, "bias": ParameterSpec((self.out_channels,), "bias", *fans)}

    def output_shape(self, input_shape: Shape) -> Shape:
        if len(input_shape) != 3 or input_shape[2] != self.in_channels:
            raise ShapeError(
                f"Conv2d: expected samples of shape (H, W, {self.in_channels}), got {input_shape}"
            )
        image = (input_shape[0], input_shape[1])
        counts = window_counts(
            self.layer, image, self.kernel_size, self.stride, self.padding, self.dilation
        )
        return (*counts, self.out_channels)

    def vjp(
        self,
        ops: Backend,
        arrays: Mapping[str, Array],
        x: Array,
        call: Call,
        *,
        needs_dx: bool = True,
        **joints: Any,
    ) -> tuple[Array, Pullback]:
        """Return y and the pullback; `joints` are the settings that join layers, see `conv2d`."""
        self.output_shape(x.shape[1:])  # for its error, which names the layer
        return self.over_images(ops, arrays, x, needs_dx, **joints)

    def over_images(
        self, ops: Backend, arrays: Mapping[str, Array], x: Array, needs_dx: bool, **joints: Any
    ) -> tuple[Array, Pullback]:
        """Return what `vjp` does, of images that fit."""
        y, backward = conv2d(
            ops,
            x,
            arrays["weight"],
            arrays.get("bias"),
            self.activation,
            stride=self.stride,
            padding=self.padding,
            dilation=self.dilation,
            groups=self.groups,
            needs_dx=needs_dx,
            **joints,
        )
        return y, named(backward)

    def onnx(self, graph: Graph, x: str, arrays: HostArrays, input_shape: Shape) -> str:
        num_axes = len(input_shape) - 1  # of sequences one, the second that settings have
        kernel, stride, padding, dilation = (
            pair[-num_axes:]
            for pair in (self.kernel_size, self.stride, self.padding, self.dilation)
        )
        weight = arrays["weight"]
        y = graph.add(
            "Conv",
            graph.channels_first(x, num_axes),
            graph.floats(np.moveaxis(weight, (-1, -2), (0, 1))),
            *([graph.floats(arrays["bias"])] if self.bias else []),
            kernel_shape=kernel,
            strides=stride,
            pads=[*padding, *padding],
            dilations=dilation,
            group=self.groups,
        )
        y = self.activation.formula.onnx(graph, y, self.activation.slope)
        return graph.channels_last(y, num_axes)


class Conv2d(Layer):
    """y = x * weight + bias, the cross-correlation over images (M, H, W, C), channels last.

    Parameters
    ----------
    in_channels, out_channels : int
        Channels of the input and of the output.
    kernel_size : int or (int, int)
        Height and width of the kernel, in pixels; one number stands for both, here and below.
    stride : int or (int, int)
        Pixels from one window to the next.
    padding : int, (int, int) or str
        Zeros added on either side; ``'same'`` for those that keep the size of an image, with an odd
        kernel and stride 1; ``'valid'`` for none.
    dilation : int or (int, int)
        Pixels from one tap of the kernel to the next.
    groups : int
        Into how many groups channels and outputs fall, each of which sees its own channels only;
        ``in_channels`` for a depthwise convolution.
    bias : bool
        Whether a bias is added.
    device : str
        Where the parameters live.
    init, seed, dtype
        See `Layer`.

    Attributes
    ----------
    weight : Parameter, (kernel height, kernel width, in_channels / groups, out_channels)
    bias : Parameter, (out_channels,), only if `bias`

    Raises
    ------
    ConfigError, DTypeError, DeviceError
        If an argument is not what is described here.

    References
    ----------
    Dumoulin, Visin: A guide to convolution arithmetic for deep learning (2016).

    Examples
    --------
    >>> nn.Conv2d(3, 16, 3, padding="same")(np.ones((2, 8, 8, 3))).shape
    (2, 8, 8, 16)
    """

    weight: Parameter
    bias: Parameter
    spec_type = Conv2dSpec

    def __init__(
        self,
        in_channels: int,
        out_channels: int,
        kernel_size: int | Pair,
        stride: int | Pair = 1,
        padding: int | Pair | str = 0,
        dilation: int | Pair = 1,
        groups: int = 1,
        *,
        bias: bool = True,
        device: str = "cpu",
        init: str = "default",
        seed: int | None = None,
        dtype: str = "float32",
    ) -> None:
        kernel = as_pair("Conv2d", "kernel_size", kernel_size, 1)
        steps = as_pair("Conv2d", "stride", stride, 1)
        spread = as_pair("Conv2d", "dilation", dilation, 1)
        zeros = as_padding("Conv2d", padding, kernel, steps, spread)
        sizes = (in_channels, out_channels, kernel, steps, zeros, spread)
        spec = Conv2dSpec(*sizes, bias, groups=groups)
        super().__init__(spec, device, dtype=dtype, init=init, seed=seed)

    def extra_repr(self) -> str:
        spec = self.spec
        parts = [f"{spec.in_channels}, {spec.out_channels}, kernel_size={spec.kernel_size}"]
        parts += [f"stride={spec.stride}"] if spec.stride != (1, 1) else []
        parts += [f"padding={spec.padding}"] if spec.padding != (0, 0) else []
        parts += [f"dilation={spec.dilation}"] if spec.dilation != (1, 1) else []
        parts += [f"groups={spec.groups}"] if spec.groups != 1 else []
        parts += [] if spec.bias else ["bias=False"]
        return ", ".join(parts)
