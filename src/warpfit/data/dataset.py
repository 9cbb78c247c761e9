"""Dataset: the arrays that a run trains and tests on, and the names of their classes."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from warpfit.checks import Array, as_numbers, as_tuple, brief
from warpfit.data.order import epoch_order
from warpfit.errors import DataError


@dataclass(frozen=True, eq=False, repr=False)
class Dataset:
    """Training and test data; the same kind of sample in both.

    Parameters
    ----------
    name : str
    x_train, x_test : ndarray (N, ...) or (M, ...)
        Samples: float32, or uint8 as stored; of a table float64 where that says more, or a pandas
        frame.
    y_train, y_test : ndarray (N,) or (M,) int64
        Labels in [0, num_classes); float32 (N,) or (N, outputs) if `class_names` is empty
        (regression).
    class_names : tuple of str
    label_column : str, optional
        The column of a table that the labels come from.
    notes : tuple of str
        What was decided when the data were read.

    Raises
    ------
    DataError
        If samples and labels differ in number, training and test samples in shape, or a label is no
        class.

    Examples
    --------
    >>> digits = data.load_dataset("digits")
    >>> digits.x_train.shape, digits.num_classes
    ((1438, 8, 8), 10)
    """

    name: str
    x_train: Any
    y_train: Array
    x_test: Any
    y_test: Array
    class_names: tuple[str, ...]
    label_column: str | None = None
    notes: tuple[str, ...] = ()

    def __post_init__(self) -> None:
        names = as_tuple(self.class_names, str)
        if names is None:
            raise DataError(
                f"{brief(self.name)}: expected class_names as strings, got "
                f"{brief(self.class_names)}"
            )
        object.__setattr__(self, "class_names", names)
        for name in ("x_train", "y_train", "x_test", "y_test"):
            given = getattr(self, name)
            array = (
                given if name[0] == "x" and hasattr(given, "columns") else as_numbers(given, name)
            )
            if not array.ndim:
                raise DataError(
                    f"{self.name}: expected {name} to be an array of rows, got a single number"
                )
            object.__setattr__(self, name, array)
        for part, x, y in (
            ("train", self.x_train, self.y_train),
            ("test", self.x_test, self.y_test),
        ):
            if len(x) != len(y):
                raise DataError(
                    f"{self.name}: x_{part} has {len(x)} samples but y_{part} has {len(y)} labels"
                )
            self._check_labels(part, y)
        if self.x_train.shape[1:] != self.x_test.shape[1:]:
            raise DataError(
                f"{self.name}: training samples have shape {self.x_train.shape[1:]} "
                f"but test samples have {self.x_test.shape[1:]}"
            )

    def _check_labels(self, part: str, y: Array) -> None:
        if not self.class_names:
            return
        outside = np.flatnonzero((y < 0) | (y >= self.num_classes))
        if outside.size:
            row = outside[0]
            raise DataError(
                f"{self.name}: y_{part} has label {y[row]} in row {row}; "
                f"expected 0 to {self.num_classes - 1} for {self.num_classes} classes"
            )

    @property
    def num_classes(self) -> int:
        """Number of classes; 0 for regression."""
        return len(self.class_names)

    def __repr__(self) -> str:
        if is_frame(self.x_train):
            sample = f"{self.x_train.shape[1]} columns"
        else:
            sample = "×".join(map(str, self.x_train.shape[1:])) + f" {self.x_train.dtype}"
        target = f"{self.num_classes} classes" if self.class_names else "regression"
        counts = f"{len(self.x_train)} + {len(self.x_test)} samples"
        return f"Dataset({self.name}: {counts}, {sample}, {target})"


def unit_floats(x: Array, top: int = 255) -> npt.NDArray[np.float32]:
    """x / top as float32: stored integers 0..top become numbers in [0, 1]."""
    return np.divide(x, np.float32(top), dtype=np.float32)


def as_floats(x: Array) -> Array:
    """Return samples as floats: uint8 as x/255, others as float32, or float64 if it holds more."""
    if x.dtype == np.uint8:
        return unit_floats(x)
    return x.astype(np.result_type(x.dtype, np.float32) if x.ndim == 2 else np.float32, copy=False)


def is_frame(x: Any) -> bool:
    """Return whether x is a frame, as pandas has them: columns with names, each of its own kind."""
    return hasattr(x, "iloc")


def is_table(x: Any) -> bool:
    """Return whether columns of x may differ in scale: of a frame, or of numbers, not pixels.

    Rows of uint8, and those whose numbers all lie in [0, 1], have one scale already.
    """
    if is_frame(x):
        return True
    x = np.asarray(x)
    return x.ndim == 2 and x.dtype != np.uint8 and not (x.size and x.min() >= 0 and x.max() <= 1)


def joined(x: Any, other: Any) -> Any:
    """Return the rows of two arrays, or of two frames, below each other."""
    if is_frame(x):
        import pandas as pd

        return pd.concat([x, other], ignore_index=True)
    return np.concatenate([x, other])


def taken(x: Any, rows: Any) -> Any:
    """Return rows of an array or of a frame, by their numbers or a slice."""
    return x.iloc[rows] if is_frame(x) else x[rows]


def split_rows(
    y: Array, test_fraction: float, seed: int
) -> tuple[npt.NDArray[np.int64], npt.NDArray[np.int64]]:
    """Return the training rows and the rows held out, each ascending.

    Rows are taken in the order of epoch 0 of `seed`, put together by class, and every
    ``1/test_fraction``-th is held out: ``floor(test_fraction · N)`` rows in all, and of each class
    its share to within one row. Float targets have no classes and are only shuffled. Nothing but
    `epoch_order` is random here, so the split is the same on every machine.
    """
    rows = epoch_order(len(y), seed, 0)
    if not np.issubdtype(y.dtype, np.floating):
        rows = rows[np.argsort(y[rows], kind="stable")]
    quota = np.floor(np.arange(len(y) + 1) * test_fraction + 1e-9)
    held_out = np.diff(quota) > 0
    return np.sort(rows[~held_out]), np.sort(rows[held_out])
