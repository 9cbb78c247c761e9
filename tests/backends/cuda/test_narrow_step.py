"""Chains of narrow layers as one kernel and an update, against NumPy."""

from __future__ import annotations

from dataclasses import replace
from itertools import pairwise
from typing import Any

import numpy as np
import pytest

from backends.cuda.test_joined_updates import UPDATES, Layers, assert_updated
from support.updates import update
from warpfit import losses
from warpfit.backends import create
from warpfit.backends.base import ACTIVATIONS, Activation, LossTerms
from warpfit.backends.cuda.joined_updates import PartialGradient
from warpfit.backends.cuda.narrow_step import PIECES, NarrowNetwork, NarrowStep, choose
from warpfit.backends.cuda.next_batch import StepRows
from warpfit.backends.numpy import NumpyBackend
from warpfit.engines.launch_settings import loss_settings

# Of what is rounded at the same places: a few numbers fall to the other side.
TOLERANCE = {"float16": 2e-3, "bfloat16": 1e-2}
LOSS_SCALE = 64.0
RELU, IDENTITY = Activation("relu"), Activation()
LOSSES = {
    "mse": losses.MeanSquaredError(),
    "mse of scikit-learn": losses.MeanSquaredError(half=True),
    "absolute_error": losses.AbsoluteError(),
    "huber": losses.Huber(0.5),
    "binary_cross_entropy": losses.BinaryCrossEntropy(),
    "binary_cross_entropy, summed": losses.BinaryCrossEntropy(sum_outputs=True),
    "cross_entropy": losses.SoftmaxCrossEntropy(),
    "smoothed": losses.SoftmaxCrossEntropy(label_smoothing=0.1),
}


class Network:
    """A chain of layers, rows and targets: on a device, and in float64 the numbers that it has
    there.
    """

    def __init__(
        self,
        ops: Any,
        dtype: str,
        rows: int,
        widths: tuple[int, ...],
        activations: tuple[Activation, ...],
        loss: Any,
    ) -> None:
        rng = np.random.default_rng(0)
        self.ops, self.loss, self.rows = ops, loss, rows
        pairs = list(pairwise(widths))
        draw = lambda *shape: rng.standard_normal(shape).astype(np.float32)  # noqa: E731
        host = [
            array
            for i, o in pairs
            for array in (draw(i, o) / np.sqrt(i).astype("f4"), 0.1 * draw(o))
        ]
        self.parameters = [ops.asarray(p) for p in host]
        self.copies = [ops.copy(ops.asarray(p, dtype)) for p in self.parameters]
        self.x = ops.asarray(ops.asarray(draw(rows, widths[0])), dtype)
        self.activations = activations
        if loss.name == "cross_entropy":
            self.y = rng.integers(0, widths[-1], rows)
        elif loss.name == "binary_cross_entropy":
            self.y = rng.integers(0, 2, (rows, widths[-1])).astype(np.float32)
        else:
            self.y = draw(rows, widths[-1])
        self.terms = LossTerms(loss.name, *loss_settings(loss, widths[-1]))
        self.network = NarrowNetwork.of(dtype, widths, activations, self.terms)
        assert ops.keep_copies(self.parameters, self.copies)

    def exact(self, array: Any) -> Any:
        return self.ops.to_numpy(self.ops.asarray(array, "float32")).astype(np.float64)

    def rounded(self, array: Any, scale: float = 1.0) -> Any:
        """Return numbers as layers pass them on."""
        return (
            self.exact(self.ops.asarray((array * scale).astype("f4"), self.network.dtype)) / scale
        )

    def expected(self) -> tuple[list[Any], tuple[float, float, float]]:
        """Return the gradients of all parameters, and the row of the record."""
        numpy, copies, x = (
            NumpyBackend(),
            [self.exact(copy) for copy in self.copies],
            self.exact(self.x),
        )
        kept = []
        for idx, activation in enumerate(self.activations):
            w, b = copies[2 * idx : 2 * idx + 2]
            y, z = numpy.linear_forward(x, w, b, activation)
            is_last = idx + 1 == len(self.activations)
            y = y if is_last else self.rounded(y)
            kept.append((x, w, y, z))
            x = y
        y = self.y if self.loss.name == "cross_entropy" else self.y.astype(np.float64)
        loss, weight, gradient = self.loss.vjp(numpy, x, y)
        correct = self.loss.count_correct(numpy, x, y)
        dy, found = gradient(), []
        for activation, (x, w, y, z) in reversed(list(zip(self.activations, kept, strict=True))):
            dz = dy if activation == IDENTITY else numpy.activation_backward(activation, dy, y, z)
            dy, dw, db = numpy.linear_backward(self.rounded(dz, LOSS_SCALE), x, w)
            found += [db, dw]
        return found[::-1], (float(loss), float(weight), float(correct or 0))

    def layers(self, copies: list[Any]) -> list[Any]:
        return [
            (*copies[2 * i : 2 * i + 2], activation)
            for i, activation in enumerate(self.activations)
        ]


