"""NetworkSpec: a chain of layers as a value."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property, lru_cache
from math import prod
from typing import Any

from warpfit.backends import Activation, Array, Backend
from warpfit.backends.base import HALF_DTYPES, IDENTITY
from warpfit.errors import ConfigError, FileFormatError, ShapeError
from warpfit.nn.activations import ActivationLayer, ActivationSpec
from warpfit.nn.conv import Conv2dSpec
from warpfit.nn.junction import JunctionSpec
from warpfit.nn.linear import LinearSpec
from warpfit.nn.norm import BatchNormSpec
from warpfit.nn.onnx_graph import Graph, HostArrays
from warpfit.nn.pooling import MaxPool2dSpec
from warpfit.nn.spec import Call, GradientListener, LayerSpec, NetworkPullback, Pullback, Shape


@dataclass(frozen=True)
class NetworkSpec:
    """A chain of layers as a value: all that an engine needs to know of a network besides its
    numbers.

    Parameters
    ----------
    layers : tuple of (str, LayerSpec)
        The layers in the order they run in, each with the prefix of its arrays' names; a layer that
        stands twice in a network shares its prefix.
    input_shape : tuple of int
        Shape of one sample.

    Examples
    --------
    >>> [name for name, layer in model.spec((64,)).layers]
    ['0', '1', '2']
    """

    layers: tuple[tuple[str, LayerSpec], ...]
    input_shape: Shape

    @cached_property
    def shapes(self) -> tuple[Shape, ...]:
        """Shape of a sample before the first layer and after each layer, or ShapeError."""
        shapes, kept = [self.input_shape], list[Shape]()
        for idx, (name, spec) in enumerate(self.layers):
            try:
                if isinstance(spec, JunctionSpec):
                    shapes.append(spec.passed_shape(shapes[-1], kept))
                else:
                    shapes.append(spec.output_shape(shapes[-1]))
            except ShapeError as error:
                told = f"layer {name}: {error}, which {self._source(idx)}"
                raise ShapeError(told + _remedy(spec, shapes[-1], is_row=idx == 0)) from None
        if kept:
            raise ConfigError("expected a junction 'add' after each 'keep', got none")
        return tuple(shapes)

    def _source(self, idx: int) -> str:
        """Return in words what gives a layer its input."""
        if idx == 0:
            return "is a row of x"
        name, spec = self.layers[idx - 1]
        kind: type = type(spec)
        if isinstance(spec, ActivationSpec):
            kind = ActivationLayer.by_name.get(spec.activation.name, kind)
        return f"layer {name} ({kind.__name__.removesuffix('Spec')}) gives"

    @property
    def output_shape(self) -> Shape:
        """Shape of one sample's output."""
        return self.shapes[-1]

    @property
    def num_indices(self) -> int | None:
        """How many indices, from 0, a row may hold if the first layer takes such; else None."""
        return self.layers[0][1].num_indices if self.layers else None

    @cached_property
    def fused(self) -> NetworkSpec:
        """The same network with each activation joined to the layer or sum before, if it can be."""
        layers: list[tuple[str, LayerSpec]] = []
        for name, spec in self.layers:
            before: Any = layers[-1][1] if layers else None
            if (
                isinstance(spec, ActivationSpec)
                and before is not None
                and _takes_activation(before, spec.activation)
            ):
                layers[-1] = (layers[-1][0], replace(before, activation=spec.activation))
            else:
                layers.append((name, spec))
        return NetworkSpec(tuple(layers), self.input_shape)

    @cached_property
    def _names(self) -> tuple[dict[str, str], ...]:
        """For each layer, from its arrays' own names to their names in the network."""
        return tuple(
            {name: f"{prefix}.{name}" for name in (*spec.parameters(), *spec.buffers())}
            for prefix, spec in self.layers
        )

    @cached_property
    def _joints(self) -> tuple[dict[str, Any], ...]:
        """For each layer, what joins it to those before and after it, see `linear`: each takes over
        the derivative of the activation below, whatever in between passes it. A convolution takes
        over the max pooling that follows, whose places tell ReLU's derivative, a batch norm the
        sum.
        """
        specs = [spec for _, spec in self.layers]
        joints: list[dict[str, Any]] = [{} for _ in specs]
        below: int | None = None  # the layer whose activation's derivative may be taken over
        for idx, spec in enumerate(specs):
            if spec.joins and below is not None:
                joints[below]["takes_dz"] = True
                joints[idx]["x_activation"] = _activation_of(specs[below])
            if spec.joins:
                below = None if _activation_of(spec).needs_input else idx
            elif (
                idx - 1 == below
                and isinstance(spec, MaxPool2dSpec)
                and isinstance(specs[below], Conv2dSpec)
            ):
                joints[below]["pool"], joints[idx]["is_done"] = spec.pool_settings, True
                if _activation_of(specs[below]).name == "relu":
                    joints[below]["takes_dz"], below = True, None
            elif below is not None and not spec.passes(_activation_of(specs[below])):
                below = None
            _join_sums(specs, idx, joints)
        return tuple(joints)

    @cached_property
    def _begins(self) -> dict[str, int]:
        """Index of the first layer that has an array, by its name in the network."""
        numbered = reversed(list(enumerate(self._names)))
        return {full: idx for idx, names in numbered for full in names.values()}

    @cached_property
    def _first_of(self) -> dict[frozenset[str] | None, int]:
        """What `_first_trained` has found: each step asks."""
        return {}

    def _first_trained(self, trained: frozenset[str] | None) -> int:
        """Index of the first layer that is trained: gradients need not flow past it."""
        if trained not in self._first_of:
            begins = (
                (idx for idx, (_, spec) in enumerate(self.layers) if spec.parameters())
                if trained is None
                else (self._begins[name] for name in trained)
            )
            self._first_of[trained] = min(begins, default=len(self.layers))
        return self._first_of[trained]

    def _settings_of(self, idx: int, call: Call, first_trained: int) -> dict[str, Any]:
        """Return how a layer is joined to others, and which of its gradients are asked for."""
        spec, settings = self.layers[idx][1], {**self._joints[idx], "needs_dx": idx > first_trained}
        if call.ranks.size > 1 and type(spec) in (LinearSpec, Conv2dSpec):
            settings["dx_later"] = idx > first_trained
        if call.trained is not None and spec.joins and isinstance(spec, Conv2dSpec):
            settings["needs_dw"] = self._names[idx]["weight"] in call.trained
        if call.gives_later and idx == len(self.layers) - 1:
            settings["later"] = True
        return settings

    def vjp(
        self, ops: Backend, arrays: Mapping[str, Array], x: Array, call: Call
    ) -> tuple[Array, NetworkPullback]:
        """Return the outputs (M, ...) of a batch, and the function from dy to all gradients.

        Parameters
        ----------
        ops : Backend
            That the arrays belong to.
        arrays : mapping of str to array
            Parameters and buffers by their names in the network; buffers are written to in
            training.
        x : array (M, ...)
            A batch, in the dtype of the parameters.
        call : Call
            Whether it trains, the number of the step, the seed, and what is trained.

        Raises
        ------
        ShapeError, DTypeError
            If x does not fit the network.
        """
        pullbacks: list[Any] = []
        first_trained = self._first_trained(call.trained)
        kept: list[Array] = []
        gradients_kept: list[Array] = []
        for idx, ((_, spec), names) in enumerate(zip(self.layers, self._names, strict=True)):
            if isinstance(spec, JunctionSpec):
                x, through = spec.through(ops, x, kept, **self._joints[idx])
                pullbacks.append(through)
                continue
            own = {name: arrays[full] for name, full in names.items()}
            in_full = spec.full_precision and not spec.mixes_precisions
            vjp = _vjp_in_full if in_full and str(x.dtype) in HALF_DTYPES else type(spec).vjp
            settings = self._settings_of(idx, call, first_trained)
            if "activation" in settings:
                settings["added"] = kept.pop()
            if "plus" in settings:
                settings["plus"] = gradients_kept.pop
            x, pullback = vjp(spec, ops, own, x, call, **settings)
            pullbacks.append(pullback)

        def to_gradients(dy: Array, listener: GradientListener | None = None) -> dict[str, Array]:
            gradients: dict[str, Array] = {}
            gradients_kept.clear()
            for idx in range(len(pullbacks) - 1, first_trained - 1, -1):
                if isinstance(self.layers[idx][1], JunctionSpec):
                    dy = pullbacks[idx](dy, gradients_kept)
                    continue
                dy, own = pullbacks[idx](dy)
                for name, gradient in reversed(own.items()):  # the largest comes last
                    full = self._names[idx][name]
                    known = gradients.get(full)
                    gradients[full] = (
                        gradient if known is None else ops.binary("add", known, gradient)
                    )
                    if listener is not None and self._begins[full] == idx:
                        listener(full, gradients[full])
                if callable(dy):  # which begins once others may have the gradients
                    dy = dy()
            return gradients

        return x, to_gradients

    def onnx(self, graph: Graph, x: str, arrays: HostArrays) -> str:
        """Add the layers' operators, as in evaluation, to a graph; return the outputs' name.

        Parameters
        ----------
        graph : Graph
        x : str
            Name of a batch in the graph.
        arrays : mapping of str to ndarray
            Parameters and buffers by their names in the network.

        Raises
        ------
        ConfigError
            If a layer has no form in ONNX.
        """
        kept: list[str] = []
        for (_, spec), names, shape in zip(self.layers, self._names, self.shapes, strict=False):
            if isinstance(spec, JunctionSpec):
                x = spec.passed_name(x, kept, graph)
                continue
            own = {name: arrays[full] for name, full in names.items()}
            x = spec.onnx(graph, x, own, shape)
        return x

    def to_dict(self) -> dict[str, Any]:
        """Return a JSON-ready description, from which `from_dict` makes an equal spec."""
        return {
            "input_shape": list(self.input_shape),
            "layers": [{"name": name, **spec.to_dict()} for name, spec in self.layers],
        }

    @staticmethod
    def from_dict(description: Mapping[str, Any]) -> NetworkSpec:
        """Return the spec that `description` describes, or raise FileFormatError."""
        try:
            layers = [dict(layer) for layer in description["layers"]]
            return NetworkSpec(
                tuple((str(layer.pop("name")), LayerSpec.from_dict(layer)) for layer in layers),
                tuple(int(size) for size in description["input_shape"]),
            )
        except (KeyError, TypeError, ValueError) as error:
            if isinstance(error, FileFormatError):
                raise
            raise FileFormatError("expected a network as 'layers' and 'input_shape'") from error


