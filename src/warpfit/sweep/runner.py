"""Runners, which train the networks of a sweep: the interface, and one that trains in sequence.

A `Runner` takes groups and yields outcomes. `here.py` says which one this process has,
`together.py` for GPUs; `elsewhere.py` has those that lead to other processes. Nothing else asks how
networks are trained.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterator, Sequence
from contextlib import nullcontext
from dataclasses import dataclass

from warpfit.blas import one_blas_thread
from warpfit.sweep.groups import Group
from warpfit.sweep.halving import Rule, run_in_rungs
from warpfit.sweep.metric import Metric
from warpfit.sweep.tasks import INTERRUPTED, Outcome, Task, train


class Runner(ABC):
    """A way to train networks.

    An engine that trains a group's networks at once derives from this. Tasks on the same rows have
    the same `SweepData`, or others with the same array x, on the device if that has room. The
    engine may run groups in any order and give them parts of the device as it likes, and owes for
    each task

    * an `Outcome` as soon as it is known, with the weights in the outcome's model, the slots in its
      optimizer, and the reports in its history, as `fit` leaves them: the bits that the runner
      gives that task alone;
    * for `Task.until` and `Task.checkpoint`: a pause with a checkpoint's bytes, and going on from
      one, as `train`;
    * status ``'diverged'`` with the DivergedError for a network whose loss is not finite, while the
      others go on;
    * after Ctrl-C, what is finished, the networks at work as ``'interrupted'``, and no more.

    A task that it cannot take goes to `tasks.train`.
    """

    @abstractmethod
    def explain(self, groups: Sequence[Group]) -> str:
        """Return in words how networks are trained, and why."""

    @abstractmethod
    def at_once(self, groups: Sequence[Group]) -> int:
        """Return how many networks are trained at the same time."""

    def num_bytes(self, groups: Sequence[Group]) -> int:
        """Return the bytes of memory that these take, data included; here as if each had its
        own.
        """
        num_networks = sum(len(group.tasks) for group in groups)
        return min(self.at_once(groups), num_networks) * max(group.plan.bytes for group in groups)

    @abstractmethod
    def run(self, groups: Sequence[Group]) -> Iterator[Outcome]:
        """Train the networks of groups, and yield what came of each as it is known, in any
        order.
        """

    def run_in_rungs(
        self, groups: Sequence[Group], rule: Rule, metric: Metric, num_folds: int
    ) -> Iterator[Outcome]:
        """Do so, but stop candidates at a rule's rungs; each has `num_folds` tasks, whose
        numbers are in line.

        Here the host does, and a rung is a run.
        """
        return run_in_rungs(self.run, groups, rule, metric, num_folds)


def in_order(groups: Sequence[Group]) -> list[Task]:
    """Return the tasks of all groups by their numbers."""
    return sorted((task for group in groups for task in group.tasks), key=lambda task: task.number)


@dataclass
class OneByOne(Runner):
    """Trains by `fit`, one network after the other, in this process."""

    # Whether BLAS has one thread, so that results are those of `Processes`.
    has_one_thread: bool = False
    why: str = ""  # in words, for the plan

    def explain(self, groups: Sequence[Group]) -> str:
        return self.why or "one network after the other, in this process"

    def at_once(self, groups: Sequence[Group]) -> int:
        return 1

    def run(self, groups: Sequence[Group]) -> Iterator[Outcome]:
        return self.run_tasks(in_order(groups))

    def run_tasks(self, tasks: Sequence[Task]) -> Iterator[Outcome]:
        """Train tasks in their order, as `run` does those of groups."""
        with one_blas_thread() if self.has_one_thread else nullcontext():
            for task in tasks:
                outcome = train(task)
                yield outcome
                if outcome.status == INTERRUPTED:
                    return
