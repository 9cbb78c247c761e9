"""The last layer of a step, its loss and the gradient of what comes before as one operation."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

from warpfit.backends import Activation, Backend, NumpyBackend
from warpfit.backends.base import HALF_DTYPES, IDENTITY, LaterLogits
from warpfit.errors import ConfigError, ShapeError

RELU = Activation("relu")
# Of a number's rounding to each dtype.
ROUNDING = {"float16": 2**-11, "bfloat16": 2**-8}


@pytest.fixture(scope="session")
def backend(make_backend: Callable[..., Backend]) -> Backend:
    """A backend that has this operation."""
    backend = make_backend()
    if isinstance(backend, NumpyBackend):
        pytest.skip("NumPy leaves it to the separate operations")
    return backend


def exact(ops: Backend, array: Any) -> Any:
    return np.array(ops.to_numpy(ops.cast(array, "float32"))).astype("float64")


class Layer:
    """A last layer and its labels as a backend takes them."""

    def __init__(
        self,
        ops: Backend,
        rows: int,
        inputs: int,
        outputs: int,
        dtype: str = "float16",
        x_activation: Activation = RELU,
        *,
        has_bias: bool = True,
        needs_dx: bool = True,
    ) -> None:
        self.ops, rng = ops, np.random.default_rng(rows + inputs + outputs)
        x = NumpyBackend().activation_forward(x_activation, rng.standard_normal((rows, inputs)))
        w = 2 * rng.standard_normal((inputs, outputs)) / np.sqrt(inputs)
        b = rng.standard_normal(outputs) if has_bias else None
        x, w, b = (None if a is None else ops.asarray(ops.asarray(a), dtype) for a in (x, w, b))
        self.logits = LaterLogits(x, w, b, x_activation, needs_dx)
        self.labels = rng.integers(0, outputs, rows)
        self.record = ops.zeros((3, 3), "float64")

    def run(self, scale: float = 1.0, smoothing: float = 0.0, labels: Any = None) -> Any:
        labels = self.ops.asarray(self.labels if labels is None else labels)
        settings = {"scale": scale, "label_smoothing": smoothing}
        return self.ops.linear_cross_entropy_step(self.logits, labels, self.record, 1, **settings)

    def check(self, scale: float = 1.0, smoothing: float = 0.0) -> None:
        """Assert that it gives the numbers of NumPy's separate operations, in float64."""
        numpy_ops, logits = NumpyBackend(), self.logits
        x, w = exact(self.ops, logits.x), exact(self.ops, logits.w)
        b = None if logits.b is None else exact(self.ops, logits.b)
        y, _ = numpy_ops.linear_forward(x, w, b)
        settings = {"label_smoothing": smoothing}
        loss, weight, p = numpy_ops.softmax_cross_entropy_forward(y, self.labels, **settings)
        correct = numpy_ops.count_correct(y, self.labels)
        dz = scale * numpy_ops.softmax_cross_entropy_backward(p, self.labels, weight, **settings)
        found = self.run(scale, smoothing)
        rounding = ROUNDING[str(found.dtype)]
        near = {"rtol": rounding, "atol": 1e-5 * np.abs(dz).max() + 2.0**-24}
        np.testing.assert_allclose(exact(self.ops, found), dz, **near)
        record = np.array(self.ops.to_numpy(self.record))
        np.testing.assert_allclose(record[1], [loss, weight, correct], rtol=1e-5)
        assert not record[[0, 2]].any()
        if not logits.needs_dx:
            assert logits.dx is None
            return
        of_found = exact(self.ops, found)
        dx = numpy_ops.linear_backward_input(of_found, x, w, logits.x_activation)
        near = {"rtol": rounding, "atol": 1e-5 * np.abs(dx).max() + 2.0**-24}
        np.testing.assert_allclose(exact(self.ops, logits.dx), dx, **near)


@pytest.mark.in_turns(2)
@pytest.mark.parametrize("dtype", HALF_DTYPES)
@pytest.mark.parametrize(
    ("rows", "inputs", "outputs"),
    [(1, 2, 1), (6, 64, 4), (70, 128, 10), (9, 100, 16), (33, 512, 3)],
)
def test_numbers(backend: Backend, rows: int, inputs: int, outputs: int, dtype: str) -> None:
    Layer(backend, rows, inputs, outputs, dtype).check(scale=1024.0)


@pytest.mark.parametrize("name", ["identity", "tanh", "sigmoid", "selu"])
def test_activations_below(backend: Backend, name: str) -> None:
    Layer(backend, 5, 66, 7, x_activation=Activation(name)).check(scale=64.0)


def test_smoothing_and_what_may_be_missing(backend: Backend) -> None:
    Layer(backend, 12, 64, 5, has_bias=False).check(smoothing=0.2)
    Layer(backend, 12, 64, 5, needs_dx=False, x_activation=IDENTITY).check(smoothing=1.0)


def test_the_same_bits_again(backend: Backend) -> None:
    layer = Layer(backend, 700, 64, 10)
    bits = []
    for _ in range(2):
        found = layer.run()
        bits.append([exact(backend, a).tobytes() for a in (found, layer.logits.dx, layer.record)])
    assert bits[0] == bits[1]


def test_labels_that_are_no_classes_and_logits_that_are_no_numbers(backend: Backend) -> None:
    """Nothing outside is read; such a row is not right."""
    layer = Layer(backend, 4, 64, 3)
    layer.run(labels=np.array([0, -1, 7, 2]))
    assert np.array(backend.to_numpy(layer.record))[1, 2] <= 2
    values = exact(backend, layer.logits.x)
    values[2, 5] = np.nan
    layer.logits.x = backend.asarray(backend.asarray(values), "float16")
    found = exact(backend, layer.run())
    assert np.isnan(found).all(axis=1).tolist() == [False, False, True, False]
    assert np.isnan(np.array(backend.to_numpy(layer.record))[1, 0])


@pytest.mark.parametrize(("inputs", "outputs"), [(63, 4), (64, 17), (640, 10)])
def test_what_it_leaves_to_separate_operations(backend: Backend, inputs: int, outputs: int) -> None:
    layer = Layer(backend, 4, inputs, outputs)
    assert layer.run() is None
    assert not np.array(backend.to_numpy(layer.record)).any()


def test_what_does_not_fit_is_an_error(backend: Backend) -> None:
    with pytest.raises(ShapeError, match="labels"):
        Layer(backend, 4, 64, 3).run(labels=np.zeros(3, int))
    layer = Layer(backend, 4, 64, 3, x_activation=IDENTITY)
    layer.logits.x_activation = Activation("gelu")
    with pytest.raises(ConfigError, match="known from its result"):
        layer.run()