def _remedy(spec: LayerSpec, shape: Shape, *, is_row: bool) -> str:
    """Return what makes of samples of a shape those that a layer takes, for the end of a message.

    That is so of the slips that are frequent, and only there; `is_row` says that they are x's.
    """
    if is_row and _takes(spec, (*shape, 1)):
        return "; x[..., None] has one more axis"
    if is_row and len(shape) == 3 and _takes(spec, (*shape[1:], shape[0])):
        return "; channels come last: x.transpose(0, 2, 3, 1), or permute of PyTorch's"
    flat = (prod(shape),)
    if len(shape) > 1 and (_takes(spec, flat) or isinstance(spec, LinearSpec)):
        return f"; nn.Flatten() before it gives {flat}"
    return ""


def _takes(spec: LayerSpec, shape: Shape) -> bool:
    try:
        spec.output_shape(shape)
    except ShapeError:
        return False
    return True


def _takes_activation(spec: LayerSpec, activation: Activation) -> bool:
    """Whether a layer computes an activation after it; a sum if f' is known from its result."""
    if isinstance(spec, JunctionSpec) and (spec.part != "add" or activation.needs_input):
        return False
    is_plain = getattr(spec, "activation", None) == IDENTITY
    return is_plain and isinstance(spec, LinearSpec | Conv2dSpec | BatchNormSpec | JunctionSpec)


