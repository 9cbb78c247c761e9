"""A model with its card: what it takes, what it says, and cards that do not fit."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest

import warpfit as wf
from warpfit.errors import DataError, FileFormatError, ShapeError
from warpfit.training.trained import ModelCard, TrainedModel, class_scores, load_trained

CARD = {
    "data": "mine.npz",
    "label_column": None,
    "input_shape": (2, 2),
    "network_shape": (4,),
    "class_names": ("cat", "dog"),
    "scale": 255,
    "loss": {"name": "cross_entropy", "label_smoothing": 0.1},
}


def trained(**changes: Any) -> TrainedModel:
    return TrainedModel(wf.nn.Sequential(wf.nn.Linear(4, 2, seed=0)), ModelCard(**{**CARD, **changes}))


def test_saved_model_comes_back_with_its_card(tmp_path: Path) -> None:
    trained().save(tmp_path / "model")
    stored = load_trained(tmp_path / "model")
    assert stored.card == trained().card
    assert stored.loss == wf.losses.SoftmaxCrossEntropy(0.1)


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
