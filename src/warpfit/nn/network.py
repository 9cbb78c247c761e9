"""Networks: a chain of layers as a module (`Sequential`), and as a value (`NetworkSpec`)."""

from __future__ import annotations

import os
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property, lru_cache
from typing import Any, TypeGuard

from warpfit.autograd import Tensor
from warpfit.backends import Activation, Array, Backend
from warpfit.backends.base import HALF_DTYPES
from warpfit.checks import as_integers, kind_of
from warpfit.errors import ConfigError, FileFormatError, ShapeError
from warpfit.nn.activations import ActivationLayer, ActivationSpec
from warpfit.nn.conv import Conv2dSpec
from warpfit.nn.layer import Layer
from warpfit.nn.linear import LinearSpec
from warpfit.nn.module import Module
from warpfit.nn.onnx_graph import Graph, HostArrays, check_size
from warpfit.nn.pooling import MaxPool2dSpec
from warpfit.nn.remedies import remedy
from warpfit.nn.spec import Call, GradientListener, LayerSpec, NetworkPullback, Pullback, Shape

__all__ = ["NetworkSpec", "Sequential", "computes_its_spec", "number_random_layers"]


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
        shapes = [self.input_shape]
        for idx, (name, spec) in enumerate(self.layers):
            try:
                shapes.append(spec.output_shape(shapes[-1]))
            except ShapeError as error:
                told = f"layer {name}: {error}, which {self._source(idx)}"
                raise ShapeError(told + remedy(spec, shapes[-1], is_row=idx == 0)) from None
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
        """The same network with each activation joined to the linear layer or convolution before
        it.
        """
        layers: list[tuple[str, LayerSpec]] = []
        for name, spec in self.layers:
            before = layers[-1][1] if layers else None
            if (
                isinstance(spec, ActivationSpec)
                and isinstance(before, LinearSpec | Conv2dSpec)
                and before.activation.name == "identity"
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
        over the max pooling that follows, whose places tell ReLU's derivative.
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
        return tuple(joints)

    @cached_property
    def _begins(self) -> dict[str, int]:
        """Index of the first layer that has an array, by its name in the network."""
        numbered = reversed(list(enumerate(self._names)))
        return {full: idx for idx, names in numbered for full in names.values()}

    @cached_property
    def _first_trained(self) -> int:
        """Index of the first layer with parameters: gradients need not flow past it."""
        return next(
            (i for i, (_, spec) in enumerate(self.layers) if spec.parameters()), len(self.layers)
        )

    def vjp(
        self, ops: Backend, arrays: Mapping[str, Array], x: Array, call: Call
    ) -> tuple[Array, NetworkPullback]:
        """Return the outputs (M, ...) of a batch, and the function from dy to the parameters'
        gradients.

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
            Whether it trains, the number of the step, and the seed.

        Raises
        ------
        ShapeError, DTypeError
            If x does not fit the network.
        """
        pullbacks = []
        for idx, ((_, spec), names) in enumerate(zip(self.layers, self._names, strict=True)):
            own = {name: arrays[full] for name, full in names.items()}
            vjp = (
                _vjp_in_full
                if spec.full_precision and str(x.dtype) in HALF_DTYPES
                else type(spec).vjp
            )
            x, pullback = vjp(
                spec, ops, own, x, call, needs_dx=idx > self._first_trained, **self._joints[idx]
            )
            pullbacks.append(pullback)

        def to_gradients(dy: Array, listener: GradientListener | None = None) -> dict[str, Array]:
            gradients: dict[str, Array] = {}
            for idx in range(len(pullbacks) - 1, self._first_trained - 1, -1):
                dy, own = pullbacks[idx](dy)
                for name, gradient in own.items():
                    full = self._names[idx][name]
                    known = gradients.get(full)
                    gradients[full] = (
                        gradient if known is None else ops.binary("add", known, gradient)
                    )
                    if listener is not None and self._begins[full] == idx:
                        listener(full, gradients[full])
            return gradients

        return x, to_gradients

    def onnx(self, graph: Graph, x: str, arrays: HostArrays) -> str:
        """Add the layers' operators, as in evaluation, to a graph, and return the name of the
        outputs.

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
        for (_, spec), names, shape in zip(self.layers, self._names, self.shapes, strict=False):
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


def _activation_of(spec: LayerSpec) -> Activation:
    """Return the activation of a layer that joins."""
    activation: Activation = spec.activation  # type: ignore[attr-defined]
    return activation


@lru_cache(maxsize=64)
def _network_of(layers: tuple[tuple[str, LayerSpec], ...], input_shape: Shape) -> NetworkSpec:
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


class Sequential(Module):
    """Layers one after the other.

    Parameters
    ----------
    *layers : Module
        Layers, networks, or users' own modules; one list of them will do.

    Examples
    --------
    >>> model = nn.Sequential(nn.Linear(784, 256), nn.ReLU(), nn.Linear(256, 10))
    >>> model.num_parameters
    203530
    """

    def __init__(self, *layers: Module | Sequence[Module]) -> None:
        first = layers[0] if len(layers) == 1 else None
        given: Sequence[Any] = first if isinstance(first, list | tuple) else layers
        for layer in given:
            if not isinstance(layer, Module):
                raise ConfigError(
                    f"Sequential: expected layers, such as nn.ReLU(), got {kind_of(layer)}"
                )
        self.layers: tuple[Module, ...] = tuple(given)
        number_random_layers(self)

    def named_children(self) -> Iterator[tuple[str, Module]]:
        return iter([(str(idx), layer) for idx, layer in enumerate(self.layers)])

    def forward(self, x: Tensor) -> Tensor:
        for idx, layer in enumerate(self.layers):
            try:
                x = layer(x)
            except ShapeError as error:
                told = str(error)
                inner = told.removeprefix("layer ") if isinstance(layer, Sequential) else None
                where = f"{idx}.{inner}" if inner not in (None, told) else f"{idx}: {told}"
                raise ShapeError(f"layer {where}") from None
        return x

    def __len__(self) -> int:
        return len(self.layers)

    def __iter__(self) -> Iterator[Module]:
        return iter(self.layers)

    def __getitem__(self, idx: int) -> Module:
        return self.layers[idx]

    def flat_layers(self) -> list[tuple[str, Layer]] | None:
        """Return (name, layer) for every layer, inner chains included; None if they do not say all.

        That is so if a module is of another kind or has a forward of its own, or if two layers
        share an array.
        """
        names: dict[int, str] = {}
        layers: list[tuple[str, Layer]] = []
        for name, child in self.named_children():
            if type(child) is Sequential:
                inner = child.flat_layers()
                if inner is None:
                    return None
                found = [(f"{name}.{below}", layer) for below, layer in inner]
            elif computes_its_spec(child):
                found = [(name, child)]
            else:
                return None
            layers += [(names.setdefault(id(layer), full), layer) for full, layer in found]
        own_names = {f"{name}.{own}" for name, layer in layers for own in layer.array_names()}
        return layers if own_names == self.named_arrays().keys() else None

    def spec(self, input_shape: Sequence[int]) -> NetworkSpec | None:
        """Return this network as a value, for samples of a shape; None if it holds modules of
        unknown kinds.

        Raises
        ------
        ShapeError
            If a layer does not take what the layer before it gives.
        """
        layers = self.flat_layers()
        if layers is None:
            return None
        specs = tuple((name, layer.spec) for name, layer in layers)
        shape = as_integers("input_shape", input_shape, 0)
        try:
            return _network_of(specs, shape)
        except TypeError:  # a layer of the user's own cannot be hashed
            return _network_of.__wrapped__(specs, shape)

    def to_onnx(
        self, path: str | os.PathLike[str], input_shape: Sequence[int] | None = None
    ) -> None:
        """Write an ONNX file, with which other programs predict; the package onnx is needed.

        Its input ``X`` are samples in float32, channels last, or indices in int64 where the first
        layer is an `Embedding`; its output ``Y`` is what the network gives in evaluation. For
        probabilities append a layer, as in the example.

        Parameters
        ----------
        path : path of the file, by convention ending in .onnx
        input_shape : tuple of int, optional
            Shape of one sample; that of its rows if the first layer is `Linear`.

        Raises
        ------
        ConfigError
            If onnx is not installed, the network holds a module without a form in ONNX, its shape
            is neither given nor known, or the file cannot be written.
        ShapeError
            If the network does not take such samples.

        Examples
        --------
        >>> nn.Sequential(*model, nn.Softmax()).to_onnx("digits.onnx")
        """
        foreign = self._foreign()
        if foreign is not None:
            raise ConfigError(
                "to_onnx: expected a Sequential of warpfit's layers with arrays of their own, got "
                f"one with {foreign}"
            )
        network = self.spec(self._row_shape() if input_shape is None else input_shape)
        assert network is not None
        arrays = self.state_dict()
        check_size(sum(array.size for array in arrays.values()))
        graph = Graph()
        y = graph.add("Identity", network.fused.onnx(graph, "X", arrays), output="Y")
        kind = "FLOAT" if network.num_indices is None else "INT64"
        inputs = [graph.value("X", kind, *network.input_shape)]
        graph.write(path, "Sequential", inputs, [graph.value(y, "FLOAT", *network.output_shape)])

    def _foreign(self) -> str | None:
        """Return what of this chain `flat_layers` does not say, by its class; None if there is no
        such module.
        """
        if type(self) is not Sequential:
            return type(self).__name__
        if self.flat_layers() is not None:
            return None
        for layer in self.layers:
            if isinstance(layer, Sequential):
                found = layer._foreign()
            else:
                found = None if computes_its_spec(layer) else type(layer).__name__
            if found is not None:
                return found
        return "layers that share an array"

    def _row_shape(self) -> Shape:
        """Return the shape of one sample, as a first linear layer has it, or ConfigError."""
        layers = self.flat_layers()
        first = layers[0][1].spec if layers else None
        if not isinstance(first, LinearSpec):
            raise ConfigError(
                "to_onnx: expected the input_shape of one sample unless the first layer is Linear, "
                "got None"
            )
        return (first.in_features,)

    @staticmethod
    def from_spec(
        network: NetworkSpec, arrays: Mapping[str, Array], *, dtype: str = "float32"
    ) -> Sequential:
        """Return the chain that a spec describes with the given arrays, as one flat `Sequential`.

        Parameters
        ----------
        network : NetworkSpec
        arrays : mapping of str to array
            Parameters and buffers by their names in the network, taken without a copy.
        dtype : {'float32', 'float64'}
            Of the parameters.

        Raises
        ------
        ConfigError
            If an array is missing or foreign, or a layer that stands twice has two specs.
        ShapeError
            If an array does not fit the spec.
        """
        layers = {name: Layer.from_spec(spec, dtype=dtype, seed=0) for name, spec in network.layers}
        for name, spec in network.layers:
            if layers[name].spec != spec:
                raise ConfigError(
                    f"expected one spec for the layer {name}, got {spec} and {layers[name].spec}"
                )
        model = Sequential(*(layers[name] for name, _ in network.layers))
        places = {id(layer): name for name, layer in reversed(model.flat_layers() or [])}
        renamed = {
            f"{places[id(layer)]}.{own}": f"{name}.{own}"
            for name, layer in layers.items()
            for own in layer.arrays()
        }
        foreign = sorted(arrays.keys() - set(renamed.values()))
        if foreign:
            raise ConfigError(
                "expected the arrays of the network's layers, got foreign ones: "
                f"{', '.join(foreign)}"
            )
        model.load_state_dict({new: arrays[old] for new, old in renamed.items() if old in arrays})
        return model


def computes_its_spec(module: Module) -> TypeGuard[Layer]:
    """Whether a module is a layer that computes what its spec says."""
    return isinstance(module, Layer) and type(module).forward is Layer.forward


def number_random_layers(module: Module) -> None:
    """Give every random layer below `module` its own number, so that what they draw differs."""
    layers = [
        m
        for _, m in module.named_modules()
        if isinstance(m, Layer) and hasattr(m.spec, "layer_idx")
    ]
    for idx, layer in enumerate(layers):
        layer.spec = replace(layer.spec, layer_idx=idx)
