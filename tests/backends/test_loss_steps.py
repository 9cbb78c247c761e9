"""Losses of a step as one operation: the numbers of the separate ones, from NumPy in float64."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

from support.element_losses import ElementOperation
from support.numeric import upload
from warpfit.backends import Backend, NumpyBackend
from warpfit.backends.base import FLOAT_DTYPES, HALF_DTYPES
from warpfit.errors import DTypeError, ShapeError

DTYPES = (*FLOAT_DTYPES, *HALF_DTYPES)
# Of a number's rounding to each dtype.
ROUNDING = {"float64": 1e-12, "float32": 2e-6, "float16": 2**-11 + 1e-6, "bfloat16": 2**-8 + 1e-6}
DELTA = 0.7
ELEMENT_LOSSES = {
    "mse": ("mse", {}),
    "half": ("mse", {"half": True}),
    "absolute_error": ("absolute_error", {}),
    "huber": ("huber", {"delta": DELTA}),
    "binary_cross_entropy": ("binary_cross_entropy", {}),
    "sum_outputs": ("binary_cross_entropy", {"sum_outputs": True}),
}


@pytest.fixture(scope="session")
def backend(make_backend: Callable[..., Backend]) -> Backend:
    """A backend that has these operations."""
    backend = make_backend()
    if isinstance(backend, NumpyBackend):
        pytest.skip("NumPy leaves these to the separate operations")
    return backend


class Setting:
    """Operands of a loss as a backend takes them, and what NumPy makes of the same numbers in
    float64.
    """

    def __init__(
        self, backend: Backend, op: str, outputs: Any, target: Any, dtype: str, **options: Any
    ) -> None:
        self.backend, self.op, self.dtype = backend, op, dtype
        self.others = "float32" if dtype in HALF_DTYPES else dtype
        self.outputs = backend.asarray(backend.asarray(outputs), dtype)
        self.options = {name: self._taken(value) for name, value in options.items()}
        self.target = self._taken(target)
        self.record = backend.zeros((3, 3), "float64")
        exact = [self._exact(self.outputs), self._exact(self.target)]
        self.expected = _separate(
            op, *exact, {name: self._exact(v) for name, v in self.options.items()}
        )

    def _taken(self, value: Any) -> Any:
        if not isinstance(value, np.ndarray):
            return value
        return self.backend.asarray(value.astype(self.others) if value.dtype.kind == "f" else value)

    def _exact(self, value: Any) -> Any:
        if not hasattr(value, "dtype"):
            return value
        if str(value.dtype) in HALF_DTYPES:
            value = self.backend.cast(value, "float32")
        host = np.array(self.backend.to_numpy(value))
        return host.astype("float64") if host.dtype.kind == "f" else host

    def run(self, scale: float = 1.0, row: Any = 1) -> Any:
        """Return the gradient as float64, after the loss has been recorded."""
        step = step_of(self.backend, self.op)
        gradient = step(self.outputs, self.target, self.record, row, scale=scale, **self.options)
        assert gradient.dtype == self.outputs.dtype
        assert gradient.shape == self.outputs.shape
        return self._exact(gradient)

    def recorded(self) -> Any:
        return np.array(self.backend.to_numpy(self.record))

    def check(self, scale: float = 1.0) -> None:
        """Assert that the operation gives NumPy's numbers."""
        gradient = self.run(scale)
        record = self.recorded()
        of_step, expected = self.expected
        np.testing.assert_allclose(record[1], of_step, rtol=3 * ROUNDING[self.others], atol=1e-7)
        assert record[1, 2] == of_step[2]
        assert not record[[0, 2]].any()
        tiny = {"float16": 2.0**-24}.get(self.dtype, 0.0)  # what lies between numbers near 0
        largest = np.abs(expected[np.isfinite(expected)] * scale).max(initial=0)
        atol = tiny + largest * ROUNDING[self.others]
        np.testing.assert_allclose(gradient, expected * scale, rtol=ROUNDING[self.dtype], atol=atol)


def step_of(backend: Backend, op: str) -> Any:
    if op == "softmax_cross_entropy":
        return backend.softmax_cross_entropy_step
    return ElementOperation(backend, op, "step")


def _separate(op: str, outputs: Any, target: Any, options: dict[str, Any]) -> tuple[Any, Any]:
    """Return what is to be recorded, and the gradient, from NumPy's separate operations."""
    ops = NumpyBackend()
    if op == "softmax_cross_entropy":
        forward, backward = ops.softmax_cross_entropy_forward, ops.softmax_cross_entropy_backward
    else:
        forward, backward = (ElementOperation(ops, op, part) for part in ("forward", "backward"))
    correct: Any = 0
    with np.errstate(all="ignore"):
        if op == "softmax_cross_entropy":
            loss, weight, saved = forward(outputs, target, **options)
            correct = ops.count_correct(outputs, target)
        else:
            (loss, weight), saved = forward(outputs, target, **options), outputs
            if op == "binary_cross_entropy":
                correct = ops.count_correct_binary(outputs, target)
        return np.array([loss, weight, correct], "f8"), np.array(
            backward(saved, target, weight, **options)
        )


