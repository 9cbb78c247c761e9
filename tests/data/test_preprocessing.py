"""Tables as rows for a network: what scikit-learn makes of each kind of column, and what a file
keeps of it.
"""

from __future__ import annotations

import json
from decimal import Decimal
from typing import Any

import numpy as np
import pandas as pd
import pytest
from sklearn.base import clone
from sklearn.datasets import load_iris
from sklearn.impute import SimpleImputer
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import OneHotEncoder, StandardScaler

import warpfit as wf
from warpfit.data import TablePreprocessor, table_columns
from warpfit.errors import ConfigError, DataError, FileFormatError, ShapeError

RNG = np.random.default_rng(0)
ROWS = 200


def frame() -> pd.DataFrame:
    numbers = RNG.normal(50, 20, ROWS)
    income = RNG.lognormal(11, 1, ROWS)
    income[::7] = np.nan
    return pd.DataFrame(
        {
            "age": numbers,
            "income": income,
            "rooms": np.arange(ROWS) % 4 + 1,
            "town": pd.Series(np.resize(["Ulm", "Bonn", None, "Köln"], ROWS)),
            "owner": np.arange(ROWS) % 3 == 0,
            "grade": pd.Categorical(np.resize(["low", "high"], ROWS)),
            "count": pd.array([None if i % 4 == 1 else i * i for i in range(ROWS)], dtype="Int64"),
            "name": [f"person {i}" for i in range(ROWS)],
            "planet": "Earth",
        }
    )


def test_each_kind_of_column_becomes_what_scikit_learn_makes_of_it() -> None:
    x = frame()
    table = TablePreprocessor().fit(x)
    found = pd.DataFrame(table.transform(x), columns=table.get_feature_names_out())
    numbers = x[["age", "income", "count"]].astype(float)
    expected = make_pipeline(SimpleImputer(strategy="median", add_indicator=True), StandardScaler())
    names = ["age", "income", "count", "income is missing", "count is missing"]
    np.testing.assert_allclose(found[names], expected.fit_transform(numbers), rtol=1e-5, atol=1e-6)
    towns = OneHotEncoder(sparse_output=False).fit_transform(x[["town"]].fillna("(missing)"))
    np.testing.assert_array_equal(found.filter(like="town "), towns)
    assert list(found.columns[5:]) == [
        *("rooms 1", "rooms 2", "rooms 3", "rooms 4"),
        *("town (missing)", "town Bonn", "town Köln", "town Ulm"),
        *("owner False", "owner True", "grade high", "grade low"),
    ]
    assert found.to_numpy().dtype == np.float32


def test_it_says_what_it_did() -> None:
    assert TablePreprocessor().fit(frame(), np.linspace(100, 300, ROWS)).describe() == [
        "standardised: age, income, count",
        "one column a category: rooms (4), town (4), owner (2), grade (2)",
        "missing cells, filled and marked: income (29), count (50), town (50)",
        "left out, as nearly all their texts differ: name",
        "left out, as all cells are the same: planet",
        "targets standardised: mean 200, standard deviation 58.0244",
    ]


def test_nothing_is_learned_from_the_rows_to_transform() -> None:
    x = frame()
    table = TablePreprocessor().fit(x[:100])
    np.testing.assert_array_equal(table.transform(x)[:50], table.transform(x[:50]))


def test_cells_that_are_new() -> None:
    x = frame()
    table = TablePreprocessor().fit(x)
    strange = x[:3].assign(town="Rom", age=[np.nan, 1e9, -1e9], rooms=["1", "2.0", "9"])
    found = pd.DataFrame(table.transform(strange), columns=table.get_feature_names_out())
    assert not found.filter(like="town ").to_numpy().any()
    assert found["rooms 1"].tolist() == [1, 0, 0]
    assert found.filter(like="rooms ").sum(axis=1).tolist() == [1, 0, 0]
    np.testing.assert_allclose(
        found["age"],
        [(x["age"].median() - x["age"].mean()) / x["age"].std(ddof=0), 10, -10],
        rtol=1e-4,
    )


@pytest.mark.parametrize(
    "values", [[1, 2, 3], [1.0, 2.0, np.nan], ["1", "2", "3"], ["1", "x", "3"]]
)
def test_equal_categories_are_equal_however_they_are_read(values: list[Any]) -> None:
    table = TablePreprocessor().fit(
        pd.DataFrame({"code": np.arange(ROWS) % 3 + 1, "a": np.arange(ROWS)})
    )
    found = table.transform(pd.DataFrame({"code": values, "a": 0}))[:, 1:]
    for row, value in zip(found, values, strict=True):
        known = [str(code) in (str(value), str(value).removesuffix(".0")) for code in (1, 2, 3)]
        assert row.tolist() == known


