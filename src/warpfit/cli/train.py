"""``warpfit train``."""

from __future__ import annotations

import sys
from time import perf_counter
from typing import TYPE_CHECKING, Any

import typer

from warpfit.cli.console import Printer, score_rows
from warpfit.cli.options import (
    NETWORK,
    OF_TRAINING,
    OPTIMIZER,
    RESULTS,
    RUN,
    option,
    switch,
    taking,
)
from warpfit.errors import ConfigError
from warpfit.training.callbacks import Callback
from warpfit.training.progress import epoch_line
from warpfit.training.settings import RECIPES, TrainSettings, merged_settings, own_folder

if TYPE_CHECKING:
    from warpfit.training.jobs import Job, Outcome
    from warpfit.training.run import Run

INTERRUPTED = 130
METHODS = ("realmlp", "tabm", "tabm_ple")
OF_METHODS = ("method", "folds", "ensemble", "time_limit")


OPTIONS = {
    **OF_TRAINING,
    "method": option(
        NETWORK,
        "NAME",
        f"{' or '.join(METHODS)}: tuned networks for tables, in place of a model; all that is not "
        "asked for is the method's own.",
    ),
    "folds": option(NETWORK, "N", "With --method: one network a fold of N, averaged."),
    "ensemble": option(NETWORK, "N", "With --method: N networks with other seeds each time."),
    "time_limit": option(
        RUN, "S", "With --method: end after the epoch in which S seconds are over."
    ),
    "recipe": option(
        NETWORK,
        "NAME",
        f"{' or '.join(RECIPES)}: a published network for small images with its optimizer, in "
        "place of a model; 8 epochs of batches of 2,000 of cifar10.",
    ),
    "warmup_epochs": option(
        OPTIMIZER, "X", "Epochs of linear rise, for cosine.", str(TrainSettings.warmup_epochs)
    ),
    "checkpoint_every": option(RUN, "N", "Write a checkpoint every N epochs, and on Ctrl-C."),
    "resume": option(
        RUN,
        "PATH",
        "Go on from a checkpoint, with the settings beside it where no --config is given.",
    ),
    "new_data": switch(
        RUN, "--new-data", "Go on from the checkpoint of --resume although the data are others."
    ),
    "config": option(
        RUN, "FILE", "Settings in TOML, by the names of these options, which win over the file."
    ),
    "profile": switch(
        RESULTS,
        "--profile",
        "Write trace.json, for ui.perfetto.dev, and NVTX ranges for Nsight Systems.",
    ),
}


@taking(OPTIONS)
def train(**flags: Any) -> None:
    """Train a network, test it, and write model, history and pictures into a folder."""
    if flags["method"] is not None:
        _train_table(flags)
        return
    for name in OF_METHODS:
        if flags.pop(name) is not None:
            raise ConfigError(f"expected --{name.replace('_', '-')} with --method, got no method")
    settings = merged_settings(flags, flags.pop("config"))
    printer, job = Printer(quiet=settings.quiet), _prepared(settings)
    with own_folder(settings.out) as folder:
        outcome = job.run(
            folder,
            [_Narrator(printer, settings, job)],
            verbose=not settings.quiet and sys.stderr.isatty(),
        )
    _print_outcome(printer, outcome)
    if outcome.history.stopped_by == "interrupt":
        raise typer.Exit(INTERRUPTED)


def _prepared(settings: TrainSettings) -> Job:
    if settings.recipe is not None:
        from warpfit.training import recipe_jobs

        return recipe_jobs.prepare(settings)
    from warpfit.training import jobs

    return jobs.prepare(settings)


def _train_table(flags: dict[str, Any]) -> None:
    """Train by a method for tables, and say what came of it."""
    from warpfit.tabular.jobs import prepare

    quiet = bool(flags["quiet"])
    printer, job = Printer(quiet=quiet), prepare(flags)
    job.estimator.set_params(verbose=not quiet)
    printer.line(str(job.dataset), style="bold")
    printer.lines(job.dataset.notes)
    start = perf_counter()
    with own_folder(flags["out"]) as folder:
        stored, test, files = job.run(folder)
    seconds = perf_counter() - start
    members = stored.estimator.members_
    rows = [("networks", f"{len(members)}"), ("epochs", f"{sum(len(m.losses) for m in members)}")]
    rows += score_rows(test, "test ") if test is not None else []
    printer.line()
    printer.pairs([*rows, ("seconds", f"{seconds:.2f}")])
    printer.line()
    printer.lines(map(str, files))


class _Narrator(Callback):
    """Prints what is trained and how, and a line an epoch into a log, which has no progress bar."""

    needs_run = False

    def __init__(self, printer: Printer, asked: TrainSettings, job: Job) -> None:
        self.printer, self.asked, self.job = printer, asked, job

    def on_start(self, run: Run) -> None:
        line, job, settings, plan = self.printer.line, self.job, self.job.settings, run.plan
        self.printer.stand_in(self.asked.data, job.dataset.name)
        self.printer.fallback(settings.device, plan.device)
        line(str(job.dataset), style="bold")
        self.printer.lines(job.trained.card.notes(job.dataset))
        line(job.trained.model.summary(job.trained.card.network_shape))
        line(job.how)
        line(f"validation: {job.validation_source}")
        line(
            f"{plan.engine} on {', '.join(plan.devices) or plan.device} in {plan.precision}, "
            f"{plan.bytes / 2**20:,.0f} MiB: {plan.reason}"
        )

    def on_epoch_end(self, run: Run) -> None:
        if sys.stdout.isatty() and sys.stderr.isatty():
            return
        self.printer.line(epoch_line(run.report, run.plan.epochs))


def _print_outcome(printer: Printer, outcome: Outcome) -> None:
    history = outcome.history
    if not len(history):
        printer.line("interrupted before the first epoch was over")
        return
    seconds, num_rows = sum(history["seconds"]), sum(history["num_rows"])
    why = "" if history.stopped_by == "epochs" else f" ({history.stopped_by})"
    rows = [("epochs", f"{len(history)}{why}")]
    if outcome.test is not None:
        rows += score_rows(outcome.test, "test ")
    else:
        rows.append(("test accuracy", "none, as there are no rows to test on"))
    rows.append(("seconds", f"{seconds:.2f}"))
    rows.append(("samples/s", f"{num_rows / seconds:,.0f}"))
    printer.line()
    printer.pairs(rows)
    printer.line()
    printer.lines(map(str, sorted(outcome.folder.files)))
    printer.lines(outcome.notes)
