"""Which rows and seeds the networks of a bag have, and the training of some bags at once."""

from __future__ import annotations

import warnings
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from functools import partial
from itertools import islice
from math import ceil
from typing import Any

import numpy as np
import numpy.typing as npt
from sklearn.model_selection import KFold, StratifiedKFold, train_test_split

from warpfit.blas import one_blas_thread
from warpfit.errors import DataError
from warpfit.tabular.members import Member, Method, Trained, Training
from warpfit.tabular.preprocessing import Preprocessor
from warpfit.tabular.targets import Targets
from warpfit.tabular.training import Rows

Array = npt.NDArray[Any]
Places = npt.NDArray[np.int64]


@dataclass(frozen=True, eq=False)
class Split:
    """The places of training rows, and of those to validate on."""

    trained: Places
    held_out: Places


@dataclass(frozen=True, eq=False)
class Table:
    """Checked rows: their frame, or frames, of which the first one's columns are of the kinds that
    count, their targets, and the weight of each row if there are weights.
    """

    frames: Sequence[Any]
    y: Array
    weights: Array | None


@dataclass(frozen=True, eq=False)
class HeldOut:
    """Validation rows, none of them scaled: their cells, targets, and weights if they have
    some.
    """

    cells: Array
    y: Array
    weights: Array | None


@dataclass(frozen=True, eq=False)
class Bag:
    """The networks of a fit, and what they are made of; `cells` are those of the table."""

    table: Table
    cells: Array
    splits: Sequence[Split]
    members: Sequence[Member]
    training: Training

    def held_out(self) -> list[HeldOut]:
        """Return the validation rows of each split."""
        y, weights = self.table.y, self.table.weights
        return [
            HeldOut(self.cells[places], y[places], None if weights is None else weights[places])
            for places in (split.held_out for split in self.splits)
        ]


def trained_bags(
    method: Method, bags: Sequence[Bag], is_over: Callable[[], bool]
) -> list[list[Trained]]:
    """Train the networks of some bags in one call, and return those of each that time was left for.

    Parameters
    ----------
    method : Method
    bags : sequence of Bag
        Whose trainings differ in what they report, or it is one.
    is_over : function
        Whether no time is left for any of them.
    """
    members = [member for bag in bags for member in bag.members]
    reports = [partial(bag.training.report, idx) for bag in bags for idx in range(len(bag.members))]
    training = replace(
        bags[0].training,
        report=lambda idx, outcome: reports[idx](outcome),
        is_over=lambda: is_over() or bags[0].training.is_over(),
    )
    # What overflows is found by the validation errors.
    with one_blas_thread(), np.errstate(over="ignore", invalid="ignore"):
        trained = iter(list(method.train(members, training)))
    return [list(islice(trained, len(bag.members))) for bag in bags]


def set_aside(num_rows: int, fraction: float, seed: int) -> Split:
    """Return a share of the rows as those to validate on, or raise DataError if none are left."""
    if ceil(fraction * num_rows) >= num_rows:
        raise DataError(
            f"expected training rows beside validation_fraction={fraction:g} of them, got "
            f"n_samples={num_rows}"
        )
    return Split(*train_test_split(np.arange(num_rows), test_size=fraction, random_state=seed))


def folds_of(y: Array, n_folds: int, *, are_classes: bool, seed: int) -> list[Split]:
    """Return a split for each fold, with the classes in equal shares as far as their rows allow.

    Raises
    ------
    DataError
        If there are fewer rows than folds; of classes, if all have fewer.
    """
    counts = np.unique(y, return_counts=True)[1] if are_classes else np.array([len(y)])
    most = counts.max(initial=0)
    if most < n_folds:
        of_a_class = " of a class" if are_classes else ""
        raise DataError(
            f"expected at least n_folds={n_folds} rows{of_a_class}, got n_samples={most}"
        )
    kind = StratifiedKFold if are_classes else KFold
    splitter = kind(n_folds, shuffle=True, random_state=seed)
    with warnings.catch_warnings():  # of a class with fewer rows than folds, which some then lack
        warnings.filterwarnings("ignore", "The least populated class", UserWarning)
        return [Split(*places) for places in splitter.split(np.empty(len(y)), y)]


def seeds_of(seed: int, count: int) -> list[int]:
    """Return a seed for each of some networks, of which the first ones do not depend on how many
    follow; the first is the given one.
    """
    others = np.random.SeedSequence(seed).generate_state(count - 1)
    return [seed, *others.tolist()]


def members_of(
    table: Table,
    cells: Array,
    splits: Sequence[Split],
    seeds: Sequence[int],
    preprocessor: Preprocessor,
    targets_of: Callable[[Array], Targets],
) -> Iterator[Member]:
    """Yield a network for each seed: all splits in turns, until there are no more seeds.

    Parameters
    ----------
    table : Table
    cells : ndarray
        What the preprocessor makes of its frames.
    splits : sequence of Split
    seeds : sequence of int
    preprocessor : Preprocessor
        Each split has scales of its own.
    targets_of : function
        From the targets to train on to what they mean.

    Raises
    ------
    DataError
        If the training rows all have weight 0.
    """
    if table.weights is not None:
        for split in splits:
            _check_weights(table.weights[split.trained])
    parts = [
        (preprocessor.with_scales_of(cells[split.trained]), targets_of(table.y[split.trained]))
        for split in splits
    ]
    for idx, seed in enumerate(seeds):
        split, (scaling, targets) = splits[idx % len(splits)], parts[idx % len(splits)]
        rows, validation = (
            _rows_of(table, cells, places, scaling, targets)
            for places in (split.trained, split.held_out)
        )
        yield Member(scaling, targets, rows, validation, seed)


def _check_weights(weights: Array) -> None:
    if not weights.astype(np.float32).any():
        raise DataError(
            f"expected a row to train on with a weight above 0, got {len(weights)} without"
        )


def _rows_of(
    table: Table, cells: Array, places: Places, scaling: Preprocessor, targets: Targets
) -> Callable[[], Rows]:
    """Return what returns the rows at some places."""

    def rows() -> Rows:
        return Rows(
            scaling.scaled(cells[places]).astype(np.float32),
            targets.encoded(table.y[places]),
            None if table.weights is None else table.weights[places].astype(np.float32),
        )

    return rows
