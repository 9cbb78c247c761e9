"""Frames as rows for TabM: numbers by their quantiles, and codes of categories."""

from __future__ import annotations

from copy import copy
from dataclasses import replace
from typing import ClassVar

import numpy as np
import numpy.typing as npt
from scipy.special import ndtri

from warpfit.tabular.preprocessing import Preprocessor, quantiles

Array = npt.NDArray[np.float64]

NOISE = 1e-3  # in which equal numbers get quantiles of their own
FARTHEST = 1e100  # lest differences and squares overflow
EDGE = 1e-7  # nearer to the first or last quantile numbers count as beyond it
LEAST = EDGE - np.spacing(1)  # share; all below and above 1 less that become the same number
ROWS_OF_A_QUANTILE, LEAST_QUANTILES, MOST_QUANTILES = 30, 10, 1000


class QuantilePreprocessor(Preprocessor):
    """Makes float rows of frames, as pytabkit's TabM has them.

    A column of numbers, or of dates (in days since 1970), is a number; any other is one of
    categories. Numbers become normally distributed, by the quantiles of the training rows; a
    missing one becomes the median, 0. Numbers that are all equal are left out. Each category is a
    code, and so is a missing or unknown one, 0.

    Parameters
    ----------
    frame : DataFrame
        All rows that are known, for the categories.
    rows : array of int, optional
        The places of those to train on, for the quantiles; none are known without.

    Attributes
    ----------
    columns : Columns
        What the columns of `transform` are.

    Raises
    ------
    DataError
        If the frame has no columns, or a number is infinite.
    """

    MOST_INDICATED: ClassVar[int] = -1  # even of none there is a code, that of missing cells
    SCALES: ClassVar[tuple[str, ...]] = ("quantiles", "differ")

    def scaled(self, cells: Array) -> Array:
        """Return rows as training takes them, (N, columns) float64, of cells."""
        numbers, codes = np.split(cells, [len(self.numbers)], axis=1)
        return np.column_stack([_normal(numbers, self.quantiles)[:, self.differ > 0], codes])

    def with_scales(self, *scales: Array) -> Preprocessor:
        """Return one with the same categories, and given quantiles (Q, numbers) and which numbers
        differ, 1 or 0, or raise ValueError.
        """
        quantiles, differ = scales
        num_numbers = len(self.numbers)
        are_quantiles = quantiles.ndim == 2 and quantiles.shape[1] == num_numbers
        if not (are_quantiles and len(quantiles) and (np.diff(quantiles, axis=0) >= 0).all()):
            raise ValueError(f"expected ascending quantiles of {num_numbers} numbers")
        if differ.shape != (num_numbers,) or not np.isin(differ, (0, 1)).all():
            raise ValueError(f"expected {num_numbers} times 0 or 1, got shape {differ.shape}")
        other = copy(self)
        other._take_scales(quantiles, differ)
        return other

    def _learn_scales(self, cells: Array) -> None:
        numbers = cells[:, : len(self.numbers)]
        quantiles = _quantiles_of(numbers)
        normal = _normal(numbers, quantiles)
        self._take_scales(quantiles, (normal != normal[:1]).any(axis=0).astype(np.float64))

    def _take_scales(self, quantiles: Array, differ: Array) -> None:
        self.quantiles, self.differ = quantiles, differ
        self._learn_columns()
        self.columns = replace(self.columns, num_numbers=int(differ.sum()))


def _quantiles_of(numbers: Array) -> Array:
    """Return quantiles of each column, (Q, columns), ascending."""
    numbers = np.where(np.isnan(numbers).all(axis=0), 0.0, _bounded(numbers))
    # The less noise, the wider a column is spread: as the authors' programs have it.
    noise = NOISE / np.maximum(np.nanstd(numbers, axis=0), NOISE)
    noisy = numbers + noise * np.random.default_rng(0).standard_normal(numbers.shape)
    most = max(min(len(numbers) // ROWS_OF_A_QUANTILE, MOST_QUANTILES), LEAST_QUANTILES)
    shares = np.linspace(0, 1, min(most, len(numbers)))
    found = quantiles(noisy, shares) if numbers.size else noisy[: len(shares)]
    return np.asarray(np.maximum.accumulate(found, axis=0))


def _bounded(numbers: Array) -> Array:
    return np.clip(numbers, -FARTHEST, FARTHEST)


def _normal(numbers: Array, quantiles: Array) -> Array:
    """Return normally distributed numbers of others, 0 of missing ones: scikit-learn's
    transformation.
    """
    numbers = _bounded(numbers)
    shares, found = np.linspace(0, 1, len(quantiles)), np.empty(numbers.shape)
    for column, own, edges in zip(found.T, numbers.T, quantiles.T, strict=True):
        # Where quantiles are equal, halfway between the first and the last one.
        column[:] = np.interp(own, edges, shares)
        column -= np.interp(-own, -edges[::-1], -shares[::-1])
        column /= 2
        column[own - EDGE < edges[0]] = 0
        column[own + EDGE > edges[-1]] = 1
    return np.nan_to_num(np.clip(ndtri(found), ndtri(LEAST), ndtri(1 - LEAST)), nan=0.0)
