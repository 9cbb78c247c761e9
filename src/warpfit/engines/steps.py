"""What the engines that go from operation to operation share: a run's epochs, its rows in order,
and a step.

They differ in where the numbers and rows of a step come from, and in who starts its operations: the
host each time, or a graph.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Collection
from functools import lru_cache
from time import perf_counter
from typing import Any, NamedTuple

import numpy as np

from warpfit import backends
from warpfit.backends import Array, Backend
from warpfit.backends.base import HALF_DTYPES, Activation, Number
from warpfit.backends.contract.communicator import Communicator
from warpfit.data.order import round_keys_of
from warpfit.engines.at_once import (
    joins_last_layer,
    joins_updates,
    narrow_loss,
    narrow_step,
    updates_each_alone,
)
from warpfit.engines.base import EpochReport, Plan, StepListener, TrainingData, TrainState
from warpfit.engines.parts import Part, Reduction, own_rows, part_of, share_of
from warpfit.engines.reports import LOSS, WEIGHT, Reports
from warpfit.nn.linear import LinearSpec
from warpfit.nn.network import NetworkSpec
from warpfit.nn.spec import Call, NetworkPullback
from warpfit.permutation import permutations

# Largest array that is put in order once an epoch.
EPOCH_COPY_BYTES = 1 << 30

# Epochs whose keys are found together, which takes no longer than finding one's.
KEYED_EPOCHS = 64

# Rows of which the host finds the orders of as many epochs together, where it is the device.
ORDERED_ROWS = 4096


# The rows of a step: x, y and the sample weights, None if there are none.
Batch = tuple[Array, Array, Array | None]


class StepNumbers(NamedTuple):
    """What differs between two steps besides their rows."""

    step: Number  # of the run, counted from 0: it decides dropout's masks
    row: Number  # of the epoch's record
    part: Part  # which rows of the batch these are
    update: int = 0  # the optimizer's step, counted from 1
    lr: float = 0.0
    # The optimizer's numbers on the device, in place of `update` and `lr`; see
    # `OptimizerSpec.numbers_of_groups`.
    of_update: Array | None = None


class RowSource(NamedTuple):
    """An array that batches are taken from."""

    array: Array  # (N, ...)
    dtype: str  # of a batch

    @property
    def nbytes(self) -> int:
        """The bytes of all rows as batches have them."""
        itemsize = 2 if self.dtype in HALF_DTYPES else np.dtype(self.dtype).itemsize
        return int(self.array.size) * itemsize

    @property
    def is_ordered(self) -> bool:
        """Whether `layerwise` puts it in order once an epoch on a device, and takes slices."""
        return self.nbytes <= EPOCH_COPY_BYTES


def row_sources(plan: Plan, data: TrainingData) -> list[RowSource]:
    """Return what batches are taken from: x, y and the sample weights, if there are any."""
    storage = plan.precision if plan.precision in HALF_DTYPES else plan.dtype
    sources = [RowSource(data.x, storage), RowSource(data.y, str(data.y.dtype))]
    return (
        sources
        if data.sample_weight is None
        else [*sources, RowSource(data.sample_weight, plan.dtype)]
    )


def _round_keys(seed: int, epoch: int) -> Array:
    return _keys_of_span(seed, epoch // KEYED_EPOCHS)[epoch % KEYED_EPOCHS]


@lru_cache(maxsize=4)
def _keys_of_span(seed: int, span: int) -> Array:
    """Return the round keys (KEYED_EPOCHS, 8) of the epochs from KEYED_EPOCHS · span on."""
    return round_keys_of(seed, range(span * KEYED_EPOCHS, (span + 1) * KEYED_EPOCHS))


@lru_cache(maxsize=4)
def _orders_of_span(seed: int, span: int, num_rows: int) -> Array:
    """Return the orders (KEYED_EPOCHS, num_rows) of the same epochs."""
    orders = permutations(num_rows, _keys_of_span(seed, span))
    orders.flags.writeable = False
    return orders


class Run(ABC):
    """One run: the plan bound to its state and data.

    Parameters
    ----------
    plan : Plan
    state : TrainState
    data : TrainingData
    on_step : StepListener or None
    loss_scale : float
        With which the run begins.
    ranks : Communicator
        Among which this run is one, of its rows of each batch.
    """

    def __init__(
        self,
        plan: Plan,
        state: TrainState,
        data: TrainingData,
        on_step: StepListener | None,
        loss_scale: float,
        ranks: Communicator,
    ) -> None:
        self.ops: Backend = backends.create(
            plan.device,
            precision=plan.precision,
            loss_scale=loss_scale,
            shares_device=ranks.size > 1,
        )
        self.plan, self.state, self.data, self.ranks = plan, state, data, ranks
        self.on_step = on_step if ranks.rank == 0 else None
        # Of all batches but an epoch's last, which may be shorter.
        self.batch_rows = part_of(plan.batch_size, ranks).rows
        self.network = plan.network.fused
        self.trained = frozenset(plan.trained)
        self.arrays = state.arrays
        self.half = plan.precision if plan.precision in HALF_DTYPES else None
        self.copies = self._half_copies()
        self.updates_by_bucket = ranks.size > 1 and updates_each_alone(plan)
        is_joined = (
            bool(self.copies)
            and joins_updates(plan)
            and self.ops.keep_copies(
                [self.arrays[name] for name in self.copies], list(self.copies.values())
            )
        )
        # Whether each update writes them; otherwise each step does, before it computes with them.
        self.keeps_copies = is_joined or self.updates_by_bucket
        # Of steps that are one operation and the update, but for a last batch that is too short.
        is_narrow = (
            is_joined and narrow_step(plan, data, min(plan.batch_size, len(data))) is not None
        )
        self.loss_terms = narrow_loss(plan, data) if is_narrow else None
        self.narrow_layers = self._narrow_layers() if self.loss_terms else []
        self.joins_last_layer = joins_last_layer(plan, data)
        self.sources = row_sources(plan, data)
        self.places = {name: idx for idx, name in enumerate(plan.trained)}
        self.parameters = [state.parameters[name] for name in plan.trained]
        self.slots = {
            slot: [arrays[name] for name in plan.trained] for slot, arrays in state.slots.items()
        }
        self.reports = Reports(plan, state, len(data))

    def epochs(self, count: int) -> list[EpochReport]:
        """Train for some epochs at once, and return what came out of each."""
        with self.ops.own_threads():
            return self._epochs(count)

    def _epochs(self, count: int) -> list[EpochReport]:
        start, ops, state = perf_counter(), self.ops, self.state
        steps, first_epoch = self.reports.steps_per_epoch, state.epoch
        if self.keeps_copies:  # others may have changed the parameters since
            self._write_copies()
        records, last_rates = ops.zeros((count, steps, 3), "float64"), []
        for idx in range(count):
            rates = self.rates(state.epoch)
            order = self._order(state.seed, state.epoch)
            if self.ranks.size > 1:
                order = own_rows(ops, order, self.plan.batch_size, self.ranks)
            ops.assign(records[idx], self.train_epoch(rates, order))
            self._average_buffers()
            last_rates.append(rates[-1])
            state.epoch += 1
        if self.ranks.size > 1:
            records = self._of_all_ranks(records)
        all_finite = ops.all_finite(list(self.arrays.values()))
        host_records = ops.to_numpy(records)[:, :, None]
        self.reports.check_finite(np.concatenate(host_records), first_epoch * steps)
        self.reports.check_arrays(ops.to_numpy(all_finite), state.epoch * steps - 1)
        seconds = (perf_counter() - start) / count
        return [
            self.reports.report(first_epoch + 1 + idx, record, last_rates[idx], seconds)
            for idx, record in enumerate(host_records)
        ]

    def _average_buffers(self) -> None:
        """Let all ranks have the mean of their buffers, of which each knows its own rows'."""
        buffers = list(self.state.buffers.values())
        if self.ranks.size == 1 or not buffers:
            return
        self.ranks.all_reduce(buffers)
        self.ranks.join()
        for buffer in buffers:
            self.ops.assign(buffer, self.ops.binary("mul", buffer, 1 / self.ranks.size))

    def _of_all_ranks(self, records: Array) -> Array:
        """Return the records (epochs, steps, 3) of whole batches."""
        ops, ranks = self.ops, self.ranks
        own = ops.to_numpy(records).copy()
        own[..., LOSS] *= own[..., WEIGHT]
        total = ops.asarray(own)
        ranks.all_reduce([total])
        ranks.join()
        found = ops.to_numpy(total).copy()
        found[..., LOSS] /= np.where(found[..., WEIGHT], found[..., WEIGHT], 1)
        return ops.asarray(found)

    @abstractmethod
    def train_epoch(self, rates: list[float], order: Array) -> Array:
        """Train for the steps of an epoch, with these rates and this rank's rows in this order,
        (n,) int64.

        Returns
        -------
        array (steps, 3) float64
            Their record.
        """

    def _order(self, seed: int, epoch: int) -> Array:
        """Return the rows' numbers (N,) int64 as they come; without `plan.shuffle` their own."""
        num_rows = len(self.data)
        if not self.plan.shuffle:
            return self.ops.asarray(np.arange(num_rows))
        if self.ops.synchronous and num_rows <= ORDERED_ROWS:
            return _orders_of_span(seed, epoch // KEYED_EPOCHS, num_rows)[epoch % KEYED_EPOCHS]
        return self.ops.epoch_order(num_rows, _round_keys(seed, epoch))

    def rates(self, epoch: int) -> list[float]:
        """Return the learning rates of an epoch's steps, as things stand; it is counted from 0."""
        rates: list[float] = (self.reports.rates(epoch, 1) * self.state.plateau.scale).tolist()
        return rates

    def step(
        self,
        batch: Batch,
        numbers: StepNumbers,
        record: Array,
        admits: Callable[[list[Array], Array], bool] | None = None,
    ) -> bool:
        """Start the operations of a step, and return whether its update was one of them.

        Parameters
        ----------
        batch : Batch
        numbers : StepNumbers
        record : array (steps, 3) float64
        admits : function, optional
            Returns for gradients and loss whether there is to be an update; there always is without
            it.
        """
        plan = self.plan
        x, y, sample_weight = batch
        weights: dict[str, Array | None] = {"class_weight": self.data.class_weight}
        if sample_weight is not None:
            weights["sample_weight"] = sample_weight
        part = numbers.part
        of_ranks = (part.first, self.trained, self.ranks, part.whole)
        later = self.joins_last_layer and admits is None
        call = Call(True, numbers.step, self.state.seed, *of_ranks, later)
        if admits is None and self.step_at_once(x, y, numbers, record):
            return True
        outputs, pullback = self._forward(x, call)
        gradient = None
        if admits is None and not plan.optimizer.l2:
            gradient = self._loss_at_once(outputs, y, record, numbers, weights)
        if gradient is None:
            gradients, is_update = self._loss_in_parts(
                outputs, pullback, y, record, numbers, weights, admits
            )
        elif self.updates_by_bucket:
            self._update_by_bucket(pullback, gradient, numbers)
            return True
        else:
            gradients, is_update = self._gradients(pullback, gradient), True
        if is_update:
            self._update(gradients, numbers)
        return is_update

    def _update_by_bucket(self, pullback: NetworkPullback, dy: Array, numbers: StepNumbers) -> None:
        """Update parameters while the gradients of the last bucket are still added up."""
        reduction = Reduction(self.ranks, self.places)
        gradients = pullback(dy, reduction.add)
        for names in reduction.ends():
            places = [self.places[name] for name in names]
            self.plan.optimizer.apply(
                self.ops,
                [self.parameters[idx] for idx in places],
                [gradients[name] for name in names],
                {slot: [arrays[idx] for idx in places] for slot, arrays in self.slots.items()},
                step=numbers.update,
                lr=numbers.lr,
                numbers=numbers.of_update,
            )
            self._write_copies([name for name in names if name in self.copies])

    def _update(self, gradients: list[Array], numbers: StepNumbers) -> None:
        self.plan.optimizer.update(
            self.ops,
            self.parameters,
            gradients,
            self.slots,
            step=numbers.update,
            lr=numbers.lr,
            numbers=numbers.of_update,
        )
        if self.updates_by_bucket:
            self._write_copies([name for name in self.places if name in self.copies])

    def step_at_once(
        self, x: Array, y: Array, numbers: StepNumbers, record: Array, rows: Any = None
    ) -> bool:
        """Start a step that is one operation and the update, and return whether there is one.

        `rows` are as `Backend.narrow_step` takes them.
        """
        if self.loss_terms is None:
            return False
        assert isinstance(self.network, NetworkSpec)  # as `narrow_loss` has found
        layers, loss = self.narrow_layers, self.loss_terms
        found = self.ops.narrow_step(x, layers, y, loss, record, numbers.row, rows)
        if found is None:
            return False
        gradients: dict[str, Array] = {}
        for (name, _), (dw, db) in zip(self.network.layers, found, strict=True):
            gradients |= {f"{name}.weight": dw, f"{name}.bias": db}
        self._update(self._trained_of(gradients), numbers)
        return True

    def _loss_at_once(
        self,
        outputs: Array,
        y: Array,
        record: Array,
        numbers: StepNumbers,
        weights: dict[str, Array | None],
    ) -> Array | None:
        """Record the loss by one operation, and return the outputs' gradient, None if none."""
        if not isinstance(self.network, NetworkSpec):
            return None
        ops, scale = self.ops, 1.0 if self.half is None else self.ops.loss_scale
        if self.ranks.size > 1:
            is_weighted = any(weight is not None for weight in weights.values())
            if is_weighted or numbers.part.whole < self.ranks.size:
                return None  # all ranks do the same, those without rows, too
            scale *= numbers.part.share
        return self.plan.loss.train_step(
            ops, outputs, y, record, numbers.row, scale=scale, **weights
        )

    def _loss_in_parts(
        self,
        outputs: Array,
        pullback: NetworkPullback,
        y: Array,
        record: Array,
        numbers: StepNumbers,
        weights: dict[str, Array | None],
        admits: Callable[[list[Array], Array], bool] | None,
    ) -> tuple[list[Array], bool]:
        """Record loss and penalty; return the gradients of both, and whether they are admitted."""
        ops, plan = self.ops, self.plan
        if self.half is not None:
            outputs = ops.cast(outputs, plan.dtype)
        loss, weight, loss_gradient = plan.loss.vjp(ops, outputs, y, **weights)
        correct = plan.loss.count_correct(ops, outputs, y)
        dy, total = loss_gradient(), weight
        if self.ranks.size > 1:
            share, total = share_of(ops, weight, self.ranks)
            dy = ops.binary("mul", dy, share)
        if self.half is not None:
            dy = ops.cast(dy, self.half, ops.loss_scale)
        gradients = self._gradients(pullback, dy)
        is_update = admits is None or admits(gradients, loss)
        is_weighted = "sample_weight" in weights and plan.optimizer.l2_by_weight
        num_rows = total if is_weighted else numbers.part.whole
        penalty = plan.optimizer.add_penalty(ops, self.parameters, gradients, num_rows=num_rows)
        ops.record_step(record, numbers.row, loss, weight, correct, penalty)
        return gradients, is_update

    def _gradients(self, pullback: NetworkPullback, dy: Array) -> list[Array]:
        """Return the trained parameters' gradients, summed over ranks, from this one's dy."""
        if self.ranks.size == 1:
            return self._trained_of(pullback(dy))
        reduction = Reduction(self.ranks, self.places)
        gradients = self._trained_of(pullback(dy, reduction.add))
        for _ in reduction.ends():
            pass
        return gradients

    def _trained_of(self, gradients: dict[str, Array]) -> list[Array]:
        return [gradients[name] for name in self.plan.trained]

    def _half_copies(self) -> dict[str, Array]:
        """Return half-precision copies of the arrays that layers compute with; others have none."""
        if self.half is None or not isinstance(self.network, NetworkSpec):
            return {}
        in_full = {name for name, spec in self.network.layers if spec.full_precision}
        return {
            name: self.ops.copy(self.ops.asarray(array, self.half))
            for name, array in self.state.parameters.items()
            if name.rpartition(".")[0] not in in_full
        }

    def _narrow_layers(self) -> list[tuple[Array, Array | None, Activation]]:
        layers = self.network.layers if isinstance(self.network, NetworkSpec) else ()
        return [
            (self.copies[f"{name}.weight"], self.copies.get(f"{name}.bias"), spec.activation)
            for name, spec in layers
            if isinstance(spec, LinearSpec)
        ]

    def _write_copies(self, names: Collection[str] | None = None) -> None:
        names = self.copies if names is None else names
        if names:
            copies = [self.copies[name] for name in names]
            self.ops.cast_into(copies, [self.arrays[name] for name in names])

    def _forward(self, x: Array, call: Call) -> tuple[Array, NetworkPullback]:
        """Return the outputs, and the function to the gradients, in the run's precision."""
        if self.half is None:
            return self.network.vjp(self.ops, self.arrays, x, call)
        if not self.keeps_copies:
            self._write_copies()
        return self.network.vjp(self.ops, {**self.arrays, **self.copies}, x, call)
