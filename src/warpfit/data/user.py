"""The user's own data: an ``.npz`` file, a ``.csv`` file, or a folder of images, a sub-folder per class."""

from __future__ import annotations

import csv
from array import array
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from warpfit.data.dataset import Dataset, split_rows, unit_floats
from warpfit.data.idx import PathLike
from warpfit.data.npz import npz_arrays
from warpfit.errors import ConfigError, DataError, FileFormatError

__all__ = ["load_user_data"]

Array = npt.NDArray[Any]
Parts = tuple[Array, Array, tuple[Array, Array] | None]  # x, y, and a test set if the data have one

NPZ_SPLIT_KEYS = ("x_train", "y_train", "x_test", "y_test")
NPZ_WHOLE_KEYS = (("x", "y"), ("X", "y"))
LABEL_COLUMNS = ("label", "target", "class", "y")
IMAGE_SUFFIXES = (".png", ".jpg", ".jpeg", ".bmp", ".gif", ".webp", ".tif", ".tiff", ".pgm", ".ppm")
GRAY_MODES = ("L", "LA", "1")
COLOUR_MODES = ("RGB", "RGBA", "RGBX", "P", "PA", "CMYK", "YCbCr", "HSV", "LAB")


def load_user_data(
    path: PathLike, *, label_column: str | None = None, test_fraction: float = 0.2, seed: int = 0
) -> Dataset:
    """Load the user's own data.

    ``.npz``
        Arrays x_train, y_train, x_test, y_test; or x and y (or X and y), of which a part is held out.
    ``.csv``
        A header row, then a row per sample. The labels are the column `label_column`, else one called label,
        target, class or y (in any case), else the last; all other columns are numbers. Labels that are all
        integers or not all numbers are classes; other numbers are targets of a regression.
    a folder
        A sub-folder of images per class; or sub-folders ``train`` and ``test`` with those inside. All images
        have the same size; they come as (N, H, W) if all are gray, else as (N, H, W, 3).

    Samples become float32; uint8 samples and images become x/255. Integer, boolean and text labels become
    0..K-1 in ascending order, and `class_names` keeps what they were; a float y stays what it is, as float32
    and without class names, for regression.

    Parameters
    ----------
    path : path
    label_column : str, optional
        The column with the labels; for ``.csv`` only.
    test_fraction : float
        Part to hold out, in [0, 1), where the data have no test set of their own; see `split_rows`.
    seed : int
        Picks which rows are held out.

    Raises
    ------
    ConfigError
        If `test_fraction` is out of range, or `label_column` does not apply or does not exist.
    DataError
        If the data are missing, empty, not finite, or samples and labels do not match.
    FileFormatError
        If a file cannot be read as what its name says.
    """
    path = Path(path).expanduser()
    if not 0 <= test_fraction < 1:
        raise ConfigError(f"test_fraction must be in [0, 1), got {test_fraction}")
    if label_column is not None and path.suffix.lower() != ".csv":
        raise ConfigError(f"label_column names a column of a .csv file; {path} is none")
    if not path.exists():
        raise DataError(f"{path} does not exist; expected an .npz file, a .csv file or a folder of images")
    try:
        x, y, test = _read(path, label_column)
    except OSError as error:
        raise DataError(f"cannot read {path}: {error.strerror or error}") from error
    name = path.resolve().name if path.is_dir() else path.stem
    return _dataset(name, x, y, test, test_fraction, seed)


def _read(path: Path, label_column: str | None) -> Parts:
    if path.is_dir():
        return _read_images(path)
    if path.suffix.lower() == ".npz":
        return _read_npz(path)
    if path.suffix.lower() == ".csv":
        return _read_csv(path, label_column)
    raise DataError(f"{path} is neither an .npz file, a .csv file nor a folder of images")


def _dataset(
    name: str, x: Array, y: Array, test: tuple[Array, Array] | None, test_fraction: float, seed: int
) -> Dataset:
    if test is None:
        train_rows, test_rows = split_rows(y, test_fraction, seed)
        x, y, test = x[train_rows], y[train_rows], (x[test_rows], y[test_rows])
    x_test, y_test = test
    if y.dtype == np.float32:
        return Dataset(name, x, y, x_test, y_test, class_names=())
    classes, labels = np.unique(np.concatenate([y, y_test]), return_inverse=True)
    names = tuple(map(str, classes))
    return Dataset(name, x, labels[: len(y)], x_test, labels[len(y) :], class_names=names)


# .npz


