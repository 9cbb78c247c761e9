"""A run of the engine one_launch: from launch to launch, with data on the device or in pieces from the host."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import replace
from functools import cached_property
from time import perf_counter, sleep
from typing import Any, NamedTuple, cast

import numpy as np
import numpy.typing as npt

from warpfit import backends
from warpfit.backends import Array
from warpfit.data.order import domain_bits, round_keys_of
from warpfit.engines import pace
from warpfit.engines.base import (
    BorderTest,
    EpochReport,
    Plan,
    Stopping,
    TrainingData,
    TrainState,
)
from warpfit.engines.launch_plan import (
    cut_of_plan,
    epochs_held,
    launch_of,
    layers_of,
    shared_bytes_of_plan,
)
from warpfit.engines.launch_settings import (
    STOPPING_BYTES,
    STOPPING_FIELDS,
    dropout_settings,
    loss_settings,
    rule_settings,
    scale_of_weights,
    step_settings,
    stopping_settings,
)
from warpfit.engines.launch_talk import NEVER, SharedRecord, Talk
from warpfit.engines.reports import Reports
from warpfit.engines.streaming import Piece, Stream
from warpfit.random import DROPOUT, stream_key

__all__ = ["Run", "StreamedRun"]

# How many times as long for kernels that hear of it themselves, and how often the host looks how far they are.
TALKING, SECONDS_BETWEEN_LOOKS = 8, 0.0005
# Of the time since a launch began, lest a short one end long before anybody looks.
SHARE_OF_SLEEP = 1 / 64
# Blocks of the kernels that gather batches and find Gram matrices, with the threads and rows of the first's.
GATHER_BLOCKS, GATHER_THREADS, GATHER_ROWS = 2048, 256, 8


class _Inputs(NamedTuple):
    """What a launch takes of its epochs: the schedule's rates (steps,); keys (epochs, 8), None without shuffling."""

    rates: npt.NDArray[np.float64]
    keys: npt.NDArray[np.uint32] | None


class _Span(NamedTuple):
    """What a launch trains on: all rows of some epochs, or some rows of one.

    `first_step` is counted from the first of the epoch that the state stands before.
    """

    num_rows: int
    epochs: int
    first_step: int


class _Launch(NamedTuple):
    """A launch on its way: since when, its epochs, their rates (steps,), its record, whether all arrays are finite."""

    start: float
    first_epoch: int
    epochs: int
    rates: npt.NDArray[np.float64]
    record: Any
    all_finite: Array
    talk: Talk | None


