"""Callbacks: early stopping, checkpoints, logs."""

from __future__ import annotations

import csv
import json
from collections.abc import Mapping, Sequence
from typing import Any

from warpfit.backends import Array
from warpfit.checks import brief, check_choice, check_count, check_flag, check_number
from warpfit.engines.base import Stopping
from warpfit.errors import ConfigError, FileFormatError
from warpfit.files import PathLike, as_path, atomic_path
from warpfit.training.history import History
from warpfit.training.run import Run

Numbers = dict[str, Any]
Arrays = dict[str, Array]

# What every run's reports may have, and whether more of it is better.
WATCHED: Mapping[str, bool] = {
    "val_loss": False,
    "loss": False,
    "val_accuracy": True,
    "accuracy": True,
}
MODES = ("auto", "min", "max")


class Callback:
    """Base of all callbacks: override the methods you need. A `Run` describes the run.

    Attributes
    ----------
    needs_run : bool
        Whether `on_epoch_end` must be called before the next epoch starts, because it reads the
        state or may end the run. If it only reads reports, an engine may train several epochs
        before it is called for them; state and model are then those of the last of them.
    needs_model : bool
        Whether ``run.model`` is to be up to date for `on_epoch_end`, which may change what of it is
        trained.
    needs_step_losses : bool
        Whether it reads a report's losses of single steps, which networks that are trained many at
        once have not.
    writes_file : bool
        Whether it writes to a file that its copies would write to as well.

    Examples
    --------
    How sure the network is of some rows, after each epoch; ``run.model`` is the user's own model,
    which is up to date whenever a callback is called:

    >>> class Watch(wf.Callback):
    ...     def __init__(self, rows):
    ...         self.rows, self.sureness = rows, []
    ...     def on_epoch_end(self, run):
    ...         found = wf.predict(run.model, self.rows, kind="probabilities")
    ...         self.sureness.append(found.max(axis=1).mean())
    ...         if run.report.accuracy == 1:
    ...             run.stop("all are right")
    >>> watch = Watch(x[:64])
    >>> history = wf.fit(model, x, y, optimizer=opt, epochs=5, callbacks=[watch])
    >>> bool(watch.sureness[-1] > watch.sureness[0])
    True
    """

    needs_run = True
    needs_model = True
    needs_step_losses = True
    writes_file = False

    def may_act_after(self, epoch: int) -> bool:
        """Return whether `on_epoch_end` may have to act on the run after an epoch that has not been
        reported yet.

        It is asked again as reports come. A callback with `needs_run` that knows of some epochs
        that nothing can follow from them, whatever they bring, lets these be trained at once.
        """
        return True

    def rule(self) -> Stopping | None:
        """Return the rule by which it ends a run, as it stands, if it does nothing else to the run;
        None otherwise.

        An engine that can follow it decides itself when the run is over.
        """
        return None

    def hand_over(self) -> Stopping:
        """Return the rule for an engine that follows it in this run, and keeps the best weights."""
        raise NotImplementedError

    def on_start(self, run: Run) -> None:
        """Act before the first epoch; an error leaves model and optimizer as they were."""

    def on_step(self, step: int, steps_per_epoch: int) -> None:
        """Act after a step, if the engine comes back to the host between steps; keep it quick."""

    def on_epoch_end(self, run: Run) -> None:
        """Act after an epoch that is reported (see ``report_every``); see also `needs_run`."""

    def on_end(self, run: Run) -> None:
        """Act after the last epoch, also after an interrupt, but not after an error."""

    def close(self) -> None:
        """Release what the callback holds; the last call, also after an error."""

    def checkpoint_state(self) -> tuple[Numbers, Arrays]:
        """Return what a resumed run needs to go on as if never stopped: JSON-ready numbers, and
        arrays.

        Neither may change afterwards.
        """
        return {}, {}

    def is_own(self, numbers: Numbers) -> bool:
        """Return whether numbers that one of this class kept are for this one to resume: of several
        in a run, the first that says so does.
        """
        return True

    def resume(self, numbers: Numbers, arrays: Arrays) -> None:
        """Take over what `checkpoint_state` returned; both are empty if the checkpoint knows no
        such callback.

        Raises
        ------
        KeyError, TypeError, ValueError
            If they are not what `checkpoint_state` returns.
        """


