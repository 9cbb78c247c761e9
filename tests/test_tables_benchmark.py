"""What the benchmark of tables computes: splits, scores, when two programs are equally good, and
what pages show of it.
"""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest

sys.path.insert(0, str(Path(__file__).resolve().parents[1] / "benchmarks"))

import table_data
import tables
from peers.tabular import PROGRAMS, missing

NUM_ROWS = 569


def row(seconds: float, errors: list[float]) -> dict[str, Any]:
    return tables.summary({"wall_s": [9.0, seconds], "cpu_s": [9.0, seconds], "rmse": errors})


def test_seeds_decide_which_rows_train_and_not_which_score() -> None:
    first, second = (table_data.split("breast-cancer", seed) for seed in (0, 1))
    sizes = [len(part) for part in (first.x, first.x_val, first.x_test)]
    assert sum(sizes) == NUM_ROWS
    assert sizes[0] > 3 * sizes[1]
    assert first.x_test.equals(second.x_test)
    assert not first.x_val.equals(second.x_val)
    assert set(first.y) == {0, 1}
    assert not set(first.x.index) & set(first.x_val.index)


@pytest.mark.parametrize("distance", [0.0, 1.0])
def test_programs_are_equally_good_if_their_difference_is_small(distance: float) -> None:
    rng = np.random.default_rng(0)
    theirs = rng.normal(size=10)
    found = tables.equivalence(list(theirs + distance + 0.05 * rng.normal(size=10)), list(theirs))
    assert (found["p"] < 0.05) == (distance == 0)
    assert (found["p_different"] < 0.05) == (distance == 1)
    assert found["margin"] == pytest.approx(0.5 * theirs.std(ddof=1))
    assert found["difference"] == pytest.approx(distance, abs=0.1)


def test_points_are_means_over_tables_that_all_have_run() -> None:
    quick, slow = "warpfit realmlp", "lightgbm"
    measured = {
        "diabetes": {quick: row(0.5, [2.0, 2.0]), slow: row(2.0, [1.0, 1.0])},
        "diamonds": {quick: row(2.0, [1.0, 1.0]), slow: row(8.0, [2.0, 2.0])},
        "magic": {quick: row(2.0, [1.0, 1.0])},
    }
    found = tables.points({"tables": measured})
    assert found == {quick: pytest.approx((1.0, 2**0.5)), slow: pytest.approx((4.0, 2**0.5))}


def test_a_table_and_a_picture_of_what_there_is() -> None:
    ours, theirs = "warpfit realmlp", "pytabkit realmlp"
    measured = {"diabetes": {ours: row(0.5, [2.0, 1.9, 2.1]), theirs: row(5.0, [2.0, 1.9, 2.2])}}
    equal = {name: tables.compared(rows) for name, rows in measured.items()}
    results = {"tables": measured, "equivalence": equal, "environment": {"gpu": "a card"}}
    header, lines = tables.rows_of_programs(results)
    assert header == ["table", "error", ours, theirs]
    assert lines == [["diabetes", "RMSE", "2.0000, 0.50 s", "2.0333, 5.00 s"]]
    _, (line,) = tables.rows_of_pairs(results)
    assert line[:6] == ["diabetes", f"{ours}, {theirs}", "rmse", "2.0000", "2.0333", "-0.0333"]
    (axes,) = tables.draw(results).axes
    assert [text.get_text() for text in axes.texts] == [ours, theirs]


def test_a_program_is_fitted_scored_and_goes_on_with_what_is_missing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("WARPFIT_BENCH_RESULTS", str(tmp_path))
    monkeypatch.setattr("harness.RESULTS", tmp_path)
    settings = ["--tables", "diabetes", "--programs", "warpfit realmlp cpu", "--epochs", "1"]
    monkeypatch.setattr(sys, "argv", ["tables.py", *settings, "--seeds", "2"])
    tables.main()
    capsys.readouterr()
    written = json.loads((tmp_path / "tables.json").read_text())
    found = written["tables"]["diabetes"]["warpfit realmlp cpu"]
    assert len(found["scores"]["rmse"]) == 2
    assert 0 < found["wall_s"]["median"] < found["first_s"] + found["wall_s"]["max"]
    tables.main()
    assert capsys.readouterr().out == ""


def test_every_program_says_what_it_lacks() -> None:
    assert missing("warpfit realmlp") is None
    assert all(
        why is None or "not installed" in why or "GPU" in why for why in map(missing, PROGRAMS)
    )
