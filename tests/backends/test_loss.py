from __future__ import annotations

from collections.abc import Callable
from itertools import product
from math import exp, log
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from support.element_losses import ElementOperation
from support.numeric import DTYPES, assert_derivative, assert_within_tolerance, call
from warpfit.backends import Backend
from warpfit.errors import DTypeError, ShapeError

ROWS, CLASSES = 6, 4


def normal(*shape: int, seed: int = 0) -> Any:
    return 2 * np.random.default_rng(seed).standard_normal(shape)


def positive(*shape: int, seed: int = 0) -> Any:
    return np.random.default_rng(seed).uniform(0.2, 3, shape)


# -- softmax cross-entropy
# ---------------------------------------------------------------------------------

LABELS = np.array([0, 3, 1, 1, 2, 3])


def naive_cross_entropy(
    logits: Any, labels: Any, class_weight: Any, sample_weight: Any, label_smoothing: float
) -> tuple[float, float]:
    """Return the contract's formula, written out row by row: the loss and its denominator."""
    num_classes = logits.shape[1]
    w = [1.0] * num_classes if class_weight is None else class_weight
    s = [1.0] * len(logits) if sample_weight is None else sample_weight
    total = weight = 0.0
    for i, label in enumerate(labels):
        log_sum = log(sum(exp(z) for z in logits[i]))
        p = [z - log_sum for z in logits[i]]
        loss = -(1 - label_smoothing) * w[label] * p[label]
        loss -= label_smoothing / num_classes * sum(w[c] * p[c] for c in range(num_classes))
        total += s[i] * loss
        weight += s[i] * w[label]
    return total / weight, weight


OPTIONS = [
    {
        "class_weight": positive(CLASSES) if class_weight else None,
        "sample_weight": positive(ROWS, seed=1) if sample_weight else None,
        "label_smoothing": smoothing,
    }
    for class_weight, sample_weight, smoothing in product(
        [False, True], [False, True], [0.0, 0.1, 1.0]
    )
]


def in_dtype(options: dict[str, Any], dtype: str) -> dict[str, Any]:
    return {
        name: v.astype(dtype) if isinstance(v, np.ndarray) else v for name, v in options.items()
    }


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("options", OPTIONS)
def test_softmax_cross_entropy_forward(
    backend: Backend, options: dict[str, Any], dtype: str
) -> None:
    logits = normal(ROWS, CLASSES)
    loss, weight, probabilities = call(
        backend.softmax_cross_entropy_forward,
        logits.astype(dtype),
        LABELS,
        **in_dtype(options, dtype),
    )
    expected, expected_weight = naive_cross_entropy(logits, LABELS, **options)
    assert loss.dtype == weight.dtype == probabilities.dtype == dtype
    assert_within_tolerance(loss, expected)
    assert_within_tolerance(weight, expected_weight)
    assert_within_tolerance(probabilities, call(backend.softmax_forward, logits), dtype)


@pytest.mark.parametrize("options", OPTIONS)
def test_softmax_cross_entropy_backward_is_the_derivative(
    backend: Backend, options: dict[str, Any]
) -> None:
    logits = normal(ROWS, CLASSES)

    def forward(value: Any) -> Any:
        return call(backend.softmax_cross_entropy_forward, value, LABELS, **options)

    _, weight, probabilities = forward(logits)
    gradient = call(
        backend.softmax_cross_entropy_backward, probabilities, LABELS, weight, **options
    )
    assert_derivative(gradient, lambda value: forward(value)[0], logits)


@pytest.mark.parametrize("dtype", ["uint8", "int8", "int32", "uint64"])
def test_labels_of_any_integer_dtype(backend: Backend, dtype: str) -> None:
    logits = normal(ROWS, CLASSES)
    expected = call(backend.softmax_cross_entropy_forward, logits, LABELS)
    for result, value in zip(
        call(backend.softmax_cross_entropy_forward, logits, LABELS.astype(dtype)),
        expected,
        strict=True,
    ):
        np.testing.assert_array_equal(result, value)


