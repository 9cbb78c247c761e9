"""Frames as users have them: what works, and what is refused in one sentence."""

from __future__ import annotations

import datetime
import warnings
from decimal import Decimal
from fractions import Fraction
from typing import Any

import numpy as np
import pandas as pd
import pytest
from scipy import sparse

from warpfit import TabularClassifier, TabularRegressor
from warpfit.errors import DataError
from warpfit.tabular.frames import known_kinds
from warpfit.tabular.network import Columns
from warpfit.tabular.preprocessing import Preprocessor

TINY: dict[str, Any] = {
    "n_epochs": 2,
    "batch_size": 8,
    "hidden_layer_sizes": (4,),
    "random_state": 0,
    "device": "cpu",
}
ROWS = 20
Y = np.arange(ROWS) % 2
DAYS = pd.date_range("2020-01-01", periods=ROWS)
# The same moments, each with an offset of its own, as texts with offsets are parsed.
ZONED = [day.tz_localize("UTC").tz_convert(f"+{hour:02}:00") for hour, day in enumerate(DAYS)]


def table(**columns: Any) -> pd.DataFrame:
    return pd.DataFrame({"x": np.arange(ROWS) / 1.0, "t": list("ab") * 10}).assign(**columns)


def fitted(frame: Any, y: Any = Y, **given: Any) -> TabularClassifier:
    return TabularClassifier(**TINY).fit(frame, y, **given)


NUMBER, TWO, MANY = Columns(2, 1), Columns(1, 2), Columns(1, 1, (ROWS + 1,))


@pytest.mark.in_turns(6)
@pytest.mark.parametrize(
    ("column", "columns"),
    [
        (pd.array([1, None] * 10, dtype="Int64"), NUMBER),
        (pd.array([1.5, None] * 10, dtype="Float64"), NUMBER),
        (pd.array([True, None] * 10, dtype="boolean"), TWO),
        ([True, None] * 10, TWO),
        (pd.array(["a", None] * 10, dtype="string"), TWO),
        ([1, "a", 2.5, None] * 5, Columns(1, 4)),
        (["a", b"a"] * 10, TWO),
        ([2**70 + row for row in range(ROWS)], NUMBER),
        ([Decimal(row) / 3 for row in range(ROWS)], NUMBER),
        (pd.to_timedelta(range(ROWS), "h"), NUMBER),
        (DAYS.tz_localize("Europe/Berlin"), NUMBER),
        (DAYS.to_period("D"), NUMBER),
        ([datetime.date(2020, 1, 1 + row) for row in range(ROWS)], NUMBER),
        (pd.Categorical(range(ROWS)), MANY),
        (pd.cut(np.arange(ROWS), 3), Columns(1, 4)),
        (pd.Series([1.5, pd.NA] * 10, dtype=object), NUMBER),
        (pd.Series([pd.NaT, ZONED[1]] * 10, dtype=object), NUMBER),
        (pd.arrays.SparseArray(np.arange(ROWS)), NUMBER),
        ([-1e308, 1e308] * 10, NUMBER),
        ([None] * ROWS, Columns(1, 1)),
        ([np.nan] * ROWS, NUMBER),
        ([3] * ROWS, NUMBER),
    ],
)
def test_columns_of_every_kind(column: Any, columns: Columns) -> None:
    frame = table(q=column)
    model = fitted(frame)
    assert model.preprocessor_.columns == columns
    assert set(model.predict(frame[:3])) <= {0, 1}
    assert np.isfinite(model.predict_proba(frame)).all()


def test_dates_of_one_moment_are_one_number() -> None:
    naive = fitted(table(q=DAYS))
    utc = table(q=DAYS.tz_localize("UTC"))
    np.testing.assert_array_equal(naive.predict_proba(table(q=DAYS)), naive.predict_proba(utc))
    dates = table(q=[day.date() for day in DAYS])
    np.testing.assert_array_equal(naive.predict_proba(table(q=DAYS)), naive.predict_proba(dates))
    zoned = table(q=pd.Series(ZONED, dtype=object))
    assert fitted(zoned).preprocessor_.dates == naive.preprocessor_.dates == [2]
    np.testing.assert_array_equal(naive.predict_proba(table(q=DAYS)), naive.predict_proba(zoned))


