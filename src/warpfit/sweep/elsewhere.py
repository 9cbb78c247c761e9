"""Networks that other processes train, through joblib or an executor."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from concurrent.futures import BrokenExecutor
from contextlib import closing, suppress
from dataclasses import dataclass, replace
from math import prod
from threading import Event
from typing import Any

from warpfit import backends
from warpfit.blas import one_blas_thread
from warpfit.errors import DeviceError, Obstacle
from warpfit.sweep.folds import SweepData
from warpfit.sweep.groups import Group
from warpfit.sweep.here import placed, runner_here
from warpfit.sweep.planning import plan_groups
from warpfit.sweep.runner import Runner, in_order
from warpfit.sweep.sending import check_sendable, for_sending
from warpfit.sweep.tasks import Outcome, Task, train, unfinished
from warpfit.sweep.threads import own_device
from warpfit.sweep.workers import (
    DeviceWorkers,
    Function,
    JoblibsWorkers,
    Raised,
    Workers,
    thrown,
)
from warpfit.training.devices import devices_of

# Data by its `id` here, which goes to workers once, and tasks without it.
SharedData = dict[int, SweepData]
Sent = list[tuple[int, Task]]


@dataclass
class Processes(Runner):
    """Trains on the CPU, in processes of one BLAS thread each, which read the data from memory that
    they share.
    """

    num_processes: int
    note: str = ""  # why not more, if that is to be said

    def explain(self, groups: Sequence[Group]) -> str:
        return (
            f"{self.num_processes} processes of one BLAS thread "
            f"each{self.note and '; ' + self.note}"
        )

    def at_once(self, groups: Sequence[Group]) -> int:
        return self.num_processes

    def run(self, groups: Sequence[Group]) -> Iterator[Outcome]:
        shards = [[task] for task in in_order(groups)]
        return _outcomes(JoblibsWorkers(self.num_processes), _train_one, shards, [""])


@dataclass
class Shards(Runner):
    """Distributes the networks among workers elsewhere, a shard to each."""

    workers: Workers
    devices: Sequence[str]  # shards take them in turn
    num_shards: int

    def explain(self, groups: Sequence[Group]) -> str:
        shards = "1 shard" if self.num_shards == 1 else f"{self.num_shards} shards"
        devices = ", ".join(self.devices[: self.num_shards])
        return f"{shards} by {self.workers.kind}, on {devices}"

    def at_once(self, groups: Sequence[Group]) -> int:
        return self.num_shards

    def run(self, groups: Sequence[Group]) -> Iterator[Outcome]:
        tasks = in_order(groups)
        num_shards = min(self.num_shards, len(tasks))
        shards = [tasks[first::num_shards] for first in range(num_shards)]
        return _outcomes(self.workers, _train_shard, shards, self.devices)


@dataclass
class Cards(Shards):
    """Deals the networks to devices of this process: each takes the next shard when it is free.

    Shards are of one group each, those of long networks first, so that all end at about the same
    time.
    """

    def explain(self, groups: Sequence[Group]) -> str:
        return f"in turn by {', '.join(self.devices)}, whichever is free"

    def run(self, groups: Sequence[Group]) -> Iterator[Outcome]:
        longest_first = sorted(groups, key=_length, reverse=True)
        shards = [shard for group in longest_first for shard in self._dealt(group)]
        return _outcomes(self.workers, _train_shard, shards, self.devices)

    def _dealt(self, group: Group) -> Iterator[Sequence[Task]]:
        """Yield shards of a group: as many networks as a device trains at once, and all devices
        have some.
        """
        each, ops = 1, backends.get(group.plan.device)
        if not isinstance(group.launch, Obstacle):
            each = group.launch.groups(ops.runtime.num_multiprocessors)  # type: ignore[attr-defined]
        each = max(1, min(each, -(-len(group.tasks) // self.num_shards)))
        for first in range(0, len(group.tasks), each):
            yield group.tasks[first : first + each]


def runner_on(device: Any) -> Runner | None:
    """Return the runner of networks on several devices of this process, which are what `fit` takes;
    None for one.
    """
    names = devices_of(device).names
    return Cards(DeviceWorkers(names), names, len(names)) if len(names) > 1 else None


def _length(group: Group) -> int:
    """Return how long a network of a group takes, by parameters that pass, up to a factor."""
    shapes = [p.data.shape for p in group.tasks[0].model.parameters()]
    return group.plan.epochs * group.plan.num_rows * sum(map(prod, shapes))


def _outcomes(
    workers: Workers, function: Function, shards: Sequence[Sequence[Task]], devices: Sequence[str]
) -> Iterator[Outcome]:
    """Yield what comes of shards that workers train; devices in turn are theirs."""
    data = {id(task.data): task.data for shard in shards for task in shard}
    shares = [
        (devices[idx % len(devices)], [(id(task.data), _without_data(task)) for task in shard])
        for idx, shard in enumerate(shards)
    ]
    with closing(workers.results(function, data, shares)) as results:  # type: ignore[type-var]
        try:
            for idx, result in results:
                if isinstance(result, Raised):
                    yield from _failures(shards[idx], result.error, workers)
                else:
                    yield from result
        except KeyboardInterrupt as interrupt:
            for _, result in thrown(results, interrupt):
                yield from () if isinstance(result, Raised) else result
            raise


def _train_one(data: SharedData, share: tuple[str, Sent], stop: Event | None) -> list[Outcome]:
    """Train a shard of one network on the CPU."""
    with one_blas_thread():
        return [_for_sending(train(task)) for task in _with_data(data, share[1])]


def _train_shard(data: SharedData, share: tuple[str, Sent], stop: Event | None) -> list[Outcome]:
    return run_shard(_with_data(data, share[1]), own_device() or share[0])


def run_shard(tasks: Sequence[Task], device: str) -> list[Outcome]:
    """Train a shard's networks on a device of this process, and return what came of them: after
    Ctrl-C, of those that had begun.
    """
    device = backends.resolve_device(device)
    own = [
        replace(task, arguments={**task.arguments, "device": device})
        for task in placed(tasks, device)
    ]
    outcomes: list[Outcome] = []
    with suppress(KeyboardInterrupt):
        for outcome in runner_here(device).run(plan_groups(own)):
            outcomes.append(_for_sending(outcome))
    return outcomes


def _for_sending(outcome: Outcome) -> Outcome:
    if outcome.error is not None:
        outcome.error = for_sending(outcome.error)
    return outcome


def _failures(shard: Sequence[Task], error: Exception, workers: Workers) -> list[Outcome]:
    """Return the outcomes of a shard that came to nothing, or raise ConfigError if it could not be
    sent.
    """
    if not workers.has_threads:
        _check_sendable(shard, error, workers)
    words = f"a worker of {workers.kind} ended with {type(error).__name__}: {error}"
    if isinstance(error, BrokenExecutor) and isinstance(workers, JoblibsWorkers):
        words = (
            "a process that trained networks was killed again and again, most likely because "
            "memory ran out; fewer n_jobs may help"
        )
    return [_failed(task, DeviceError(words)) for task in shard]


def _failed(task: Task, error: DeviceError) -> Outcome:
    return replace(unfinished(task), message=str(error), error=error)


def _without_data(task: Task) -> Task:
    own: Any = None
    return replace(task, data=own)


def _with_data(data: SharedData, sent: Sent) -> list[Task]:
    return [replace(task, data=data[key]) for key, task in sent]


def _check_sendable(tasks: Iterable[Task], error: Exception, workers: Workers) -> None:
    """Raise ConfigError if it is a task that does not get through to another process."""
    what = "model, optimizer, callbacks and metric"
    for task in tasks:
        check_sendable(_without_data(task), what, error, workers.dumps)
