"""Runs of the engine graph that train one network after the other: graphs are captured once for all
that are alike in what graphs depend on.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import fields, replace
from typing import Any, NamedTuple

from warpfit import backends
from warpfit.backends import Array
from warpfit.backends.contract.communicator import Communicator
from warpfit.engines.base import EpochReport, Plan, StepListener, TrainingData, TrainState
from warpfit.nn.network import NetworkSpec

# Of plans, what graphs do not depend on: reports, and numbers that steps find on the device.
DIFFERS = {"epochs", "report_every", "optimizer", "reason", "bytes"}

# From a plan, a state, data, the rank's communicator and a listener to a run of its own.
MakeRun = Callable[[Plan, TrainState, TrainingData, Communicator, StepListener | None], Any]


class _Kept(NamedTuple):
    """A run, and what another's plan, seed and rows must be to go by its graphs."""

    run: Any
    likeness: tuple[Any, ...]
    x: Array


class _Keeper:
    def __init__(self, num_networks: int) -> None:
        self.num_networks = num_networks
        self.kept: _Kept | None = None


_keeper: ContextVar[_Keeper | None] = ContextVar("keeper", default=None)


@contextmanager
def keeping_runs(num_networks: int) -> Iterator[None]:
    """Let this block, which trains about so many networks, keep each run for the next one."""
    token = _keeper.set(_Keeper(num_networks))
    try:
        yield
    finally:
        _keeper.reset(token)


def networks_to_come() -> int:
    """Return how many networks may go by the graphs of a run."""
    keeper = _keeper.get()
    return 1 if keeper is None else keeper.num_networks


def run_of(
    make: MakeRun,
    plan: Plan,
    state: TrainState,
    data: TrainingData,
    ranks: Communicator,
    on_step: StepListener | None,
) -> Any:
    """Return a run of these: its own, or what lets one that is kept train them."""
    keeper = _keeper.get()
    weights = (data.sample_weight, data.class_weight)
    if keeper is None or keeper.num_networks == 1 or any(w is not None for w in weights):
        return make(plan, state, data, ranks, on_step)
    likeness, kept = _likeness(plan, state), keeper.kept
    if kept is None or kept.likeness != likeness or kept.x is not data.x:
        keeper.kept = None  # its memory may be needed
        ops = backends.get(plan.device)
        own_data = replace(data, y=ops.copy(data.y))
        run = make(plan, state.copy(ops), own_data, ranks, on_step)
        kept = keeper.kept = _Kept(run, likeness, data.x)
    return _Lent(kept.run, plan, state, data, on_step)


def _likeness(plan: Plan, state: TrainState) -> tuple[Any, ...]:
    optimizer = plan.optimizer
    of_plan = {f.name: getattr(plan, f.name) for f in fields(plan) if f.name not in DIFFERS}
    of_optimizer = {f.name: getattr(optimizer, f.name) for f in fields(optimizer) if f.name != "lr"}
    specs = plan.network.layers if isinstance(plan.network, NetworkSpec) else ()
    draws = any(hasattr(spec, "layer_idx") for _, spec in specs)
    return of_plan, type(optimizer), of_optimizer, state.seed if draws else None


class _Lent:
    """A run whose arrays are another's, and have this one's numbers while it trains."""

    def __init__(
        self,
        run: Any,
        plan: Plan,
        state: TrainState,
        data: TrainingData,
        on_step: StepListener | None,
    ) -> None:
        self.state, self._run = state, run
        run.serve(plan, state.seed, on_step)
        run.ops.assign(run.data.y, data.y)

    @property
    def is_captured(self) -> bool:
        return bool(self._run.is_captured)

    def epochs(self, count: int) -> list[EpochReport]:
        """Train for some epochs at once, and return what came out of each."""
        state, held = self.state, self._run.state
        self._copy(held, state)
        reports: list[EpochReport] = self._run.epochs(count)
        self._copy(state, held)
        return reports

    def _copy(self, to: TrainState, of: TrainState) -> None:
        to.step, to.epoch, to.plateau = of.step, of.epoch, of.plateau
        arrays = of.arrays
        for name, array in to.arrays.items():
            self._run.ops.assign(array, arrays[name])
        for slot, own in to.slots.items():
            for name, array in own.items():
                self._run.ops.assign(array, of.slots[slot][name])