@pytest.mark.parametrize("unit", ["s", "ms", "us", "ns"])
def test_dates_have_equal_bits_in_every_unit(unit: str) -> None:
    moments = pd.date_range("2020-01-01", periods=ROWS, freq="7h13min7s")
    found = Preprocessor(table(q=moments)).cells(table(q=moments.as_unit(unit)))[:, 1]
    exact = [Fraction(moment.value, 86400 * 10**9) for moment in moments.as_unit("ns")]
    np.testing.assert_array_equal(found, [float(days) for days in exact])


def test_dates_without_an_end() -> None:
    """As data bases have them, beyond what nanoseconds count."""
    ends = pd.Series(np.array(["9999-12-31T12", "0001-01-01"] * 10, "datetime64[s]"))
    cells = Preprocessor(table(q=ends)).cells(table(q=ends))[:2, 1]
    assert cells.tolist() == [2932896.5, -719162.0]
    model = fitted(table(q=DAYS))
    far = model.predict_proba(table(q=ends[0]))
    np.testing.assert_allclose(far, model.predict_proba(table(q=pd.Timestamp("2200"))), atol=1e-6)
    spans = pd.Series(np.array([86400 * 10**6, 1] * 10, "timedelta64[s]"))
    assert Preprocessor(table(q=spans)).cells(table(q=spans))[:2, 1].tolist() == [1e6, 1 / 86400]


@pytest.mark.parametrize(
    ("cells", "days"),
    [
        ([datetime.date(9999, 12, 31), datetime.date(1, 1, 1)], [2932896, -719162]),
        ([datetime.datetime(9999, 12, 31, 12), datetime.datetime(1, 1, 1)], [2932896.5, -719162]),
        ([datetime.datetime(9999, 12, 31), ZONED[12]], [2932896, DAYS[12].timestamp() / 86400]),
        ([np.datetime64("9999-12-31"), np.datetime64("0001-01-01")], [2932896, -719162]),
        ([pd.Period("9999-12-31", "D"), pd.Period("0001-01-01", "D")], [2932896, -719162]),
        ([pd.Period("9999-12", "M"), pd.Period("0001-01", "M")], [2932866, -719162]),
        ([datetime.timedelta.max, datetime.timedelta(hours=-6)], [1e9, -0.25]),
        ([np.timedelta64(10**9, "D"), np.timedelta64(-6, "h")], [1e9, -0.25]),
    ],
)
def test_objects_beyond_nanoseconds(cells: list[Any], days: list[float]) -> None:
    frame = table(q=pd.Series([*cells, None, None] * 5, dtype=object))
    known = known_kinds(frame)
    np.testing.assert_array_equal(Preprocessor(known).cells(known)[:3, 1], [*days, np.nan])


def test_columns_of_arrow() -> None:
    arrow = pytest.importorskip("pyarrow", reason="pyarrow is not installed")
    days, spans = [day.date() for day in DAYS], (DAYS - DAYS[0]).to_pytimedelta()
    columns = {
        "day": (arrow.date32(), days),
        "moment": (arrow.timestamp("us", "Europe/Berlin"), ZONED),
        "span": (arrow.duration("us"), spans),
        "price": (arrow.decimal128(9, 2), [Decimal(row) for row in range(ROWS)]),
        "count": (arrow.int64(), range(ROWS)),
        "text": (arrow.string(), ["a", "b"] * 10),
    }
    frame = table(**{name: list(cells) for name, (_, cells) in columns.items()})
    arrows = table(
        **{
            name: pd.Series(list(cells), dtype=pd.ArrowDtype(kind))
            for name, (kind, cells) in columns.items()
        }
    )
    model = fitted(frame)
    assert model.preprocessor_.columns == Columns(6, 2)
    np.testing.assert_array_equal(model.predict_proba(arrows), model.predict_proba(frame))
    with_missing = arrows.reindex([*range(ROWS - 1), ROWS])
    assert fitted(with_missing).preprocessor_.columns == Columns(6, 2)
    missing = model.predict_proba(frame.reindex([0, ROWS]))[1:]
    np.testing.assert_array_equal(model.predict_proba(with_missing[-1:]), missing)
    slow_as_objects = ["moment", "span"]
    assert known_kinds(arrows)[slow_as_objects].dtypes.equals(arrows[slow_as_objects].dtypes)


