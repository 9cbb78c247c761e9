"""Updates of linear layers that are joined with the products of their gradients, against NumPy."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from support.updates import update
from warpfit.backends import create
from warpfit.backends.cuda.joined_updates import PartialGradient
from warpfit.backends.numpy import NumpyBackend

HALF = {"float16": 2.0**-10, "bfloat16": 2.0**-7}
SGD: dict[str, Any] = {"lr": 0.1}
MOMENTUM: dict[str, Any] = {"lr": 0.1, "momentum": 0.9, "nesterov": True, "weight_decay": 0.01}
ADAM: dict[str, Any] = {"step": 3, "lr": 0.01, "weight_decay": 0.1, "decoupled": True}
RMSPROP: dict[str, Any] = {"lr": 0.01}
RMSPROP_MOMENTUM: dict[str, Any] = {"lr": 0.01, "momentum": 0.5}
# The operation, the slots it uses, and its settings.
UPDATES: dict[str, tuple[str, int, dict[str, Any]]] = {
    "sgd": ("sgd", 0, SGD),
    "momentum": ("sgd", 1, MOMENTUM),
    "adam": ("adam", 2, ADAM),
    "rmsprop": ("rmsprop", 1, RMSPROP),
    "lion": ("lion", 1, {"lr": 0.01, "weight_decay": 0.1}),
    "adagrad": ("adagrad", 1, {"lr": 0.01, "weight_decay": 0.1}),
    "adadelta": ("adadelta", 2, {"lr": 0.1, "weight_decay": 0.1}),
    "nadam": ("nadam", 2, {"step": 3, "lr": 0.01, "weight_decay": 0.1}),
    "rmsprop with momentum": ("rmsprop", 2, RMSPROP_MOMENTUM),
}
# Rows, and the layers' inputs and outputs: tiles, ragged ones, thin layers, some that are not
# joined.
NETWORKS = {
    "tiles": (32, [(136, 264), (264, 72)]),
    "more rows than a stage": (150, [(200, 136)]),
    "more tiles than blocks take at once": (200, [(264, 392)]),
    "wide tiles": (264, [(72, 264)]),
    "wide tiles of two slots": (1032, [(24, 264)]),
    "few tiles": (150, [(72, 136)]),
    "thin": (20, [(136, 10), (70, 3)]),
    "thin, of more rows than lanes": (75, [(3, 2)]),
    "one row": (1, [(8, 8), (8, 1)]),
    "odd": (9, [(15, 40), (40, 33)]),
    "many layers": (4, [(8, 8)] * 9 + [(8, 2)]),
}


def rounded(ops: Any, x: Any, dtype: str) -> Any:
    return ops.to_numpy(ops.asarray(ops.asarray(x, dtype), "float32"))


class Layers:
    """Linear layers on a device, with what NumPy starts from."""

    def __init__(
        self, ops: Any, dtype: str, rows: int, sizes: list[tuple[int, int]], num_slots: int
    ) -> None:
        rng = np.random.default_rng(0)
        self.ops, self.dtype = ops, dtype
        draw = lambda *shape: rng.standard_normal(shape).astype(np.float32)  # noqa: E731
        self.x = [rounded(ops, draw(rows, inputs), dtype) for inputs, _ in sizes]
        self.dz = [rounded(ops, draw(rows, outputs) / rows, dtype) for _, outputs in sizes]
        self.host = [array for pair in sizes for array in (draw(*pair), draw(pair[1]))]
        self.host_slots = [[np.abs(draw(*p.shape)) for p in self.host] for _ in range(num_slots)]
        self.parameters = [ops.asarray(p) for p in self.host]
        self.slots = [[ops.asarray(s) for s in slot] for slot in self.host_slots]
        self.copies = [ops.copy(ops.asarray(p, dtype)) for p in self.parameters]

    def gradients(self) -> list[Any]:
        found: list[Any] = []
        for idx, (x, dz) in enumerate(zip(self.x, self.dz, strict=True)):
            operands = (self.ops.asarray(a, self.dtype) for a in (dz, x))
            _, dw, db = self.ops.linear_backward(*operands, self.copies[2 * idx], needs_dx=False)
            found += [dw, db]
        return found

    def expected_gradients(self) -> list[Any]:
        pairs = zip(self.x, self.dz, strict=True)
        return [gradient for x, dz in pairs for gradient in (x.T @ dz, dz.sum(axis=0))]


def assert_updated(ops: Any, layers: Layers) -> None:
    """Assert that parameters and slots are those that NumPy has come to, and copies the parameters
    rounded.
    """
    for got, copy, expected in zip(layers.parameters, layers.copies, layers.host, strict=True):
        np.testing.assert_allclose(ops.to_numpy(got), expected, rtol=2e-5, atol=2e-5)
        as_copied = ops.to_numpy(ops.asarray(copy, "float32"))
        np.testing.assert_array_equal(as_copied, rounded(ops, ops.to_numpy(got), layers.dtype))
    for slots, expected_slots in zip(layers.slots, layers.host_slots, strict=True):
        for got, expected in zip(slots, expected_slots, strict=True):
            np.testing.assert_allclose(ops.to_numpy(got), expected, rtol=2e-5, atol=2e-5)


@pytest.mark.in_turns(30)
@pytest.mark.parametrize("dtype", HALF)
@pytest.mark.parametrize("network", NETWORKS)
@pytest.mark.parametrize("name", UPDATES)
def test_joined_updates_are_those_of_numpy(cuda: str, name: str, network: str, dtype: str) -> None:
    op, num_slots, settings = UPDATES[name]
    ops: Any = create(cuda, precision=dtype)
    layers = Layers(ops, dtype, *NETWORKS[network], num_slots)
    assert ops.keep_copies(layers.parameters, layers.copies)
    update(ops, op, layers.parameters, layers.gradients(), *layers.slots, **settings)
    update(
        NumpyBackend(), op, layers.host, layers.expected_gradients(), *layers.host_slots, **settings
    )
    assert_updated(ops, layers)


@pytest.mark.parametrize("name", ["sgd", "adam"])
@pytest.mark.parametrize("sizes", [(40, 136), (24, 264)], ids=str)
def test_weights_that_begin_anywhere(cuda: str, name: str, sizes: tuple[int, int]) -> None:
    op, num_slots, settings = UPDATES[name]
    ops: Any = create(cuda, precision="float16")
    layers = Layers(ops, "float16", 20, [sizes], num_slots)
    arrays = [layers.parameters, *layers.slots]
    for group in arrays:
        moved = ops.reshape(ops.zeros((group[0].size + 1,), "float32")[1:], sizes)
        ops.assign(moved, group[0])
        group[0] = moved
    assert all(group[0].pointer % 16 == 4 for group in arrays)
    assert ops.keep_copies(layers.parameters, layers.copies)
    update(ops, op, layers.parameters, layers.gradients(), *layers.slots, **settings)
    update(
        NumpyBackend(), op, layers.host, layers.expected_gradients(), *layers.host_slots, **settings
    )
    assert_updated(ops, layers)


class Convolutions(Layers):
    """Convolutions on a device, with what NumPy starts from."""

    SHAPES = (((3, 7, 6, 1), (3, 3, 1, 16)), ((2, 5, 4, 16), (2, 2, 16, 32)))

    def __init__(self, ops: Any, dtype: str, num_slots: int) -> None:
        rng = np.random.default_rng(0)
        self.ops, self.dtype = ops, dtype
        draw = lambda *shape: rng.standard_normal(shape).astype(np.float32)  # noqa: E731
        self.host = [array for _, w in self.SHAPES for array in (draw(*w), draw(w[3]))]
        self.x = [rounded(ops, draw(*x), dtype) for x, _ in self.SHAPES]
        sizes = [
            (*(a - b + 1 for a, b in zip(x[1:3], w, strict=False)), w[3]) for x, w in self.SHAPES
        ]
        self.dz = [
            rounded(ops, draw(len(x), *size) / 8, dtype)
            for x, size in zip(self.x, sizes, strict=True)
        ]
        self.host_slots = [[np.abs(draw(*p.shape)) for p in self.host] for _ in range(num_slots)]
        self.parameters = [ops.asarray(p) for p in self.host]
        self.slots = [[ops.asarray(s) for s in slot] for slot in self.host_slots]
        self.copies = [ops.copy(ops.asarray(p, dtype)) for p in self.parameters]

    def gradients(self) -> list[Any]:
        found: list[Any] = []
        for idx, (x, dz) in enumerate(zip(self.x, self.dz, strict=True)):
            operands = (self.ops.asarray(a, self.dtype) for a in (dz, x))
            w = self.copies[2 * idx]
            found += self.ops.conv2d_backward_weight(*operands, w.shape[:2], w=w)
        return found

    def expected_gradients(self) -> list[Any]:
        found: list[Any] = []
        for (_, w), x, dz in zip(self.SHAPES, self.x, self.dz, strict=True):
            found += NumpyBackend().conv2d_backward_weight(dz, x, w[:2])
        return found


@pytest.mark.in_turns(4)
@pytest.mark.parametrize("dtype", HALF)
@pytest.mark.parametrize("name", ["sgd", "adam"])
def test_updates_add_up_the_gradients_of_convolutions(cuda: str, name: str, dtype: str) -> None:
    op, num_slots, settings = UPDATES[name]
    ops: Any = create(cuda, precision=dtype)
    layers = Convolutions(ops, dtype, num_slots)
    assert not any(isinstance(gradient, PartialGradient) for gradient in layers.gradients())
    assert ops.keep_copies(layers.parameters, layers.copies)
    gradients = layers.gradients()
    assert all(isinstance(gradient, PartialGradient) for gradient in gradients)
    update(ops, op, layers.parameters, gradients, *layers.slots, **settings)
    update(
        NumpyBackend(), op, layers.host, layers.expected_gradients(), *layers.host_slots, **settings
    )
    assert_updated(ops, layers)


def test_gradients_of_weights_seen_in_another_shape_are_arrays(cuda: str) -> None:
    ops: Any = create(cuda, precision="float16")
    layers = Convolutions(ops, "float16", 0)
    assert ops.keep_copies(layers.parameters, layers.copies)
    operands = [ops.asarray(array[0], "float16") for array in (layers.dz, layers.x)]
    seen = ops.reshape(layers.copies[0], (9, 1, 1, 16))
    for w in (None, seen):
        dw, db = ops.conv2d_backward_weight(*operands, (3, 3), w=w)
        assert (dw.shape, db.shape) == ((3, 3, 1, 16), (16,))


@pytest.mark.parametrize("num_layers", [1, 9])
def test_updates_add_up_many_arrays_of_sums(cuda: str, num_layers: int) -> None:
    """More of them than one kernel takes, and more parameters."""
    ops: Any = create(cuda, precision="float16")
    layers = Layers(ops, "float16", 1, [(5, 7)] * num_layers, 0)
    assert ops.keep_copies(layers.parameters, layers.copies)
    rng = np.random.default_rng(1)
    sums = [rng.standard_normal((3 + idx, 45)).astype(np.float32) for idx in range(num_layers)]
    gradients, expected = [], []
    for of_layer in sums:
        on_device, total = ops.asarray(of_layer), of_layer.sum(axis=0)
        gradients += [PartialGradient(on_device, first, 0.5) for first in (3, 38)]
        expected += [0.5 * total[3:38].reshape(5, 7), 0.5 * total[38:45]]
    update(ops, "sgd", layers.parameters, gradients, **SGD)
    update(NumpyBackend(), "sgd", layers.host, expected, **SGD)
    assert_updated(ops, layers)
