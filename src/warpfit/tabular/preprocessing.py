"""Frames as rows for RealMLP: numbers, indicators of few categories, codes of many."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from copy import copy
from dataclasses import dataclass
from typing import Any, ClassVar

import numpy as np
import numpy.typing as npt

from warpfit.checks import brief
from warpfit.data.table_columns import as_numbers, check_booleans, distinct_texts
from warpfit.errors import DataError
from warpfit.extras import needs
from warpfit.tabular.frames import CATEGORIES, DATES, DAY, NUMBERS, kind_of, kinds_of
from warpfit.tabular.network import Columns

with needs("data", "tables need"):
    import pandas as pd

Array = npt.NDArray[np.float64]
Codes = npt.NDArray[np.int64]

LARGEST = 3.0  # what numbers are clipped to, smoothly
FARTHEST = 1e9  # from which on that is the same for all numbers
ROWS_AT_ONCE = 1024  # which caches hold


@dataclass(frozen=True)
class Categories:
    """The categories of a column, as texts in order; code 0 is a missing or unknown one. Up to
    `most_indicated` become indicators, more codes.
    """

    texts: Any
    most_indicated: int

    @classmethod
    def of(cls, columns: Iterable[Any], most_indicated: int) -> Categories:
        texts = {text for column in columns for text in distinct_texts(column)[1]}
        return cls(pd.Index(sorted(texts), dtype=object), most_indicated)

    @property
    def are_few(self) -> bool:
        return len(self.texts) <= self.most_indicated

    @property
    def width(self) -> int:
        """How many columns of cells there are."""
        return self.table.shape[1] if self.are_few else 1

    def codes(self, column: Any) -> Codes:
        """Return the code of each cell, or raise DataError, as `check_booleans` does."""
        check_booleans(column, self.texts)
        places, texts = distinct_texts(column)
        known = {text: code for code, text in enumerate(self.texts, 1)}
        codes = [*(known.get(text, 0) for text in texts), 0]  # the place of a missing cell is -1
        return np.array(codes, np.int64)[places]

    @property
    def table(self) -> Array:
        """The indicators of each code: a column for each category; for one or two categories one
        of -1 and 1.
        """
        count = len(self.texts)
        rows = {1: [[-1.0], [1.0]], 2: [[0.0], [1.0], [-1.0]]}.get(
            count, np.eye(count + 1, count, -1)
        )
        return np.asarray(rows)

    def cells(self, column: Any) -> Any:
        """Return the indicators (N, width) of a column, or its codes (N,)."""
        codes = self.codes(column)
        return self.table[codes] if self.are_few else codes


class Preprocessor:
    """Makes float rows of frames, as RealMLP-TD has them.

    A column of numbers, of durations (in days), or of dates (since 1970), is a number; any other,
    text, true and false or categories, is one of categories. Up to 8 categories become indicators,
    one for each, zeros for a missing cell; of two there is one column, 1 or -1. More become codes.
    Numbers and indicators are centred at their median, divided by their interquartile range (where
    that is 0 by half their range, and where that is 0 they become 0), and clipped smoothly:
    x / √(1 + x² / 9). A missing number becomes the median, 0. Values of categories that `fit` did
    not see are missing.

    Parameters
    ----------
    frame : DataFrame
        All rows that are known, for the kinds of columns and the categories.
    rows : array of int, optional
        The places of those to train on, for the scales; none are known without.
    others : sequence of DataFrame
        Of more rows, for categories only.

    Attributes
    ----------
    columns : Columns
        What the columns of `transform` are.

    Raises
    ------
    DataError
        If the frame has no columns, all cells are missing, or a number is infinite.
    """

    # Categories of a column that become indicators, missing cells not counted.
    MOST_INDICATED: ClassVar[int] = 8
    # The arrays that `with_scales` takes, in this order; the last has a number for each column.
    SCALES: ClassVar[tuple[str, ...]] = ("centre", "scale")

    def __init__(self, frame: Any, rows: Codes | None = None, others: Sequence[Any] = ()) -> None:
        if not frame.shape[1]:
            raise DataError(f"expected a column to learn from, got none in {len(frame)} rows")
        places = range(frame.shape[1])
        kinds = kinds_of(frame)
        self.numbers = [place for place in places if kinds[place] != CATEGORIES]
        self.dates = [place for place in places if kinds[place] == DATES]
        self.categories = {
            place: Categories.of(
                (each.iloc[:, place] for each in (frame, *others)), self.MOST_INDICATED
            )
            for place in places
            if place not in self.numbers
        }
        self._learn_columns()
        if not (self.columns.num_plain or self.columns.num_codes):
            raise DataError("expected a column with a cell that is not missing, got none")
        if rows is not None:
            self._learn_scales(self.cells(frame)[rows])

    def transform(self, frame: Any) -> Array:
        """Return rows (N, columns) float64 of a frame with the same columns in the same order."""
        return self.scaled(self.cells(frame))

    def cells(self, frame: Any) -> Array:
        """Return numbers, NaN for missing ones, indicators, and codes, (N, columns) float64, none
        of them scaled.
        """
        numbers = [_numbers_of(frame.iloc[:, place], place in self.dates) for place in self.numbers]
        others = [each.cells(frame.iloc[:, place]) for place, each in self._in_cells()]
        return np.column_stack([np.empty((len(frame), 0)), *numbers, *others])

    def _in_cells(self) -> list[tuple[int, Categories]]:
        """Return the place and the categories of each column: indicators, then codes."""
        return sorted(self.categories.items(), key=lambda each: not each[1].are_few)

    def places_in_cells(self) -> list[list[int]]:
        """Return which columns of cells each column of the frame has become."""
        places = {place: [own] for own, place in enumerate(self.numbers)}
        end = len(self.numbers)
        for place, each in self._in_cells():
            places[place] = list(range(end, end := end + each.width))
        return [places[place] for place in sorted(places)]

    def unfamiliar(self, frame: Any) -> list[str]:
        """Return a line for each column of a frame with categories that `fit` did not see."""
        lines = []
        for place, each in self.categories.items():
            column, known = frame.iloc[:, place], set(each.texts)
            places, texts = distinct_texts(column)
            others = [idx for idx, text in enumerate(texts) if text not in known]
            if others:
                count = int(np.isin(places, others).sum())
                lines.append(
                    f"column {column.name!r}: cells of no known category: {count:,}, such as "
                    f"{texts[others[0]]!r}"
                )
        return lines

    def scaled(self, cells: Array) -> Array:
        """Return rows as training takes them, (N, columns) float64, of cells."""
        found = cells.copy()
        for first in range(0, len(found), ROWS_AT_ONCE):
            x = found[first : first + ROWS_AT_ONCE, : self.columns.num_plain]
            with np.errstate(over="ignore", invalid="ignore"):
                x -= self.centre
                x *= self.scale
            np.clip(np.nan_to_num(x, copy=False, nan=0.0), -FARTHEST, FARTHEST, out=x)
            x /= np.sqrt(1 + (x / LARGEST) ** 2)
        return found

    def with_scales_of(self, cells: Array) -> Preprocessor:
        """Return one with the same categories, and the scales of other rows' cells."""
        other = copy(self)
        other._learn_scales(cells)
        return other

    def with_scales(self, *scales: Array) -> Preprocessor:
        """Return one with the same categories, and given scales (num_plain,), or raise
        ValueError.
        """
        centre, scale = scales
        expected = (self.columns.num_plain,)
        if {centre.shape, scale.shape} != {expected}:
            raise ValueError(
                f"expected scales of shape {expected}, got {centre.shape} and {scale.shape}"
            )
        other = copy(self)
        other.centre, other.scale = centre, scale
        return other

    def described(self) -> dict[str, list[Any]]:
        """Return the place and the texts of each column of categories, and the places of dates, as
        JSON has them.
        """
        texts = [[place, each.texts.tolist()] for place, each in self.categories.items()]
        return {"texts": texts, "dates": self.dates}

    @classmethod
    def of_described(cls, text: Any, num_features: int) -> Preprocessor:
        """Return one without scales, of what `described` returned, or raise ValueError, KeyError or
        TypeError.
        """
        found, categories = cls.__new__(cls), text["texts"]
        found.categories = {}
        for place, texts in categories:
            are_texts = isinstance(texts, list) and all(isinstance(text, str) for text in texts)
            if not are_texts or texts != sorted(set(texts)):
                raise ValueError(f"expected categories as texts in order, got {brief(texts)}")
            if type(place) is not int or not 0 <= place < num_features:
                raise ValueError(f"expected a place below {num_features}, got {brief(place)}")
            texts = pd.Index(texts, dtype=object)
            found.categories[place] = Categories(texts, cls.MOST_INDICATED)
        if list(found.categories) != sorted(found.categories) or len(categories) != len(
            found.categories
        ):
            raise ValueError("expected columns of categories in order")
        found.numbers = [place for place in range(num_features) if place not in found.categories]
        found.dates = [place for place in found.numbers if place in text["dates"]]
        if found.dates != text["dates"]:
            raise ValueError(f"expected places of dates in order, got {brief(text['dates'])}")
        found._learn_columns()
        return found

    def _learn_columns(self) -> None:
        """Set what the columns of rows are."""
        few = [each for each in self.categories.values() if each.are_few]
        self.columns = Columns(
            len(self.numbers),
            sum(each.width for each in few),
            tuple(len(each.texts) + 1 for each in self.categories.values() if not each.are_few),
        )

    def _learn_scales(self, cells: Array) -> None:
        self.centre, self.scale = _scales(cells[:, : self.columns.num_plain])


