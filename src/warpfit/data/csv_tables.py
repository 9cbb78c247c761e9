"""A ``.csv`` file as a pandas frame, its labels apart: with a header or without, less its index."""

from __future__ import annotations

import csv
import re
import warnings
from collections.abc import Collection, Iterable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from io import StringIO
from itertools import islice
from pathlib import Path
from typing import Any

import numpy as np

from warpfit.checks import Array, brief
from warpfit.errors import ConfigError, DataError, FileFormatError
from warpfit.extras import needs

LABEL_COLUMNS = ("label", "target", "class", "y")
MISSING = ("", "?", "NA", "N/A", "n/a", "#N/A", "<NA>", "NaN", "nan", "NULL", "null", "None")
INDEX_NAMES = ("index", "idx", "no", "nr", "row", "rownames")
UNNAMED_FIRST = "column 1"
DELIMITERS = ",;\t"
PEEK_ROWS = 100
MOSTLY = 0.95  # of a column's cells: numbers with a few texts among them are a mistake
# A number as people write it: with a decimal comma, thousands apart, a currency, a percent sign.
WRITTEN = re.compile(r"[-+]?[$€£]?\s?\d+([ ,.']\d{3})*([.,]\d+)?\s?[%$€£]?")


@dataclass(frozen=True, eq=False)
class Table:
    """Features as a frame, labels as an array, the name of their column, and what was decided."""

    features: Any
    labels: Array
    label_column: str
    notes: tuple[str, ...]


@dataclass(frozen=True)
class _Layout:
    """What the first rows of a file tell of all."""

    names: tuple[str, ...]
    has_header: bool
    delimiter: str

    @property
    def notes(self) -> list[str]:
        notes = []
        if not self.has_header:
            last = self.names[-1]
            notes.append(f"no header row: the columns are called {self.names[0]!r} to {last!r}")
        if self.delimiter != ",":
            notes.append(f"cells are separated by {self.delimiter!r}")
        return notes


# The categories of columns, by their names.
KnownCategories = Mapping[str, Collection[str]]


def read_table(
    path: Path, label_column: str | None = None, categories: KnownCategories | None = None
) -> Table:
    """Return a file's features and labels; `categories` are as `read_features` takes them.

    Raises
    ------
    ConfigError
        If there is no `label_column`.
    DataError, FileFormatError
        If the file has no rows or no features, rows of other lengths, or cells that cannot be used.
    """
    layout = _read_layout(path)
    if len(layout.names) < 2:
        raise DataError(
            f"{path} has one column, {layout.names[0]!r}; expected features and a label"
        )
    label = _label_column(path, layout.names, label_column)
    frame = _read_frame(path, layout, {label})
    texts = frame.pop(label)
    features, notes = _without_index(frame, layout)
    if not len(features.columns):
        raise DataError(f"{path} has no column but {label!r}; expected features and a label")
    features = _with_texts(path, layout, features, categories or {})
    labels = _labels(path, label, texts.fillna("").str.strip().tolist())
    return Table(features, labels, label, (*layout.notes, *notes, f"labels: the column {label!r}"))


def read_features(
    path: Path,
    names: Sequence[str],
    label_column: str | None,
    categories: KnownCategories,
) -> tuple[Any, tuple[str, ...]]:
    """Return the columns `names` of a file, with labels or without, and what was decided.

    Cells that are one of a column's `categories` as they stand in the file are that text: 007 is no
    7, though there may be numbers only in a few rows.

    Raises
    ------
    DataError, FileFormatError
        As `read_table`, or if a column is missing.
    """
    layout = _read_layout(path)
    notes = layout.notes
    if not layout.has_header and len(layout.names) == len(names):
        layout = replace(layout, names=tuple(names))
    label = {name for name in layout.names if name == label_column}
    frame = _read_frame(path, layout, label)
    missing = [name for name in names if name not in frame.columns]
    if missing:
        raise DataError(
            f"{path} lacks {_quoted(missing)}; expected the columns that the model was trained on, "
            f"found {_quoted(frame.columns)}"
        )
    more = [name for name in frame.columns if name not in (*names, label_column)]
    if more:
        notes.append(f"left out: {_quoted(more)}, which the model was not trained on")
    return _with_texts(path, layout, frame[list(names)], categories), tuple(notes)


def _with_texts(path: Path, layout: _Layout, features: Any, categories: KnownCategories) -> Any:
    """Return features, which are checked, with text where a category stands in the file."""
    known = [name for name in features.columns if name in categories]
    _check_cells(path, features.drop(columns=known))
    parsed = {name for name in known if not _are_texts(features[name])}
    if not parsed:
        return features
    texts, found = _parsed_frame(path, layout, parsed, parsed), features.copy()
    for name in parsed:
        cells = texts[name].str.strip()
        found[name] = features[name].astype(object).where(~cells.isin(categories[name]), cells)
    return found


