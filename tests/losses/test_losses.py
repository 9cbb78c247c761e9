"""All losses: their values and gradients, the targets that they take, and their names."""

from __future__ import annotations

import json
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

from support.numeric import assert_derivative
from warpfit import Tensor
from warpfit.backends import NumpyBackend
from warpfit.errors import ConfigError, DataError, DTypeError, ShapeError
from warpfit.losses import (
    AbsoluteError,
    BinaryCrossEntropy,
    Huber,
    Loss,
    MeanSquaredError,
    Poisson,
    SoftmaxCrossEntropy,
    resolve,
)

ROWS, OUTPUTS = 6, 4
NAN, INF = float("nan"), float("inf")

# Formulas for one row: outputs (OUTPUTS,), target → loss.
RowFormula = Callable[[Any, Any], Any]


def cross_entropy(smoothing: float = 0.0, weights: Any = None) -> RowFormula:
    def row_loss(z: Any, label: int) -> Any:
        log_p = z - np.log(np.exp(z).sum())
        w = np.ones(OUTPUTS) if weights is None else np.asarray(weights)
        return -(1 - smoothing) * w[label] * log_p[label] - smoothing / OUTPUTS * (w * log_p).sum()

    return row_loss


def huber(delta: float) -> RowFormula:
    def row_loss(p: Any, t: Any) -> Any:
        d = np.abs(p - t)
        return np.where(d <= delta, d**2 / 2, delta * (d - delta / 2)).mean()

    return row_loss


def binary(z: Any, t: Any) -> Any:
    p = 1 / (1 + np.exp(-z))
    return -t * np.log(p) - (1 - t) * np.log(1 - p)


CLASS_WEIGHTS = (0.5, 2, 1, 3)

# Each loss with its formula; rows of cross-entropy may weigh by their class.
LOSSES: dict[str, tuple[Loss, RowFormula]] = {
    "cross_entropy": (SoftmaxCrossEntropy(), cross_entropy()),
    "smoothed": (SoftmaxCrossEntropy(label_smoothing=0.1), cross_entropy(0.1)),
    "class weights": (
        SoftmaxCrossEntropy(class_weight=CLASS_WEIGHTS),
        cross_entropy(0, CLASS_WEIGHTS),
    ),
    "both": (SoftmaxCrossEntropy(0.3, CLASS_WEIGHTS), cross_entropy(0.3, CLASS_WEIGHTS)),
    "mse": (MeanSquaredError(), lambda p, t: ((p - t) ** 2).mean()),
    "absolute_error": (AbsoluteError(), lambda p, t: np.abs(p - t).mean()),
    "huber": (Huber(), huber(1.0)),
    "huber 0.3": (Huber(delta=0.3), huber(0.3)),
    "binary": (BinaryCrossEntropy(), lambda z, t: binary(z, t).mean()),
    "binary sum": (BinaryCrossEntropy(sum_outputs=True), lambda z, t: binary(z, t).sum()),
    "poisson": (Poisson(), lambda z, t: (np.exp(z) - t * z + t * np.log(t) - t).sum()),
}
DEFAULTS = (
    SoftmaxCrossEntropy,
    MeanSquaredError,
    AbsoluteError,
    Huber,
    BinaryCrossEntropy,
    Poisson,
)


def example(loss: Loss, rows: int = ROWS) -> tuple[Any, Any, Any]:
    """Return outputs, targets and sample weights."""
    rng = np.random.default_rng(0)
    outputs, weights = 2 * rng.standard_normal((rows, OUTPUTS)), rng.uniform(0.5, 2, rows)
    if isinstance(loss, SoftmaxCrossEntropy):
        return outputs, rng.integers(0, OUTPUTS, rows), weights
    return outputs, rng.uniform(0, 1, (rows, OUTPUTS)), weights


def mean_of_rows(
    loss: Loss, formula: RowFormula, outputs: Any, targets: Any, weights: Any
) -> float:
    """Return Σ s·l / Σ s·w, w being the weight of the row's class."""
    row_losses = np.array([formula(*row) for row in zip(outputs, targets, strict=True)])
    class_weights = loss.class_weights()
    w = np.ones(len(outputs)) if class_weights is None else np.take(class_weights, targets)
    return float((weights * row_losses).sum() / (weights * w).sum())


@pytest.fixture(params=LOSSES)
def case(request: pytest.FixtureRequest) -> tuple[Loss, RowFormula]:
    return LOSSES[request.param]


# -- values and gradients
# ----------------------------------------------------------------------------------


