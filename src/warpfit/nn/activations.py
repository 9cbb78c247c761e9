"""Activations as layers: y = f(z), element by element; and softmax along the last axis."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from warpfit.autograd import formulas
from warpfit.backends import Activation, Array, Backend
from warpfit.checks import brief
from warpfit.errors import ConfigError, ShapeError
from warpfit.nn.layer import Layer
from warpfit.nn.onnx_graph import Graph, HostArrays
from warpfit.nn.spec import Arrays, Call, LayerSpec, Pullback, Shape

# The layers: `warpfit.nn` has all that are named here.
__all__ = [
    "GELU",
    "SELU",
    "Identity",
    "LeakyReLU",
    "LogSoftmax",
    "Mish",
    "ReLU",
    "SiLU",
    "Sigmoid",
    "Softmax",
    "Tanh",
]


@dataclass(frozen=True)
class ActivationSpec(LayerSpec):
    """y = f(z)."""

    kind: ClassVar[str] = "activation"
    activation: Activation

    def vjp(
        self, ops: Backend, arrays: Arrays, x: Array, call: Call, *, needs_dx: bool = True
    ) -> tuple[Array, Pullback]:
        y, pullback = formulas.activate(ops, x, activation=self.activation)
        return y, lambda dy: (pullback(dy)[0] if needs_dx else None, {})

    def onnx(self, graph: Graph, x: str, arrays: HostArrays, input_shape: Shape) -> str:
        return self.activation.formula.onnx(graph, x, self.activation.slope)


@dataclass(frozen=True)
class SoftmaxSpec(LayerSpec):
    """y = softmax(z), or its logarithm, along the last axis."""

    kind: ClassVar[str] = "softmax"
    log: bool = False

    def vjp(
        self, ops: Backend, arrays: Arrays, x: Array, call: Call, *, needs_dx: bool = True
    ) -> tuple[Array, Pullback]:
        if not x.shape:
            raise ShapeError("Softmax: expected a batch of rows, got a single number")
        y, pullback = (formulas.log_softmax if self.log else formulas.softmax)(ops, x)
        return y, lambda dy: (pullback(dy)[0] if needs_dx else None, {})

    def onnx(self, graph: Graph, x: str, arrays: HostArrays, input_shape: Shape) -> str:
        return graph.add("LogSoftmax" if self.log else "Softmax", x, axis=-1)


class ActivationLayer(Layer):
    """Base of the activations: a class names the table's entries that it stands for."""

    spec_type = ActivationSpec
    by_name: ClassVar[dict[str, type[ActivationLayer]]] = {}
    names: ClassVar[tuple[str, ...]] = ()

    def __init_subclass__(cls, names: tuple[str, ...] = ()) -> None:
        super().__init_subclass__()
        cls.names = names or cls.names
        ActivationLayer.by_name.update(dict.fromkeys(names, cls))

    def __init__(self) -> None:
        super().__init__(ActivationSpec(Activation(self.names[0])))

    @classmethod
    def class_for(cls, spec: LayerSpec) -> type[Layer]:
        if not isinstance(spec, ActivationSpec):
            return cls
        name = spec.activation.name
        if name not in cls.by_name:
            raise ConfigError(
                f"expected an activation among {', '.join(cls.by_name)}, got {name!r}"
            )
        return cls.by_name[name]

    def extra_repr(self) -> str:
        return ""


class Identity(ActivationLayer, names=("identity",)):
    """y = x.

    Examples
    --------
    >>> nn.Identity()(np.array([-1.0, 0.0, 2.0]))
    array([-1.,  0.,  2.], dtype=float32)
    """


class ReLU(ActivationLayer, names=("relu",)):
    """y = max(x, 0).

    Examples
    --------
    >>> nn.ReLU()(np.array([-1.0, 0.0, 2.0]))
    array([0., 0., 2.], dtype=float32)
    """


class LeakyReLU(ActivationLayer, names=("leaky_relu",)):
    """y = x where x > 0, else negative_slope · x.

    Examples
    --------
    >>> nn.LeakyReLU(0.1)(np.array([-1.0, 0.0, 2.0]))
    array([-0.1,  0. ,  2. ], dtype=float32)
    """

    def __init__(self, negative_slope: float = 0.01) -> None:
        Layer.__init__(self, ActivationSpec(Activation("leaky_relu", negative_slope)))

    def extra_repr(self) -> str:
        return f"negative_slope={self.spec.activation.slope}"


