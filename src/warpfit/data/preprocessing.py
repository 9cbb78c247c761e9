"""Tables as rows for a network, by scikit-learn's transformers; and back from its outputs."""

from __future__ import annotations

import math
from collections.abc import Hashable, Mapping, Sequence
from contextlib import suppress
from dataclasses import asdict, dataclass
from typing import Any

import numpy as np
import numpy.typing as npt
from sklearn.base import BaseEstimator, TransformerMixin
from sklearn.compose import ColumnTransformer
from sklearn.impute import SimpleImputer
from sklearn.pipeline import Pipeline
from sklearn.preprocessing import FunctionTransformer, OneHotEncoder, StandardScaler
from sklearn.utils.validation import check_is_fitted

from warpfit.checks import brief, check_count, some
from warpfit.data.dataset import is_frame, is_table
from warpfit.errors import DataError, FileFormatError, ShapeError
from warpfit.extras import needs

with needs("data", "tables need"):
    import pandas as pd

__all__ = ["TablePreprocessor"]

Array = npt.NDArray[Any]
Floats = npt.NDArray[np.float32]

NUMBER, CATEGORY, LEFT_OUT = "number", "category", "left out"
KINDS = (NUMBER, CATEGORY, LEFT_OUT)
NUMBERS, CATEGORIES = "numbers", "categories"  # the two transformers
MISSING = "(missing)"

FARTHEST = 10.0  # standard deviations: one wild cell does not carry a network away
FEW_VALUES, ROWS_OF_A_VALUE = 10, 20  # of integers that are categories
FEW_TEXTS = 10  # texts may all differ, however few rows there are


@dataclass(frozen=True)
class _Column:
    """A column as it was fitted: its kind; the categories of one; why it is left out; how many
    cells were missing.
    """

    name: str
    kind: str
    categories: tuple[str, ...] = ()
    why: str = ""
    num_missing: int = 0


