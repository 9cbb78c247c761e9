"""One network of a sweep: the task, its outcome, and how the host trains it."""

from __future__ import annotations

import copy
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from numbers import Real
from pathlib import Path
from tempfile import TemporaryDirectory
from time import perf_counter
from typing import Any

from warpfit.backends.transfer import to_host
from warpfit.engines.base import EpochReport, Plan
from warpfit.engines.state_on_demand import OnDevice
from warpfit.errors import ConfigError, DivergedError, WarpfitError
from warpfit.nn.module import Module
from warpfit.on_demand import OnDemand
from warpfit.optim.base import Optimizer
from warpfit.sweep.folds import SweepData
from warpfit.training.callbacks import Callback, Checkpoint, EarlyStopping
from warpfit.training.fit import draft_of, fit_rows
from warpfit.training.history import History
from warpfit.training.run import Run

# How a network can end. PAUSED ones go on or are STOPPED, by a rule between epochs; callbacks stop
# networks as well.
DONE, STOPPED, DIVERGED, FAILED = "done", "stopped", "diverged", "failed"
INTERRUPTED, PAUSED, NOT_STARTED = "interrupted", "paused", "not started"

# Arguments of `fit` that no plan has.
_NOT_DRAFTED = ("class_weight", "seed")

Scoring = Callable[[Module, Any, Any], float]


@dataclass(frozen=True)
class Task:
    """A network to train."""

    number: int  # which network of the sweep
    # model and optimizer: with initial values.
    model: Module
    optimizer: Optimizer
    data: SweepData  # that of the whole sweep
    fold: int | None  # whose rows of the data
    # Of `fit`, beside model, optimizer, data, callbacks and what a sweep says once.
    arguments: dict[str, Any]
    callbacks: Sequence[Callback] = ()
    # Whether other tasks have the same model, optimizer and callbacks, which are copied before
    # training then.
    is_shared: bool = False
    scoring: Scoring | None = None  # `scoring(model, x, y)` on the validation rows, after training
    until: int | None = None  # the epoch after which the network is to pause
    checkpoint: bytes | None = None  # of a network that paused, which goes on from there

    def own(self) -> tuple[Module, Optimizer, list[Callback]]:
        """Return model, optimizer and callbacks to train, copies if others have the task's."""
        given = self.model, self.optimizer, list(self.callbacks)
        return copy.deepcopy(given) if self.is_shared else given

    def score_of(self, model: Module) -> float | None:
        """Return what `scoring` finds of the trained model; None without it, or without validation
        rows.
        """
        if self.scoring is None:
            return None
        validation = self.data.validation_of(self.fold)
        if validation is None:
            return None
        try:
            score: Any = self.scoring(model, *map(to_host, validation))
        except Exception as error:
            raise ConfigError(f"metric raised {type(error).__name__}: {error}") from error
        if not isinstance(score, Real):
            raise ConfigError(f"expected metric to return a number, got {score!r}")
        return float(score)


@dataclass
class Outcome(OnDemand):
    """The outcome of a task; model, optimizer and reports may be made when they are asked for."""

    number: int  # the task's
    # 'done', 'stopped' (by a callback or by halving), 'paused', 'diverged', 'failed' or
    # 'interrupted'.
    status: str
    message: str  # why, where that is not all epochs
    history: History
    # model, optimizer and callbacks: after training; the task's own, unless they were copied on the
    # way. None if they were not to be kept.
    model: Module | None
    optimizer: Optimizer | None
    callbacks: Sequence[Callback]
    seconds: float = 0.0
    # Of the epoch whose weights the model has; None if there is none.
    report: EpochReport | None = None
    score: float | None = None  # of the task's `scoring`
    error: Exception | None = None
    checkpoint: bytes | None = field(default=None, repr=False)  # if it paused
    halved_after: int | None = None  # the epoch after which halving stopped it
    # The model's parameters on the device, if they have not left it.
    on_device: OnDevice | None = field(default=None, repr=False)

    @property
    def epochs(self) -> int:
        """The last epoch that was reported, 0 if none was."""
        return self.history.last_epoch


class _Recorder(Callback):
    """Keeps the history at hand, for a run that ends with an error."""

    needs_run = False

    def __init__(self) -> None:
        self.history = History()

    def on_start(self, run: Run) -> None:
        self.history = run.history


class _Pause(Callback):
    """Ends the run after an epoch; what is trained at once may reach up to it."""

    reason = "pause"

    def __init__(self, until: int) -> None:
        self.until = until

    def may_act_after(self, epoch: int) -> bool:
        return epoch >= self.until

    def on_epoch_end(self, run: Run) -> None:
        if run.stop_reason is None and self.until <= run.report.epoch < run.plan.epochs:
            run.stop(self.reason)


