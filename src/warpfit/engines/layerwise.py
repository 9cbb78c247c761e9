"""The layerwise engine: a step is one operation of the backend after the other. Runs everything, anywhere."""

from __future__ import annotations

from collections.abc import Iterator
from functools import lru_cache
from math import isfinite
from time import perf_counter

import numpy as np

from warpfit import backends
from warpfit.backends import Array, Backend
from warpfit.backends.base import HALF_DTYPES
from warpfit.data.order import round_keys_of
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
from warpfit.engines.reports import LOSS, Reports
from warpfit.engines.scaling import DYNAMIC
from warpfit.errors import ConfigError
from warpfit.nn.network import NetworkPullback, NetworkSpec
from warpfit.nn.spec import Call

__all__ = ["Layerwise"]

# Largest array that is put in order once an epoch.
EPOCH_COPY_BYTES = 1 << 30

# Epochs whose keys are found together, which takes no longer than finding one's.
KEYED_EPOCHS = 64


class Layerwise(Engine):
    """Runs a plan's network forward and backward, layer by layer."""

    name = "layerwise"

    def explain(self, plan: Plan, data: TrainingData) -> str:
        if data.is_streamed:
            raise ConfigError(
                f"expected data that {plan.device} has room for, got {data.x.nbytes} bytes of x"
            )
        return ""

    def copied_bytes(self, plan: Plan, data: TrainingData) -> int:
        """Return the bytes of the data in the order of the epoch; see `_Batches`."""
        if plan.device == "cpu":
            return 0
        sizes = [_size_as(array, dtype) for array, dtype in _sources(plan, data)]
        return sum(size for size in sizes if size <= EPOCH_COPY_BYTES)

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
        run = _Run(plan, state, data, on_step)
        for _ in range(epochs):
            yield run.epoch()


class _Batches:
    """The data's rows in the order of an epoch, a batch at a time.

    On a device that works while the host goes on, arrays that are small enough are put in order once an epoch, so
    that taking a batch out of them is not a kernel but a slice.
    """

    def __init__(self, ops: Backend, plan: Plan, data: TrainingData) -> None:
        self.ops, self.plan, self.num_rows = ops, plan, len(data)
        self.sources = _sources(plan, data)
        self.ordered: list[Array | None] = [None] * len(self.sources)
        self.order: Array | None = None

    def begin_epoch(self, seed: int, epoch: int) -> None:
        """Put the rows in order; they keep theirs without `plan.shuffle`."""
        order: Array = np.arange(self.num_rows)
        if self.plan.shuffle:
            order = self.ops.epoch_order(self.num_rows, _round_keys(seed, epoch))
        self.order = self.ops.asarray(order)
        # A backend that does not take its results back at the next step.
        keeper = backends.get(self.plan.device)
        for i, (array, dtype) in enumerate(self.sources):
            if not self.ops.synchronous and _size_as(array, dtype) <= EPOCH_COPY_BYTES:
                self.ordered[i] = None  # its memory serves the next epoch's
                self.ordered[i] = keeper.gather_rows(array, self.order, dtype)

    def take(self, first: int) -> tuple[Array, Array, Array | None]:
        """Return x, y and the sample weights (None if there are none) of the batch that begins at row `first`."""
        rows = slice(first, first + self.plan.batch_size)
        x, y = self._taken(0, rows), self._taken(1, rows)
        return x, y, self._taken(2, rows) if len(self.sources) == 3 else None

    def _taken(self, i: int, rows: slice) -> Array:
        ordered = self.ordered[i]
        if ordered is not None:
            return ordered[rows]
        array, dtype = self.sources[i]
        return self.ops.gather_rows(array, self.order[rows], dtype)  # type: ignore[index]


