"""A run of the engine one_launch, from launch to launch, with data on the device or the host."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from functools import cached_property
from time import perf_counter, sleep
from typing import Any, NamedTuple, cast

import numpy as np
import numpy.typing as npt

from warpfit import backends
from warpfit.backends import Array
from warpfit.data.order import round_keys_of
from warpfit.engines import pace
from warpfit.engines.base import (
    BorderTest,
    EpochReport,
    Plan,
    Stopping,
    TrainingData,
    TrainState,
)
from warpfit.engines.launch_arguments import Batches, Resident, Steps, in_one_piece, kernels_of
from warpfit.engines.launch_plan import PreparedLaunch, epochs_held
from warpfit.engines.launch_talk import SharedRecord, Talk
from warpfit.engines.reports import Reports
from warpfit.engines.streaming import Cut, Piece, Stream

# How many times as long for kernels that hear of it themselves, and how often the host looks how
# far they are.
TALKING, SECONDS_BETWEEN_LOOKS = 8, 0.0005
# Of the time since a launch began, lest a short one end long before anybody looks.
SHARE_OF_SLEEP = 1 / 64


class _Inputs(NamedTuple):
    """What a launch takes of its epochs: rates (steps,); keys (epochs, 8), None unshuffled."""

    rates: npt.NDArray[np.float64]
    keys: npt.NDArray[np.uint32] | None


class _Launch(NamedTuple):
    """A launch in flight: since when, epochs, rates (steps,), record, whether all is finite."""

    start: float
    first_epoch: int
    epochs: int
    rates: npt.NDArray[np.float64]
    record: Any
    all_finite: Array
    talk: Talk | None


class Run:
    """One run: the plan bound to its state and data, up to an epoch."""

    def __init__(
        self,
        plan: Plan,
        prepared: PreparedLaunch,
        state: TrainState,
        data: TrainingData,
        last_epoch: int,
        is_border: BorderTest,
        validation: TrainingData | None,
        stopping: Stopping | None,
    ) -> None:
        self.ops = cast(Any, backends.get(plan.device))
        self.plan, self.state, self.data, self.validation = plan, state, data, validation
        self.last_epoch, self.is_border = last_epoch, is_border
        self.launch, self.cut, self.is_over = prepared.launch, prepared.cut, False
        # NumPy's arrays may have their bytes in another order, in which they do not come to the
        # device.
        source = str(data.x.dtype.newbyteorder("=") if prepared.is_streamed else data.x.dtype)
        self.talks = self.launch.talks and plan.num_ranks == 1
        self.ops.compile_ahead(kernels_of(self.launch, source))
        self.kernel = self.ops.kernel(self.launch.kernel, **self.launch.config.settings())
        self.batches = Batches(self.ops, self.launch, source)
        self.reports = Reports(plan, state, len(data))
        self.resident = Resident(self.ops, self.launch, plan, state, data, validation, stopping)
        self.num_validated = self.resident.num_validated
        self.val_batches = self.launch.network.batches(self.num_validated)
        self._open()

    def _open(self) -> None:
        """Have the rows where `_start` finds them."""
        data = self.data
        self.x, self.y = (in_one_piece(self.ops, array) for array in (data.x, data.y))
        weights = data.sample_weight
        self.sample_weight = None if weights is None else self.ops.asarray(weights, "float32")
        self.epochs_at_once = 1  # until one has shown how long it takes
        self.inputs = self._inputs(self.state.epoch, 1)

    def close(self) -> None:
        """Give back what does not go by itself."""

    def launch_epochs(self) -> Iterable[EpochReport]:
        """Train as many epochs as may be at once; return their reports, perhaps meanwhile."""
        return self._while_it_runs() if self.talks else self._finish(self._launch(), 0)

    def _launch(self) -> _Launch:
        """Start the kernel on the next epochs, and find what the launch after it may need."""
        start = perf_counter()
        state, ops, steps = self.state, self.ops, self.reports.steps_per_epoch
        first_epoch, epochs = state.epoch, self._epochs_from(state.epoch, self.epochs_at_once)
        rates = self.inputs.rates[: epochs * steps] * state.plateau.scale
        shape = (epochs, steps + self.val_batches, self.launch.recorders, 3)
        talk = Talk(self.shared, shape) if self.talks else None
        record = ops.zeros(shape, "float64") if talk is None else talk.record_pointer
        self._start(epochs, rates, record, talk)
        all_finite = ops.all_finite(list(state.arrays.values()))
        # While the device works, all that the next launch may need: how long it will be is not
        # known yet, nor which borders there will be when this one's reports are heard.
        next_epoch = first_epoch + epochs
        if next_epoch < self.last_epoch:
            self.inputs = self._inputs(
                next_epoch, self._most_epochs(next_epoch, pace.GROWTH * epochs)
            )
        return _Launch(start, first_epoch, epochs, rates, record, all_finite, talk)

    @cached_property
    def shared(self) -> SharedRecord:
        """What the host shares with kernels that talk."""
        return SharedRecord(self.ops.runtime)

    def _while_it_runs(self) -> Iterator[EpochReport]:
        """Yield the reports of a launch as its epochs are done, the last one when it has ended.

        Ctrl-C lets it end after one of its next epochs, and is heard when all reports are yielded.
        """
        runtime, steps, told, is_interrupted = (
            self.ops.runtime,
            self.reports.steps_per_epoch,
            0,
            False,
        )
        try:
            launch = self._launch()
            talk = cast(Talk, launch.talk)
            # Later than those of all reports until it has ended.
            self.state.epoch = launch.first_epoch + launch.epochs
            try:
                while not runtime.is_idle():
                    done = talk.epochs_done
                    records = talk.records[told : max(told, done - 1)]
                    # An epoch is told once the next has shown that its last update was finite, too.
                    if not np.isfinite(talk.records[told:done, :steps, :, 0]).all():
                        talk.ask_to_end()  # what diverges is told below
                        break
                    seconds = (perf_counter() - launch.start) / max(1, done)
                    for record in records:
                        report = self._report(launch, told, record, seconds)
                        told += 1
                        yield report
                    sleep(
                        min(SECONDS_BETWEEN_LOOKS, SHARE_OF_SLEEP * (perf_counter() - launch.start))
                    )
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
        """Wait for a launch, take over its state, and return the reports but the first `told`."""
        state, ops, steps = self.state, self.ops, self.reports.steps_per_epoch
        first_epoch, epochs, talk = launch.first_epoch, launch.epochs, launch.talk
        records = launch.record
        if talk is None:
            records = self._records(records)
        else:
            ops.runtime.synchronize()
            records = talk.records
            epochs = talk.epochs_done if talk.has_ended else epochs
        until = self.resident.epochs_to_the_end()
        self.is_over, epochs = until > 0, until or epochs
        records = records[:epochs]
        self.reports.check_finite(np.concatenate(records[:, :steps]), first_epoch * steps)
        self.reports.check_arrays(
            ops.to_numpy(launch.all_finite), (first_epoch + epochs) * steps - 1
        )
        state.step += epochs * steps
        state.epoch = first_epoch + epochs
        seconds = (perf_counter() - launch.start) / epochs
        self.epochs_at_once = pace.epochs_next_time(epochs, seconds, 1 if talk is None else TALKING)
        return [self._report(launch, idx, records[idx], seconds) for idx in range(told, epochs)]

    def _records(self, record: Array) -> npt.NDArray[np.float64]:
        """Return the record of a launch, for which it is waited."""
        return cast("npt.NDArray[np.float64]", self.ops.to_numpy(record))

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
        return min(
            most,
            self.last_epoch - epoch,
            epochs_held(self.launch, len(self.data), self.num_validated),
        )

    def _inputs(self, epoch: int, epochs: int) -> _Inputs:
        keys = (
            round_keys_of(self.state.seed, range(epoch, epoch + epochs))
            if self.plan.shuffle
            else None
        )
        return _Inputs(self.reports.rates(epoch, epochs), keys)

    def _start(
        self, epochs: int, rates: npt.NDArray[np.float64], record: Array | int, talk: Talk | None
    ) -> None:
        """Start the kernel on the next epochs."""
        self._start_kernel(self._arguments(epochs, rates, record, talk))

    def _arguments(
        self,
        epochs: int,
        rates: npt.NDArray[np.float64],
        record: Array | int,
        talk: Talk | None = None,
    ) -> Any:
        """Return what the kernel takes for the next epochs, whose rows are put into batches."""
        batches, targets = self.batches.of(
            self.x, self.y, self.sample_weight, self.inputs.keys, epochs, self.resident.x_scale
        )
        of_all = batches, targets, len(self.data), epochs, 0, rates, record, talk
        return self.launch.arguments(self.resident, self._steps(*of_all))

    def _steps(
        self,
        batches: Array,
        targets: Array,
        num_rows: int,
        epochs: int,
        first: int,
        rates: npt.NDArray[np.float64],
        record: Array | int,
        talk: Talk | None = None,
    ) -> Steps:
        """Return what a launch has that begins with step `first` of the state's next epoch."""
        state = self.state
        return Steps(
            self.resident,
            batches,
            targets,
            num_rows,
            epochs,
            first_step=state.epoch * self.reports.steps_per_epoch + first,
            first_epoch=state.epoch,
            first_update=state.step + first,
            of_rates=rates,
            record=record,
            told=talk,
        )

    def _start_kernel(self, arguments: Any) -> None:
        launch = self.launch
        self.kernel(
            launch.blocks,
            launch.threads,
            arguments,
            shared_bytes=launch.shared_bytes,
            cluster=launch.cluster,
            is_cooperative=launch.is_cooperative,
        )