class TablePreprocessor(TransformerMixin, BaseEstimator):
    """Makes float32 rows for a network of a table: numbers, text, true and false, categories,
    missing cells.

    Numbers are standardised to mean 0 and standard deviation 1, and clipped at ±10; missing ones
    become the median, and one more column marks them. Text, booleans, categories, and integers of a
    frame with at most 10 distinct values on 20 rows each become one column a category, of zeros and
    ones; unknown categories are all zeros. Columns with one value only are left out, and so are
    texts that nearly all differ, such as names. Targets of a regression are standardised, too. All
    of it is scikit-learn's: a `ColumnTransformer` of `SimpleImputer`, `StandardScaler` and
    `OneHotEncoder`.

    An array has one kind of column, numbers; it passes as it is if it has another number of
    dimensions than two, is uint8, or all of it lies in [0, 1]: pixels have one scale already.

    Parameters
    ----------
    max_categories : int
        Of a text column with more, as many of the most frequent have a column.

    Attributes
    ----------
    columns_ : tuple or None
        Name and kind of each column; None where x passes as it is.
    transformer_ : ColumnTransformer or None
    targets_ : StandardScaler or None
        None where `fit` got no float targets.

    Examples
    --------
    >>> import pandas as pd
    >>> import warpfit as wf
    >>> houses = pd.DataFrame({"area": [80.0, 120.0, None], "town": ["Ulm", "Bonn", "Ulm"]})
    >>> table = wf.data.TablePreprocessor().fit(houses)
    >>> table.get_feature_names_out().tolist()
    ['area', 'area is missing', 'town Bonn', 'town Ulm']
    >>> table.transform(houses).shape
    (3, 4)
    """

    def __init__(self, max_categories: int = 100) -> None:
        self.max_categories = max_categories

    def fit(self, x: Any, y: Any = None) -> TablePreprocessor:
        """Learn means, medians and categories from rows x (N, F), and, if they are floats, the
        scale of targets y.

        Raises
        ------
        DataError
            If a column is neither numbers nor text, holds infinity or numbers whose variance
            overflows, or none is left.
        ConfigError
            If `max_categories` is no integer of at least 1.
        """
        check_count("max_categories", self.max_categories, 1)
        self.columns_: tuple[_Column, ...] | None = None
        self.transformer_: Any = None
        self.targets_: Any = None
        if is_table(x):
            frame = _as_frame(x)
            self.columns_ = tuple(
                _examined(frame[name], self.max_categories, is_frame(x)) for name in frame.columns
            )
            if not self._of(NUMBER, CATEGORY):
                raise DataError(
                    f"expected a column to learn from, but {'; '.join(self.describe())}"
                )
            with np.errstate(
                over="ignore", invalid="ignore"
            ):  # `_check_scales` says of which column
                self.transformer_ = self._unfitted().fit(self._canonical(frame))
            self._check_scales()
        if y is not None and np.asarray(y).dtype.kind == "f":
            self.targets_ = StandardScaler().fit(_columns_of(y))
        return self

    def transform(self, x: Any) -> Array:
        """Return rows x as float32 (N, features); arrays that pass as they are, unchanged.

        Raises
        ------
        DataError
            If a column is missing, or has text where numbers were.
        ShapeError
            If an array has another number of columns.
        """
        check_is_fitted(self, "columns_")
        if self.columns_ is None:
            return np.asarray(x)
        canonical = self._canonical(self._framed(x))
        if not len(canonical):  # scikit-learn refuses those
            return np.empty((0, len(self.get_feature_names_out())), np.float32)
        return np.asarray(self.transformer_.transform(canonical), np.float32)

    def transform_targets(self, y: Any) -> Array:
        """Return targets (N,) or (N, K) as the network learns them: standardised where they were in
        `fit`.
        """
        check_is_fitted(self, "columns_")
        if self.targets_ is None or not len(y):
            return np.asarray(y)
        return np.asarray(self.targets_.transform(_columns_of(y)), np.float32).reshape(np.shape(y))

    def inverse_targets(self, outputs: Any) -> Array:
        """Return outputs (N,) or (N, K) of a network in the units of the targets."""
        check_is_fitted(self, "columns_")
        if self.targets_ is None:
            return np.asarray(outputs)
        # By hand, as scikit-learn refuses NaN and infinity, which are to be seen.
        values = _columns_of(outputs) * self.targets_.scale_ + self.targets_.mean_
        return np.asarray(values).reshape(np.shape(outputs))

    def get_feature_names_out(self, input_features: Any = None) -> npt.NDArray[np.object_]:
        """Return the names of the columns that `transform` gives."""
        check_is_fitted(self, "columns_")
        numbers = self._of(NUMBER)
        names = [column.name for column in numbers]
        names += [f"{column.name} is missing" for column in numbers if column.num_missing]
        names += [
            f"{column.name} {text}" for column in self._of(CATEGORY) for text in column.categories
        ]
        return np.array(names, dtype=object)

    def num_features(self, input_shape: tuple[int, ...]) -> int:
        """Return how many numbers `transform` gives for a sample of a shape."""
        if self.columns_ is None:
            return math.prod(input_shape)
        if input_shape != (len(self.columns_),):
            raise FileFormatError(
                f"expected samples of {len(self.columns_)} columns, found shape {input_shape}"
            )
        return len(self.get_feature_names_out())

    @property
    def input_names(self) -> tuple[str, ...]:
        """The columns that `transform` needs."""
        return tuple(column.name for column in self._of(NUMBER, CATEGORY))

    def describe(self) -> list[str]:
        """Return what was done, a line for each kind of column."""
        numbers, categories = self._of(NUMBER), self._of(CATEGORY)
        lines = []
        if numbers:
            lines.append(f"standardised: {some([column.name for column in numbers])}")
        if categories:
            texts = [f"{column.name} ({len(column.categories)})" for column in categories]
            lines.append(f"one column a category: {some(texts)}")
        missing = [
            f"{c.name} ({c.num_missing:,})" for c in (*numbers, *categories) if c.num_missing
        ]
        if missing:
            lines.append(f"missing cells, filled and marked: {some(missing)}")
        for why in dict.fromkeys(column.why for column in self._of(LEFT_OUT)):
            names = [column.name for column in self._of(LEFT_OUT) if column.why == why]
            lines.append(f"left out, {why}: {some(names)}")
        if self.targets_ is not None and self.targets_.mean_.size == 1:
            mean, scale = self.targets_.mean_[0], self.targets_.scale_[0]
            lines.append(f"targets standardised: mean {mean:.6g}, standard deviation {scale:.6g}")
        elif self.targets_ is not None:
            lines.append(f"targets standardised: {self.targets_.mean_.size} of them")
        return lines

    def unfamiliar(self, x: Any) -> list[str]:
        """Return what rows x hold that `fit` saw in none, a line for each column: categories, and
        missing numbers.
        """
        check_is_fitted(self, "columns_")
        lines: list[str] = []
        if self.columns_ is None:
            return lines
        frame = self._framed(x)
        for column in self._of(CATEGORY):
            texts = _texts(frame[column.name])
            other = texts[~texts.isin(column.categories)]
            if len(other):
                lines.append(
                    f"column {column.name!r}: cells of no known category: {len(other):,}, such as "
                    f"{other.iloc[0]!r}"
                )
        for column in self._of(NUMBER):
            num_missing = int(frame[column.name].isna().sum())
            if num_missing and not column.num_missing:
                lines.append(
                    f"column {column.name!r}: missing cells, filled: {num_missing:,}; there was "
                    "none to train on"
                )
        return lines

    def to_dict(self) -> dict[str, Any]:
        """Return what was learned as JSON has it; `from_dict` makes an equal preprocessor of it."""
        check_is_fitted(self, "columns_")
        state: dict[str, Any] = {
            "max_categories": self.max_categories,
            "columns": None,
            "targets": None,
        }
        if self.columns_ is not None:
            state["columns"] = [asdict(column) for column in self.columns_]
            steps = self.transformer_.named_transformers_
            if self._of(NUMBER):
                state["fill"] = steps[NUMBERS]["impute"].statistics_.tolist()
                state["numbers"] = _scaler_state(steps[NUMBERS]["scale"])
        if self.targets_ is not None:
            state["targets"] = _scaler_state(self.targets_)
        return state

    @classmethod
    def from_dict(cls, state: Mapping[str, Any]) -> TablePreprocessor:
        """Return the preprocessor that `to_dict` described; no code of the description runs.

        Raises
        ------
        FileFormatError
            If it is none.
        """
        try:
            return cls._rebuilt(state)
        except (KeyError, TypeError, ValueError, AttributeError, OverflowError) as error:
            raise FileFormatError(
                f"expected the state of a TablePreprocessor, wrong is: {error}"
            ) from error

    @classmethod
    def _rebuilt(cls, state: Mapping[str, Any]) -> TablePreprocessor:
        table = cls(_count(state["max_categories"]))
        table.columns_ = table.transformer_ = table.targets_ = None
        if state["columns"] is not None:
            table.columns_ = tuple(_column_of(text) for text in state["columns"])
            names = [column.name for column in table.columns_]
            if len(set(names)) < len(names) or not table._of(NUMBER, CATEGORY):
                raise ValueError(f"columns {names}")
            numbers = table._of(NUMBER)
            fill = _floats(state["fill"] if numbers else [], len(numbers))
            table.transformer_ = table._unfitted().fit(table._smallest_frame(fill))
            if numbers:
                num_marks = sum(column.num_missing > 0 for column in numbers)
                scaler = table.transformer_.named_transformers_[NUMBERS]["scale"]
                _restore(scaler, state["numbers"], len(numbers) + num_marks)
        if state["targets"] is not None:
            width = len(state["targets"]["mean"])
            table.targets_ = _restore(
                StandardScaler().fit(np.zeros((1, width))), state["targets"], width
            )
        return table

    def _check_scales(self) -> None:
        """Raise DataError if a column's mean or variance is more than float64 can hold."""
        numbers = self._of(NUMBER)
        if not numbers:
            return
        scaler = self.transformer_.named_transformers_[NUMBERS]["scale"]
        bad = np.flatnonzero(~np.isfinite(scaler.mean_) | ~np.isfinite(scaler.var_))
        if bad.size:
            raise DataError(
                f"column {numbers[bad[0]].name!r} holds numbers too large to standardise; divide "
                "them first"
            )

    def _framed(self, x: Any) -> Any:
        return _as_frame(x, [column.name for column in self.columns_ or ()])

    def _smallest_frame(self, fill: npt.NDArray[np.float64]) -> Any:
        """Return two rows that teach the imputers and encoders what this table's did."""
        cells: dict[str, list[Any]] = {}
        for column, value in zip(self._of(NUMBER), fill.tolist(), strict=True):
            cells[column.name] = [value, np.nan if column.num_missing else value]
        for column in self._of(CATEGORY):
            cells[column.name] = [column.categories[0]] * 2
        return pd.DataFrame(cells)

    def _of(self, *kinds: str) -> list[_Column]:
        return [column for column in self.columns_ or () if column.kind in kinds]

    def _unfitted(self) -> Any:
        """Return scikit-learn's transformer for these columns."""
        numbers, categories = self._of(NUMBER), self._of(CATEGORY)
        steps_of_numbers = [
            ("impute", SimpleImputer(strategy="median", add_indicator=True)),
            ("scale", StandardScaler()),
            ("clip", FunctionTransformer(np.clip, kw_args={"a_min": -FARTHEST, "a_max": FARTHEST})),
        ]
        encode = OneHotEncoder(
            categories=[np.array(column.categories, dtype=object) for column in categories],
            handle_unknown="ignore",
            sparse_output=False,
            dtype=np.float32,
        )
        steps = [
            (NUMBERS, Pipeline(steps_of_numbers), [column.name for column in numbers]),
            (CATEGORIES, encode, [column.name for column in categories]),
        ]
        return ColumnTransformer([step for step in steps if step[2]])

    def _canonical(self, frame: Any) -> Any:
        """Return the columns in use: numbers as float64, categories as text, however they come this
        time.
        """
        missing = [name for name in self.input_names if name not in frame.columns]
        if missing:
            raise DataError(
                f"expected the columns {some(self.input_names)}, as in fit; missing are "
                f"{some(missing)}"
            )
        return pd.DataFrame(
            {
                column.name: (_numbers if column.kind == NUMBER else _texts)(frame[column.name])
                for column in self._of(NUMBER, CATEGORY)
            }
        )


