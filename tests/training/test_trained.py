"""A model with its card: what it takes, what it says, and cards that do not fit."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest

import warpfit as wf
from warpfit.errors import DataError, FileFormatError, ShapeError
from warpfit.training.trained import (
    ModelCard,
    RegressionScore,
    TrainedModel,
    class_scores,
    load_trained,
)

CARD = {
    "data": "mine.npz",
    "label_column": None,
    "input_shape": (2, 2),
    "network_shape": (4,),
    "class_names": ("cat", "dog"),
    "scale": 255,
}


def trained(loss: Any = "cross_entropy", num_outputs: int = 2, **changes: Any) -> TrainedModel:
    model = wf.nn.Sequential(wf.nn.Linear(4, num_outputs, seed=0))
    model.loss = loss
    return TrainedModel(model, ModelCard(**{**CARD, **changes}))


def test_saved_model_comes_back_with_its_card(tmp_path: Path) -> None:
    trained(wf.losses.SoftmaxCrossEntropy(0.1)).save(tmp_path / "model")
    stored = load_trained(tmp_path / "model")
    assert stored.card == trained().card
    assert stored.model.loss == wf.losses.SoftmaxCrossEntropy(0.1)


@pytest.mark.parametrize(
    "changes",
    [
        {"data": 3},
        {"label_column": 3},
        {"input_shape": (2, 3)},
        {"input_shape": ("2", "2")},
        {"network_shape": (2, 2)},
        {"class_names": ("cat", "dog", "cow")},
        {"class_names": (1, 2)},
        {"scale": 16},
        {"loss": "mse"},
        {"loss": "binary_cross_entropy"},
        {"num_outputs": 1},
    ],
)
def test_card_that_does_not_fit(tmp_path: Path, changes: dict[str, Any]) -> None:
    trained(**changes).save(tmp_path / "model")
    with pytest.raises(FileFormatError, match="model"):
        load_trained(tmp_path / "model")


@pytest.mark.parametrize("metadata", [{}, {"input_shape": 3}, {**CARD, "more": 1}])
def test_metadata_without_a_card(tmp_path: Path, metadata: dict[str, Any]) -> None:
    wf.save(trained().model, tmp_path / "model", metadata=metadata)
    with pytest.raises(FileFormatError, match="a model that `warpfit train` wrote"):
        load_trained(tmp_path / "model")


def test_inputs_take_the_networks_shape() -> None:
    x = np.arange(12, dtype=np.float32).reshape(3, 2, 2)
    np.testing.assert_array_equal(trained().inputs(x), x.reshape(3, 4))
    with pytest.raises(ShapeError, match=r"expected samples of shape \(2, 2\)"):
        trained().inputs(x.reshape(3, 4))


def test_labels_are_numbered_as_the_models_classes() -> None:
    y = np.array([0, 1, 0])
    np.testing.assert_array_equal(trained().labels(y, ("dog", "cat")), [1, 0, 1])
    with pytest.raises(DataError, match="got cow"):
        trained().labels(y, ("cat", "cow"))
    with pytest.raises(DataError, match="expected labels of classes"):
        trained().labels(y, ())
    with pytest.raises(DataError, match="expected float targets"):
        trained(class_names=()).labels(y, ("cat", "dog"))


def test_one_logit_gives_the_probabilities_of_both_classes(tmp_path: Path) -> None:
    trained("binary_cross_entropy", 1).save(tmp_path / "model")
    stored = load_trained(tmp_path / "model")
    x = np.random.default_rng(0).uniform(-1, 1, (20, 2, 2))
    of_dog = 1 / (1 + np.exp(-wf.predict(stored.model, stored.inputs(x))))
    np.testing.assert_allclose(stored.predictions(x), np.hstack([1 - of_dog, of_dog]), rtol=1e-6)
    score = stored.test(x, (of_dog[:, 0] > 0.5).astype(np.int64))
    assert score.evaluation.accuracy == 1
    assert [found.recall for found in class_scores(score, ("cat", "dog"))] == [1, 1]


def test_predictions_of_regression_are_target_values() -> None:
    x = np.random.default_rng(0).uniform(-1, 1, (20, 2, 2))
    plain, rates = (trained(loss, class_names=()).predictions(x) for loss in ("mse", "poisson"))
    np.testing.assert_allclose(rates, np.exp(plain), rtol=1e-6)


def test_class_scores_count_rows_and_mistakes() -> None:
    model = wf.nn.Sequential(wf.nn.Linear(2, 3, bias=False))
    model.load_state_dict({"0.weight": np.array([[1.0, 0, -9], [0, 1.0, -9]])})
    changes = {"input_shape": (2,), "network_shape": (2,), "class_names": ("a", "b", "c")}
    tested = TrainedModel(model, ModelCard(**{**CARD, **changes}))
    x = np.array([[1.0, 0], [1.0, 0], [0, 1.0], [1.0, 0]])  # taken for a, a, b, a
    score = tested.test(x, np.array([0, 1, 1, 0]))
    assert score.evaluation.accuracy == 0.75
    a, b, c = class_scores(score, ("a", "b", "c"))
    assert (a.num_rows, a.recall, a.precision) == (2, 1.0, 2 / 3)
    assert (b.num_rows, b.recall, b.precision) == (2, 0.5, 1.0)
    assert (c.num_rows, c.recall, c.precision) == (0, None, None)


def test_scores_of_predictions_that_are_not_finite_are_nan() -> None:
    targets = np.arange(4.0)
    score = RegressionScore.of(targets, np.array([0.0, np.nan, 1.0, np.inf]))
    assert all(map(np.isnan, (score.r2, score.mae, score.rmse)))
    assert RegressionScore.of(targets[:1], np.array([np.nan])).r2 is None
    assert RegressionScore.of(targets, targets).r2 == 1.0
