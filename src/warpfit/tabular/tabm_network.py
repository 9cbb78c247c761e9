"""TabM's network: 32 networks that share most of their weights, computed as one.

References
----------
Gorishniy, Kotelnikov, Babenko: TabM: Advancing Tabular Deep Learning with Parameter-Efficient
Ensembling (2025). The programs are tabm 0.0.3 and pytabkit 1.7.3.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from itertools import count, pairwise
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt

from warpfit import random
from warpfit.autograd import Tensor
from warpfit.backends import Array, Backend
from warpfit.backends import of as backend_of
from warpfit.backends.base import MemberHead as Head
from warpfit.backends.base import MemberLayer, MemberLayers, MemberUpdate
from warpfit.nn import Buffer, Module, ModuleList, Parameter
from warpfit.tabular.network import Columns
from warpfit.tabular.piecewise_linear import PiecewiseLinear, quantile_edges

Numbers = npt.NDArray[Any]
# From the gradient of outputs to those of parameters, by name.
Pullback = Callable[[Array], dict[str, Array]]

NUM_MEMBERS = 32
HIDDEN = (512, 512, 512)
LEAST_PROBABILITY = 1e-30  # lest a logarithm be infinite


class Draw(NamedTuple):
    """Dropout of a step: its probability, the run's seed, and the step, which may lie on the
    device.
    """

    p: float
    seed: int
    step: Any


NO_DROPOUT = Draw(0.0, 0, 0)


class MemberLinear(Module):
    """z = (x · scale_in) @ weight · scale_out + bias; the weight is shared, all else a member's
    own.

    weight (K, N), scale_in (E, K), scale_out and bias (E, N).
    """

    def __init__(self, num_members: int, fan_in: int, fan_out: int, dtype: str) -> None:
        self.weight = Parameter(np.zeros((fan_in, fan_out), dtype))
        self.scale_in = Parameter(np.ones((num_members, fan_in), dtype))
        self.scale_out = Parameter(np.ones((num_members, fan_out), dtype))
        self.bias = Parameter(np.zeros((num_members, fan_out), dtype))


class MemberHead(Module):
    """y = x @ weight + bias, of each member its own: weight (E, K, N), bias (E, N)."""

    def __init__(self, num_members: int, fan_in: int, fan_out: int, dtype: str) -> None:
        self.weight = Parameter(np.zeros((num_members, fan_in, fan_out), dtype))
        self.bias = Parameter(np.zeros((num_members, fan_out), dtype))


class Indicators(Module):
    """A column for each code of columns of codes: 1 where a row has it, else 0.

    x (M, C) holds integers as floats, y (M, all columns' codes).
    """

    def __init__(self, num_codes: Sequence[int], dtype: str) -> None:
        self.spread = Buffer(np.repeat(np.eye(len(num_codes), dtype=dtype), num_codes, axis=1))
        codes = np.concatenate([np.arange(each) for each in num_codes]).astype(dtype)
        self.codes = Buffer(codes)
        self.ones, self.zeros = Buffer(np.ones_like(codes)), Buffer(np.zeros_like(codes))

    def values(self, ops: Backend, x: Array) -> Array:
        # Each row's own code in every column of its kind: products with 0 and 1 are exact.
        own = ops.matmul(x, self.spread.data)
        return ops.where(ops.binary("eq", own, self.codes.data), self.ones.data, self.zeros.data)


class TabM(Module):
    """32 networks with their own scales, biases and heads, and layers of 512 that they share.

    Called, it returns for rows (M, columns) what members say together, (M, num_outputs): the
    logarithms of their mean probabilities, or the mean of their numbers.

    Parameters
    ----------
    columns : Columns
        Numbers and codes.
    num_outputs : int
    are_classes : bool
        Whether outputs of a member are logits.
    num_bins : int
        Of each number's piecewise-linear embedding, at most; with 0 numbers are taken as they are.
    hidden : tuple of int
        The sizes of layers.
    num_members : int
    dtype : {'float32', 'float64'}
    """

    def __init__(
        self,
        columns: Columns,
        num_outputs: int,
        *,
        are_classes: bool,
        num_bins: int = 0,
        hidden: tuple[int, ...] = HIDDEN,
        num_members: int = NUM_MEMBERS,
        dtype: str = "float32",
    ) -> None:
        self.columns, self.are_classes, self.num_members = columns, are_classes, num_members
        has_embedding = num_bins and columns.num_numbers
        self.embedding = (
            PiecewiseLinear(columns.num_numbers, num_bins, dtype) if has_embedding else None
        )
        self.indicators = Indicators(columns.num_codes, dtype) if columns.num_codes else None
        sizes = (sum(self.sections), *hidden)
        self.layers = ModuleList(
            MemberLinear(num_members, fan_in, fan_out, dtype) for fan_in, fan_out in pairwise(sizes)
        )
        self.head = MemberHead(num_members, sizes[-1], num_outputs, dtype)
        self.ones = Buffer(np.ones((num_members, sizes[-1]), dtype))

    @property
    def sections(self) -> list[int]:
        """How many inputs of the first layer each column has."""
        of_number = PiecewiseLinear.SIZE if self.embedding is not None else 1
        return [of_number] * self.columns.num_numbers + list(self.columns.num_codes)

    def forward(self, x: Tensor) -> Tensor:
        return Tensor(self.together(backend_of(x.data), x.data))

    def together(self, ops: Backend, x: Array, values: Mapping[str, Array] | None = None) -> Array:
        """Return what members say together of rows x (M, columns); `values` as of `vjp`."""
        outputs, _ = self.vjp(ops, ops.reshape(x, (1, *x.shape)), values=values)
        if outputs.dtype != x.dtype:
            outputs = ops.cast(outputs, str(x.dtype))
        if not self.are_classes:
            return ops.reduce("mean", outputs, 0)
        mean = ops.reduce("mean", ops.softmax_forward(outputs), 0)
        return ops.unary("log", ops.binary("add", mean, LEAST_PROBABILITY))

    def values(self) -> dict[str, Array]:
        """Return what members' layers compute with, by name: parameters, and ones."""
        found = {name: each.data for name, each in self.named_parameters()}
        return {**found, "ones": self.ones.data}

    def vjp(
        self,
        ops: Backend,
        x: Array,
        draw: Draw = NO_DROPOUT,
        members: slice = slice(None),
        values: Mapping[str, Array] | None = None,
        update: MemberUpdate | None = None,
    ) -> tuple[Array, Pullback]:
        """Return some members' outputs, and the function from their gradient to the parameters'.

        Parameters
        ----------
        ops : Backend
        x : array (E or 1, M, columns)
            A batch of each member, or one of all.
        draw : Draw
        members : slice
            Which E of them; gradients of what is a member's own are those of these.
        values : mapping, optional
            What stands in for some of `values`, or all: copies in half precision, which decide what
            layers compute in. Gradients are in the parameters' dtype nevertheless.
        update : MemberUpdate, optional
            Where kernels take all layers at once: these change the parameters, whose gradients are
            not returned.

        Returns
        -------
        array (E, M, num_outputs), function
        """
        embedded, to_embedding = self._embedded(ops, x)
        values = self.values() | dict(values or {})
        at_once = self.layered(values)
        if ops.computes_member_layers(at_once):
            return self._vjp_at_once(ops, embedded, to_embedding, draw, at_once, update)
        outputs, to_layers = self._vjp_by_layers(ops, embedded, draw, members, values)

        def pullback(dy: Array) -> dict[str, Array]:
            arrived, gradients = to_layers(dy)
            found = _cast(ops, gradients, str(x.dtype))
            if self.embedding is None:
                return found
            scale_in = ops.take(values["layers.0.scale_in"], members)
            return found | to_embedding(ops.binary("mul", arrived, _of_rows(ops, scale_in)))

        return outputs, pullback

    def _vjp_by_layers(
        self,
        ops: Backend,
        embedded: Array,
        draw: Draw,
        members: slice,
        values: Mapping[str, Array],
    ) -> tuple[Array, Callable[[Array], tuple[Array, dict[str, Array]]]]:
        """Return the outputs for a first layer's inputs, and the function from their gradient to
        that of the scaled inputs and those of the layers' parameters.
        """
        ones = ops.take(values["ones"], members)
        if embedded.dtype != ones.dtype:
            embedded = ops.cast(embedded, str(ones.dtype))
        names = [f"layers.{idx}" for idx in range(len(list(self.layers)))]
        layers = [_own(ops, values, name, members) for name in names]
        hidden = ops.binary("mul", embedded, _of_rows(ops, layers[0]["scale_in"]))
        pullbacks = []
        for idx, layer in enumerate(layers):
            next_scale = layers[idx + 1]["scale_in"] if idx + 1 < len(layers) else ones
            places = {**draw._asdict(), "layer_idx": idx, "first_member": members.start or 0}
            hidden, of_layer = _layer_vjp(ops, hidden, layer, next_scale, places)
            pullbacks.append(of_layer)
        head = _own(ops, values, "head", members, shared=())
        outputs = ops.batched_matmul(hidden, head["weight"])

        def pullback(dy: Array) -> tuple[Array, dict[str, Array]]:
            found = {
                "head.weight": ops.batched_matmul(hidden, dy, transpose_a=True),
                "head.bias": _sums(ops, dy),
            }
            arrived = ops.batched_matmul(dy, head["weight"], transpose_b=True)
            for name, of_layer in zip(reversed(names), reversed(pullbacks), strict=True):
                arrived, own = of_layer(arrived)
                found |= {f"{name}.{part}": gradient for part, gradient in own.items()}
            # Each layer has found the gradient of the next one's scales, the last that of ones.
            scales = [found.pop(f"{name}.next_scale") for name in names]
            first = _sums(ops, ops.binary("mul", arrived, embedded))
            for name, gradient in zip(names, [first, *scales[:-1]], strict=True):
                found[f"{name}.scale_in"] = gradient
            return arrived, found

        return ops.binary("add", outputs, _of_rows(ops, head["bias"])), pullback

    def is_at_once(self, ops: Backend, values: Mapping[str, Array]) -> bool:
        """Whether kernels take all layers at once, with what stands in for some of `values`."""
        return ops.computes_member_layers(self.layered(self.values() | dict(values)))

    def named(self, layers: MemberLayers) -> dict[str, Array]:
        """Return what layers have, by the names of parameters."""
        found = {f"head.{name}": each for name, each in layers.head._asdict().items()}
        for idx, own in enumerate(layers.hidden):
            found |= {f"layers.{idx}.{name}": each for name, each in own._asdict().items()}
        return found

    def layered(self, values: Mapping[str, Array]) -> MemberLayers:
        """Return what layers have, of arrays by the names of parameters."""
        hidden = [
            MemberLayer(*(values[f"layers.{idx}.{name}"] for name in MemberLayer._fields))
            for idx in range(len(list(self.layers)))
        ]
        return MemberLayers(hidden, Head(*(values[f"head.{name}"] for name in Head._fields)))

    def _vjp_at_once(
        self,
        ops: Backend,
        embedded: Array,
        to_embedding: Pullback,
        draw: Draw,
        layers: MemberLayers,
        update: MemberUpdate | None,
    ) -> tuple[Array, Pullback]:
        keeps = len(embedded) == self.num_members
        outputs, kept = ops.member_layers_forward(embedded, layers, **draw._asdict(), keeps=keeps)

        def pullback(dy: Array) -> dict[str, Array]:
            needs_dx = self.embedding is not None
            gradients, dx = ops.member_layers_backward(dy, kept, needs_dx=needs_dx, update=update)
            found = {} if dx is None else to_embedding(dx)
            return found if gradients is None else found | self.named(gradients)

        return outputs, pullback

    def _embedded(self, ops: Backend, x: Array) -> tuple[Array, Pullback]:
        """Return the first layer's inputs (E or 1, M, inputs) before members scale them, and the
        function from their gradient (E, M, inputs) to that of embeddings, if there are any.
        """
        num_numbers, shape = self.columns.num_numbers, x.shape
        rows = flat(ops, x)
        parts: list[Array] = []
        to_numbers: Pullback = _to_nothing
        if self.embedding is None and self.indicators is None:
            return x, to_numbers
        if num_numbers:
            numbers = ops.take(rows, (slice(None), slice(0, num_numbers)))
            if self.embedding is not None:
                numbers, to_numbers = self.embedding.vjp(ops, numbers)
            parts.append(numbers)
        if self.indicators is not None:
            codes = ops.take(rows, (slice(None), slice(num_numbers, None)))
            parts.append(self.indicators.values(ops, codes))
        joined = parts[0] if len(parts) == 1 else ops.concatenate(parts, axis=1)

        def pullback(dy: Array) -> dict[str, Array]:
            made = ops.take(dy, (..., slice(0, num_numbers * PiecewiseLinear.SIZE)))
            if shape[0] == 1:  # one batch of all members
                made = ops.unbroadcast(made, (1, *made.shape[1:]))
            if made.dtype != x.dtype:
                made = ops.cast(made, str(x.dtype))
            found = to_numbers(flat(ops, made))
            return {f"embedding.{name}": each for name, each in found.items()}

        return ops.reshape(joined, (*shape[:2], joined.shape[1])), pullback


def _to_nothing(dy: Array) -> dict[str, Array]:
    return {}


def _layer_vjp(
    ops: Backend,
    x: Array,
    layer: Mapping[str, Array],
    next_scale: Array,
    places: Mapping[str, Any],
) -> tuple[Array, Callable[[Array], tuple[Array, dict[str, Array]]]]:
    """Return a layer's outputs for scaled inputs x (E, M, K), scaled as the next one takes them,
    and the function from their gradient to that of x and those of parameters and next scale.
    """
    rows = flat(ops, x)
    z = ops.matmul(rows, layer["weight"])
    z = ops.reshape(z, (*x.shape[:2], z.shape[1]))
    scales = (layer["scale_out"], layer["bias"], next_scale)
    outputs, kept = ops.member_relu_forward(z, *scales, **places)

    def pullback(dy: Array) -> tuple[Array, dict[str, Array]]:
        dz, dscale, dbias, dnext = ops.member_relu_backward(dy, z, kept, *scales, p=places["p"])
        dx, dweight, _ = ops.linear_backward(flat(ops, dz), rows, layer["weight"], needs_db=False)
        found = {"weight": dweight, "scale_out": dscale, "bias": dbias, "next_scale": dnext}
        return ops.reshape(dx, (*dz.shape[:2], rows.shape[1])), found

    return outputs, pullback


def _own(
    ops: Backend,
    values: Mapping[str, Array],
    layer: str,
    members: slice,
    shared: Sequence[str] = ("weight",),
) -> dict[str, Array]:
    """Return a layer's values by name, of what is a member's own that of some members."""
    names = {name.rpartition(".")[2]: name for name in values if name.startswith(f"{layer}.")}
    return {
        short: values[name] if short in shared else ops.take(values[name], members)
        for short, name in names.items()
    }


def _cast(ops: Backend, arrays: dict[str, Array], dtype: str) -> dict[str, Array]:
    """Return arrays by name, all in this dtype."""
    others = [name for name, each in arrays.items() if each.dtype != dtype]
    if not others:
        return arrays
    found = {name: ops.empty(arrays[name].shape, dtype) for name in others}
    ops.cast_into(list(found.values()), [arrays[name] for name in others])
    return arrays | found


def is_shared_weight(name: str) -> bool:
    """Whether a parameter is a layer's weights, which members share."""
    return name.startswith("layers.") and name.endswith(".weight")


def flat(ops: Backend, x: Array) -> Array:
    """Return the rows (E M, N) of all members, one after the other: x (E, M, N)."""
    return ops.reshape(x, (x.shape[0] * x.shape[1], x.shape[2]))


def _of_rows(ops: Backend, x: Array) -> Array:
    """Return x (E, N) as what every row of a member has, (E, 1, N)."""
    return ops.reshape(x, (x.shape[0], 1, x.shape[1]))


def _sums(ops: Backend, x: Array) -> Array:
    """Return the sums over each member's rows: x (E, M, N) → (E, N)."""
    sums = ops.unbroadcast(x, (x.shape[0], 1, x.shape[2]))
    return ops.reshape(sums, (x.shape[0], x.shape[2]))


def set_initial_values(network: TabM, x: Numbers, seed: int) -> None:
    """Set the parameters of a network on the CPU as training begins with them.

    Weights and biases are uniform in ±1 / √inputs, a layer's biases the same in all members. The
    first layer's input scales are 1 or -1, or normally distributed above embeddings, and the same
    for all inputs that a column has; all other scales are 1. Embeddings begin as lines, with bins
    between the quantiles of x.

    Parameters
    ----------
    network : TabM
    x : ndarray (N, columns)
        Training rows.
    seed : int
    """
    key, places = random.stream_key(seed, random.INIT), count()

    def uniform(shape: tuple[int, ...], fan_in: int) -> Numbers:
        drawn = 2 * random.uniform(shape, key, next(places)) - 1
        return np.asarray(drawn / np.sqrt(max(1, fan_in)))

    layers: list[Any] = list(network.layers)
    for layer in layers:
        fan_in, fan_out = layer.weight.shape
        layer.weight.data[...] = uniform((fan_in, fan_out), fan_in)
        layer.bias.data[...] = uniform((fan_out,), fan_in)
    sections = network.sections
    signs = (network.num_members, len(sections))
    if network.embedding is None:
        drawn = np.where(random.uniform(signs, key, next(places)) < 0.5, -1.0, 1.0)
    else:
        drawn = random.normal(signs, key, next(places))
        numbers = x[:, : network.columns.num_numbers]
        network.embedding.set_edges(quantile_edges(numbers, network.embedding.pieces.shape[1]))
        for each in (network.embedding.weight, network.embedding.bias):
            each.data[...] = uniform(each.shape, PiecewiseLinear.SIZE)
    layers[0].scale_in.data[...] = np.repeat(drawn, np.array(sections, int), axis=1)
    for each in (network.head.weight, network.head.bias):
        each.data[...] = uniform(each.shape, network.head.weight.shape[1])