def _join_sums(specs: Sequence[LayerSpec], idx: int, joints: list[dict[str, Any]]) -> None:
    """Let a batch norm without an activation add what a junction after it would, a ``keep`` take
    over the derivative of the sum before it, and a convolution after that what ``keep`` does then.
    """
    before, spec = specs[idx - 1] if idx else None, specs[idx]
    is_keep = isinstance(before, JunctionSpec) and before.part == "keep"
    if is_keep and spec.joins and isinstance(spec, Conv2dSpec):
        joints[idx]["x_activation"] = joints[idx - 1].pop("x_activation", IDENTITY)
        joints[idx]["plus"] = joints[idx - 1]["is_done"] = True
    if not isinstance(spec, JunctionSpec):
        return
    is_norm = isinstance(before, BatchNormSpec) and before.activation == IDENTITY
    if spec.part == "add" and is_norm:
        joints[idx - 1]["activation"], joints[idx]["is_done"] = spec.activation, True
    if spec.part == "keep" and isinstance(before, JunctionSpec) and before.part == "add":
        joints[idx - 1]["takes_dz"] = True
        joints[idx]["x_activation"] = before.activation


def _activation_of(spec: LayerSpec) -> Activation:
    """Return the activation of a layer that joins."""
    activation: Activation = spec.activation  # type: ignore[attr-defined]
    return activation


@lru_cache(maxsize=64)
def network_of(layers: tuple[tuple[str, LayerSpec], ...], input_shape: Shape) -> NetworkSpec:
    """Return a network whose shapes are known: the same for as many models as are alike."""
    network = NetworkSpec(layers, input_shape)
    network.shapes  # noqa: B018  (computed for its error)
    return network


def _vjp_in_full(
    spec: LayerSpec,
    ops: Backend,
    arrays: Mapping[str, Array],
    x: Array,
    call: Call,
    *,
    needs_dx: bool,
) -> tuple[Array, Pullback]:
    """Return `spec.vjp` between layers in half precision, itself computed in float32."""
    half = str(x.dtype)
    y, backward = spec.vjp(ops, arrays, ops.cast(x, "float32"), call, needs_dx=needs_dx)

    def pullback(dy: Array) -> tuple[Array | None, dict[str, Array]]:
        dx, gradients = backward(ops.cast(dy, "float32", 1 / ops.loss_scale))
        return None if dx is None else ops.cast(dx, half, ops.loss_scale), gradients

    return ops.cast(y, half), pullback
