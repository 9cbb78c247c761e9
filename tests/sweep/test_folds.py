from __future__ import annotations

import pickle
from typing import Any

import numpy as np
import pytest
from sklearn.model_selection import GroupKFold, KFold, ShuffleSplit

from warpfit import backends
from warpfit.backends.transfer import to_host
from warpfit.errors import ConfigError, DataError
from warpfit.sweep.folds import Fold, SweepData, as_folds

X = np.arange(40, dtype=np.float32).reshape(20, 2)
LABELS = np.repeat([0, 1], 10)


def test_a_number_deals_every_row_out_once_each_class_evenly() -> None:
    folds = as_folds(5, X, LABELS, seed=3)
    np.testing.assert_array_equal(
        np.sort(np.concatenate([fold.test for fold in folds])), np.arange(20)
    )
    for fold in folds:
        assert LABELS[fold.test].sum() == 2
        assert fold.train.dtype == np.int64
        assert not set(fold.train) & set(fold.test)


def test_the_seed_decides() -> None:
    one, again, other = (as_folds(4, X, LABELS, seed)[0].test.tolist() for seed in (1, 1, 2))
    assert one == again != other


def test_targets_that_are_no_labels_are_dealt_out_too() -> None:
    folds = as_folds(4, X, X[:, 0], seed=2**40)
    assert sorted(len(fold.test) for fold in folds) == [5, 5, 5, 5]


def test_splitters_and_pairs_are_taken_as_they_are() -> None:
    expected = list(KFold(4).split(X))
    for folds in (as_folds(KFold(4), X, LABELS, 0), as_folds(expected, X, LABELS, 0)):
        for fold, (train, test) in zip(folds, expected, strict=True):
            np.testing.assert_array_equal(fold.train, train)
            np.testing.assert_array_equal(fold.test, test)
    assert len(as_folds(ShuffleSplit(2, random_state=0), X, LABELS, 0)) == 2
    mask = np.arange(20) < 15
    (fold,) = as_folds([(mask, ~mask)], X, LABELS, 0)
    assert fold.test.tolist() == [15, 16, 17, 18, 19]
    assert as_folds(None, X, LABELS, 0) == ()


@pytest.mark.parametrize(
    ("folds", "kind", "words"),
    [
        (1, ConfigError, "expected folds to be an integer of at least 2, got 1"),
        (21, ConfigError, "at most as many folds as rows, got 21 folds of 20 rows"),
        ("5", ConfigError, "expected folds as a number, pairs"),
        ([], ConfigError, "expected at least one fold"),
        (np.array(2.5), ConfigError, "expected folds as a number, pairs"),
        ([3], ConfigError, "fold 0: expected a pair"),
        ([([0.5], [1])], ConfigError, "fold 0: expected train as indices of rows"),
        ([([0], [])], DataError, "fold 0: expected at least one row to test on"),
        ([([0], [[1]])], ConfigError, "fold 0: expected test as indices"),
        (
            GroupKFold(2),
            ConfigError,
            "folds: GroupKFold.split raised ValueError: The 'groups' parameter",
        ),
        ([([0], np.empty(0, int))], DataError, "fold 0: expected at least one row to test on"),
        ([([0, 20], [1])], DataError, r"fold 0: expected train rows in \[0, 20\), got 0 to 20"),
    ],
)
def test_what_is_no_list_of_folds(folds: Any, kind: type[Exception], words: str) -> None:
    with pytest.raises(kind, match=words):
        as_folds(folds, X, LABELS, 0)


def test_a_splitter_that_fails_says_so_itself() -> None:
    with pytest.raises(ValueError, match="groups"):
        as_folds(GroupKFold(2), X, LABELS, 0)


def test_rows_of_a_fold_are_gathered_with_their_weights() -> None:
    weight = np.linspace(0, 1, 20)
    fold = Fold(np.array([3, 1]), np.array([0]))
    rows = SweepData(X, LABELS, weight, folds=(fold,)).of_fold(0)
    np.testing.assert_array_equal(rows.x, X[[3, 1]])
    np.testing.assert_array_equal(rows.y, LABELS[[3, 1]])
    np.testing.assert_array_equal(rows.sample_weight, weight[[3, 1]])
    assert rows.validation is not None
    np.testing.assert_array_equal(rows.validation[0], X[[0]])


def test_all_rows_are_not_copied_and_those_of_the_last_fold_are_kept() -> None:
    data = SweepData(X, LABELS, folds=as_folds(2, X, LABELS, 0))
    assert data.of_fold(None).x is X
    assert data.of_fold(1) is data.of_fold(1)
    assert data.of_fold(0) is not data.of_fold(1)


def test_validation_rows_come_without_those_that_a_fold_trains_on() -> None:
    data = SweepData(X, LABELS, folds=as_folds(2, X, LABELS, 0))
    assert data.validation_of(None) is None
    kept = data.of_fold(1)
    for fold in (0, 1):
        found, test = data.validation_of(fold), data.folds[fold].test
        assert found is not None
        np.testing.assert_array_equal(found[0], X[test])
        np.testing.assert_array_equal(found[1], LABELS[test])
    assert data.of_fold(1) is kept


def test_what_is_sent_elsewhere_leaves_gathered_rows_behind() -> None:
    data = SweepData(X, LABELS, folds=as_folds(2, X, LABELS, 0))
    data.of_fold(0)
    sent = pickle.loads(pickle.dumps(data))
    assert sent._last == {}
    np.testing.assert_array_equal(sent.x, X)


def test_on_a_device_x_goes_up_once_and_folds_are_gathered_there(cuda: str) -> None:
    data = SweepData(X, LABELS, folds=as_folds(2, X, LABELS, 0)).on(backends.resolve_device(cuda))
    assert backends.is_device_array(data.x)
    rows = data.of_fold(1)
    assert backends.is_device_array(rows.x)
    np.testing.assert_array_equal(to_host(rows.x), X[data.folds[1].train])
    assert isinstance(pickle.loads(pickle.dumps(data)).x, np.ndarray)
