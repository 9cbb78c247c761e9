"""Several ranks that train one network: each a run with its own copy of the state, in a thread or
a process.

Rank 0 leads: it says how many epochs come next. All others follow until it says that there are no
more. Within an epoch they meet only where gradients are added up.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager, suppress
from copy import deepcopy
from dataclasses import replace
from threading import Thread
from typing import Any, NamedTuple

from warpfit import backends
from warpfit.backends import Array, Backend, communicators
from warpfit.backends.contract.communicator import Communicator
from warpfit.backends.transfer import moved
from warpfit.blas import one_blas_thread
from warpfit.engines.base import EpochReport, Plan, TrainingData, TrainState
from warpfit.errors import DivergedError
from warpfit.nn.taped import TapedNetwork
from warpfit.optim.schedules import PlateauState

# From a plan, a state, data and the rank's communicator to a run with `epochs`.
MakeRun = Callable[[Plan, TrainState, TrainingData, Communicator], Any]

# How long a rank is waited for that has an error to hear of.
SECONDS_TO_END = 10.0


class _Order(NamedTuple):
    """What comes next: so many epochs, from rank 0's state of a schedule that watches the loss."""

    epochs: int
    plateau: PlateauState


class _Over(Exception):  # noqa: N818  (no error)
    """There are no more epochs."""


class Team:
    """A rank's run among those of all ranks.

    Attributes
    ----------
    run : Run
    """

    def __init__(self, run: Any, ranks: Communicator) -> None:
        self.run, self._ranks = run, ranks

    def epochs(self, count: int) -> list[EpochReport]:
        """Train for as many epochs as rank 0 asks for, and return what came out of each."""
        state = self.run.state
        order = self._ranks.share(_Order(count, state.plateau))
        if order is None:
            raise _Over
        state.plateau = order.plateau
        reports: list[EpochReport] = self.run.epochs(order.epochs)
        return reports

    def end(self) -> None:
        """Say, or hear, that there are no more epochs."""
        self._ranks.share(None)


@contextmanager
def team_of(plan: Plan, state: TrainState, data: TrainingData, make: MakeRun) -> Iterator[Team]:
    """Give rank 0's run among those of the plan's ranks, which train while this one does; in a
    process of MPI its own.

    A block that is left early ends them, and an error ends them all with the same.
    """
    with ExitStack() as held:
        if plan.has_processes:
            own, others = communicators.of_process(plan.device), []
        else:
            devices = plan.devices or (plan.device,)
            own, *others = held.enter_context(communicators.of_threads(devices))
            if others and plan.device == "cpu":
                held.enter_context(one_blas_thread())
        threads = [
            Thread(target=_follow, args=(plan, state, data, make, ranks), daemon=True)
            for ranks in others
        ]
        for thread in threads:
            thread.start()
        try:
            team = Team(make(plan, state, data, own), own)
            try:
                yield team
            except GeneratorExit:
                team.end()
                raise
            team.end()
        except _Over:
            pass
        except (GeneratorExit, DivergedError):
            raise  # all ranks end by themselves
        except BaseException as error:
            first = own.abort(error)
            if first is error:
                raise
            raise first from None
        finally:
            for thread in threads:
                thread.join(SECONDS_TO_END)


def _follow(
    plan: Plan, state: TrainState, data: TrainingData, make: MakeRun, ranks: Communicator
) -> None:
    """Train as a rank of another device until rank 0 says that it is over."""
    device = plan.devices[ranks.rank]
    try:
        ops = backends.get(device)
        own = replace(plan, device=device, network=_own_network(plan.network))
        run = make(own, _copy_of(state, ops), data.on(device), ranks)
        with suppress(_Over):
            team = Team(run, ranks)
            while True:
                team.epochs(0)
    except DivergedError:
        pass  # rank 0 raises the same
    except BaseException as error:
        ranks.abort(error)


def _own_network(network: Any) -> Any:
    """Return a network of this rank's: a module's holds the arrays that it computes with."""
    return deepcopy(network) if isinstance(network, TapedNetwork) else network


def _copy_of(state: TrainState, ops: Backend) -> TrainState:
    """Return the state on another device."""

    def copies(arrays: dict[str, Array]) -> dict[str, Array]:
        return {name: _copied(array, ops) for name, array in arrays.items()}

    return replace(
        state,
        parameters=copies(state.parameters),
        buffers=copies(state.buffers),
        slots={slot: copies(arrays) for slot, arrays in state.slots.items()},
    )


def _copied(array: Array, ops: Backend) -> Array:
    here = moved(array, ops)
    return ops.copy(here) if here is array else here