def _are_texts(column: Any) -> bool:
    return all(isinstance(cell, str) for cell in column.dropna().unique())


def _quoted(names: Iterable[str]) -> str:
    return ", ".join(repr(name) for name in names)


# -- layout


def _read_layout(path: Path) -> _Layout:
    """Return a file's layout, by its first rows."""
    with path.open(newline="", encoding="utf-8-sig") as file:
        try:
            line = next((line for line in file if line.strip()), "")
            delimiter = max(DELIMITERS, key=line.count)
            file.seek(0)
            filled = (
                row
                for row in csv.reader(file, delimiter=delimiter, skipinitialspace=True)
                if any(map(str.strip, row))
            )
            rows = [[cell.strip() for cell in row] for row in islice(filled, PEEK_ROWS)]
        except UnicodeDecodeError as error:
            raise _not_utf8(path, error) from error
        except csv.Error as error:
            raise FileFormatError(f"{path} is no readable .csv file: {error}") from error
    if not rows:
        raise FileFormatError(f"{path} is empty; expected a row per sample")
    first, *rest = rows
    has_header = _is_header(first, rest)
    if has_header and not rest:
        raise DataError(f"{path} has a header but no rows")
    given = first if has_header else [""] * len(first)
    names = tuple(name or f"column {number}" for number, name in enumerate(given, start=1))
    for name in names:
        if names.count(name) > 1:
            raise DataError(f"{path} has {names.count(name)} columns called {name!r}; expected one")
    return _Layout(names, has_header, delimiter)


def _is_header(first: list[str], rest: list[list[str]]) -> bool:
    """Return whether the first row has names: texts above numbers, or texts that no row repeats."""
    if not rest:
        return not any(map(_is_number, first))
    below = list(zip(*rest, strict=False))
    numeric = [cells for cells in zip(first, below, strict=False) if _are_numbers(cells[1])]
    if numeric:
        return any(name not in MISSING and not _is_number(name) for name, _ in numeric)
    return len(set(first)) == len(first) and not any(
        name in cells for name, cells in zip(first, below, strict=False)
    )


def _are_numbers(cells: Iterable[str]) -> bool:
    present = [cell for cell in cells if cell not in MISSING]
    return bool(present) and all(map(_is_number, present))


def _not_utf8(path: Path, error: UnicodeDecodeError) -> FileFormatError:
    return FileFormatError(f"expected UTF-8 text in {path}, save it so; {error}")


def _is_number(text: str) -> bool:
    """Return whether pandas takes a cell for a number: as Python, but without underscores."""
    if "_" in text:
        return False
    try:
        float(text)
    except ValueError:
        return False
    return True


def _label_column(path: Path, names: tuple[str, ...], asked: str | None) -> str:
    if asked is None:
        lower = [name.lower() for name in names]
        found = (names[lower.index(name)] for name in LABEL_COLUMNS if name in lower)
        return next(found, names[-1])
    if asked not in names:
        raise ConfigError(f"{path} has no column {asked!r}; its columns are {', '.join(names)}")
    return asked


# -- cells


def _read_frame(path: Path, layout: _Layout, texts: Collection[str]) -> Any:
    """Return all columns of a file, whose rows are checked; those of `texts` are text as it stands
    there.
    """
    frame = _parsed_frame(path, layout, texts)
    if frame.iloc[:, -1].isna().any() or (frame.iloc[:, -1] == "").any():
        _check_lengths(path, layout)
    return frame


def _parsed_frame(
    path: Path, layout: _Layout, texts: Collection[str], only: Collection[str] | None = None
) -> Any:
    """Return all columns of a file, or `only` some; the lengths of its rows are not checked."""
    with needs("data", "tables need"):
        import pandas as pd

    is_narrow = len(layout.names) == 1  # a blank line is then a missing cell
    try:
        with path.open(newline="", encoding="utf-8-sig") as file, warnings.catch_warnings():
            # Of rows longer than the first one.
            warnings.simplefilter("error", pd.errors.ParserWarning)
            return pd.read_csv(
                StringIO(_cells_of_one(file.read(), layout)) if is_narrow else file,
                sep=layout.delimiter,
                header=0 if layout.has_header else None,
                names=list(layout.names),
                usecols=only and list(only),
                index_col=False,
                skipinitialspace=True,
                skip_blank_lines=not is_narrow,
                na_values={name: MISSING for name in layout.names if name not in texts},
                keep_default_na=False,
                dtype=dict.fromkeys(texts, str),
                low_memory=False,
            )
    except UnicodeDecodeError as error:
        raise _not_utf8(path, error) from error
    except (pd.errors.ParserError, pd.errors.ParserWarning) as error:
        raise FileFormatError(f"{path} is no readable .csv file: {str(error).strip()}") from error
    except OverflowError as error:  # of some versions of pandas
        raise DataError(
            f"{path} has an integer that no float64 can hold; expected finite numbers"
        ) from error


