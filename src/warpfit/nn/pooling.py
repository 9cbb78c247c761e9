"""The largest entry, or the mean, of every window of an image, or of all of it."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, ClassVar

from warpfit.backends import Activation, Array, Backend
from warpfit.backends.base import Pair
from warpfit.backends.checks import window_counts
from warpfit.errors import ConfigError, ShapeError
from warpfit.nn.layer import Layer
from warpfit.nn.onnx_graph import Graph, HostArrays
from warpfit.nn.sizes import as_pair
from warpfit.nn.spec import Arrays, Call, LayerSpec, Pullback, Shape

Pooled = tuple[Array, Callable[[Array], Array]]


def max_pool2d(
    ops: Backend, x: Array, kernel: Pair, stride: Pair, padding: Pair = (0, 0)
) -> Pooled:
    """Return the largest entry of every window and the function from dy to dx."""
    windows: dict[str, Any] = {"kernel": kernel, "stride": stride, "padding": padding}
    y, indices = ops.max_pool2d_forward(x, **windows)
    return y, lambda dy: ops.max_pool2d_backward(dy, indices, x.shape, **windows)


def avg_pool2d(
    ops: Backend, x: Array, kernel: Pair, stride: Pair, padding: Pair = (0, 0)
) -> Pooled:
    """Return the mean of every window, padding counted as 0, and the function from dy to dx."""
    windows = {"kernel": kernel, "stride": stride, "padding": padding}
    y = ops.avg_pool2d_forward(x, **windows)
    return y, lambda dy: ops.avg_pool2d_backward(dy, x.shape, **windows)


@dataclass(frozen=True)
class PoolSpec(LayerSpec):
    """What the windows are. Subclasses say what becomes of them."""

    layer: ClassVar[str]
    pool: ClassVar[Callable[..., Pooled]]
    kernel_size: Pair
    stride: Pair
    padding: Pair = (0, 0)

    def __post_init__(self) -> None:
        for name, least in (("kernel_size", 1), ("stride", 1), ("padding", 0)):
            object.__setattr__(self, name, as_pair(self.layer, name, getattr(self, name), least))
        if any(2 * pad > size for pad, size in zip(self.padding, self.kernel_size, strict=True)):
            raise ConfigError(
                f"{self.layer}: expected padding of at most half the kernel {self.kernel_size}, "
                f"got {self.padding}"
            )

    def output_shape(self, input_shape: Shape) -> Shape:
        if len(input_shape) != 3:
            raise ShapeError(
                f"{self.layer}: expected samples of shape (H, W, C), got {input_shape}"
            )
        image = (input_shape[0], input_shape[1])
        counts = window_counts(self.layer, image, self.kernel_size, self.stride, self.padding)
        return (*counts, input_shape[2])

    def vjp(
        self, ops: Backend, arrays: Arrays, x: Array, call: Call, *, needs_dx: bool = True
    ) -> tuple[Array, Pullback]:
        self.output_shape(x.shape[1:])  # for its error, which names the layer
        y, backward = self.pool(ops, x, self.kernel_size, self.stride, self.padding)
        return y, lambda dy: (backward(dy) if needs_dx else None, {})

    def onnx_pool(self, operator: str, graph: Graph, x: str, **settings: Any) -> str:
        """Add an operator with these windows, and return the name of y."""
        y = graph.add(
            operator,
            graph.channels_first(x, 2),
            kernel_shape=self.kernel_size,
            strides=self.stride,
            pads=[*self.padding, *self.padding],
            **settings,
        )
        return graph.channels_last(y, 2)


@dataclass(frozen=True)
class MaxPool2dSpec(PoolSpec):
    """y = the largest entry of every window."""

    kind: ClassVar[str] = "max_pool2d"
    layer: ClassVar[str] = "MaxPool2d"
    pool = staticmethod(max_pool2d)

    def vjp(
        self,
        ops: Backend,
        arrays: Mapping[str, Array],
        x: Array,
        call: Call,
        *,
        needs_dx: bool = True,
        is_done: bool = False,
    ) -> tuple[Array, Pullback]:
        """Return y and the pullback; `is_done` says that the convolution before has pooled."""
        if is_done:
            return x, lambda dy: (dy, {})
        return super().vjp(ops, arrays, x, call, needs_dx=needs_dx)

    @property
    def pool_settings(self) -> dict[str, Pair]:
        """The windows as `max_pool2d_forward` takes them."""
        return {"kernel": self.kernel_size, "stride": self.stride, "padding": self.padding}

    def passes(self, activation: Activation) -> bool:
        # A window's y is the x that its gradient goes to.
        return True

    def onnx(self, graph: Graph, x: str, arrays: HostArrays, input_shape: Shape) -> str:
        return self.onnx_pool("MaxPool", graph, x)


@dataclass(frozen=True)
class AvgPool2dSpec(PoolSpec):
    """y = the mean of every window."""

    kind: ClassVar[str] = "avg_pool2d"
    layer: ClassVar[str] = "AvgPool2d"
    pool = staticmethod(avg_pool2d)

    def onnx(self, graph: Graph, x: str, arrays: HostArrays, input_shape: Shape) -> str:
        return self.onnx_pool("AveragePool", graph, x, count_include_pad=1)


class PoolingLayer(Layer):
    """Base of the pooling layers."""

    spec_type: ClassVar[type[PoolSpec]]

    def __init__(
        self, kernel_size: int | Pair, stride: int | Pair | None = None, padding: int | Pair = 0
    ) -> None:
        name = self.spec_type.layer
        kernel = as_pair(name, "kernel_size", kernel_size, 1)
        steps = kernel if stride is None else as_pair(name, "stride", stride, 1)
        super().__init__(self.spec_type(kernel, steps, as_pair(name, "padding", padding, 0)))

    def extra_repr(self) -> str:
        spec = self.spec
        padding = f", padding={spec.padding}" if spec.padding != (0, 0) else ""
        return f"kernel_size={spec.kernel_size}, stride={spec.stride}{padding}"


class MaxPool2d(PoolingLayer):
    """y = the largest entry of every window of images (M, H, W, C).

    Parameters
    ----------
    kernel_size : int or (int, int)
        Height and width of a window, in pixels; one number stands for both, here and below.
    stride : int or (int, int), optional
        Pixels from one window to the next; the kernel's size if None.
    padding : int or (int, int)
        Pixels of -inf added on either side, at most half the kernel.

    Raises
    ------
    ConfigError
        If an argument is not what is described here.

    Examples
    --------
    >>> nn.MaxPool2d(2)(np.ones((1, 8, 8, 3))).shape
    (1, 4, 4, 3)
    """

    spec_type = MaxPool2dSpec


class AvgPool2d(PoolingLayer):
    """y = the mean of every window of images (M, H, W, C).

    Parameters
    ----------
    kernel_size, stride
        As `MaxPool2d`'s.
    padding : int or (int, int)
        Zeros added on either side, at most half the kernel; they count in the mean.

    Raises
    ------
    ConfigError
        If an argument is not what is described here.

    Examples
    --------
    >>> nn.AvgPool2d(2)(np.ones((1, 8, 8, 3))).shape
    (1, 4, 4, 3)
    """

    spec_type = AvgPool2dSpec


@dataclass(frozen=True)
class GlobalPool2dSpec(LayerSpec):
    """y = the mean of each channel of an image, or its largest entry."""

    kind: ClassVar[str] = "global_pool2d"
    largest: bool = False

    def output_shape(self, input_shape: Shape) -> Shape:
        if len(input_shape) != 3 or 0 in input_shape[:2]:
            name = "GlobalMaxPool2d" if self.largest else "GlobalAvgPool2d"
            raise ShapeError(
                f"{name}: expected samples of shape (H, W, C) with pixels, got {input_shape}"
            )
        return input_shape[2:]

    def vjp(
        self, ops: Backend, arrays: Arrays, x: Array, call: Call, *, needs_dx: bool = True
    ) -> tuple[Array, Pullback]:
        shape = (x.shape[0], *self.output_shape(x.shape[1:]))
        window = x.shape[1], x.shape[2]
        y, backward = (max_pool2d if self.largest else avg_pool2d)(ops, x, window, window)

        def pullback(dy: Array) -> tuple[Array | None, dict[str, Array]]:
            return (backward(ops.reshape(dy, y.shape)) if needs_dx else None), {}

        return ops.reshape(y, shape), pullback

    def onnx(self, graph: Graph, x: str, arrays: HostArrays, input_shape: Shape) -> str:
        operator = "GlobalMaxPool" if self.largest else "GlobalAveragePool"
        y = graph.add(operator, graph.channels_first(x, 2))
        return graph.reshaped(y, self.output_shape(input_shape))


class GlobalAvgPool2d(Layer):
    """y (M, C) = the mean of each channel of images (M, H, W, C), of any size.

    PyTorch's ``AdaptiveAvgPool2d(1)`` and ``Flatten``, Keras's ``GlobalAveragePooling2D``.

    Examples
    --------
    >>> nn.GlobalAvgPool2d()(np.ones((2, 7, 7, 16))).shape
    (2, 16)
    """

    spec_type = GlobalPool2dSpec

    def __init__(self) -> None:
        super().__init__(GlobalPool2dSpec())

    @classmethod
    def class_for(cls, spec: LayerSpec) -> type[Layer]:
        return GlobalMaxPool2d if isinstance(spec, GlobalPool2dSpec) and spec.largest else cls

    def extra_repr(self) -> str:
        return ""


class GlobalMaxPool2d(Layer):
    """y (M, C) = the largest entry of each channel of images (M, H, W, C), of any size.

    PyTorch's ``AdaptiveMaxPool2d(1)`` and ``Flatten``, Keras's ``GlobalMaxPooling2D``.

    Examples
    --------
    >>> nn.GlobalMaxPool2d()(np.ones((2, 7, 7, 16))).shape
    (2, 16)
    """

    def __init__(self) -> None:
        super().__init__(GlobalPool2dSpec(largest=True))

    def extra_repr(self) -> str:
        return ""
