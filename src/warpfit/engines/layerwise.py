"""The layerwise engine: a step is one operation of the backend after the other. Runs everything, anywhere."""

from __future__ import annotations

from collections.abc import Iterator
from functools import partial
from math import isfinite

import numpy as np

from warpfit.backends import Array
from warpfit.engines.base import (
    BorderTest,
    Engine,
    EpochReport,
    Plan,
    StepListener,
    Stopping,
    TrainingData,
    TrainState,
    every_epoch,
)
from warpfit.engines.reports import LOSS
from warpfit.engines.scaling import DYNAMIC
from warpfit.engines.steps import Run, StepNumbers, check_has_room, copied_bytes

__all__ = ["Layerwise"]


class Layerwise(Engine):
    """Runs a plan's network forward and backward, layer by layer."""

    name = "layerwise"

    def explain(self, plan: Plan, data: TrainingData) -> str:
        check_has_room(plan, data)
        return ""

    def copied_bytes(self, plan: Plan, data: TrainingData) -> int:
        return copied_bytes(plan, data)

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
        is_dynamic = plan.loss_scale == DYNAMIC
        run = _Run(
            plan, state, data, on_step, state.loss_scale.value if is_dynamic else float(plan.loss_scale)
        )
        for _ in range(epochs):
            yield run.epoch()


class _Run(Run):
    """A run whose operations the host starts one by one."""

    def train_epoch(self, rates: list[float]) -> Array:
        record = self.ops.zeros((len(rates), 3), "float64")
        step = self._quiet_step if self.ops.synchronous else self._step
        for idx, lr in enumerate(rates):
            step(idx, lr, record)
            if self.on_step is not None:
                self.on_step(idx + 1, len(rates))
        return record

    def _quiet_step(self, idx: int, lr: float, record: Array) -> None:
        # What overflows here is found by the checks of the epoch, which say more than NumPy's warnings.
        with np.errstate(over="ignore", invalid="ignore"):
            self._step(idx, lr, record)

    def _step(self, idx: int, lr: float, record: Array) -> None:
        plan, state = self.plan, self.state
        step = state.epoch * self.reports.steps_per_epoch + idx
        self.ops.begin_step()
        batch = self.rows.batch(idx * plan.batch_size)
        numbers = StepNumbers(step, idx, state.step + 1, lr)
        is_dynamic = plan.loss_scale == DYNAMIC
        state.step += self.step(batch, numbers, record, partial(self._rescale, step) if is_dynamic else None)
        if self.ops.synchronous and not isfinite(record[idx, LOSS]):
            self.reports.check_finite(record[: idx + 1, None], step - idx)

    def _rescale(self, step: int, gradients: list[Array], loss: Array) -> bool:
        """Choose the next step's loss scale, and return whether this step's gradients are finite."""
        ops, state = self.ops, self.state
        is_finite = bool(ops.to_numpy(ops.all_finite(gradients)))
        try:
            state.loss_scale = state.loss_scale.after(is_finite)
        except OverflowError:
            raise self.reports.diverged(step) from None
        if not is_finite and not isfinite(ops.to_numpy(loss)):
            raise self.reports.diverged(step)  # no other scale would help
        ops.loss_scale = state.loss_scale.value
        return is_finite
