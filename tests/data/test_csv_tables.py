"""Tables in .csv files: header or none, an index, delimiters, missing cells."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest
from sklearn.datasets import load_iris

from warpfit.data import load_user_data
from warpfit.data.csv_tables import read_features, read_table
from warpfit.errors import DataError, FileFormatError

ROWS = "5.1,3.5,setosa\n4.9,3.0,setosa\n7.0,3.2,versicolor\n"


def write(folder: Path, text: str) -> Path:
    path = folder / "toy.csv"
    path.write_text(text, encoding="utf-8")
    return path


@pytest.mark.parametrize(
    ("text", "names", "num_rows"),
    [
        (f"length,width,species\n{ROWS}", ["length", "width"], 3),
        (ROWS, ["column 1", "column 2"], 3),
        ("1,2,3\n4,5,6\n", ["column 1", "column 2"], 2),
        ("p,x,s\ne,x,s\np,y,s\n", ["column 1", "column 2"], 3),
        ("edible,cap,odour\ne,x,s\np,y,s\n", ["edible", "cap"], 2),
        ("?,3.5,a\n4.9,?,b\n", ["column 1", "column 2"], 2),
        ("2019,2020,town\n1,2,a\n3,4,b\n", ["column 1", "column 2"], 3),
        ("id,2019,town\n1,2,a\n3,4,b\n", ["id", "2019"], 2),
        ("\n\na,b\n1,2\n\n3,4\n", ["a"], 2),
        ("a;b;y\nx,z;2;3\nu,v;5;6\n", ["a", "b"], 2),
        ("a\tb\ty\n1\t2\t3\n", ["a", "b"], 1),
        ('"a, really", "b", y\n1, 2, 3\n', ["a, really", "b"], 1),
    ],
)
def test_a_header_is_found_or_not_and_no_row_is_lost(
    tmp_path: Path, text: str, names: list[str], num_rows: int
) -> None:
    table = read_table(write(tmp_path, text))
    assert list(table.features.columns) == names
    assert len(table.features) == len(table.labels) == num_rows
    assert any("no header row" in note for note in table.notes) == (names[0] == "column 1")


@pytest.mark.parametrize(
    ("text", "left_out"),
    [
        (",a,y\n0,5,1\n1,7,2\n", "column 1"),
        (",a,y\nfirst,5,1\nsecond,7,2\n", "column 1"),
        ("Unnamed: 0,a,y\n4,5,1\n9,7,2\n", "Unnamed: 0"),
        ("1,5.5,x\n2,7.5,z\n3,7.5,z\n", "column 1"),
        ("0,5.5,x\n1,7.5,z\n", "column 1"),
        ("Id,a,y\n1,5,1\n2,7,2\n", "Id"),
        ("a,PassengerId,y\n5,1,1\n7,2,2\n", "PassengerId"),
        ("index,a,y\n0,5,1\n1,7,2\n", "index"),
        ("id,a,y\n17,5,1\n4,7,2\n", None),
        ("day,a,y\n1,5,1\n2,7,2\n", None),
        ("2,5.5,x\n1,7.5,z\n", None),
    ],
)
def test_a_column_that_numbers_the_rows_is_left_out(
    tmp_path: Path, text: str, left_out: str | None
) -> None:
    table = read_table(write(tmp_path, text))
    said = [note for note in table.notes if note.startswith("left out")]
    assert said == (
        [f"left out: the column {left_out!r}, which only numbers the rows"] if left_out else []
    )
    assert len(table.features.columns) == (1 if left_out else 2)
    assert left_out not in table.features.columns


def test_cells_keep_their_kinds(tmp_path: Path) -> None:
    text = "n,f,b,t,y\n1,1.5,True,a,0\n2,,False,?,1\n3,NA,True, b,1\n"
    features = read_table(write(tmp_path, text)).features
    assert [features[name].dtype.kind for name in "nfb"] == ["i", "f", "b"]
    assert features["f"].isna().tolist() == [False, True, True]
    assert features["t"].fillna("").tolist() == ["a", "", "b"]


@pytest.mark.parametrize(
    ("labels", "kind", "found"),
    [
        (["1", "2"], "i", [1, 2]),
        (["1", "2.5"], "f", [1.0, 2.5]),
        (["yes", "None"], "U", ["yes", "None"]),
        (["1", "b"], "U", ["1", "b"]),
        (["1_11", "11_1"], "U", ["1_11", "11_1"]),
    ],
)
def test_labels_are_what_stands_there(
    tmp_path: Path, labels: list[str], kind: str, found: list[object]
) -> None:
    table = read_table(
        write(tmp_path, "a,y\n" + "".join(f"{i}.5,{label}\n" for i, label in enumerate(labels)))
    )
    assert table.labels.dtype.kind == kind
    assert table.labels.tolist() == found


@pytest.mark.parametrize("missing", ["NA", "nan", "?"])
def test_a_missing_number_among_targets_is_no_class(tmp_path: Path, missing: str) -> None:
    with pytest.raises(
        DataError, match=rf"row 2, column 'y' is {missing.replace('?', '[?]')}; expected a finite"
    ):
        read_table(write(tmp_path, f"a,y\n1,0.5\n2,{missing}\n3,0.7\n"))


def test_features_are_found_by_name_in_any_order(tmp_path: Path) -> None:
    path = write(tmp_path, "y,extra,b,a\n0,9,2,1\n1,9,4,3\n")
    features, notes = read_features(path, ["a", "b"], "y", {})
    assert features.to_numpy().tolist() == [[1, 2], [3, 4]]
    assert notes == ("left out: 'extra', which the model was not trained on",)
    features, notes = read_features(write(tmp_path, "b,a\n2,1\n"), ["a", "b"], "y", {})
    assert (features.to_numpy().tolist(), notes) == ([[1, 2]], ())
    with pytest.raises(
        DataError, match=r"toy.csv lacks 'c', 'd'; expected the columns that the model was"
    ):
        read_features(path, ["a", "c", "d"], "y", {})


@pytest.mark.parametrize(
    ("known", "cells", "found"),
    [
        (("007", "A1"), ["007", "7"], ["007", 7]),
        (("1.50", "12E3"), ["1.50", "12E3"], ["1.50", "12E3"]),
        (("no", "true"), ["true", ""], ["true", np.nan]),
        (("1", "2"), ["1", "2.0"], ["1", 2.0]),
        (("True", "False"), ["true", "False"], [True, "False"]),
        (("007", "A1"), ["007 ", "' 007 '"], ["007", "007"]),
        (("1,5", "x"), ["'1,5'", "'1,5'"], ["1,5", "1,5"]),
    ],
)
@pytest.mark.parametrize("header", ["b,a\n", ""])
def test_a_category_is_the_text_that_stands_there(
    tmp_path: Path, known: tuple[str, ...], cells: list[str], found: list[object], header: str
) -> None:
    rows = "".join(f"{i}.5, {cell}\n" for i, cell in enumerate(cells)).replace("'", '"')
    path = write(tmp_path, header + rows)
    features, _ = read_features(path, ["b", "a"], None, {"a": known})
    assert features["b"].tolist() == [0.5, 1.5]
    np.testing.assert_equal(features["a"].tolist(), found)


def test_of_a_file_only_columns_of_categories_are_read_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    read, columns = pd.read_csv, []

    def listed(*args: Any, **kwargs: Any) -> pd.DataFrame:
        frame = read(*args, **kwargs)
        columns.append(list(frame.columns))
        return frame

    monkeypatch.setattr(pd, "read_csv", listed)
    path = write(tmp_path, "c,b,a,y\n1,007,x,\n2,7,x,\n")
    features, _ = read_features(path, ["a", "b", "c"], "y", {"a": ["x"], "b": ["007"]})
    assert features["b"].tolist() == ["007", 7]
    assert columns == [["c", "b", "a", "y"], ["b"]]


@pytest.mark.parametrize("text", [ROWS, "5.1,3.5\n4.9,3.0\n7.0,3.2\n"])
def test_features_without_a_header_are_found_by_their_places(tmp_path: Path, text: str) -> None:
    features, _ = read_features(write(tmp_path, text), ["column 1", "column 2"], "column 3", {})
    assert features.to_numpy().tolist() == [[5.1, 3.5], [4.9, 3.0], [7.0, 3.2]]


def test_iris_is_the_same_however_it_was_written(tmp_path: Path) -> None:
    iris = load_iris(as_frame=True)
    frame = iris.frame.assign(target=iris.target_names[iris.frame["target"]])
    found = []
    for options in (
        {"index": False},
        {"index": False, "header": False},
        {},
        {"sep": ";", "index": False},
    ):
        frame.to_csv(tmp_path / "iris.csv", **options)
        data = load_user_data(tmp_path / "iris.csv")
        found.append((data.x_train.to_numpy(), data.y_train))
        assert data.class_names == tuple(iris.target_names)
    for x, y in found[1:]:
        np.testing.assert_array_equal(x, found[0][0])
        np.testing.assert_array_equal(y, found[0][1])


@pytest.mark.parametrize(
    ("cells", "shown"),
    [
        (["0,50", "1,25", "-3,5", "7,0"], "'0,50'"),
        (["1,200.50", "3", "12,500", "990"], "'1,200.50'"),
        (["12%", "7.5 %", "", "3%"], "'12%'"),
        (["3", "€5", "$6.10", "4€"], "'€5'"),
    ],
)
@pytest.mark.parametrize("column", ["a", "target"])
def test_numbers_written_as_text_are_no_categories(
    tmp_path: Path, cells: list[str], shown: str, column: str
) -> None:
    """A decimal comma would make a column of texts that all differ, or a class of every target."""
    cells = [cell or "2%" * (column == "target") for cell in cells]
    other = "target" if column == "a" else "a"
    path = write(
        tmp_path, f"{column};b;{other}\n" + "".join(f"{cell};1;0\n" for cell in cells * 10)
    )
    row = cells.index(shown.strip("'")) + 1
    with pytest.raises(DataError, match="with a decimal point, without separators") as caught:
        read_table(path)
    assert f"row {row}, column {column!r} is {shown}" in str(caught.value)


def test_texts_with_digits_are_categories(tmp_path: Path) -> None:
    rows = "".join(
        f"{place},2020-01-0{i},v{i},0\n" for i in range(1, 5) for place in ("A1", "10.0.0.1")
    )
    assert (
        len(read_table(write(tmp_path, "place,when,version,target\n" + rows)).features.columns) == 3
    )


@pytest.mark.parametrize("missing", ["", "?"])
def test_a_text_among_numbers_of_which_some_are_missing(tmp_path: Path, missing: str) -> None:
    cells = [str(number) for number in range(40)]
    cells[7], cells[11] = missing, "oops"
    path = write(
        tmp_path,
        "a,b,label\n" + "".join(f"{cell},1.5,{row % 2}\n" for row, cell in enumerate(cells)),
    )
    with pytest.raises(
        DataError, match="row 12, column 'a' is 'oops'; expected a number, as in nearly all"
    ):
        read_table(path)


def test_truth_values_of_which_some_are_missing(tmp_path: Path) -> None:
    path = write(tmp_path, "a,b,label\n" + "True,1,0\nFalse,2,1\n,3,0\n" * 5)
    assert read_table(path).features["a"].isna().sum() == 5


def test_integers_beyond_float64_among_numbers_are_refused(tmp_path: Path) -> None:
    digits = "9" * 400
    path = write(tmp_path, "a,b\n" + "1,2\n" * 9 + f"{digits},2\n")
    with pytest.raises(DataError, match=r"row 10, column 'a' is '?9+.*expected a number"):
        read_features(path, ("a", "b"), None, {})


def test_an_integer_that_no_float_holds(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = write(tmp_path, f"a,b,label\n{'9' * 400},1,0\n,2,1\n")
    with pytest.raises(DataError, match=r"column 'a' is 9999.*; expected|no float64 can hold"):
        read_table(path)

    def as_pandas_3_0_does(*_: object, **__: object) -> None:
        raise OverflowError("int too large to convert to float")

    monkeypatch.setattr("pandas.read_csv", as_pandas_3_0_does)
    with pytest.raises(DataError, match="has an integer that no float64 can hold"):
        read_table(path)


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("a\n13\n14\n", [13, 14]),
        ("a\n13\n14\n\n", [13, 14, None]),
        ("a\n\n13\n14", [None, 13, 14]),
        ("\n\na\n13\n", [13]),
    ],
)
def test_a_blank_line_of_a_single_column_is_a_missing_cell(
    tmp_path: Path, text: str, expected: list[float | None]
) -> None:
    rows, _ = read_features(write(tmp_path, text), ("a",), None, {})
    found = rows["a"].astype(object).where(rows["a"].notna(), None).tolist()
    assert found == expected


def test_text_that_is_not_utf_8(tmp_path: Path) -> None:
    path = tmp_path / "latin.csv"
    path.write_bytes("name,label\nMüller,0\n".encode("latin-1"))
    with pytest.raises(FileFormatError, match=r"expected UTF-8 text in .*latin.csv, save it so"):
        read_table(path)
