"""What engines tell of an epoch, from its record (batches, recorders, 3) of loss, weight, and rows
that are right.

A batch's are the sums over the recorders, who have a part of its rows each; one of them has its
weight.
"""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

from warpfit.engines.base import EpochReport, Plan, TrainState
from warpfit.engines.scaling import DYNAMIC
from warpfit.errors import DivergedError
from warpfit.optim.schedules import Progress

# Columns of a record.
LOSS, WEIGHT, CORRECT = 0, 1, 2


class Reports:
    """Reads the records of a run's epochs.

    Parameters
    ----------
    plan : Plan
    state : TrainState
        The run's, whose `plateau` it looks at.
    num_rows : int
        Rows of the data, at least 1.
    """

    def __init__(self, plan: Plan, state: TrainState, num_rows: int) -> None:
        self.plan, self.state, self.num_rows = plan, state, num_rows
        self.steps_per_epoch = -(-num_rows // plan.batch_size)
        self.last_finite_loss: float | None = None

    def rates(self, epoch: int, epochs: int) -> npt.NDArray[np.float64]:
        """Return the schedule's learning rates (steps,) of some epochs, counted from 0."""
        progress = self._progress(epoch * self.steps_per_epoch)
        return self.plan.optimizer.lr.rates(progress, epochs * self.steps_per_epoch)

    def lr(self, step: int) -> float:
        """Return the learning rate of a step of the run, counted from 0."""
        return self.plan.optimizer.lr.rate(self._progress(step)) * self.state.plateau.scale

    def _progress(self, step: int) -> Progress:
        return Progress(step, self.plan.epochs * self.steps_per_epoch, self.steps_per_epoch)

    def check_finite(self, record: npt.NDArray[np.float64], first_step: int) -> None:
        """Raise DivergedError for the first step of `record` whose loss is not finite."""
        losses = _added_up(record)[:, LOSS]
        finite = np.isfinite(losses)
        bad = len(losses) if finite.all() else int(finite.argmin())
        if bad:
            self.last_finite_loss = float(losses[bad - 1])
        if bad < len(losses):
            raise self.diverged(first_step + bad)

    def check_arrays(self, all_finite: npt.NDArray[np.bool_], last_step: int) -> None:
        """Raise DivergedError if the last updates left numbers that no later step could save."""
        if not all_finite:
            raise self.diverged(last_step)

    def diverged(self, step: int) -> DivergedError:
        """Return the error for a step of the run."""
        return DivergedError(
            remedies=" or ".join(self._remedies()),
            epoch=step // self.steps_per_epoch + 1,
            step=step + 1,
            lr=self.lr(step),
            last_finite_loss=self.last_finite_loss,
        )

    def _remedies(self) -> list[str]:
        remedies = ["a lower learning rate", "clip_norm"]
        if self.plan.precision == "float16" and self.plan.loss_scale != DYNAMIC:
            is_layerwise = self.plan.engine == "layerwise"  # the only one that takes it
            remedies.append("loss_scale='dynamic'" if is_layerwise else "precision='float32'")
        return remedies

    def report(
        self,
        epoch: int,
        record: npt.NDArray[np.float64],
        last_lr: float,
        seconds: float,
        validation: npt.NDArray[np.float64] | None = None,
        num_validated: int = 0,
    ) -> EpochReport:
        """Return what came out of an epoch, counted from 1; `record` is that of its steps.

        `validation` is the record of its validation, of as many rows of data as `num_validated`.
        """
        loss, accuracy = self._means(record, self.num_rows)
        val_loss, val_accuracy = (
            (None, None) if validation is None else self._means(validation, num_validated)
        )
        return EpochReport(
            epoch=epoch,
            loss=loss,
            accuracy=accuracy,
            lr=last_lr,
            seconds=seconds,
            num_rows=self.num_rows,
            step_losses=_added_up(record)[:, LOSS].copy(),
            val_loss=val_loss,
            val_accuracy=val_accuracy,
        )

    def _means(self, record: npt.NDArray[np.float64], num_rows: int) -> tuple[float, float | None]:
        """Return the mean loss of a record of so many rows, and the share that was right."""
        weights = _added_up(record)[:, WEIGHT]
        # Each recorder's own first, as a kernel that decides when the run is over does.
        loss, total_weight = _total(_totals(record[:, :, LOSS] * weights[:, None])), _total(weights)
        counts = self.plan.loss.counts_correct
        return (
            loss / total_weight if total_weight else 0.0,
            float(record[:, :, CORRECT].sum()) / num_rows if counts else None,
        )


def _added_up(record: npt.NDArray[np.float64]) -> npt.NDArray[np.float64]:
    """Return the record (batches, 3) of all recorders together."""
    return np.asarray(record.sum(axis=1))


def _totals(numbers: npt.NDArray[np.float64]) -> npt.NDArray[np.float64]:
    """Return sums over the first axis, one number added after the other, as a kernel does."""
    return np.asarray(np.add.accumulate(numbers)[-1])


def _total(numbers: npt.NDArray[np.float64]) -> float:
    return float(_totals(numbers))
