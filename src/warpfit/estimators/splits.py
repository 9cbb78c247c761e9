"""Many fits to do, and their rows: checked once, on a GPU once, gathered where asked for."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property, partial
from typing import TYPE_CHECKING, Any, cast

import numpy as np
import numpy.typing as npt
from sklearn.base import clone
from sklearn.utils import _safe_indexing
from sklearn.utils.metaestimators import _safe_split
from sklearn.utils.validation import _check_method_params, _num_samples

from warpfit.errors import DataError
from warpfit.estimators.predictions import Among, PredictedRows
from warpfit.estimators.rows import Rows, Whole, check_whole
from warpfit.sweep.folds import Fold, SweepData

if TYPE_CHECKING:
    from warpfit.estimators.fitting import Prepared

Indices = npt.NDArray[np.int64]


@dataclass(frozen=True)
class Fits:
    """Fits to be done, each of a clone, and how they are scored.

    What has a value for each row of X, in `fit_params` and `score_params`, is taken apart as X is.
    """

    estimator: Any
    X: Any
    y: Any
    # Parameters, with the indices of the rows to train and to score on.
    pairs: Sequence[tuple[dict[str, Any], tuple[Indices, Indices]]]
    scorer: Any
    fit_params: dict[str, Any]
    score_params: dict[str, Any]
    return_train_score: bool
    error_score: float | str
    return_estimator: bool = False

    def __len__(self) -> int:
        return len(self.pairs)


class Side:
    """Rows of a search that are trained on, or scored on, and what a scorer is told of them."""

    def __init__(self, fits: Fits, indices: Indices, train: Indices) -> None:
        num_rows = _num_samples(fits.X)
        try:
            self.rows = np.arange(num_rows)[indices]
        except IndexError as error:
            raise DataError(f"expected splits of cv to index {num_rows} rows: {error}") from error
        self.y = None if fits.y is None else _safe_indexing(fits.y, indices)
        self.params = _check_method_params(fits.X, params=fits.score_params, indices=indices)
        self._gather = partial(_safe_split, fits.estimator, fits.X, None, indices, train)

    @cached_property
    def X(self) -> Any:  # noqa: N802  (as scikit-learn has it)
        return self._gather()[0]


class Split:
    """The rows of a split, which all fits on it share."""

    def __init__(self, fits: Fits, train: Indices, test: Indices) -> None:
        train, test = np.asarray(train), np.asarray(test)
        self.train, self.test = Side(fits, train, train), Side(fits, test, train)
        self.fit_params = _check_method_params(fits.X, params=fits.fit_params, indices=train)


class CheckedSplit(Split):
    """One whose rows are checked once, for perceptrons.

    Attributes
    ----------
    known : _Known or None
        Rows that those to train on are among: all rows, if these are encoded as they are.
    are_among_all : bool
    checked : Rows or None
        Those to train on; None if they are refused.
    """

    def __init__(self, fits: Fits, train: Indices, test: Indices, whole: _Known | None) -> None:
        super().__init__(fits, train, test)
        self.known = whole
        self.checked: Rows | None = None if whole is None else whole.part(self.train.rows)
        self.are_among_all = self.checked is not None
        if not self.are_among_all:
            self.known = _Known.of(fits.estimator, self.train.X, self.train.y)
            self.checked = None if self.known is None else self.known.checked.rows


class Splits:
    """The splits of many fits.

    What has been checked of all rows needs no check of a part, and is on a GPU once; a part that
    lacks a class has its own.
    """

    def __init__(self, fits: Fits) -> None:
        self._fits = fits
        self._of_pairs: dict[int, CheckedSplit] = {}
        self._shared: dict[int, _SharedRows] = {}
        several = len({id(split) for _, split in fits.pairs}) > 1
        self._whole = _Known.of(fits.estimator, fits.X, fits.y) if several else None
        self._all = None if self._whole is None else _SharedRows(self._whole)

    def of(self, split: tuple[Indices, Indices]) -> CheckedSplit:
        """Return the rows of a split, which is known by its `id`."""
        if id(split) not in self._of_pairs:
            self._of_pairs[id(split)] = CheckedSplit(self._fits, *split, self._whole)
        return self._of_pairs[id(split)]

    def fold_of(self, split: CheckedSplit, prepared: Prepared) -> int | None:
        """Return which fold of `data_of` a fit's rows are; None if it has more than these."""
        own = prepared.split
        if split.known is None or own.rows.weight is not None or own.given is not None:
            return None
        if id(split) not in self._shared:
            shared = self._all if split.are_among_all else _SharedRows(split.known)
            self._shared[id(split)] = cast(_SharedRows, shared)
        return self._shared[id(split)].fold_of(split, own.aside)

    def data_of(self, split: CheckedSplit, device: str) -> SweepData:
        """Return rows with all folds that were asked for, x on a device if it has room."""
        return self._shared[id(split)].data_on(device)

    def predicted(self, side: Side) -> PredictedRows:
        """Return rows to score on, on a device gathered from what is there."""
        placed = None if self._all is None else self._all.placed
        x = None if placed is None else placed.x
        return PredictedRows(lambda: side.X, side.y, Among(x, side.rows))


class _Known:
    """Checked rows, and an estimator that has seen them."""

    def __init__(self, estimator: Any, checked: Whole) -> None:
        self.estimator, self.checked = clone(estimator), checked
        self.estimator.__dict__.update(checked.rows.seen)

    @staticmethod
    def of(estimator: Any, X: Any, y: Any) -> _Known | None:
        """Return X and y as a fit checks them, or None, if that fails: then each fit says why."""
        try:
            return _Known(estimator, check_whole(clone(estimator), X, y))
        except Exception:
            return None

    def part(self, indices: Indices) -> Rows | None:
        return self.checked.part(self.estimator, indices)


class _SharedRows:
    """Rows as fits take them, once for all tasks whose rows are among them."""

    def __init__(self, known: _Known) -> None:
        self._known = known
        self._folds: dict[Any, tuple[int, Fold]] = {}
        self.placed: SweepData | None = None

    def fold_of(self, split: CheckedSplit, aside: tuple[Indices, Indices] | None) -> int:
        """Return which fold the rows of a split are, less those that are held out."""
        key = id(split), None if aside is None else aside[0].tobytes()
        if key not in self._folds:
            rows = split.train.rows if split.are_among_all else np.arange(len(split.train.rows))
            train, test = (slice(None), slice(0)) if aside is None else aside
            self._folds[key] = len(self._folds), Fold(rows[train], rows[test])
        return self._folds[key][0]

    def data_on(self, device: str) -> SweepData:
        if self.placed is None:
            rows, targets = self._known.checked.rows, self._known.estimator._targets
            folds = tuple(fold for _, fold in self._folds.values())
            self.placed = SweepData(rows.X, targets.as_loss_takes(rows), folds=folds).on(device)
        return self.placed
