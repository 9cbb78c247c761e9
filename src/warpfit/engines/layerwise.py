"""The layerwise engine: a step is one operation after the other. Runs everything, anywhere."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import replace
from functools import partial
from math import isfinite

import numpy as np

from warpfit import backends
from warpfit.backends import Array, Backend
from warpfit.backends.contract.communicator import Communicator
from warpfit.engines.base import (
    BorderTest,
    Engine,
    EpochReport,
    Plan,
    Prepared,
    StepListener,
    Stopping,
    TrainingData,
    TrainState,
    every_epoch,
)
from warpfit.engines.parts import part_of
from warpfit.engines.replicas import team_of
from warpfit.engines.reports import LOSS
from warpfit.engines.scaling import AUTO, DYNAMIC
from warpfit.engines.steps import Batch, RowSource, Run, StepNumbers, row_sources


class Layerwise(Engine):
    """Runs a plan's network forward and backward, layer by layer."""

    name = "layerwise"
    has_ranks = True

    def prepare(
        self,
        draft: Plan,
        data: TrainingData,
        validation: TrainingData | None = None,
        stopping: Stopping | None = None,
    ) -> Prepared:
        data.on(draft.device)
        precision = draft.dtype if draft.precision == AUTO else draft.precision
        return Prepared(
            precision=precision,
            copied_bytes=_ordered_bytes(replace(draft, precision=precision), data),
        )

    def run(
        self,
        plan: Plan,
        state: TrainState,
        data: TrainingData,
        epochs: int,
        on_step: StepListener | None = None,
        is_border: BorderTest = every_epoch,
        validation: TrainingData | None = None,
        stopping: Stopping | None = None,
    ) -> Iterator[EpochReport]:
        with team_of(plan, state, data, partial(_Run, on_step=on_step)) as team:
            for _ in range(epochs):
                yield from team.epochs(1)


def _ordered_bytes(plan: Plan, data: TrainingData) -> int:
    """Return the bytes of the data in the order of the epoch; see `EpochRows`."""
    if plan.device == "cpu":
        return 0
    ordered = sum(source.nbytes for source in row_sources(plan, data) if source.is_ordered)
    whole, last = divmod(len(data), plan.batch_size)
    of_rank = whole * plan.most_of_rank(plan.batch_size) + plan.most_of_rank(last)
    return ordered * of_rank // max(1, len(data))


class EpochRows:
    """The data's rows in the order of an epoch.

    On a device that works while the host goes on, arrays that are small enough are put in order
    once an epoch, so that taking a batch out of them is not a kernel but a slice.

    Parameters
    ----------
    ops : Backend
    sources : sequence of RowSource
    keeper : Backend
        Of the same device, which hands out the same arrays in every epoch.
    """

    def __init__(self, ops: Backend, sources: Sequence[RowSource], keeper: Backend) -> None:
        self.ops, self.sources, self._keeper = ops, sources, keeper
        self.ordered: list[Array | None] = [None] * len(sources)
        self.order: Array | None = None

    def put_in(self, order: Array) -> None:
        """Put the rows in this order, (N,) int64."""
        self.order = order
        self._keeper.begin_step()
        for i, source in enumerate(self.sources):
            if not self.ops.synchronous and source.is_ordered:
                self.ordered[i] = self._keeper.gather_rows(source.array, order, source.dtype)

    def batch(self, first: int, num_rows: int) -> Batch:
        """Return the batch of so many rows that begins at row `first`."""
        rows = slice(first, first + num_rows)
        x, y, *weights = (self._taken(i, rows) for i in range(len(self.sources)))
        return x, y, weights[0] if weights else None

    def _taken(self, i: int, rows: slice) -> Array:
        ordered = self.ordered[i]
        if ordered is not None:
            return ordered[rows]
        array, dtype = self.sources[i]
        return self.ops.gather_rows(array, self.order[rows], dtype)  # type: ignore[index]


class _Run(Run):
    """A run whose operations the host starts one by one."""

    def __init__(
        self,
        plan: Plan,
        state: TrainState,
        data: TrainingData,
        ranks: Communicator,
        on_step: StepListener | None = None,
    ) -> None:
        is_dynamic = plan.loss_scale == DYNAMIC
        scale = state.loss_scale.value if is_dynamic else float(plan.loss_scale)
        super().__init__(plan, state, data, on_step, scale, ranks)
        self.rows = EpochRows(self.ops, self.sources, backends.create(plan.device))

    def train_epoch(self, rates: list[float], order: Array) -> Array:
        self.rows.put_in(order)
        if self.plan.loss_scale == DYNAMIC:  # a callback may have chosen another
            self.ops.loss_scale = self.state.loss_scale.value
        record = self.ops.zeros((len(rates), 3), "float64")
        step = self._quiet_step if self.ops.synchronous else self._step
        for idx, lr in enumerate(rates):
            step(idx, lr, record)
            if self.on_step is not None:
                self.on_step(idx + 1, len(rates))
        return record

    def _quiet_step(self, idx: int, lr: float, record: Array) -> None:
        # What overflows here is found by the checks of the epoch, which say more than NumPy's
        # warnings.
        with np.errstate(over="ignore", invalid="ignore"):
            self._step(idx, lr, record)

    def _step(self, idx: int, lr: float, record: Array) -> None:
        plan, state = self.plan, self.state
        step = state.epoch * self.reports.steps_per_epoch + idx
        self.ops.begin_step()
        num_rows = min(plan.batch_size, len(self.data) - idx * plan.batch_size)
        part = part_of(num_rows, self.ranks)
        batch = self.rows.batch(idx * self.batch_rows, part.rows)
        numbers = StepNumbers(step, idx, part, state.step + 1, lr)
        is_dynamic = plan.loss_scale == DYNAMIC
        state.step += self.step(
            batch, numbers, record, partial(self._rescale, step) if is_dynamic else None
        )
        # Several ranks find it at the end of the epoch, together.
        if self.ops.synchronous and self.ranks.size == 1 and not isfinite(record[idx, LOSS]):
            self.reports.check_finite(record[: idx + 1, None], step - idx)

    def _rescale(self, step: int, gradients: list[Array], loss: Array) -> bool:
        """Choose the next step's loss scale; return whether this step's gradients are finite."""
        ops, state = self.ops, self.state
        is_finite = bool(ops.to_numpy(ops.all_finite(gradients)))
        try:
            state.loss_scale = state.loss_scale.after(is_finite)
        except OverflowError:
            raise self.reports.diverged(step) from None
        # Of several ranks each knows its own rows' loss, and all go on alike.
        if not is_finite and self.ranks.size == 1 and not isfinite(ops.to_numpy(loss)):
            raise self.reports.diverged(step)  # no other scale would help
        ops.loss_scale = state.loss_scale.value
        return is_finite
