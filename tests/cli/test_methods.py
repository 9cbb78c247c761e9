"""``warpfit train --method`` on a table, and what the other commands do with its file."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest

import warpfit as wf
from support.commands import Invoke
from warpfit.cli.train import METHODS as OF_COMMAND
from warpfit.tabular.methods import METHODS

ROWS = 80
FEW = ("--epochs", 2, "--hidden", 8, "--batch-size", 16, "--device", "cpu", "--out", "run")


def houses() -> pd.DataFrame:
    draws = np.random.default_rng(0)
    area, town = draws.uniform(20, 200, ROWS), draws.choice(["Bonn", "Köln", "Ulm"], ROWS)
    price = 3000 * area + np.where(town == "Köln", 2e5, 0)
    area[::9] = np.nan
    kind = np.where(price > 4e5, "villa", "flat")
    return pd.DataFrame({"area": area, "town": town, "price": price.round(), "kind": kind})


def test_the_command_knows_the_methods() -> None:
    assert tuple(METHODS) == OF_COMMAND


def test_classes_from_a_csv_file_to_predictions(invoke: Invoke) -> None:
    houses().drop(columns="price").to_csv("houses.csv", index=False)
    outcome = invoke("train", "--data", "houses.csv", "--method", "realmlp", "--folds", 2, *FEW)
    assert outcome.code == 0, outcome
    assert "labels: the column 'kind'" in outcome.out
    assert "network 2 of 2, epoch 2 of 2: loss" in outcome.out
    assert "test accuracy" in outcome.out
    files = sorted(path.name for path in Path("run").iterdir())
    assert files == ["confusion.svg", "history.json", "model.safetensors"]
    history = json.loads(Path("run/history.json").read_text())
    assert [len(each["loss"]) for each in history["networks"]] == [2, 2]
    assert history["test"]["rows"] == 16

    model = wf.TabularClassifier.load("run/model.safetensors")
    houses().head(5).to_csv("new.csv", index=False)
    outcome = invoke("predict", "run/model.safetensors", "new.csv")
    assert outcome.code == 0, outcome
    assert "left out: 'price', which the model was not trained on" in outcome.out
    assert "'kind'" not in outcome.out
    found = pd.read_csv("new-predictions.csv")
    expected = model.predict_proba(houses().head(5)[["area", "town"]])
    np.testing.assert_allclose(found.filter(like="probability"), expected, rtol=1e-6)
    assert set(found["prediction"]) <= {"flat", "villa"}

    outcome = invoke("evaluate", "run/model.safetensors", "--json")
    assert outcome.code == 0, outcome
    report = json.loads(outcome.out)
    assert report["accuracy"] == history["test"]["accuracy"]
    assert [each["name"] for each in report["classes"]] == ["flat", "villa"]
    outcome = invoke("evaluate", "run/model.safetensors", "--split", "all")
    assert "80 (all rows of houses" in outcome.out


def test_numbers(invoke: Invoke) -> None:
    houses().drop(columns="kind").to_csv("houses.csv", index=False)
    arguments = ("--data", "houses.csv", "--label-column", "price", "--task", "regression")
    outcome = invoke("train", *arguments, "--method", "realmlp", "--ensemble", 2, *FEW, "--quiet")
    assert (outcome.code, outcome.out) == (0, "")
    assert sorted(path.name for path in Path("run").iterdir()) == [
        "history.json",
        "model.safetensors",
    ]
    houses().drop(columns=["kind", "price"]).to_csv("new.csv", index=False)
    outcome = invoke("predict", "run/model.safetensors", "new.csv", "--json")
    assert outcome.code == 0, outcome
    predictions = json.loads(outcome.out)["predictions"]
    expected = wf.TabularRegressor.load("run/model.safetensors").predict(pd.read_csv("new.csv"))
    np.testing.assert_allclose([each["prediction"] for each in predictions], expected)
    outcome = invoke("evaluate", "run/model.safetensors")
    assert "root mean square error" in outcome.out


@pytest.mark.parametrize("method", [("--method", "realmlp"), ()])
def test_rows_are_predicted_alone_as_among_others(invoke: Invoke, method: tuple[str, ...]) -> None:
    """A file of one row may have digits only where the others have text."""
    codes = np.random.default_rng(0).choice(["007", "7", "A1", "12E3"], ROWS)
    rows = houses()[["area"]].assign(code=codes, price=np.where(codes == "007", 1.5, 0.25))
    rows.to_csv("codes.csv", index=False)
    arguments = ("--data", "codes.csv", "--label-column", "price", "--task", "regression")
    outcome = invoke("train", *arguments, *method, *FEW, "--quiet")
    assert outcome.code == 0, outcome
    assert invoke("predict", "run/model.safetensors", "codes.csv").code == 0
    expected = pd.read_csv("codes-predictions.csv")["prediction"]
    for place in [int(np.argmax(codes == code)) for code in ("007", "7", "12E3")]:
        rows[place : place + 1].to_csv("one.csv", index=False)
        outcome = invoke("predict", "run/model.safetensors", "one.csv")
        assert "no known category" not in outcome.out
        found = pd.read_csv("one-predictions.csv")["prediction"]
        np.testing.assert_allclose(found, expected[place : place + 1], rtol=1e-5)


@pytest.mark.parametrize("method", [("--method", "realmlp"), ()])
def test_another_file_is_scored_by_the_categories_that_stand_there(
    invoke: Invoke, method: tuple[str, ...]
) -> None:
    codes = np.random.default_rng(0).choice(["007", "008", "A1"], ROWS)
    rows = houses()[["area"]].assign(code=codes, y=np.where(codes == "007", "p", "q"))
    rows.to_csv("codes.csv", index=False)
    rows[codes != "A1"].to_csv("digits.csv", index=False)
    arguments = ("--data", "codes.csv", "--label-column", "y", "--quiet", "--lr", 0.1)
    assert invoke("train", *arguments, *method, *FEW, "--epochs", 20).code == 0
    scored = ("evaluate", "run/model.safetensors", "--split", "all", "--json", "--data")
    told = json.loads(invoke(*scored, "digits.csv").out)
    assert (told["accuracy"], told["notes"]) == (1, [])
    rows[codes != "A1"].replace("008", "9").to_csv("other.csv", index=False)
    (note,) = json.loads(invoke(*scored, "other.csv").out)["notes"]
    assert note.startswith("column 'code': cells of no known category: ")


def test_rows_of_an_npz_file(invoke: Invoke, blobs: Path) -> None:
    outcome = invoke("train", "--data", blobs, "--method", "realmlp", *FEW, "--limit", 30)
    assert outcome.code == 0, outcome
    outcome = invoke("predict", "run/model.safetensors", blobs, "--out", "found.csv")
    assert outcome.code == 0, outcome
    assert len(pd.read_csv("found.csv")) == 60


def test_estimators_of_several_targets_are_evaluated(invoke: Invoke, misuse: Invoke) -> None:
    rows = houses().drop(columns=["kind", "town"])
    rows.to_csv("houses.csv", index=False)
    losses = []
    for name, y in {"flat": rows["price"], "column": rows[["price"]], "two": rows}.items():
        model = wf.TabularRegressor(n_epochs=2, hidden_layer_sizes=8, random_state=0, device="cpu")
        model.fit(rows[["area"]], y.fillna(0)).save(f"{name}.safetensors")
    arguments = ("--data", "houses.csv", "--label-column", "price")
    for name in ("flat", "column"):
        outcome = invoke("evaluate", f"{name}.safetensors", *arguments, "--json")
        losses.append(json.loads(outcome.out)["loss"])
    assert losses[0] == losses[1]
    outcome = misuse("evaluate", "two.safetensors", *arguments)
    assert "expected targets of shape (n, 2), as the model predicts, got (16,)" in outcome.err
    assert invoke("predict", "two.safetensors", "houses.csv", "--out", "found.csv").code == 0
    assert list(pd.read_csv("found.csv").columns) == ["prediction 1", "prediction 2"]


def test_precision(invoke: Invoke) -> None:
    houses().drop(columns="price").to_csv("houses.csv", index=False)
    for precision in ("auto", "float32"):
        chosen = ("--method", "realmlp", "--precision", precision)
        outcome = invoke("train", "--data", "houses.csv", *chosen, *FEW, "--out", precision)
        assert outcome.code == 0, outcome
    model = wf.TabularClassifier.load("float32/model.safetensors")
    assert model.precision == "float32"


@pytest.mark.filterwarnings("default::warpfit.errors.TrainingWarning")
def test_a_time_limit_is_said(invoke: Invoke) -> None:
    houses().drop(columns="price").to_csv("houses.csv", index=False)
    limit = ("--time-limit", 1e-9, "--folds", 3)
    outcome = invoke("train", "--data", "houses.csv", "--method", "realmlp", *limit, *FEW)
    assert outcome.code == 0, outcome
    assert "1 of 3 networks were trained, the last one for 1 of 2 epochs" in outcome.err
    assert json.loads(Path("run/history.json").read_text())["left_out"] == [1, 2]


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (("--method", "forest"), "expected method among realmlp"),
        (("--method", "realmlp", "--optimizer", "adam"), "expected no optimizer with method"),
        (("--method", "realmlp", "--folds", 1), "expected --folds to be an integer of at least 2"),
        (("--method", "realmlp", "--folds", 1000), "expected at least --folds=1000 rows"),
        (("--method", "tabm", "--ensemble", 0), "expected --ensemble to be an integer of at"),
        (("--method", "tabm", "--epochs", 0), "expected --epochs to be an integer of at least 1"),
        (("--method", "realmlp", "--hidden", "a"), "expected hidden widths like 256"),
        (("--method", "realmlp", "--device", "tpu"), "expected one device, 'auto', 'cpu', 'cuda'"),
        (("--method", "realmlp", "--limit", -5), "expected limit"),
        (("--method", "realmlp", "--limit", 1), "of each class to test on, got none of"),
        (("--method", "tabm", "--precision", "tf32"), "The 'precision' parameter"),
        (("--folds", 2), "expected --folds with --method, got no method"),
    ],
)
def test_mistakes_are_said_in_one_sentence(
    misuse: Invoke, arguments: tuple[object, ...], message: str
) -> None:
    houses().drop(columns="price").to_csv("houses.csv", index=False)
    outcome = misuse("train", "--data", "houses.csv", *map(str, arguments))
    assert message in outcome.err


@pytest.mark.parametrize(
    ("rows", "message"),
    [
        ("x,kind\n1,a\n2,a\n", "cells: expected at least two classes, got one, 'a'"),
        ("x,price\n1,0.5\n2,0.5\n", "cells: expected targets that differ, got 0.5 in every"),
        ("x,w,kind\n1,,a\n1,,b\n", "a column to learn from, but all cells are the same: x, w"),
    ],
)
def test_a_table_without_anything_to_learn_is_refused(
    misuse: Invoke, rows: str, message: str
) -> None:
    head, *cells = rows.splitlines(keepends=True)
    Path("cells.csv").write_text(head + "".join(cells * 20))
    assert message in misuse("train", "--data", "cells.csv", "--method", "realmlp").err


def test_other_mistakes(misuse: Invoke, invoke: Invoke, tiny_images: Path) -> None:
    assert "expected data, a table" in misuse("train", "--method", "realmlp").err
    message = "expected rows of a table with method realmlp, got samples of shape (8, 8)"
    assert message in misuse("train", "--data", str(tiny_images), "--method", "realmlp").err
    houses().drop(columns="price").to_csv("houses.csv", index=False)
    assert invoke("train", "--data", "houses.csv", "--method", "realmlp", *FEW).code == 0
    model = "run/model.safetensors"
    assert "lacks 'town'" in misuse_of(misuse, houses().drop(columns="town"), model)
    assert "expected a .csv or an .npz file" in misuse("predict", model, "picture.png").err
    assert "does not exist" in misuse("predict", model, "none.csv").err
    assert "none.csv does not exist" in misuse("evaluate", model, "--data", "none.csv").err


def test_models_of_other_targets_and_columns(misuse: Invoke) -> None:
    rows = houses().drop(columns="town").fillna(100)
    rows.drop(columns="price").to_csv("kinds.csv", index=False)
    model = wf.TabularClassifier(n_epochs=1, hidden_layer_sizes=8, random_state=0, device="cpu")
    model.fit(rows[["area"]], rows["price"] > 4e5).save("truths.safetensors")
    outcome = misuse("evaluate", "truths.safetensors", "--data", "kinds.csv")
    assert "expected classes of the model (False, True), got flat, villa" in outcome.err
    model.fit(rows[["area"]].to_numpy(), rows["kind"]).save("unnamed.safetensors")
    outcome = misuse("predict", "unnamed.safetensors", "kinds.csv")
    assert "was trained on an array without names of columns; expected an .npz" in outcome.err


def test_one_column_is_enough_to_predict(invoke: Invoke, misuse: Invoke) -> None:
    rows = houses()[["town", "kind"]]
    rows.to_csv("houses.csv", index=False)
    assert not invoke("train", "--data", "houses.csv", "--method", "realmlp", *FEW).code
    rows[["town"]].to_csv("towns.csv", index=False)
    outcome = invoke("predict", "run/model.safetensors", "towns.csv")
    assert "80 rows, 3 columns: towns-predictions.csv" in outcome.out
    Path("gaps.csv").write_text("\n town\r\nUlm\r\n\r\nBonn\r\n \r\nUlm\r\n\r\n")
    outcome = invoke("predict", "run/model.safetensors", "gaps.csv")
    assert "6 rows, 3 columns: gaps-predictions.csv" in outcome.out
    rows[["kind"]].to_csv("kinds.csv", index=False)
    outcome = misuse("predict", "run/model.safetensors", "kinds.csv")
    assert "kinds.csv lacks 'town'; expected the columns that" in outcome.err


def test_cells_of_no_known_category_are_counted(invoke: Invoke) -> None:
    rows = houses()[["town", "kind"]]
    rows.to_csv("houses.csv", index=False)
    assert not invoke("train", "--data", "houses.csv", "--method", "realmlp", *FEW).code
    rows.assign(town=["Rom", None] * 40).to_csv("new.csv", index=False)
    outcome = invoke("predict", "run/model.safetensors", "new.csv", "--json")
    assert json.loads(outcome.out)["notes"] == [
        "column 'town': cells of no known category: 40, such as 'Rom'"
    ]


def test_arrays_and_tables_of_each_others_estimators(invoke: Invoke, blobs: Path) -> None:
    """Columns without names go by their places, without a warning of scikit-learn's."""
    rows = houses()[["area", "town", "kind"]]
    rows.to_csv("houses.csv", index=False)
    assert not invoke("train", "--data", "houses.csv", "--method", "realmlp", *FEW).code
    np.savez("new.npz", x=np.full((3, 2), 70.5))
    outcome = invoke("predict", "run/model.safetensors", "new.npz", "--json")
    assert not outcome.err
    assert json.loads(outcome.out)["notes"] == [
        "column 'town': cells of no known category: 3, such as '70.5'"
    ]
    assert not invoke("train", "--data", blobs, "--method", "realmlp", *FEW, "--out", "own").code
    with np.load(blobs) as arrays:
        x, y = arrays["x"], arrays["y"]
    pd.DataFrame(x).assign(label=y).to_csv("blobs.csv", index=False)
    outcome = invoke("evaluate", "own/model.safetensors", "--data", "blobs.csv")
    assert (outcome.code, outcome.err) == (0, "")


