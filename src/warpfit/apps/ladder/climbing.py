"""Climbing the ladder: every rung trains the same task, and is timed."""

from __future__ import annotations

import json
from collections.abc import Callable, Sequence
from contextlib import nullcontext
from dataclasses import replace
from pathlib import Path
from statistics import median
from time import perf_counter
from typing import Any

import numpy as np

from warpfit import backends
from warpfit.apps.ladder import chart
from warpfit.apps.ladder.results import Record, Result, Step
from warpfit.apps.ladder.rungs import RUNGS, Program, Rung, program_of
from warpfit.apps.ladder.task import DEFAULT_HIDDEN, Task, make_task
from warpfit.backends.base import HALF_DTYPES
from warpfit.checks import check_choice, check_count
from warpfit.errors import ConfigError, WarpfitError
from warpfit.files import ResultsFolder, atomic_path, make_folder
from warpfit.plots import has_matplotlib

# What is trained where nothing else is asked for: on a CPU less, so that all of it takes well under
# a minute.
EPOCHS_ON_GPU, EPOCHS_ON_CPU, ROWS_ON_CPU = 10, 4, 12_000

# Seconds that a rung's epochs may take. One that would take longer trains for fewer, or on fewer
# rows.
RUNG_SECONDS = 10.0


def save(result: Result, folder: str | Path) -> None:
    """Write ``ladder.json``, and ``ladder.png`` where matplotlib is installed and a rung ran, and
    note their paths.

    Raises
    ------
    ConfigError
        If the folder cannot be written to.
    """
    folder = make_folder(Path(folder).expanduser())
    described, picture = folder / "ladder.json", folder / "ladder.png"
    with atomic_path(described) as temporary:
        temporary.write_text(json.dumps(result.to_dict(), indent=1) + "\n", encoding="utf-8")
    result.files.append(described)
    if has_matplotlib() and any(record.ran for record in result):
        chart.draw(result, picture)
        result.files.append(picture)


def parse_names(text: str) -> list[str]:
    """Return names of rungs from text: names, or ``first..last`` of two, between commas.

    Raises
    ------
    ConfigError
        If one is unknown.
    """
    order, found = [rung.name for rung in RUNGS], []
    for part in filter(None, (piece.strip() for piece in text.split(","))):
        first, dots, last = part.partition("..")
        ends = [first or order[0], last or order[-1]] if dots else []
        if all(end in order for end in ends) and ends:
            found += order[order.index(ends[0]) : order.index(ends[1]) + 1]
        else:
            found.append(part)
    return _checked(found)


def _checked(names: Sequence[str]) -> list[str]:
    for name in names:
        check_choice("rungs", name, [rung.name for rung in RUNGS])
    if not names:
        raise ConfigError("expected at least one rung, got none")
    return list(names)


def climb(
    network: str = "mlp",
    *,
    device: str = "auto",
    epochs: int | None = None,
    rows: int | None = None,
    hidden: int = DEFAULT_HIDDEN,
    lr: float | None = None,
    precision: str = "float16",
    data: str | tuple[Any, Any] | None = None,
    data_dir: str | None = None,
    seed: int = 0,
    rungs: Sequence[str] | None = None,
    out: str | Path | None = None,
    on_start: Callable[[Step], None] | None = None,
    on_rung: Callable[[Record], None] | None = None,
) -> Result:
    """Train one network once per rung, and return what each did.

    All rungs start from the same initial values and see the same batches. What fails has its reason
    in its record, and the climb goes on.

    Parameters
    ----------
    network : {'softmax-regression', 'mlp', 'deep'}
    device : str
        As `warpfit.fit` takes it. Rungs that need a GPU say so where there is none.
    epochs : int, optional
        By default 10, or 4 without a GPU. A rung that would take more than 10 s trains for fewer,
        or on fewer rows, and its time is scaled then.
    rows : int, optional
        Train on the first rows; 0 is all of them, and so is the default, but 12,000 without a GPU.
    hidden : int
        The width of ``'deep'``.
    lr : float, optional
        In place of the network's own rate.
    precision : {'float16', 'bfloat16'}
        From the rung ``tensor-cores`` on.
    data, data_dir
        Training rows: MNIST, or digits where it cannot be had. See `make_task`.
    seed : int
        Of initial values and orders.
    rungs : sequence of str, optional
        Which rungs, by their names; by default all.
    out : path, optional
        A folder for the results, which is made before anything runs; see `save`.
    on_start : function of Rung, optional
        Called before each.
    on_rung : function of Record, optional
        Called after each.

    Returns
    -------
    Result

    Raises
    ------
    ConfigError, DataError, DeviceError, ShapeError
        If an argument is not what is described here.
    """
    start = perf_counter()
    if precision not in HALF_DTYPES:
        raise ConfigError(
            f"expected precision {' or '.join(map(repr, HALF_DTYPES))}, got {precision!r}"
        )
    device = backends.resolve_device(device)
    is_cpu = device == "cpu"
    number = (EPOCHS_ON_CPU if is_cpu else EPOCHS_ON_GPU) if epochs is None else epochs
    check_count("epochs", number, 1)
    limit = (ROWS_ON_CPU if is_cpu else 0) if rows is None else rows
    names = None if rungs is None else _checked(rungs)
    task = make_task(
        network, hidden=hidden, data=data, data_dir=data_dir, rows=limit, lr=lr, seed=seed
    )
    climber = _Climber(task, device, number, precision, on_start, on_rung)
    with nullcontext() if out is None else ResultsFolder(out).filled():
        for rung in RUNGS:
            if names is None or rung.name in names:
                climber.step_up(rung)
        result = climber.result(perf_counter() - start)
        if out is not None:
            save(result, out)
    return result