class EarlyStopping(Callback):
    """Ends the run when a column has not improved for some epochs, and keeps the best weights.

    Parameters
    ----------
    monitor : str
        ``'val_loss'``, ``'loss'``, ``'val_accuracy'``, ``'accuracy'``, or the column of one of
        `fit`'s metrics, such as ``'val_f1_macro'``.
    patience : int
        Reported epochs without improvement before the run ends.
    min_delta : float
        What counts as an improvement, in the column's unit.
    restore_best : bool
        Whether the model ends with the weights of its best epoch.
    mode : str
        ``'min'`` or ``'max'``: whether less or more is better. ``'auto'`` knows that of losses and
        accuracies, of scikit-learn's scorers, of which more is better, and of functions whose
        names end in ``_score``, or in ``_loss``, ``_error`` or ``_deviance``.

    Raises
    ------
    ConfigError
        If a setting is none of these; and as a run starts, if there is no such column, or its name
        does not say what is better.

    Examples
    --------
    >>> stopping = wf.EarlyStopping("val_accuracy", patience=1)
    >>> history = wf.fit(
    ...     model, x, y, optimizer=opt, epochs=50, validation_split=0.2, callbacks=[stopping]
    ... )
    >>> history.stopped_by
    'early stopping: no better val_accuracy...'
    """

    def __init__(
        self,
        monitor: str = "val_loss",
        patience: int = 5,
        min_delta: float = 0.0,
        restore_best: bool = True,
        mode: str = "auto",
    ) -> None:
        if not isinstance(monitor, str):
            raise ConfigError(f"EarlyStopping: expected to monitor a column, got {brief(monitor)}")
        check_choice("EarlyStopping's mode", mode, MODES)
        check_count("EarlyStopping's patience", patience, 1)
        check_number("EarlyStopping's min_delta", min_delta, 0)
        check_flag("EarlyStopping's restore_best", restore_best)
        self.monitor, self.patience, self.min_delta, self.restore_best = (
            monitor,
            patience,
            min_delta,
            restore_best,
        )
        self.mode = mode
        self._more_is_better = WATCHED.get(monitor, True) if mode == "auto" else mode == "max"
        self.best: float | None = None
        self.best_epoch = 0
        self.bad_epochs = 0
        self._best_arrays: Arrays = {}
        self._followed: Stopping | None = None

    def rule(self) -> Stopping | None:
        is_known = WATCHED.get(self.monitor) is self._more_is_better
        # Derived ones may do more.
        return self._as_it_stands() if type(self) is EarlyStopping and is_known else None

    def hand_over(self) -> Stopping:
        self._best_arrays, self._followed = self._best(), self._as_it_stands()
        return self._followed

    def _as_it_stands(self) -> Stopping:
        return Stopping(
            self.monitor,
            self.patience,
            self.min_delta,
            self.restore_best,
            self.best,
            self.bad_epochs,
        )

    def on_start(self, run: Run) -> None:
        self._check_column(run.metrics)
        self._best_arrays, self._followed = self._best(), None
        if not run.history.reports:
            self.resume({}, {})
        if self._best_arrays and _kinds(self._best_arrays) != _kinds(run.state.arrays):
            raise FileFormatError(
                "EarlyStopping: expected best weights in the model's shapes and dtype, found others"
            )

    def on_epoch_end(self, run: Run) -> None:
        value = run.report.value(self.monitor)
        if value is None and self.monitor not in run.report.metrics:
            raise ConfigError(
                f"EarlyStopping: expected reports of {self.monitor}, got none; is validation_data "
                "given?"
            )
        if self._improves(value):
            self.best, self.best_epoch, self.bad_epochs = value, run.report.epoch, 0
            if self.restore_best and self._followed is None:
                self._best_arrays = {
                    name: run.ops.copy(array) for name, array in run.state.arrays.items()
                }
            return
        self.bad_epochs += 1
        self.stop_if_over(run)

    def stop_if_over(self, run: Run) -> None:
        """End a run that has not improved for as long as is let pass."""
        if self.bad_epochs >= self.patience:
            best = "none" if self.best is None else f"{self.best:.6g} (epoch {self.best_epoch})"
            run.stop(f"early stopping: no better {self.monitor} than {best}")

    def _check_column(self, metrics: Mapping[str, bool | None]) -> None:
        """Find whether more is better, or raise ConfigError unless reports have the column."""
        columns: dict[str, bool | None] = {**WATCHED, **metrics}
        if self.monitor not in columns:
            raise ConfigError(
                f"EarlyStopping: expected to monitor {', '.join(columns)}, got {self.monitor!r}"
            )
        if self.mode != "auto":
            return
        direction = columns[self.monitor]
        if direction is None:
            raise ConfigError(
                f"EarlyStopping: expected mode='min' or 'max' for {self.monitor}, whose name does "
                "not say what is better"
            )
        self._more_is_better = direction

    def _improves(self, value: float | None) -> bool:
        if value is None or self.best is None:
            return value is not None
        gain = value - self.best if self._more_is_better else self.best - value
        return gain > self.min_delta

    def _best(self) -> Arrays:
        """Return the best weights, which an engine that applies the rule may hold."""
        return (self._followed and self._followed.best_arrays) or self._best_arrays

    def on_end(self, run: Run) -> None:
        best = self._best()
        for name, array in run.state.arrays.items():
            if name in best:
                run.ops.assign(array, best[name])

    def checkpoint_state(self) -> tuple[Numbers, Arrays]:
        numbers: Numbers = {"monitor": self.monitor, "best": self.best}
        numbers |= {"best_epoch": self.best_epoch, "bad_epochs": self.bad_epochs}
        return numbers, dict(self._best())

    def is_own(self, numbers: Numbers) -> bool:
        # What was best by another column says nothing.
        return bool(numbers.get("monitor", self.monitor) == self.monitor)

    def resume(self, numbers: Numbers, arrays: Arrays) -> None:
        best = numbers.get("best")
        self.best = None if best is None else float(best)
        self.best_epoch, self.bad_epochs = (
            int(numbers.get("best_epoch", 0)),
            int(numbers.get("bad_epochs", 0)),
        )
        self._best_arrays, self._followed = dict(arrays), None