def test_value(case: Any) -> None:
    loss, formula = case
    outputs, targets, weights = example(loss)
    ones = np.ones(ROWS)
    assert loss(outputs, targets) == pytest.approx(
        mean_of_rows(loss, formula, outputs, targets, ones), rel=1e-12
    )
    assert loss(outputs, targets, sample_weight=weights) == pytest.approx(
        mean_of_rows(loss, formula, outputs, targets, weights), rel=1e-12
    )


@pytest.mark.parametrize("weighted", [False, True])
def test_gradient(case: Any, weighted: bool) -> None:
    loss, _ = case
    outputs, targets, weights = example(loss)
    sample_weight = weights if weighted else None
    value, gradient = loss.forward_and_grad(outputs, targets, sample_weight=sample_weight)
    assert value == loss(outputs, targets, sample_weight=sample_weight)
    assert_derivative(gradient, lambda z: loss(z, targets, sample_weight=sample_weight), outputs)


def test_tensors(case: Any) -> None:
    loss, _ = case
    outputs, targets, weights = example(loss)
    value, gradient = loss.forward_and_grad(outputs, targets, sample_weight=weights)
    tensor = Tensor(outputs, requires_grad=True)
    result = loss(tensor, targets, sample_weight=weights)
    assert isinstance(result, Tensor)
    assert result.shape == ()
    assert float(result.data) == value
    (result * 3.0).backward()
    np.testing.assert_allclose(tensor.grad, 3 * gradient, rtol=1e-14)


def test_tensors_as_targets(case: Any) -> None:
    loss, _ = case
    outputs, targets, _ = example(loss)
    assert float(loss(Tensor(outputs), Tensor(targets)).data) == loss(outputs, targets)


def test_float32_stays_float32(case: Any) -> None:
    loss, _ = case
    outputs, targets, weights = example(loss)
    expected, expected_gradient = loss.forward_and_grad(outputs, targets, sample_weight=weights)
    value, gradient = loss.forward_and_grad(
        outputs.astype("float32"), targets, sample_weight=weights
    )
    assert type(value) is float
    assert value == pytest.approx(expected, rel=1e-5)
    assert gradient.dtype == "float32"
    np.testing.assert_allclose(gradient, expected_gradient, atol=1e-6)
    assert loss(Tensor(outputs.astype("float32")), targets).dtype == "float32"


def test_no_rows(case: Any) -> None:
    loss, _ = case
    outputs, targets, weights = example(loss, rows=0)
    value, gradient = loss.forward_and_grad(outputs, targets, sample_weight=weights)
    assert value == 0
    assert gradient.shape == (0, OUTPUTS)


def test_one_row(case: Any) -> None:
    loss, formula = case
    outputs, targets, weights = example(loss, rows=1)
    expected = mean_of_rows(loss, formula, outputs, targets, weights)
    assert loss(outputs, targets, sample_weight=weights) == pytest.approx(expected, rel=1e-12)


def test_half_squared_error_is_scikit_learns() -> None:
    loss = MeanSquaredError(half=True)
    outputs, targets, weights = example(loss)
    value, gradient = loss.forward_and_grad(outputs, targets)
    assert value == pytest.approx(((outputs - targets) ** 2).mean() / 2)
    np.testing.assert_allclose(gradient, (outputs - targets) / ROWS, rtol=1e-14)
    _, gradient = loss.forward_and_grad(outputs, targets, sample_weight=weights)
    np.testing.assert_allclose(
        gradient, weights[:, None] * (outputs - targets) / weights.sum(), rtol=1e-14
    )


@pytest.mark.parametrize("loss_class", DEFAULTS)
def test_forward_and_grad_on_the_class_uses_the_defaults(loss_class: type[Loss]) -> None:
    outputs, targets, weights = example(loss_class())
    on_class = loss_class.forward_and_grad(outputs, targets, sample_weight=weights)
    on_instance = loss_class().forward_and_grad(outputs, targets, sample_weight=weights)
    assert on_class[0] == on_instance[0]
    np.testing.assert_array_equal(on_class[1], on_instance[1])


def test_forward_and_grad_on_an_instance_uses_its_settings() -> None:
    outputs, targets, _ = example(Huber())
    assert (
        Huber(0.1).forward_and_grad(outputs, targets)[0]
        != Huber.forward_and_grad(outputs, targets)[0]
    )
    assert "gradient" in (SoftmaxCrossEntropy.forward_and_grad.__doc__ or "")


def test_images_as_outputs() -> None:
    outputs, targets = np.ones((2, 3, 4)), np.zeros((2, 3, 4))
    for loss in (MeanSquaredError(), AbsoluteError()):
        value, gradient = loss.forward_and_grad(outputs, targets)
        assert value == 1
        assert gradient.shape == (2, 3, 4)


