"""Predictions for the rows of a ``.csv`` or an ``.npz`` file."""

from __future__ import annotations

import csv
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy.typing as npt

from warpfit.data.csv_tables import KnownCategories, read_features
from warpfit.data.user import npz_samples
from warpfit.errors import DataError
from warpfit.files import PathLike, atomic_path
from warpfit.training.trained import TrainedModel

TABLE_SUFFIXES = (".csv", ".npz")


@dataclass(frozen=True)
class TablePredictions:
    """What a model predicts for each row of a file."""

    header: tuple[str, ...]  # `prediction`, and for classes `probability` of each
    # Names of classes and probabilities, or values in the units of the targets.
    rows: list[list[Any]]
    notes: tuple[str, ...]  # what was decided when the file was read

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
    card = trained.card
    trained_on = f"samples of shape {card.input_shape}"
    x, notes = read_rows(
        Path(path), card.columns, card.label_column, card.categories, trained_on=trained_on
    )
    notes += tuple(card.unfamiliar(x))
    return predictions_of(trained.predictions(x), card.class_names, notes)


def read_rows(
    path: Path,
    columns: Sequence[str],
    label_column: str | None,
    categories: KnownCategories,
    *,
    trained_on: str,
) -> tuple[Any, tuple[str, ...]]:
    """Return the rows of a file and what was decided, for a model with those columns, none if they
    have no names, and those categories of some; errors are `predict_table`'s, which call
    `trained_on` what it was trained on.
    """
    path = path.expanduser()
    if not path.is_file():
        raise DataError(f"{path} does not exist; expected a .csv or an .npz file")
    try:
        if path.suffix.lower() == ".npz":
            return npz_samples(path), ()
        if not columns:
            raise DataError(
                f"{path} is a table, but the model was trained on {trained_on} without names of "
                "columns; expected an .npz file"
            )
        return read_features(path, columns, label_column, categories)
    except OSError as error:
        raise DataError(f"cannot read {path}: {error.strerror or error}") from error


def predictions_of(
    found: npt.NDArray[Any], class_names: Sequence[str], notes: tuple[str, ...]
) -> TablePredictions:
    """Return probabilities of those classes, or numbers if there are none, by rows of a file."""
    if class_names:
        header = ["prediction", *(f"probability {name}" for name in class_names)]
        best = found.argmax(axis=1).tolist()
        rows = [[class_names[i], *row] for i, row in zip(best, found.tolist(), strict=True)]
        return TablePredictions(tuple(header), rows, notes)
    values = found.reshape(len(found), -1)
    header = ["prediction"]
    if values.shape[1] > 1:
        header = [f"prediction {i + 1}" for i in range(values.shape[1])]
    return TablePredictions(tuple(header), values.tolist(), notes)
