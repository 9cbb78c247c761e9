"""What callbacks see of a run."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace

from warpfit.backends import Backend
from warpfit.engines.base import EpochReport, Plan, TrainState
from warpfit.nn.module import Module
from warpfit.training.history import History


@dataclass
class Run:
    """A run between two epochs, as callbacks see it; they may end it.

    Attributes
    ----------
    model : Module
        The model that `fit` was given, with the weights that it has by now, where the run has them:
        on the run's device, in its dtype. Training goes on in the same arrays; ``state_dict()``
        copies them.
    history : History
        The reports so far; `report` is the last.
    plan : Plan
        How the run is computed, and why so.
    state : TrainState
        All numbers after the last epoch, those of the model included; a callback may read them, and
        write into its arrays in `Callback.on_start`, `Callback.on_epoch_end` and `Callback.on_end`,
        not in `Callback.on_step`, for all devices that train.
    ops : Backend
        The backend that the state's arrays live on.
    stop_reason : str or None
        Set by `stop`.
    metrics : mapping of str to bool or None
        The columns of the metrics that reports have, with whether more is better; None where
        neither a scorer nor a name says.

    Examples
    --------
    >>> class StopAt(wf.Callback):
    ...     def on_epoch_end(self, run):
    ...         if run.report.loss < 1:
    ...             run.stop(f"a loss of 1 after {run.report.epoch} epochs")
    >>> history = wf.fit(model, x, y, optimizer=opt, epochs=50, callbacks=[StopAt()])
    >>> history.stopped_by
    'a loss of 1 after ... epochs'
    """

    plan: Plan
    state: TrainState
    history: History
    ops: Backend
    model: Module
    stop_reason: str | None = field(default=None)
    metrics: Mapping[str, bool | None] = field(default_factory=dict)

    @property
    def report(self) -> EpochReport:
        """The last epoch's report."""
        return self.history.reports[-1]

    def stop(self, reason: str) -> None:
        """End the run after this epoch, or the last of those trained at once with it; as the run
        starts, before its first.
        """
        self.stop_reason = reason

    def scale_lr(self, factor: float) -> None:
        """Multiply the learning rate of all later steps, whatever the schedule, by `factor`."""
        plateau = self.state.plateau
        self.state.plateau = replace(plateau, scale=plateau.scale * factor)
