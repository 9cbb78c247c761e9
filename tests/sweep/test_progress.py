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
    first, second, third = printed.err.splitlines()
    assert first.startswith("1/3 networks: 1 done, 1 running; best accuracy ")
    assert first.endswith("(lr=0.1)")
    assert second.startswith("2/3 networks: 1 done, 1 running, 1 diverged; best accuracy ")
    best = found.best
    score, rate = best["score"], best["candidate"]["lr"]
    assert third == f"3/3 networks: 2 done, 0 running, 1 diverged; best accuracy {score:.4g} (lr={rate})"


def test_quick_and_quiet_sweeps_print_nothing(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    sweep()
    monkeypatch.setattr(progress, "SECONDS_BETWEEN_LINES", 0.0)
    sweep(verbose=False)
    assert capsys.readouterr() == ("", "")


def test_a_terminal_gets_a_line_that_moves(monkeypatch: pytest.MonkeyPatch) -> None:
    terminal = Terminal()
    monkeypatch.setattr(sys, "stderr", terminal)
    monkeypatch.setenv("TERM", "xterm")
    monkeypatch.setenv("COLUMNS", "200")
    sweep()
    assert "2 done, 0 running, 1 diverged; best accuracy" in terminal.getvalue()


def test_the_plan_is_told_before_the_first_network() -> None:
    heard: list[str] = []

    class Says(wf.Callback):
        def on_start(self, run: Any) -> None:
            heard.append("trains")

        def __deepcopy__(self, memo: Any) -> Any:
            return self

    sweep(verbose=False, callbacks=[Says()], on_plan=lambda plan: heard.append(str(plan.num_networks)))
    assert heard == ["3", "trains", "trains", "trains"]
