"""Frames as users have them: of pandas or polars, with columns of any kind."""

from __future__ import annotations

import os
from collections.abc import Callable
from contextlib import suppress
from typing import Any

import numpy as np

from warpfit.checks import brief
from warpfit.data.dataset import is_frame
from warpfit.data.table_columns import as_numbers
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

NUMBERS, DATES, CATEGORIES = "numbers", "dates", "categories"


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
    """Return a frame whose columns of objects, or of Arrow's dates and decimals, have the kind that
    all of their cells have, and whose periods are dates.
    """
    with suppress(OverflowError):  # of pandas 2; `as_numbers` names the integer
        frame = frame.infer_objects()
    converted = {}
    for place, dtype in enumerate(frame.dtypes):
        if isinstance(dtype, pd.PeriodDtype):
            converted[place] = frame.iloc[:, place].dt.to_timestamp()
        elif _are_objects(dtype):
            column = frame.iloc[:, place].astype(object)
            if convert := CONVERTERS.get(infer_dtype(column, skipna=True)):
                converted[place] = convert(column)
    if not converted:
        return frame
    columns = [converted.get(place, frame.iloc[:, place]) for place in range(frame.shape[1])]
    return pd.concat(columns, axis=1)


def _are_objects(dtype: Any) -> bool:
    is_arrows = isinstance(dtype, pd.ArrowDtype) and dtype.kind in "OMm"
    return is_arrows or dtype == np.dtype(object)


def _as_moments(column: Any) -> Any:
    return pd.to_datetime(column, utc=True)  # which any time zones, and none, have in common


def _as_floats(column: Any) -> Any:
    return pd.Series(as_numbers(column), index=column.index, name=column.name)


# By what pandas calls the cells of a column of objects.
CONVERTERS: dict[str, Callable[[Any], Any]] = {
    "date": _as_moments,
    "datetime": _as_moments,
    "datetime64": _as_moments,
    "timedelta": pd.to_timedelta,
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
    """Raise DataError unless a frame to validate on has numbers and dates where one to train on
    has.
    """
    for place, (kind, found) in enumerate(zip(kinds_of(frame), kinds_of(other), strict=True)):
        validated = other.iloc[:, place]
        are_flags = is_bool_dtype(frame.dtypes.iloc[place])
        is_known = kind == CATEGORIES and not are_flags
        if not is_known and kind != found and validated.notna().any():
            expected = "true and false" if are_flags else kind
            raise DataError(
                f"expected column {frame.columns[place]!r} of X_val as {expected}, as in X, got "
                f"{brief(validated.dropna().iloc[0])}"
            )
