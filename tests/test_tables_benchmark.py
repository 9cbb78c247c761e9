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
import table_pages
import tables
from peers.tabular import PROGRAMS, Program, missing
from warpfit.errors import ConfigError

NUM_ROWS = 569


def row(seconds: float, errors: list[float]) -> dict[str, Any]:
    times = [9.0, seconds] if len(errors) > 1 else [seconds]
    return tables.summary({"wall_s": times, "cpu_s": times, "rmse": errors})


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
    assert found["standard_error"] == pytest.approx(0.05 / 10**0.5, rel=0.5)


def test_four_fits_of_a_split_count_instead_of_one() -> None:
    ours, again = tables.WHOLE, tables.WHOLE + tables.AGAIN
    rows = {name: {"scores": {"rmse": [2.0, 1.9, 2.1]}} for name in (ours, tables.PAIRS[ours])}
    assert list(tables.compared(rows, tables.PAIRS)) == [ours]
    assert list(tables.compared(rows | {again: rows[ours]}, tables.PAIRS)) == [again]


def test_points_are_means_over_tables_that_all_have_run() -> None:
    quick, slow = "warpfit realmlp", "lightgbm"
    measured = {
        "diabetes": {quick: row(0.5, [2.0, 2.0]), slow: row(2.0, [1.0, 1.0])},
        "diamonds": {quick: row(2.0, [1.0, 1.0]), slow: row(8.0, [2.0, 2.0])},
        "magic": {quick: row(2.0, [1.0, 1.0])},
    }
    found = table_pages.points({"tables": measured})
    assert found == {quick: pytest.approx((1.0, 2**0.5)), slow: pytest.approx((4.0, 2**0.5))}


def test_a_table_and_a_picture_of_what_there_is() -> None:
    ours, quick, variant = tables.WHOLE, "lightgbm", tables.VARIANTS[0]
    theirs = tables.PAIRS[ours]
    measured = {
        "diabetes": {
            ours: row(0.5, [2.0, 1.9, 2.1]),
            quick: row(0.25, [2.0, 1.9, 2.2]),
            "xgboost": row(0.25, [2.0]),
            theirs: {"scores": {"rmse": [2.0, 1.9, 2.2]}},
            variant: {"scores": {"rmse": [3.0, 2.9, 3.4]}},
        }
    }
    results = {
        "tables": measured,
        "environment": {"gpu": "a card"},
        "equivalence": {
            name: tables.compared(rows, tables.PAIRS) for name, rows in measured.items()
        },
        "variants": {
            name: tables.compared(rows, {variant: ours}) for name, rows in measured.items()
        },
    }
    header, lines = table_pages.rows_of_programs(results)
    assert header == ["seconds, error", "diabetes (RMSE)"]
    assert lines[:2] == [[ours, "0.50 s, 2.000†"], [quick, "0.25 s, 2.033†"]]
    assert lines[2] == ["xgboost", "0.25 s\\*, 2.000†"]
    _, shares = table_pages.rows_of_ratios(results)
    assert shares[0] == [quick, "2.00", "2.00", "2.00", "1"]
    _, (pair,) = table_pages.rows_of_pairs(results)
    assert pair[:7] == [
        "diabetes",
        f"{ours}, {theirs}",
        "rmse",
        "3",
        "2.0000",
        "2.0333",
        "-0.0333 ± 0.0333",
    ]
    _, (part,) = table_pages.rows_of_variants(results)
    assert part[:6] == ["diabetes", "bfloat16", "rmse", "3", "2.0000", "3.1000"]
    (axes,) = table_pages.draw(results).axes
    assert [text.get_text() for text in axes.texts] == [ours, quick, "xgboost"]


def test_the_same_ten_seeds_count_of_the_program_that_has_most() -> None:
    ours, many = tables.WHOLE, [2.0] * table_pages.SEEDS + [5.0] * 20
    rows = {ours: row(0.5, [1.0, 1.0]), ours + tables.AGAIN: {"scores": {"rmse": many}}}
    _, (line,) = table_pages.rows_of_programs({"tables": {"diabetes": rows}})
    assert line == [ours, "0.50 s, 2.000"]


def test_a_small_margin_is_shown_with_five_decimals() -> None:
    rows = dict.fromkeys(
        (tables.WHOLE, tables.PAIRS[tables.WHOLE]), row(1.0, [0.0797, 0.0796, 0.0799])
    )
    results = {"equivalence": {"diabetes": tables.compared(rows, tables.PAIRS)}}
    _, (line,) = table_pages.rows_of_pairs(results)
    assert line[4:8] == ["0.07973", "0.07973", "+0.00000 ± 0.00000", "±0.00008"]


class Constant:
    """Networks that predict their number for all rows."""

    def __init__(self, numbers: list[float]) -> None:
        self.numbers = numbers

    def predict_ensemble(self, x: Any) -> Any:
        return np.repeat(np.array(self.numbers)[:, None], len(x), axis=1)