def test_rows_of_mixed_cells_are_predicted_alone_as_among_others() -> None:
    frame = table(q=pd.Series([1, True, "a", False, 0] * 4, dtype=object))
    model = fitted(frame)
    assert model.preprocessor_.columns == Columns(1, 6)
    expected = model.predict_proba(frame)
    np.testing.assert_array_equal(model.predict_proba(frame[::-1]), expected[::-1])
    for row in range(5):
        alone = model.predict_proba(frame[row : row + 1])
        np.testing.assert_allclose(alone[0], expected[row], rtol=1e-6)


def test_numbers_far_beyond_those_of_the_fit_are_the_largest() -> None:
    model = fitted(table())
    far, farther = (model.predict_proba(table(x=x)[:1]) for x in (1e12, 1e300))
    np.testing.assert_array_equal(far, farther)


@pytest.mark.parametrize("missing", [None, np.nan])
def test_missing_cells_where_true_and_false_were(missing: Any) -> None:
    model = fitted(table(b=[True, False, None, False] * 5))
    found = model.predict_proba(table(b=missing))
    np.testing.assert_array_equal(found[::2], model.predict_proba(table(b=[None, True] * 10))[::2])


def test_text_where_all_cells_were_missing_is_unknown() -> None:
    model = fitted(table(q=None))
    np.testing.assert_array_equal(
        model.predict_proba(table(q="new")), model.predict_proba(table(q=None))
    )


@pytest.mark.parametrize(
    ("y", "classes"),
    [
        (pd.array([1, 2] * 10, dtype="Int64"), [1, 2]),
        (pd.array([True, False] * 10, dtype="boolean"), [False, True]),
        (pd.Series(["b", "a"] * 10, dtype="string"), ["a", "b"]),
        (pd.Categorical(["b", "a"] * 10), ["a", "b"]),
        ([2, 1] * 10, [1, 2]),
        ([True, False] * 10, [False, True]),
        (np.zeros(ROWS), [0.0]),
        (pd.Series(Y, index=range(100, 100 + ROWS)), [0, 1]),
    ],
)
def test_targets_of_every_kind(y: Any, classes: list[Any]) -> None:
    model = fitted(table(), y)
    assert model.classes_.tolist() == classes
    assert model.predict_proba(table()).shape == (ROWS, len(classes))


def test_two_rows_are_enough() -> None:
    assert TabularRegressor(**TINY).fit(table()[:2], [1.0, 2.0]).predict(table()).shape == (ROWS,)


def test_frames_of_polars_of_every_kind() -> None:
    polars = pytest.importorskip("polars", reason="polars is not installed")
    frame = polars.DataFrame(
        {
            "x": [1.0, None] * 10,
            "text": ["a", "b"] * 10,
            "flag": [True, None] * 10,
            "category": polars.Series(["u", "v"] * 10, dtype=polars.Categorical),
            "moment": DAYS.to_pydatetime().tolist(),
            "day": [day.date() for day in DAYS],
        }
    )
    model = fitted(frame, polars.Series(["no", "yes"] * 10))
    assert model.preprocessor_.columns == Columns(3, 3)
    assert set(model.predict(frame[:2])) <= {"no", "yes"}
    with pytest.raises(DataError, match=r"got a LazyFrame; its collect\(\) is one"):
        fitted(frame.lazy())
    with pytest.raises(DataError, match="got cells of list"):
        fitted(polars.DataFrame({"x": [[1.0]] * ROWS}))


@pytest.mark.parametrize(
    ("frame", "message"),
    [
        (table()[[]], "expected a column to learn from, got none in 20 rows"),
        (table(x=np.inf), "row 1, column 'x' is inf; expected a finite number"),
        (table(x=1j), "expected column 'x' as numbers or text, got complex numbers"),
        (
            table(x=pd.Series([*np.array([0, 10**13], "M8[Y]")] * 10, dtype=object)),
            "expected column 'x' as dates that pandas can convert to UTC, got 10000000000000",
        ),
        (table(x=[[1, 2]] * ROWS), "expected column 'x' as numbers or text, got cells of list"),
        (table(x=pd.Series([10**400] * ROWS, dtype=object)), "column 'x' is too large an integer"),
        (table(x=None, t=None), "expected a column with a cell that is not missing"),
        (pd.concat([table(), table()], axis=1), "names of their own, got 'x' 2 times"),
        (np.ma.masked_array(np.ones((ROWS, 2)), True), "expected X without masked values"),
        ("table.csv", "a frame or rows of cells, got a str; pandas.read_csv reads a file"),
        (
            {"x": [1.0] * ROWS},
            "a frame or rows of cells, got a dict; pandas.DataFrame makes one",
        ),
    ],
)
def test_refuses_frames(frame: Any, message: str) -> None:
    with pytest.raises(DataError, match=message):
        fitted(frame)


