"""``warpfit train --method``: a table from its file to a folder of results, and what follows."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from math import isfinite
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from warpfit.backends import resolve_device
from warpfit.checks import check_choice, check_count, some
from warpfit.data import Dataset
from warpfit.data.dataset import is_frame
from warpfit.errors import ConfigError, DataError
from warpfit.extras import needs
from warpfit.files import PathLike, ResultsFolder, atomic_path
from warpfit.pictures import confusion_svg
from warpfit.tabular.bags import folds_of
from warpfit.tabular.classifier import TabularClassifier
from warpfit.tabular.methods import METHODS
from warpfit.tabular.parameters import one_device, settings_of
from warpfit.tabular.regressor import TabularRegressor
from warpfit.tabular.storage import load_with_metadata, save_estimator
from warpfit.training.evaluate import Evaluation
from warpfit.training.jobs import check_targets, with_training_rows
from warpfit.training.recipes import open_data
from warpfit.training.settings import parse_hidden
from warpfit.training.tables import TablePredictions, predictions_of, read_rows
from warpfit.training.trained import RegressionScore, Score, renumbered

with needs("data", "tables need"):
    import pandas as pd

Array = npt.NDArray[Any]
Estimator = TabularClassifier | TabularRegressor

# Settings of ``warpfit train`` that name the data or are none of the estimator's.
OF_DATA = ("data", "data_dir", "label_column", "task")
OTHERS = (*OF_DATA, "limit", "out", "quiet", "method")
# All others that a method has, with the estimator's parameter.
PARAMETERS = {
    "hidden": "hidden_layer_sizes",
    "activation": "activation",
    "dropout": "dropout",
    "lr": "lr",
    "weight_decay": "weight_decay",
    "label_smoothing": "label_smoothing",
    "epochs": "n_epochs",
    "batch_size": "batch_size",
    "precision": "precision",
    "device": "device",
    "seed": "random_state",
    "folds": "n_folds",
    "ensemble": "n_ensemble",
    "time_limit": "time_limit",
}
# The least that counts may be, by the names of their options.
COUNTS = {"folds": 2, "ensemble": 1, "epochs": 1, "batch_size": 1}


@dataclass(frozen=True)
class StoredTable:
    """A fitted estimator and what its file says of the data: their name, and the label's column."""

    estimator: Estimator
    data: str
    label_column: str | None

    @property
    def class_names(self) -> tuple[str, ...]:
        """The names of the classes; none of numbers."""
        return tuple(map(str, getattr(self.estimator, "classes_", ())))

    @property
    def columns(self) -> tuple[str, ...]:
        """The names of the columns; none of an array's."""
        return tuple(getattr(self.estimator, "feature_names_in_", ()))

    def _named(self, x: Any) -> Any:
        """Return rows with the names that their columns had in training, if these have some, and
        else without.
        """
        if is_frame(x):
            return x if self.columns else x.set_axis(range(x.shape[1]), axis=1)
        return pd.DataFrame(x, columns=self.columns) if x.shape[1:] == (len(self.columns),) else x

    def score(self, x: Any, y: Array, class_names: tuple[str, ...]) -> Score:
        """Return how it does on samples x with targets y, labels of those classes or numbers.

        Raises
        ------
        DataError
            As `renumbered`, or if there are more or fewer targets than outputs.
        """
        x, y = self._named(x), renumbered(y, class_names, self.class_names)
        if not isinstance(self.estimator, TabularClassifier):
            predicted = self.estimator.predict(x)
            num_outputs = predicted[:1].size
            if y[:1].size != num_outputs:
                raise DataError(
                    f"expected targets of shape (n, {num_outputs}), as the model predicts, got "
                    f"{y.shape}"
                )
            predicted = predicted.reshape(y.shape)
            loss = float(np.mean(np.square(predicted - y)))
            return Score(
                Evaluation(loss, None, len(y)), None, None, RegressionScore.of(y, predicted)
            )
        chances = self.estimator.predict_proba(x)
        of_label = chances[np.arange(len(y)), y]
        predicted = chances.argmax(axis=1)
        loss = -np.log(np.maximum(of_label, np.finfo(float).tiny)).mean()
        evaluation = Evaluation(float(loss), float((predicted == y).mean()), len(y))
        return Score(evaluation, y, predicted)

    @property
    def categories(self) -> dict[str, Sequence[str]]:
        """The categories of each column that has some, and a name."""
        known = self.estimator.preprocessor_.categories
        return {name: known[i].texts for i, name in enumerate(self.columns) if i in known}

    def unfamiliar(self, x: Any) -> list[str]:
        """Return a line for each column of x with what training rows lacked."""
        return self.estimator.preprocessor_.unfamiliar(x) if is_frame(x) else []

    def predict_file(self, path: Path) -> TablePredictions:
        """Return what it predicts for the rows of a ``.csv`` or an ``.npz`` file; errors are those
        of `warpfit.training.tables.predict_table`.
        """
        x, notes = read_rows(
            path, self.columns, self.label_column, self.categories, trained_on="an array"
        )
        x = self._named(x)
        is_classifier = isinstance(self.estimator, TabularClassifier)
        found = self.estimator.predict_proba(x) if is_classifier else self.estimator.predict(x)
        return predictions_of(found, self.class_names, notes + tuple(self.unfamiliar(x)))


