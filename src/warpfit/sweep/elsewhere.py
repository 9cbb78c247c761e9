"""Networks that other processes train, through joblib or an executor."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from concurrent.futures import BrokenExecutor
from contextlib import closing, suppress
from dataclasses import dataclass, field, replace
from math import prod
from threading import Event, Lock
from typing import Any, cast

from warpfit import backends
from warpfit.blas import one_blas_thread
from warpfit.errors import DeviceError, Obstacle
from warpfit.sweep.folds import SweepData
from warpfit.sweep.group_rows import GroupRows
from warpfit.sweep.groups import Group
from warpfit.sweep.here import CPU, placed, runner_here
from warpfit.sweep.planning import plan_groups
from warpfit.sweep.preparing import takes
from warpfit.sweep.runner import Runner, in_order
from warpfit.sweep.sending import check_sendable, for_sending
from warpfit.sweep.side_by_side import Turn
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
    time. Where all are of one, a device has two threads: one prepares a shard, and looks at what
    came of it, while the other's trains.
    """

    def explain(self, groups: Sequence[Group]) -> str:
        return f"in turn by {', '.join(self.devices)}, whichever is free"

    def at_once(self, groups: Sequence[Group]) -> int:
        return self.num_shards * runner_here(self.devices[0]).at_once(groups)

    def num_bytes(self, groups: Sequence[Group]) -> int:
        return self.num_shards * runner_here(self.devices[0]).num_bytes(groups)

    def run(self, groups: Sequence[Group]) -> Iterator[Outcome]:
        longest_first = sorted(groups, key=_length, reverse=True)
        shards = [shard for group in longest_first for shard in self._dealt(group)]
        if not self._are_as_planned(groups):
            return _outcomes(self.workers, _train_shard, shards, self.devices)
        shared = {backends.resolve_device(device): _OfDevice() for device in self.devices}
        workers = DeviceWorkers([*self.devices] * (2 if len(shards) > len(shared) else 1))
        parts = [replace(groups[0], tasks=tuple(shard)) for shard in shards]
        return _results(workers, _train_part, shared, parts, shards)

    def _are_as_planned(self, groups: Sequence[Group]) -> bool:
        """Return whether there is one launch, on the same rows and for any of the devices."""
        if len(groups) != 1 or isinstance(groups[0].launch, Obstacle) or CPU in self.devices:
            return False
        plan, tasks = groups[0].plan, groups[0].tasks
        every: Any = [backends.get(device) for device in (*self.devices, plan.device)]
        kinds, rows = {ops.runtime.card for ops in every}, {id(task.data) for task in tasks}
        return len(kinds) == len(rows) == 1 and all(takes(task, plan) for task in tasks)

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
    return _results(workers, function, data, shares, shards)


def _results(
    workers: Workers, function: Function, shared: Any, shares: Sequence[Any], shards: Sequence[Any]
) -> Iterator[Outcome]:
    with closing(workers.results(function, shared, shares)) as results:  # type: ignore[type-var]
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


@dataclass
class _OfDevice:
    """What the threads of a device share: turns, and the rows, which one of them brings there,
    however long that takes.
    """

    turn: Lock = field(default_factory=Lock)
    bringing: Lock = field(default_factory=Lock)
    rows: GroupRows | None = None

    def with_rows(self, part: Group, device: str) -> Group:
        """Return a part of a group with its rows on this device."""
        with self.bringing:
            tasks = tuple(placed(part.tasks, device))
            own = replace(part, tasks=tasks, plan=replace(part.plan, device=device))
            self.rows = self.rows or GroupRows.of(own)
            return replace(own, rows=self.rows)


def _train_part(devices: Mapping[str, _OfDevice], part: Group, _: Event | None) -> list[Outcome]:
    """Train a shard of a group as it was planned, on this thread's device, for which the threads
    of a device wait beside each other, and do all else in turns.
    """
    device = backends.resolve_device(own_device() or part.plan.device)
    shared, ops = devices[device], cast(Any, backends.get(device))
    turn = Turn(shared.turn)
    turn.take()
    try:
        # Before a stream of its own begins: both threads' come after what both read.
        own = shared.with_rows(part, device)
        with ops.runtime.own_stream(turn.handed_on):
            return _sent(runner_here(device).run([own]))
    finally:
        turn.hand_on()


def run_shard(tasks: Sequence[Task], device: str) -> list[Outcome]:
    """Train a shard's networks on a device of this process, and return what came of them: after
    Ctrl-C, of those that had begun.
    """
    device = backends.resolve_device(device)
    own = [
        replace(task, arguments={**task.arguments, "device": device})
        for task in placed(tasks, device)
    ]
    return _sent(runner_here(device).run(plan_groups(own)))


def _sent(found: Iterator[Outcome]) -> list[Outcome]:
    outcomes: list[Outcome] = []
    with suppress(KeyboardInterrupt):
        for outcome in found:
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
