"""Columns of a table: which are numbers, which categories, and their cells as such."""

from __future__ import annotations

from collections.abc import Hashable, Iterable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from functools import lru_cache
from typing import Any

import numpy as np
import numpy.typing as npt

from warpfit.checks import brief, some
from warpfit.data.dataset import is_frame
from warpfit.errors import DataError, ShapeError
from warpfit.extras import needs

with needs("data", "tables need"):
    import pandas as pd
    from pandas.api.types import infer_dtype

NUMBER, CATEGORY, LEFT_OUT = "number", "category", "left out"
KINDS = (NUMBER, CATEGORY, LEFT_OUT)
MISSING = "(missing)"

FEW_VALUES, ROWS_OF_A_VALUE = 10, 20  # of integers that are categories
FEW_TEXTS = 10  # texts may all differ, however few rows there are


@dataclass(frozen=True)
class Column:
    """A column as fitted: its kind, categories, why it is left out, how many cells were missing."""

    name: str
    kind: str
    categories: tuple[str, ...] = ()
    why: str = ""
    num_missing: int = 0

    @classmethod
    def from_dict(cls, text: Mapping[str, Any]) -> Column:
        """Return the column that a dict describes, or raise ValueError, KeyError or TypeError."""
        column = cls(**{**text, "categories": tuple(text["categories"])})
        texts = (column.name, column.why, *column.categories)
        if column.kind not in KINDS or not all(isinstance(each, str) for each in texts):
            raise ValueError(f"column {text}")
        num_distinct = len(set(column.categories))
        if bool(num_distinct) != (column.kind == CATEGORY) or num_distinct < len(column.categories):
            raise ValueError(f"categories of {column.name!r}")
        check_stored_count(column.num_missing)
        return column


def check_stored_count(value: Any) -> int:
    """Return a count that a file states, or raise ValueError."""
    if type(value) is not int or value < 0:
        raise ValueError(f"count {value!r}")
    return value


def as_frame(x: Any, names: Sequence[str] = ()) -> Any:
    """Return x as a frame with texts as names of columns; an array's are `names`, or x0, x1, ..."""
    if is_frame(x):
        frame = x.set_axis([str(name) for name in x.columns], axis=1)
        with suppress(OverflowError):  # of pandas 2; `as_numbers` names the integer
            frame = frame.infer_objects()
    else:
        array = np.asarray(x)
        if array.ndim != 2 or (names and array.shape[1] != len(names)):
            raise ShapeError(
                f"expected rows of {len(names) or 'some'} columns, got an array of shape "
                f"{array.shape}"
            )
        if array.dtype.kind not in "biuf":
            raise DataError(
                f"expected an array of numbers, got {array.dtype}; text goes in as a pandas frame"
            )
        frame = pd.DataFrame(
            array, columns=list(names) or [f"x{idx}" for idx in range(array.shape[1])]
        )
    if not frame.columns.is_unique:
        raise DataError(
            f"expected a name of its own for each column, got {some(list(frame.columns))}"
        )
    return frame


def examined(column: Any, max_categories: int, is_named: bool) -> Column:
    """Return what a column is: numbers, categories, or nothing to learn from."""
    name, num_missing = column.name, int(column.isna().sum())
    if len(_factorized(column)[1]) + (num_missing > 0) <= 1:
        return Column(name, LEFT_OUT, why="as all cells are the same")
    if column.dtype.kind in "iuf" and not (is_named and _are_codes(as_numbers(column))):
        return Column(name, NUMBER, num_missing=num_missing)
    if column.dtype.kind not in "biufOUT" and not isinstance(column.dtype, pd.CategoricalDtype):
        raise DataError(
            f"expected column {name!r} as numbers or text, got {column.dtype}; make it numbers"
        )
    counts = as_texts(column).value_counts()
    if len(counts) > max(FEW_TEXTS, len(column) / 2):
        return Column(name, LEFT_OUT, why="as nearly all their texts differ")
    kept = sorted(counts.index[:max_categories])
    return Column(name, CATEGORY, tuple(kept), num_missing=num_missing)


