"""The layerwise engine: a step is one operation of the backend after the other. Runs everything, anywhere."""

from __future__ import annotations

from collections.abc import Iterator
from math import isfinite
from time import perf_counter

import numpy as np
import numpy.typing as npt

from warpfit import backends
from warpfit.backends import Array, Backend
from warpfit.data.order import epoch_order
from warpfit.engines.base import Engine, EpochReport, Plan, StepListener, TrainingData, TrainState
from warpfit.errors import DivergedError
from warpfit.nn.spec import Call
from warpfit.optim.schedules import Progress

__all__ = ["Layerwise"]

# Columns of an epoch's record, one row a step.
LOSS, WEIGHT, CORRECT = 0, 1, 2


class Layerwise(Engine):
    """Runs a plan's network forward and backward, layer by layer."""

    name = "layerwise"

    def run(
        self,
        plan: Plan,
        state: TrainState,
        data: TrainingData,
        epochs: int,
        on_step: StepListener | None = None,
    ) -> Iterator[EpochReport]:
        run = _Run(plan, state, data, on_step)
        for _ in range(epochs):
            yield run.epoch()


class _Run:
    """One run: the plan bound to its state and data."""

    def __init__(
        self, plan: Plan, state: TrainState, data: TrainingData, on_step: StepListener | None
    ) -> None:
        self.ops: Backend = backends.create(plan.device)
        self.plan, self.state, self.data, self.on_step = plan, state, data, on_step
        self.network = plan.network.fused
        self.arrays = state.arrays
        self.parameters = [state.parameters[name] for name in plan.trained]
        self.slots = {slot: [arrays[name] for name in plan.trained] for slot, arrays in state.slots.items()}
        self.steps_per_epoch = -(-len(data) // plan.batch_size)
        self.last_finite_loss: float | None = None

    def epoch(self) -> EpochReport:
        start = perf_counter()
        state, num_rows = self.state, len(self.data)
        order = epoch_order(num_rows, state.seed, state.epoch) if self.plan.shuffle else np.arange(num_rows)
        rows = self.ops.asarray(order)
        record = self.ops.zeros((self.steps_per_epoch, 3), "float64")
        for idx in range(self.steps_per_epoch):
            first = idx * self.plan.batch_size
            # What overflows here is found by the checks below, which say more than NumPy's warnings.
            with np.errstate(over="ignore", invalid="ignore"):
                self._step(idx, rows[first : first + self.plan.batch_size], record)
            if self.on_step is not None:
                self.on_step(idx + 1, self.steps_per_epoch)
        host_record = self.ops.to_numpy(record)
        self._check_finite(host_record, 0)
        self._check_finite_arrays()
        state.epoch += 1
        return self._report(host_record, perf_counter() - start)

    def _step(self, idx: int, rows: Array, record: Array) -> None:
        ops, plan, state, data = self.ops, self.plan, self.state, self.data
        ops.begin_step()
        x = ops.gather_rows(data.x, rows, plan.precision)
        y = ops.gather_rows(data.y, rows, str(data.y.dtype))
        weights = {"class_weight": data.class_weight}
        if data.sample_weight is not None:
            weights["sample_weight"] = ops.gather_rows(data.sample_weight, rows, plan.precision)
        call = Call(training=True, step=state.epoch * self.steps_per_epoch + idx, seed=state.seed)
        outputs, pullback = self.network.vjp(ops, self.arrays, x, call)
        loss, weight, loss_gradient = plan.loss.vjp(ops, outputs, y, **weights)
        correct = plan.loss.count_correct(ops, outputs, y)
        gradients = pullback(loss_gradient())
        state.step += 1
        penalty = plan.optimizer.update(
            ops,
            self.parameters,
            [gradients[name] for name in plan.trained],
            self.slots,
            step=state.step,
            lr=self._lr(idx),
            num_rows=len(rows),
        )
        ops.record_step(record, idx, loss, weight, correct, penalty)
        if ops.synchronous:
            self._check_finite(record[idx : idx + 1], idx)

    def _lr(self, idx: int) -> float:
        """Return the learning rate of a step of the current epoch."""
        progress = Progress(
            self.state.epoch * self.steps_per_epoch + idx,
            self.plan.epochs * self.steps_per_epoch,
            self.steps_per_epoch,
        )
        return self.plan.optimizer.lr.rate(progress) * self.state.plateau.scale

    def _check_finite(self, record: npt.NDArray[np.float64], first_idx: int) -> None:
        """Raise DivergedError for the first step of `record` whose loss is not finite."""
        for idx, loss in enumerate(record[:, LOSS].tolist(), start=first_idx):
            if not isfinite(loss):
                raise self._diverged(idx)
            self.last_finite_loss = loss

    def _check_finite_arrays(self) -> None:
        """Raise DivergedError if the epoch's last updates left numbers that no later step could save."""
        if not all(np.isfinite(self.ops.to_numpy(array)).all() for array in self.arrays.values()):
            raise self._diverged(self.steps_per_epoch - 1)

    def _diverged(self, idx: int) -> DivergedError:
        return DivergedError(
            epoch=self.state.epoch + 1,
            step=self.state.epoch * self.steps_per_epoch + idx + 1,
            lr=self._lr(idx),
            last_finite_loss=self.last_finite_loss,
        )

    def _report(self, record: npt.NDArray[np.float64], seconds: float) -> EpochReport:
        losses, weights = record[:, LOSS], record[:, WEIGHT]
        total_weight = weights.sum()
        num_rows = len(self.data)
        counts = self.plan.loss.counts_correct
        return EpochReport(
            epoch=self.state.epoch,
            loss=float(losses @ weights / total_weight) if total_weight else 0.0,
            accuracy=float(record[:, CORRECT].sum() / num_rows) if counts else None,
            lr=float(self._lr(-1)),  # the epoch is over: its last step is the one before the next's first
            seconds=seconds,
            num_rows=num_rows,
            step_losses=losses.copy(),
        )
