from __future__ import annotations

import io
import sys
from typing import Any

import pytest

import warpfit as wf
from support.sweeps import build
from support.training import blobs
from warpfit.sweep import progress

X, Y = blobs(60)


class Terminal(io.StringIO):
    def isatty(self) -> bool:
        return True


def sweep(**arguments: Any) -> wf.Sweep:
    grid = {"lr": [0.1, 1e38, 0.3]}
    return wf.fit_many(build, X, Y, grid=grid, epochs=2, n_jobs=1, device="cpu", **arguments)


def test_a_log_gets_a_line_now_and_then(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(progress, "SECONDS_BETWEEN_LINES", 0.0)
    found = sweep()
    printed = capsys.readouterr()
    assert printed.out == ""
    _, first, second, third = printed.err.splitlines()
    assert first.startswith("1/3 networks: 1 done, 1 running; best training accuracy ")
    assert first.endswith("(lr=0.1)")
    assert second.startswith("2/3 networks: 1 done, 1 running, 1 diverged; best training accuracy ")
    best = found.best
    score, rate = best["score"], best["candidate"]["lr"]
    assert third == (
        "3/3 networks: 2 done, 0 running, 1 diverged; best training accuracy "
        f"{score:.4g} (lr={rate})"
    )


def test_quick_and_quiet_sweeps_print_nothing(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    sweep(folds=2)
    monkeypatch.setattr(progress, "SECONDS_BETWEEN_LINES", 0.0)
    sweep(verbose=False)
    assert capsys.readouterr() == ("", "")


def test_it_is_said_when_candidates_are_ranked_by_the_rows_that_they_train_on(
    capsys: pytest.CaptureFixture[str],
) -> None:
    found = sweep()
    assert capsys.readouterr().err == (
        "fit_many: neither folds nor validation_data are given: candidates are ranked by training "
        "accuracy, which does not tell how they do on new rows\n"
    )
    assert str(found).splitlines()[0].endswith("; ranked by training accuracy")
    assert {record["scored_on"] for record in found} == {"training"}
    validated = sweep(validation_data=(X, Y))
    assert {record["scored_on"] for record in validated} == {"validation"}
    asked_for = sweep(metric="loss", halving=2)  # which then compares by it
    assert {record["scored_on"] for record in asked_for} == {"training"}
    assert capsys.readouterr().err == ""


def test_a_terminal_gets_a_line_that_moves(monkeypatch: pytest.MonkeyPatch) -> None:
    terminal = Terminal()
    monkeypatch.setattr(sys, "stderr", terminal)
    monkeypatch.setenv("TERM", "xterm")
    monkeypatch.setenv("COLUMNS", "200")
    sweep()
    assert "2 done, 0 running, 1 diverged; best training accuracy" in terminal.getvalue()


def test_the_plan_is_told_before_the_first_network() -> None:
    heard: list[str] = []

    class Says(wf.Callback):
        def on_start(self, run: Any) -> None:
            heard.append("trains")

        def __deepcopy__(self, memo: Any) -> Any:
            return self

    sweep(
        verbose=False, callbacks=[Says()], on_plan=lambda plan: heard.append(str(plan.num_networks))
    )
    assert heard == ["3", "trains", "trains", "trains"]
