"""Dataset's checks, the scaling of stored pixels, and the held-out rows."""

from __future__ import annotations

import dataclasses

import numpy as np
import pytest

from warpfit.data import Dataset
from warpfit.data.dataset import split_rows, unit_floats
from warpfit.errors import DataError


def dataset(**changes: object) -> Dataset:
    fields: dict[str, object] = {
        "name": "toy",
        "x_train": np.zeros((6, 4, 5), np.float32),
        "y_train": np.array([0, 1, 2, 0, 1, 2]),
        "x_test": np.zeros((2, 4, 5), np.float32),
        "y_test": np.array([2, 0]),
        "class_names": ("a", "b", "c"),
    }
    return Dataset(**{**fields, **changes})


def test_repr_and_num_classes() -> None:
    assert repr(dataset()) == "Dataset(toy: 6 + 2 samples, 4×5 float32, 3 classes)"
    assert dataset().num_classes == 3
    regression = dataset(
        y_train=np.zeros(6, np.float32), y_test=np.ones(2, np.float32), class_names=()
    )
    assert repr(regression) == "Dataset(toy: 6 + 2 samples, 4×5 float32, regression)"
    assert regression.num_classes == 0


def test_it_is_frozen() -> None:
    with pytest.raises(dataclasses.FrozenInstanceError):
        dataset().name = "other"  # type: ignore[misc]


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"y_train": np.zeros(5, int)}, "toy: x_train has 6 samples but y_train has 5 labels"),
        ({"y_test": np.zeros(3, int)}, "toy: x_test has 2 samples but y_test has 3 labels"),
        (
            {"y_test": np.array([0, 3])},
            "toy: y_test has label 3 in row 1; expected 0 to 2 for 3 classes",
        ),
        ({"y_train": np.array([0, 1, -1, 0, 0, 0])}, "y_train has label -1 in row 2"),
        (
            {"x_test": np.zeros((2, 20), np.float32)},
            r"training samples have shape \(4, 5\) but test samples have \(20,\)",
        ),
    ],
)
def test_what_does_not_fit_together(changes: dict[str, object], message: str) -> None:
    with pytest.raises(DataError, match=message):
        dataset(**changes)


def test_unit_floats_are_the_nearest_float32() -> None:
    x = unit_floats(np.arange(256, dtype=np.uint8))
    assert x.dtype == np.float32
    np.testing.assert_array_equal(x, (np.arange(256) / 255).astype(np.float32))
    np.testing.assert_array_equal(unit_floats(np.array([0, 8, 16], np.uint8), top=16), [0, 0.5, 1])


@pytest.mark.parametrize("fraction", [0.0, 0.1, 0.2, 0.29, 0.5, 0.9])
@pytest.mark.parametrize("num_rows", [1, 2, 5, 100, 1797])
def test_split_takes_every_row_once(num_rows: int, fraction: float) -> None:
    labels = np.arange(num_rows) % 7 % 3
    train, test = split_rows(labels, fraction, seed=3)
    assert sorted([*train, *test]) == list(range(num_rows))
    assert len(test) == int(num_rows * fraction + 1e-6)
    assert len(train) > 0
    assert np.all(np.diff(train) > 0)
    assert np.all(np.diff(test) > 0)


def test_split_holds_out_the_share_of_each_class() -> None:
    labels = np.repeat([0, 1, 2, 3], [400, 40, 7, 253])
    _, test = split_rows(labels, 0.2, seed=0)
    held_out = np.bincount(labels[test], minlength=4)
    np.testing.assert_array_less(np.abs(held_out - 0.2 * np.bincount(labels)), 1 + 1e-9)


def test_split_depends_on_the_seed_and_on_nothing_else() -> None:
    labels = np.arange(1000) % 10
    _, first = split_rows(labels, 0.2, seed=1)
    _, again = split_rows(labels, 0.2, seed=1)
    _, other = split_rows(labels, 0.2, seed=2)
    np.testing.assert_array_equal(first, again)
    assert len(np.intersect1d(first, other)) < 100


def test_split_of_text_labels_and_of_float_targets() -> None:
    text = np.array(["cat", "dog"] * 50)
    _, test = split_rows(text, 0.2, seed=0)
    assert np.unique(text[test], return_counts=True)[1].tolist() == [10, 10]
    _, test = split_rows(np.linspace(0, 1, 100), 0.25, seed=0)
    assert len(test) == 25
    assert 30 < test.mean() < 70  # spread over the rows, not taken from an end
