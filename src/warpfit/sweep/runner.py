"""Who trains the networks of a sweep: one after the other, in processes, or wherever an executor leads.

A `Runner` takes groups and yields outcomes; `local_runner` says which one a device has: `together.py` for GPUs. Nothing
else asks how networks are trained.
"""

from __future__ import annotations

import os
import pickle
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import BrokenExecutor, Executor, Future, as_completed, wait
from contextlib import AbstractContextManager, nullcontext, suppress
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any

from warpfit import backends
from warpfit.errors import ConfigError, DeviceError
from warpfit.sweep.folds import SweepData
from warpfit.sweep.groups import Group
from warpfit.sweep.tasks import INTERRUPTED, Outcome, Task, train

if TYPE_CHECKING:
    from warpfit.sweep.halving import Halving
    from warpfit.sweep.metric import Metric

__all__ = ["OneByOne", "Processes", "Runner", "Shards", "in_order", "local_runner", "run_here", "workers_of"]

CPU = "cpu"
SECONDS_TO_HAND_OVER = 2.0


class Runner(ABC):
    """A way to train networks.

    An engine that trains a group's networks at once derives from this. Tasks on the same rows have the same
    `SweepData`, or others with the same array x, on the device if that has room. The engine may run groups in any order
    and share the device out to them as it likes, and owes for each task

    * an `Outcome` as soon as it is known, with the weights in the outcome's model, the slots in its optimizer, and the
      reports in its history, as `fit` leaves them: the bits that the runner gives that task alone;
    * for `Task.until` and `Task.checkpoint`: a pause with a checkpoint's bytes, and going on from one, as `train`;
    * status ``'diverged'`` with the DivergedError for a network whose loss is not finite, while the others go on;
    * after Ctrl-C, what is finished, the networks at work as ``'interrupted'``, and no more.

    A task that it cannot take goes to `tasks.train`.
    """

    @abstractmethod
    def explain(self, groups: Sequence[Group]) -> str:
        """Return in words how networks are trained, and why so."""

    @abstractmethod
    def at_once(self, groups: Sequence[Group]) -> int:
        """Return how many networks are trained at the same time."""

    def num_bytes(self, groups: Sequence[Group]) -> int:
        """Return the bytes of memory that these take, data included; here as if each had its own."""
        num_networks = sum(len(group.tasks) for group in groups)
        return min(self.at_once(groups), num_networks) * max(group.plan.bytes for group in groups)

    @abstractmethod
    def run(self, groups: Sequence[Group]) -> Iterator[Outcome]:
        """Train the networks of groups, and yield what came of each as it is known, in any order."""

    def run_in_rungs(
        self, groups: Sequence[Group], rule: Halving, metric: Metric, num_folds: int
    ) -> Iterator[Outcome]:
        """Do so, but halve the candidates at a rule's rungs; each has `num_folds` tasks, whose numbers are in line.

        Here the host does, and a rung is a run.
        """
        from warpfit.sweep.halving import run_in_rungs

        return run_in_rungs(self, groups, rule, metric, num_folds)


def in_order(groups: Sequence[Group]) -> list[Task]:
    """Return the tasks of all groups by their numbers."""
    return sorted((task for group in groups for task in group.tasks), key=lambda task: task.number)


@dataclass
class OneByOne(Runner):
    """Trains by `fit`, one network after the other, in this process.

    Parameters
    ----------
    has_one_thread : bool
        Whether BLAS has one thread, so that results are those of `Processes`.
    why : str
        In words, for the plan.
    """

    has_one_thread: bool = False
    why: str = ""
    _threads: Any = field(default=None, repr=False)

    def explain(self, groups: Sequence[Group]) -> str:
        return self.why or "one network after the other, in this process"

    def at_once(self, groups: Sequence[Group]) -> int:
        return 1

    def run(self, groups: Sequence[Group]) -> Iterator[Outcome]:
        return self.run_tasks(in_order(groups))

    def run_tasks(self, tasks: Sequence[Task]) -> Iterator[Outcome]:
        """Train tasks in their order, as `run` does those of groups."""
        for task in tasks:
            outcome = self.train(task)
            yield outcome
            if outcome.status == INTERRUPTED:
                return

    def train(self, task: Task) -> Outcome:
        """Train one network."""
        with self._limit():
            return train(task)

    def _limit(self) -> AbstractContextManager[Any]:
        if not self.has_one_thread:
            return nullcontext()
        if self._threads is None:
            from threadpoolctl import ThreadpoolController  # type: ignore[import-untyped]

            self._threads = ThreadpoolController()
        return self._threads.limit(limits=1, user_api="blas")


@dataclass
class Processes(Runner):
    """Trains on the CPU, in processes of one BLAS thread each, which read the data from memory that they share.

    Parameters
    ----------
    num_processes : int
    note : str
        Why not more, if that is to be said.
    """

    num_processes: int
    note: str = ""

    def explain(self, groups: Sequence[Group]) -> str:
        return f"{self.num_processes} processes of one BLAS thread each{self.note and '; ' + self.note}"

    def at_once(self, groups: Sequence[Group]) -> int:
        return self.num_processes

    def run(self, groups: Sequence[Group]) -> Iterator[Outcome]:
        from joblib import Parallel, delayed

        tasks = in_order(groups)
        parallel = Parallel(n_jobs=self.num_processes, return_as="generator_unordered")
        try:
            yield from parallel(delayed(_train_elsewhere)(task) for task in tasks)
        except (pickle.PicklingError, AttributeError, TypeError) as error:
            _check_sendable(tasks, error, _joblibs_pickle())
            raise
        except BrokenExecutor as error:
            raise DeviceError(
                "a process that trained networks was killed, most likely for want of memory; fewer n_jobs may help"
            ) from error