def test_large_logits_stay_finite() -> None:
    logits = np.array([[1e4, -1e4], [-1e4, 1e4]])
    value, gradient = SoftmaxCrossEntropy.forward_and_grad(logits, [0, 0])
    assert value == 1e4
    np.testing.assert_array_equal(gradient, [[0, 0], [-0.5, 0.5]])
    value, gradient = BinaryCrossEntropy.forward_and_grad(logits, [[1, 0], [1, 1]])
    assert value == 2500
    np.testing.assert_array_equal(gradient, [[0, 0], [-0.25, 0]])


def test_vjp_gives_the_total_weight() -> None:
    ops = NumpyBackend()
    logits, labels, weights = example(SoftmaxCrossEntropy())
    loss = SoftmaxCrossEntropy(class_weight=CLASS_WEIGHTS)
    class_weight = np.array(CLASS_WEIGHTS)
    _, total, _ = loss.vjp(ops, logits, labels, class_weight=class_weight, sample_weight=weights)
    assert float(total) == pytest.approx((weights * class_weight[labels]).sum())
    for one in (MeanSquaredError(), AbsoluteError(), Huber(), BinaryCrossEntropy()):
        outputs, targets, weights = example(one)
        assert float(one.vjp(ops, outputs, targets, sample_weight=weights)[1]) == pytest.approx(
            weights.sum()
        )


# -- targets
# -----------------------------------------------------------------------------------------------


FLOAT_LOSSES = [MeanSquaredError(), AbsoluteError(), Huber(), BinaryCrossEntropy()]


@pytest.mark.parametrize("loss", FLOAT_LOSSES, ids=lambda loss: loss.name)
@pytest.mark.parametrize("dtype", ["float32", "float64"])
@pytest.mark.parametrize(
    "targets", [[[0, 1], [1, 0]], np.array([[0, 1], [1, 0]], "uint8"), np.eye(2)[::-1] > 0]
)
def test_targets_become_the_outputs_dtype(loss: Loss, dtype: str, targets: Any) -> None:
    prepared = loss.prepare_targets(targets, (2,), dtype)
    assert prepared.dtype == dtype
    np.testing.assert_array_equal(prepared, [[0, 1], [1, 0]])


@pytest.mark.parametrize("loss", FLOAT_LOSSES, ids=lambda loss: loss.name)
def test_a_vector_of_targets_is_a_column_for_one_output(loss: Loss) -> None:
    column = np.array([[0.5], [0], [1]])
    outputs = np.array([[1.0], [2], [3]])
    np.testing.assert_array_equal(loss.prepare_targets(column[:, 0], (1,), "float64"), column)
    np.testing.assert_array_equal(loss.prepare_targets(column, (1,), "float64"), column)
    assert loss(outputs, column[:, 0]) == loss(outputs, column)


@pytest.mark.parametrize("loss", FLOAT_LOSSES, ids=lambda loss: loss.name)
@pytest.mark.parametrize(
    ("targets", "shape", "error", "message"),
    [
        (np.zeros(3), (2,), ShapeError, r"expected targets of shape \(M, 2\) .*, got \(3,\)$"),
        (
            np.arange(3),
            (2,),
            ShapeError,
            r".*, got \(3,\); labels of classes take 'cross_entropy'$",
        ),
        (
            np.zeros((3, 4)),
            (2,),
            ShapeError,
            r"expected targets of shape \(M, 2\) .*, got \(3, 4\)",
        ),
        (
            np.zeros((3, 2)),
            (2, 5),
            ShapeError,
            r"expected targets of shape \(M, 2, 5\) .*, got \(3, 2\)",
        ),
        (0.5, (2,), ShapeError, r"expected targets of shape \(M, 2\) .*, got \(\)"),
        ([["a", "b"]], (2,), DTypeError, "expected targets to hold numbers, got text such as 'a'"),
        ([[1j, 0]], (2,), DTypeError, "expected targets to hold numbers, got complex numbers"),
    ],
)
def test_targets_that_are_refused(
    loss: Loss, targets: Any, shape: Any, error: Any, message: str
) -> None:
    named = message if error is DTypeError else f"{loss.name}: {message}"
    with pytest.raises(error, match=f"^{named}"):
        loss.prepare_targets(targets, shape, "float32")


@pytest.mark.parametrize(
    ("target", "message"),
    [
        (1.5, "from 0 to 1.5"),
        (-0.5, "from -0.5 to 0"),
        (NAN, "from nan to nan"),
        (INF, "from 0 to inf"),
    ],
)
def test_binary_targets_lie_between_0_and_1(target: float, message: str) -> None:
    with pytest.raises(DataError, match=rf"expected targets in \[0, 1\], got values {message}"):
        BinaryCrossEntropy().prepare_targets([[0.0], [target]], (1,), "float32")