def train(task: Task) -> Outcome:
    """Train one network as `fit` does, and return the outcome, errors and Ctrl-C included."""
    recorder, start = _Recorder(), perf_counter()
    outcome = unfinished(task)
    try:
        with errors_told(outcome):
            _train(task, outcome, recorder)
    except KeyboardInterrupt:
        outcome.status, outcome.message = INTERRUPTED, "interrupt"
    outcome.history = recorder.history
    outcome.seconds = perf_counter() - start
    return outcome


def unfinished(task: Task) -> Outcome:
    """Return the outcome of a task that has not finished."""
    return Outcome(task.number, FAILED, "", History(), task.model, task.optimizer, ())


@contextmanager
def errors_told(outcome: Outcome) -> Iterator[None]:
    """Record an error of one network in its outcome: the others go on."""
    try:
        yield
    except DivergedError as error:
        tell_diverged(outcome, error)
    except Exception as error:
        outcome.status, outcome.error = FAILED, error
        name = "" if isinstance(error, WarpfitError) else f"{type(error).__name__}: "
        outcome.message = f"{name}{error}"


def tell_diverged(outcome: Outcome, error: DivergedError) -> None:
    """Let an outcome say that its network diverged; of the error without its frames, which would
    keep the network.
    """
    outcome.status, outcome.message, outcome.error = (
        DIVERGED,
        str(error),
        error.with_traceback(None),
    )


def draft_of_task(task: Task, model: Module, optimizer: Optimizer, x: Any) -> Plan:
    """Return the plan of a task's model and optimizer, or of copies of them, as `draft_of` does."""
    drafted = {name: value for name, value in task.arguments.items() if name not in _NOT_DRAFTED}
    return draft_of(model, optimizer, x, **drafted)


def _train(task: Task, outcome: Outcome, recorder: _Recorder) -> None:
    model, optimizer, callbacks = task.own()
    outcome.model, outcome.optimizer, outcome.callbacks = model, optimizer, callbacks
    rows = task.data.of_fold(task.fold)
    with _checkpoint_of(task) as checkpoint:
        history = fit_rows(
            model,
            rows.x,
            rows.y,
            optimizer=optimizer,
            validation_data=rows.validation,
            sample_weight=rows.sample_weight,
            callbacks=[*callbacks, *checkpoint.callbacks, recorder],
            resume_from=checkpoint.resume_from,
            **task.arguments,
        )
        outcome.status, outcome.message = _ending(history)
        if outcome.status == PAUSED:
            outcome.checkpoint = checkpoint.content
    outcome.report = report_of_weights(history, callbacks)
    outcome.score = task.score_of(model)


def _ending(history: History) -> tuple[str, str]:
    """Return status and message of a run that ended without an error."""
    known = {
        "epochs": (DONE, ""),
        "interrupt": (INTERRUPTED, "interrupt"),
        _Pause.reason: (PAUSED, ""),
    }
    return known.get(history.stopped_by, (STOPPED, history.stopped_by))


def report_of_weights(history: History, callbacks: Sequence[Callback]) -> EpochReport | None:
    """Return the report of the epoch whose weights the model has after a run, one that Ctrl-C ended
    as well: the best one's, if early stopping brought it back.
    """
    if not history.reports:
        return None
    stopping = next((c for c in callbacks if isinstance(c, EarlyStopping) and c.restore_best), None)
    if stopping is None:
        return history.reports[-1]
    return next((r for r in history.reports if r.epoch == stopping.best_epoch), history.reports[-1])


@dataclass(frozen=True)
class _CheckpointFile:
    """Where a run goes on from, and what pauses it, through a file that both have."""

    path: Path | None = None
    callbacks: Sequence[Callback] = ()
    resume_from: Path | None = None

    @property
    def content(self) -> bytes | None:
        return None if self.path is None else self.path.read_bytes()


@contextmanager
def _checkpoint_of(task: Task) -> Iterator[_CheckpointFile]:
    if task.until is None and task.checkpoint is None:
        yield _CheckpointFile()
        return
    with TemporaryDirectory(prefix="warpfit-sweep-") as folder:
        file = _CheckpointFile(Path(folder) / "network.safetensors")
        path = file.path
        if task.checkpoint is not None and path is not None:
            path.write_bytes(task.checkpoint)
            file = replace(file, resume_from=path)
        if task.until is not None and path is not None:
            # Written at the end in any case; between epochs never.
            pause = [_Pause(task.until), Checkpoint(path, every=1 << 62)]
            file = replace(file, callbacks=pause)
        yield file
