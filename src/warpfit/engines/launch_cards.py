"""A run of the engine one_launch on several cards: a launch on each, whose replicas train on their
rows of each batch, and leave the other cards what they have added up.
"""

from __future__ import annotations

from dataclasses import replace
from typing import Any, cast

import numpy as np
import numpy.typing as npt

from warpfit import backends
from warpfit.backends import Array, Backend
from warpfit.engines.base import TrainState
from warpfit.engines.launch_plan import PreparedLaunch
from warpfit.engines.launch_run import Run
from warpfit.engines.launch_talk import Talk


class CardsRun(Run):
    """The run of the first card, which has those of the others.

    All have the same weights after each step. The state is the first card's, and so are borders,
    schedules and reports.
    """

    def _open(self) -> None:
        super()._open()
        self.others = [self._on(device) for device in self.plan.devices[1:]]
        self.runs = [self, *self.others]
        nbytes = self.launch.card_sums_bytes
        self.sums = [run.ops.zeros((nbytes,), "uint8") for run in self.runs]
        places = np.array([array.pointer for array in self.sums], np.int64)
        for card, run in enumerate(self.runs):
            run.resident.card, run.resident.card_sums = card, run.ops.asarray(places)

    def _on(self, device: str) -> Run:
        """Return the run of another card."""
        plan = replace(self.plan, device=device, devices=(device,))
        validation = None if self.validation is None else self.validation.on(device)
        return Run(
            plan,
            cast(PreparedLaunch, plan.prepared),
            _copied(self.state, self.ops, backends.get(device)),
            self.data.on(device),
            self.last_epoch,
            self.is_border,
            validation,
            None,
        )

    def _start(
        self, epochs: int, rates: npt.NDArray[np.float64], record: Any, talk: Talk | None
    ) -> None:
        self.records = [record]
        for run in self.others:
            self._copy_state(run)  # a callback may have written into it
            run.inputs = self.inputs
            run.state.step, run.state.epoch = self.state.step, self.state.epoch
            self.records.append(run.ops.zeros(record.shape, "float64"))
        arguments = [
            run._arguments(epochs, rates, own)
            for run, own in zip(self.runs, self.records, strict=True)
        ]
        for run, array in zip(self.runs, self.sums, strict=True):
            run.ops.runtime.fill(array.pointer, array.nbytes)
        for run in self.runs:  # before any card writes there
            run.ops.runtime.synchronize()
        for run, own in zip(self.runs, arguments, strict=True):
            with run.ops.runtime.waiting_for_others():
                run._start_kernel(own)

    def _copy_state(self, run: Run) -> None:
        own, theirs = self.state, run.state
        for slot in own.slots:
            self._copy(own.slots[slot], theirs.slots[slot], run.ops)
        self._copy(own.arrays, theirs.arrays, run.ops)

    def _copy(self, arrays: dict[str, Array], others: dict[str, Array], ops: Any) -> None:
        for name, array in arrays.items():
            ops.assign(others[name], ops.asarray(self.ops.to_numpy(array)))

    def _records(self, record: Array) -> npt.NDArray[np.float64]:
        found = [run.ops.to_numpy(own) for run, own in zip(self.runs, self.records, strict=True)]
        return np.concatenate(found, axis=2)


def _copied(state: TrainState, ops: Backend, other: Backend) -> TrainState:
    """Return the same state on another card."""

    def copied(arrays: dict[str, Array]) -> dict[str, Array]:
        return {name: other.asarray(ops.to_numpy(array)) for name, array in arrays.items()}

    return replace(
        state,
        parameters=copied(state.parameters),
        buffers=copied(state.buffers),
        slots={slot: copied(arrays) for slot, arrays in state.slots.items()},
    )
