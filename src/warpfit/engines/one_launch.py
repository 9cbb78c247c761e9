"""The one_launch engine: all steps of several epochs in one kernel, with the network in registers and shared memory.

It runs networks of linear layers whose batches and weights fit a block or a cluster of them; `trained_network` says
what it takes, and its errors what is in the way. Data that the device has no room for stays on the host, and comes in
pieces: `streaming`.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from contextlib import closing, suppress
from dataclasses import dataclass, replace
from functools import cached_property
from math import floor, log2
from time import perf_counter, sleep
from typing import Any, NamedTuple, cast

import numpy as np
import numpy.typing as npt

from warpfit import backends
from warpfit.backends import Array
from warpfit.backends.base import HALF_DTYPES
from warpfit.data.order import domain_bits, round_keys_of
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
from warpfit.engines.reports import Reports
from warpfit.engines.scaling import DYNAMIC
from warpfit.engines.streaming import BUFFERS, PIECE_BYTES, Cut, Piece, Stream, cut_of
from warpfit.errors import ConfigError
from warpfit.losses import (
    AbsoluteError,
    BinaryCrossEntropy,
    Huber,
    Loss,
    MeanSquaredError,
    SoftmaxCrossEntropy,
)
from warpfit.nn.dropout import DropoutSpec
from warpfit.nn.linear import LinearSpec
from warpfit.nn.network import NetworkSpec
from warpfit.optim.adam import AdamSpec
from warpfit.optim.base import OptimizerSpec
from warpfit.optim.rmsprop import RMSpropSpec
from warpfit.optim.sgd import SGDSpec
from warpfit.random import DROPOUT, stream_key

__all__ = ["LaunchDescription", "OneLaunchEngine", "describe", "is_to_stream", "launch_of", "trained_network"]

OPTIMIZERS: tuple[type[OptimizerSpec], ...] = (SGDSpec, AdamSpec, RMSpropSpec)
LOSSES = (SoftmaxCrossEntropy, BinaryCrossEntropy, MeanSquaredError, AbsoluteError, Huber)
# How long a launch should take at most: Ctrl-C is heard after it.
LAUNCH_SECONDS = 0.25
# How many times as long for kernels that hear of it themselves, how often the host looks how far they are, and how
# many passes they make before they look whether they are to end.
TALKING, SECONDS_BETWEEN_LOOKS, PASSES_BETWEEN_TALKS = 8, 0.0005, 256
# Of the time since a launch began, lest a short one end long before anybody looks.
SHARE_OF_SLEEP = 1 / 16
# How many times as many epochs as the launch before: their rates are found while that one runs.
GROWTH = 4
# What x and targets may reach in magnitude for float16. A gradient of mse comes times 2048 over the number of outputs.
LARGEST_X, LARGEST_TARGET = 1024.0, 16.0
LARGEST_SCALE = 2.0**60
# Blocks of the kernels that gather batches and find Gram matrices, with the threads and rows of the first's.
GATHER_BLOCKS, GATHER_THREADS, GATHER_ROWS = 2048, 256, 8
# The share of the memory that is left which data and batches may take: validation data and other things want some, too.
SHARE_OF_MEMORY = 0.9
# What the epochs of a launch may take together, but for one, which always may.
LAUNCH_BYTES = 1 << 29
# ``Dropout`` of the kernel.
DROPOUT_FIELDS = [("dropped_below", np.uint64), ("scale", np.float32), ("layer", np.uint32)]
# ``Stopping`` of the kernel.
STOPPING_FIELDS = [
    *((name, np.dtype("float64")) for name in ("min_delta", "best")),
    *((name, np.dtype("int32")) for name in ("patience", "of_validation", "of_accuracy", "keeps_best")),
    *((name, np.dtype("int32")) for name in ("has_best", "bad_epochs", "has_improved", "epochs_done")),
]
# ``Progress`` of the kernel.
PROGRESS_FIELDS = [
    (name, np.dtype("uint32")) for name in ("epochs_done", "is_asked_to_end", "has_ended", "unused")
]
PROGRESS_BYTES = np.dtype(PROGRESS_FIELDS).itemsize
# Epochs between talks where there are to be none.
NEVER = 2**31 - 1
# Of a record for which there is room at first: to pin more takes the host longer than many a launch.
RECORD_BYTES = 1 << 22
# Columns of a step's settings.
RATE, EPS, KEPT = 0, 1, 2


class OneLaunchEngine(Engine):
    """Runs as many epochs as may be trained at once as one kernel."""

    name = "one_launch"
    needs_gpu = True

    def explain(self, plan: Plan, data: TrainingData) -> str:
        launch = launch_of(plan, data)
        words = f"{launch}; about {launch.microseconds:.1f} µs a step on an H200"
        return f"{words}; {_cut(launch, plan, data)}" if data.is_streamed else words

    def auto_precision(self, plan: Plan, data: TrainingData) -> tuple[str, str]:
        """Return float16, or bfloat16 where numbers of the data are too large for it."""
        launch_of(plan, data)  # what it cannot run it need not look at
        largest = _magnitude(data.x)
        if largest > LARGEST_X:
            return "bfloat16", f"x reaches {largest:g}, float16 is for at most {LARGEST_X:g}"
        if _has_steep_slopes(plan.loss):
            largest = _magnitude(data.y)
            if largest > LARGEST_TARGET:
                return "bfloat16", f"y reaches {largest:g}, float16 is for at most {LARGEST_TARGET:g}"
        return "float16", "the data suits float16"

    def streams(self, plan: Plan, data: TrainingData) -> bool:
        return plan.device != "cpu" and not backends.is_device_array(data.x) and is_to_stream(plan, data)

    def validates(self, plan: Plan, data: TrainingData, validation: TrainingData) -> bool:
        """Return whether the kernel does: the one that goes layer by layer, if numbers and memory suit the data."""
        launch = launch_of(plan, data)
        if launch.kernel != "one_launch_layers" or data.is_streamed:
            return False
        if not backends.is_device_array(validation.x):
            return False
        if plan.precision == "float16" and _magnitude(validation.x) > LARGEST_X:
            return False
        copies = _gathered_bytes(launch, len(validation)) + _epoch_bytes(launch, len(data), len(validation))
        return copies + int(launch.exchange_bytes) <= _memory_left(plan)

    def stops(self, plan: Plan, data: TrainingData, monitor: str, validation: TrainingData | None) -> bool:
        """Return whether the kernel does: the one that goes layer by layer, if its blocks know what is watched."""
        launch = launch_of(plan, data)
        if launch.kernel != "one_launch_layers" or data.is_streamed:
            return False
        if monitor.startswith("val") and validation is None:
            return False
        if monitor.endswith("accuracy") and not plan.loss.counts_correct:
            return False
        if launch.replicas > 1 or (monitor == "loss" and launch.network.penalized):
            return False  # each block knows a part of the losses, or of the penalty
        return launch.that_stops(_shared_bytes(plan)) is not None

    def copied_bytes(self, plan: Plan, data: TrainingData) -> int:
        """Return the bytes of the batches of the epochs that one launch takes, with all that it needs for them."""
        launch = launch_of(plan, data)
        if data.is_streamed:
            pieces = _cut(launch, plan, data).bytes_of(data, launch.step_bytes)
            return pieces + _record_bytes(launch, len(data)) + int(launch.exchange_bytes)
        epochs = min(plan.epochs, _epochs_held(launch, len(data)))
        return _epoch_bytes(launch, len(data)) * epochs + int(launch.exchange_bytes)

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
        if not epochs:  # a kernel takes a second to compile
            return
        kind = _StreamedRun if data.is_streamed else _Run
        with closing(kind(plan, state, data, state.epoch + epochs, is_border, validation, stopping)) as run:
            while state.epoch < run.last_epoch and not run.is_over:
                yield from run.launch_epochs()


def _shared_bytes(plan: Plan) -> int:
    """Return the shared memory of a block on a plan's device."""
    return int(cast(Any, backends.get(plan.device)).runtime.max_shared_bytes)


