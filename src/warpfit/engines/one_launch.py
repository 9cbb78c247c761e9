"""The one_launch engine: all steps of several epochs in one kernel, with the network in registers
and shared memory.

It runs networks of linear layers whose batches and weights fit a block, a cluster, or most of a
card, and small convolutional ones; `launch_network` says what it takes. Data that the device has no
room for stays on the host, and comes in pieces: `streaming`.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import closing
from typing import TYPE_CHECKING, cast

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
from warpfit.errors import Obstacle

if TYPE_CHECKING:
    from warpfit.engines.launch_plan import PreparedLaunch


class OneLaunchEngine(Engine):
    """Runs as many epochs as may be trained at once as one kernel."""

    name = "one_launch"
    needs_gpu = has_ranks = True

    def prepare(
        self,
        draft: Plan,
        data: TrainingData,
        validation: TrainingData | None = None,
        stopping: Stopping | None = None,
    ) -> PreparedLaunch | Obstacle:
        from warpfit.engines.launch_plan import prepare_launch  # which the CPU does not need

        return prepare_launch(draft, data, validation, stopping)

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
        from warpfit.engines.launch_cards import CardsRun
        from warpfit.engines.launch_run import Run, StreamedRun

        prepared, last_epoch = cast("PreparedLaunch", plan.prepared), state.epoch + epochs
        kind = StreamedRun if prepared.is_streamed else CardsRun if plan.num_ranks > 1 else Run
        with closing(
            kind(plan, prepared, state, data, last_epoch, is_border, validation, stopping)
        ) as run:
            while state.epoch < run.last_epoch and not run.is_over:
                yield from run.launch_epochs()
