"""Targets as classes or as numbers."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from warpfit.data import load_user_data
from warpfit.data.targets import as_targets
from warpfit.errors import ConfigError, DataError

CLASSES, NUMBERS = "classes", "a regression"


@pytest.mark.parametrize(
    ("y", "found"),
    [
        (np.arange(100) % 20, CLASSES),
        (np.arange(200) % 21 * 3, NUMBERS),  # more than 20 values, with gaps
        (np.arange(200) % 40, CLASSES),  # codes 0..39, five rows each
        (np.arange(200) % 40 + 1, CLASSES),
        (np.arange(200) % 41, NUMBERS),  # fewer than five rows each
        (np.arange(200) % 40 + 18, NUMBERS),  # such as ages
        (np.arange(25), NUMBERS),
        (np.array([True, False]), CLASSES),
        (np.array(["a", "b"]), CLASSES),
        (np.array([0.0, 1.0]), NUMBERS),
        (np.ones((4, 2)), NUMBERS),
    ],
)
def test_what_targets_are(y: Any, found: str) -> None:
    targets, why = as_targets(y, "auto", "y")
    assert found in why
    assert (targets.dtype == np.float32) == (found == NUMBERS)


def test_it_says_how_it_decided_and_how_to_have_the_other() -> None:
    assert as_targets(np.arange(60) % 3, "auto", "y")[1] == (
        "3 classes: targets are integers with 3 distinct values (task regression takes them as "
        "numbers)"
    )
    assert as_targets(np.arange(60) * 7, "auto", "y")[1] == (
        "a regression: targets are integers with 60 distinct values (task classification takes "
        "them as classes)"
    )
    assert "task classification takes these" in as_targets(np.array([0.0, 1.0]), "auto", "y")[1]
    assert "task" not in as_targets(np.array([0.5, 1.0]), "auto", "y")[1]


def test_it_can_be_told() -> None:
    assert as_targets(np.array([0.0, 2.0]), "classification", "y")[0].tolist() == [0, 2]
    assert as_targets(np.arange(60), "classification", "y")[0].dtype == np.int64
    assert as_targets(np.array([3, 4]), "regression", "y")[0].dtype == np.float32
    assert as_targets(np.ones((3, 2), int), "regression", "y")[0].shape == (3, 2)


@pytest.mark.parametrize(
    ("y", "task", "message"),
    [
        (
            np.array([0.0, 0.5]),
            "classification",
            "y has 0.5 in row 1; expected integers, booleans or text",
        ),
        (np.ones((3, 2)), "classification", r"y has shape \(3, 2\); expected one label a row"),
        (
            np.array(["a", "b"]),
            "regression",
            "y is text, as 'a'; expected numbers for a regression",
        ),
        (np.ones((3, 2), int), "auto", r"y must be integers, .* got int64 of shape \(3, 2\)"),
        (np.array([1e300]), "auto", "y has 1e\\+300 in row 0; expected a finite float32"),
    ],
)
def test_targets_of_another_task(y: Any, task: str, message: str) -> None:
    with pytest.raises(DataError, match=message):
        as_targets(y, task, "y")


def test_the_task_of_a_file(tmp_path: Any) -> None:
    np.savez(tmp_path / "a.npz", x=np.eye(40), y=np.arange(40) % 2)
    assert load_user_data(tmp_path / "a.npz").class_names == ("0", "1")
    assert load_user_data(tmp_path / "a.npz", task="regression").class_names == ()
    with pytest.raises(
        ConfigError, match="expected task among auto, classification, regression, got 'rank'"
    ):
        load_user_data(tmp_path / "a.npz", task="rank")
