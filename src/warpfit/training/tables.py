"""Predictions for the rows of a ``.csv`` or an ``.npz`` file."""

from __future__ import annotations

import csv
import os
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from warpfit.data.csv_tables import read_features
from warpfit.data.user import npz_samples
from warpfit.errors import DataError
from warpfit.files import atomic_path
from warpfit.training.trained import TrainedModel

__all__ = ["TABLE_SUFFIXES", "TablePredictions", "predict_table"]

PathLike = str | os.PathLike[str]

TABLE_SUFFIXES = (".csv", ".npz")


@dataclass(frozen=True)
class TablePredictions:
    """What a model predicts for each row of a file.

    Attributes
    ----------
    header : tuple of str
        ``prediction``, and for classes ``probability`` of each.
    rows : list of list
        Names of classes and probabilities, or values in the units of the targets.
    notes : tuple of str
        What was decided when the file was read.
    """

    header: tuple[str, ...]
    rows: list[list[Any]]
    notes: tuple[str, ...]

    def write(self, path: PathLike) -> None:
        """Write them as a ``.csv`` file, or raise ConfigError."""
        with (
            atomic_path(path) as temporary,
            temporary.open("w", encoding="utf-8", newline="") as file,
        ):
            writer = csv.writer(file, lineterminator="\n")
            writer.writerow(self.header)
            writer.writerows(self.rows)


def predict_table(trained: TrainedModel, path: PathLike) -> TablePredictions:
    """Return what a model predicts for the rows of a ``.csv`` file, or of x (or X, or x_test) of an
    ``.npz`` file.

    A ``.csv`` file has the columns that the model was trained on, by their names; the labels may be
    there or not.

    Raises
    ------
    DataError
        If the file is missing or has no rows, or lacks a column.
    FileFormatError
        If it cannot be read as what its name says.
    ShapeError
        If its samples have another shape than those that the model was trained on.
    """
    path, card = Path(path).expanduser(), trained.card
    if not path.is_file():
        raise DataError(f"{path} does not exist; expected a .csv or an .npz file")
    notes: tuple[str, ...] = ()
    try:
        if path.suffix.lower() == ".npz":
            x = npz_samples(path)
        elif not card.columns:
            raise DataError(
                f"{path} is a table, but the model was trained on samples of shape "
                f"{card.input_shape} without names of columns; expected an .npz file"
            )
        else:
            x, notes = read_features(path, card.columns, card.label_column)
    except OSError as error:
        raise DataError(f"cannot read {path}: {error.strerror or error}") from error
    found = trained.predictions(x)
    notes += tuple(card.preprocessor.unfamiliar(x)) if card.preprocessor else ()
    if card.class_names:
        header = ("prediction", *(f"probability {name}" for name in card.class_names))
        best = found.argmax(axis=1).tolist()
        rows = [[card.class_names[i], *row] for i, row in zip(best, found.tolist(), strict=True)]
        return TablePredictions(header, rows, notes)
    values = found.reshape(len(found), -1)
    names = (
        ("prediction",)
        if values.shape[1] == 1
        else (f"prediction {i + 1}" for i in range(values.shape[1]))
    )
    return TablePredictions(tuple(names), values.tolist(), notes)
