"""Linear: y = f(x @ w + b)."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import partial
from typing import Any, ClassVar

from warpfit.backends import Activation, Array, Backend
from warpfit.backends.base import IDENTITY, LaterLogits
from warpfit.errors import ShapeError
from warpfit.nn.layer import Layer
from warpfit.nn.module import Parameter
from warpfit.nn.onnx_graph import Graph, HostArrays
from warpfit.nn.sizes import as_size
from warpfit.nn.spec import Call, LayerSpec, ParameterSpec, Pullback, Shape, named

# dx, perhaps as a function that begins to compute it, dw and db.
Gradients = tuple[Any, Array, Array | None]


def linear(
    ops: Backend,
    x: Array,
    w: Array,
    b: Array | None = None,
    activation: Activation = IDENTITY,
    *,
    needs_dx: bool = True,
    x_activation: Activation = IDENTITY,
    takes_dz: bool = False,
    dx_later: bool = False,
    later: bool = False,
) -> tuple[Array, Callable[[Array], Gradients]]:
    """Return y = f(x @ w + b) and the function from dy to (dx, dw, db).

    x (M, K), w (K, N), b (N,) or None, y and dy (M, N). Two layers can be joined: the second, told
    of the first's f as `x_activation`, gives dx · f'(x), and the first, if it `takes_dz`, takes
    that in place of dy. With `dx_later` dx is a function that computes it. With `later` y is
    `LaterLogits`, and f the identity.
    """
    if later:
        return _linear_later(ops, LaterLogits(x, w, b, x_activation, needs_dx))
    y, z = ops.linear_forward(x, w, b, activation)

    def backward(dy: Array) -> Gradients:
        is_dz = takes_dz or activation.name == "identity"
        dz = dy if is_dz else ops.activation_backward(activation, dy, y, z)
        needs_db = b is not None
        if dx_later:
            _, dw, db = ops.linear_backward(dz, x, w, needs_dx=False, needs_db=needs_db)
            return partial(ops.linear_backward_input, dz, x, w, x_activation), dw, db
        return ops.linear_backward(
            dz, x, w, needs_dx=needs_dx, needs_db=needs_db, x_activation=x_activation
        )

    return y, backward


def _linear_later(
    ops: Backend, logits: LaterLogits
) -> tuple[LaterLogits, Callable[[Array], Gradients]]:
    """Return what a loss is to compute, and the function from its gradient to (dx, dw, db)."""

    def backward(dz: Array) -> Gradients:
        dx, dw, db = ops.linear_backward(
            dz,
            logits.x,
            logits.w,
            needs_dx=logits.needs_dx and logits.dx is None,
            needs_db=logits.b is not None,
            x_activation=logits.x_activation,
        )
        return dx if logits.dx is None else logits.dx, dw, db

    return logits, backward


@dataclass(frozen=True)
class LinearSpec(LayerSpec):
    """y = f(x @ weight + bias), weight (in_features, out_features)."""

    kind: ClassVar[str] = "linear"
    joins: ClassVar[bool] = True
    in_features: int
    out_features: int
    bias: bool = True
    activation: Activation = IDENTITY

    def __post_init__(self) -> None:
        for name in ("in_features", "out_features"):
            object.__setattr__(self, name, as_size("Linear", name, getattr(self, name)))
        super().__post_init__()

    def parameters(self) -> dict[str, ParameterSpec]:
        fans = (self.in_features, self.out_features)
        weight = ParameterSpec(fans, "weight", *fans)
        return {"weight": weight} | (
            {"bias": ParameterSpec(fans[1:], "bias", *fans)} if self.bias else {}
        )

    def output_shape(self, input_shape: Shape) -> Shape:
        if input_shape != (self.in_features,):
            raise ShapeError(
                f"Linear: expected samples of shape ({self.in_features},), got {input_shape}"
            )
        return (self.out_features,)

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
        """Return y and the pullback; `joints` are the settings that join layers, see `linear`."""
        y, backward = linear(
            ops,
            x,
            arrays["weight"],
            arrays.get("bias"),
            self.activation,
            needs_dx=needs_dx,
            **joints,
        )
        return y, named(backward)

    def onnx(self, graph: Graph, x: str, arrays: HostArrays, input_shape: Shape) -> str:
        y = graph.add("Gemm", x, *map(graph.floats, arrays.values()))
        return self.activation.formula.onnx(graph, y, self.activation.slope)


class Linear(Layer):
    """y = x @ weight + bias.

    Parameters
    ----------
    in_features, out_features : int
        Sizes of one sample's input and output.
    device : str
        Where the parameters live.
    bias : bool
        Whether a bias is added.
    init, seed, dtype
        See `Layer`.

    Attributes
    ----------
    weight : Parameter, (in_features, out_features)
    bias : Parameter, (out_features,), only if `bias`

    Raises
    ------
    ConfigError, DTypeError, DeviceError
        If an argument is not what is described here.

    Examples
    --------
    >>> nn.Linear(64, 10)(x).shape
    (200, 10)
    """

    weight: Parameter
    bias: Parameter
    spec_type = LinearSpec

    def __init__(
        self,
        in_features: int,
        out_features: int,
        device: str = "cpu",
        *,
        bias: bool = True,
        init: str = "default",
        seed: int | None = None,
        dtype: str = "float32",
    ) -> None:
        super().__init__(
            LinearSpec(in_features, out_features, bias), device, dtype=dtype, init=init, seed=seed
        )

    def extra_repr(self) -> str:
        spec = self.spec
        return f"{spec.in_features}, {spec.out_features}" + ("" if spec.bias else ", bias=False")
