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