@pytest.mark.parametrize("loss", [SoftmaxCrossEntropy(), *FLOAT_LOSSES], ids=lambda loss: loss.name)
def test_lengths_that_differ_are_refused(loss: Loss) -> None:
    outputs, targets, weights = example(loss)
    with pytest.raises(ShapeError):
        loss.forward_and_grad(outputs, targets[:-1])
    with pytest.raises(ShapeError):
        loss.forward_and_grad(outputs, targets, sample_weight=weights[:-1])


def test_outputs_must_be_an_array() -> None:
    with pytest.raises(DTypeError, match="expected an array, got list"):
        MeanSquaredError.forward_and_grad([[1.0]], [[1.0]])
    assert MeanSquaredError()([[1.0]], [[3.0]]) == 4


# -- right and wrong
# ---------------------------------------------------------------------------------------


def test_who_knows_right_from_wrong() -> None:
    ops = NumpyBackend()
    for loss in (MeanSquaredError(), AbsoluteError(), Huber()):
        assert not loss.counts_correct
        assert loss.count_correct(ops, *example(loss)[:2]) is None
    logits = np.array([[1.0, 2], [3, 0], [0, 5]])
    assert SoftmaxCrossEntropy().count_correct(ops, logits, np.array([1, 1, 1])) == 2
    assert (
        BinaryCrossEntropy().count_correct(ops, logits - 1, np.array([[0.0, 1], [1, 1], [0, 1]]))
        == 2
    )
    assert SoftmaxCrossEntropy.counts_correct
    assert BinaryCrossEntropy.counts_correct


# -- settings
# ----------------------------------------------------------------------------------------------


@pytest.mark.parametrize("delta", [0, -1, NAN, INF])
def test_refuses_deltas(delta: float) -> None:
    with pytest.raises(ConfigError, match="expected a Huber delta above 0, got"):
        Huber(delta)


def test_poisson_takes_counts_from_zero() -> None:
    assert Poisson()(np.zeros((1, 2)), np.array([[0.0, 1.0]])) == 1.0
    with pytest.raises(DataError, match="poisson: expected targets of at least 0, got -1"):
        Poisson()(np.zeros((1, 1)), np.array([[-1.0]]))


@pytest.mark.parametrize("loss_class", DEFAULTS)
def test_resolve_by_name(loss_class: type[Loss]) -> None:
    assert resolve(loss_class.name) == loss_class()


def test_the_names() -> None:
    assert list(Loss.by_name) == [
        "cross_entropy",
        "mse",
        "absolute_error",
        "huber",
        "binary_cross_entropy",
        "poisson",
    ]


def test_resolve_returns_a_loss_itself(case: Any) -> None:
    loss, _ = case
    assert resolve(loss) is loss


@pytest.mark.parametrize(
    "loss", [loss for loss, _ in LOSSES.values()] + [MeanSquaredError(half=True)], ids=repr
)
def test_round_trip_through_json(loss: Loss) -> None:
    assert resolve(json.loads(json.dumps(loss.to_dict()))) == loss


@pytest.mark.parametrize(
    ("loss", "message"),
    [
        ("hinge", "expected a loss among cross_entropy, mse, .*, got 'hinge'"),
        ("", "expected a loss among"),
        (None, "expected a loss among .*, got None"),
        (MeanSquaredError, "expected a loss among"),
        ({}, "expected a loss among"),
        ({"name": "hinge"}, "expected a loss among"),
        ({"name": ["mse"]}, "expected a loss among"),
        ({"name": "mse", "delta": 1}, "expected the settings of the loss mse, got {'delta': 1}"),
        ({"name": "huber", "delta": "wide"}, "Huber: expected delta to be a number, got 'wide'"),
        ({"name": "huber", "delta": -1}, "expected a Huber delta above 0, got -1"),
    ],
)
def test_resolve_refuses(loss: Any, message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        resolve(loss)


def test_a_loss_that_inherits_from_another_does_not_take_its_name() -> None:
    class HalvedError(MeanSquaredError):
        def values(self, ops: Any, outputs: Any) -> Any:
            return ops.binary("mul", outputs, 0.5)

    assert resolve("mse") == MeanSquaredError()
    assert HalvedError().to_dict() == {"name": "HalvedError", "half": False}
    with pytest.raises(ConfigError, match=r"expected a loss among .*, got .HalvedError."):
        resolve("HalvedError")
    assert resolve(HalvedError()) == HalvedError()
