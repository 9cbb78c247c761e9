"""Labels, smoothing and class weights of cross-entropy."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from warpfit.errors import ConfigError, DataError, DTypeError, ShapeError
from warpfit.losses import MeanSquaredError, SoftmaxCrossEntropy

NAN, INF = float("nan"), float("inf")


@pytest.mark.parametrize("labels", [[0, 3, 1], (0, 3, 1), np.array([0, 3, 1], "uint8")])
def test_labels_become_int64(labels: Any) -> None:
    prepared = SoftmaxCrossEntropy().prepare_targets(labels, (4,), "float32")
    assert prepared.dtype == "int64"
    np.testing.assert_array_equal(prepared, [0, 3, 1])


def test_bools_are_labels_of_two_classes() -> None:
    prepared = SoftmaxCrossEntropy().prepare_targets(np.array([True, False]), (2,), "float32")
    np.testing.assert_array_equal(prepared, [1, 0])


@pytest.mark.parametrize(
    ("labels", "shape", "error", "message"),
    [
        (
            [0, 4],
            (4,),
            DataError,
            r"expected labels in \[0, 4\) for 4 outputs, got labels from 0 to 4",
        ),
        ([-1, 2], (4,), DataError, "got labels from -1 to 2"),
        (np.array([2**63], "uint64"), (4,), DataError, "got labels from 9223372036854775808 to"),
        ([0], (0,), ShapeError, "expected at least two outputs, one a class, got 0"),
        (
            [0],
            (1,),
            ShapeError,
            "got 1, which is always right; binary_cross_entropy tells two classes by one",
        ),
        ([0.0, 1.0], (4,), DTypeError, r"integer labels, got dtype float64; y.astype\(int\) has"),
        ([0.5, 1.0], (4,), DTypeError, "got dtype float64; a regression takes loss='mse'"),
        (["cat", "dog"], (4,), DTypeError, "expected targets to hold numbers, got text such as"),
        ([[0], [1]], (4,), ShapeError, r"expected labels of shape \(M,\), got \(2, 1\)"),
        (3, (4,), ShapeError, r"expected labels of shape \(M,\), got \(\)"),
        (
            [0, 1],
            (4, 2),
            ShapeError,
            r"expected outputs of shape \(M, C\), got samples of shape \(4, 2\)",
        ),
        ([0, 1], (), ShapeError, r"expected outputs of shape \(M, C\), got samples of shape \(\)"),
    ],
)
def test_labels_that_are_refused(labels: Any, shape: Any, error: Any, message: str) -> None:
    with pytest.raises(error, match=message):
        SoftmaxCrossEntropy().prepare_targets(labels, shape, "float32")


def test_class_weights_that_do_not_fit_the_outputs() -> None:
    with pytest.raises(ShapeError, match="expected 4 class weights, one a class, got 2"):
        SoftmaxCrossEntropy(class_weight=(1, 2)).prepare_targets([0], (4,), "float32")


@pytest.mark.parametrize("smoothing", [-0.1, 1.1, NAN])
def test_refuses_label_smoothing(smoothing: float) -> None:
    with pytest.raises(ConfigError, match=r"expected label_smoothing in \[0, 1\], got"):
        SoftmaxCrossEntropy(label_smoothing=smoothing)


@pytest.mark.parametrize("weights", [(1, -1), (1, NAN), (INF, 1)])
def test_refuses_class_weights(weights: Any) -> None:
    with pytest.raises(
        ConfigError, match="expected class weights that are finite and at least 0, got"
    ):
        SoftmaxCrossEntropy(class_weight=weights)


def test_class_weights_become_a_tuple() -> None:
    loss = SoftmaxCrossEntropy(class_weight=np.array([1, 2]))  # type: ignore[arg-type]
    assert loss.class_weight == (1.0, 2.0)
    assert loss == SoftmaxCrossEntropy(class_weight=[1, 2])  # type: ignore[arg-type]
    assert loss.class_weights() == (1.0, 2.0)
    assert MeanSquaredError().class_weights() is None