@dataclass(frozen=True)
class TableJob:
    """A training that is ready to run: an estimator and its data."""

    estimator: Estimator
    dataset: Dataset
    data: str

    def run(self, folder: PathLike) -> tuple[StoredTable, Score | None, list[Path]]:
        """Train, test, and write everything into a folder; return the estimator, its score on the
        test rows, if there are some, and the files.

        Raises
        ------
        WarpfitError
            As the estimator; ConfigError if the folder cannot be written to.
        """
        results, dataset = ResultsFolder(folder), self.dataset
        with results.filled():
            y = dataset.y_train
            if dataset.class_names:
                y = np.array(dataset.class_names)[y]
            self.estimator.fit(dataset.x_train, y)
            stored = StoredTable(self.estimator, self.data, dataset.label_column)
            test = None
            if len(dataset.x_test):
                test = stored.score(dataset.x_test, dataset.y_test, dataset.class_names)
            self._write(results.unfinished, stored, test)
            files = results.publish()
            self._draw(results.unfinished, stored, test)  # for which nothing is lost
            return stored, test, files + results.publish()

    def _write(self, folder: Path, stored: StoredTable, test: Score | None) -> None:
        metadata = {"data": stored.data, "label_column": stored.label_column}
        save_estimator(self.estimator, folder / "model.safetensors", metadata=metadata)
        with atomic_path(folder / "history.json") as temporary:
            temporary.write_text(json.dumps(_report(self.estimator, test)) + "\n", encoding="utf-8")

    def _draw(self, folder: Path, stored: StoredTable, test: Score | None) -> None:
        if test is not None and test.labels is not None and test.predicted is not None:
            picture = confusion_svg(
                test.labels, test.predicted, stored.class_names, self.dataset.name
            )
            with atomic_path(folder / "confusion.svg") as temporary:
                temporary.write_text(picture, encoding="utf-8")


def prepare(given: Mapping[str, Any]) -> TableJob:
    """Return the job that settings of ``warpfit train`` describe, those that are not None.

    Raises
    ------
    ConfigError, DataError
        If a setting is none of a method's, or the data are no table or cannot be had.
    """
    given = {name: value for name, value in given.items() if value is not None}
    check_choice("method", given["method"], METHODS)
    check_count("limit", given.get("limit", 0), 0)
    foreign = sorted(given.keys() - {*OTHERS, *PARAMETERS})
    if foreign:
        raise ConfigError(
            f"expected no {some(foreign)} with method {given['method']}, which has its own"
        )
    if "data" not in given:
        raise ConfigError(f"expected data, a table, with method {given['method']}, got none")
    source = given["data"]
    dataset = open_data(source, **{name: given[name] for name in OF_DATA[1:] if name in given})
    x = dataset.x_train
    if not is_frame(x) and x.ndim != 2:
        raise DataError(
            f"{dataset.name}: expected rows of a table with method {given['method']}, got samples "
            f"of shape {x.shape[1:]}"
        )
    if given.get("limit"):
        dataset = with_training_rows(dataset, slice(given["limit"]))
    _check_classes(dataset)
    check_targets(dataset)
    _check_columns(dataset.x_train)
    path = Path(source).expanduser()
    estimator = _estimator(given, bool(dataset.class_names))
    _check_folds(estimator, dataset.y_train)
    return TableJob(
        estimator,
        dataset,
        str(path.resolve()) if path.exists() else source,
    )


