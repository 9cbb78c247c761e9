"""How far a run is: a line that moves, on a terminal or in a notebook, else a line an epoch."""

from __future__ import annotations

import sys
from time import monotonic
from typing import Any

from warpfit.display import SECONDS_BETWEEN_UPDATES, LiveLine, is_notebook
from warpfit.engines.base import EpochReport
from warpfit.training.callbacks import Callback
from warpfit.training.run import Run


def epoch_line(report: EpochReport, epochs: int) -> str:
    """Return an epoch's report in one line."""
    parts = [f"epoch {report.epoch}/{epochs}", f"loss {report.loss:.4f}"]
    if report.accuracy is not None:
        parts.append(f"accuracy {report.accuracy:.2%}")
    if report.val_loss is not None:
        parts.append(f"val loss {report.val_loss:.4f}")
    if report.val_accuracy is not None:
        parts.append(f"val accuracy {report.val_accuracy:.2%}")
    parts += [
        f"{column.replace('_', ' ')} {value:.4f}"
        for column, value in report.metrics.items()
        if value is not None
    ]
    seconds = report.seconds
    time = f"{seconds:.2f} s" if seconds >= 0.1 else f"{1000 * seconds:.1f} ms"
    parts.append(f"{time}, {report.samples_per_second:,.0f} samples/s")
    return "  ".join(parts)


def progress() -> Callback:
    """Return what shows a run where standard error, or a notebook, is read."""
    if sys.stderr.isatty():
        return ProgressBar()
    return NotebookLine() if is_notebook() else EpochLines()


class EpochLines(Callback):
    """A plain line on standard error for every epoch done."""

    needs_run = False

    def on_epoch_end(self, run: Run) -> None:
        print(epoch_line(run.report, run.plan.epochs), file=sys.stderr, flush=True)


class NotebookLine(Callback):
    """One line below the cell, which moves through the epochs and keeps the last report."""

    needs_run = False

    def __init__(self) -> None:
        self._line = LiveLine()
        self._epoch = self._epochs = 0
        self._text = ""

    def on_start(self, run: Run) -> None:
        self._epoch, self._epochs = run.state.epoch, run.plan.epochs
        self._text = f"epoch {self._epoch}/{self._epochs}"
        self._line.show(self._epoch / max(1, self._epochs), self._text)

    def on_step(self, step: int, steps_per_epoch: int) -> None:
        self._epoch += step == 1  # not every epoch need be reported
        self._line.show((self._epoch - 1 + step / steps_per_epoch) / self._epochs, self._text)

    def on_epoch_end(self, run: Run) -> None:
        self._epoch, self._text = run.report.epoch, epoch_line(run.report, self._epochs)
        self._line.show(self._epoch / self._epochs, self._text)

    def close(self) -> None:
        self._line.flush()


class ProgressBar(Callback):
    """One line that moves through the epoch, and one line that stays for every epoch done."""

    needs_run = False

    def __init__(self) -> None:
        self._progress: Any = None
        self._task: Any = None
        self._last_update = 0.0
        self._epoch = self._epochs = 0

    def on_start(self, run: Run) -> None:
        from rich.console import Console
        from rich.progress import (
            BarColumn,
            MofNCompleteColumn,
            Progress,
            TextColumn,
            TimeElapsedColumn,
        )

        self._epoch, self._epochs = run.state.epoch, run.plan.epochs
        self._progress = Progress(
            TextColumn("[progress.description]{task.description}"),
            BarColumn(),
            MofNCompleteColumn(),
            TextColumn("steps"),
            TimeElapsedColumn(),
            console=Console(stderr=True),
            transient=True,
        )
        self._task = self._progress.add_task(self._title(run.state.epoch + 1), total=None)
        self._progress.start()

    def on_step(self, step: int, steps_per_epoch: int) -> None:
        self._epoch += step == 1  # not every epoch need be reported
        if monotonic() - self._last_update > SECONDS_BETWEEN_UPDATES:
            self._last_update = monotonic()
            self._progress.update(
                self._task,
                description=self._title(self._epoch),
                completed=step,
                total=steps_per_epoch,
            )

    def on_epoch_end(self, run: Run) -> None:
        self._epoch = run.report.epoch
        self._progress.console.print(epoch_line(run.report, self._epochs), soft_wrap=True)
        self._progress.reset(self._task, description=self._title(self._epoch + 1), total=None)

    def close(self) -> None:
        if self._progress is not None:
            self._progress.stop()
            self._progress = None

    def _title(self, epoch: int) -> str:
        return f"epoch {min(epoch, self._epochs)}/{self._epochs}"