def _read_npz(path: Path) -> Parts:
    arrays = npz_arrays(path)
    if set(NPZ_SPLIT_KEYS) <= arrays.keys():
        x, y, x_test, y_test = (arrays[key] for key in NPZ_SPLIT_KEYS)
        train = _checked_pair(path, x, y, "_train")
        test = _checked_pair(path, x_test, y_test, "_test", may_be_empty=True)
        if (y.dtype.kind == "f") != (y_test.dtype.kind == "f"):
            raise DataError(
                f"{path}: y_train is {y.dtype} but y_test is {y_test.dtype}; expected the same kind"
            )
        return *train, test
    for x_key, y_key in NPZ_WHOLE_KEYS:
        if {x_key, y_key} <= arrays.keys():
            return *_checked_pair(path, arrays[x_key], arrays[y_key]), None
    found = ", ".join(arrays) or "none"
    raise DataError(f"{path}: expected arrays x_train, y_train, x_test, y_test, or x and y; found {found}")


def _checked_pair(
    path: Path, x: Array, y: Array, suffix: str = "", *, may_be_empty: bool = False
) -> tuple[Array, Array]:
    x_name, y_name = f"{path}: x{suffix}", f"{path}: y{suffix}"
    if x.ndim < 2:
        raise DataError(
            f"{x_name} must have a row per sample, so at least two dimensions; got shape {x.shape}"
        )
    if y.ndim == 0 or len(x) != len(y):
        raise DataError(
            f"{x_name} has shape {x.shape} but y{suffix} has shape {y.shape}; expected as many rows"
        )
    if not len(x) and not may_be_empty:
        raise DataError(f"{x_name} has no rows")
    x = unit_floats(x) if x.dtype == np.uint8 else _finite_floats(x, x_name)
    if y.dtype.kind == "f":
        return x, _finite_floats(y, y_name)
    if y.dtype.kind not in "biuU" or y.ndim != 1:
        raise DataError(
            f"{y_name} must be integers, booleans or text of shape (N,) (classes) or floats (regression), "
            f"got {y.dtype} of shape {y.shape}"
        )
    return x, y


def _finite_floats(values: Array, name: str) -> npt.NDArray[np.float32]:
    if values.dtype.kind not in "biuf":
        raise DataError(f"{name} must be numbers, got {values.dtype}")
    with np.errstate(over="ignore"):
        floats = values.astype(np.float32)
    place = _first_not_finite(floats)
    if place:
        row, *rest = place
        column = f", column {rest[0] if len(rest) == 1 else tuple(rest)}" if rest else ""
        raise DataError(f"{name} has {values[place]} in row {row}{column}; expected finite float32 numbers")
    return floats


def _first_not_finite(floats: npt.NDArray[np.float32]) -> tuple[int, ...] | None:
    if np.isfinite(floats).all():
        return None
    return tuple(np.argwhere(~np.isfinite(floats))[0].tolist())


# .csv


def _read_csv(path: Path, label_column: str | None) -> Parts:
    with path.open(newline="", encoding="utf-8-sig") as file:
        rows = csv.reader(file)
        try:
            header = [name.strip() for name in next(rows, [])]
            label_index = _label_index(path, header, label_column)
            names = [name for index, name in enumerate(header) if index != label_index]
            x, labels = _csv_rows(path, names, label_index, rows)
        except (csv.Error, UnicodeDecodeError) as error:
            raise FileFormatError(f"{path} is no readable .csv file: {error}") from error
    return x, _csv_labels(path, header[label_index], labels), None


def _label_index(path: Path, header: list[str], label_column: str | None) -> int:
    if not any(header):
        raise FileFormatError(f"{path} is empty; expected a header row")
    if all(_is_number(name) for name in header):
        raise FileFormatError(f"{path} has no header row: its first row has numbers only")
    if len(header) < 2:
        raise DataError(f"{path} has one column, {header[0]!r}; expected features and a label")
    if label_column is None:
        lower = [name.lower() for name in header]
        return next((lower.index(name) for name in LABEL_COLUMNS if name in lower), len(header) - 1)
    if label_column not in header:
        raise ConfigError(f"{path} has no column {label_column!r}; its columns are {', '.join(header)}")
    return header.index(label_column)


