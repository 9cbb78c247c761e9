"""The user's own data: an ``.npz`` file, a ``.csv`` file, or a folder with images by class."""

from __future__ import annotations

import os
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from warpfit.checks import Array
from warpfit.data.csv_tables import KnownCategories, read_table
from warpfit.data.dataset import Dataset, as_floats, split_rows, taken
from warpfit.data.images import read_folder
from warpfit.data.npz import npz_arrays
from warpfit.data.targets import as_targets, check_kind, check_task
from warpfit.errors import ConfigError, DataError
from warpfit.files import PathLike, as_path

NPZ_SPLIT_KEYS = ("x_train", "y_train", "x_test", "y_test")
NPZ_WHOLE_KEYS = (("x", "y"), ("X", "y"))


@dataclass(frozen=True, eq=False)
class _Parts:
    """Samples and targets as read, and a test set's if there is one; `y_name` is for messages."""

    x: Any
    y: Array
    y_name: str
    test: tuple[Array, Array] | None = None
    label_column: str | None = None
    notes: tuple[str, ...] = ()


def load_user_data(
    path: PathLike,
    *,
    label_column: str | None = None,
    task: str = "auto",
    image_size: tuple[int, int] | None = None,
    test_fraction: float = 0.2,
    seed: int = 0,
    categories: KnownCategories | None = None,
) -> Dataset:
    """Load the user's own data.

    ``.npz``
        Arrays x_train, y_train, x_test, y_test; or x and y (or X and y), of which a part is held
        out.
    ``.csv``
        A row per sample, with a header row or without. The labels are the column `label_column`,
        else one called label, target, class or y (in any case), else the last. The other columns
        are the samples, as a pandas frame: numbers, text, true and false, and missing cells (empty,
        ?, NA, ...). A first column without a name, or one called id that only numbers the rows, is
        left out.
    a folder
        A sub-folder of images per class; or sub-folders ``train`` and ``test`` with those inside.
        They come as (N, H, W) if all are gray, else as (N, H, W, 3); images of mixed sizes are
        resized.

    Images and uint8 arrays become float32 x/255; integers and floats of 32 bits or fewer float32,
    of more float64. Labels become 0..K-1 in ascending order, and `class_names` keeps what they
    were; targets of a regression become float32, without class names. `notes` of the data set says
    what was decided.

    Parameters
    ----------
    path : path
    label_column : str, optional
        The column with the labels; for ``.csv`` only.
    task : {'auto', 'classification', 'regression'}
        ``'auto'``: text, booleans and integers are classes, floats a regression; and so are
        integers with more than 20 distinct values, unless these are 0..K-1 or 1..K on at least five
        rows each.
    image_size : (int, int), optional
        Height and width of all images of a folder. By default their own; of mixed sizes their
        median, at most 64 pixels.
    test_fraction : float
        Part to hold out, in [0, 1), where the data have no test set of their own; see `split_rows`.
    seed : int
        Picks which rows are held out.
    categories : mapping of str to texts, optional
        Of columns of a ``.csv`` file: a cell that is one of them, as it stands in the file, is that
        text. So 007 is no 7, though all other cells may be numbers.

    Raises
    ------
    ConfigError
        If `test_fraction` is out of range, `task` is unknown, or `label_column` or `image_size`
        does not apply.
    DataError
        If the data are missing, empty, infinite, or samples and labels do not match.
    FileFormatError
        If a file cannot be read as what its name says.

    Examples
    --------
    >>> np.savez("rows.npz", x=x, y=y)
    >>> data.load_user_data("rows.npz", test_fraction=0.1).x_train.shape
    (180, 64)
    """
    path = as_path("path", path).expanduser()
    check_task(task)
    if not 0 <= test_fraction < 1:
        raise ConfigError(f"test_fraction must be in [0, 1), got {test_fraction}")
    if label_column is not None and path.suffix.lower() != ".csv":
        raise ConfigError(f"label_column names a column of a .csv file; {path} is none")
    if not os.path.exists(path):  # which is False, too, for names that cannot be
        raise DataError(
            f"{path} does not exist; expected an .npz file, a .csv file or a folder of images"
        )
    if image_size is not None and not path.is_dir():
        raise ConfigError(f"image_size is for a folder of images; {path} is none")
    try:
        parts = _read(path, label_column, image_size, categories)
    except OSError as error:
        raise DataError(f"cannot read {path}: {error.strerror or error}") from error
    return _dataset(path, parts, task, test_fraction, seed)


def _read(
    path: Path,
    label_column: str | None,
    image_size: tuple[int, int] | None,
    categories: KnownCategories | None,
) -> _Parts:
    if path.is_dir():
        images = read_folder(path, image_size)
        return _Parts(*images.train, f"{path}: y", images.test, notes=images.notes)
    if path.suffix.lower() == ".npz":
        return _read_npz(path)
    if path.suffix.lower() == ".csv":
        table = read_table(path, label_column, categories)
        name = f"{path}: the column {table.label_column!r}"
        return _Parts(
            table.features, table.labels, name, label_column=table.label_column, notes=table.notes
        )
    raise DataError(f"{path} is neither an .npz file, a .csv file nor a folder of images")