# -- columns


def _as_frame(x: Any, names: Sequence[str] = ()) -> Any:
    """Return x as a frame whose columns have texts as names; those of an array are `names`, else
    x0, x1, ...
    """
    if is_frame(x):
        frame = x.set_axis([str(name) for name in x.columns], axis=1)
        with suppress(
            OverflowError
        ):  # pandas 2, of an integer beyond float64, which `_numbers` names
            frame = frame.infer_objects()
    else:
        array = np.asarray(x)
        if array.ndim != 2 or (names and array.shape[1] != len(names)):
            raise ShapeError(
                f"expected rows of {len(names) or 'some'} columns, got an array of shape "
                f"{array.shape}"
            )
        if array.dtype.kind not in "biuf":
            raise DataError(
                f"expected an array of numbers, got {array.dtype}; text goes in as a pandas frame"
            )
        frame = pd.DataFrame(
            array, columns=list(names) or [f"x{idx}" for idx in range(array.shape[1])]
        )
    if not frame.columns.is_unique:
        raise DataError(
            f"expected a name of its own for each column, got {some(list(frame.columns))}"
        )
    return frame


def _examined(column: Any, max_categories: int, is_named: bool) -> _Column:
    """Return what a column is: numbers, categories, or nothing to learn from."""
    name, num_missing = column.name, int(column.isna().sum())
    if len(_factorized(column)[1]) + (num_missing > 0) <= 1:
        return _Column(name, LEFT_OUT, why="as all cells are the same")
    if column.dtype.kind in "iuf" and not (is_named and _are_codes(_numbers(column))):
        return _Column(name, NUMBER, num_missing=num_missing)
    if column.dtype.kind not in "biufOUT" and not isinstance(column.dtype, pd.CategoricalDtype):
        raise DataError(
            f"expected column {name!r} as numbers or text, got {column.dtype}; make it numbers"
        )
    counts = _texts(column).value_counts()
    if len(counts) > max(FEW_TEXTS, len(column) / 2):
        return _Column(name, LEFT_OUT, why="as nearly all their texts differ")
    kept = sorted(counts.index[:max_categories])
    return _Column(name, CATEGORY, tuple(kept), num_missing=num_missing)


