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
from warpfit.engines.launch_plan import PreparedLaunch
from warpfit.engines.launch_run import Run
from warpfit.engines.launch_talk import Talk
from warpfit.engines.replicas import arrays_of


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
            self.state.mapped(lambda array: self._sent(array, backends.get(device))),
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
            if self.state.was_shown:
                for array, other in zip(arrays_of(self.state), arrays_of(run.state), strict=True):
                    run.ops.assign(other, self._sent(array, run.ops))
            run.inputs = self.inputs
            run.state.step, run.state.epoch = self.state.step, self.state.epoch
            self.records.append(run.ops.zeros(record.shape, "float64"))
        self.state.was_shown = False
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

    def _sent(self, array: Array, ops: Backend) -> Array:
        """Return an array of this card on another."""
        return ops.asarray(self.ops.to_numpy(array))

    def _records(self, record: Array) -> npt.NDArray[np.float64]:
        found = [run.ops.to_numpy(own) for run, own in zip(self.runs, self.records, strict=True)]
        return np.concatenate(found, axis=2)
