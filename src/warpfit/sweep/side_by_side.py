"""Networks that `fit` trains side by side on a GPU: threads with a network and a stream each.

One thread goes on at a time, until it waits for the device: threads that want the interpreter at
each call would be in each other's way. What overlaps is what the device does.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from contextvars import copy_context
from queue import Empty, SimpleQueue
from threading import Lock, Thread
from typing import Any

from warpfit import backends
from warpfit.engines.at_once import is_of_package
from warpfit.engines.base import Plan
from warpfit.engines.graph import GraphEngine
from warpfit.engines.kept_runs import keeping_runs
from warpfit.sweep.groups import Group
from warpfit.sweep.tasks import INTERRUPTED, Outcome, Task, train

# Networks that share a GPU: more of them are no quicker, and each makes graphs of its own.
MOST_AT_ONCE = 4
# Of the memory that is left, for what networks have of their own.
MEMORY_SHARE = 0.5
# Seconds after which a thread goes on out of turn: another may wait for what it holds.
MOST_SECONDS = 0.25
# Between two looks for an interrupt of the thread that waits: a `Stop` does not end its wait.
SECONDS_TO_HEAR = 0.1


def goes_beside(task: Task, plan: Plan) -> bool:
    """Return whether a network may be trained beside others: its steps are graphs, no callback or
    metric of the user's looks at it, and no fold's rows are gathered for it on one thread's stream,
    which threads beside it would take too early.
    """
    if plan.engine != GraphEngine.name or plan.num_ranks > 1:
        return False
    callbacks = (is_of_package(callback) or not callback.needs_run for callback in task.callbacks)
    return task.fold is None and task.scoring is None and all(callbacks)


def fits_at_once(groups: Sequence[Group], memory_left: int) -> int:
    """Return how many networks are trained side by side, as many as have room if all are like the
    largest.
    """
    owners = [group for group in groups for task in group.tasks if goes_beside(task, group.plan)]
    largest = max((group.plan.bytes - bytes_of_rows(group) for group in owners), default=0)
    room = int(MEMORY_SHARE * memory_left) // max(1, largest)
    return max(1, min(MOST_AT_ONCE, len(owners), room))


def bytes_of_rows(group: Group) -> int:
    """Return the bytes of what all networks of a group share."""
    data = group.tasks[0].data
    return int(data.x.nbytes + data.y.nbytes)


def train_side_by_side(tasks: Sequence[Task], device: str, count: int) -> Iterator[Outcome]:
    """Train networks by `fit`, up to `count` at a time, and yield what came of each as it is known.

    Raises
    ------
    KeyboardInterrupt
        After Ctrl-C, when those at work have told of it.
    """
    threads = _Threads(tasks, device, count)
    try:
        threads.start()
        yield from threads.outcomes()
    except KeyboardInterrupt:
        threads.stop()
        yield from threads.outcomes()
    finally:
        threads.end()
    if threads.is_stopped:
        raise KeyboardInterrupt


class _Threads:
    """Threads that take one task after the other."""

    def __init__(self, tasks: Sequence[Task], device: str, count: int) -> None:
        ops: Any = backends.get(device)
        self._runtime, self._tasks, self._turn = ops.runtime, deque(tasks), Lock()
        self._found: SimpleQueue[Outcome | BaseException | None] = SimpleQueue()  # None: an end
        self.is_stopped = False
        self._threads = [
            Thread(target=copy_context().run, args=(self._work,), daemon=True)
            for _ in range(min(count, len(tasks)))
        ]
        self._num_ended = 0
        self._of_each = -(-len(tasks) // max(1, len(self._threads)))

    def start(self) -> None:
        for thread in self._threads:
            thread.start()

    def _at_work(self) -> int:
        """Return how many have begun and not told of their end."""
        return sum(thread.ident is not None for thread in self._threads) - self._num_ended

    def outcomes(self) -> Iterator[Outcome]:
        """Yield those to come."""
        while self._at_work():
            try:
                found = self._found.get(timeout=SECONDS_TO_HEAR)
            except Empty:
                continue
            if found is None:
                self._num_ended += 1
            elif isinstance(found, BaseException):
                raise found
            else:
                yield found

    def stop(self) -> None:
        """Break off the networks at work where they next wait for the device."""
        self.is_stopped = True

    def end(self) -> None:
        self._tasks.clear()
        if self._at_work():
            self.stop()
        for thread in self._threads:
            if thread.ident is not None:  # it was started
                thread.join()

    def _work(self) -> None:
        turn, is_told = Turn(self._turn), False

        @contextmanager
        def waiting() -> Iterator[None]:
            nonlocal is_told
            with turn.handed_on():
                yield
            if self.is_stopped and not is_told:
                is_told = True
                raise KeyboardInterrupt

        turn.take()
        try:
            with self._runtime.own_stream(waiting), keeping_runs(self._of_each):
                self._train_all()
        except BaseException as error:
            self._found.put(error)
        finally:
            turn.hand_on()
            self._found.put(None)

    def _train_all(self) -> None:
        while not self.is_stopped:
            try:
                task = self._tasks.popleft()
            except IndexError:
                return
            outcome = train(task)
            self._runtime.hand_over()
            self._found.put(outcome)
            if outcome.status == INTERRUPTED:  # by a callback
                self.stop()


class Turn:
    """Whether a thread has the turn, of which there is one."""

    def __init__(self, lock: Lock) -> None:
        self._lock, self._is_held = lock, False

    def take(self) -> None:
        self._is_held = self._lock.acquire(timeout=MOST_SECONDS)

    def hand_on(self) -> None:
        if self._is_held:
            self._is_held = False  # first, lest an interrupt has it released twice
            self._lock.release()

    @contextmanager
    def handed_on(self) -> Iterator[None]:
        """Let others have it in this block."""
        self.hand_on()
        try:
            yield
        finally:
            self.take()