def trained(network: Network, step: NarrowStep, **batch: Any) -> tuple[list[Any], Any]:
    """Return what a step of gradient descent with a rate of 1 takes off the parameters, and the
    record.
    """
    ops, record = network.ops, network.ops.zeros((3, 3), "float64")
    before = [network.exact(p) for p in network.parameters]
    x, y = batch.get("x", network.x), batch.get("y", ops.asarray(network.y))
    layers = network.layers(network.copies)
    found = ops.start_narrow_step(step, x, layers, y, network.terms, record, 1, batch.get("rows"))
    gradients = [gradient for pair in found for gradient in pair]
    update(ops, "sgd", network.parameters, gradients, lr=1.0)
    for p, copy in zip(network.parameters, network.copies, strict=True):
        rounded = network.exact(ops.asarray(p, network.network.dtype))
        np.testing.assert_array_equal(network.exact(copy), rounded)
    taken = [old - network.exact(p) for old, p in zip(before, network.parameters, strict=True)]
    return taken, ops.to_numpy(record)


def assert_as_expected(network: Network, step: NarrowStep, **batch: Any) -> None:
    expected, record = network.expected()
    taken, got = trained(network, step, **batch)
    tolerance = TOLERANCE[network.network.dtype]
    np.testing.assert_array_equal(got[[0, 2]], 0)
    np.testing.assert_allclose(got[1, :2], record[:2], rtol=tolerance)
    assert abs(got[1, 2] - record[2]) <= tolerance * network.rows
    for a, b in zip(taken, expected, strict=True):
        assert np.linalg.norm(a - b) <= tolerance * np.linalg.norm(b) + 1e-6 * np.sqrt(b.size)


SIZES = {
    "benchmark": (300, (64,) * 5),
    "ragged": (37, (7, 33, 5)),
    "one layer": (16, (20, 3)),
    "one row, one output": (1, (8, 24, 1)),
    "wide": (40, (40, 128, 10)),
    "several tiles of a block": (1100, (8, 16, 8)),
    "many layers": (70, (16,) * 8 + (4,)),
}


@pytest.mark.in_turns(12)
@pytest.mark.parametrize("dtype", TOLERANCE)
@pytest.mark.parametrize("x_stages", [1, 2])
@pytest.mark.parametrize("name", SIZES)
def test_narrow_steps_are_those_of_numpy(cuda: str, name: str, x_stages: int, dtype: str) -> None:
    rows, widths = SIZES[name]
    ops: Any = create(cuda, precision=dtype, loss_scale=LOSS_SCALE)
    activations = (*(RELU,) * (len(widths) - 2), IDENTITY)
    network = Network(ops, dtype, rows, widths, activations, LOSSES["mse"])
    assert_as_expected(network, NarrowStep(network.network, x_stages=x_stages))


@pytest.mark.parametrize("piece", PIECES)
@pytest.mark.in_turns(4)
def test_pieces(cuda: str, piece: tuple[int, int]) -> None:
    ops: Any = create(cuda, precision="float16", loss_scale=LOSS_SCALE)
    network = Network(ops, "float16", 70, (20, 72, 50, 3), (RELU, RELU, IDENTITY), LOSSES["mse"])
    assert_as_expected(network, NarrowStep(network.network, piece=piece))


@pytest.mark.parametrize("dtype", TOLERANCE)
@pytest.mark.parametrize("name", LOSSES)
@pytest.mark.in_turns(12)
def test_losses(cuda: str, name: str, dtype: str) -> None:
    ops: Any = create(cuda, precision=dtype, loss_scale=LOSS_SCALE)
    network = Network(ops, dtype, 150, (12, 24, 9), (RELU, IDENTITY), LOSSES[name])
    assert_as_expected(network, NarrowStep(network.network))


@pytest.mark.parametrize("dtype", TOLERANCE)
@pytest.mark.parametrize("name", [name for name in ACTIVATIONS if name != "relu"])
@pytest.mark.in_turns(12)
def test_activations(cuda: str, name: str, dtype: str) -> None:
    ops: Any = create(cuda, precision=dtype, loss_scale=LOSS_SCALE)
    activation = Activation(name, slope=0.25)
    network = Network(
        ops, dtype, 40, (12, 24, 9, 5), (activation, RELU, activation), LOSSES["huber"]
    )
    assert_as_expected(network, NarrowStep(network.network))


@pytest.mark.parametrize("x_stages", [1, 2])
@pytest.mark.parametrize("features", [5, 8])
@pytest.mark.parametrize("source", ["uint8", "float32", "float64", "float16"])
@pytest.mark.in_turns(12)
def test_rows_that_are_gathered(cuda: str, source: str, features: int, x_stages: int) -> None:
    ops: Any = create(cuda, precision="float16", loss_scale=LOSS_SCALE)
    network = Network(ops, "float16", 700, (features, 16, 3), (RELU, IDENTITY), LOSSES["mse"])
    rng = np.random.default_rng(1)
    x, y = rng.integers(0, 200, (1500, features)), rng.standard_normal((1500, 3)).astype("f4")
    order = rng.permutation(1500)
    x_source = ops.asarray(ops.asarray(x.astype("uint8" if source == "uint8" else "f8")), source)
    y_source = ops.asarray(y)
    own = order[720:1420]  # two steps of 350 rows from step 2 on would be theirs
    network.x = ops.gather_rows(x_source, ops.asarray(own), "float16")
    network.y = y[own]
    rows = StepRows(
        [x_source, y_source], ops.asarray(order), ops.asarray(np.float64(1)), 1, 360, 700
    )
    step = NarrowStep(network.network, x_stages=x_stages, source=source)
    assert_as_expected(network, step, x=x_source, y=y_source, rows=rows)


