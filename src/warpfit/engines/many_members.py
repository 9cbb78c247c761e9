"""Networks of a sweep on their way into a launch, and what comes out of it."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property

import numpy as np
import numpy.typing as npt

from warpfit.engines.base import EpochReport, Plan, Stopping, TrainState
from warpfit.engines.rungs import Halved
from warpfit.errors import DivergedError
from warpfit.nn.init import InitialValues
from warpfit.optim.schedules import Progress

Rows = npt.NDArray[np.int32]


@dataclass(frozen=True)
class Member:
    """A network of a sweep: its plan; its state, NumPy's arrays; which rows it trains on, and which
    it is held against.
    """

    plan: Plan
    state: TrainState
    # (num_rows,) int32: among the data's; None for the first `plan.num_rows`.
    rows: Rows | None = None
    validation_rows: Rows | None = None  # (num_validated,) int32: likewise; none for None
    until: int | None = None  # the epoch after which it is to pause, in place of the plan's last
    # Ends its run after the epoch that this rule makes the last. Every epoch is reported then.
    stopping: Stopping | None = None
    # What the state's parameters are, layer by layer weight and bias, for a kernel to draw; the
    # optimizer state is zeros then.
    starts: Sequence[InitialValues] = ()

    @property
    def num_validated(self) -> int | None:
        """Rows that it is held against, None if none."""
        return None if self.validation_rows is None else len(self.validation_rows)

    @property
    def epochs(self) -> range:
        """Those that are to be trained, counted from 0: from where the state stands."""
        last = self.plan.epochs if self.until is None else min(self.until, self.plan.epochs)
        return range(self.state.epoch, last)


@dataclass(frozen=True)
class Records:
    """What a launch recorded of a network's epochs, and what else their reports say."""

    plan: Plan
    # num_rows and num_validated: rows that it trained on, and that it was held against; None for
    # none.
    num_rows: int
    num_validated: int | None
    # (epochs, 4) float64: loss, right rows, and both of the validation rows.
    sums: npt.NDArray[np.float64]
    first_epoch: int  # of the sums
    rate_scale: float  # what the schedule's rate is multiplied by
    seconds: float  # of an epoch

    def report(self, epoch: int) -> EpochReport:
        """Return the report of an epoch, counted from 0."""
        loss, correct, val_loss, val_correct = self.sums[epoch - self.first_epoch].tolist()
        plan, validated = self.plan, self.num_validated
        counts = plan.loss.counts_correct
        steps = -(-self.num_rows // plan.batch_size)
        progress = Progress((epoch + 1) * steps - 1, plan.epochs * steps, steps)
        return EpochReport(
            epoch=epoch + 1,
            loss=loss,
            accuracy=correct / self.num_rows if counts else None,
            lr=plan.optimizer.lr.rate(progress) * self.rate_scale,
            seconds=self.seconds,
            num_rows=self.num_rows,
            step_losses=np.empty(0),
            val_loss=None if validated is None else val_loss,
            val_accuracy=val_correct / validated if counts and validated is not None else None,
        )


class Outcome:
    """What came out of a member's run.

    Parameters
    ----------
    reported : sequence of int
        Epochs, counted from 0, that have reports.
    records : Records
        Of them.
    error : DivergedError or None
        If its loss was no number in the epoch after these.
    halved : Halved or None
        If it was left behind after these.

    Attributes
    ----------
    reports : list of EpochReport
        Made when they are asked for; they have no losses of single steps.
    last : EpochReport or None
        The last of them.
    """

    def __init__(
        self,
        reported: Sequence[int],
        records: Records,
        error: DivergedError | None,
        halved: Halved | None = None,
    ) -> None:
        self.reported, self.records = reported, records
        self.error, self.halved = error, halved

    @cached_property
    def last(self) -> EpochReport | None:
        return self.records.report(self.reported[-1]) if self.reported else None

    @cached_property
    def reports(self) -> list[EpochReport]:
        found = [self.records.report(epoch) for epoch in self.reported[:-1]]
        return found if self.last is None else [*found, self.last]