def _are_codes(numbers: Any) -> bool:
    """Return whether numbers are integers with few distinct values, on many rows each."""
    values = np.unique(numbers[~np.isnan(numbers)])
    most = min(FEW_VALUES, len(numbers) / ROWS_OF_A_VALUE)
    return len(values) <= most and bool((values == np.floor(values)).all())


def _numbers(column: Any) -> npt.NDArray[np.float64]:
    """Return a column as float64, missing cells as NaN, or raise DataError naming a cell that is no
    finite number.
    """
    try:
        floats = pd.to_numeric(column, errors="coerce").to_numpy(np.float64, na_value=np.nan)
    except OverflowError:  # pandas does not say of which
        row = int(column.astype(str).str.len().to_numpy().argmax())
        raise DataError(
            f"row {row + 1}, column {column.name!r} is too large an integer; expected a finite "
            "number"
        ) from None
    bad = np.flatnonzero((np.isnan(floats) & ~column.isna().to_numpy()) | np.isinf(floats))
    if bad.size:
        raise DataError(
            f"row {bad[0] + 1}, column {column.name!r} is {brief(column.iloc[bad[0]])}; expected "
            "a finite number"
        )
    return floats


def _texts(column: Any) -> Any:
    """Return a column's cells as text; equal values are equal texts, whether they came as 1, 1.0 or
    '1'.
    """
    codes, values = _factorized(column)
    texts = np.array([*map(_text, values), MISSING], dtype=object)
    return pd.Series(texts[codes], dtype=object)  # the code of a missing cell is -1


