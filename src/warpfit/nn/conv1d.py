"""Conv1d: y = f(x * w + b) over sequences, channels last, as over images one pixel high."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, ClassVar

from warpfit.backends import Array, Backend
from warpfit.backends.base import Pair
from warpfit.errors import ConfigError, ShapeError
from warpfit.nn.conv import Conv2dSpec
from warpfit.nn.layer import Layer
from warpfit.nn.sizes import as_padding, as_size
from warpfit.nn.spec import Arrays, Call, ParameterSpec, Pullback, Shape


@dataclass(frozen=True)
class Conv1dSpec(Conv2dSpec):
    """y = f(x * weight + bias), weight (kernel size, in_channels / groups, out_channels).

    Settings are those of images one pixel high: a kernel of (1, size), and so on.
    """

    kind: ClassVar[str] = "conv1d"
    layer: ClassVar[str] = "Conv1d"

    def __post_init__(self) -> None:
        super().__post_init__()
        if (self.kernel_size[0], self.padding[0]) != (1, 0):
            raise ConfigError(
                "Conv1d: expected a kernel of height 1 without padding above, got "
                f"{self.kernel_size} and {self.padding}"
            )

    def parameters(self) -> dict[str, ParameterSpec]:
        found = super().parameters()
        _, *shape = found["weight"].shape
        fans = found["weight"].fan_in, found["weight"].fan_out
        return {**found, "weight": ParameterSpec(tuple(shape), "weight", *fans)}

    def output_shape(self, input_shape: Shape) -> Shape:
        if len(input_shape) != 2 or input_shape[1] != self.in_channels:
            raise ShapeError(
                f"Conv1d: expected samples of shape (L, {self.in_channels}), got {input_shape}"
            )
        return super().output_shape((1, *input_shape))[1:]

    def vjp(  # type: ignore[override]  # it joins no layers
        self, ops: Backend, arrays: Arrays, x: Array, call: Call, *, needs_dx: bool = True
    ) -> tuple[Array, Pullback]:
        self.output_shape(x.shape[1:])  # for its error, which names the layer
        weight = arrays["weight"]
        y, of_image = self.over_images(
            ops,
            {**arrays, "weight": ops.reshape(weight, (1, *weight.shape))},
            ops.reshape(x, (x.shape[0], 1, *x.shape[1:])),
            needs_dx,
        )

        def pullback(dy: Array) -> tuple[Array | None, dict[str, Array]]:
            dx, gradients = of_image(ops.reshape(dy, y.shape))
            dw = ops.reshape(gradients["weight"], weight.shape)
            return None if dx is None else ops.reshape(dx, x.shape), {**gradients, "weight": dw}

        return ops.reshape(y, (y.shape[0], *y.shape[2:])), pullback

    onnx = Conv2dSpec.onnx


class Conv1d(Layer):
    """y = x * weight + bias, the cross-correlation over sequences (M, L, C), channels last.

    Parameters
    ----------
    in_channels, out_channels : int
        Channels of the input and of the output.
    kernel_size : int
        Steps of a sequence that the kernel covers.
    stride : int
        Steps from one window to the next.
    padding : int or str
        Zeros added on either side; ``'same'`` for those that keep the length, with an odd kernel
        and stride 1; ``'valid'`` for none.
    dilation : int
        Steps from one tap of the kernel to the next.
    groups, bias, ...
        All others as `Conv2d`'s.

    Attributes
    ----------
    weight : Parameter, (kernel size, in_channels / groups, out_channels)
    bias : Parameter, (out_channels,), only if `bias`

    Raises
    ------
    ConfigError, DTypeError, DeviceError
        If an argument is not what is described here.

    Examples
    --------
    >>> nn.Conv1d(3, 8, kernel_size=5, padding="same")(np.zeros((2, 100, 3))).shape
    (2, 100, 8)
    """

    spec_type = Conv1dSpec

    def __init__(
        self,
        in_channels: int,
        out_channels: int,
        kernel_size: int,
        stride: int = 1,
        padding: int | str = 0,
        dilation: int = 1,
        groups: int = 1,
        *,
        bias: bool = True,
        device: str = "cpu",
        init: str = "default",
        seed: int | None = None,
        dtype: str = "float32",
    ) -> None:
        kernel = _along("kernel_size", kernel_size)
        steps, spread = _along("stride", stride), _along("dilation", dilation)
        flat: Any = padding if isinstance(padding, str) else (0, padding)
        zeros = as_padding("Conv1d", flat, kernel, steps, spread)
        sizes = (in_channels, out_channels, kernel, steps, zeros, spread)
        spec = Conv1dSpec(*sizes, bias, groups=groups)
        super().__init__(spec, device, dtype=dtype, init=init, seed=seed)

    def extra_repr(self) -> str:
        spec = self.spec
        parts = [f"{spec.in_channels}, {spec.out_channels}, kernel_size={spec.kernel_size[1]}"]
        parts += [f"stride={spec.stride[1]}"] if spec.stride[1] != 1 else []
        parts += [f"padding={spec.padding[1]}"] if spec.padding[1] else []
        parts += [f"dilation={spec.dilation[1]}"] if spec.dilation[1] != 1 else []
        parts += [f"groups={spec.groups}"] if spec.groups != 1 else []
        parts += [] if spec.bias else ["bias=False"]
        return ", ".join(parts)


def _along(name: str, value: Any) -> Pair:
    """Return a setting as that of images one pixel high."""
    return 1, as_size("Conv1d", name, value)
