"""The folder of a run: model, history, settings, pictures, checkpoint."""

from __future__ import annotations

import json
import os
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any

from warpfit.engines.base import Plan
from warpfit.files import ResultsFolder, atomic_path
from warpfit.pictures import confusion_svg, curves_svg
from warpfit.training.callbacks import Callback, CSVLog
from warpfit.training.history import History
from warpfit.training.run import Run
from warpfit.training.settings import CHECKPOINT_NAME, CONFIG_NAME, TrainSettings
from warpfit.training.trained import Score, TrainedModel


class RunFolder(Callback):
    """Makes the folder once `fit` has checked everything, and removes it if it stays empty.

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

    def __init__(self, path: str | os.PathLike[str], settings: TrainSettings) -> None:
        self._folder, self.settings = ResultsFolder(path), settings
        self.path = self._folder.path
        self.files: list[Path] = []

    def on_start(self, run: Run) -> None:
        resumed = self.settings.resume
        self._folder.make(
            goes_on=resumed is not None and Path(resumed).parent == self.path.resolve()
        )

    def on_epoch_end(self, run: Run) -> None:
        if (
            self.settings.checkpoint_every
        ):  # a checkpoint is of use only with the settings of its run
            self._write_settings(run.plan)

    def on_end(self, run: Run) -> None:
        self.on_epoch_end(run)
        if self.settings.checkpoint_every:
            self.files.append(self.path / CHECKPOINT_NAME)
        if run.history.reports:
            CSVLog(self._new("history.csv")).on_epoch_end(run)

    def close(self) -> None:
        self._folder.remove_if_empty()

    def write_results(
        self, title: str, trained: TrainedModel, history: History, test: Score | None
    ) -> None:
        """Write the model, the history, the settings and the pictures.

        Raises
        ------
        ConfigError
            If a file cannot be written.
        """
        trained.save(self._new("model.safetensors"))
        self._write_text("history.json", json.dumps(_report(history, test)) + "\n")
        self._write_settings(history.plan)
        title = title if test is None else f"{title}\n{_in_words(test)}"
        self._write_text("curves.svg", curves_svg(history.to_dict(), title))
        if test is not None and test.labels is not None and test.predicted is not None:
            matrix = (test.labels, test.predicted, trained.card.class_names, title)
            self._write_text("confusion.svg", confusion_svg(*matrix))

    def _write_settings(self, plan: Plan) -> None:
        device = ",".join(plan.devices) or plan.device
        settings = replace(
            self.settings, precision=plan.precision, device=device, engine=plan.engine
        )
        self._write_text(CONFIG_NAME, settings.to_toml())

    def _write_text(self, name: str, text: str) -> None:
        with atomic_path(self._new(name)) as temporary:
            temporary.write_text(text, encoding="utf-8")

    def _new(self, name: str) -> Path:
        path = self.path / name
        if path not in self.files:
            self.files.append(path)
        return path


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