@dataclass
class Shards(Runner):
    """Deals the networks out to the workers of an executor, a shard to each.

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
        shards = [tasks[first :: self.num_shards] for first in range(min(self.num_shards, len(tasks)))]
        futures: list[Future[list[Outcome]]] = []
        try:
            for idx, shard in enumerate(shards):
                futures.append(self.executor.submit(run_shard, shard, self.devices[idx % len(self.devices)]))
            for future in as_completed(futures):
                yield from self._result(future, shards[futures.index(future)])
        except KeyboardInterrupt:
            yield from _handed_over(futures)
            raise
        finally:
            for future in futures:
                future.cancel()

    def _result(self, future: Future[list[Outcome]], shard: list[Task]) -> list[Outcome]:
        try:
            return future.result()
        except Exception as error:
            _check_sendable(shard, error, pickle.dumps)
            raise DeviceError(
                f"a worker of {type(self.executor).__name__} ended with {type(error).__name__}: {error}"
            ) from error


def _handed_over(futures: Sequence[Future[list[Outcome]]]) -> Iterator[Outcome]:
    """Yield what workers that Ctrl-C reached, too, still hand over; what was yielded before comes again."""
    for future in futures:
        future.cancel()
    done, _ = wait(futures, timeout=SECONDS_TO_HAND_OVER)
    for future in done:
        if not future.cancelled() and future.exception() is None:
            yield from future.result()


def run_shard(tasks: Sequence[Task], device: str) -> list[Outcome]:
    """Train a shard's networks on a device of this process, and return what came of them."""
    from warpfit.sweep.planning import plan_groups

    data = tasks[0].data.on(backends.resolve_device(device))
    placed = [replace(task, data=data, arguments={**task.arguments, "device": device}) for task in tasks]
    runner = local_runner(backends.resolve_device(device), 1)
    return [_for_sending(outcome) for outcome in runner.run(plan_groups(placed))]


def local_runner(device: str, num_processes: int, note: str = "") -> Runner:
    """Return what trains networks on a device of this machine: `num_processes` at once on the CPU."""
    if device != CPU:
        from warpfit.sweep.together import Together

        return Together(device)
    if num_processes > 1:
        return Processes(num_processes, note)
    words = "one network after the other, with one BLAS thread"
    return OneByOne(has_one_thread=True, why=f"{words}; {note}" if note else words)


def run_here(tasks: Sequence[Task]) -> list[Outcome]:
    """Train networks in this process, and return what came of them, in the order of their numbers.

    On a GPU, by what trains many there; on the CPU one after the other, with as many BLAS threads as there are.
    After Ctrl-C only those are returned that were at work before it.
    """
    device = backends.resolve_device(tasks[0].arguments["device"]) if tasks else CPU
    if device == CPU or len(tasks) == 1:
        found = OneByOne().run_tasks(tasks)
    else:
        from warpfit.sweep.planning import plan_groups

        found = local_runner(device, 1).run(plan_groups(_placed(tasks, device)))
    outcomes: list[Outcome] = []
    with suppress(KeyboardInterrupt):  # those at work say that it came
        outcomes.extend(found)
    return sorted(outcomes, key=lambda outcome: outcome.number)


def _placed(tasks: Sequence[Task], device: str) -> list[Task]:
    """Return the tasks with their rows on a device, where each array is once, however many tasks have it."""
    arrays: dict[int, Any] = {}
    data: dict[int, SweepData] = {}
    for task in tasks:
        own = task.data
        if id(own) in data:
            continue
        if id(own.x) not in arrays:
            arrays[id(own.x)] = own.on(device).x
        data[id(own)] = replace(own, x=arrays[id(own.x)], _last={})
    return [replace(task, data=data[id(task.data)]) for task in tasks]


def _train_elsewhere(task: Task) -> Outcome:
    return _for_sending(OneByOne(has_one_thread=True).train(task))


def _for_sending(outcome: Outcome) -> Outcome:
    """Return the outcome without what would not get through to another process."""
    if outcome.error is not None:
        try:
            pickle.loads(pickle.dumps(outcome.error))
        except Exception:
            outcome.error = None
    return outcome


def _check_sendable(tasks: Sequence[Task], error: Exception, dumps: Callable[[Any], bytes]) -> None:
    """Raise ConfigError if it is a task that does not get through to another process."""
    for task in tasks:
        try:
            dumps(replace(task, data=None))  # type: ignore[arg-type]
        except Exception as reason:
            raise ConfigError(
                "expected model, optimizer, callbacks and metric that can be pickled, to be sent to other processes, "
                f"but {reason}; objects of classes and functions at the top of a module can"
            ) from error


def _joblibs_pickle() -> Callable[[Any], bytes]:
    """Return what joblib pickles with; releases before 1.6 bring it along."""
    try:
        from cloudpickle import dumps
    except ImportError:
        from joblib.externals.cloudpickle import dumps
    return dumps


def workers_of(executor: Any) -> int:
    """Return how many workers an executor has, as far as it says, else the cores of this machine."""
    for name in ("_max_workers", "num_workers"):
        count = getattr(executor, name, None)
        if isinstance(count, int) and count > 0:
            return count
    client: Any = getattr(executor, "_client", None)
    if hasattr(client, "nthreads"):  # Dask's
        return max(1, sum(client.nthreads().values()))
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
