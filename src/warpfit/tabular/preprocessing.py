"""Frames as rows for RealMLP: numbers, indicators of few categories, codes of many."""

from __future__ import annotations

from copy import copy
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from warpfit.data.table_columns import as_numbers, as_texts
from warpfit.errors import DataError
from warpfit.extras import needs
from warpfit.tabular.network import Columns

with needs("data", "tables need"):
    import pandas as pd
    from pandas.api.types import is_bool_dtype, is_datetime64_any_dtype, is_numeric_dtype

__all__ = ["Preprocessor"]

Array = npt.NDArray[np.float64]
Codes = npt.NDArray[np.int64]

MOST_INDICATED = 8  # categories of a column that become indicators, missing cells not counted
LARGEST = 3.0  # what numbers are clipped to, smoothly


@dataclass(frozen=True)
class _Categories:
    """The categories of a column, as texts; code 0 is a missing or unknown one."""

    name: str
    texts: Any

    @classmethod
    def of(cls, column: Any) -> _Categories:
        return cls(column.name, pd.Index(sorted(set(as_texts(column[column.notna()])))))

    @property
    def are_few(self) -> bool:
        return len(self.texts) <= MOST_INDICATED

    def codes(self, column: Any) -> Codes:
        found = self.texts.get_indexer(as_texts(column))
        return np.asarray(np.where(column.isna(), 0, found + 1), np.int64)

    def indicators(self, column: Any) -> Array:
        """Return a column for each category; for one or two categories one of -1 and 1."""
        count = len(self.texts)
        rows = {1: [[-1.0], [1.0]], 2: [[0.0], [1.0], [-1.0]]}.get(
            count, np.eye(count + 1, count, -1)
        )
        return np.asarray(rows)[self.codes(column)]


class Preprocessor:
    """Makes float rows of frames, as RealMLP-TD has them.

    A column of numbers, or of dates (in days since 1970), is a number; any other, text, true and
    false or categories, is one of categories. Up to 8 categories become indicators, one for each,
    zeros for a missing cell; of two there is one column, 1 or -1. More become codes. Numbers and
    indicators are centred at their median, divided by their interquartile range (where that is 0 by
    half their range, and where that is 0 they become 0), and clipped smoothly: x / √(1 + x² / 9).
    A missing number becomes the median, 0. Values of categories that `fit` did not see are missing.

    Parameters
    ----------
    frame : DataFrame
        All rows that are known, for the categories.
    rows : array of int
        The places of those to train on, for the scales.

    Attributes
    ----------
    columns : Columns
        What the columns of `transform` are.

    Raises
    ------
    DataError
        If the frame has no columns, or a number is infinite.
    """

    def __init__(self, frame: Any, rows: Codes) -> None:
        if not frame.shape[1]:
            raise DataError(f"expected a column to learn from, got none in {len(frame)} rows")
        places = range(frame.shape[1])
        self.numbers = [place for place in places if _is_number(frame.iloc[:, place].dtype)]
        self.categories = {
            place: _Categories.of(frame.iloc[:, place])
            for place in places
            if place not in self.numbers
        }
        cells = self.cells(frame)
        many = [each for each in self.categories.values() if not each.are_few]
        self.columns = Columns(
            len(self.numbers),
            cells.shape[1] - len(many) - len(self.numbers),
            tuple(len(each.texts) + 1 for each in many),
        )
        self._learn_scales(cells[rows])

    def transform(self, frame: Any) -> Array:
        """Return rows (N, columns) float64 of a frame with the same columns in the same order."""
        return self.scaled(self.cells(frame))

    def cells(self, frame: Any) -> Array:
        """Return numbers, NaN for missing ones, indicators, and codes, (N, columns) float64, none
        of them scaled.
        """
        few, many = [], []
        for place, each in self.categories.items():
            column = frame.iloc[:, place]
            if each.are_few:
                few.append(each.indicators(column))
            else:
                many.append(each.codes(column))
        numbers = [_numbers_of(frame.iloc[:, place]) for place in self.numbers]
        return np.column_stack([np.empty((len(frame), 0)), *numbers, *few, *many])

    def scaled(self, cells: Array) -> Array:
        """Return rows as training takes them, (N, columns) float64, of cells."""
        plain = self.columns.num_plain
        x = (cells[:, :plain] - self.centre) * self.scale
        x = np.nan_to_num(x, nan=0.0)
        return np.column_stack([x / np.sqrt(1 + (x / LARGEST) ** 2), cells[:, plain:]])

    def with_scales_of(self, cells: Array) -> Preprocessor:
        """Return one with the same categories, and the scales of other rows' cells."""
        other = copy(self)
        other._learn_scales(cells)
        return other

    def _learn_scales(self, cells: Array) -> None:
        self.centre, self.scale = _scales(cells[:, : self.columns.num_plain])


def _is_number(dtype: Any) -> bool:
    return (is_numeric_dtype(dtype) and not is_bool_dtype(dtype)) or is_datetime64_any_dtype(dtype)


def _numbers_of(column: Any) -> Array:
    if is_datetime64_any_dtype(column.dtype):
        column = (column - pd.Timestamp(0, tz=column.dt.tz)) / pd.Timedelta(days=1)
    return as_numbers(column)


def _scales(x: Array) -> tuple[Array, Array]:
    """Return the median of each column, and what its distance from there is multiplied by."""
    x = np.where(np.isnan(x).all(axis=0), 0.0, x)
    first, centre, third = np.nanquantile(x, [0.25, 0.5, 0.75], axis=0)
    spread = third - first
    half = (np.nanmax(x, axis=0) - np.nanmin(x, axis=0)) / 2
    spread = np.where(spread == 0, half, spread)
    return centre, np.where(spread == 0, 0.0, 1 / np.where(spread == 0, 1.0, spread))