def weights(size: int, seed: int) -> Any:
    return np.random.default_rng(seed).uniform(0.2, 3, size)


def cross_entropy(backend: Backend, rows: int, classes: int, dtype: str, **options: Any) -> Setting:
    rng = np.random.default_rng(rows + classes)
    logits, labels = 3 * rng.standard_normal((rows, classes)), rng.integers(0, classes, rows)
    logits[::2] += 4 * np.eye(classes)[labels[::2]]
    return Setting(backend, "softmax_cross_entropy", logits, labels, dtype, **options)


def elements(
    backend: Backend, name: str, shape: tuple[int, ...], dtype: str, **options: Any
) -> Setting:
    op, settings = ELEMENT_LOSSES[name]
    rng = np.random.default_rng(len(shape))
    outputs, target = 2 * rng.standard_normal(shape), 2 * rng.standard_normal(shape)
    if op == "binary_cross_entropy":
        target = rng.uniform(size=shape)
        target[::2] = outputs[::2] > 0
    return Setting(backend, op, outputs, target, dtype, **settings, **options)


def any_loss(
    backend: Backend, name: str, rows: int, columns: int, dtype: str, **options: Any
) -> Setting:
    if name == "softmax_cross_entropy":
        return cross_entropy(backend, rows, columns, dtype, **options)
    return elements(backend, name, (rows, columns), dtype, **options)


@pytest.mark.in_turns(9)
@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize(
    ("rows", "classes"), [(1, 1), (6, 4), (70, 10), (300, 16), (9, 33), (5, 256)]
)
def test_cross_entropy(backend: Backend, rows: int, classes: int, dtype: str) -> None:
    cross_entropy(backend, rows, classes, dtype).check(scale=1024.0)


@pytest.mark.in_turns(4)
@pytest.mark.parametrize("dtype", ["float32", "float16"])
@pytest.mark.parametrize("classes", [1000, 1001, 9000])
def test_cross_entropy_of_many_classes(backend: Backend, classes: int, dtype: str) -> None:
    options = {"class_weight": weights(classes, 0), "label_smoothing": 0.1}
    cross_entropy(backend, 5, classes, dtype).check()
    cross_entropy(backend, 5, classes, dtype, **options).check()


@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
@pytest.mark.parametrize("smoothing", [0.0, 0.1, 1.0])
@pytest.mark.parametrize("of_samples", [False, True])
@pytest.mark.parametrize("of_classes", [False, True])
def test_cross_entropy_with_weights(
    backend: Backend, of_classes: bool, of_samples: bool, smoothing: float, dtype: str
) -> None:
    options = {
        "class_weight": weights(7, 0) if of_classes else None,
        "sample_weight": weights(90, 1) if of_samples else None,
        "label_smoothing": smoothing,
    }
    cross_entropy(backend, 90, 7, dtype, **options).check(scale=2.0)


@pytest.mark.in_turns(16)
@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize(
    "shape", [(1,), (7, 1), (6, 5), (40, 33), (3, 4, 2), (33, 64), (3, 5000), (2, 1029)]
)
@pytest.mark.parametrize("name", ELEMENT_LOSSES)
def test_element_losses(backend: Backend, name: str, shape: tuple[int, ...], dtype: str) -> None:
    elements(backend, name, shape, dtype).check(scale=64.0)
    elements(backend, name, shape, dtype, sample_weight=weights(shape[0], 2)).check()


@pytest.mark.parametrize("name", ["softmax_cross_entropy", *ELEMENT_LOSSES])
@pytest.mark.parametrize("of_classes", [False, True])
def test_no_weight(backend: Backend, name: str, of_classes: bool) -> None:
    if name == "softmax_cross_entropy":
        options = {"class_weight": np.zeros(4)} if of_classes else {"sample_weight": np.zeros(6)}
        setting = cross_entropy(backend, 6, 4, "float32", **options)
    else:
        setting = elements(backend, name, (6, 4), "float32", sample_weight=np.zeros(6))
    setting.check()
    assert not setting.run().any()


@pytest.mark.parametrize("special", [np.nan, np.inf, -np.inf])
@pytest.mark.parametrize("classes", [3, 16, 600])
def test_logits_that_are_no_numbers(backend: Backend, classes: int, special: float) -> None:
    for at_label in (False, True):
        logits, labels = np.zeros((4, classes)), np.array([0, 1, 2, 0])
        logits[1, 1 if at_label else 0] = special
        setting = Setting(backend, "softmax_cross_entropy", logits, labels, "float32")
        setting.check()


@pytest.mark.parametrize("special", [np.nan, np.inf, -np.inf])
@pytest.mark.parametrize("name", ELEMENT_LOSSES)
def test_outputs_that_are_no_numbers(backend: Backend, name: str, special: float) -> None:
    op, options = ELEMENT_LOSSES[name]
    outputs, target = np.full((4, 9), 0.25), np.ones((4, 9))
    outputs[2, 3] = special
    Setting(backend, op, outputs, target, "float32", **options).check()