@pytest.mark.parametrize(
    ("frame", "message"),
    [
        (table()[:0], "0 sample"),
        (table()["x"], "Expected a 2-dimensional container"),
        (table()["x"].to_numpy(), "Expected 2D array"),
        (None, "Expected 2D array"),
        (sparse.eye(ROWS, format="csr"), "dense data is required"),
    ],
)
def test_refuses_as_scikit_learn_does(frame: Any, message: str) -> None:
    with pytest.raises((ValueError, TypeError), match=message):
        fitted(frame)


@pytest.mark.parametrize(
    ("frame", "message"),
    [
        (table(q=DAYS)[["t", "x", "q"]], "must be in the same order"),
        (table(), "now missing"),
        (table(q=DAYS, z=1), "unseen at fit time"),
        (table(x="old", q=DAYS), "column 'x' is 'old'; expected a finite number"),
        (table(x=DAYS, q=DAYS), "expected column 'x' as numbers, as it was fitted, got Timestamp"),
        (table(q="2020-01-01"), "expected column 'q' as dates, as it was fitted, got '2020-01-01'"),
        (table(q=7), "expected column 'q' as dates, as it was fitted, got 7"),
        (table(x=-np.inf, q=DAYS), "column 'x' is -inf"),
        (table(q=DAYS, b=Y), "expected column 'b' as true and false, as it was fitted, got 0"),
        (table(q=DAYS, b=Y * 2.5), "expected column 'b' as true and false, as it was fitted, got"),
    ],
)
def test_refuses_to_predict(frame: Any, message: str) -> None:
    model = fitted(table(q=DAYS, b=Y == 1))
    with pytest.raises(ValueError, match=message):
        model.predict(frame if "b" in frame else frame.assign(b=None))