@given(
    rows=st.integers(1, 20),
    classes=st.integers(1, 20),
    dtype=st.sampled_from(DTYPES),
    smoothing=st.floats(0, 1),
    seed=st.integers(0, 1000),
)
@settings(deadline=None)
def test_softmax_cross_entropy_of_any_shape(
    backend: Backend, rows: int, classes: int, dtype: str, smoothing: float, seed: int
) -> None:
    rng = np.random.default_rng(seed)
    logits, labels = 3 * rng.standard_normal((rows, classes)), rng.integers(0, classes, rows)
    options = {
        "class_weight": rng.uniform(0.5, 2, classes),
        "sample_weight": rng.uniform(0.5, 2, rows),
        "label_smoothing": smoothing,
    }
    loss, *_ = call(
        backend.softmax_cross_entropy_forward,
        logits.astype(dtype),
        labels,
        **in_dtype(options, dtype),
    )
    assert_within_tolerance(loss, naive_cross_entropy(logits, labels, **options)[0], dtype)


@pytest.mark.parametrize("dtype", DTYPES)
def test_softmax_cross_entropy_is_stable(backend: Backend, dtype: str) -> None:
    logits = np.array([[1e4, -1e4, 0], [1e4, -1e4, 0], [-1e4, -1e4, -1e4]], dtype)
    for label, loss_of_first in ((0, 0.0), (1, 2e4), (2, 1e4)):
        labels = np.array([label, 0, 0])
        loss, weight, probabilities = call(backend.softmax_cross_entropy_forward, logits, labels)
        assert_within_tolerance(loss, (loss_of_first + 0 + np.log(3)) / 3)
        gradient = call(backend.softmax_cross_entropy_backward, probabilities, labels, weight)
        one_hot = np.eye(3)[labels]
        assert_within_tolerance(
            gradient, (np.array([[1, 0, 0], [1, 0, 0], [1 / 3] * 3]) - one_hot) / 3
        )


def test_softmax_cross_entropy_of_infinite_logits(backend: Backend) -> None:
    masked = np.array([[0.0, -np.inf, 0.0]])
    loss, *_ = call(backend.softmax_cross_entropy_forward, masked, np.array([0]))
    np.testing.assert_allclose(loss, np.log(2))
    loss, *_ = call(backend.softmax_cross_entropy_forward, masked, np.array([1]))
    assert loss == np.inf


def test_a_sample_weight_counts_a_row_so_many_times(backend: Backend) -> None:
    logits, times = normal(ROWS, CLASSES), np.array([1, 2, 0, 3, 1, 1])
    repeated = np.repeat(np.arange(ROWS), times)
    options = {"class_weight": positive(CLASSES), "label_smoothing": 0.1}
    weighted = call(
        backend.softmax_cross_entropy_forward,
        logits,
        LABELS,
        sample_weight=times.astype(float),
        **options,
    )
    expected = call(
        backend.softmax_cross_entropy_forward, logits[repeated], LABELS[repeated], **options
    )
    for result, value in zip(weighted[:2], expected[:2], strict=True):
        np.testing.assert_allclose(result, value, rtol=1e-14)


@pytest.mark.parametrize("which", ["class_weight", "sample_weight"])
@pytest.mark.parametrize("smoothing", [0.0, 0.1])
def test_cross_entropy_of_no_weight_is_zero(backend: Backend, which: str, smoothing: float) -> None:
    size = {"class_weight": CLASSES, "sample_weight": ROWS}[which]
    options = {which: np.zeros(size), "label_smoothing": smoothing}
    logits = normal(ROWS, CLASSES)
    loss, weight, probabilities = call(
        backend.softmax_cross_entropy_forward, logits, LABELS, **options
    )
    assert loss == weight == 0
    gradient = call(
        backend.softmax_cross_entropy_backward, probabilities, LABELS, weight, **options
    )
    np.testing.assert_array_equal(gradient, np.zeros((ROWS, CLASSES)))