class _Climber:
    """Runs one rung after the other, and keeps the earlier results."""

    def __init__(
        self,
        task: Task,
        device: str,
        epochs: int,
        precision: str,
        on_start: Callable[[Step], None] | None,
        on_rung: Callable[[Record], None] | None,
    ) -> None:
        self.task, self.device, self.epochs, self.precision = task, device, epochs, precision
        self.on_start, self.on_rung = on_start, on_rung
        self.records: list[Record] = []

    def step_up(self, rung: Rung) -> None:
        """Run a rung, and note what it did or why it did not."""
        self._announce(rung)
        record = Record(rung.name, rung.title, rung.changes, rung.saves, rung.if_little, False)
        try:
            record = _measured(
                program_of(rung, self.task, self.device, self.precision), record, self
            )
        except WarpfitError as error:
            record = replace(record, reason=_reason(error, self.device))
        before = [other.ms_per_epoch for other in self.records if other.ms_per_epoch is not None]
        if record.ms_per_epoch is not None and before:
            record = replace(
                record,
                gain=before[-1] / record.ms_per_epoch,
                gain_over_first=before[0] / record.ms_per_epoch,
            )
        self._note(record)

    def result(self, seconds: float) -> Result:
        """Return what there is so far."""
        task, is_cpu = self.task, self.device == "cpu"
        return Result(
            self.records,
            "-".join(map(str, task.sizes)),
            self.device,
            "" if is_cpu else str(backends.get(self.device).runtime.card),  # type: ignore[attr-defined]
            task.data,
            task.batch,
            len(task.x),
            self.epochs,
            task.steps,
            task.lr,
            seconds,
        )

    def _announce(self, step: Step) -> None:
        if self.on_start is not None:
            self.on_start(step)

    def _note(self, record: Record) -> None:
        self.records.append(record)
        if self.on_rung is not None:
            self.on_rung(record)


def _reason(error: WarpfitError, device: str) -> str:
    """Return in words why a rung did not run; without a GPU, what is missing."""
    if device != "cpu":
        return str(error).splitlines()[0]
    from warpfit.backends.cuda.runtime import why_unavailable

    return f"{error}: {why_unavailable() or 'the CPU was asked for'}"


def _measured(program: Program, record: Record, climber: _Climber) -> Record:
    """Return the record with what a program does within its time."""
    task = climber.task
    start = perf_counter()
    seconds, steps = program.prepare()
    first_call = perf_counter() - start - seconds
    rows, epochs = fitting(task, climber.epochs, seconds / steps)
    done = list(program.run(rows, epochs))
    on_device = program.device_seconds()
    steps = -(-rows // task.batch)
    reported = [epoch for epoch in done if epoch.loss is not None]
    losses = [epoch.step_losses for epoch in reported if epoch.step_losses is not None]
    return replace(
        record,
        ms_per_epoch=later_half([epoch.seconds for epoch in done]) * 1e3 * task.steps / steps,
        device_ms=None if on_device is None else on_device * 1e3 * task.steps,
        seconds=sum(epoch.seconds for epoch in done),
        first_call=first_call,
        epochs=epochs,
        steps=steps,
        is_scaled=steps < task.steps,
        loss=reported[-1].loss,
        accuracy=reported[-1].accuracy,
        step_losses=np.concatenate(losses) if losses else None,
    )


def fitting(task: Task, epochs: int, step_seconds: float) -> tuple[int, int]:
    """Return rows and epochs that there is time for, if a step takes so long.

    There are two epochs at least, if more than one is asked for, lest the only one be the first.
    """
    most_steps = max(1, int(RUNG_SECONDS / max(step_seconds, 1e-9)))
    fewest = min(2, epochs)
    if most_steps >= fewest * task.steps:
        return len(task.x), min(epochs, most_steps // task.steps)
    return min(len(task.x), max(1, most_steps // fewest) * task.batch), fewest


def later_half(seconds: Sequence[float]) -> float:
    """Return the median over the later half of the epochs."""
    return median(seconds[len(seconds) // 2 :])