def test_rows_that_cannot_be_read(misuse: Invoke, monkeypatch: pytest.MonkeyPatch) -> None:
    rows = houses()[["area", "kind"]].fillna(100)
    rows.to_csv("houses.csv", index=False)
    model = wf.TabularClassifier(n_epochs=1, hidden_layer_sizes=8, random_state=0, device="cpu")
    model.fit(rows[["area"]], rows["kind"]).save("model.safetensors")

    def refused(path: Path, *rest: Any, **others: Any) -> Any:
        raise PermissionError(13, "Permission denied", str(path))

    monkeypatch.setattr(Path, "open", refused)
    outcome = misuse("predict", "model.safetensors", "houses.csv")
    assert "cannot read houses.csv: Permission denied" in outcome.err


@pytest.mark.filterwarnings("default::warpfit.errors.TrainingWarning")
def test_files_of_networks_that_diverge_later(invoke: Invoke) -> None:
    houses().drop(columns="price").to_csv("houses.csv", index=False)
    settings = {"--epochs": 4, "--batch-size": 64, "--lr": 1e30}
    arguments = [part for pair in settings.items() for part in pair]
    train = ("train", "--data", "houses.csv", "--method", "realmlp", *FEW, *arguments)
    outcome = invoke(*train)
    assert (outcome.code, "network 1 of 1 diverged" in outcome.err) == (0, True), outcome
    network = json.loads(Path("run/history.json").read_text(), parse_constant=pytest.fail)
    assert network["networks"][0]["validation_error"][-1] is None
    assert np.isnan(wf.TabularClassifier.load("run/model.safetensors").validation_errors_[-1])


def misuse_of(misuse: Invoke, frame: pd.DataFrame, model: str) -> str:
    """Return what predicting a frame's file fails with."""
    frame.to_csv("other.csv", index=False)
    return misuse("predict", model, "other.csv").err