def _numbers_of(column: Any, are_dates: bool) -> Array:
    """Return a column as float64, dates as days since 1970, durations as days; or raise
    DataError.
    """
    kind = kind_of(column.name, column.dtype)
    if (kind == DATES) != are_dates and column.notna().any():
        expected = DATES if are_dates else NUMBERS
        raise DataError(
            f"expected column {column.name!r} as {expected}, as it was fitted, got "
            f"{brief(column.dropna().iloc[0])}"
        )
    if kind == DATES:
        return _days_of(column)
    if column.dtype.kind == "m":
        return np.asarray(column.to_numpy() / DAY)
    return as_numbers(column)


def _days_of(column: Any) -> Array:
    """Return dates as days since 1970, with equal bits whatever their unit and time zone are, and
    however far away they lie.
    """
    moments = (column if column.dt.tz is None else column.dt.tz_convert(None)).to_numpy()
    midnights = moments.astype("datetime64[D]")
    return np.asarray((midnights - np.datetime64(0, "D")) / DAY + (moments - midnights) / DAY)


def quantiles(x: Array, shares: Any) -> Array:
    """Return the quantiles (Q, columns) at some shares (Q,) of each column of x (N, columns), NaN
    left out, as `np.nanquantile` does, but by sorting once.

    Each column has a number that is not NaN.
    """
    in_order = np.sort(x.T, axis=1)  # NaN come last
    last = np.count_nonzero(~np.isnan(in_order), axis=1) - 1
    places = np.multiply.outer(shares, last)
    below = np.floor(places).astype(np.intp)
    columns = np.arange(len(in_order))
    low, high = in_order[columns, below], in_order[columns, np.minimum(below + 1, last)]
    over, difference = places - below, high - low
    return np.where(over < 0.5, low + difference * over, high - difference * (1 - over))


def _scales(x: Array) -> tuple[Array, Array]:
    """Return the median of each column, and what its distance from there is multiplied by."""
    if not x.shape[1]:
        return np.empty(0), np.empty(0)
    if (are_missing := np.isnan(x).all(axis=0)).any():
        x = np.where(are_missing, 0.0, x)
    with np.errstate(over="ignore", invalid="ignore"):  # of what is too wide nothing is left
        least, first, centre, third, most = quantiles(x, [0, 0.25, 0.5, 0.75, 1])
        spread = third - first
        half = (most - least) / 2
    spread = np.where(spread == 0, half, spread)
    return centre, np.where(spread == 0, 0.0, 1 / np.where(spread == 0, 1.0, spread))