def test_mixed_cells_are_written_once_for_each_that_differs(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """For a column of many rows a call each would take most of the time."""
    written: list[Any] = []

    def text(cell: Any) -> str:
        written.append(cell)
        return str(cell)

    monkeypatch.setattr(table_columns, "_text", text)
    cells = [1, True, "a", None, 1.0, "1", np.nan, False, 0] * 100
    codes, texts = table_columns.distinct_texts(pd.Series(cells, dtype=object))
    assert texts == ["1", "True", "a", "1.0", "False", "0"]
    np.testing.assert_array_equal(codes, [0, 1, 2, -1, 3, 0, -1, 4, 5] * 100)
    assert len(written) < 20


def test_equal_cells_may_be_written_in_several_ways() -> None:
    cells = [Decimal("1.0"), Decimal("1.00"), "a"]
    codes, texts = table_columns.distinct_texts(pd.Series(cells, dtype=object))
    assert (codes.tolist(), texts) == ([0, 1, 2], ["1.0", "1.00", "a"])


def test_text_of_many_values_keeps_the_most_frequent() -> None:
    towns = [f"town {i % 30 if i % 2 else i % 60}" for i in range(1200)]
    table = TablePreprocessor(max_categories=30).fit(
        pd.DataFrame({"town": towns, "a": np.arange(1200)})
    )
    names = table.get_feature_names_out()[1:]
    counts = pd.Series(towns).value_counts()
    assert len(names) == 30
    assert {name.removeprefix("town ") for name in names} <= set(
        counts[counts >= counts.iloc[29]].index
    )


def test_arrays() -> None:
    x = RNG.normal(size=(50, 3)) * [1, 1e5, 1] + [0, 0, 1e6]
    table = TablePreprocessor().fit(x)
    found = table.transform(x)
    np.testing.assert_allclose(found, StandardScaler().fit_transform(x), atol=1e-5)
    assert table.get_feature_names_out().tolist() == ["x0", "x1", "x2"]
    x[4, 1] = np.nan
    assert TablePreprocessor().fit_transform(x).shape == (50, 4)


@pytest.mark.parametrize(
    "x",
    [
        RNG.integers(0, 256, (20, 6), dtype=np.uint8),
        RNG.uniform(size=(20, 6)).astype(np.float32),
        RNG.normal(size=(20, 4, 4)),
    ],
)
def test_pixels_pass_as_they_are(x: Any) -> None:
    y = np.linspace(0, 1000, 20)
    table = TablePreprocessor().fit(x, y)
    assert table.transform(x) is x
    again = TablePreprocessor.from_dict(json.loads(json.dumps(table.to_dict())))
    assert again.transform(x) is x
    np.testing.assert_allclose(again.transform_targets(y).std(), 1, rtol=1e-6)


@pytest.mark.parametrize("shape", [(ROWS,), (ROWS, 1), (ROWS, 3)])
def test_targets_there_and_back(shape: tuple[int, ...]) -> None:
    y = RNG.normal(size=shape) * 1e4 + 5e5
    table = TablePreprocessor().fit(frame(), y)
    standardised = table.transform_targets(y)
    assert (standardised.shape, standardised.dtype) == (shape, np.float32)
    np.testing.assert_allclose(standardised.std(axis=0), 1, rtol=1e-5)
    np.testing.assert_allclose(table.inverse_targets(standardised), y, rtol=1e-6)


def test_labels_of_classes_stay_what_they_are() -> None:
    y = np.arange(ROWS) % 3
    table = TablePreprocessor().fit(frame(), y)
    assert table.transform_targets(y) is y
    assert table.inverse_targets(y) is y


def stored(table: TablePreprocessor) -> TablePreprocessor:
    return TablePreprocessor.from_dict(json.loads(json.dumps(table.to_dict())))


def test_what_a_file_keeps_gives_equal_numbers() -> None:
    x, y = frame(), RNG.normal(size=ROWS)
    table = TablePreprocessor().fit(x[:150], y[:150])
    again = stored(table)
    strange = x.assign(town="Rom", age=np.nan)
    for rows in (x, strange):
        np.testing.assert_array_equal(again.transform(rows), table.transform(rows))
    np.testing.assert_array_equal(again.transform_targets(y), table.transform_targets(y))
    assert again.to_dict() == table.to_dict()
    assert again.describe() == table.describe()
    assert again.get_feature_names_out().tolist() == table.get_feature_names_out().tolist()


def test_no_rows() -> None:
    table = TablePreprocessor().fit(frame(), RNG.normal(size=ROWS))
    assert table.transform(frame()[:0]).shape == (0, len(table.get_feature_names_out()))
    assert len(table.transform_targets(np.empty(0))) == 0


def test_only_categories_or_only_numbers() -> None:
    for names in (["town", "owner"], ["age"], ["income"]):
        x = frame()[names]
        table = TablePreprocessor().fit(x)
        np.testing.assert_array_equal(stored(table).transform(x), table.transform(x))


def forged(**changes: Any) -> dict[str, Any]:
    return {**TablePreprocessor().fit(frame(), RNG.normal(size=ROWS)).to_dict(), **changes}


@pytest.mark.in_turns(9)
@pytest.mark.parametrize(
    "changes",
    [
        {"columns": 3},
        {"columns": []},
        {"columns": [{"name": "a"}]},
        {"columns": [{"name": "a", "kind": "code", "categories": [], "why": "", "num_missing": 0}]},
        {
            "columns": [
                {"name": "a", "kind": "number", "categories": ["x"], "why": "", "num_missing": 0}
            ]
        },
        {
            "columns": [
                {"name": "a", "kind": "category", "categories": [1], "why": "", "num_missing": 0}
            ]
        },
        {
            "columns": [
                {
                    "name": "a",
                    "kind": "category",
                    "categories": ["x", "x"],
                    "why": "",
                    "num_missing": 0,
                }
            ]
        },
        {
            "columns": [
                {"name": "a", "kind": "number", "categories": [], "why": "", "num_missing": 0}
            ]
            * 2
        },
        {
            "columns": [
                {"name": "a", "kind": "number", "categories": [], "why": "", "num_missing": -1}
            ]
        },
        {
            "columns": [
                {
                    "name": "a",
                    "kind": "number",
                    "categories": [],
                    "why": "",
                    "num_missing": 0,
                    "do": 1,
                }
            ]
        },
        {"fill": [0.0]},
        {"fill": ["0", "0", "0"]},
        {"fill": [0.0, 0.0, float("nan")]},
        {"numbers": {"mean": [0.0] * 5}},
        {"numbers": {"mean": [0.0] * 5, "scale": [1.0] * 4}},
        {"numbers": {"mean": [0.0] * 5, "scale": [1.0] * 4 + [0.0]}},
        {"numbers": {"mean": [0.0] * 4 + [True], "scale": [1.0] * 5}},
        {"numbers": {"mean": [0.0] * 4 + [10**400], "scale": [1.0] * 5}},
        {"targets": {"mean": [0.0], "scale": [-1.0]}},
        {"targets": {"mean": [], "scale": []}},
        {"targets": 3},
        {"max_categories": "many"},
    ],
)
def test_a_forged_state_is_refused(changes: dict[str, Any]) -> None:
    TablePreprocessor.from_dict(forged())
    with pytest.raises(FileFormatError, match="expected the state of a TablePreprocessor"):
        TablePreprocessor.from_dict(forged(**changes))


@pytest.mark.parametrize(
    ("x", "message"),
    [
        (
            pd.DataFrame({"a": [1.0, np.inf], "b": [1, 2]}),
            "row 2, column 'a' is .*inf.*; expected a finite number",
        ),
        (
            pd.DataFrame({"a": pd.to_datetime(["2020-01-01", "2021-01-01"])}),
            "column 'a' as numbers or text, got datetime",
        ),
        (pd.DataFrame({"a": [1j, 2]}), "column 'a' as numbers or text, got complex128"),
        (
            pd.DataFrame({"a": [5, 5], "b": ["x", "x"]}),
            "a column to learn from, but left out, as all cells are",
        ),
        (pd.DataFrame([[1, 2]], columns=["a", "a"]), "a name of its own for each column, got a, a"),
    ],
)
def test_tables_that_cannot_be_used(x: Any, message: str) -> None:
    with pytest.raises(DataError, match=message):
        TablePreprocessor().fit(x)


def test_rows_of_another_table() -> None:
    table = TablePreprocessor().fit(frame())
    with pytest.raises(DataError, match="missing are age, town"):
        table.transform(frame().drop(columns=["age", "town", "name"]))
    with pytest.raises(DataError, match="row 2, column 'age' is 'old'; expected a finite number"):
        table.transform(frame()[:2].assign(age=["50", "old"]))
    with pytest.raises(
        ShapeError, match=r"expected rows of 9 columns, got an array of shape \(2, 3\)"
    ):
        table.transform(np.ones((2, 3)))


@pytest.mark.parametrize("cells", [[1, 0], [1.0, np.nan], pd.to_datetime(["2020-01-01", None])])
@pytest.mark.parametrize("flags", [[True, False] * 10, [True, None, False, True] * 5])
def test_numbers_are_no_truth_values(flags: list[Any], cells: Any) -> None:
    table = TablePreprocessor().fit(pd.DataFrame({"b": pd.Series(flags, dtype=object)}))
    with pytest.raises(DataError, match="expected column 'b' as true and false, as it was fitted"):
        table.transform(pd.DataFrame({"b": cells}))
    missing = [table.transform(pd.DataFrame({"b": [cell]})) for cell in (None, np.nan)]
    np.testing.assert_array_equal(*missing)


def test_infinity_among_categories_is_one() -> None:
    mixed = pd.Series([1.0, "a", np.inf, -np.inf] * 5, dtype=object)
    for column in (mixed, pd.Series(pd.Categorical([1.0, np.inf] * 10))):
        table = TablePreprocessor().fit(pd.DataFrame({"q": column}))
        assert "q inf" in table.get_feature_names_out()


def test_cells_that_are_lists_are_refused() -> None:
    lists = pd.DataFrame({"q": [[1], [2]] * 10})
    texts = TablePreprocessor().fit(lists.astype(str))
    for call in (TablePreprocessor().fit, texts.transform):
        with pytest.raises(
            DataError, match="expected column 'q' as numbers or text, got cells of list"
        ):
            call(lists)


def test_columns_of_several_levels() -> None:
    levels = pd.MultiIndex.from_tuples([("size", "wide"), ("size", "high")])
    table = pd.DataFrame(RNG.normal(size=(20, 2)), columns=levels)
    assert TablePreprocessor().fit_transform(table).shape == (20, 2)


def test_integers_beyond_float64_are_named() -> None:
    fitted = TablePreprocessor().fit(
        pd.DataFrame({"age": [1.5, 2.0, 4.0], "place": ["a", "b", "a"]})
    )
    others = pd.DataFrame(
        {"age": pd.Series([1, 10**400, 3], dtype=object), "place": ["a", "b", "a"]}
    )
    with pytest.raises(
        DataError, match="row 2, column 'age' is too large an integer; expected a finite"
    ):
        fitted.transform(others)


def test_it_is_a_step_of_scikit_learns_pipelines() -> None:
    iris = load_iris(as_frame=True)
    perceptron = wf.MLPClassifier(
        (16,), max_iter=60, learning_rate_init=0.05, random_state=0, tol=0
    )
    with pytest.warns(UserWarning, match="Maximum iterations"):
        pipeline = make_pipeline(TablePreprocessor(), perceptron).fit(iris.data, iris.target)
    assert pipeline.score(iris.data, iris.target) > 0.9
    assert clone(TablePreprocessor(max_categories=7)).max_categories == 7


def test_numbers_whose_variance_overflows_are_refused_by_name() -> None:
    with pytest.raises(DataError, match="column 'far' holds numbers too large to standardise"):
        TablePreprocessor().fit(
            pd.DataFrame({"near": RNG.normal(size=50), "far": RNG.normal(size=50) * 1e300})
        )


def test_columns_of_two_levels_have_one_name_each() -> None:
    columns = pd.MultiIndex.from_product([["first", "second"], [1, 2]])
    table = TablePreprocessor().fit(pd.DataFrame(RNG.normal(size=(50, 4)), columns=columns))
    assert table.get_feature_names_out()[0] == "('first', 1)"


def test_cells_that_are_lists_are_refused_by_name() -> None:
    with pytest.raises(DataError, match="expected column 'tags' as numbers or text"):
        TablePreprocessor().fit(pd.DataFrame({"tags": [[1], [2]] * 20, "a": np.arange(40.0)}))


@pytest.mark.parametrize("max_categories", [0, -1, 2.5, "ten"])
def test_max_categories_is_a_count(max_categories: Any) -> None:
    with pytest.raises(ConfigError, match="max_categories to be an integer of at least 1"):
        TablePreprocessor(max_categories).fit(frame())
