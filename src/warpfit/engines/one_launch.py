"""The one_launch engine: all steps of several epochs in one kernel, with the network in registers and shared memory.

It runs networks of linear layers whose batches and weights fit a block, a cluster, or most of a card;
`trained_network` says what it takes, and its errors what is in the way. Data that the device has no room for stays on
the host, and comes in pieces: `streaming`.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import closing

from warpfit import backends
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
from warpfit.engines.half_precision import LARGEST, check_range, suitable
from warpfit.engines.launch_plan import (
    cut_of_plan,
    epoch_bytes,
    epochs_held,
    gathered_bytes,
    is_to_stream,
    launch_of,
    launch_with_more,
    memory_left,
    record_bytes,
    shared_bytes_of_plan,
)
from warpfit.engines.launch_run import Run, StreamedRun

__all__ = ["OneLaunchEngine"]


class OneLaunchEngine(Engine):
    """Runs as many epochs as may be trained at once as one kernel."""

    name = "one_launch"
    needs_gpu = True

    def explain(self, plan: Plan, data: TrainingData) -> str:
        launch = launch_of(plan, data)
        if plan.precision == "float32":
            check_range(plan.loss, data)
        words = f"{launch}; about {launch.microseconds:.1f} µs a step on an H200"
        return f"{words}; {cut_of_plan(launch, plan, data)}" if data.is_streamed else words

    def gradient_precision(self, precision: str) -> str:
        return "float16" if precision == "float32" else precision  # by sums of two float16

    def auto_precision(self, plan: Plan, data: TrainingData) -> tuple[str, str]:
        """Return float16, or bfloat16 where numbers of the data are too large for it."""
        launch_of(plan, data)  # what it cannot run it need not look at
        return suitable(plan.loss, data)

    def streams(self, plan: Plan, data: TrainingData) -> bool:
        return plan.device != "cpu" and not backends.is_device_array(data.x) and is_to_stream(plan, data)

    def validates(self, plan: Plan, data: TrainingData, validation: TrainingData) -> bool:
        """Return whether the kernel does: the one that goes layer by layer, if numbers and memory suit the data."""
        launch = launch_with_more(plan, data, len(validation))
        if launch is None:
            return False
        if not backends.is_device_array(validation.x):
            return False
        if plan.precision != "bfloat16" and validation.largest_x > LARGEST:
            return False
        copies = gathered_bytes(launch, len(validation)) + epoch_bytes(launch, len(data), len(validation))
        return copies + int(launch.exchange_bytes) <= memory_left(plan)

    def stops(self, plan: Plan, data: TrainingData, monitor: str, validation: TrainingData | None) -> bool:
        """Return whether the kernel does: the one that goes layer by layer, if it has room for what that takes."""
        launch = launch_with_more(plan, data, 0 if validation is None else len(validation))
        if launch is None:
            return False
        if monitor.startswith("val") and validation is None:
            return False
        if monitor.endswith("accuracy") and not plan.loss.counts_correct:
            return False
        return launch.that_stops(shared_bytes_of_plan(plan)) is not None

    def copied_bytes(self, plan: Plan, data: TrainingData) -> int:
        """Return the bytes of the batches of the epochs that one launch takes, with all that it needs for them."""
        launch = launch_of(plan, data)
        if data.is_streamed:
            pieces = cut_of_plan(launch, plan, data).bytes_of(data, launch.step_bytes)
            return pieces + record_bytes(launch, len(data)) + int(launch.exchange_bytes)
        epochs = min(plan.epochs, epochs_held(launch, len(data)))
        return epoch_bytes(launch, len(data)) * epochs + int(launch.exchange_bytes)

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
        kind = StreamedRun if data.is_streamed else Run
        with closing(kind(plan, state, data, state.epoch + epochs, is_border, validation, stopping)) as run:
            while state.epoch < run.last_epoch and not run.is_over:
                yield from run.launch_epochs()