@pytest.mark.parametrize(
    ("changed", "message"),
    [
        ({"logits": np.zeros(6)}, r"logits of shape \(M, C\), got \(6,\)"),
        ({"labels": np.zeros((6, 1), int)}, r"labels of shape \(6,\), got \(6, 1\)"),
        ({"labels": np.zeros(5, int)}, r"labels of shape \(6,\), got \(5,\)"),
        ({"class_weight": np.ones(6)}, r"class_weight of shape \(4,\), got \(6,\)"),
        ({"sample_weight": np.ones(4)}, r"sample_weight of shape \(6,\), got \(4,\)"),
        ({"sample_weight": np.ones((6, 1))}, r"sample_weight of shape \(6,\), got \(6, 1\)"),
    ],
)
def test_cross_entropy_refuses_shapes(
    backend: Backend, changed: dict[str, Any], message: str
) -> None:
    operands = {"logits": np.zeros((6, 4)), "labels": np.zeros(6, int)} | changed
    logits, labels = operands.pop("logits"), operands.pop("labels")
    with pytest.raises(ShapeError, match=f"softmax_cross_entropy_forward: expected {message}"):
        call(backend.softmax_cross_entropy_forward, logits, labels, **operands)
    with pytest.raises(ShapeError, match=f"softmax_cross_entropy_backward: expected {message}"):
        call(backend.softmax_cross_entropy_backward, logits, labels, np.ones(()), **operands)


@pytest.mark.parametrize("op", ["softmax_cross_entropy_forward", "count_correct"])
@pytest.mark.parametrize("dtype", ["float64", "bool"])
def test_labels_must_be_integers(backend: Backend, op: str, dtype: str) -> None:
    with pytest.raises(DTypeError, match=f"{op}: expected integer labels, got {dtype}"):
        call(getattr(backend, op), np.zeros((2, 3)), np.zeros(2, dtype))


# -- losses of a prediction and a target
# -------------------------------------------------------------------

DELTA = 0.8


def naive_huber(p: float, t: float) -> float:
    d = abs(p - t)
    return d * d / 2 if d <= DELTA else DELTA * (d - DELTA / 2)


def naive_binary_cross_entropy(z: float, t: float) -> float:
    return -t * log(1 / (1 + exp(-z))) - (1 - t) * log(1 / (1 + exp(z)))


ELEMENTWISE: dict[str, tuple[str, dict[str, Any], Callable[[float, float], float]]] = {
    "mse": ("mse", {}, lambda p, t: (p - t) ** 2),
    "half": ("mse", {"half": True}, lambda p, t: (p - t) ** 2 / 2),
    "absolute_error": ("absolute_error", {}, lambda p, t: abs(p - t)),
    "huber": ("huber", {"delta": DELTA}, naive_huber),
    "binary_cross_entropy": ("binary_cross_entropy", {}, naive_binary_cross_entropy),
    "sum_outputs": ("binary_cross_entropy", {"sum_outputs": True}, naive_binary_cross_entropy),
}
SHAPES = [(6, 3), (6, 1), (6,), (1, 4), (3, 2, 2)]


def operands(name: str, shape: tuple[int, ...], seed: int = 0) -> tuple[Any, Any]:
    target = np.random.default_rng(seed + 1).uniform(0, 1, shape)
    return normal(*shape, seed=seed), target if "binary" in ELEMENTWISE[name][0] else 3 * target


def naive_mean(name: str, prediction: Any, target: Any, sample_weight: Any) -> tuple[float, float]:
    """Return the weighted mean over rows and outputs (or the sum over outputs), element by
    element.
    """
    formula, s = (
        ELEMENTWISE[name][2],
        np.ones(len(prediction)) if sample_weight is None else sample_weight,
    )
    rows = [
        [formula(float(p), float(t)) for p, t in zip(np.ravel(row), np.ravel(to), strict=True)]
        for row, to in zip(prediction, target, strict=True)
    ]
    num_outputs = 1 if name == "sum_outputs" else len(rows[0])
    total = sum(weight * sum(row) for weight, row in zip(s, rows, strict=True))
    return total / (num_outputs * sum(s)), sum(s)


