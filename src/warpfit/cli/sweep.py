"""``warpfit sweep``."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated

import typer

from warpfit.backends.base import PRECISIONS
from warpfit.cli.console import Printer, percent, r_squared
from warpfit.cli.options import (
    DATA,
    NETWORK,
    OPTIMIZER,
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
)
from warpfit.cli.train import INTERRUPTED
from warpfit.errors import ConfigError
from warpfit.training.plan import ENGINES
from warpfit.training.settings import DEFAULT_BATCH, OPTIMIZERS, SCHEDULES, default_folder

if TYPE_CHECKING:
    from warpfit.sweep.jobs import SweepJob, SweepOutcome
    from warpfit.sweep.planning import SweepPlan

__all__ = ["sweep"]

FAILED = 1
SWEEP = "Sweep"


def sweep(
    context: typer.Context,
    data: Annotated[
        Text,
        option(
            DATA, "NAME|PATH", "As for `warpfit train`.", "mnist; digits without MNIST and network"
        ),
    ] = None,
    data_dir: DataDir = None,
    label_column: LabelColumn = None,
    task: Task = None,
    image_size: ImageSize = None,
    preprocess: Preprocess = None,
    limit: Annotated[
        Integer, option(DATA, "N", "Use the first N training rows only; 0 for all.")
    ] = None,
    model: Model = None,
    hidden: Annotated[
        Text,
        option(
            NETWORK,
            "N-N,...",
            "Widths of the hidden layers, as 64,128-64, or none.",
            "256; 128 for cnn",
        ),
    ] = None,
    activation: Annotated[
        Text, option(NETWORK, "NAME,...", "relu, gelu, silu, tanh, ...", default_of("activation"))
    ] = None,
    dropout: Annotated[
        Text,
        option(NETWORK, "P,...", "Share of hidden units dropped while training.", "0; 0.5 for cnn"),
    ] = None,
    optimizer: Annotated[
        Text, option(OPTIMIZER, "NAME,...", f"{', '.join(OPTIMIZERS)}.", default_of("optimizer"))
    ] = None,
    lr: Annotated[Text, option(OPTIMIZER, "X,...", "Learning rate.", suggested("lr"))] = None,
    momentum: Annotated[
        Text, option(OPTIMIZER, "X,...", "Share of the last velocity kept.", suggested("momentum"))
    ] = None,
    nesterov: Nesterov = None,
    weight_decay: Annotated[
        Text,
        option(
            OPTIMIZER,
            "X,...",
            "Weight decay.",
            f"{suggested('weight_decay')}, 10 / rows for tables, else 0",
        ),
    ] = None,
    clip_norm: Annotated[
        Text, option(OPTIMIZER, "X,...", "Largest norm of all gradients together; 0 for any.")
    ] = None,
    schedule: Annotated[
        Text,
        option(
            OPTIMIZER,
            "NAME,...",
            f"Of the learning rate: {', '.join(SCHEDULES)}.",
            default_of("schedule"),
        ),
    ] = None,
    loss: LossName = None,
    label_smoothing: LabelSmoothing = None,
    epochs: Annotated[
        Text, option(RUN, "N,...", "Passes over the data.", "as for `warpfit train`")
    ] = None,
    batch_size: Annotated[Text, option(RUN, "N,...", "Rows a step.", str(DEFAULT_BATCH))] = None,
    precision: Annotated[
        Text,
        option(
            RUN,
            "NAME",
            f"auto, {', '.join(PRECISIONS)}; the last three on a GPU.",
            default_of("precision"),
        ),
    ] = None,
    device: Device = None,
    engine: Annotated[
        Text, option(RUN, "NAME", f"auto, {', '.join(ENGINES)}.", default_of("engine"))
    ] = None,
    seed: Seed = None,
    early_stopping: Annotated[
        Integer,
        option(RUN, "N", "Stop each network after N epochs without a better validation loss."),
    ] = None,
    seeds: Annotated[
        Integer, option(SWEEP, "N", "Train every candidate with N seeds, from --seed on.", "1")
    ] = None,
    folds: Annotated[
        Integer,
        option(
            SWEEP,
            "N",
            "Cross-validate over N folds. Without, a tenth of the training rows is held out to "
            "validate on.",
        ),
    ] = None,
    halving: Annotated[
        Number,
        option(
            SWEEP,
            "X",
            "After 1, X, X², ... epochs only one in X candidates goes on; 0 lets all go on.",
            "0",
        ),
    ] = None,
    metric: Annotated[
        Text,
        option(
            SWEEP,
            "NAME",
            "What decides: val_accuracy, val_loss, accuracy, loss, or a scorer of scikit-learn.",
            "val_accuracy for classes, else val_loss",
        ),
    ] = None,
    jobs: Annotated[
        Integer, option(SWEEP, "N", "Networks at the same time on the CPU; -1 is one a core.", "-1")
    ] = None,
    out: Out = None,
    quiet: Quiet = None,
) -> None:
    """Train a network for every combination of values (lists like 0.01,0.1), and say which is
    best.
    """
    from warpfit.sweep.jobs import prepare_sweep
    from warpfit.sweep.settings import sweep_settings

    settings = sweep_settings(context.params)
    printer = Printer(quiet=settings.base.quiet)
    job = prepare_sweep(settings)
    outcome = job.run(
        settings.base.out or default_folder(), lambda plan: _print_plan(printer, job, plan)
    )
    _print_outcome(printer, job, outcome)
    if outcome.sweep.interrupted:
        raise typer.Exit(INTERRUPTED)
    try:
        outcome.sweep.best  # noqa: B018  (for its error)
    except ConfigError as error:  # no fault of the user's
        typer.echo(f"warpfit: {error}", err=True)
        raise typer.Exit(FAILED) from None


def _print_plan(printer: Printer, job: SweepJob, plan: SweepPlan) -> None:
    from warpfit.sweep.candidates import value_text

    printer.fallback(job.settings.base.device, plan.device)
    printer.line(str(job.dataset), style="bold")
    printer.lines(job.card.notes(job.dataset))
    for name, values in job.settings.grid.items():
        printer.line(f"{name}: {', '.join(map(value_text, values))}")
    printer.line(
        f"{len(job.settings.candidates()):,} candidates; validation: {job.validation_source}"
    )
    printer.line(str(plan))


def _print_outcome(printer: Printer, job: SweepJob, outcome: SweepOutcome) -> None:
    found = outcome.sweep
    printer.line()
    header, rows = found.table()
    printer.table(header, rows, right=header[:1])
    printer.line()
    counts = ", ".join(f"{number:,} {status}" for status, number in found.counts().items())
    pairs = [
        ("networks", counts),
        ("seconds", f"{found.seconds:.2f}"),
        ("ranked by", str(found.metric)),
    ]
    if outcome.test is not None:
        evaluation = outcome.test.evaluation
        name, value = "test loss", f"{evaluation.loss:.4f}"
        if evaluation.accuracy is not None:
            name, value = "test accuracy", percent(evaluation.accuracy)
        elif outcome.test.regression is not None:
            name, value = "test R²", r_squared(outcome.test.regression.r2)
        pairs.append((name, f"{value}, of the best network"))
    printer.pairs(pairs)
    printer.line()
    for path in outcome.files:
        printer.line(str(path))
    if outcome.missing:
        printer.line(outcome.missing)
    toml = next((path for path in outcome.files if path.suffix == ".toml"), None)
    if toml is not None and job.settings.folds:
        printer.line(f"`warpfit train --config {toml}` trains the best candidate on all rows.")
