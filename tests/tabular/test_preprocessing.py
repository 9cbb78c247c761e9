from __future__ import annotations

from typing import Any

import numpy as np
import pandas as pd
import pytest

from warpfit.errors import DataError
from warpfit.tabular.network import Columns
from warpfit.tabular.preprocessing import Preprocessor, quantiles


def rows_of(column: Any, trained: int | None = None) -> Any:
    """Return what a table of one column becomes."""
    frame = pd.DataFrame({"x": column})
    table = Preprocessor(frame, np.arange(trained or len(frame)))
    return table.transform(frame)


def clipped(x: Any) -> Any:
    return x / np.sqrt(1 + np.square(x) / 9)


def test_numbers_are_centred_scaled_and_clipped_smoothly() -> None:
    x = np.array([1.0, 2, 3, 4, 100])
    np.testing.assert_allclose(rows_of(x)[:, 0], clipped((x - 3) / 2), rtol=1e-14)


def test_half_the_range_stands_in_for_no_quartile_range() -> None:
    x = np.array([0.0] * 9 + [8])
    np.testing.assert_allclose(rows_of(x)[:, 0], clipped(x / 4), rtol=1e-14)


@pytest.mark.parametrize("x", [[7.0] * 4, [np.nan] * 4])
def test_a_column_without_differences_becomes_zeros(x: Any) -> None:
    np.testing.assert_array_equal(rows_of(x), np.zeros((4, 1)))


def test_missing_numbers_become_the_median() -> None:
    found = rows_of([1.0, np.nan, 2, 3, 9, 5])
    assert found[1, 0] == 0
    np.testing.assert_array_equal(found[[0, 2, 3, 4, 5]], rows_of([1.0, 2, 3, 9, 5]))


def test_scales_are_those_of_the_rows_to_train_on() -> None:
    x = [1.0, 2, 3, 4, 100, 1e6, -1e6]
    np.testing.assert_array_equal(rows_of(x, trained=5)[:5], rows_of(x[:5]))


def test_two_categories_become_one_column() -> None:
    """One of 1 and -1, 0 for a missing cell; then it is scaled, as numbers are."""
    found = rows_of(["b", "a", "a", None, "b"])
    np.testing.assert_allclose(found[:, 0], clipped(np.array([-1, 1, 1, 0, -1]) / 2))


@pytest.mark.parametrize(
    "column",
    [
        ["c", "a", None, "b"],
        pd.Categorical(["c", "a", None, "b"]),
        [3, "2", None, "x"],
        pd.array(["c", "a", None, "b"], dtype="string"),
    ],
)
def test_few_categories_become_a_column_each(column: Any) -> None:
    found = rows_of(column)
    assert found.shape == (4, 3)
    # One of four rows has each: the median is 0, the quartiles 0 and 0.25.
    indicators = np.zeros((4, 3))
    indicators[[0, 1, 3], [2, 0, 1] if column[0] != 3 else [1, 0, 2]] = 1
    np.testing.assert_allclose(found, clipped(indicators / 0.25))


def test_many_categories_become_codes() -> None:
    names = [f"town {idx}" for idx in range(9)]
    frame = pd.DataFrame(
        {"town": [*names, None], "x": range(10), "few": list("abcdefgh") + ["a"] * 2}
    )
    table = Preprocessor(frame, np.arange(10))
    assert table.columns == Columns(num_numbers=1, num_indicators=8, num_codes=(10,))
    np.testing.assert_array_equal(table.transform(frame)[:, -1], [*range(1, 10), 0])
    other = pd.DataFrame({"town": ["elsewhere", "town 3"], "x": [0, 1], "few": ["z", "a"]})
    found = table.transform(other)
    np.testing.assert_array_equal(found[:, -1], [0, 4])
    missing = table.transform(other.assign(few=None))
    np.testing.assert_array_equal(found[0], missing[0])


def test_many_categories_alone() -> None:
    frame = pd.DataFrame({"town": [f"town {idx}" for idx in range(9)]})
    table = Preprocessor(frame, np.arange(9))
    np.testing.assert_array_equal(table.transform(frame)[:, 0], range(1, 10))


def test_kinds_of_columns() -> None:
    frame = pd.DataFrame(
        {
            "integer": pd.array([1, 2, None], dtype="Int64"),
            "float": np.array([1, 2, np.nan], np.float32),
            "date": pd.to_datetime(["1970-01-02", None, "1970-01-05"]),
            "zone": pd.to_datetime(["1970-01-02", None, "1970-01-05"]).tz_localize("UTC"),
            "bool": [True, False, True],
            "boolean": pd.array([True, False, None], dtype="boolean"),
            "object": pd.Series([1, 2, None], dtype=object).infer_objects(),
            "nothing": [None] * 3,
        }
    )
    table = Preprocessor(frame, np.arange(3))
    assert table.columns == Columns(num_numbers=5, num_indicators=2)
    assert table.centre.tolist()[:5] == [1.5, 1.5, 2.5, 2.5, 1.5]


@pytest.mark.parametrize(
    ("frame", "message"),
    [
        (pd.DataFrame({"x": [1.0, np.inf]}), "column 'x' is inf; expected a finite number"),
        (pd.DataFrame({"x": [None, None]}), "expected a column with a cell that is not missing"),
        (pd.DataFrame(index=range(2)), "expected a column to learn from, got none in 2 rows"),
    ],
)
def test_refuses_tables(frame: Any, message: str) -> None:
    with pytest.raises(DataError, match=message):
        Preprocessor(frame, np.arange(2))


def test_text_where_numbers_were() -> None:
    table = Preprocessor(pd.DataFrame({"x": [1.0, 2]}), np.arange(2))
    with pytest.raises(DataError, match="column 'x' is 'much'; expected a finite number"):
        table.transform(pd.DataFrame({"x": [1.0, "much"]}))


@pytest.mark.parametrize("num_rows", [1, 2, 10, 101])
def test_quantiles_are_numpys(num_rows: int) -> None:
    random = np.random.default_rng(0)
    x = random.normal(size=(num_rows, 5)) * [1, 10, 1e-3, 1e5, 1]
    x[:, 1] = np.round(x[:, 1])
    x[1:, 2] = np.where(random.random(num_rows - 1) < 0.4, np.nan, x[1:, 2])
    for shares in ([0, 0.25, 0.5, 0.75, 1], np.linspace(0, 1, 7)):
        found = quantiles(x, shares)
        np.testing.assert_array_equal(found, np.nanquantile(x, shares, axis=0))