def forward_op(backend: Backend, name: str) -> Callable[..., Any]:
    return ElementOperation(backend, ELEMENTWISE[name][0], "forward")


def backward_op(backend: Backend, name: str) -> Callable[..., Any]:
    return ElementOperation(backend, ELEMENTWISE[name][0], "backward")


@pytest.mark.in_turns(3)
@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("weighted", [False, True])
@pytest.mark.parametrize("shape", SHAPES)
@pytest.mark.parametrize("name", ELEMENTWISE)
def test_loss_forward(
    backend: Backend, name: str, shape: tuple[int, ...], weighted: bool, dtype: str
) -> None:
    prediction, target = operands(name, shape)
    sample_weight = positive(shape[0]) if weighted else None
    loss, weight = call(
        forward_op(backend, name),
        prediction.astype(dtype),
        target.astype(dtype),
        sample_weight=sample_weight.astype(dtype) if weighted else None,
        **ELEMENTWISE[name][1],
    )
    expected, expected_weight = naive_mean(name, prediction, target, sample_weight)
    assert loss.dtype == weight.dtype == dtype
    assert_within_tolerance(loss, expected)
    assert_within_tolerance(weight, expected_weight)


@pytest.mark.in_turns(12)
@pytest.mark.parametrize("weighted", [False, True])
@pytest.mark.parametrize("shape", SHAPES)
@pytest.mark.parametrize("name", ELEMENTWISE)
def test_loss_backward_is_the_derivative(
    backend: Backend, name: str, shape: tuple[int, ...], weighted: bool
) -> None:
    prediction, target = operands(name, shape)
    options = ELEMENTWISE[name][1] | {"sample_weight": positive(shape[0]) if weighted else None}
    # scikit-learn divides its gradient by the rows only, whatever the number of outputs.
    factor = np.prod(shape[1:]) if name == "half" else 1

    def forward(value: Any) -> Any:
        return call(forward_op(backend, name), value, target, **options)

    _, weight = forward(prediction)
    gradient = call(backward_op(backend, name), prediction, target, weight, **options)
    assert_derivative(gradient, lambda value: factor * forward(value)[0], prediction)


@given(
    name=st.sampled_from(list(ELEMENTWISE)),
    rows=st.integers(1, 12),
    outputs=st.integers(1, 6),
    dtype=st.sampled_from(DTYPES),
    seed=st.integers(0, 1000),
)
@settings(deadline=None)
def test_loss_of_any_shape(
    backend: Backend, name: str, rows: int, outputs: int, dtype: str, seed: int
) -> None:
    prediction, target = operands(name, (rows, outputs), seed)
    sample_weight = positive(rows, seed=seed)
    loss, _ = call(
        forward_op(backend, name),
        prediction.astype(dtype),
        target.astype(dtype),
        sample_weight=sample_weight.astype(dtype),
        **ELEMENTWISE[name][1],
    )
    assert_within_tolerance(loss, naive_mean(name, prediction, target, sample_weight)[0], dtype)


@pytest.mark.parametrize("name", ELEMENTWISE)
def test_loss_of_no_weight_is_zero(backend: Backend, name: str) -> None:
    prediction, target = operands(name, (4, 3))
    options = ELEMENTWISE[name][1] | {"sample_weight": np.zeros(4)}
    loss, weight = call(forward_op(backend, name), prediction, target, **options)
    assert loss == weight == 0
    gradient = call(backward_op(backend, name), prediction, target, weight, **options)
    np.testing.assert_array_equal(gradient, np.zeros((4, 3)))


