"""What a layer is, apart from its numbers: frozen values that engines, files and plans share."""

from __future__ import annotations

from collections.abc import Callable, Container, Mapping
from dataclasses import asdict, dataclass
from typing import Any, ClassVar, NamedTuple

from warpfit.backends import Activation, Array, Backend
from warpfit.backends.base import Number
from warpfit.backends.contract.communicator import Alone, Communicator
from warpfit.checks import check_fields, register
from warpfit.errors import ConfigError, FileFormatError
from warpfit.nn.onnx_graph import Graph, HostArrays

Shape = tuple[int, ...]
Arrays = Mapping[str, Array]  # a layer's, by name

# From dy to (dx or None, the gradients of the layer's parameters by name).
Pullback = Callable[[Array], tuple[Array | None, dict[str, Array]]]

# Is told of a parameter's gradient, by name, as soon as that is whole.
GradientListener = Callable[[str, Array], None]

# From the gradient of a network's outputs, and perhaps a listener, to the gradients of its
# parameters, by name.
NetworkPullback = Callable[..., dict[str, Array]]


def named(
    backward: Callable[[Array], tuple[Any, Array | None, Array | None]],
    names: Container[str] = ("weight", "bias"),
    needs_dx: bool = True,
) -> Pullback:
    """Return a layer's pullback from the function of dy to (dx, dweight, dbias), None if frozen."""

    def pullback(dy: Array) -> tuple[Any, dict[str, Array]]:
        dx, *found = backward(dy)
        own = {
            name: gradient
            for name, gradient in zip(("weight", "bias"), found, strict=True)
            if name in names and gradient is not None
        }
        return dx if needs_dx else None, own

    return pullback


class Call(NamedTuple):
    """What a layer must know about the step it runs in."""

    # Whether dropout drops, images are augmented and batch norm uses the batch's statistics.
    training: bool = False
    step: Number = 0  # from 0, () float64 on a device; with the seed it decides random numbers
    seed: int = 0  # the run's
    first_row: int = 0  # rows of the batch before those at hand, which other ranks have
    trained: frozenset[str] | None = None  # parameters whose gradients are asked for; None for all
    ranks: Communicator = Alone()  # who share the batch
    whole: int = 0  # rows of the whole batch, if several do
    gives_later: bool = False  # `LaterLogits`, as nothing but a loss reads the outputs

    @property
    def place(self) -> dict[str, Any]:
        """What decides random numbers beside the layer, as `Backend.dropout_forward` takes it."""
        return {"seed": self.seed, "step": self.step, "first_row": self.first_row}


@dataclass(frozen=True)
class ParameterSpec:
    """Shape and start of one array of a layer."""

    shape: Shape
    # 'weight' (drawn by the layer's initialiser), 'bias' (uniform within 1/√fan_in), 'normal' (of
    # deviation 1), 'ones' or 'zeros'.
    start: str
    fan_in: int = 0  # inputs that one output sees
    fan_out: int = 0  # outputs that one input reaches


@dataclass(frozen=True)
class LayerSpec:
    """A layer's formula and settings. Subclasses set `kind`, by which files name them."""

    kind: ClassVar[str] = ""
    by_kind: ClassVar[dict[str, type[LayerSpec]]] = {}
    # Whether `vjp` takes `x_activation` and `takes_dz`, by which a network joins layers.
    joins: ClassVar[bool] = False
    # Whether its arrays are float32 even where activations are in half precision; and whether it
    # takes and gives such activations all the same.
    full_precision: ClassVar[bool] = False
    mixes_precisions: ClassVar[bool] = False

    def __init_subclass__(cls) -> None:
        register(cls, "kind", LayerSpec.by_kind)
        own = vars(cls)
        if "vjp" in own and "onnx" not in own:  # the operators would be those of another formula
            cls.onnx = LayerSpec.onnx  # type: ignore[method-assign]
        if "vjp" in own and "joins" not in own:
            cls.joins = False

    def __post_init__(self) -> None:
        check_fields(type(self).__name__.removesuffix("Spec"), self)

    def parameters(self) -> dict[str, ParameterSpec]:
        """Return the arrays that training changes, by name."""
        return {}

    def buffers(self) -> dict[str, ParameterSpec]:
        """Return the arrays that belong to the state but have no gradient, by name."""
        return {}

    @property
    def least_rows(self) -> int:
        """How many rows a batch must have in training."""
        return 1

    @property
    def num_indices(self) -> int | None:
        """How many indices the layer takes, from 0, which the host reads; None if x is numbers."""
        return None

    def passes(self, activation: Activation) -> bool:
        """Whether for x = f(z) it makes dx · f'(x) of dy · f'(y), f' known from f's result."""
        return False

    def output_shape(self, input_shape: Shape) -> Shape:
        """Return the shape of one sample's output, or ShapeError for an input that does not fit."""
        return input_shape

    def vjp(
        self, ops: Backend, arrays: Arrays, x: Array, call: Call, *, needs_dx: bool = True
    ) -> tuple[Array, Pullback]:
        """Return y, and the function from dy to (dx, gradients by parameter name)."""
        raise NotImplementedError

    def onnx(self, graph: Graph, x: str, arrays: HostArrays, input_shape: Shape) -> str:
        """Add the layer's operators, as in evaluation, to a graph, and return the name of y.

        x is the batch's name in the graph; arrays have their own names; `input_shape` is that of
        one sample. ConfigError, unless a subclass says the operators.
        """
        layer = type(self).__name__.removesuffix("Spec")
        raise ConfigError(f"to_onnx: expected layers with a form in ONNX, got {layer}")

    def to_dict(self) -> dict[str, Any]:
        """Return a JSON-ready description, from which `from_dict` makes an equal spec."""
        return {"kind": self.kind, **asdict(self)}

    @staticmethod
    def from_dict(description: Mapping[str, Any]) -> LayerSpec:
        """Return the spec that `description` describes, or raise FileFormatError."""
        fields = dict(description)
        kind = fields.pop("kind", None)
        if not isinstance(kind, str) or kind not in LayerSpec.by_kind:
            known = ", ".join(sorted(LayerSpec.by_kind))
            raise FileFormatError(f"expected a layer kind among {known}, got {kind!r}")
        try:
            return LayerSpec.by_kind[kind].parse(fields)
        except (KeyError, TypeError, ValueError) as error:
            raise FileFormatError(
                f"expected a description of a layer of kind {kind}, got {description!r}"
            ) from error

    @classmethod
    def parse(cls, fields: dict[str, Any]) -> LayerSpec:
        """Return a spec from its fields as JSON has them: lists are tuples, an activation's one."""
        values: dict[str, Any] = {
            name: tuple(v) if isinstance(v, list) else v for name, v in fields.items()
        }
        if "activation" in cls.__dataclass_fields__:
            values["activation"] = Activation(**values["activation"])
        return cls(**values)