def _kinds(arrays: Arrays) -> dict[str, tuple[Any, str]]:
    return {name: (array.shape, str(array.dtype)) for name, array in arrays.items()}


class Checkpoint(Callback):
    """Writes the whole state of the run to a file every n epochs, at the end, and on Ctrl-C.

    The file is replaced at once: a kill at any moment leaves the last whole one. ``fit(...,
    resume_from=path)`` goes on from it.

    Parameters
    ----------
    path : path of the file
    every : int
        Epochs between two writes.

    Examples
    --------
    >>> saving = wf.Checkpoint("run.safetensors", every=5)
    >>> history = wf.fit(model, x, y, optimizer=opt, epochs=10, callbacks=[saving])
    >>> history = wf.fit(model, x, y, optimizer=opt, epochs=20, resume_from="run.safetensors")
    >>> len(history)
    20
    """

    writes_file = True

    def __init__(self, path: PathLike, every: int = 1) -> None:
        self.path, self.every = (
            as_path("Checkpoint's path", path),
            check_count("Checkpoint's every", every, 1),
        )


class _Log(Callback):
    """Base of the log files: one row an epoch; a resumed run goes on below the rows it had."""

    needs_run = False
    writes_file = True

    def __init__(self, path: PathLike) -> None:
        self.path = as_path(f"{type(self).__name__}'s path", path)

    def on_start(self, run: Run) -> None:
        self._write(run.history)

    def on_epoch_end(self, run: Run) -> None:
        self._write(run.history)

    def _write(self, history: History) -> None:
        columns = history.columns
        rows = [{column: report.value(column) for column in columns} for report in history]
        with atomic_path(self.path) as temporary:
            temporary.write_text(self._text(columns, rows), encoding="utf-8")

    def _text(self, columns: Sequence[str], rows: list[dict[str, Any]]) -> str:
        raise NotImplementedError


class CSVLog(_Log):
    """Writes the reports to a CSV file, a row an epoch, whole after every epoch.

    Examples
    --------
    >>> history = wf.fit(model, x, y, optimizer=opt, epochs=2, callbacks=[wf.CSVLog("run.csv")])
    """

    def _text(self, columns: Sequence[str], rows: list[dict[str, Any]]) -> str:
        from io import StringIO

        text = StringIO()
        writer = csv.DictWriter(text, columns, lineterminator="\n")
        writer.writeheader()
        writer.writerows(rows)
        return text.getvalue()


class JSONLLog(_Log):
    """Writes the reports to a file of one JSON object a line, whole after every epoch.

    Examples
    --------
    >>> history = wf.fit(model, x, y, optimizer=opt, epochs=2, callbacks=[wf.JSONLLog("run.jsonl")])
    """

    def _text(self, columns: Sequence[str], rows: list[dict[str, Any]]) -> str:
        return "".join(json.dumps(row) + "\n" for row in rows)


def checked_callbacks(callbacks: Any) -> list[Callback]:
    """Return callbacks as a list, or raise ConfigError unless they are a sequence of them."""
    if not isinstance(callbacks, Sequence) or not all(isinstance(c, Callback) for c in callbacks):
        raise ConfigError(
            f"expected callbacks to be a sequence of Callback objects, got {brief(callbacks)}"
        )
    return list(callbacks)