def _dataset(path: Path, parts: _Parts, task: str, test_fraction: float, seed: int) -> Dataset:
    targets = [parts.y] if parts.test is None else [parts.y, parts.test[1]]
    for each in targets:
        check_kind(each, task, parts.y_name)
    y = np.concatenate(targets)
    y, why = as_targets(y, task, parts.y_name)
    names: tuple[str, ...] = ()
    if y.dtype != np.float32:
        classes, y = np.unique(y, return_inverse=True)
        names = tuple(map(str, classes))
    if parts.test is None:
        train_rows, test_rows = split_rows(y, test_fraction, seed)
        x_train, x_test = taken(parts.x, train_rows), taken(parts.x, test_rows)
        y_train, y_test = y[train_rows], y[test_rows]
    else:
        x_train, x_test = parts.x, parts.test[0]
        y_train, y_test = y[: len(x_train)], y[len(x_train) :]
    return Dataset(
        name=path.resolve().name if path.is_dir() else path.stem,
        x_train=x_train,
        y_train=y_train,
        x_test=x_test,
        y_test=y_test,
        class_names=names,
        label_column=parts.label_column,
        notes=(*parts.notes, why),
    )


# .npz


def _read_npz(path: Path) -> _Parts:
    arrays = npz_arrays(path)
    name = f"{path}: y"
    if set(NPZ_SPLIT_KEYS) <= arrays.keys():
        x, y, x_test, y_test = (arrays[key] for key in NPZ_SPLIT_KEYS)
        train = _checked_pair(path, x, y, "_train")
        test = _checked_pair(path, x_test, y_test, "_test", may_be_empty=True)
        if (y.dtype.kind == "f") != (y_test.dtype.kind == "f") or y.shape[1:] != y_test.shape[1:]:
            raise DataError(
                f"{path}: y_train is {y.dtype} of shape {y.shape} but y_test is {y_test.dtype} of "
                f"shape {y_test.shape}; expected the same kind"
            )
        return _Parts(*train, name, test)
    for x_key, y_key in NPZ_WHOLE_KEYS:
        if {x_key, y_key} <= arrays.keys():
            return _Parts(*_checked_pair(path, arrays[x_key], arrays[y_key]), name)
    found = ", ".join(arrays) or "none"
    raise DataError(
        f"{path}: expected arrays x_train, y_train, x_test, y_test, or x and y; found {found}"
    )


def npz_samples(path: Path) -> Array:
    """Return the samples in an ``.npz`` file that may have no targets: x, X or x_test."""
    arrays = npz_arrays(path)
    for name in ("x", "X", "x_test"):
        if name in arrays:
            return _checked_samples(arrays[name], f"{path}: {name}")
    raise DataError(
        f"{path}: expected an array x, X or x_test; found {', '.join(arrays) or 'none'}"
    )


def _checked_pair(
    path: Path, x: Array, y: Array, suffix: str = "", *, may_be_empty: bool = False
) -> tuple[Array, Array]:
    x_name, y_name = f"{path}: x{suffix}", f"{path}: y{suffix}"
    x = _checked_samples(x, x_name)
    if y.ndim == 0 or len(x) != len(y):
        raise DataError(
            f"{x_name} has shape {x.shape} but y{suffix} has shape {y.shape}; expected as many rows"
        )
    if not len(x) and not may_be_empty:
        raise DataError(f"{x_name} has no rows")
    _check_finite(y, y_name)
    return x, y


def _checked_samples(x: Array, name: str) -> Array:
    """Return samples as floats, or raise DataError; cells of a table may be missing (NaN)."""
    if x.ndim < 2:
        raise DataError(
            f"{name} must have a row per sample, so at least two dimensions; got shape {x.shape}"
        )
    if x.dtype.kind not in "biuf":
        raise DataError(f"{name} must be numbers, got {x.dtype}")
    with np.errstate(over="ignore"):
        floats = as_floats(x)
    _check_finite(floats, name, may_be_missing=x.ndim == 2)
    return floats


def _check_finite(values: Array, name: str, *, may_be_missing: bool = False) -> None:
    if values.dtype.kind != "f":
        return
    bad = np.isinf(values) if may_be_missing else ~np.isfinite(values)
    if bad.any():
        row, *rest = np.argwhere(bad)[0].tolist()
        column = f", column {rest[0] if len(rest) == 1 else tuple(rest)}" if rest else ""
        raise DataError(
            f"{name} has {values[(row, *rest)]} in row {row}{column}; expected a finite "
            f"{values.dtype}"
        )