def test_rows_and_targets_that_begin_anywhere(cuda: str) -> None:
    ops: Any = create(cuda, precision="float16", loss_scale=LOSS_SCALE)
    network = Network(ops, "float16", 33, (8, 16, 4), (RELU, IDENTITY), LOSSES["mse"])
    x, y = ops.zeros((34 * 8,), "float16"), ops.zeros((34 * 4,), "float32")
    x, y = (ops.reshape(array[1 : 1 + 33 * size], (33, size)) for array, size in ((x, 8), (y, 4)))
    ops.assign(x, network.x)
    ops.assign(y, ops.asarray(network.y))
    assert_as_expected(network, NarrowStep(network.network), x=x, y=y)


def test_layers_without_biases(cuda: str) -> None:
    ops: Any = create(cuda, precision="float16", loss_scale=LOSS_SCALE)
    network = Network(ops, "float16", 33, (8, 16, 4), (RELU, IDENTITY), LOSSES["mse"])
    for bias in network.copies[1::2]:
        ops.assign(bias, ops.zeros(bias.shape, "float16"))
    layers = [(w, None, activation) for w, _, activation in network.layers(network.copies)]
    record, y = ops.zeros((3, 3), "float64"), ops.asarray(network.y)
    step = NarrowStep(network.network)
    found = ops.start_narrow_step(step, network.x, layers, y, network.terms, record, 0)
    assert [of_bias for _, of_bias in found] == [None, None]
    expected, _ = network.expected()
    for (of_weights, _), gradient in zip(found, expected[::2], strict=True):
        end = of_weights.first + gradient.size
        sums = (
            network.exact(of_weights.sums)[:, of_weights.first : end].sum(axis=0) * of_weights.scale
        )
        assert np.linalg.norm(sums - gradient.ravel()) <= TOLERANCE["float16"] * np.linalg.norm(
            gradient
        )


@pytest.mark.parametrize("dtype", TOLERANCE)
@pytest.mark.parametrize("name", UPDATES)
@pytest.mark.in_turns(8)
def test_updates_add_up_the_sums_of_blocks(cuda: str, name: str, dtype: str) -> None:
    op, num_slots, settings = UPDATES[name]
    ops: Any = create(cuda, precision=dtype)
    layers = Layers(ops, dtype, 1, [(7, 9), (9, 30), (30, 2)], num_slots)
    assert ops.keep_copies(layers.parameters, layers.copies)
    firsts = np.cumsum([0, *(p.size + 1 for p in layers.host)])  # with a gap behind each
    sums = np.random.default_rng(2).standard_normal((13, firsts[-1])).astype(np.float32)
    on_device = ops.asarray(sums)
    gradients = [PartialGradient(on_device, int(first), 0.5) for first in firsts[:-1]]
    expected = [
        (0.5 * sums[:, first : first + p.size].sum(axis=0)).reshape(p.shape)
        for first, p in zip(firsts, layers.host, strict=False)
    ]
    update(ops, op, layers.parameters, gradients, *layers.slots, **settings)
    update(NumpyBackend(), op, layers.host, expected, *layers.host_slots, **settings)
    assert_updated(ops, layers)


def test_what_is_left_to_other_kernels() -> None:
    shared_bytes = 227 << 10
    fits = NarrowNetwork("float16", (64,) * 5, (RELU,) * 4, "mse")
    step = choose(fits, 65536, shared_bytes)
    assert str(step) == "tiles of 128 rows, 1 of a multiprocessor, 2 stages"
    assert step is not None
    assert step.shared_bytes <= shared_bytes
    assert step.grid(65536, 132) == 132
    assert step.grid(1024, 132) == 8
    for network, num_rows in (
        (fits, 512),
        (replace(fits, dtype="float32"), 65536),
        (replace(fits, widths=(1024,) * 5), 65536),
        (replace(fits, widths=(784, 64, 64, 64, 10)), 65536),
        (replace(fits, widths=(0, 64, 64, 64, 10)), 65536),
        (replace(fits, widths=(8,) * 10, activations=(RELU,) * 9), 65536),
    ):
        assert choose(network, num_rows, shared_bytes) is None
    for widths, piece in (((128, 128, 3), (2, 1)), ((3, 128, 64, 3), (2, 2))):
        other = choose(
            replace(fits, widths=widths, activations=(RELU,) * (len(widths) - 1)),
            65536,
            shared_bytes,
        )
        assert other is not None
        assert other.piece == piece
    for source in ("uint8", "float32", "float64"):
        gathered = choose(fits, 65536, shared_bytes, source)
        assert gathered is not None
        assert gathered.rows == step.rows
        assert gathered.shared_bytes <= shared_bytes