def _check_classes(dataset: Dataset) -> None:
    """Raise DataError unless each class to test on is one to train on."""
    lacking = np.setdiff1d(dataset.y_test, dataset.y_train)
    if dataset.class_names and len(lacking):
        raise DataError(
            "expected training rows of each class to test on, got none of "
            f"{some([dataset.class_names[label] for label in lacking])}"
        )


def _check_columns(x: Any) -> None:
    """Raise DataError if no column of several rows has two different cells."""
    frame = pd.DataFrame(x)
    if len(frame) > 1 and all(frame[name].nunique(dropna=False) < 2 for name in frame):
        raise DataError(
            "expected a column to learn from, but all cells are the same: "
            f"{some(list(map(str, frame)))}"
        )


def _check_folds(estimator: Estimator, y: Array) -> None:
    """Raise DataError if rows are too few for the folds, before anything is printed."""
    if estimator.n_folds is None:
        return
    try:
        folds_of(y, estimator.n_folds, are_classes=estimator._are_classes, seed=0)
    except DataError as error:
        raise DataError(str(error).replace("n_folds", "--folds")) from None


def _estimator(given: Mapping[str, Any], are_classes: bool) -> Estimator:
    for name, lowest in COUNTS.items():
        check_count(f"--{name.replace('_', '-')}", given.get(name, lowest), lowest)
    settings = {own: given[name] for name, own in PARAMETERS.items() if name in given}
    if isinstance(settings.get("hidden_layer_sizes"), str):
        settings["hidden_layer_sizes"] = parse_hidden(settings["hidden_layer_sizes"])
    settings.setdefault("random_state", 0)
    if settings.get("precision") == "auto":
        del settings["precision"]
    if not are_classes and settings.pop("label_smoothing", None):
        raise ConfigError("expected label_smoothing for labels of classes, got float targets")
    kind = TabularClassifier if are_classes else TabularRegressor
    estimator: Estimator = kind(given["method"], **settings)
    try:
        estimator._validate_params()
    except ValueError as error:
        raise ConfigError(str(error)) from error
    settings_of(estimator)
    resolve_device(one_device(estimator.device))
    return estimator


def _report(estimator: Estimator, test: Score | None) -> dict[str, Any]:
    members = [
        {
            "loss": _finite(each.losses),
            "validation_error": _finite(each.errors),
            "best_epoch": each.best_epoch,
        }
        for each in estimator.members_
    ]
    report: dict[str, Any] = {"networks": members, "left_out": estimator.left_out_}
    if test is not None:
        report["test"] = {"loss": test.evaluation.loss, "rows": test.evaluation.num_rows}
        if test.evaluation.accuracy is not None:
            report["test"]["accuracy"] = test.evaluation.accuracy
        if test.regression is not None:
            report["test"] |= vars(test.regression)
    return report


def _finite(values: Sequence[float]) -> list[float | None]:
    """Return numbers as JSON has them: none for those that are not finite."""
    return [value if isfinite(value) else None for value in values]


def load_table(path: PathLike, *, device: str = "auto") -> StoredTable:
    """Return the estimator in a file that ``warpfit train --method`` or an estimator's `save`
    wrote.

    Raises
    ------
    FileFormatError
        If it is no whole file of such an estimator.
    """
    estimator, metadata = load_with_metadata((TabularClassifier, TabularRegressor), path)
    estimator.set_params(device=device)
    data, label_column = (metadata.get(name) for name in ("data", "label_column"))
    return StoredTable(
        estimator,
        data if isinstance(data, str) else "",
        label_column if isinstance(label_column, str) else None,
    )
