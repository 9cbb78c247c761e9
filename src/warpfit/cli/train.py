"""``warpfit train``."""

from __future__ import annotations

import sys
from time import perf_counter
from typing import TYPE_CHECKING, Annotated, Any

import typer

from warpfit.backends.base import PRECISIONS
from warpfit.cli.console import Printer, score_rows
from warpfit.cli.options import (
    DATA,
    NETWORK,
    OPTIMIZER,
    RESULTS,
    RUN,
    DataDir,
    Device,
    ImageSize,
    Integer,
    LabelColumn,
    LabelSmoothing,
    LossName,
    Model,
    Nesterov,
    Number,
    Out,
    Preprocess,
    Quiet,
    Seed,
    Task,
    Text,
    default_of,
    option,
    suggested,
    switch,
)
from warpfit.errors import ConfigError
from warpfit.training.callbacks import Callback
from warpfit.training.plan import ENGINES
from warpfit.training.progress import epoch_line
from warpfit.training.settings import (
    DEFAULT_BATCH,
    OPTIMIZERS,
    RECIPES,
    SCHEDULES,
    TrainSettings,
    default_folder,
    merged_settings,
)

if TYPE_CHECKING:
    from warpfit.training.jobs import Job, Outcome
    from warpfit.training.run import Run

__all__ = ["INTERRUPTED", "train"]

INTERRUPTED = 130
METHODS = ("realmlp", "tabm", "tabm_ple")
OF_METHODS = ("method", "folds", "ensemble", "time_limit")


