"""Several ranks that train one network: each a run with its own copy of the state, in a thread or
a process.

Rank 0 leads: it says how many epochs come next, and what callbacks have written into its state. All
others follow until it says that there are no more. Within an epoch they meet only where gradients
are added up.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager, suppress
from copy import deepcopy
from dataclasses import replace
from threading import Thread
from time import monotonic
from typing import Any, NamedTuple

from warpfit import backends
from warpfit.backends import Array, communicators
from warpfit.backends.contract.communicator import Communicator
from warpfit.blas import one_blas_thread
from warpfit.engines.base import EpochReport, Plan, TrainingData, TrainState
from warpfit.errors import DivergedError
from warpfit.nn.taped import TapedNetwork

# From a plan, a state, data and the rank's communicator to a run with `epochs`.
MakeRun = Callable[[Plan, TrainState, TrainingData, Communicator], Any]

# How long ranks are waited for that have an error to hear of.
SECONDS_TO_END = 5.0


class _Order(NamedTuple):
    """What comes next: so many epochs, from rank 0's state, here without its arrays."""

    epochs: int
    state: TrainState


class _Over(Exception):  # noqa: N818  (no error)
    """There are no more epochs."""


class Team:
    """A rank's run among those of all ranks."""

    def __init__(self, run: Any, ranks: Communicator) -> None:
        self.run, self._ranks = run, ranks

    def epochs(self, count: int) -> list[EpochReport]:
        """Train for as many epochs as rank 0 asks for, and return what came out of each."""
        state = self.run.state
        numbers = replace(state, parameters={}, buffers={}, slots={})
        order = self._ranks.share(_Order(count, numbers))
        if order is None:
            raise _Over
        state.step, state.plateau = order.state.step, order.state.plateau
        state.loss_scale = order.state.loss_scale
        if order.state.was_shown:
            self._ranks.broadcast(arrays_of(state))
        state.was_shown = False
        reports: list[EpochReport] = self.run.epochs(order.epochs)
        return reports

    def end(self) -> None:
        """Say, or hear, that there are no more epochs."""
        self._ranks.share(None)


@contextmanager
def team_of(plan: Plan, state: TrainState, data: TrainingData, make: MakeRun) -> Iterator[Team]:
    """Give rank 0's run among those of the plan's ranks, which train while this one does; in a
    process among several its own.

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
            if threads:
                own.broadcast(arrays_of(state))
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
            end = monotonic() + SECONDS_TO_END
            for thread in threads:
                thread.join(max(0.0, end - monotonic()))


def _follow(
    plan: Plan, state: TrainState, data: TrainingData, make: MakeRun, ranks: Communicator
) -> None:
    """Train as a rank of another device until rank 0 says that it is over."""
    device = plan.devices[ranks.rank]
    try:
        ops = backends.get(device)
        own = replace(plan, device=device, network=_own_network(plan.network))
        here = state.mapped(lambda array: ops.empty(array.shape, str(array.dtype)))
        ranks.broadcast(arrays_of(here))
        run = make(own, here, data.on(device), ranks)
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


def arrays_of(state: TrainState) -> list[Array]:
    """Return parameters, buffers and slots."""
    slots = [array for arrays in state.slots.values() for array in arrays.values()]
    return [*state.arrays.values(), *slots]
