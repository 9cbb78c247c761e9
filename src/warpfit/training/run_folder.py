"""The folder of a run: model, history, settings, pictures, checkpoint."""

from __future__ import annotations

import json
from collections.abc import Iterable
from contextlib import suppress
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any

from warpfit.engines.base import Plan
from warpfit.errors import ConfigError
from warpfit.files import PathLike, ResultsFolder, atomic_path
from warpfit.pictures import confusion_svg, curves_svg
from warpfit.training.callbacks import Callback, CSVLog
from warpfit.training.history import History
from warpfit.training.run import Run
from warpfit.training.settings import CHECKPOINT_NAME, CONFIG_NAME, TRACE_NAME, TrainSettings
from warpfit.training.trained import Score, TrainedModel

# What a run writes when it has ended, beside its settings.
RESULTS = (
    "model.safetensors",
    "history.csv",
    "history.json",
    "curves.svg",
    "confusion.svg",
    TRACE_NAME,
)


class RunFolder(Callback):
    """Makes the folder once `fit` has checked everything, and removes it if it stays empty.

    Results take their places together, at the end. Those of a run that goes on in its own folder
    stay until it has a checkpoint of its own.

    Parameters
    ----------
    path : path of the folder
    settings : TrainSettings
        Resolved; the plan's precision, device and engine are added.

    Attributes
    ----------
    files : list of Path
        The files written.
    """

    needs_run = False
    writes_file = True

    def __init__(self, path: PathLike, settings: TrainSettings) -> None:
        self._folder, self.settings = ResultsFolder(path), settings
        self.path = self._folder.path
        self.unfinished = self._folder.unfinished
        self.files: list[Path] = []
        self._goes_on = False
        self._plan: Plan | None = None
        self._old_checkpoint: tuple[int, int] | None = None

    def on_start(self, run: Run) -> None:
        resumed = self.settings.resume
        self._goes_on = resumed is not None and Path(resumed).parent == self.path.resolve()
        self._folder.make(goes_on=self._goes_on)
        self._old_checkpoint = self._checkpoint()

    def on_epoch_end(self, run: Run) -> None:
        self._plan = run.plan
        # A checkpoint is of use only with the settings of its run.
        if not self.settings.checkpoint_every:
            return
        if self._goes_on:
            if self._checkpoint() == self._old_checkpoint:
                return
            self._remove(RESULTS)
        self._write_settings(self.path, run.plan)
        self._folder.own.add(CONFIG_NAME)

    def on_end(self, run: Run) -> None:
        self.on_epoch_end(run)
        if run.history.reports:
            CSVLog(self.unfinished / "history.csv").on_epoch_end(run)

    def end(self) -> None:
        """Take away what is of no use without results or a checkpoint."""
        checkpoint = self._checkpoint()
        if self._goes_on and self._plan and not self.files and checkpoint != self._old_checkpoint:
            self._remove(RESULTS)
            with suppress(ConfigError):  # there is an error already
                self._write_settings(self.path, self._plan)
        elif CONFIG_NAME in self._folder.own and not (self.files or checkpoint):
            self._remove([CONFIG_NAME])
        self._folder.end()

    def _checkpoint(self) -> tuple[int, int] | None:
        """Return what tells a checkpoint in the folder from others; None if there is none."""
        try:
            found = (self.path / CHECKPOINT_NAME).stat()
        except OSError:
            return None
        return found.st_ino, found.st_mtime_ns

    def _remove(self, names: Iterable[str]) -> None:
        for name in names:
            (self.path / name).unlink(missing_ok=True)

    def write_results(
        self, title: str, trained: TrainedModel, history: History, test: Score | None
    ) -> None:
        """Write the model, the history, the settings and the pictures.

        Raises
        ------
        ConfigError
            If a file cannot be written.
        """
        folder = self.unfinished
        trained.save(folder / "model.safetensors")
        _write_text(folder / "history.json", json.dumps(_report(history, test)) + "\n")
        self._write_settings(folder, history.plan)
        self.files = self._folder.publish()
        self._remove({*RESULTS} - {file.name for file in self.files})
        self._draw(folder, title, trained, history, test)
        self.files += self._folder.publish()
        if self.settings.checkpoint_every:
            self.files.append(self.path / CHECKPOINT_NAME)

    def _draw(
        self, folder: Path, title: str, trained: TrainedModel, history: History, test: Score | None
    ) -> None:
        """Write the pictures: what has come so far is not lost for them."""
        title = title if test is None else f"{title}\n{_in_words(test)}"
        _write_text(folder / "curves.svg", curves_svg(history.to_dict(), title))
        if test is not None and test.labels is not None and test.predicted is not None:
            matrix = (test.labels, test.predicted, trained.card.class_names, title)
            _write_text(folder / "confusion.svg", confusion_svg(*matrix))

    def _write_settings(self, folder: Path, plan: Plan) -> None:
        device = ",".join(plan.devices) or plan.device
        settings = replace(
            self.settings, precision=plan.precision, device=device, engine=plan.engine
        )
        _write_text(folder / CONFIG_NAME, settings.to_toml())


def _write_text(path: Path, text: str) -> None:
    with atomic_path(path) as temporary:
        temporary.write_text(text, encoding="utf-8")


def _report(history: History, test: Score | None) -> dict[str, Any]:
    report: dict[str, Any] = {"stopped_by": history.stopped_by, "epochs": history.to_dict()}
    if test is not None:
        evaluation = test.evaluation
        report["test"] = {"loss": evaluation.loss, "rows": evaluation.num_rows}
        if evaluation.accuracy is not None:
            report["test"]["accuracy"] = evaluation.accuracy
        if test.regression is not None:
            report["test"] |= asdict(test.regression)
    return report


def _in_words(test: Score) -> str:
    evaluation = test.evaluation
    if test.regression is not None and test.regression.r2 is not None:
        return f"R² {test.regression.r2:.4f} on {evaluation.num_rows:,} test rows"
    if evaluation.accuracy is None:
        return f"loss {evaluation.loss:.4g} on {evaluation.num_rows:,} test rows"
    return f"{evaluation.accuracy:.2%} of {evaluation.num_rows:,} test rows right"
