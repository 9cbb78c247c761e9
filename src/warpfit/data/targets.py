"""What targets are: labels of classes, or numbers of a regression."""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

from warpfit.checks import Array
from warpfit.errors import ConfigError, DataError

CLASSIFICATION, REGRESSION = "classification", "regression"
TASKS = ("auto", CLASSIFICATION, REGRESSION)

FEW_VALUES, ROWS_OF_A_CLASS = 20, 5


def check_task(task: str) -> str:
    """Return the task, or raise ConfigError."""
    if task not in TASKS:
        raise ConfigError(f"expected task among {', '.join(TASKS)}, got {task!r}")
    return task


def as_targets(y: Array, task: str, name: str) -> tuple[Array, str]:
    """Return labels (integers, booleans, text) as they are, or numbers as float32; and why.

    Without being told, text, booleans and integers are classes, and other numbers a regression.
    Integers are a regression as well if they have more than 20 distinct values; unless those are
    0..K-1 or 1..K without a gap, on at least five rows each. Errors call them by `name`.

    Raises
    ------
    DataError
        If they are no targets of that task.
    """
    check_kind(y, task, name)
    found, why = _guess(y) if task == "auto" else (task, "as asked for")
    if found == CLASSIFICATION:
        labels = _as_labels(y, name)
        return labels, f"{len(np.unique(labels)):,} classes: {why}"
    if y.dtype.kind == "U":
        raise DataError(f"{name} is text, as {str(y[0])!r}; expected numbers for a regression")
    return _as_numbers(y, name), f"a regression: {why}"


def check_kind(y: Array, task: str, name: str) -> None:
    """Raise DataError unless y has a dtype and a number of dimensions that targets may have."""
    may_be_wide = y.dtype.kind == "f" or (y.dtype.kind in "iu" and task == REGRESSION)
    if y.dtype.kind not in "biufU" or (y.ndim != 1 and not may_be_wide):
        raise DataError(
            f"{name} must be integers, booleans or text of shape (N,) (classes) or floats "
            f"(regression), got {y.dtype} of shape {y.shape}"
        )


def _guess(y: Array) -> tuple[str, str]:
    """Return the task that targets suggest, and in what they do."""
    if y.ndim > 1:
        return REGRESSION, f"targets of shape {y.shape[1:]}"
    if y.dtype.kind in "bU":
        return CLASSIFICATION, f"labels are {'text' if y.dtype.kind == 'U' else 'true or false'}"
    values = np.unique(y)
    if y.dtype.kind == "f":
        few = len(values) <= FEW_VALUES and bool((values == np.floor(values)).all())
        more = " (task classification takes these as classes)" if few else ""
        return REGRESSION, f"targets are floats with {len(values):,} distinct values{more}"
    what = f"targets are integers with {len(values):,} distinct values"
    if len(values) <= FEW_VALUES or (
        _are_codes(values) and len(y) >= ROWS_OF_A_CLASS * len(values)
    ):
        return CLASSIFICATION, f"{what} (task regression takes them as numbers)"
    return REGRESSION, f"{what} (task classification takes them as classes)"


def _are_codes(values: Array) -> bool:
    """Return whether sorted distinct integers are 0..K-1 or 1..K."""
    return int(values[0]) in (0, 1) and int(values[-1]) - int(values[0]) == len(values) - 1


def _as_labels(y: Array, name: str) -> Array:
    if y.ndim != 1:
        raise DataError(f"{name} has shape {y.shape}; expected one label a row for classes")
    if y.dtype.kind != "f":
        return y
    broken = np.flatnonzero(y != np.floor(y))
    if broken.size:
        raise DataError(
            f"{name} has {y[broken[0]]} in row {broken[0]}; expected integers, booleans or text "
            "for classes"
        )
    return y.astype(np.int64)


def _as_numbers(y: Array, name: str) -> npt.NDArray[np.float32]:
    with np.errstate(over="ignore"):
        targets = y.astype(np.float32)
    bad = np.argwhere(~np.isfinite(targets))
    if len(bad):
        raise DataError(
            f"{name} has {y[tuple(bad[0])]} in row {bad[0][0]}; expected a finite float32"
        )
    return targets