def train(
    context: typer.Context,
    data: Annotated[
        Text,
        option(
            DATA,
            "NAME|PATH",
            "A known dataset (see `warpfit datasets`), an .npz file, a .csv file, or a folder of "
            "images with a sub-folder a class.",
            "mnist; digits without MNIST and network",
        ),
    ] = None,
    data_dir: DataDir = None,
    label_column: LabelColumn = None,
    task: Task = None,
    image_size: ImageSize = None,
    preprocess: Preprocess = None,
    limit: Annotated[
        Integer, option(DATA, "N", "Train on the first N rows only; 0 for all.")
    ] = None,
    method: Annotated[
        Text,
        option(
            NETWORK,
            "NAME",
            f"{' or '.join(METHODS)}: tuned networks for tables, in place of a model; all that is "
            "not asked for is the method's own.",
        ),
    ] = None,
    folds: Annotated[
        Integer,
        option(NETWORK, "N", "With --method: one network a fold of N, averaged."),
    ] = None,
    ensemble: Annotated[
        Integer, option(NETWORK, "N", "With --method: N networks with other seeds each time.")
    ] = None,
    time_limit: Annotated[
        Number, option(RUN, "S", "With --method: end after the epoch in which S seconds are over.")
    ] = None,
    recipe: Annotated[
        Text,
        option(
            NETWORK,
            "NAME",
            f"{' or '.join(RECIPES)}: a published network for small images with its optimizer, in "
            "place of a model; 8 epochs of batches of 2,000 of cifar10.",
        ),
    ] = None,
    model: Model = None,
    hidden: Annotated[
        Text,
        option(NETWORK, "N,N,...", "Widths of the hidden layers, or none.", "256; 128 for cnn"),
    ] = None,
    activation: Annotated[
        Text, option(NETWORK, "NAME", "relu, gelu, silu, tanh, ...", default_of("activation"))
    ] = None,
    dropout: Annotated[
        Number,
        option(NETWORK, "P", "Share of hidden units dropped while training.", "0; 0.5 for cnn"),
    ] = None,
    optimizer: Annotated[
        Text, option(OPTIMIZER, "NAME", f"{', '.join(OPTIMIZERS)}.", default_of("optimizer"))
    ] = None,
    lr: Annotated[Number, option(OPTIMIZER, "X", "Learning rate.", suggested("lr"))] = None,
    momentum: Annotated[
        Number, option(OPTIMIZER, "X", "Share of the last velocity kept.", suggested("momentum"))
    ] = None,
    nesterov: Nesterov = None,
    weight_decay: Annotated[
        Number,
        option(
            OPTIMIZER,
            "X",
            "Weight decay.",
            f"{suggested('weight_decay')}, 10 / rows for tables, else 0",
        ),
    ] = None,
    clip_norm: Annotated[
        Number, option(OPTIMIZER, "X", "Largest norm of all gradients together; 0 for any.")
    ] = None,
    schedule: Annotated[
        Text,
        option(
            OPTIMIZER,
            "NAME",
            f"Of the learning rate: {', '.join(SCHEDULES)}.",
            default_of("schedule"),
        ),
    ] = None,
    warmup_epochs: Annotated[
        Number,
        option(OPTIMIZER, "X", "Epochs of linear rise, for cosine.", default_of("warmup_epochs")),
    ] = None,
    loss: LossName = None,
    label_smoothing: LabelSmoothing = None,
    epochs: Annotated[
        Integer,
        option(
            RUN,
            "N",
            "Passes over the data.",
            "5, 10 for cnn; more for small data: 1,000 steps, at most 100",
        ),
    ] = None,
    batch_size: Annotated[
        Integer, option(RUN, "N", "Rows a step.", f"{DEFAULT_BATCH}; 2000 with --recipe")
    ] = None,
    precision: Annotated[
        Text,
        option(
            RUN,
            "NAME",
            f"auto, {', '.join(PRECISIONS)}; the last three on a GPU. auto is float16 or bfloat16 "
            "for the engines one_launch and graph, as the data needs, and float32 for layerwise.",
            default_of("precision"),
        ),
    ] = None,
    device: Device = None,
    engine: Annotated[
        Text,
        option(
            RUN,
            "NAME",
            f"auto, {', '.join(ENGINES)}. auto is one_launch on a GPU where that can run the "
            "network, else graph, and layerwise on the CPU; what is printed says why.",
            default_of("engine"),
        ),
    ] = None,
    seed: Seed = None,
    early_stopping: Annotated[
        Integer,
        option(
            RUN,
            "N",
            "Stop after N epochs without a better validation loss, and keep the best weights. A "
            "tenth of the training rows is held out for it.",
        ),
    ] = None,
    checkpoint_every: Annotated[
        Integer, option(RUN, "N", "Write a checkpoint every N epochs, and on Ctrl-C.")
    ] = None,
    resume: Annotated[
        Text,
        option(
            RUN,
            "PATH",
            "Go on from a checkpoint, with the settings beside it where no --config is given.",
        ),
    ] = None,
    new_data: Annotated[
        bool | None,
        switch(
            RUN, "--new-data", "Go on from the checkpoint of --resume although the data are others."
        ),
    ] = None,
    config: Annotated[
        Text,
        option(
            RUN, "FILE", "Settings in TOML, by the names of these options, which win over the file."
        ),
    ] = None,
    out: Out = None,
    profile: Annotated[
        bool | None,
        switch(
            RESULTS,
            "--profile",
            "Write trace.json, for ui.perfetto.dev, and NVTX ranges for Nsight Systems.",
        ),
    ] = None,
    quiet: Quiet = None,
) -> None:
    """Train a network, test it, and write model, history and pictures into a folder."""
    flags = dict(context.params)
    if method is not None:
        _train_table(flags)
        return
    for name in OF_METHODS:
        if flags.pop(name) is not None:
            raise ConfigError(f"expected --{name.replace('_', '-')} with --method, got no method")
    settings = merged_settings(flags, flags.pop("config"))

    printer = Printer(quiet=settings.quiet)

    job = _prepared(settings)
    outcome = job.run(
        settings.out or default_folder(),
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
    stored, test, files = job.run(flags["out"] or default_folder())
    seconds = perf_counter() - start
    members = stored.estimator.members_
    rows = [("networks", f"{len(members)}"), ("epochs", f"{sum(len(m.losses) for m in members)}")]
    rows += score_rows(test, "test ") if test is not None else []
    printer.line()
    printer.pairs([*rows, ("seconds", f"{seconds:.2f}")])
    printer.line()
    printer.lines(map(str, files))


class _Narrator(Callback):
    """Prints what is trained and how; and a line an epoch into a log, which does not get the
    progress bar's.
    """

    needs_run = False

    def __init__(self, printer: Printer, asked: TrainSettings, job: Job) -> None:
        self.printer, self.asked, self.job = printer, asked, job

    def on_start(self, run: Run) -> None:
        line, job, settings, plan = self.printer.line, self.job, self.job.settings, run.plan
        if self.asked.data is None and settings.data != "mnist":
            line(
                f"MNIST was not found and could not be downloaded: training on {settings.data} "
                "instead."
            )
        self.printer.fallback(settings.device, plan.device)
        line(str(job.dataset), style="bold")
        self.printer.lines(job.trained.card.notes(job.dataset))
        line(job.trained.model.summary(job.trained.card.network_shape))
        line(job.how)
        line(f"validation: {job.validation_source}")
        line(
            f"{plan.engine} on {plan.device} in {plan.precision}, {plan.bytes / 2**20:,.0f} MiB: "
            f"{plan.reason}"
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
    rows = [
        (
            "epochs",
            f"{len(history)}"
            + ("" if history.stopped_by == "epochs" else f" ({history.stopped_by})"),
        )
    ]
    if outcome.test is not None:
        rows += score_rows(outcome.test, "test ")
    else:
        rows.append(("test accuracy", "none, as there are no rows to test on"))
    rows.append(("seconds", f"{seconds:.2f}"))
    rows.append(("samples/s", f"{num_rows / seconds:,.0f}"))
    printer.line()
    printer.pairs(rows)
    printer.line()
    for path in sorted(outcome.folder.files):
        printer.line(str(path))
    for note in outcome.notes:
        printer.line(note)