@pytest.mark.parametrize("name", ELEMENTWISE)
def test_loss_of_a_perfect_prediction(backend: Backend, name: str) -> None:
    is_binary = "binary" in ELEMENTWISE[name][0]
    target = np.array([[0.0, 1.0], [1.0, 0.0]])
    prediction = np.where(target > 0, 1e4, -1e4) if is_binary else target
    loss, weight = call(forward_op(backend, name), prediction, target, **ELEMENTWISE[name][1])
    assert loss == 0
    gradient = call(backward_op(backend, name), prediction, target, weight, **ELEMENTWISE[name][1])
    np.testing.assert_array_equal(gradient, np.zeros((2, 2)))


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize(
    ("name", "value", "slope"),
    [
        ("mse", 1e8, 2e4),
        ("absolute_error", 1e4, 1.0),
        ("huber", DELTA * (1e4 - DELTA / 2), DELTA),
        ("binary_cross_entropy", 1e4, 1.0),
    ],
)
def test_losses_far_out(
    backend: Backend, name: str, value: float, slope: float, dtype: str
) -> None:
    for sign in (1, -1):
        prediction = np.array([[sign * 1e4]], dtype)
        target = np.array([[float(sign < 0 and name == "binary_cross_entropy")]], dtype)
        loss, weight = call(forward_op(backend, name), prediction, target, **ELEMENTWISE[name][1])
        np.testing.assert_allclose(loss, value, rtol=1e-6)
        gradient = call(
            backward_op(backend, name), prediction, target, weight, **ELEMENTWISE[name][1]
        )
        np.testing.assert_allclose(gradient, [[sign * slope]], rtol=1e-6)


def test_huber_at_its_joints(backend: Backend) -> None:
    prediction, target = np.array([[-2.0], [-1.0], [0.0], [1.0], [2.0]]), np.zeros((5, 1))
    losses = [
        float(call(forward_op(backend, "huber"), row[None], np.zeros((1, 1)), delta=1.0)[0])
        for row in prediction
    ]
    assert losses == [1.5, 0.5, 0, 0.5, 1.5]
    gradient = call(backward_op(backend, "huber"), prediction, target, np.ones(()), delta=1.0)
    np.testing.assert_array_equal(gradient, [[-1], [-1], [0], [1], [1]])


@pytest.mark.parametrize("name", ELEMENTWISE)
def test_losses_refuse_shapes(backend: Backend, name: str) -> None:
    one = np.ones(())
    for op, more in ((forward_op(backend, name), ()), (backward_op(backend, name), (one,))):
        with pytest.raises(
            ShapeError, match=r"operands of the same shape, got \(3, 1\) and \(3,\)"
        ):
            call(op, np.zeros((3, 1)), np.zeros(3), *more)
        with pytest.raises(ShapeError, match=r"sample_weight of shape \(3,\), got \(3, 1\)"):
            call(op, np.zeros((3, 1)), np.zeros((3, 1)), *more, sample_weight=np.ones((3, 1)))
        with pytest.raises(ShapeError, match=r"expected a batch of rows, got shape \(\)"):
            call(op, one, one, *more)


# -- counts
# ------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("dtype", DTYPES)
def test_count_correct(backend: Backend, dtype: str) -> None:
    logits, labels = normal(50, 7).astype(dtype), np.random.default_rng(1).integers(0, 7, 50)
    expected = sum(
        max(range(7), key=row.__getitem__) == label
        for row, label in zip(logits, labels, strict=True)
    )
    result = call(backend.count_correct, logits, labels)
    assert (result.shape, result.dtype) == ((), np.int64)
    assert 0 < result == expected


def test_count_correct_takes_the_first_of_several_largest(backend: Backend) -> None:
    tie = np.array([[1.0, 3.0, 3.0, 0.0]])
    assert [int(call(backend.count_correct, tie, np.array([label]))) for label in range(4)] == [
        0,
        1,
        0,
        0,
    ]