def _are_codes(numbers: Any) -> bool:
    """Return whether numbers are integers with few distinct values, on many rows each."""
    values = np.unique(numbers[~np.isnan(numbers)])
    most = min(FEW_VALUES, len(numbers) / ROWS_OF_A_VALUE)
    return len(values) <= most and bool((values == np.floor(values)).all())


def as_numbers(column: Any) -> npt.NDArray[np.float64]:
    """Return a column as float64, missing cells as NaN, or DataError for one that is not finite."""
    if isinstance(column.dtype, np.dtype) and column.dtype.kind in "iuf":
        floats = column.to_numpy(np.float64)
        if not np.isinf(floats).any():
            return floats
    try:
        floats = pd.to_numeric(column, errors="coerce").to_numpy(np.float64, na_value=np.nan)
    except OverflowError:  # pandas does not say of which
        row = int(column.astype(str).str.len().to_numpy().argmax())
        raise DataError(
            f"row {row + 1}, column {column.name!r} is too large an integer; expected a finite "
            "number"
        ) from None
    bad = np.flatnonzero((np.isnan(floats) & ~column.isna().to_numpy()) | np.isinf(floats))
    if bad.size:
        raise DataError(
            f"row {bad[0] + 1}, column {column.name!r} is {brief(column.iloc[bad[0]])}; expected "
            "a finite number"
        )
    return floats


def as_texts(column: Any) -> Any:
    """Return a column's cells as text, equal values as equal texts, be they 1, 1.0 or '1'."""
    codes, texts = distinct_texts(column)
    return pd.Series(np.array([*texts, MISSING], dtype=object)[codes], dtype=object)


def distinct_texts(column: Any) -> tuple[npt.NDArray[np.int64], list[str]]:
    """Return each cell's place among those that differ, -1 if missing, and their `as_texts`."""
    codes, values = _factorized(column)
    return codes, [_text(value) for value in values]


def are_booleans(texts: Iterable[str]) -> bool:
    """Return whether texts of cells are those of true and false."""
    found = {*texts} - {MISSING}
    return bool(found) and found <= {"True", "False"}


def check_booleans(column: Any, known: Iterable[str]) -> None:
    """Raise DataError for numbers and dates where the known texts are those of true and false."""
    if column.dtype.kind in "iufcmM" and are_booleans(known) and column.notna().any():
        raise DataError(
            f"expected column {column.name!r} as true and false, as it was fitted, got "
            f"{brief(column.dropna().iloc[0])}"
        )


def _factorized(column: Any) -> Any:
    """Return each cell's place among the distinct ones, -1 if missing, and these; or DataError."""
    try:
        codes, values = pd.factorize(column)
    except TypeError:
        kind = next(
            (type(cell).__name__ for cell in column if not isinstance(cell, Hashable)), "object"
        )
        raise DataError(
            f"expected column {column.name!r} as numbers or text, got cells of {kind}"
        ) from None
    if column.dtype == object and infer_dtype(column, skipna=True).startswith("mixed"):
        return _factorized_texts(column)
    return codes, values


def _factorized_texts(column: Any) -> Any:
    """Return what `_factorized` does, of cells as texts: 1 and True are equal."""
    known = lru_cache(maxsize=None, typed=True)(_text)

    def text(cell: Any) -> str:
        return known(cell) if isinstance(cell, OF_ONE_TEXT) else _text(cell)

    return pd.factorize(column.map(text, na_action="ignore"))


# Types whose equal cells have equal texts, which 1.0 and 1.00 of Decimal have not.
OF_ONE_TEXT = (str, int, float, np.bool_, np.int64)


def _text(value: Any) -> str:
    if isinstance(value, (float, np.floating)) and np.isfinite(value) and value == np.floor(value):
        return str(int(value))
    return str(value).strip()
