"""A sweep from its settings to its folder of results."""

from __future__ import annotations

import csv
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import numpy.typing as npt

from warpfit.backends import first_device
from warpfit.data import Dataset
from warpfit.files import ResultsFolder, atomic_path
from warpfit.plots import NO_PICTURES, has_matplotlib, save_figure
from warpfit.sweep.candidates import Candidate, value_text
from warpfit.sweep.fit_many import fit_many
from warpfit.sweep.planning import SweepPlan
from warpfit.sweep.records import Record, Sweep
from warpfit.sweep.settings import SweepSettings
from warpfit.training.callbacks import EarlyStopping
from warpfit.training.jobs import hold_out, model_card, num_outputs, opened, resolved_for
from warpfit.training.recipes import make_loss, make_model, make_optimizer
from warpfit.training.settings import TrainSettings
from warpfit.training.trained import ModelCard, Score, TrainedModel

Rows = tuple[npt.NDArray[Any], npt.NDArray[Any]]

TABLE, PICTURE, BEST, MODEL = "sweep.csv", "sweep.png", "best.toml", "model.safetensors"


@dataclass
class SweepOutcome:
    """The results of a sweep, the best model's test (None with folds), and its files."""

    sweep: Sweep
    test: Score | None = None
    files: list[Path] = field(default_factory=list)
    missing: str | None = None


@dataclass(frozen=True)
class SweepJob:
    """A sweep that is ready to run."""

    settings: SweepSettings
    dataset: Dataset  # with the training rows, less those held out for validation
    validation: Rows | None  # (x, y): rows held out from the training set; None with folds
    card: ModelCard  # what the data are to every network

    def resolved(self, candidate: Candidate) -> TrainSettings:
        """Return the settings of a candidate with nothing left open; all train as long, unless they
        say otherwise.
        """
        epochs = candidate.get("epochs", resolved_for(self.settings.base, self.dataset).epochs)
        return resolved_for(replace(self.settings.of(candidate), epochs=epochs), self.dataset)

    @property
    def validation_source(self) -> str:
        """Where the validation rows come from, in a few words."""
        if self.validation is None:
            return f"{self.settings.folds} folds of the training set"
        return f"{len(self.validation[0]):,} rows of the training set"

    def run(self, folder: str | Path, on_plan: Callable[[SweepPlan], None]) -> SweepOutcome:
        """Train all networks, test the best one, and write the results into a folder.

        The folder is made, and `on_plan` called, when `fit_many` has checked its arguments.

        Raises
        ------
        WarpfitError
            As `fit_many`; ConfigError if the folder cannot be written to.
        """
        results = ResultsFolder(folder)

        def start(plan: SweepPlan) -> None:
            results.make()
            on_plan(plan)

        try:
            outcome = SweepOutcome(self._sweep(start))
            self._write(results.unfinished, outcome)
            outcome.files = results.publish()
            self._draw(results.unfinished, outcome)  # for which nothing is lost
            outcome.files += results.publish()
        finally:
            results.end()
        return outcome

    def _sweep(self, on_plan: Callable[[SweepPlan], None]) -> Sweep:
        """Train all networks."""
        base, first = self.settings.base, self.resolved({})
        card = self.card
        loss = make_loss(first)
        outputs = num_outputs(self.dataset, loss)

        def build(candidate: Candidate) -> Any:
            settings = self.resolved(candidate)
            model = make_model(settings, card.network_shape, outputs)
            return model, make_optimizer(settings, model)

        return fit_many(
            build,
            card.inputs(self.dataset.x_train),
            card.targets(self.dataset.y_train),
            candidates=self.settings.candidates(),
            folds=self.settings.folds or None,
            loss=loss,
            epochs=first.epochs or 1,
            batch_size=first.batch_size or 1,
            validation_data=self.validation
            and (card.inputs(self.validation[0]), card.targets(self.validation[1])),
            metric=self.settings.metric,
            halving=self.settings.halving,
            device=base.devices,
            precision=base.precision,
            engine=base.engine,
            seed=base.seed,
            callbacks=[EarlyStopping(patience=base.early_stopping)] if base.early_stopping else [],
            n_jobs=self.settings.jobs,
            keep_models=False,
            on_plan=on_plan,
            verbose=not base.quiet,
        )

    def _write(self, folder: Path, outcome: SweepOutcome) -> None:
        sweep = outcome.sweep
        _write_csv(folder / TABLE, sweep.rows())
        if any(record["rank"] == 1 for record in sweep):
            self._write_best(folder, outcome)

    def _draw(self, folder: Path, outcome: SweepOutcome) -> None:
        if not has_matplotlib():
            outcome.missing = NO_PICTURES
            return
        sweep = outcome.sweep
        figure = sweep.plot(title=f"{self.dataset.name}, {len(sweep):,} networks")
        save_figure(figure, folder / PICTURE)

    def _write_best(self, folder: Path, outcome: SweepOutcome) -> None:
        """Write the best candidate's settings, for ``warpfit train``, and without folds its
        model.
        """
        settings = self.resolved(outcome.sweep.best_candidate)
        settings = replace(settings, device=first_device(settings.devices))
        with atomic_path(folder / BEST) as temporary:
            temporary.write_text(settings.to_toml(), encoding="utf-8")
        if self.settings.folds:
            return
        trained = TrainedModel(outcome.sweep.best_model, self.card)  # type: ignore[arg-type]
        trained.save(folder / MODEL)
        if len(self.dataset.x_test):
            outcome.test = trained.test_on(self.dataset)


def _write_csv(path: Path, rows: Sequence[Record]) -> None:
    with atomic_path(path) as temporary, temporary.open("w", encoding="utf-8", newline="") as file:
        writer = csv.DictWriter(file, list(rows[0]), lineterminator="\n")
        writer.writeheader()
        writer.writerows({name: _cell(value) for name, value in row.items()} for row in rows)


def _cell(value: Any) -> Any:
    return value_text(value) if isinstance(value, tuple) else value


def prepare_sweep(settings: SweepSettings) -> SweepJob:
    """Return the job that settings describe: data loaded, nothing trained, nothing written.

    Raises
    ------
    ConfigError, DataError, ShapeError
        If settings and data do not go together, or the data cannot be had.
    """
    base, dataset = opened(settings.base)
    settings = replace(settings, base=base)
    validation: Rows | None = None
    if not settings.folds:
        dataset, validation = hold_out(dataset, base.seed)
    card = model_card(resolved_for(base, dataset), dataset)
    job = SweepJob(settings, dataset, validation, card)
    for candidate in settings.candidates():
        job.resolved(candidate)
    return job