def _round_keys(seed: int, epoch: int) -> Array:
    return _keys_of_span(seed, epoch // KEYED_EPOCHS)[epoch % KEYED_EPOCHS]


@lru_cache(maxsize=4)
def _keys_of_span(seed: int, span: int) -> Array:
    """Return the round keys (KEYED_EPOCHS, 8) of the epochs from KEYED_EPOCHS · span on."""
    return round_keys_of(seed, range(span * KEYED_EPOCHS, (span + 1) * KEYED_EPOCHS))


def _sources(plan: Plan, data: TrainingData) -> list[tuple[Array, str]]:
    """Return the arrays that batches are taken from, each with the dtype of a batch."""
    storage = plan.precision if plan.precision in HALF_DTYPES else plan.dtype
    sources = [(data.x, storage), (data.y, str(data.y.dtype))]
    return sources if data.sample_weight is None else [*sources, (data.sample_weight, plan.dtype)]


def _size_as(array: Array, dtype: str) -> int:
    """Return the bytes of an array's elements in another dtype."""
    return int(array.size) * (2 if dtype in HALF_DTYPES else np.dtype(dtype).itemsize)


class _Run:
    """One run: the plan bound to its state and data."""

    def __init__(
        self, plan: Plan, state: TrainState, data: TrainingData, on_step: StepListener | None
    ) -> None:
        self.is_scale_dynamic = plan.loss_scale == DYNAMIC
        scale = state.loss_scale.value if self.is_scale_dynamic else float(plan.loss_scale)
        self.ops: Backend = backends.create(plan.device, precision=plan.precision, loss_scale=scale)
        self.plan, self.state, self.data, self.on_step = plan, state, data, on_step
        self.network = plan.network.fused
        self.arrays = state.arrays
        self.half = plan.precision if plan.precision in HALF_DTYPES else None
        self.copies = self._half_copies()
        self.batches = _Batches(self.ops, plan, data)
        self.parameters = [state.parameters[name] for name in plan.trained]
        self.slots = {slot: [arrays[name] for name in plan.trained] for slot, arrays in state.slots.items()}
        self.reports = Reports(plan, state, len(data))

    def epoch(self) -> EpochReport:
        start = perf_counter()
        state, steps = self.state, self.reports.steps_per_epoch
        first_step = state.epoch * steps
        rates = (self.reports.rates(state.epoch, 1) * state.plateau.scale).tolist()
        self.batches.begin_epoch(state.seed, state.epoch)
        record = self.ops.zeros((steps, 3), "float64")
        for idx, lr in enumerate(rates):
            # What overflows here is found by the checks below, which say more than NumPy's warnings.
            with np.errstate(over="ignore", invalid="ignore"):
                self._step(idx, lr, record)
            if self.on_step is not None:
                self.on_step(idx + 1, steps)
        all_finite = self.ops.all_finite(list(self.arrays.values()))
        host_record = self.ops.to_numpy(record)[:, None]
        self.reports.check_finite(host_record, first_step)
        self.reports.check_arrays(self.ops.to_numpy(all_finite), first_step + steps - 1)
        state.epoch += 1
        return self.reports.report(state.epoch, host_record, rates[-1], perf_counter() - start)

    def _step(self, idx: int, lr: float, record: Array) -> None:
        ops, plan, state = self.ops, self.plan, self.state
        step = state.epoch * self.reports.steps_per_epoch + idx
        ops.begin_step()
        x, y, sample_weight = self.batches.take(idx * plan.batch_size)
        weights = {"class_weight": self.data.class_weight}
        if sample_weight is not None:
            weights["sample_weight"] = sample_weight
        call = Call(training=True, step=step, seed=state.seed)
        outputs, pullback = self._forward(x, call)
        loss, weight, loss_gradient = plan.loss.vjp(ops, outputs, y, **weights)
        correct = plan.loss.count_correct(ops, outputs, y)
        named = pullback(loss_gradient())
        gradients = [named[name] for name in plan.trained]
        is_update = not self.is_scale_dynamic or self._rescale(step, gradients, loss)
        is_weighted = sample_weight is not None and plan.optimizer.l2_by_weight
        count = float(ops.to_numpy(weight)) if is_weighted else len(x)
        penalty = plan.optimizer.add_penalty(ops, self.parameters, gradients, num_rows=count)
        ops.record_step(record, idx, loss, weight, correct, penalty)
        if is_update:
            state.step += 1
            plan.optimizer.update(ops, self.parameters, gradients, self.slots, step=state.step, lr=lr)
        if ops.synchronous and not isfinite(record[idx, LOSS]):
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

    def _half_copies(self) -> dict[str, Array]:
        """Return copies in half precision of the arrays that the layers compute with; the rest have none."""
        if self.half is None or not isinstance(self.network, NetworkSpec):
            return {}
        in_full = {name for name, spec in self.network.layers if spec.full_precision}
        return {
            name: self.ops.copy(self.ops.asarray(array, self.half))
            for name, array in self.state.parameters.items()
            if name.rpartition(".")[0] not in in_full
        }

    def _forward(self, x: Array, call: Call) -> tuple[Array, NetworkPullback]:
        """Return the outputs, and the function from their gradient to the parameters'; both outside in full."""
        ops, half = self.ops, self.half
        if half is None:
            return self.network.vjp(ops, self.arrays, x, call)
        ops.cast_into(list(self.copies.values()), [self.arrays[name] for name in self.copies])
        outputs, pullback = self.network.vjp(ops, {**self.arrays, **self.copies}, x, call)
        return ops.cast(outputs, self.plan.dtype), lambda dy: pullback(ops.cast(dy, half, ops.loss_scale))