def _csv_rows(
    path: Path, names: list[str], label_index: int, rows: Iterable[list[str]]
) -> tuple[npt.NDArray[np.float32], list[str]]:
    """Return the features (N, F) and the texts of the labels; `names` are those of the F feature columns."""
    features, labels = array("f"), []
    for number, row in enumerate(filter(None, rows), start=1):
        if len(row) != len(names) + 1:
            raise DataError(
                f"{path}: row {number} has {len(row)} cells; expected {len(names) + 1} as in the header"
            )
        labels.append(row.pop(label_index).strip())
        try:
            features.extend(map(float, row))
        except ValueError:
            name, cell = next(pair for pair in zip(names, row, strict=True) if not _is_number(pair[1]))
            raise DataError(f"{path}: row {number}, column {name!r} is {cell!r}; expected a number") from None
    if not labels:
        raise DataError(f"{path} has a header but no rows")
    x = np.frombuffer(features, dtype=np.float32).reshape(len(labels), len(names))
    place = _first_not_finite(x)
    if place:
        raise _not_finite_cell(path, place[0], names[place[1]], x[place])
    return x, labels


def _csv_labels(path: Path, name: str, labels: list[str]) -> Array:
    if "" in labels:
        raise DataError(f"{path}: row {labels.index('') + 1}, column {name!r} is empty; expected a label")
    try:
        return np.array([int(label) for label in labels], dtype=np.int64)
    except (ValueError, OverflowError):
        pass
    if not all(map(_is_number, labels)):
        return np.array(labels)
    targets = np.array(list(map(float, labels)), dtype=np.float64).astype(np.float32)
    place = _first_not_finite(targets)
    if place:
        raise _not_finite_cell(path, place[0], name, targets[place])
    return targets


def _not_finite_cell(path: Path, row: int, name: str, value: np.float32) -> DataError:
    return DataError(f"{path}: row {row + 1}, column {name!r} is {value}; expected a finite float32 number")


def _is_number(text: str) -> bool:
    try:
        float(text)
    except ValueError:
        return False
    return True


# A folder of images


def _read_images(folder: Path) -> Parts:
    train, test = folder / "train", folder / "test"
    has_test_set = bool(_sub_folders(train) and _sub_folders(test))
    files = _image_files(train) if has_test_set else _image_files(folder)
    num_train = len(files)
    if has_test_set:
        files += _image_files(test)
    x, y = _stack([path for path, _ in files]), np.array([label for _, label in files])
    return x[:num_train], y[:num_train], (x[num_train:], y[num_train:]) if has_test_set else None


def _sub_folders(folder: Path) -> list[Path]:
    if not folder.is_dir():
        return []
    return sorted(path for path in folder.iterdir() if path.is_dir() and not path.name.startswith("."))


def _image_files(folder: Path) -> list[tuple[Path, str]]:
    """Return each image below a folder and its class, the name of its sub-folder."""
    classes = _sub_folders(folder)
    if not classes:
        raise DataError(f"{folder} has no sub-folders; expected one per class, with its images inside")
    files = []
    for sub_folder in classes:
        images = sorted(path for path in sub_folder.iterdir() if path.suffix.lower() in IMAGE_SUFFIXES)
        if not images:
            raise DataError(
                f"{sub_folder} has no images; expected files ending in {', '.join(IMAGE_SUFFIXES)}"
            )
        files += [(path, sub_folder.name) for path in images]
    return files


def _stack(paths: list[Path]) -> npt.NDArray[np.float32]:
    """Return the images as (N, H, W), or as (N, H, W, 3) if one of them has colours."""
    images = [_read_image(path) for path in paths]
    height, width = images[0].shape[:2]
    for path, image in zip(paths, images, strict=True):
        if image.shape[:2] != (height, width):
            raise DataError(
                f"{path} is {image.shape[0]} pixels high and {image.shape[1]} wide; "
                f"expected {height} and {width} as in {paths[0]}"
            )
    if any(image.ndim == 3 for image in images):
        images = [np.repeat(image[:, :, None], 3, axis=2) if image.ndim == 2 else image for image in images]
    return unit_floats(np.stack(images))


def _read_image(path: Path) -> npt.NDArray[np.uint8]:
    """Return an image as (H, W) if it is gray, else as (H, W, 3)."""
    from PIL import Image

    try:
        with Image.open(path) as file:
            image = file.copy()
    except Exception as error:  # on damaged files Pillow's parsers raise almost anything
        raise FileFormatError(f"{path} is no readable image: {error}") from error
    if image.mode not in GRAY_MODES + COLOUR_MODES:
        raise DataError(f"{path} has pixels of mode {image.mode}; expected 8 bits per channel")
    return np.asarray(image.convert("L" if image.mode in GRAY_MODES else "RGB"))