class Tanh(ActivationLayer, names=("tanh",)):
    """y = tanh(x).

    Examples
    --------
    >>> nn.Tanh()(np.array([-1.0, 0.0, 2.0])).round(2)
    array([-0.76,  0.  ,  0.96], dtype=float32)
    """


class Sigmoid(ActivationLayer, names=("sigmoid",)):
    """y = 1 / (1 + exp(-x)).

    Examples
    --------
    >>> nn.Sigmoid()(np.array([-1.0, 0.0, 2.0])).round(2)
    array([0.27, 0.5 , 0.88], dtype=float32)
    """


class GELU(ActivationLayer, names=("gelu", "gelu_tanh")):
    """y = x · Φ(x), Φ the normal distribution function.

    Parameters
    ----------
    approximate : str
        ``'none'`` for the form with erf, ``'tanh'`` for its approximation.

    References
    ----------
    Hendrycks, Gimpel: Gaussian Error Linear Units (2016).

    Examples
    --------
    >>> nn.GELU()(np.array([-1.0, 0.0, 2.0])).round(2)
    array([-0.16,  0.  ,  1.95], dtype=float32)
    """

    def __init__(self, approximate: str = "none") -> None:
        if not isinstance(approximate, str) or approximate not in ("none", "tanh"):
            raise ConfigError(
                f"GELU: expected approximate 'none' or 'tanh', got {brief(approximate)}"
            )
        Layer.__init__(
            self, ActivationSpec(Activation("gelu_tanh" if approximate == "tanh" else "gelu"))
        )

    def extra_repr(self) -> str:
        return "approximate='tanh'" if self.spec.activation.name == "gelu_tanh" else ""


class SiLU(ActivationLayer, names=("silu",)):
    """y = x / (1 + exp(-x)).

    Examples
    --------
    >>> nn.SiLU()(np.array([-1.0, 0.0, 2.0])).round(2)
    array([-0.27,  0.  ,  1.76], dtype=float32)
    """


class SELU(ActivationLayer, names=("selu",)):
    """y = scale · x where x > 0, else scale · alpha · (exp(x) - 1), with its authors' constants.

    References
    ----------
    Klambauer, Unterthiner, Mayr, Hochreiter: Self-Normalizing Neural Networks (2017).

    Examples
    --------
    >>> nn.SELU()(np.array([-1.0, 0.0, 2.0])).round(2)
    array([-1.11,  0.  ,  2.1 ], dtype=float32)
    """


class Mish(ActivationLayer, names=("mish",)):
    """y = x · tanh(log(1 + exp(x))).

    References
    ----------
    Misra: Mish: A Self Regularized Non-Monotonic Activation Function (2020).

    Examples
    --------
    >>> nn.Mish()(np.array([-1.0, 0.0, 2.0])).round(2)
    array([-0.3 ,  0.  ,  1.94], dtype=float32)
    """


class Softmax(Layer):
    """y = exp(x) / Σ exp(x) along the last axis.

    Examples
    --------
    >>> nn.Softmax()(np.array([[0.0, 0.0]]))
    array([[0.5, 0.5]], dtype=float32)
    """

    spec_type = SoftmaxSpec

    def __init__(self) -> None:
        super().__init__(SoftmaxSpec())

    @classmethod
    def class_for(cls, spec: LayerSpec) -> type[Layer]:
        return LogSoftmax if isinstance(spec, SoftmaxSpec) and spec.log else cls

    def extra_repr(self) -> str:
        return ""


class LogSoftmax(Layer):
    """y = x - log Σ exp(x) along the last axis.

    Examples
    --------
    >>> nn.LogSoftmax()(np.array([[0.0, 0.0]])).round(2)
    array([[-0.69, -0.69]], dtype=float32)
    """

    def __init__(self) -> None:
        super().__init__(SoftmaxSpec(log=True))

    def extra_repr(self) -> str:
        return ""