class StreamedRun(Run):
    """A run whose data stays on the host: each epoch takes several launches, of a piece each.

    The state is that of a step only when an epoch is over: until then its counters are those of the
    epoch's start.
    """

    def _open(self) -> None:
        state, cut = self.state, cast(Cut, self.cut)
        self.stream = Stream(self.ops, self.data, cut, state.seed if self.plan.shuffle else None)
        self.coming = (
            piece for epoch in range(state.epoch, self.last_epoch) for piece in cut.pieces(epoch)
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
        record = ops.zeros((steps, self.launch.recorders, 3), "float64")
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
        return [
            self.reports.report(state.epoch, host_record, float(rates[-1]), perf_counter() - start)
        ]

    def _train_piece(self, piece: Piece, rates: npt.NDArray[np.float64], record: Array) -> int:
        """Start the kernel on a fetched piece, and return the steps of the epoch up to its end."""
        first = piece.first // self.plan.batch_size
        last = first + -(-piece.num_rows // self.plan.batch_size)
        with self.stream.received() as (x, y, *weights):
            batches, targets = self.batches.of(
                x, y, weights[0] if weights else None, scale=self.resident.x_scale
            )
        of_steps = rates[first:last], record[first:last]
        steps = self._steps(batches, targets, piece.num_rows, 1, first, *of_steps)
        self._start_kernel(self.launch.arguments(self.resident, steps))
        return last

    def _read(
        self, record: Array, host_record: npt.NDArray[np.float64], first: int, last: int
    ) -> None:
        """Read the record of some steps, which are waited for, or raise DivergedError."""
        own = host_record[first:last]
        own[:] = self.ops.to_numpy(record[first:last])
        self.reports.check_finite(own, self.state.epoch * self.reports.steps_per_epoch + first)
