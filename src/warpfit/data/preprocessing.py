"""Tables as rows for a network, by scikit-learn's transformers; and back from its outputs."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import asdict
from typing import Any

import numpy as np
import numpy.typing as npt
from sklearn.base import BaseEstimator, TransformerMixin
from sklearn.compose import ColumnTransformer
from sklearn.impute import SimpleImputer
from sklearn.pipeline import Pipeline
from sklearn.preprocessing import FunctionTransformer, OneHotEncoder, StandardScaler
from sklearn.utils.validation import check_is_fitted

from warpfit.checks import Array, check_count, some
from warpfit.data.dataset import is_frame, is_table
from warpfit.data.table_columns import (
    CATEGORY,
    LEFT_OUT,
    NUMBER,
    Column,
    as_frame,
    as_numbers,
    as_texts,
    check_booleans,
    check_stored_count,
    examined,
)
from warpfit.errors import DataError, FileFormatError
from warpfit.extras import needs

with needs("data", "tables need"):
    import pandas as pd

Floats = npt.NDArray[np.float32]

NUMBERS, CATEGORIES = "numbers", "categories"  # the two transformers
FARTHEST = 10.0  # standard deviations: one wild cell does not carry a network away


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
        self.columns_: tuple[Column, ...] | None = None
        self.transformer_: Any = None
        self.targets_: Any = None
        if is_table(x):
            frame = as_frame(x)
            self.columns_ = tuple(
                examined(frame[name], self.max_categories, is_frame(x)) for name in frame.columns
            )
            if not self._of(NUMBER, CATEGORY):
                raise DataError(
                    f"expected a column to learn from, but {'; '.join(self.describe())}"
                )
            # `_check_scales` says of which column.
            with np.errstate(over="ignore", invalid="ignore"):
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
            If a column is missing, or has text where numbers were, or numbers where true and false
            were.
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
        """Return targets (N,) or (N, K) as networks learn them: standardised where `fit` did so."""
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

    @property
    def categories(self) -> dict[str, tuple[str, ...]]:
        """The categories of each column that has some."""
        return {column.name: column.categories for column in self._of(CATEGORY)}

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
        """Return a line for each column of x with what `fit` never saw: categories, empty cells."""
        check_is_fitted(self, "columns_")
        lines: list[str] = []
        if self.columns_ is None:
            return lines
        frame = self._framed(x)
        for column in self._of(CATEGORY):
            texts = as_texts(frame[column.name])
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
        state: dict[str, Any] = {"max_categories": self.max_categories}
        state |= {"columns": None, "targets": None}
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
        table = cls(check_stored_count(state["max_categories"]))
        table.columns_ = table.transformer_ = table.targets_ = None
        if state["columns"] is not None:
            table.columns_ = tuple(Column.from_dict(text) for text in state["columns"])
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
        return as_frame(x, [column.name for column in self.columns_ or ()])

    def _smallest_frame(self, fill: npt.NDArray[np.float64]) -> Any:
        """Return two rows that teach the imputers and encoders what this table's did."""
        cells: dict[str, list[Any]] = {}
        for column, value in zip(self._of(NUMBER), fill.tolist(), strict=True):
            cells[column.name] = [value, np.nan if column.num_missing else value]
        for column in self._of(CATEGORY):
            cells[column.name] = [column.categories[0]] * 2
        return pd.DataFrame(cells)

    def _of(self, *kinds: str) -> list[Column]:
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
        """Return the columns in use: numbers as float64, categories as text, however they come."""
        missing = [name for name in self.input_names if name not in frame.columns]
        if missing:
            raise DataError(
                f"expected the columns {some(self.input_names)}, as in fit; missing are "
                f"{some(missing)}"
            )
        for column in self._of(CATEGORY):
            check_booleans(frame[column.name], column.categories)
        return pd.DataFrame(
            {
                column.name: (as_numbers if column.kind == NUMBER else as_texts)(frame[column.name])
                for column in self._of(NUMBER, CATEGORY)
            }
        )


def _columns_of(y: Any) -> npt.NDArray[np.float64]:
    """Return targets (N,) or (N, ...) as float64 (N, K)."""
    targets = np.asarray(y, np.float64)
    return targets.reshape(len(targets), math.prod(targets.shape[1:]))


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
