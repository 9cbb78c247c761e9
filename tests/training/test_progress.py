"""Progress: on a terminal a bar that is gone when the run is over, however it ends; in logs a line
an epoch.
"""

from __future__ import annotations

import io
import re
import threading
from contextlib import redirect_stderr
from types import SimpleNamespace
from typing import Any

import pytest

import warpfit as wf
from support.training import InterruptAt, adam, blobs, mlp, sgd
from warpfit import nn
from warpfit.errors import DivergedError
from warpfit.training import progress

X, LABELS = blobs(60)
SHOW_CURSOR = "\x1b[?25h"
HIDE_CURSOR = "\x1b[?25l"


class Terminal(io.StringIO):
    """Keeps what is written, and says that it is a terminal."""

    def isatty(self) -> bool:
        return True

    def text(self) -> str:
        """Return what was written, without colours and other control sequences."""
        return re.sub(r"\x1b\[[\d;?]*[A-Za-z]", "", self.getvalue())


@pytest.fixture
def terminal(monkeypatch: pytest.MonkeyPatch) -> Terminal:
    monkeypatch.setenv("TERM", "xterm")
    monkeypatch.setenv("COLUMNS", "150")
    monkeypatch.setattr(progress, "SECONDS_BETWEEN_UPDATES", 0)
    return Terminal()


def fit(terminal: io.StringIO, model: nn.Module | None = None, **settings: Any) -> wf.History:
    model = model or mlp(6, 3)
    settings = {"optimizer": adam(model), "epochs": 3, "batch_size": 16, **settings}
    with redirect_stderr(terminal):
        return wf.fit(model, X, LABELS, **settings)


def assert_gone(terminal: Terminal) -> None:
    text = terminal.getvalue()
    assert text.count(HIDE_CURSOR) == text.count(SHOW_CURSOR) == 1
    assert text.rindex(SHOW_CURSOR) > text.index(HIDE_CURSOR)
    for thread in threading.enumerate():
        if "Refresh" in type(thread).__name__:
            thread.join(timeout=10)
            assert not thread.is_alive()


def test_a_log_gets_a_plain_line_an_epoch() -> None:
    log = io.StringIO()
    history = fit(log, epochs=4, report_every=2)
    assert log.getvalue() == "".join(f"{progress.epoch_line(r, 4)}\n" for r in history)
    assert [line[:9] for line in log.getvalue().splitlines()] == ["epoch 2/4", "epoch 4/4"]


def test_a_log_gets_no_line_if_asked() -> None:
    log = io.StringIO()
    fit(log, verbose=False)
    assert log.getvalue() == ""


def test_it_is_silent_if_asked(terminal: Terminal) -> None:
    fit(terminal, verbose=False)
    assert terminal.getvalue() == ""


def test_every_epoch_leaves_a_line(terminal: Terminal, capfd: pytest.CaptureFixture[str]) -> None:
    history = fit(terminal, validation_data=(X, LABELS))
    text = terminal.text()
    for report in history:
        assert f"epoch {report.epoch}/3  loss {report.loss:.4f}  accuracy" in text
    for part in ("val loss", "val accuracy", "samples/s", "steps"):
        assert part in text
    assert_gone(terminal)
    assert capfd.readouterr().out == ""


def test_what_is_not_known_is_left_out(terminal: Terminal) -> None:
    model = mlp(6, 1)
    fit(terminal, model, loss="mse", epochs=1)
    assert "epoch 1/1  loss" in terminal.text()
    assert "accuracy" not in terminal.text()
    assert "val" not in terminal.text()


def test_steps_are_counted(terminal: Terminal) -> None:
    bars = []

    class Watcher(wf.Callback):
        def on_step(self, step: int, steps_per_epoch: int) -> None:
            (task,) = bar._progress.tasks
            bars.append((task.description, task.completed, task.total))

    bar = progress.ProgressBar()
    fit(terminal, callbacks=[bar, Watcher()], verbose=False, report_every=2)
    assert bars == [(f"epoch {epoch}/3", step, 4) for epoch in (1, 2, 3) for step in (1, 2, 3, 4)]
    assert_gone(terminal)


def test_a_resumed_run_counts_from_where_it_was(terminal: Terminal, tmp_path: Any) -> None:
    fit(terminal, epochs=1, callbacks=[wf.Checkpoint(tmp_path / "run")], verbose=False)
    fit(terminal, resume_from=tmp_path / "run")
    assert "epoch 1/3  loss" not in terminal.text()
    assert "epoch 2/3  loss" in terminal.text()


def test_it_is_gone_after_an_interrupt(terminal: Terminal) -> None:
    fit(terminal, callbacks=[InterruptAt(6)])
    assert_gone(terminal)


def test_it_is_gone_after_divergence(terminal: Terminal) -> None:
    model = mlp(6, 3)
    with pytest.raises(DivergedError):
        fit(terminal, model, optimizer=sgd(model, 1e38))
    assert_gone(terminal)


def shown(monkeypatch: pytest.MonkeyPatch, *, seconds: float) -> list[str]:
    """Return what a notebook shows of a run of 3 epochs, the last line last, if it is replaced
    every so many seconds.
    """
    IPython = pytest.importorskip("IPython")
    texts: list[str] = []

    class Handle:
        def update(self, bundle: dict[str, str], *, raw: bool) -> None:
            texts.append(bundle["text/html"])

    def display(bundle: dict[str, str], *, raw: bool, display_id: bool) -> Handle:
        texts.append(bundle["text/html"])
        return Handle()

    monkeypatch.setattr(IPython.display, "display", display)
    monkeypatch.setattr(IPython, "get_ipython", lambda: SimpleNamespace(kernel=object()))
    monkeypatch.setattr("warpfit.display.SECONDS_BETWEEN_UPDATES", seconds)
    log = io.StringIO()
    fit(log)
    assert log.getvalue() == ""
    return texts


def test_a_notebook_has_a_line_that_moves(monkeypatch: pytest.MonkeyPatch) -> None:
    texts = shown(monkeypatch, seconds=0)
    shares = [float(re.findall(r'value="([^"]*)"', text)[0]) for text in texts]
    steps = [step / 12 for step in range(1, 13)]
    expected = sorted([0, *steps, *steps[3::4]])
    assert shares == pytest.approx(expected, abs=1e-4)
    assert "epoch 0/3" in texts[0]
    assert "epoch 3/3  loss" in texts[-1]


def test_a_notebooks_line_is_not_replaced_all_the_time(monkeypatch: pytest.MonkeyPatch) -> None:
    texts = shown(monkeypatch, seconds=600)
    assert len(texts) == 2
    assert "epoch 3/3  loss" in texts[-1]


@pytest.mark.parametrize("moment", ["on_start", "on_step", "on_epoch_end", "on_end"])
def test_it_is_gone_after_an_error_in_a_callback(terminal: Terminal, moment: str) -> None:
    class Broken(wf.Callback):
        pass

    def fail(*_: Any) -> None:
        raise RuntimeError("a user's own error")

    setattr(Broken, moment, fail)
    with pytest.raises(RuntimeError, match="a user's own error"):
        fit(terminal, callbacks=[progress.ProgressBar(), Broken()], verbose=False)
    assert_gone(terminal)
