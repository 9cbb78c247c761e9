"""Sequential: a chain of layers as a module, and Residual, which adds what a chain is given."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from typing import Any, TypeGuard

from warpfit.autograd import Tensor
from warpfit.backends import Array
from warpfit.checks import as_integers, kind_of
from warpfit.errors import ConfigError, ShapeError
from warpfit.files import PathLike
from warpfit.nn.junction import Junction, JunctionSpec
from warpfit.nn.layer import Layer
from warpfit.nn.linear import LinearSpec
from warpfit.nn.module import Module
from warpfit.nn.network import NetworkSpec, network_of
from warpfit.nn.onnx_graph import Graph
from warpfit.nn.spec import Shape


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
            if type(child) is Sequential or type(child) is Residual:
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
        """Return this network as a value, for samples of a shape; None if a module is unknown.

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
            return network_of(specs, shape)
        except TypeError:  # a layer of the user's own cannot be hashed
            return network_of.__wrapped__(specs, shape)

    def to_onnx(self, path: PathLike, input_shape: Sequence[int] | None = None) -> None:
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
        graph = Graph()
        y = graph.add("Identity", network.fused.onnx(graph, "X", arrays), output="Y")
        kind = "FLOAT" if network.num_indices is None else "INT64"
        inputs = [graph.value("X", kind, *network.input_shape)]
        graph.write(path, "Sequential", inputs, [graph.value(y, "FLOAT", *network.output_shape)])

    def _foreign(self) -> str | None:
        """Return what of this chain `flat_layers` does not say, by its class; None if nothing."""
        if type(self) is not Sequential:
            return type(self).__name__
        if self.flat_layers() is not None:
            return None
        for layer in self.layers:
            if isinstance(layer, Sequential | Residual):
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
        model = Sequential(*_nested([layers[name] for name, _ in network.layers]))
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


class Residual(Module):
    """y = layers(x) + shortcut(x), the sum of two chains' outputs; without a shortcut + x.

    Parameters
    ----------
    *layers : Module
        A chain, as `Sequential` takes it.
    shortcut : Module, optional
        A layer or a chain that gives the same shape.

    Raises
    ------
    ConfigError
        If there are no layers, or one is none.

    References
    ----------
    He, Zhang, Ren, Sun: Deep residual learning for image recognition (2015).

    Examples
    --------
    >>> block = nn.Residual(nn.Linear(64, 64), nn.ReLU(), nn.Linear(64, 64))
    >>> nn.Sequential(block, nn.ReLU(), nn.Linear(64, 10))(x).shape
    (200, 10)
    """

    def __init__(self, *layers: Module | Sequence[Module], shortcut: Module | None = None) -> None:
        self.layers = Sequential(*layers)
        if not len(self.layers):
            raise ConfigError("Residual: expected layers, got none")
        if shortcut is not None:
            self.shortcut = shortcut if type(shortcut) is Sequential else Sequential(shortcut)
        number_random_layers(self)

    @property
    def branches(self) -> list[tuple[str, Sequential]]:
        """The chains with their names: the layers', and the shortcut's if there is one."""
        return [
            (name, child) for name, child in self.named_children() if isinstance(child, Sequential)
        ]

    def forward(self, x: Tensor) -> Tensor:
        (_, layers), *shortcut = self.branches
        y = layers(x)
        kept = shortcut[0][1](x) if shortcut else x
        if y.shape != kept.shape:
            JunctionSpec("add").passed_shape(y.shape[1:], [kept.shape[1:]])
        return y + kept

    def flat_layers(self) -> list[tuple[str, Layer]] | None:
        """Return (name, layer) for each layer, and junctions; None if they do not say all."""
        found: list[tuple[str, Layer]] = []
        for part, (name, chain) in zip(("keep", "swap"), self.branches, strict=False):
            inner = chain.flat_layers()
            if inner is None:
                return None
            found.append((part, _junction(part)))
            found += [(f"{name}.{below}", layer) for below, layer in inner]
        return [*found, ("add", _junction("add"))]

    def _foreign(self) -> str | None:
        if type(self) is not Residual:
            return type(self).__name__
        return next(filter(None, (chain._foreign() for _, chain in self.branches)), None)


def _junction(part: str) -> Layer:
    return Junction.holding(JunctionSpec(part), {})


def _nested(layers: Sequence[Layer]) -> list[Module]:
    """Return the modules of a chain with junctions: each `Residual` in place of its parts."""
    blocks: list[list[list[Module]]] = [[[]]]  # chains of the residual blocks that are open
    for layer in layers:
        part = layer.spec.part if isinstance(layer.spec, JunctionSpec) else None
        if part in ("swap", "add") and (len(blocks) == 1 or (part, len(blocks[-1])) == ("swap", 2)):
            raise ConfigError(
                f"expected a residual connection that begins before {part!r}, got none"
            )
        if part == "keep":
            blocks.append([[]])
        elif part == "swap":
            blocks[-1].append([])
        elif part == "add":
            inner, *others = blocks.pop()
            shortcut = Sequential(*others[0]) if others else None
            blocks[-1][-1].append(Residual(*inner, shortcut=shortcut))
        else:
            blocks[-1][-1].append(layer)
    if len(blocks) > 1:
        raise ConfigError("expected residual connections that end, got one that does not")
    return blocks[0][0]


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
