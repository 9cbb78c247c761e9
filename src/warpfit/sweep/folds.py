"""The rows of a sweep: one copy of the data, and index sets over it for every fold."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np
import numpy.typing as npt

from warpfit import backends
from warpfit.backends.transfer import to_host
from warpfit.checks import check_count
from warpfit.data.order import epoch_order
from warpfit.engines.base import TrainingData
from warpfit.errors import ConfigError, DataError
from warpfit.training.inputs import check_held

Indices = npt.NDArray[np.int64]


@dataclass(frozen=True)
class Fold:
    """Training rows and validation rows, maybe none, (n,) int64 each, of the data that all
    folds share.
    """

    train: Indices
    test: Indices


@dataclass(frozen=True)
class SweepData:
    """What networks are trained on; networks of one sweep share one such value."""

    # x and y (N, ...): checked rows, on the host or on the device that trains.
    x: Any
    y: Any
    sample_weight: Any = None  # (N,): on the host
    # (x, y): for all networks; None where folds have their own.
    validation: tuple[Any, Any] | None = None
    folds: tuple[Fold, ...] = ()  # empty if there are none
    # Of an x that has come to a device, what it was on the host.
    _host_x: Any = field(default=None, repr=False, compare=False)
    # The same on devices that it has been brought to.
    _on: dict[str, SweepData] = field(default_factory=dict, init=False, repr=False, compare=False)
    # The fold that was asked for last and its rows, as one value, which threads may share: networks
    # of a fold tend to come together.
    _last: dict[str, tuple[int, SweepData]] = field(default_factory=dict, repr=False, compare=False)
    # What plans have found of all rows: with which targets they were asked for last, and in which
    # dtypes they were checked.
    _planned: dict[Any, Any] = field(default_factory=dict, repr=False, compare=False)

    def of_fold(self, fold: int | None) -> SweepData:
        """Return the rows of a fold, gathered where the data lie, with its validation rows; all of
        them for None.
        """
        if fold is None:
            return self
        rows = self._kept(fold)
        if rows is None:
            rows = self._gathered(self.folds[fold])
            self._last["rows"] = fold, rows
        return rows

    def validation_of(self, fold: int | None) -> tuple[Any, Any] | None:
        """Return x and y of a fold's validation rows as `of_fold` does, without those that it
        trains on, or None.
        """
        if fold is None:
            return self.validation
        rows = self._kept(fold)
        return self._tested(self.folds[fold]) if rows is None else rows.validation

    def _kept(self, fold: int) -> SweepData | None:
        """Return the rows of a fold if it is the one that was asked for last."""
        number, rows = self._last.get("rows", (None, None))
        return rows if number == fold else None

    def _gathered(self, fold: Fold) -> SweepData:
        weight = None if self.sample_weight is None else self.sample_weight[fold.train]
        return SweepData(
            _rows(self.x, fold.train),
            _rows(self.y, fold.train),
            weight,
            self._tested(fold),
        )

    def _tested(self, fold: Fold) -> tuple[Any, Any] | None:
        return (_rows(self.x, fold.test), _rows(self.y, fold.test)) if len(fold.test) else None

    def is_validated(self, fold: int | None) -> bool:
        """Return whether there are validation rows."""
        return self.validation is not None if fold is None else len(self.folds[fold].test) > 0

    def on(self, device: str) -> SweepData:
        """Return the data with the rows of x on a GPU, if it has room for them twice, so that they
        go up only once.
        """
        ops = backends.get(device)
        runtime = getattr(ops, "runtime", None)
        if runtime is None or backends.is_device_array(self.x):
            return self
        val_x, val_y = self.validation or (None, None)
        num_bytes = self.x.nbytes + (0 if val_x is None else val_x.nbytes)
        if device not in self._on:
            if 2 * num_bytes > runtime.memory_left():
                return self
            validation = None if val_x is None else (ops.asarray(val_x), val_y)
            self._on[device] = replace(
                self,
                x=ops.asarray(self.x),
                validation=validation,
                _host_x=self.x,
                _last={},
                _planned={},
            )
        return self._on[device]

    def at(self, placed: SweepData) -> SweepData:
        """Return the data with its rows x where others' are, which are the same."""
        return replace(self, x=placed.x, _host_x=placed._host_x, _last={}, _planned={})

    def to_train_on(self, y: Any) -> TrainingData:
        """Return all rows with their targets as a loss takes them; the same value for all who ask
        with the same targets, so that what is found of the rows is found once.
        """
        targets, found = self._planned.get("rows", (None, None))
        if found is None or targets is not y:
            found = TrainingData.found_at(self.x, y, self.sample_weight, self._nearest_x)
            self._planned["rows"] = y, found
        return found

    @property
    def _nearest_x(self) -> Any:
        return self.x if self._host_x is None else self._host_x

    def check_held(self, dtype: str) -> None:
        """Raise DataError unless the rows of x can be computed with in a dtype; they are looked
        through once.
        """
        if ("held", dtype) not in self._planned:
            check_held("x", self._nearest_x, dtype)
            self._planned["held", dtype] = None

    def __getstate__(self) -> dict[str, Any]:
        """Leave out gathered rows: every copy gathers its own. Data on a device is copied to the
        host.
        """
        validation = self.validation and tuple(map(to_host, self.validation))
        arrays: dict[str, Any] = {
            "_host_x": None,
            "_planned": {},
            "x": to_host(self.x),
            "y": to_host(self.y),
            "validation": validation,
        }
        return {**self.__dict__, **arrays, "_last": {}}


