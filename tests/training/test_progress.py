"""The progress bar: on a terminal only, and gone when the run is over, however it ends."""

from __future__ import annotations

import io
import re
import threading
from contextlib import redirect_stderr
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


def test_it_is_silent_where_there_is_no_terminal() -> None:
    no_terminal = io.StringIO()
    fit(no_terminal)
    assert no_terminal.getvalue() == ""


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