class _Batches:
    """Puts rows into batches as kernels take them, from x of dtype `source`."""

    def __init__(self, ops: Any, shape: Any, source: str) -> None:
        self.ops, self.shape = ops, shape
        self.kernel = ops.kernel("gather_batches", **shape.gather_defines(source))

    def of(
        self,
        x: Array,
        y: Array,
        sample_weight: Array | None,
        keys: npt.NDArray[np.uint32] | None = None,
        epochs: int = 1,
    ) -> tuple[Array, Array]:
        """Return batches and targets, one after the other: of rows in the orders of the keys, or as they lie."""
        ops, network = self.ops, self.shape.network
        num_batches = epochs * network.batches(len(x))
        batches = ops.empty((num_batches * self.shape.batch_bytes // 2,), network.dtype)
        targets = ops.empty((num_batches * network.batch, network.target_words), "float32")
        self.kernel(
            min(-(-num_batches * network.batch // GATHER_ROWS), GATHER_BLOCKS),
            GATHER_THREADS,
            x,
            y,
            sample_weight,
            None if keys is None else ops.asarray(keys[:epochs]),
            batches,
            targets,
            len(x),
            domain_bits(len(x)),
            epochs,
        )
        return batches, targets


class Run:
    """One run: the plan bound to its state and data, up to an epoch."""

    def __init__(
        self,
        plan: Plan,
        state: TrainState,
        data: TrainingData,
        last_epoch: int,
        is_border: BorderTest,
        validation: TrainingData | None,
        stopping: Stopping | None,
    ) -> None:
        self.ops = cast(Any, backends.get(plan.device))
        self.plan, self.state, self.data = plan, state, data
        self.last_epoch, self.is_border, self.validation = last_epoch, is_border, validation
        self.shape = launch_of(plan, data, by_layers=validation is not None or stopping is not None)
        if validation is not None:
            self.shape = replace(self.shape, validates=True)
        if stopping is not None:
            self.shape = self.shape.that_stops(shared_bytes_of_plan(plan))
        self.stopping, self.is_over = stopping, False
        self.kernel = self.ops.kernel(self.shape.kernel, **self.shape.defines)
        # NumPy's arrays may have their bytes in another order, in which they do not come to the device.
        source = data.x.dtype.newbyteorder("=") if data.is_streamed else data.x.dtype
        self.batches = _Batches(self.ops, self.shape, str(source))
        self.gram = (
            self.ops.kernel("gram_batches", **self.shape.gram_defines) if self.shape.looks_ahead else None
        )
        self.reports = Reports(plan, state, len(data))
        self.num_validated = 0 if validation is None else len(validation)
        self.val_batches = self.shape.network.batches(self.num_validated)
        self.layers = layers_of(plan)
        self.names = [f"{name}.{part}" for name, *_ in self.layers for part in ("weight", "bias")]
        slots = [state.slots[name] for name in plan.optimizer.slot_names]
        self.parameters = [state.parameters[name] for name in self.names]
        self.slots = [[arrays[name] for name in self.names] for arrays in slots]
        self._open()

    def _open(self) -> None:
        """Have the rows where `_start` finds them."""
        data = self.data
        self.x, self.y = (_in_one_piece(self.ops, array) for array in (data.x, data.y))
        weights = data.sample_weight
        self.sample_weight = None if weights is None else self.ops.asarray(weights, "float32")
        self.epochs_at_once = 1  # until one has shown how long it takes
        self.inputs = self._inputs(self.state.epoch, 1)

    def close(self) -> None:
        """Give back what does not go by itself."""

    def launch_epochs(self) -> Iterable[EpochReport]:
        """Train as many epochs as may be trained at once, and return their reports, which may come meanwhile."""
        return self._while_it_runs() if self.shape.talks else self._finish(self._launch(), 0)

    def _launch(self) -> _Launch:
        """Start the kernel on the next epochs, and find what the launch after it may need."""
        start = perf_counter()
        state, ops, steps = self.state, self.ops, self.reports.steps_per_epoch
        first_epoch, epochs = state.epoch, self._epochs_from(state.epoch, self.epochs_at_once)
        rates = self.inputs.rates[: epochs * steps] * state.plateau.scale
        shape = (epochs, steps + self.val_batches, self.shape.recorders, 3)
        talk = Talk(self.shared, shape) if self.shape.talks else None
        record = ops.zeros(shape, "float64") if talk is None else talk.record_pointer
        self._start(epochs, rates, record, talk)
        all_finite = ops.all_finite(list(state.arrays.values()))
        # While the device works, all that the next launch may need: how long it will be is not known yet, nor which
        # borders there will be when this one's reports are heard.
        next_epoch = first_epoch + epochs
        if next_epoch < self.last_epoch:
            self.inputs = self._inputs(next_epoch, self._most_epochs(next_epoch, pace.GROWTH * epochs))
        return _Launch(start, first_epoch, epochs, rates, record, all_finite, talk)

    @cached_property
    def shared(self) -> SharedRecord:
        """What the host shares with kernels that talk."""
        return SharedRecord(self.ops.runtime)

    def _while_it_runs(self) -> Iterator[EpochReport]:
        """Yield the reports of a launch as its epochs are done, the last one when it has ended.

        Ctrl-C lets it end after one of its next epochs, and is heard when all reports are yielded.
        """
        runtime, steps, told, is_interrupted = self.ops.runtime, self.reports.steps_per_epoch, 0, False
        try:
            launch = self._launch()
            talk = cast(Talk, launch.talk)
            # Later than those of all reports until it has ended.
            self.state.epoch = launch.first_epoch + launch.epochs
            try:
                while not runtime.is_idle():
                    done = talk.epochs_done
                    records = talk.records[told : max(told, done - 1)]
                    if not np.isfinite(records[:, :steps, :, 0]).all():
                        talk.ask_to_end()  # what diverges is told below
                        break
                    seconds = (perf_counter() - launch.start) / max(1, done)
                    for record in records:
                        report = self._report(launch, told, record, seconds)
                        told += 1
                        yield report
                    sleep(min(SECONDS_BETWEEN_LOOKS, SHARE_OF_SLEEP * (perf_counter() - launch.start)))
            except KeyboardInterrupt:
                talk.ask_to_end()
                is_interrupted = True
            yield from self._finish(launch, told)
        finally:
            # However it is left: the kernel uses the state, and what is shared with it.
            self.shared.progress["is_asked_to_end"] = 1
            runtime.synchronize()
        if is_interrupted:
            raise KeyboardInterrupt

    def _finish(self, launch: _Launch, told: int) -> list[EpochReport]:
        """Wait for a launch, take over where the state stands, and return the reports but the first `told`."""
        state, ops, steps = self.state, self.ops, self.reports.steps_per_epoch
        first_epoch, epochs, talk = launch.first_epoch, launch.epochs, launch.talk
        records = launch.record
        if talk is None:
            records = ops.to_numpy(records)
        else:
            ops.runtime.synchronize()
            records = talk.records
            epochs = talk.epochs_done if talk.has_ended else epochs
        if self.stopping is not None:
            epochs = self._epochs_done(self.stopping, epochs)
        records = records[:epochs]
        self.reports.check_finite(np.concatenate(records[:, :steps]), first_epoch * steps)
        self.reports.check_arrays(ops.to_numpy(launch.all_finite), (first_epoch + epochs) * steps - 1)
        state.step += epochs * steps
        state.epoch = first_epoch + epochs
        seconds = (perf_counter() - launch.start) / epochs
        self.epochs_at_once = pace.epochs_next_time(epochs, seconds, 1 if talk is None else TALKING)
        return [self._report(launch, idx, records[idx], seconds) for idx in range(told, epochs)]

    def _epochs_done(self, stopping: Stopping, epochs: int) -> int:
        """Return how many of a launch's epochs were done before the run was over, and take over what was kept."""
        rule = self.ops.to_numpy(self._rule)[:STOPPING_BYTES].view(STOPPING_FIELDS)[0]
        if rule["has_improved"] and stopping.keeps_best:
            # Copies, as the next launch may find better ones.
            kept = zip(self.names, self._best, strict=True)
            stopping.best_arrays = {name: self.ops.copy(array) for name, array in kept}
        self.is_over = rule["epochs_done"] > 0
        return int(rule["epochs_done"]) or epochs

    @cached_property
    def _rule(self) -> Array | None:
        """The bytes of ``StoppingMemory``, which the kernel goes on with from launch to launch."""
        rule = self.stopping
        if rule is None:
            return None
        found = stopping_settings(rule)
        places = np.zeros(self.shape.watched_bytes, np.uint8)
        return self.ops.asarray(np.concatenate([found.view(np.uint8), places]))

    @cached_property
    def _best(self) -> list[Array]:
        """Where the kernel keeps the parameters of the best epoch."""
        return [self.ops.empty(array.shape, "float32") for array in self.parameters]

    @cached_property
    def _best_places(self) -> Array | None:
        if self.stopping is None or not self.stopping.keeps_best:
            return None
        return self.ops.asarray(np.array([array.pointer for array in self._best], np.int64))

    def _report(
        self, launch: _Launch, idx: int, record: npt.NDArray[np.float64], seconds: float
    ) -> EpochReport:
        """Return the report of an epoch of a launch, counted from 0."""
        steps, epoch = self.reports.steps_per_epoch, launch.first_epoch + idx + 1
        training, validation = np.split(record, [steps])
        is_validated = self.val_batches > 0 and self.plan.reports(epoch)
        return self.reports.report(
            epoch,
            training,
            float(launch.rates[(idx + 1) * steps - 1]),
            seconds,
            validation if is_validated else None,
            self.num_validated,
        )

    def _epochs_from(self, epoch: int, most: int) -> int:
        """Return how many epochs may be trained at once from one on, which is counted from 0."""
        return pace.epochs_to_border(self.is_border, epoch, self._most_epochs(epoch, most))

    def _most_epochs(self, epoch: int, most: int) -> int:
        """Return how many epochs a launch may have, wherever there are borders."""
        return min(most, self.last_epoch - epoch, epochs_held(self.shape, len(self.data), self.num_validated))

    def _inputs(self, epoch: int, epochs: int) -> _Inputs:
        keys = round_keys_of(self.state.seed, range(epoch, epoch + epochs)) if self.plan.shuffle else None
        return _Inputs(self.reports.rates(epoch, epochs), keys)

    def _start(
        self, epochs: int, rates: npt.NDArray[np.float64], record: Array | int, talk: Talk | None
    ) -> None:
        """Start the kernel on the next epochs."""
        span = _Span(len(self.data), epochs, 0)
        batches, targets = self.batches.of(self.x, self.y, self.sample_weight, self.inputs.keys, epochs)
        self._start_kernel(span, batches, targets, rates, record, talk)

    def _start_kernel(
        self,
        span: _Span,
        batches: Array,
        targets: Array,
        rates: npt.NDArray[np.float64],
        record: Array | int,
        talk: Talk | None,
    ) -> None:
        """Start the kernel on some batches."""
        shape = self.shape
        if shape.kernel == "one_launch":
            own = self._arguments_in_roles(batches, span, rates, record)
        elif shape.kernel == "one_launch_card":
            own = self._arguments_of_card(span, rates, record)
        else:
            own = self._arguments_by_layers(span, rates, record, talk)
        self.kernel(
            shape.blocks,
            shape.threads,
            batches,
            targets,
            *own,
            *loss_settings(self.plan.loss, shape.network.outputs),
            shared_bytes=shape.shared_bytes,
            cluster=shape.cluster,
            is_cooperative=shape.is_cooperative,
        )

    def _arguments_in_roles(
        self, batches: Array, span: _Span, rates: npt.NDArray[np.float64], record: Array | int
    ) -> list[Any]:
        """Return what ``one_launch.cu`` takes between targets and the loss's settings."""
        ops, shape, optimizer = self.ops, self.shape, self.plan.optimizer
        gram, gram_scales = self._gram(batches, len(rates))
        is_adaptive = shape.network.is_adaptive
        rules = rates.astype(np.float32)
        if is_adaptive:
            rules = step_settings(optimizer, rates, self.state.step + span.first_step)
        # A network without a hidden layer has two arrays, not four; optimizer state is two of each, one or none.
        first, second = [*self.slots, [], []][:2]
        return [
            ops.asarray(rules),
            *_four(self.parameters),
            *_four(first),
            *_four(second),
            record,
            gram,
            gram_scales,
            self._exchange(),
            span.num_rows,
            span.epochs,
            float(self.plan.loss_scale) if is_adaptive else scale_of_weights(self.plan),
            *rule_settings(optimizer),
            shape.activation.slope,
        ]

    def _arguments_by_layers(
        self, span: _Span, rates: npt.NDArray[np.float64], record: Array | int, talk: Talk | None
    ) -> list[Any]:
        """Return what ``one_launch_layers.cu`` takes between targets and the loss's settings."""
        ops, optimizer = self.ops, self.plan.optimizer
        return [
            ops.asarray(step_settings(optimizer, rates, self.state.step + span.first_step)),
            self._places,
            record,
            span.num_rows,
            span.epochs,
            float(self.plan.loss_scale),
            optimizer.clip_norm or 0.0,
            *rule_settings(optimizer),
            optimizer.l2,
            self._dropouts,
            self._class_weights,
            self.state.epoch * self.reports.steps_per_epoch + span.first_step,
            *stream_key(self.state.seed, DROPOUT),
            ops.empty((self.shape.far_bytes,), "uint8"),
            self._exchange(),
            *self._validation_batches,
            self.num_validated,
            self.state.epoch,
            self.plan.report_every,
            self.plan.epochs,
            *self._talks(span.epochs, talk),
            self._rule,
            self._best_places,
        ]

    def _arguments_of_card(
        self, span: _Span, rates: npt.NDArray[np.float64], record: Array | int
    ) -> list[Any]:
        """Return what ``one_launch_card.cu`` takes between targets and the loss's settings."""
        ops, optimizer = self.ops, self.plan.optimizer
        return [
            ops.asarray(step_settings(optimizer, rates, self.state.step + span.first_step)),
            self._places,
            record,
            ops.zeros((self.shape.exchanged_bytes,), "uint8"),
            ops.empty((self.shape.far_bytes,), "uint8"),
            span.num_rows,
            span.epochs,
            float(self.plan.loss_scale),
            *rule_settings(optimizer),
        ]

    def _exchange(self) -> Array | None:
        """Return memory in which replicas leave each other numbers."""
        return self.ops.zeros((self.shape.exchange_bytes,), "uint8") if self.shape.replicas > 1 else None

    def _talks(self, epochs: int, talk: Talk | None) -> tuple[int | None, Array | None, int]:
        """Return what the kernel needs to talk: ``Progress``, places for answers, after how many epochs."""
        if talk is None:
            return None, None, NEVER
        places = self.ops.zeros((epochs // talk.every, self.shape.replicas), "int32")
        return talk.progress_pointer, places, talk.every

    @cached_property
    def _validation_batches(self) -> tuple[Array | None, Array | None]:
        """The validation data in batches, and their targets, in their own order."""
        if self.validation is None:
            return None, None
        ops, data = self.ops, self.validation
        x, y = (_in_one_piece(ops, array) for array in (data.x, data.y))
        ones = ops.asarray(np.ones(len(data), np.float32)) if self.shape.network.weighted else None
        return _Batches(ops, self.shape, str(data.x.dtype)).of(x, y, ones)

    @cached_property
    def _places(self) -> Array:
        """Where parameters and their optimizer state lie: they stay there."""
        groups = zip(self.parameters, *self.slots, strict=True)
        return self.ops.asarray(np.array([array.pointer for arrays in groups for array in arrays], np.int64))

    @cached_property
    def _class_weights(self) -> Array | None:
        """The classes' weights and their mean (classes + 1,), if they have any."""
        weights = self.plan.loss.class_weights()
        return (
            None if weights is None else self.ops.asarray(np.array([*weights, np.mean(weights)], np.float32))
        )

    @cached_property
    def _dropouts(self) -> Array:
        """The bytes of each layer's ``Dropout``."""
        settings = dropout_settings(layer.dropout for layer in self.layers)
        return self.ops.asarray(settings.view(np.uint8))

    def _gram(self, batches: Array, num_batches: int) -> tuple[Array | None, Array | None]:
        """Return the Gram matrices of each batch and the one before, and their scales, if the kernel looks ahead."""
        if self.gram is None:
            return None, None
        ops, shape = self.ops, self.shape
        gram = ops.empty((num_batches * shape.gram_bytes // 2,), shape.network.dtype)
        scales = ops.empty((num_batches,), "float32")
        blocks = min(num_batches, GATHER_BLOCKS)
        self.gram(blocks, shape.network.gram_threads, batches, gram, scales, num_batches)
        return gram, scales


class StreamedRun(Run):
    """A run whose data stays on the host: each epoch takes several launches, of a piece each.

    The state is that of a step only when an epoch is over: until then its counters are those of the epoch's start.
    """

    def _open(self) -> None:
        plan, state = self.plan, self.state
        self.cut = cut_of_plan(self.shape, plan, self.data)
        self.stream = Stream(self.ops, self.data, self.cut, state.seed if plan.shuffle else None)
        self.coming = (
            piece for epoch in range(state.epoch, self.last_epoch) for piece in self.cut.pieces(epoch)
        )
        self.piece: Piece | None = None
        try:
            self._fetch()
        except BaseException:
            self.close()
            raise

    def close(self) -> None:
        self.stream.close()

    def _fetch(self) -> None:
        """Begin to bring the next piece to the device, if there is one."""
        self.piece = next(self.coming, None)
        if self.piece is not None:
            self.stream.fetch(self.piece)

    def launch_epochs(self) -> list[EpochReport]:
        """Train an epoch, and return its report."""
        start = perf_counter()
        state, ops, steps = self.state, self.ops, self.reports.steps_per_epoch
        rates = self.reports.rates(state.epoch, 1) * state.plateau.scale
        record = ops.zeros((steps, self.shape.recorders, 3), "float64")
        host_record, num_read, last_read = np.empty(record.shape), 0, start
        while self.piece is not None and self.piece.epoch == state.epoch:
            num_done = self._train_piece(self.piece, rates, record)
            self._fetch()  # while the device trains
            if num_done < steps and perf_counter() - last_read > pace.LAUNCH_SECONDS:
                self._read(record, host_record, num_read, num_done)
                num_read, last_read = num_done, perf_counter()
        all_finite = ops.all_finite(list(state.arrays.values()))
        self._read(record, host_record, num_read, steps)
        self.reports.check_arrays(ops.to_numpy(all_finite), (state.epoch + 1) * steps - 1)
        state.step += steps
        state.epoch += 1
        return [self.reports.report(state.epoch, host_record, float(rates[-1]), perf_counter() - start)]

    def _train_piece(self, piece: Piece, rates: npt.NDArray[np.float64], record: Array) -> int:
        """Start the kernel on a piece, which has been fetched, and return the steps of the epoch up to its end."""
        first = piece.first // self.plan.batch_size
        last = first + -(-piece.num_rows // self.plan.batch_size)
        span = _Span(piece.num_rows, 1, first)
        with self.stream.received() as (x, y, *weights):
            batches, targets = self.batches.of(x, y, weights[0] if weights else None)
        self._start_kernel(span, batches, targets, rates[first:last], record[first:last], None)
        return last

    def _read(self, record: Array, host_record: npt.NDArray[np.float64], first: int, last: int) -> None:
        """Read the record of some steps, which are waited for, or raise DivergedError."""
        own = host_record[first:last]
        own[:] = self.ops.to_numpy(record[first:last])
        self.reports.check_finite(own, self.state.epoch * self.reports.steps_per_epoch + first)


def _in_one_piece(ops: Any, array: Any) -> Any:
    """Return the array, or a copy whose numbers lie one after the other from where 16 bytes are loaded at once."""
    array = ops.contiguous(array)
    return array if array.pointer % 16 == 0 else ops.copy(array)


def _four(arrays: list[Array]) -> list[Array | None]:
    return [*arrays, *[None] * (4 - len(arrays))]
