"""``warpfit sweep``."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import typer

from warpfit.cli.console import Printer, percent, r_squared
from warpfit.cli.options import NETWORK, OF_TRAINING, RUN, option, several, taking
from warpfit.cli.train import INTERRUPTED
from warpfit.errors import ConfigError
from warpfit.training.settings import SWEPT, own_folder

if TYPE_CHECKING:
    from warpfit.sweep.jobs import SweepJob, SweepOutcome
    from warpfit.sweep.planning import SweepPlan

FAILED = 1
SWEEP = "Sweep"


OPTIONS = {
    **OF_TRAINING,
    **{name: several(OF_TRAINING[name]) for name in SWEPT},
    "hidden": option(
        NETWORK,
        "N-N,...",
        "Widths of the hidden layers, as 64,128-64, or none.",
        "256; 128 for cnn",
    ),
    "early_stopping": option(
        RUN, "N", "Stop each network after N epochs without a better validation loss."
    ),
    "seeds": option(SWEEP, "N", "Train every candidate with N seeds, from --seed on.", "1"),
    "folds": option(
        SWEEP,
        "N",
        "Cross-validate over N folds. Without, a tenth of the training rows is held out to "
        "validate on.",
    ),
    "halving": option(
        SWEEP,
        "X",
        "After 1, X, X², ... epochs only one in X candidates goes on; 0 lets all go on.",
        "0",
    ),
    "metric": option(
        SWEEP,
        "NAME",
        "What decides: val_accuracy, val_loss, accuracy, loss, or a scorer of scikit-learn.",
        "val_accuracy for classes, else val_loss",
    ),
    "jobs": option(SWEEP, "N", "Networks at the same time on the CPU; -1 is one a core.", "-1"),
}


@taking(OPTIONS)
def sweep(**flags: Any) -> None:
    """Train a network for every combination of values (lists like 0.01,0.1); say which is best."""
    from warpfit.sweep.jobs import prepare_sweep
    from warpfit.sweep.settings import sweep_settings

    settings = sweep_settings(flags)
    printer = Printer(quiet=settings.base.quiet)
    job = prepare_sweep(settings)
    with own_folder(settings.base.out) as folder:
        outcome = job.run(folder, lambda plan: _print_plan(printer, settings.base.data, job, plan))
    _print_outcome(printer, job, outcome)
    if outcome.sweep.interrupted:
        raise typer.Exit(INTERRUPTED)
    try:
        outcome.sweep.best  # noqa: B018  (for its error)
    except ConfigError as error:  # no fault of the user's
        typer.echo(f"warpfit: {error}", err=True)
        raise typer.Exit(FAILED) from None


def _print_plan(printer: Printer, asked: str | None, job: SweepJob, plan: SweepPlan) -> None:
    from warpfit.sweep.candidates import value_text

    printer.stand_in(asked, job.dataset.name)
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
    pairs = [("networks", counts), ("seconds", f"{found.seconds:.2f}")]
    pairs.append(("ranked by", str(found.metric)))
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
    printer.lines(map(str, outcome.files))
    if outcome.missing:
        printer.line(outcome.missing)
    toml = next((path for path in outcome.files if path.suffix == ".toml"), None)
    if toml is not None and job.settings.folds:
        printer.line(f"`warpfit train --config {toml}` trains the best candidate on all rows.")