@pytest.mark.parametrize(
    ("kind", "y", "message"),
    [
        (TabularClassifier, [None, "a"] * 10, "expected a class in each row, got a missing one"),
        (TabularClassifier, pd.Series(["a", pd.NA] * 10, dtype="string"), "a missing one in row 2"),
        (TabularClassifier, np.array([1, "a"] * 10, object), "of one kind, got 1 besides 'a'"),
        (TabularClassifier, ["a", 1] * 10, "of one kind, got 1 besides 'a'"),
        (TabularClassifier, [np.nan, 1.0] * 10, "a missing one in row 1"),
        (TabularClassifier, ["a", np.nan] * 10, "a missing one in row 2"),
        (TabularClassifier, pd.Series([2, 1] * 10, dtype=object), "got 2 in an array of objects"),
        (TabularClassifier, np.array([True, False] * 10, object), "got True in an array of objec"),
        (TabularClassifier, np.array([], object), "inconsistent numbers of samples"),
        (TabularClassifier, np.linspace(0, 1, ROWS), "Unknown label type: continuous"),
        (TabularClassifier, np.zeros((ROWS, 2)), "y should be a 1d array"),
        (TabularRegressor, np.linspace(-1e300, 1e300, ROWS), "whose squares float64 holds"),
        (TabularRegressor, ["a"] * ROWS, "could not convert string to float"),
        (TabularRegressor, DAYS, "expected targets that are numbers, got datetime64"),
        (TabularRegressor, DAYS - DAYS[0], "expected targets that are numbers, got timedelta64"),
        (TabularRegressor, Y[:5], "inconsistent numbers of samples"),
    ],
)
def test_refuses_targets(kind: Any, y: Any, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        kind(**TINY).fit(table(), y)


@pytest.mark.parametrize(
    ("x_val", "y_val", "message"),
    [
        (table(x="a"), Y, "expected column 'x' of X_val as numbers, as in X, got 'a'"),
        (table(x=DAYS), Y, "expected column 'x' of X_val as numbers, as in X, got Timestamp"),
        (table(b=Y), Y, "expected column 'b' of X_val as true and false, as in X, got 0"),
        (table()[["x"]], Y, "now missing"),
        (table(), Y + 5, "expected y_val to hold classes of y, got 5 besides"),
        (table()[:0], Y[:0], "0 sample"),
        (table(), Y[:3], "inconsistent numbers of samples"),
    ],
)
def test_refuses_rows_to_validate_on(x_val: Any, y_val: Any, message: str) -> None:
    flags = {"b": Y == 1} if "b" in x_val else {}
    with pytest.raises(ValueError, match=message):
        fitted(table(**flags), X_val=x_val, y_val=y_val)


@pytest.mark.parametrize("flags", [[True, None, False, True] * 5, ["True", "False"] * 10])
@pytest.mark.parametrize("numbers", [Y, Y * 1.0, DAYS])
def test_refuses_to_validate_true_and_false_on_others(flags: Any, numbers: Any) -> None:
    frame = table(b=pd.Series(flags, dtype=object))
    with pytest.raises(DataError, match="expected column 'b' of X_val as true and false, as in X"):
        fitted(frame, X_val=table(b=numbers), y_val=Y)
    assert fitted(frame, X_val=table(b=np.nan), y_val=Y).preprocessor_.columns == TWO


@pytest.mark.parametrize("named_first", [True, False])
def test_rows_to_validate_on_may_lack_the_names_of_columns(named_first: bool) -> None:
    frame, array = table(), table().to_numpy()
    x, x_val = (frame, array) if named_first else (array, frame)
    with warnings.catch_warnings():  # scikit-learn's, that only one of them has names
        warnings.simplefilter("ignore", UserWarning)
        model = fitted(x, X_val=x_val, y_val=Y)
    assert model.preprocessor_.numbers == [0]
    same = fitted(frame, X_val=frame, y_val=Y)
    np.testing.assert_array_equal(model.predict_proba(x), same.predict_proba(frame))


@pytest.mark.parametrize(
    ("column", "to_validate", "same"),
    [
        (DAYS, DAYS.tz_localize("UTC").tz_convert("Europe/Berlin"), DAYS),
        (DAYS, None, pd.DatetimeIndex([None] * ROWS)),
        (DAYS - DAYS[0], np.arange(ROWS), DAYS - DAYS[0]),
        (np.arange(ROWS), None, np.nan),
        (pd.Categorical(np.arange(ROWS) % 3), np.arange(ROWS) % 2, pd.Categorical(Y)),
        (pd.Categorical(np.arange(ROWS) % 3), pd.Categorical(Y), (np.arange(ROWS) % 2).astype(str)),
    ],
)
def test_columns_are_of_the_kinds_that_training_rows_have(
    column: Any, to_validate: Any, same: Any
) -> None:
    frame = table(q=column)
    found = fitted(frame, X_val=table(q=to_validate), y_val=Y)
    assert found.preprocessor_.columns == fitted(frame).preprocessor_.columns
    expected = fitted(frame, X_val=table(q=same), y_val=Y)
    np.testing.assert_array_equal(found.predict_proba(frame), expected.predict_proba(frame))


@pytest.mark.parametrize(
    ("y", "y_val"), [(Y == 1, Y), (Y, Y == 1), (Y, Y * 1.0), (list("ab") * 10, ["b"] * ROWS)]
)
def test_classes_are_those_of_training_rows(y: Any, y_val: Any) -> None:
    classes = fitted(table(), y, X_val=table(), y_val=y_val).classes_
    assert classes.dtype == np.asarray(y).dtype
    assert classes.tolist() == np.unique(y).tolist()


def test_columns_without_text_as_names_keep_their_order() -> None:
    frame = pd.DataFrame({0: np.arange(ROWS) / 1.0, 1: Y * 2.0})
    assert fitted(frame, X_val=frame.to_numpy(), y_val=Y).n_features_in_ == 2
    with pytest.raises(DataError, match="expected the columns of X_val in the order of X's"):
        fitted(frame, X_val=frame[[1, 0]], y_val=Y)


def test_refuses_validation_targets_of_another_shape() -> None:
    with pytest.raises(DataError, match=r"expected y_val of shape \(n\), as y has, got \(20, 2\)"):
        TabularRegressor(**TINY).fit(table(), Y, X_val=table(), y_val=np.ones((ROWS, 2)))


@pytest.mark.parametrize(("rows", "fraction"), [(1, 0.2), (20, 0.99)])
def test_refuses_to_set_all_rows_aside(rows: int, fraction: float) -> None:
    model = TabularRegressor(**TINY, validation_fraction=fraction)
    with pytest.raises(DataError, match=f"validation_fraction={fraction} .* n_samples={rows}"):
        model.fit(table()[:rows], Y[:rows])