def _rows(array: Any, indices: Indices) -> Any:
    return backends.of(array).take(array, indices)


def as_folds(folds: Any, x: Any, y: Any, seed: int) -> tuple[Fold, ...]:
    """Return checked folds: of a number, pairs of index arrays, or a splitter of scikit-learn; none
    for None.

    A number deals the rows out in an order that the seed decides, each class evenly where y are
    labels.

    Raises
    ------
    ConfigError, DataError
        If they are something else, or a fold has no rows, or rows that are not there.
    """
    if folds is None:
        return ()
    num_rows, host_y = len(x), to_host(y)
    if isinstance(folds, int | np.integer):
        pairs = _dealt_out(check_count("folds", folds, 2), host_y, seed)
    elif hasattr(folds, "split") and not isinstance(folds, str):
        pairs = _split_by(folds, num_rows, host_y)
    elif isinstance(folds, Iterable) and not isinstance(folds, str) and not _is_number(folds):
        pairs = folds
    else:
        raise ConfigError(
            f"expected folds as a number, pairs (train, test) or a splitter, got {folds!r}"
        )
    found = tuple(_checked(idx, pair, num_rows) for idx, pair in enumerate(pairs))
    if not found:
        raise ConfigError("expected at least one fold, got none")
    return found


def _is_number(folds: Any) -> bool:
    """Return whether folds are an array of no dimensions, which cannot be iterated over though it
    has the method.
    """
    return getattr(folds, "ndim", 1) == 0


def _split_by(splitter: Any, num_rows: int, y: Any) -> list[Any]:
    try:
        return list(splitter.split(np.empty((num_rows, 0)), y))
    except Exception as error:
        kind = type(splitter).__name__
        raise ConfigError(f"folds: {kind}.split raised {type(error).__name__}: {error}") from error


def _dealt_out(num_folds: int, y: Any, seed: int) -> Iterable[tuple[Any, Any]]:
    """Return pairs that hold every row once as a test row: dealt out in the seed's order, class by
    class for labels.
    """
    if num_folds > len(y):
        raise ConfigError(
            f"expected at most as many folds as rows, got {num_folds} folds of {len(y)} rows"
        )
    order = epoch_order(len(y), seed, 0)
    if y.ndim == 1 and y.dtype.kind in "iub":
        order = order[np.argsort(y[order], kind="stable")]
    fold_of = np.empty(len(y), np.int64)
    fold_of[order] = np.arange(len(y)) % num_folds
    return [
        (np.flatnonzero(fold_of != fold), np.flatnonzero(fold_of == fold))
        for fold in range(num_folds)
    ]


def _checked(idx: int, pair: Any, num_rows: int) -> Fold:
    try:
        train, test = (np.asarray(part) for part in pair)
    except (TypeError, ValueError):
        raise ConfigError(
            f"fold {idx}: expected a pair (train, test) of indices, got {pair!r}"
        ) from None
    return Fold(_indices(idx, "train", train, num_rows), _indices(idx, "test", test, num_rows))


def _indices(idx: int, name: str, rows: Any, num_rows: int) -> Indices:
    if rows.dtype == bool and rows.shape == (num_rows,):
        rows = np.flatnonzero(rows)
    if not rows.size:
        raise DataError(f"fold {idx}: expected at least one row to {name} on, got none")
    if rows.ndim != 1 or rows.dtype.kind not in "iu":
        raise ConfigError(
            f"fold {idx}: expected {name} as indices of rows, (n,) integers, got {rows.dtype} of "
            f"shape {rows.shape}"
        )
    if rows.min() < 0 or rows.max() >= num_rows:
        raise DataError(
            f"fold {idx}: expected {name} rows in [0, {num_rows}), got {rows.min()} to {rows.max()}"
        )
    return rows.astype(np.int64)