def _factorized(column: Any) -> Any:
    """Return the place of each cell among the distinct ones, -1 if it is missing, and these; or
    raise DataError.
    """
    try:
        return pd.factorize(column)
    except TypeError:
        kind = next(
            (type(cell).__name__ for cell in column if not isinstance(cell, Hashable)), "object"
        )
        raise DataError(
            f"expected column {column.name!r} as numbers or text, got cells of {kind}"
        ) from None


def _text(value: Any) -> str:
    if isinstance(value, (float, np.floating)) and np.isfinite(value) and value == np.floor(value):
        return str(int(value))
    return str(value).strip()


def _columns_of(y: Any) -> npt.NDArray[np.float64]:
    """Return targets (N,) or (N, ...) as float64 (N, K)."""
    targets = np.asarray(y, np.float64)
    return targets.reshape(len(targets), math.prod(targets.shape[1:]))


# -- state


def _scaler_state(scaler: Any) -> dict[str, list[float]]:
    return {"mean": scaler.mean_.tolist(), "scale": scaler.scale_.tolist()}


def _restore(scaler: Any, state: Mapping[str, Any], width: int) -> Any:
    """Return the fitted scaler with another's mean and scale."""
    scaler.mean_, scaler.scale_ = _floats(state["mean"], width), _floats(state["scale"], width)
    if not (scaler.scale_ > 0).all():
        raise ValueError(f"scale {scaler.scale_.min()}")
    scaler.var_ = scaler.scale_**2
    return scaler


def _floats(values: Any, width: int) -> npt.NDArray[np.float64]:
    if not isinstance(values, list) or not all(type(value) in (int, float) for value in values):
        raise ValueError("numbers that are none")
    floats = np.array(values, np.float64)
    if len(floats) != width or not np.isfinite(floats).all():
        raise ValueError(f"{len(floats)} numbers, not {width} finite ones")
    return floats


def _count(value: Any) -> int:
    if type(value) is not int or value < 0:
        raise ValueError(f"count {value!r}")
    return value


def _column_of(text: Mapping[str, Any]) -> _Column:
    column = _Column(**{**text, "categories": tuple(text["categories"])})
    texts = (column.name, column.why, *column.categories)
    if column.kind not in KINDS or not all(isinstance(each, str) for each in texts):
        raise ValueError(f"column {text}")
    if (column.kind == CATEGORY) != bool(column.categories) or len(set(column.categories)) < len(
        column.categories
    ):
        raise ValueError(f"categories of {column.name!r}")
    _count(column.num_missing)
    return column