def test_networks_trained_at_once_are_scored_one_by_one(monkeypatch: pytest.MonkeyPatch) -> None:
    calls: list[int] = []

    def fit(splits: list[Any], seed: int, epochs: int | None) -> Any:
        calls.append(len(splits))
        (_, y), val = splits[1].known, splits[1].val
        assert np.array_equal(np.sort(y[val]), np.sort(splits[1].y_val))
        return Constant([float(split.y.mean()) for split in splits])

    monkeypatch.setitem(PROGRAMS, "constants", Program(fit, is_at_once=True))
    found = tables.measured("constants", "diabetes", 3, 0.0, None)
    assert calls == [3]
    rows = table_data.split("diabetes", 2)
    expected = float(np.sqrt(np.mean((rows.y.mean() - rows.y_test) ** 2)))
    assert found["rmse"][2] == pytest.approx(expected)
    assert len(set(found["rmse"])) == 3
    assert len(found["wall_s"]) == 3


def test_networks_of_a_split_count_by_their_mean_score(monkeypatch: pytest.MonkeyPatch) -> None:
    def fit(split: Any, seed: int, epochs: int | None) -> Any:
        return Constant([100.0 + seed, 200.0])

    monkeypatch.setitem(PROGRAMS, "constants", Program(fit, networks=2))
    found = tables.measured("constants", "diabetes", 2, 60.0, None)
    y = table_data.split("diabetes", 0).y_test
    errors = {number: float(np.sqrt(np.mean((number - y) ** 2))) for number in (100, 101, 200)}
    expected = [(errors[number] + errors[200]) / 2 for number in (100, 101)]
    assert found["rmse"] == pytest.approx(expected)


def test_a_fit_with_other_seeds_has_the_network_that_one_has_alone() -> None:
    rows = table_data.split("diabetes", 0)
    alone, several = (
        PROGRAMS[f"warpfit realmlp{times}"].fit(rows, 3, 2) for times in ("", " four times")
    )
    first, *others = several.predict_ensemble(rows.x_test)
    assert np.array_equal(first, alone.predict(rows.x_test))
    assert len(others) == 3
    assert not any(np.array_equal(first, other) for other in others)


@pytest.mark.parametrize("name", ["warpfit realmlp no embeddings", "warpfit realmlp constant rate"])
def test_a_variant_lacks_its_part_and_nothing_stays_of_that(name: str) -> None:
    rows = table_data.split("diabetes", 0)
    before, variant, after = (
        PROGRAMS[each].fit(rows, 0, 2) for each in (tables.WHOLE, name, tables.WHOLE)
    )
    assert before.loss_curve_ == after.loss_curve_
    assert before.loss_curve_ != variant.loss_curve_
    assert (variant.network_.numbers.frequency.size == 0) == ("embeddings" in name)


@pytest.mark.slow
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
    settings[3] = "warpfit realmlp constant rate"
    monkeypatch.setattr(sys, "argv", ["tables.py", *settings, "--seeds", "3", "--scores-only"])
    tables.main()
    found = json.loads((tmp_path / "tables.json").read_text())["tables"]["diabetes"]
    assert "wall_s" in found["warpfit realmlp cpu"]
    assert list(found[settings[3]]) == ["scores", "commit", "date"]
    settings[3] = "warpfit realmlp cpu"
    monkeypatch.setattr(sys, "argv", ["tables.py", *settings, "--seeds", "3", "--scores-only"])
    tables.main()
    again = json.loads((tmp_path / "tables.json").read_text())["tables"]["diabetes"][settings[3]]
    assert again["scores"]["rmse"][:2] == found[settings[3]]["scores"]["rmse"]
    assert len(again["scores"]["rmse"]) == 3
    assert again["wall_s"] == found[settings[3]]["wall_s"]
    assert set(again["scores_of"]) == {"commit", "date"}


def test_replayed_steps_have_no_times(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "argv", ["tables.py", "--replayed"])
    with pytest.raises(ConfigError, match="--replayed is for --scores-only"):
        tables.main()


def test_a_program_that_fails_is_named_and_the_others_go_on(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr("harness.RESULTS", tmp_path)
    command = [sys.executable, "-c", "print('found so far'); raise ValueError('no trees')", "name"]
    assert list(tables.lines_of(command, 60)) == ["found so far\n"]
    assert capsys.readouterr().out == "name: ValueError: no trees\n"
    command[2] = "import time; time.sleep(60)"
    assert list(tables.lines_of(command, 0.1)) == []
    assert capsys.readouterr().out == "name: ended, for time is over\n"


def test_every_program_says_what_it_lacks() -> None:
    assert missing("warpfit realmlp") is None
    assert all(
        why is None or "not installed" in why or "GPU" in why for why in map(missing, PROGRAMS)
    )
