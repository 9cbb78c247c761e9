"""Frames as rows for TabM: numbers by their quantiles, and codes of categories."""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt
from sklearn.preprocessing import QuantileTransformer

from warpfit.tabular.network import Columns
from warpfit.tabular.preprocessing import Preprocessor

__all__ = ["QuantilePreprocessor"]

Array = npt.NDArray[np.float64]

NOISE = 1e-3  # in which equal numbers get quantiles of their own
ROWS_OF_A_QUANTILE, LEAST_QUANTILES, MOST_QUANTILES = 30, 10, 1000


class QuantilePreprocessor(Preprocessor):
    """Makes float rows of frames, as pytabkit's TabM has them.

    A column of numbers, or of dates (in days since 1970), is a number; any other is one of
    categories. Numbers become normally distributed, by the quantiles of the rows to train on; a
    missing one becomes the median, 0. Numbers that are all equal are left out. Each category is a
    code, and so is a missing or unknown one, 0.

    Parameters
    ----------
    frame : DataFrame
        All rows that are known, for the categories.
    rows : array of int
        The places of those to train on, for the quantiles.

    Attributes
    ----------
    columns : Columns
        What the columns of `transform` are.

    Raises
    ------
    DataError
        If the frame has no columns, or a number is infinite.
    """

    def cells(self, frame: Any) -> Array:
        """Return numbers, NaN for missing ones, and codes, (N, columns) float64."""
        numbers = super().cells(frame)[:, : len(self.numbers)]
        codes = [
            each.codes(frame.iloc[:, place]).astype(np.float64)
            for place, each in self.categories.items()
        ]
        return np.column_stack([numbers, *codes])

    def scaled(self, cells: Array) -> Array:
        """Return rows as training takes them, (N, columns) float64, of cells."""
        numbers, codes = np.split(cells, [len(self.numbers)], axis=1)
        return np.column_stack([self._normal(numbers)[:, self.differ], codes])

    def _learn_scales(self, cells: Array) -> None:
        numbers = cells[:, : len(self.numbers)]
        self.quantiles = _quantiles_of(numbers) if numbers.size else None
        normal = self._normal(numbers)
        self.differ = (normal != normal[:1]).any(axis=0)
        codes = tuple(len(each.texts) + 1 for each in self.categories.values())
        self.columns = Columns(int(self.differ.sum()), 0, codes)

    def _normal(self, numbers: Array) -> Array:
        if self.quantiles is None or not len(numbers):
            return numbers
        return np.nan_to_num(self.quantiles.transform(numbers), nan=0.0)


def _quantiles_of(numbers: Array) -> QuantileTransformer:
    numbers = np.where(np.isnan(numbers).all(axis=0), 0.0, numbers)
    most = max(min(len(numbers) // ROWS_OF_A_QUANTILE, MOST_QUANTILES), LEAST_QUANTILES)
    found = QuantileTransformer(
        n_quantiles=min(most, len(numbers)),
        output_distribution="normal",
        subsample=None,
        random_state=0,
    )
    # The less of it, the wider a column is spread: as the authors' programs have it.
    noise = NOISE / np.maximum(np.nanstd(numbers, axis=0), NOISE)
    drawn = np.random.default_rng(0).standard_normal(numbers.shape)
    return found.fit(numbers + noise * drawn)
