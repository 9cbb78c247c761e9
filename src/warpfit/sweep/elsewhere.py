"""Networks that other processes train, through joblib or an executor."""

from __future__ import annotations

import pickle
from collections.abc import Callable, Iterable, Iterator, Sequence
from concurrent.futures import BrokenExecutor, Executor, Future, as_completed, wait
from dataclasses import dataclass, replace
from threading import Event
from typing import Any

from warpfit import backends
from warpfit.blas import one_blas_thread
from warpfit.errors import ConfigError, DeviceError
from warpfit.sweep.groups import Group
from warpfit.sweep.here import runner_here
from warpfit.sweep.planning import plan_groups
from warpfit.sweep.runner import Runner, in_order
from warpfit.sweep.sending import check_sendable, for_sending, is_set, joblibs_pickle, stop_of
from warpfit.sweep.tasks import Outcome, Task, train, unfinished

__all__ = ["Processes", "Shards", "run_shard"]

SECONDS_TO_HAND_OVER = 2.0


@dataclass
class Processes(Runner):
    """Trains on the CPU, in processes of one BLAS thread each, which read the data from memory that
    they share.

    Parameters
    ----------
    num_processes : int
    note : str
        Why not more, if that is to be said.
    """

    num_processes: int
    note: str = ""

    def explain(self, groups: Sequence[Group]) -> str:
        return (
            f"{self.num_processes} processes of one BLAS thread "
            f"each{self.note and '; ' + self.note}"
        )

    def at_once(self, groups: Sequence[Group]) -> int:
        return self.num_processes

    def run(self, groups: Sequence[Group]) -> Iterator[Outcome]:
        from joblib import Parallel, delayed

        left = {task.number: task for task in in_order(groups)}
        try:
            parallel = Parallel(n_jobs=self.num_processes, return_as="generator_unordered")
        except ValueError as error:  # of a backend that users have set
            raise ConfigError(f"expected a backend of joblib such as loky: {error}") from error
        try:
            for outcome in parallel(
                delayed(_train_elsewhere)(task) for task in list(left.values())
            ):
                del left[outcome.number]
                yield outcome
        except (pickle.PicklingError, AttributeError, TypeError) as error:
            _check_sendable(left.values(), error, joblibs_pickle())
            raise
        except BrokenExecutor:
            killed = DeviceError(
                "a process that trained networks was killed, most likely because memory ran out; "
                "fewer n_jobs may help"
            )
            yield from (_failed(task, killed) for task in left.values())


@dataclass
class Shards(Runner):
    """Distributes the networks among the workers of an executor, a shard to each.

    Parameters
    ----------
    executor : concurrent.futures.Executor
    devices : sequence of str
        Shards take them in turn.
    num_shards : int
    """

    executor: Executor
    devices: Sequence[str]
    num_shards: int

    def explain(self, groups: Sequence[Group]) -> str:
        kind = type(self.executor).__name__
        return f"{self.num_shards} shards by {kind}, on {', '.join(self.devices)}"

    def at_once(self, groups: Sequence[Group]) -> int:
        return self.num_shards

    def run(self, groups: Sequence[Group]) -> Iterator[Outcome]:
        tasks = in_order(groups)
        shards = [
            tasks[first :: self.num_shards] for first in range(min(self.num_shards, len(tasks)))
        ]
        futures: dict[Future[list[Outcome]], list[Task]] = {}
        stop = stop_of(self.executor)
        try:
            for idx, shard in enumerate(shards):
                device = self.devices[idx % len(self.devices)]
                try:
                    futures[self.executor.submit(run_shard, shard, device, stop)] = shard
                except Exception as error:
                    yield from self._failures(shard, error)
            for future in as_completed(futures):
                try:
                    outcomes = future.result()
                except Exception as error:
                    outcomes = self._failures(futures[future], error)
                yield from outcomes
        except KeyboardInterrupt:
            if stop is not None:
                stop.set()
            yield from _handed_over(list(futures))
            raise
        finally:
            for future in futures:
                future.cancel()

    def _failures(self, shard: Sequence[Task], error: Exception) -> list[Outcome]:
        """Return the outcomes of a shard that came to nothing, or raise ConfigError if it could not
        be sent.
        """
        if stop_of(self.executor) is None:  # what threads take is not pickled
            _check_sendable(shard, error, pickle.dumps)
        kind = type(self.executor).__name__
        lost = DeviceError(f"a worker of {kind} ended with {type(error).__name__}: {error}")
        return [_failed(task, lost) for task in shard]


def run_shard(tasks: Sequence[Task], device: str, stop: Event | None = None) -> list[Outcome]:
    """Train a shard's networks on a device of this process until `stop` is set, and return what
    came of them.
    """
    data = tasks[0].data.on(backends.resolve_device(device))
    placed = [
        replace(task, data=data, arguments={**task.arguments, "device": device}) for task in tasks
    ]
    runner = runner_here(backends.resolve_device(device))
    outcomes = []
    for outcome in runner.run(plan_groups(placed)):
        outcomes.append(for_sending(outcome))
        if is_set(stop):
            break
    return outcomes


def _train_elsewhere(task: Task) -> Outcome:
    with one_blas_thread():
        return for_sending(train(task))


def _failed(task: Task, error: DeviceError) -> Outcome:
    return replace(unfinished(task), message=str(error), error=error)


def _handed_over(futures: Sequence[Future[list[Outcome]]]) -> Iterator[Outcome]:
    """Yield what workers that Ctrl-C reached, too, still hand over; what was yielded before comes
    again.
    """
    for future in futures:
        future.cancel()
    done, _ = wait(futures, timeout=SECONDS_TO_HAND_OVER)
    for future in done:
        if not future.cancelled() and future.exception() is None:
            yield from future.result()


def _check_sendable(tasks: Iterable[Task], error: Exception, dumps: Callable[[Any], bytes]) -> None:
    """Raise ConfigError if it is a task that does not get through to another process."""
    for task in tasks:
        own: Any = replace(task, data=None)  # type: ignore[arg-type]
        check_sendable(own, "model, optimizer, callbacks and metric", error, dumps)
