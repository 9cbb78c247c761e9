"""What engines tell of an epoch, from its record: a row (loss, weight, rows that are right) a step."""

from __future__ import annotations

from math import isfinite

import numpy as np
import numpy.typing as npt

from warpfit.backends import Backend
from warpfit.engines.base import EpochReport, Plan, TrainState
from warpfit.engines.scaling import DYNAMIC
from warpfit.errors import DivergedError
from warpfit.optim.schedules import Progress

__all__ = ["Reports"]

# Columns of a record.
LOSS, WEIGHT, CORRECT = 0, 1, 2


class Reports:
    """Reads the records of a run's epochs.

    Parameters
    ----------
    plan : Plan
    state : TrainState
        The run's, whose epoch and step it looks at.
    num_rows : int
        Rows of the data.
    """

    def __init__(self, plan: Plan, state: TrainState, num_rows: int) -> None:
        self.plan, self.state, self.num_rows = plan, state, num_rows
        self.steps_per_epoch = -(-num_rows // plan.batch_size)
        self.last_finite_loss: float | None = None

    def lr(self, idx: int) -> float:
        """Return the learning rate of a step of the current epoch."""
        progress = Progress(
            self.state.epoch * self.steps_per_epoch + idx,
            self.plan.epochs * self.steps_per_epoch,
            self.steps_per_epoch,
        )
        return self.plan.optimizer.lr.rate(progress) * self.state.plateau.scale

    def check_finite(self, record: npt.NDArray[np.float64], first_idx: int) -> None:
        """Raise DivergedError for the first step of `record` whose loss is not finite."""
        for idx, loss in enumerate(record[:, LOSS].tolist(), start=first_idx):
            if not isfinite(loss):
                raise self.diverged(idx)
            self.last_finite_loss = loss

    def check_arrays(self, ops: Backend) -> None:
        """Raise DivergedError if the epoch's last updates left numbers that no later step could save."""
        if not ops.to_numpy(ops.all_finite(list(self.state.arrays.values()))):
            raise self.diverged(self.steps_per_epoch - 1)

    def diverged(self, idx: int) -> DivergedError:
        """Return the error for a step of the current epoch."""
        remedies = ["a lower learning rate", "clip_norm"]
        if self.plan.precision == "float16" and self.plan.loss_scale != DYNAMIC:
            remedies.append("loss_scale='dynamic'")
        return DivergedError(
            remedies=" or ".join(remedies),
            epoch=self.state.epoch + 1,
            step=self.state.epoch * self.steps_per_epoch + idx + 1,
            lr=self.lr(idx),
            last_finite_loss=self.last_finite_loss,
        )

    def report(self, record: npt.NDArray[np.float64], seconds: float) -> EpochReport:
        """Return what came out of an epoch, which the state counts already."""
        losses, weights = record[:, LOSS], record[:, WEIGHT]
        total_weight = weights.sum()
        counts = self.plan.loss.counts_correct
        return EpochReport(
            epoch=self.state.epoch,
            loss=float(losses @ weights / total_weight) if total_weight else 0.0,
            accuracy=float(record[:, CORRECT].sum() / self.num_rows) if counts else None,
            lr=float(self.lr(-1)),  # the epoch is over: its last step is the one before the next's first
            seconds=seconds,
            num_rows=self.num_rows,
            step_losses=losses.copy(),
        )
