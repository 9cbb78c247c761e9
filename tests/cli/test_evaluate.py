"""``warpfit evaluate``."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest

import warpfit as wf
from support.commands import Invoke


def test_gives_what_the_library_gives(invoke: Invoke, trained: Path) -> None:
    digits = wf.data.load_dataset("digits", flat=True)
    expected = wf.evaluate(wf.load(trained / "model.safetensors"), digits.x_test, digits.y_test)
    outcome = invoke("evaluate", trained / "model.safetensors", "--json")
    assert outcome.code == 0
    report = json.loads(outcome.out)
    assert report["loss"] == expected.loss
    assert report["accuracy"] == expected.accuracy
    assert report["num_rows"] == sum(score["num_rows"] for score in report["classes"]) == 359
    found = sum(score["recall"] * score["num_rows"] for score in report["classes"]) / 359
    assert found == pytest.approx(expected.accuracy)


def test_table_has_a_line_for_every_class(invoke: Invoke, trained: Path) -> None:
    lines = invoke("evaluate", trained / "model.safetensors").out.splitlines()
    assert lines[0] == "rows      359 (test rows of digits)"
    start = next(idx for idx, line in enumerate(lines) if line.startswith("class"))
    assert [line.split()[0] for line in lines[start + 1 :]] == list("0123456789")


@pytest.mark.parametrize(("split", "num_rows"), [("train", 1438), ("all", 1797)])
def test_other_rows(invoke: Invoke, trained: Path, split: str, num_rows: int) -> None:
    outcome = invoke("evaluate", trained / "model.safetensors", "--split", split, "--json")
    assert json.loads(outcome.out)["num_rows"] == num_rows


def test_classes_are_matched_by_name(invoke: Invoke, trained: Path) -> None:
    digits = wf.data.load_dataset("digits")
    some = np.isin(digits.y_test, (3, 7))  # in a file of their own they are numbered 0 and 1
    np.savez("some.npz", x=digits.x_test[some], y=digits.y_test[some])
    outcome = invoke(
        "evaluate", trained / "model.safetensors", "--data", "some.npz", "--split", "all", "--json"
    )
    report = json.loads(outcome.out)
    assert report["accuracy"] > 0.5
    assert [s["name"] for s in report["classes"] if s["num_rows"]] == ["3", "7"]
    assert report["classes"][0]["recall"] is None


def test_a_model_that_save_wrote(invoke: Invoke, trained: Path, tmp_path: Path) -> None:
    model = wf.load(trained / "model.safetensors")
    path = tmp_path / "model.safetensors"
    wf.save(model, path)
    digits = wf.data.load_dataset("digits", flat=True)
    outcome = invoke("evaluate", path, "--data", "digits", "--json")
    assert outcome.code == 0
    assert (
        json.loads(outcome.out)["accuracy"]
        == wf.evaluate(model, digits.x_test, digits.y_test).accuracy
    )
    nameless = invoke("evaluate", path)
    assert nameless.code == 2
    assert "`warpfit evaluate --data` says how good it is" in nameless.err


def test_a_regression_that_save_wrote(invoke: Invoke, tmp_path: Path) -> None:
    rng = np.random.default_rng(0)
    x = rng.standard_normal((50, 3)).astype("f4")
    rows = np.column_stack([x, x.sum(axis=1)])
    np.savetxt(tmp_path / "table.csv", rows, header="a,b,c,y", comments="", delimiter=",")
    model = wf.nn.Sequential(wf.nn.Linear(3, 1, seed=0))
    model.loss = "mse"
    wf.save(model, tmp_path / "model.safetensors")
    outcome = invoke("evaluate", tmp_path / "model.safetensors", "--data", tmp_path / "table.csv")
    assert outcome.code == 0
    assert "R²" in outcome.out
    too_wide = wf.nn.Sequential(wf.nn.Linear(4, 1, seed=0))
    wf.save(too_wide, tmp_path / "wide.safetensors")
    refused = invoke("evaluate", tmp_path / "wide.safetensors", "--data", tmp_path / "table.csv")
    assert refused.code == 2
    assert (
        "expected samples that the model takes, but those of table have shape (3,)" in refused.err
    )