def test_counts_stay_on_the_device(backend: Backend) -> None:
    logits = backend.asarray(normal(3, 2))
    for count in (
        backend.count_correct(logits, backend.asarray(np.array([0, 1, 1]))),
        backend.count_correct_binary(logits, logits),
    ):
        assert (count.shape, str(count.dtype)) == ((), "int64")


@pytest.mark.parametrize(
    ("logits", "target", "expected"),
    [
        ([[1.0, -1.0], [1.0, 1.0], [-2.0, 3.0]], [[1.0, 0.0], [1.0, 0.0], [0.0, 1.0]], 2),
        ([2.0, -2.0, 0.0, 0.0], [1.0, 1.0, 0.0, 0.0], 3),
        ([[0.5], [0.5], [-0.5]], [[0.5], [0.51], [0.49]], 2),
        ([[[1.0], [2.0]], [[1.0], [-2.0]]], [[[1.0], [1.0]], [[1.0], [1.0]]], 1),
    ],
)
def test_count_correct_binary(backend: Backend, logits: Any, target: Any, expected: int) -> None:
    assert call(backend.count_correct_binary, np.array(logits), np.array(target)) == expected


def test_counts_refuse_shapes(backend: Backend) -> None:
    with pytest.raises(ShapeError, match=r"count_correct: expected logits of shape \(M, C\)"):
        call(backend.count_correct, np.zeros(3), np.zeros(3, int))
    with pytest.raises(
        ShapeError, match=r"count_correct: expected labels of shape \(3,\), got \(4,\)"
    ):
        call(backend.count_correct, np.zeros((3, 2)), np.zeros(4, int))
    with pytest.raises(
        ShapeError, match="count_correct_binary: expected operands of the same shape"
    ):
        call(backend.count_correct_binary, np.zeros((3, 1)), np.zeros(3))


# -- against PyTorch
# ---------------------------------------------------------------------------------------


@pytest.mark.parametrize("weighted", [False, True])
@pytest.mark.parametrize("smoothing", [0.0, 0.1])
def test_cross_entropy_is_pytorchs(
    backend: Backend, torch: Any, smoothing: float, weighted: bool
) -> None:
    values, class_weight = normal(ROWS, CLASSES), positive(CLASSES) if weighted else None
    logits = torch.tensor(values, requires_grad=True)
    expected = torch.nn.functional.cross_entropy(
        logits,
        torch.tensor(LABELS),
        weight=torch.tensor(class_weight) if weighted else None,
        label_smoothing=smoothing,
    )
    expected.backward()
    options = {"class_weight": class_weight, "label_smoothing": smoothing}
    loss, weight, probabilities = call(
        backend.softmax_cross_entropy_forward, values, LABELS, **options
    )
    np.testing.assert_allclose(loss, expected.item(), rtol=1e-13)
    gradient = call(
        backend.softmax_cross_entropy_backward, probabilities, LABELS, weight, **options
    )
    np.testing.assert_allclose(gradient, logits.grad.numpy(), rtol=1e-11, atol=1e-15)


@pytest.mark.parametrize(
    ("name", "theirs", "options"),
    [
        ("mse", "mse_loss", {}),
        ("absolute_error", "l1_loss", {}),
        ("huber", "huber_loss", {"delta": DELTA}),
        ("binary_cross_entropy", "binary_cross_entropy_with_logits", {}),
    ],
)
def test_losses_are_pytorchs(
    backend: Backend, torch: Any, name: str, theirs: str, options: dict[str, Any]
) -> None:
    values, target = operands(name, (6, 3))
    prediction = torch.tensor(values, requires_grad=True)
    expected = getattr(torch.nn.functional, theirs)(prediction, torch.tensor(target), **options)
    expected.backward()
    loss, weight = call(forward_op(backend, name), values, target, **options)
    np.testing.assert_allclose(loss, expected.item(), rtol=1e-13)
    gradient = call(backward_op(backend, name), values, target, weight, **options)
    np.testing.assert_allclose(gradient, prediction.grad.numpy(), rtol=1e-12, atol=1e-16)