def _cells_of_one(text: str, layout: _Layout) -> str:
    """Return the lines of a file of one column, without those before its header."""
    return text.lstrip("\r\n") if layout.has_header else text


def _check_lengths(path: Path, layout: _Layout) -> None:
    """Raise DataError for a row that ends too early, whose last cells pandas takes as missing."""
    with path.open(newline="", encoding="utf-8-sig") as file:
        rows = islice(
            filter(None, csv.reader(file, delimiter=layout.delimiter)), layout.has_header, None
        )
        for number, row in enumerate(rows, start=1):
            if len(row) != len(layout.names):
                raise DataError(
                    f"{path}: row {number} has {len(row)} cells; expected {len(layout.names)} as "
                    "in the first row"
                )


def _without_index(frame: Any, layout: _Layout) -> tuple[Any, list[str]]:
    """Return the features less a column that only numbers the rows, and what to say of it."""
    for name, column in frame.items():
        if _is_index(name, column, layout.has_header):
            return frame.drop(columns=name), [
                f"left out: the column {name!r}, which only numbers the rows"
            ]
    return frame, []


def _is_index(name: str, column: Any, has_header: bool) -> bool:
    """Return whether a column is a frame's index, or counts the rows under such a name."""
    if name == UNNAMED_FIRST or name.startswith("Unnamed: "):
        return has_header or _counts(column)
    return (name.lower().endswith("id") or name.lower() in INDEX_NAMES) and _counts(column)


def _counts(column: Any) -> bool:
    """Return whether a column is 0, 1, 2, ... or 1, 2, 3, ..."""
    if column.dtype.kind != "i" or len(column) < 2:
        return False
    return column.iloc[0] in (0, 1) and bool((np.diff(column) == 1).all())


def _check_cells(path: Path, features: Any) -> None:
    """Raise DataError for infinity, for a text among numbers, and for numbers written as text."""
    for name, column in features.items():
        if column.dtype.kind == "f":
            bad = np.isinf(column.to_numpy())
            expected = "a finite number"
        elif column.dtype.kind == "O":  # text, with missing cells or without
            is_filled = column.notna().to_numpy()
            numbers = np.array([_number(cell) for cell in column])
            if (np.isnan(numbers) & is_filled).sum() > (1 - MOSTLY) * is_filled.sum():
                _check_written(path, name, column.fillna("").astype(str).tolist())
                continue
            bad = ~np.isfinite(numbers) & is_filled
            expected = "a number, as in nearly all rows, or an empty cell"
        else:
            continue
        if bad.any():
            row = int(np.argmax(bad))
            raise DataError(
                f"{path}: row {row + 1}, column {name!r} is {brief(column.iloc[row])}; expected "
                f"{expected}"
            )


def _check_written(path: Path, name: str, cells: list[str]) -> None:
    """Raise DataError if nearly all cells are numbers as people write them, some unreadable."""
    filled = [cell for cell in map(str.strip, cells) if cell]
    if sum(WRITTEN.fullmatch(cell) is not None for cell in filled) < MOSTLY * len(filled):
        return
    for row, cell in enumerate(map(str.strip, cells), start=1):
        if WRITTEN.fullmatch(cell) and not _is_number(cell):
            raise DataError(
                f"{path}: row {row}, column {name!r} is {cell!r}; expected numbers like 1234.5, "
                "with a decimal point, without separators or units"
            )


def _labels(path: Path, name: str, labels: list[str]) -> Array:
    """Return labels as int64 if all are integers, as float64 if all are numbers, else as text."""
    if "" in labels:
        raise DataError(
            f"{path}: row {labels.index('') + 1}, column {name!r} is empty; expected a label"
        )
    if not any("_" in label for label in labels):  # which Python leaves out of numbers
        with suppress(ValueError, OverflowError):
            return np.array([int(label) for label in labels], dtype=np.int64)
    if not _are_numbers(labels):
        _check_written(path, name, labels)
        return np.array(labels)
    bad = [row for row, label in enumerate(labels) if not np.isfinite(_number(label))]
    if bad:
        raise DataError(
            f"{path}: row {bad[0] + 1}, column {name!r} is {labels[bad[0]]}; expected a finite "
            "number"
        )
    return np.array(list(map(float, labels)))


def _number(cell: Any) -> float:
    """Return the number that a cell is, a truth value too, or NaN for another text."""
    text = str(float(cell)) if isinstance(cell, bool) else str(cell)
    return float(text) if _is_number(text) else np.nan
