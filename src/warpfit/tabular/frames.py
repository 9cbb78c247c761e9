"""Frames as users have them: of pandas or polars, with columns of any kind."""

from __future__ import annotations

import datetime
import os
from collections.abc import Callable
from contextlib import suppress
from decimal import Decimal
from typing import Any

import numpy as np

from warpfit.checks import brief
from warpfit.data.dataset import is_frame
from warpfit.data.table_columns import are_booleans, as_numbers, distinct_texts
from warpfit.errors import DataError
from warpfit.extras import needs

with needs("data", "tables need"):
    import pandas as pd
    from pandas.api.types import (
        infer_dtype,
        is_bool_dtype,
        is_datetime64_any_dtype,
        is_numeric_dtype,
    )
    from pandas.errors import OutOfBoundsDatetime, OutOfBoundsTimedelta

NUMBERS, DATES, CATEGORIES = "numbers", "dates", "categories"
DAY = np.timedelta64(1, "D")
MOMENTS = "datetime64[us, UTC]"


def as_pandas(X: Any) -> Any:
    """Return a frame of polars as one of pandas, and all else as it is, or raise DataError for
    frames whose columns cannot be told apart.
    """
    if type(X).__module__.startswith("polars"):
        if not hasattr(X, "to_dict"):
            raise DataError(f"expected a frame, got a {type(X).__name__}; its collect() is one")
        X = pd.DataFrame(X.to_dict(as_series=False))
    if type(X) is dict or isinstance(X, str | os.PathLike):
        maker = "DataFrame makes one" if type(X) is dict else "read_csv reads a file"
        raise DataError(
            f"expected X as a frame or rows of cells, got a {type(X).__name__}; pandas.{maker}"
        )
    if not is_frame(X) or X.ndim != 2:
        return X
    if not X.shape[1]:
        raise DataError(f"expected a column to learn from, got none in {len(X)} rows")
    doubled = X.columns[X.columns.duplicated()]
    if len(doubled):
        count = int((X.columns == doubled[0]).sum())
        raise DataError(
            f"expected columns with names of their own, got {doubled[0]!r} {count} times"
        )
    return X


def known_kinds(frame: Any) -> Any:
    """Return a frame whose columns of objects have the kind that all of their cells have, and whose
    periods and Arrow's dates and decimals are dates and numbers.
    """
    with suppress(OverflowError):  # of pandas 2; `as_numbers` names the integer
        frame = frame.infer_objects()
    converted = {}
    for place, dtype in enumerate(frame.dtypes):
        if convert := _converter(dtype, frame, place):
            converted[place] = convert(frame.iloc[:, place])
    if not converted:
        return frame
    columns = [converted.get(place, frame.iloc[:, place]) for place in range(frame.shape[1])]
    return pd.concat(columns, axis=1)


def _converter(dtype: Any, frame: Any, place: int) -> Callable[[Any], Any] | None:
    """Return what makes a column, of that place, one of its kind; None if it is one."""
    if isinstance(dtype, pd.PeriodDtype):
        return _as_starts
    if isinstance(dtype, pd.ArrowDtype):
        return OF_ARROWS.get(dtype.type)
    if dtype == np.dtype(object):
        return CONVERTERS.get(infer_dtype(frame.iloc[:, place], skipna=True))
    return None


def _as_starts(periods: Any) -> Any:
    try:
        return periods.dt.to_timestamp()
    except OutOfBoundsDatetime:  # pandas 2 counts nanoseconds
        seconds = periods.dt.asfreq("s", how="start").array.asi8
        return pd.Series(seconds.view("datetime64[s]"), periods.index, name=periods.name)


def _as_moments(column: Any) -> Any:
    """Return moments in UTC, which any time zones, and none, have in common; or DataError."""
    with suppress(OutOfBoundsDatetime):  # pandas 2 counts nanoseconds
        return pd.to_datetime(column, utc=True)
    if _are_moments(column):
        return column.astype(MOMENTS)
    while len(column) > 1:
        half = column.iloc[: len(column) // 2]
        column = column.iloc[len(half) :] if _are_moments(half) else half
    raise DataError(
        f"expected column {column.name!r} as dates that pandas can convert to UTC, got "
        f"{brief(column.iloc[0])}"
    )


def _are_moments(column: Any) -> bool:
    """Return whether all cells are moments that microseconds can count."""
    with suppress(OutOfBoundsDatetime, OverflowError):
        column.astype(MOMENTS)
        return True
    return False


def _as_spans(column: Any) -> Any:
    with suppress(OutOfBoundsTimedelta):
        return pd.to_timedelta(column)
    days = [np.nan if pd.isna(span) else span / DAY for span in column]
    return pd.Series(days, column.index, float, column.name)


def _as_floats(column: Any) -> Any:
    return pd.Series(as_numbers(column), index=column.index, name=column.name)


# By the type of the cells of an Arrow column.
OF_ARROWS: dict[type, Callable[[Any], Any]] = {
    datetime.date: lambda column: column.astype("timestamp[s][pyarrow]"),
    Decimal: lambda column: column.astype("float64"),
}
# By what pandas calls the cells of a column of objects.
CONVERTERS: dict[str, Callable[[Any], Any]] = {
    "date": _as_moments,
    "datetime": _as_moments,
    "datetime64": _as_moments,
    "timedelta": _as_spans,
    "decimal": _as_floats,
    "floating": _as_floats,
    "integer": _as_floats,
    "mixed-integer-float": _as_floats,
}


def kinds_of(frame: Any) -> list[str]:
    """Return whether each column is one of numbers, durations among them, of dates, or of
    categories; or raise DataError for complex numbers.
    """
    return [kind_of(*each) for each in zip(frame.columns, frame.dtypes, strict=True)]


def kind_of(name: Any, dtype: Any) -> str:
    """Likewise, of one column."""
    if dtype.kind == "c":
        raise DataError(f"expected column {name!r} as numbers or text, got complex numbers")
    if is_datetime64_any_dtype(dtype):
        return DATES
    is_plain = is_numeric_dtype(dtype) and not is_bool_dtype(dtype)
    return NUMBERS if is_plain or dtype.kind == "m" else CATEGORIES


def check_order(frame: Any, other: Any) -> None:
    """Raise DataError if a frame of validation rows has the columns of that of training rows in
    another order: columns are known by their places, and scikit-learn compares text only.
    """
    if set(frame.columns) == set(other.columns) and not frame.columns.equals(other.columns):
        raise DataError(
            "expected the columns of X_val in the order of X's; X_val[X.columns] has them so"
        )


def check_alike(frame: Any, other: Any) -> None:
    """Raise DataError unless a frame of validation rows has numbers, dates and booleans where that
    of training rows has.
    """
    for place, (kind, found) in enumerate(zip(kinds_of(frame), kinds_of(other), strict=True)):
        validated = other.iloc[:, place]
        if kind == found or not validated.notna().any():
            continue
        have_booleans = kind == CATEGORIES and are_booleans(distinct_texts(frame.iloc[:, place])[1])
        if have_booleans or kind != CATEGORIES:
            expected = "true and false" if have_booleans else kind
            raise DataError(
                f"expected column {frame.columns[place]!r} of X_val as {expected}, as in X, got "
                f"{brief(validated.dropna().iloc[0])}"
            )