def test_labels_that_are_no_classes(backend: Backend) -> None:
    """They are not checked, but nothing outside is read or written."""
    labels = np.array([0, -1, 7, 2])
    setting = cross_entropy(backend, 4, 4, "float32")
    setting.target = backend.asarray(labels)
    setting.options = {"class_weight": backend.asarray(np.ones(4, "f4"))}
    setting.run()
    assert setting.recorded()[1, 1] == 2


def test_ties_and_gradients_too_large(backend: Backend) -> None:
    logits = np.array([[1.0, 3.0, 3.0, 0.0]] * 4)
    Setting(backend, "softmax_cross_entropy", logits, np.arange(4), "float32").check()
    assert np.isinf(elements(backend, "mse", (3, 4), "float16").run(scale=1e9)).all()


@pytest.mark.parametrize("dtype", ["float32", "float16"])
@pytest.mark.parametrize("name", ["softmax_cross_entropy", *ELEMENT_LOSSES])
def test_arrays_that_begin_at_any_address(backend: Backend, name: str, dtype: str) -> None:
    setting = any_loss(backend, name, 20, 8, dtype)
    expected = setting.run(), setting.recorded()
    shifted = backend.empty((161,), dtype)
    view = backend.reshape(shifted[1:], (20, 8))
    backend.assign(view, setting.outputs)
    setting.outputs = view
    np.testing.assert_allclose(setting.run(), expected[0], rtol=1e-6)
    np.testing.assert_allclose(setting.recorded(), expected[1], rtol=1e-6)


@pytest.mark.parametrize("name", ["softmax_cross_entropy", *ELEMENT_LOSSES])
def test_the_row_may_lie_on_the_device(backend: Backend, name: str) -> None:
    setting = any_loss(backend, name, 5, 8, "float32")
    setting.run(row=backend.asarray(np.array(2.0)))
    assert setting.recorded().any(axis=1).tolist() == [False, False, True]
    with pytest.raises(IndexError, match=r"_step: expected a row of record \(3, 3\), got 3"):
        setting.run(row=3)


@pytest.mark.parametrize("name", ["softmax_cross_entropy", "mse", "binary_cross_entropy"])
def test_the_same_bits_again(backend: Backend, name: str) -> None:
    setting = any_loss(backend, name, 900, 10, "float32", sample_weight=weights(900, 0))
    first, record = setting.run(), setting.recorded()
    np.testing.assert_array_equal(setting.run(), first)
    np.testing.assert_array_equal(setting.recorded(), record)


def test_no_rows_are_left_to_the_separate_operations(backend: Backend) -> None:
    for shape in ((0, 4), (3, 0)):
        outputs, record = backend.asarray(np.zeros(shape)), backend.zeros((1, 3), "float64")
        labels = backend.asarray(np.zeros(shape[0], "i8"))
        assert backend.softmax_cross_entropy_step(outputs, labels, record, 0) is None
        assert step_of(backend, "mse")(outputs, outputs, record, 0) is None


def test_numpy_leaves_all_to_the_separate_operations() -> None:
    ops, one, record = NumpyBackend(), np.ones((3, 2)), np.zeros((1, 3))
    assert ops.softmax_cross_entropy_step(one, np.zeros(3, int), record, 0) is None
    for op, options in ELEMENT_LOSSES.values():
        assert step_of(ops, op)(one, one, record, 0, **options) is None
    assert not record.any()


def test_steps_refuse_what_does_not_fit(backend: Backend) -> None:
    record, one = backend.zeros((1, 3), "float64"), np.ones((3, 2), "f4")
    half, labels = (
        backend.asarray(backend.asarray(one), "float16"),
        backend.asarray(np.zeros(3, "i8")),
    )
    with pytest.raises(
        DTypeError, match="expected target of dtype float32 for float16, got float64"
    ):
        step_of(backend, "huber")(half, upload(backend, one.astype("f8")), record, 0)
    with pytest.raises(
        DTypeError, match="expected class_weight of dtype float32 for float16, got float16"
    ):
        backend.softmax_cross_entropy_step(half, labels, record, 0, class_weight=half[0])
    with pytest.raises(ShapeError, match=r"operands of the same shape, got \(3, 2\) and \(2,\)"):
        step_of(backend, "absolute_error")(half, upload(backend, one[0]), record, 0)
    with pytest.raises(ShapeError, match=r"sample_weight of shape \(3,\), got \(3, 2\)"):
        step_of(backend, "absolute_error")(
            half, upload(backend, one), record, 0, sample_weight=upload(backend, one)
        )
    with pytest.raises(ShapeError, match=r"labels of shape \(3,\), got \(2,\)"):
        backend.softmax_cross_entropy_step(half, labels[1:], record, 0)
