"""Reports for TensorBoard, MLflow, Weights & Biases: callbacks, each with an extra of its own."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from time import time
from typing import Any

from warpfit.errors import ConfigError
from warpfit.extras import needs
from warpfit.files import PathLike, as_path
from warpfit.training.callbacks import Callback
from warpfit.training.history import History
from warpfit.training.run import Run


class _Tracker(Callback):
    """Base of what hands each report of a run to another program.

    A resumed run hands over what it trains itself. Copies would write to the same place.
    """

    needs_run = False
    writes_file = True

    def __init__(self) -> None:
        self.ended_by: str | None = None

    def on_start(self, run: Run) -> None:
        self.ended_by = None
        self._open(_settings(run))

    def on_epoch_end(self, run: Run) -> None:
        self._log(run.report.epoch, _numbers(run))

    def on_end(self, run: Run) -> None:
        self.ended_by = run.history.stopped_by

    def _open(self, settings: dict[str, Any]) -> None:
        raise NotImplementedError

    def _log(self, epoch: int, numbers: dict[str, float]) -> None:
        raise NotImplementedError


def _numbers(run: Run) -> dict[str, float]:
    """Return the numbers of the last report by their columns."""
    columns = History([run.report]).to_dict()
    return {name: float(values[0]) for name, values in columns.items() if name != "epoch"}


def _settings(run: Run) -> dict[str, Any]:
    """Return what a run is, in values that every program takes."""
    plan = run.plan
    named = ("engine", "device", "precision", "batch_size", "epochs", "num_rows", "shuffle")
    described = {"loss": plan.loss.to_dict(), "optimizer": plan.optimizer.to_dict()}
    return {
        **{name: getattr(plan, name) for name in named},
        **dict(_flat(described)),
        "num_parameters": run.model.num_parameters,
        "seed": run.state.seed,
    }


def _flat(settings: Mapping[str, Any], start: str = "") -> Iterator[tuple[str, Any]]:
    """Yield what nested mappings hold, by dotted names; what is neither number nor bool as text."""
    for name, value in settings.items():
        if isinstance(value, Mapping):
            yield from _flat(value, f"{start}{name}.")
        else:
            yield f"{start}{name}", value if isinstance(value, int | float) else str(value)


class TensorBoardLog(_Tracker):
    """Writes the reports for TensorBoard, a scalar a column, whole after every epoch.

    Parameters
    ----------
    folder : path
        A new one for each run: ``runs/first``, with ``tensorboard --logdir runs`` beside it.

    Raises
    ------
    ConfigError
        If `folder` is no path, or TensorBoard is not installed.

    Examples
    --------
    >>> logs = [wf.TensorBoardLog("runs/first")]  # doctest: +SKIP
    >>> wf.fit(model, x, y, optimizer="adam", callbacks=logs)  # doctest: +SKIP
    """

    def __init__(self, folder: PathLike) -> None:
        super().__init__()
        self.folder = as_path("TensorBoardLog's folder", folder)
        with needs("tensorboard", "TensorBoardLog needs"):
            import tensorboard.summary.writer.event_file_writer  # noqa: F401
        self._writer: Any = None

    def _open(self, settings: dict[str, Any]) -> None:
        from tensorboard.summary.writer.event_file_writer import EventFileWriter

        try:
            self._writer = EventFileWriter(str(self.folder))
        except OSError as error:
            raise ConfigError(f"cannot write {self.folder}: {error.strerror}") from None

    def _log(self, epoch: int, numbers: dict[str, float]) -> None:
        from tensorboard.compat.proto.event_pb2 import Event
        from tensorboard.compat.proto.summary_pb2 import Summary

        values = [Summary.Value(tag=name, simple_value=each) for name, each in numbers.items()]
        event = Event(wall_time=time(), step=epoch, summary=Summary(value=values))
        self._writer.add_event(event)
        self._writer.flush()

    def close(self) -> None:
        if self._writer is not None:
            self._writer.close()
            self._writer = None


class MLflowLog(_Tracker):
    """Logs the reports to MLflow, with what the run is as parameters.

    It logs to the active run, if there is one, and leaves it open. Otherwise it starts one, and
    ends it as finished, killed (after Ctrl-C) or failed. Where runs go is MLflow's to know:
    ``mlflow.set_tracking_uri``.

    Parameters
    ----------
    experiment : str, optional
        Of a run that it starts; MLflow's own choice by default.
    name : str, optional
        Of a run that it starts.

    Raises
    ------
    ConfigError
        If MLflow is not installed.

    Examples
    --------
    >>> logs = [wf.MLflowLog(experiment="digits", name="first")]  # doctest: +SKIP
    >>> wf.fit(model, x, y, optimizer="adam", callbacks=logs)  # doctest: +SKIP
    """

    def __init__(self, experiment: str | None = None, name: str | None = None) -> None:
        super().__init__()
        self.experiment, self.name = experiment, name
        with needs("mlflow", "MLflowLog needs"):
            import mlflow  # noqa: F401
        self._is_ours = False

    def _open(self, settings: dict[str, Any]) -> None:
        import mlflow

        if mlflow.active_run() is None:
            if self.experiment is not None:
                mlflow.set_experiment(self.experiment)
            mlflow.start_run(run_name=self.name)
            self._is_ours = True
        mlflow.log_params(settings)

    def _log(self, epoch: int, numbers: dict[str, float]) -> None:
        import mlflow

        mlflow.log_metrics(numbers, step=epoch)

    def close(self) -> None:
        if not self._is_ours:
            return
        import mlflow

        self._is_ours = False
        ends = {None: "FAILED", "interrupt": "KILLED"}
        mlflow.end_run(status=ends.get(self.ended_by, "FINISHED"))


class WandbLog(_Tracker):
    """Logs the reports to Weights & Biases, with what the run is as its config.

    It logs to the active run, ``wandb.run``, if there is one, and leaves it open. Otherwise it
    starts one, and finishes it. Without a network: ``WandbLog(mode="offline")``.

    Parameters
    ----------
    project : str, optional
        Of a run that it starts.
    settings
        What else ``wandb.init`` takes, by name.

    Raises
    ------
    ConfigError
        If wandb is not installed.

    Examples
    --------
    >>> logs = [wf.WandbLog(project="digits", mode="offline")]  # doctest: +SKIP
    >>> wf.fit(model, x, y, optimizer="adam", callbacks=logs)  # doctest: +SKIP
    """

    def __init__(self, project: str | None = None, **settings: Any) -> None:
        super().__init__()
        self.project, self.settings = project, settings
        with needs("wandb", "WandbLog needs"):
            import wandb  # noqa: F401
        self._run: Any = None
        self._is_ours = False

    def _open(self, settings: dict[str, Any]) -> None:
        import wandb

        self._is_ours = wandb.run is None
        self._run = (
            wandb.init(project=self.project, **self.settings) if self._is_ours else wandb.run
        )
        self._run.config.update(settings, allow_val_change=True)
        self._run.define_metric("*", step_metric="epoch")

    def _log(self, epoch: int, numbers: dict[str, float]) -> None:
        self._run.log({"epoch": epoch, **numbers})

    def close(self) -> None:
        run, self._run = self._run, None
        if run is not None and self._is_ours:
            run.finish(exit_code=1 if self.ended_by is None else 0)