def _has_steep_slopes(loss: Loss) -> bool:
    """Return whether a loss's slope grows with the distance from the target, beyond what float16 takes."""
    return isinstance(loss, MeanSquaredError) or (isinstance(loss, Huber) and loss.delta > LARGEST_TARGET)


def _magnitude(array: Array) -> float:
    """Return the largest magnitude of an array's numbers, as training takes them."""
    if not array.size or str(array.dtype) in ("uint8", "bool"):
        return 1.0  # uint8 means x / 255
    if not backends.is_device_array(array):  # may be larger than the memory that is left for a copy
        at_once = max(1, PIECE_BYTES * len(array) // array.nbytes)
        pieces = (array[first : first + at_once] for first in range(0, len(array), at_once))
        return max(map(_magnitude_of_piece, pieces))
    return _magnitude_of_piece(array)


def _magnitude_of_piece(array: Array) -> float:
    ops = backends.of(array)
    numbers = ops.asarray(array, "float32")
    least, most = (float(ops.to_numpy(ops.reduce(name, numbers))) for name in ("min", "max"))
    return max(-least, most)


def _require(condition: bool, expected: str, got: Any) -> None:
    if not condition:
        raise ConfigError(f"expected {expected}, got {got}")


class _Layer(NamedTuple):
    """A linear layer with its activation, and the dropout that follows it."""

    name: str
    linear: LinearSpec
    dropout: DropoutSpec


def _layers(plan: Plan) -> list[_Layer]:
    """Return the plan's layers, or raise ConfigError."""
    network = plan.network
    _require(isinstance(network, NetworkSpec), "a Sequential of known layers", "another module")
    found: list[_Layer] = []
    for name, spec in network.fused.layers:  # type: ignore[union-attr]
        if isinstance(spec, DropoutSpec):
            if spec.p:
                _require(bool(found) and not found[-1].dropout.p, "dropout once after a linear layer", name)
                found[-1] = found[-1]._replace(dropout=spec)
            continue
        if not isinstance(spec, LinearSpec):
            raise ConfigError(f"expected linear layers, activations and dropout, got {spec.kind}")
        _require(spec.bias, "layers with a bias", f"{name} without")
        found.append(_Layer(name, spec, DropoutSpec(0.0)))
    _require(len(found) > 0, "a linear layer", "none")
    _require(len({layer.name for layer in found}) == len(found), "different layers", "one layer twice")
    last = found[-1]
    _require(
        last.linear.activation.name == "identity", "no activation at the end", last.linear.activation.name
    )
    _require(not last.dropout.p, "no dropout at the end", last.dropout)
    return found


def _rule_of(optimizer: OptimizerSpec) -> dict[str, Any]:
    """Return what a kernel must know of an optimizer, as `TrainedNetwork` has it, or raise ConfigError."""
    known = ", ".join(spec.kind for spec in OPTIMIZERS)
    _require(type(optimizer) in OPTIMIZERS, f"an optimizer among {known}", optimizer.kind)
    _require(not (optimizer.l2 and optimizer.clip_norm), "clip_norm or l2, not both", optimizer.clip_norm)
    return {
        "optimizer": optimizer.kind,
        "slots": len(optimizer.slot_names),
        "momentum": getattr(optimizer, "momentum", 0) > 0,
        "nesterov": getattr(optimizer, "nesterov", False),
        "clips": optimizer.clip_norm is not None,
        "decays": rule_settings(optimizer)[0] > 0 or optimizer.l2 > 0,
        "penalized": optimizer.l2 > 0,
        "rate_in_velocity": getattr(optimizer, "lr_in_velocity", False),
    }


def _is_smoothed(loss: Loss) -> bool:
    """Return whether a loss smooths its labels, or raise ConfigError if no kernel knows it."""
    known = ", ".join(known.name for known in LOSSES)
    _require(type(loss) in LOSSES, f"a loss among {known}", loss)
    return isinstance(loss, SoftmaxCrossEntropy) and loss.label_smoothing > 0


def trained_network(plan: Plan, data: TrainingData) -> Any:
    """Return the kernel's settings for a plan, a `TrainedNetwork`; of an open precision, for float16.

    Raises
    ------
    ConfigError
        If the engine does not run such a network, loss, optimizer, precision or data.
    """
    _require(plan.device != "cpu", "a CUDA device", plan.device)
    dtype = "float16" if plan.precision == "auto" else plan.precision
    _require(dtype in HALF_DTYPES, "precision 'float16' or 'bfloat16'", repr(dtype))
    _require(plan.loss_scale != DYNAMIC, "a fixed loss_scale", plan.loss_scale)
    layers, rule, smoothed = _layers(plan), _rule_of(plan.optimizer), _is_smoothed(plan.loss)
    names = {f"{name}.{part}" for name, *_ in layers for part in ("weight", "bias")}
    _require(set(plan.trained) == names, "an optimizer over all parameters", f"one over {len(plan.trained)}")
    specs = [layer.linear for layer in layers]
    widths = (specs[0].in_features, *(spec.out_features for spec in specs))
    _require(min(widths) > 0, "layers of size 1 or more", "0")
    from warpfit.backends.cuda.trained_network import TrainedNetwork

    return TrainedNetwork(
        dtype=dtype,
        widths=widths,
        activations=tuple(spec.activation for spec in specs[:-1]),
        drops=tuple(layer.dropout.p > 0 for layer in layers[:-1]),
        batch=plan.batch_size,
        loss=plan.loss.name,
        smoothed=smoothed,
        weighted=data.sample_weight is not None,
        class_weights=plan.loss.class_weights() is not None,
        is_cut=data.is_streamed,
        **rule,
    )


def launch_of(plan: Plan, data: TrainingData, card: Any = None) -> Any:
    """Return the `OneLaunch` or `LayersLaunch` of a plan, or raise ConfigError with what is in the way.

    `card` is a `Card` in place of that of the plan's device, which then need not be there.
    """
    network = trained_network(plan, data)
    from warpfit.backends.cuda.cards import card_of
    from warpfit.backends.cuda.matmul import generation

    card = card or card_of(_runtime(plan))
    _require(generation(card.arch) >= 75, "tensor cores, of sm_75 or later", card.arch)
    launch, most = _chosen(network, card), card.memory_bytes
    if data.is_streamed:
        _cut(launch, plan, data, most)
        return launch
    needed = int(data.x.nbytes) + int(data.y.nbytes) + _epoch_bytes(launch, len(data)) + launch.exchange_bytes
    _require(needed <= most, f"at most {most} bytes of data and batches of an epoch", needed)
    return launch


def _runtime(plan: Plan) -> Any:
    return cast(Any, backends.get(plan.device)).runtime


def _memory_left(plan: Plan) -> int:
    """Return what data and batches may take of the memory that the plan's device has left."""
    return int(SHARE_OF_MEMORY * _runtime(plan).memory_left())


def is_to_stream(plan: Plan, data: TrainingData, card: Any = None) -> bool:
    """Return whether a device has room for data on the host piece by piece, but not for all of it.

    `card` is a `Card` in place of that of the plan's device as it is now.
    """
    if card is None:
        from warpfit.backends.cuda.cards import card_of

        card = replace(card_of(_runtime(plan)), memory_bytes=_memory_left(plan))

    def takes(data: TrainingData) -> bool:
        try:
            launch_of(plan, data, card)
        except ConfigError:
            return False
        return True

    return not takes(data) and takes(replace(data, is_streamed=True))


def _cut(launch: Any, plan: Plan, data: TrainingData, most_bytes: int | None = None) -> Cut:
    """Return how the epochs of streamed data are cut into launches; `most_bytes` in place of the memory left."""
    most_bytes = _memory_left(plan) if most_bytes is None else most_bytes
    return cut_of(
        data,
        plan.batch_size,
        launch.step_bytes,
        most_bytes - _record_bytes(launch, len(data)) - launch.exchange_bytes,
        max(1, int(1e6 * LAUNCH_SECONDS / launch.microseconds)),
    )


def _record_bytes(launch: Any, num_rows: int) -> int:
    """Return the bytes of an epoch's record."""
    return 24 * int(launch.recorders) * -(-num_rows // launch.network.batch)


def _chosen(network: Any, card: Any) -> Any:
    """Return how to run a network: by the kernel for one hidden layer and SGD if it can, which is the faster."""
    from warpfit.backends.cuda.one_launch import choose, suits
    from warpfit.backends.cuda.one_launch_layers import choose_layers

    limits = card.arch, card.max_shared_bytes, card.num_multiprocessors
    if not suits(network):
        return choose_layers(network, *limits)
    try:
        return choose(network, *limits)
    except ConfigError:
        with suppress(ConfigError):
            return choose_layers(network, *limits)
        raise


@dataclass(frozen=True)
class LaunchDescription:
    """How a plan would be launched.

    Attributes
    ----------
    layout : str
        In words.
    registers : tuple of (str, int)
        A thread's, and what of them a weight warp needs for weights.
    shared, device : tuple of (str, int)
        Bytes of the parts of a block's shared memory, and of what an epoch takes of the device's memory.
    source : str
        Of the kernel, with all that it includes.
    """

    layout: str
    registers: tuple[tuple[str, int], ...]
    shared: tuple[tuple[str, int], ...]
    device: tuple[tuple[str, int], ...]
    source: str


def describe(plan: Plan, data: TrainingData, card: Any) -> LaunchDescription:
    """Return how a plan would be launched on a card, which need not be there.

    Raises
    ------
    ConfigError
        If it cannot be; the message says what is in the way.
    """
    data = replace(data, is_streamed=is_to_stream(plan, data, card))
    launch = launch_of(plan, data, card)
    from warpfit.backends.cuda.jit import flattened

    most, held = launch.registers_of_thread
    defines = tuple((name, str(value)) for name, value in launch.defines.items())
    shared = tuple((name, size) for name, size in launch.shared_parts.items() if size)
    layout, exchanged = str(launch), ("exchanged, or far from the weights", int(launch.exchange_bytes))
    device: tuple[tuple[str, int], ...] = (
        ("x and targets", int(data.x.nbytes) + int(data.y.nbytes)),
        ("batches of an epoch, targets, settings and record", _epoch_bytes(launch, len(data))),
        exchanged,
    )
    if data.is_streamed:
        cut = _cut(launch, plan, data, card.memory_bytes)
        layout, fetched = f"{layout}; {cut}", cut.bytes_of(data, 0)
        device = (
            (f"{BUFFERS} pieces of x and targets", fetched),
            ("batches of a piece, targets and settings", cut.bytes_of(data, launch.step_bytes) - fetched),
            ("record of an epoch", _record_bytes(launch, len(data))),
            exchanged,
        )
    return LaunchDescription(
        layout,
        (("of a thread", most), ("for weights", held)),
        shared,
        device,
        flattened(launch.kernel, defines),
    )


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


class _Run:
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
        self.shape = launch_of(plan, data)
        if validation is not None:
            self.shape = replace(self.shape, validates=True)
        if stopping is not None:
            self.shape = self.shape.that_stops(_shared_bytes(plan))
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
        self.layers = _layers(plan)
        names = [f"{name}.{part}" for name, *_ in self.layers for part in ("weight", "bias")]
        slots = [state.slots[name] for name in plan.optimizer.slot_names]
        self.names = names
        self.parameters = [state.parameters[name] for name in names]
        self.slots = [[arrays[name] for name in names] for arrays in slots]
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
        return self._while_it_runs() if self.shape.talks else self._finish(self._launch(None), 0)

    def _launch(self, memory: _Shared | None) -> _Launch:
        """Start the kernel on the next epochs, and find what the launch after it may need."""
        start = perf_counter()
        state, ops, steps = self.state, self.ops, self.reports.steps_per_epoch
        first_epoch, epochs = state.epoch, self._epochs_from(state.epoch, self.epochs_at_once)
        rates = self.inputs.rates[: epochs * steps] * state.plateau.scale
        shape = (epochs, steps + self.val_batches, self.shape.recorders, 3)
        talk = None if memory is None else _Talk(memory, shape)
        record = ops.zeros(shape, "float64") if talk is None else talk.record_pointer
        self._start(epochs, rates, record, talk)
        all_finite = ops.all_finite(list(state.arrays.values()))
        # While the device works, all that the next launch may need: how long it will be is not known yet.
        next_epoch = first_epoch + epochs
        if next_epoch < self.last_epoch:
            self.inputs = self._inputs(next_epoch, self._epochs_from(next_epoch, GROWTH * epochs))
        return _Launch(start, first_epoch, epochs, rates, record, all_finite, talk)

    @cached_property
    def shared(self) -> _Shared:
        """What the host shares with kernels that talk."""
        return _Shared(self.ops.runtime)

    def _while_it_runs(self) -> Iterator[EpochReport]:
        """Yield the reports of a launch as its epochs are done, the last one when it has ended.

        Ctrl-C lets it end after one of its next epochs, and is heard when all reports are yielded.
        """
        runtime, steps, told, is_interrupted = self.ops.runtime, self.reports.steps_per_epoch, 0, False
        try:
            launch = self._launch(self.shared)
            talk = cast(_Talk, launch.talk)
            # Later than those of all reports until it has ended.
            self.state.epoch = launch.first_epoch + launch.epochs
            try:
                while not runtime.is_idle():
                    done = talk.epochs_done
                    records = talk.records[told : max(told, done - 1)].sum(axis=2)
                    if not np.isfinite(records[:, :steps, 0]).all():
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
        records = records[:epochs].sum(axis=2)
        self.reports.check_finite(records[:, :steps].reshape(-1, 3), first_epoch * steps)
        self.reports.check_arrays(ops.to_numpy(launch.all_finite), (first_epoch + epochs) * steps - 1)
        state.step += epochs * steps
        state.epoch = first_epoch + epochs
        seconds = (perf_counter() - launch.start) / epochs
        most = LAUNCH_SECONDS * (1 if talk is None else TALKING)
        self.epochs_at_once = max(1, int(min(GROWTH * epochs, most / seconds)))
        return [self._report(launch, idx, records[idx], seconds) for idx in range(told, epochs)]

    def _epochs_done(self, stopping: Stopping, epochs: int) -> int:
        """Return how many of a launch's epochs were done before the run was over, and take over what was kept."""
        rule = self.ops.to_numpy(self._rule).view(STOPPING_FIELDS)[0]
        if rule["has_improved"] and stopping.keeps_best:
            # Copies, as the next launch may find better ones.
            kept = zip(self.names, self._best, strict=True)
            stopping.best_arrays = {name: self.ops.copy(array) for name, array in kept}
        self.is_over = rule["epochs_done"] > 0
        return int(rule["epochs_done"]) or epochs

    @cached_property
    def _rule(self) -> Array | None:
        """The bytes of ``Stopping``, which the kernel goes on with from launch to launch."""
        rule = self.stopping
        if rule is None:
            return None
        found = np.zeros(1, STOPPING_FIELDS)
        found["min_delta"], found["patience"], found["keeps_best"] = (
            rule.min_delta,
            rule.patience,
            rule.keeps_best,
        )
        found["of_validation"] = rule.monitor.startswith("val")
        found["of_accuracy"] = rule.monitor.endswith("accuracy")
        found["bad_epochs"], found["has_best"] = rule.bad_epochs, rule.best is not None
        if rule.best is not None:
            found["best"] = rule.best
        return self.ops.asarray(found.view(np.uint8))

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
        held = _epochs_held(self.shape, len(self.data), self.num_validated)
        most = min(most, self.last_epoch - epoch, held)
        return next((count for count in range(1, most) if self.is_border(epoch + count)), most)

    def _inputs(self, epoch: int, epochs: int) -> _Inputs:
        keys = round_keys_of(self.state.seed, range(epoch, epoch + epochs)) if self.plan.shuffle else None
        return _Inputs(self.reports.rates(epoch, epochs), keys)

    def _start(
        self, epochs: int, rates: npt.NDArray[np.float64], record: Array | int, talk: _Talk | None
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
        talk: _Talk | None,
    ) -> None:
        """Start the kernel on some batches."""
        shape = self.shape
        own = (
            self._arguments_in_roles(batches, span, rates, record)
            if shape.kernel == "one_launch"
            else self._arguments_by_layers(span, rates, record, talk)
        )
        self.kernel(
            shape.cluster * shape.replicas,
            shape.threads,
            batches,
            targets,
            *own,
            *_loss_settings(self.plan.loss, shape.network.outputs),
            shared_bytes=shape.shared_bytes,
            cluster=shape.cluster,
            is_cooperative=shape.replicas > 1,
        )

    def _arguments_in_roles(
        self, batches: Array, span: _Span, rates: npt.NDArray[np.float64], record: Array | int
    ) -> list[Any]:
        """Return what ``one_launch.cu`` takes between targets and the loss's settings."""
        ops, shape, optimizer = self.ops, self.shape, cast(SGDSpec, self.plan.optimizer)
        gram, gram_scales = self._gram(batches, len(rates))
        # A network without a hidden layer has two arrays, not four; without momentum there are no velocities.
        velocities = self.slots[0] if self.slots else []
        return [
            ops.asarray(rates.astype(np.float32)),
            *_four(self.parameters),
            *_four(velocities),
            record,
            gram,
            gram_scales,
            self._exchange(),
            span.num_rows,
            span.epochs,
            _scale(self.plan),
            optimizer.momentum,
            optimizer.weight_decay,
            shape.activation.slope,
        ]

    def _arguments_by_layers(
        self, span: _Span, rates: npt.NDArray[np.float64], record: Array | int, talk: _Talk | None
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

    def _exchange(self) -> Array | None:
        """Return memory in which replicas leave each other numbers."""
        return self.ops.zeros((self.shape.exchange_bytes,), "uint8") if self.shape.replicas > 1 else None

    def _talks(self, epochs: int, talk: _Talk | None) -> tuple[int | None, Array | None, int]:
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
        """Where parameters and what the optimizer remembers of them lie: they stay there."""
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
        specs = [layer.dropout for layer in self.layers]
        found = [(round(spec.p * 2**32), 1 / (1 - spec.p), spec.layer_idx) for spec in specs]
        return self.ops.asarray(np.array(found, DROPOUT_FIELDS).view(np.uint8))

    def _gram(self, batches: Array, num_batches: int) -> tuple[Array | None, Array | None]:
        """Return the Gram matrices of each batch and the one before, and their scales, if the kernel looks ahead."""
        if self.gram is None:
            return None, None
        ops, shape = self.ops, self.shape
        gram = ops.empty((num_batches * shape.gram_bytes // 2,), shape.network.dtype)
        scales = ops.empty((num_batches,), "float32")
        blocks = min(num_batches, GATHER_BLOCKS)
        self.gram(blocks, shape.gram_threads, batches, gram, scales, num_batches)
        return gram, scales


class _StreamedRun(_Run):
    """A run whose data stays on the host: each epoch takes several launches, of a piece each.

    The state is that of a step only when an epoch is over: until then its counters are those of the epoch's start.
    """

    def _open(self) -> None:
        plan, state = self.plan, self.state
        self.cut = _cut(self.shape, plan, self.data)
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
        host_record, num_read, last_read = np.empty((steps, 3)), 0, start
        while self.piece is not None and self.piece.epoch == state.epoch:
            num_done = self._train_piece(self.piece, rates, record)
            self._fetch()  # while the device trains
            if num_done < steps and perf_counter() - last_read > LAUNCH_SECONDS:
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
        own[:] = self.ops.to_numpy(record[first:last]).sum(axis=1)
        self.reports.check_finite(own, self.state.epoch * self.reports.steps_per_epoch + first)


class _Shared:
    """Memory that the host shares with one launch after the other: ``Progress``, and a record of any length."""

    def __init__(self, runtime: Any) -> None:
        self.runtime = runtime
        self._take(RECORD_BYTES)

    def _take(self, nbytes: int) -> None:
        self.memory = self.runtime.share(PROGRESS_BYTES + nbytes)
        self.progress = self.memory.host[:PROGRESS_BYTES].view(PROGRESS_FIELDS)[0]

    def records(self, shape: tuple[int, int, int, int]) -> npt.NDArray[np.float64]:
        """Return zeros for the record of the next launch, with zeros for the progress before it."""
        size = 8 * int(np.prod(shape))
        if len(self.memory.host) < PROGRESS_BYTES + size:
            self._take(2 * size)
        host = self.memory.host[: PROGRESS_BYTES + size]
        host[:] = 0
        return host[PROGRESS_BYTES:].view(np.float64).reshape(shape)


class _Talk:
    """What a running kernel and the host tell each other, and the record, in memory that both see."""

    def __init__(self, memory: _Shared, shape: tuple[int, int, int, int]) -> None:
        epochs, passes, _, _ = shape
        self.records = memory.records(shape)
        self.progress, pointer = memory.progress, memory.memory.pointer
        self.progress_pointer, self.record_pointer = pointer, pointer + PROGRESS_BYTES
        self.every = min(epochs, -(-PASSES_BETWEEN_TALKS // passes))

    @property
    def epochs_done(self) -> int:
        """Epochs whose record is there."""
        return int(self.progress["epochs_done"])

    @property
    def has_ended(self) -> bool:
        """Whether the kernel did as it was asked; then after `epochs_done`."""
        return bool(self.progress["has_ended"])

    def ask_to_end(self) -> None:
        """Let the kernel end after the epoch in which it hears of it."""
        self.progress["is_asked_to_end"] = 1


class _Launch(NamedTuple):
    """A launch on its way: since when, its epochs, their rates (steps,), its record, whether all arrays are finite."""

    start: float
    first_epoch: int
    epochs: int
    rates: npt.NDArray[np.float64]
    record: Any
    all_finite: Array
    talk: _Talk | None


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


def _in_one_piece(ops: Any, array: Any) -> Any:
    """Return the array, or a copy whose numbers lie one after the other from where 16 bytes are loaded at once."""
    array = ops.contiguous(array)
    return array if array.pointer % 16 == 0 else ops.copy(array)


def _four(arrays: list[Array]) -> list[Array | None]:
    return [*arrays, *[None] * (4 - len(arrays))]


def _loss_settings(loss: Loss, outputs: int) -> tuple[float, float, float]:
    """Return a loss's setting, and what its terms and slopes are multiplied by: see `LossSettings` of the kernel."""
    if isinstance(loss, SoftmaxCrossEntropy):
        return loss.label_smoothing, 1.0, 1.0
    if isinstance(loss, MeanSquaredError):
        # scikit-learn's form adds its slopes up over the outputs.
        return (0.0, 0.5 / outputs, 1.0) if loss.half else (0.0, 1.0 / outputs, 2.0 / outputs)
    sums = isinstance(loss, BinaryCrossEntropy) and loss.sum_outputs
    factor = 1.0 if sums else 1.0 / outputs
    return loss.delta if isinstance(loss, Huber) else 0.0, factor, factor


def step_settings(
    optimizer: OptimizerSpec, rates: npt.NDArray[np.float64], first_step: int
) -> npt.NDArray[np.float32]:
    """Return ``StepSettings`` (steps, 4) of steps from one on, which is counted from 0, at these rates (steps,)."""
    settings = np.zeros((len(rates), 4))
    settings[:, RATE], settings[:, KEPT] = rates, 1.0
    if isinstance(optimizer, AdamSpec):
        steps = first_step + 1 + np.arange(len(rates))
        beta1, beta2 = optimizer.betas
        of_mean, of_square = 1 - beta1**steps, np.sqrt(1 - beta2**steps)
        settings[:, RATE] = rates * of_square / of_mean
        settings[:, EPS] = optimizer.eps * (1.0 if optimizer.eps_before_correction else of_square)
        if optimizer.decoupled:
            settings[:, KEPT] = 1 - rates * optimizer.weight_decay
    elif isinstance(optimizer, RMSpropSpec):
        settings[:, EPS] = optimizer.eps
    return settings.astype(np.float32)


def rule_settings(optimizer: OptimizerSpec) -> tuple[float, float, float, float]:
    """Return ``RuleSettings``: the decay that joins gradients, momentum, and what averages keep."""
    if isinstance(optimizer, AdamSpec):
        return 0.0 if optimizer.decoupled else optimizer.weight_decay, 0.0, *optimizer.betas
    if isinstance(optimizer, RMSpropSpec):
        return optimizer.weight_decay, optimizer.momentum, 0.0, optimizer.alpha
    sgd = cast(SGDSpec, optimizer)
    return sgd.weight_decay, sgd.momentum, 0.0, 0.0


def _scale(plan: Plan) -> float:
    """Return the power of two that weights are held times, one for the whole run.

    Gradients are then near the plan's loss scale times their mean over the batch, whether they come times the
    learning rate, without momentum, or not.
    """
    scale, largest_rate = float(plan.loss_scale), plan.optimizer.lr.largest
    if cast(SGDSpec, plan.optimizer).momentum or not largest_rate:
        return scale
    return float(min(LARGEST_SCALE, 2.0 ** floor(log2(scale / largest_rate))))


def _epoch_bytes(launch: Any, num_rows: int, num_validated: int = 0) -> int:
    """Return the bytes that a launch takes for each of its epochs."""
    batches = launch.network.batches
    return int(launch.step_bytes * batches(num_rows) + 24 * launch.recorders * batches(num_validated))


def _gathered_bytes(launch: Any, num_rows: int) -> int:
    """Return the bytes of rows in batches, with their targets."""
    batches = launch.network.batches(num_rows)
    return int(batches * (launch.batch_bytes + 4 * launch.network.batch * launch.network.target_words))


def _epochs_held(launch: Any, num_rows: int, num_validated: int = 0) -> int:
    """Return how many epochs a launch may hold."""
    return max(1, LAUNCH_BYTES // _epoch_bytes(launch, num_rows, num_validated))
