"""Networks of a group trained in one launch of a GPU, wave by wave; those that no kernel takes, one
after the other.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field, replace
from functools import partial
from time import perf_counter
from typing import TYPE_CHECKING, Any, Self

import numpy as np

from warpfit import backends
from warpfit.engines.launch_arguments import kernels_of
from warpfit.engines.launch_plan import PreparedLaunch
from warpfit.engines.many_members import Outcome as Trained
from warpfit.engines.many_networks import Launch, Rungs, kernel_of_many, start_many
from warpfit.errors import Obstacle
from warpfit.sweep.folds import SweepData
from warpfit.sweep.group_rows import GroupRows
from warpfit.sweep.groups import Group
from warpfit.sweep.halving import Halving, Rule
from warpfit.sweep.metric import COLUMNS, Metric
from warpfit.sweep.preparing import takes, with_more_range
from warpfit.sweep.runner import OneByOne, Runner, in_order
from warpfit.sweep.side_by_side import (
    MEMORY_SHARE,
    bytes_of_rows,
    fits_at_once,
    goes_beside,
    train_side_by_side,
)
from warpfit.sweep.tasks import (
    Outcome,
    Task,
    errors_told,
    unfinished,
)
from warpfit.sweep.trained_task import OwnPlans, TrainedTask, close, interrupted

if TYPE_CHECKING:
    from warpfit.backends.cuda.many_launch import ManyLaunch

# Seconds that a launch should take, so that progress is seen and Ctrl-C heard between two, and how
# much longer than the one before one may be.
LAUNCH_SECONDS, GROWTH = 2.0, 8
# Groups that share the card at once: each has its rows there.
GROUPS_AT_ONCE = 8


@dataclass
class Together(Runner):
    """Trains the networks of a group in one launch, as many at once as a device holds.

    A network has the same bits alone as among others. They are not those of the engines of `fit`,
    whose kernels add up in another order: a task that asks for an engine by its name is trained by
    that, after the others.
    """

    device: str
    # Whether all models are wanted, so that their numbers come from the device at once; those of a
    # few come one by one when they are asked for.
    keeps_models: bool = True

    def explain(self, groups: Sequence[Group]) -> str:
        count = self._fits_at_once(groups)
        words = []
        for group in groups:
            is_beside = count > 1 and goes_beside(group.tasks[0], group.plan)
            how = f"{count} side by side" if is_beside else "one after the other"
            is_launched = not isinstance(group.launch, Obstacle)
            words.append(str(group.launch) if is_launched else f"{how} by `fit`: {group.launch}")
        kinds = "; ".join(dict.fromkeys(words))
        return f"in one launch, {kinds}" if _launches(groups) else kinds

    def at_once(self, groups: Sequence[Group]) -> int:
        of_launches = (own.groups(self._runtime.num_multiprocessors) for own in _launches(groups))
        return max(self._fits_at_once(groups), *of_launches, 1)

    def _fits_at_once(self, groups: Sequence[Group]) -> int:
        from warpfit.backends.cuda import autotune, driver

        if autotune.is_asked_for() or driver.is_debugging():
            return 1  # launches are measured, or waited for
        return fits_at_once(groups, self._runtime.memory_left())

    def num_bytes(self, groups: Sequence[Group]) -> int:
        """Return the bytes of the group that takes most: its rows once, for all networks of a
        launch.
        """
        count = self._fits_at_once(groups)
        return max(self._bytes_of(group, count) for group in groups)

    def _bytes_of(self, group: Group, fits_at_once: int) -> int:
        launch, x = group.launch, group.tasks[0].data.x
        if isinstance(launch, Obstacle):
            rows = bytes_of_rows(group)
            return rows + min(len(group.tasks), fits_at_once) * (group.plan.bytes - rows)
        count = min(len(group.tasks), launch.groups(self._runtime.num_multiprocessors))
        return launch.bytes_of_rows(x.nbytes, len(x)) + count * launch.network_bytes

    @contextmanager
    def _awaited(self) -> Iterator[None]:
        """Have what is started in this block end before anything that comes after it, an error,
        too.
        """
        try:
            yield
        finally:
            self._runtime.join()

    @property
    def _runtime(self) -> Any:
        ops: Any = backends.get(self.device)
        return ops.runtime

    def run(self, groups: Sequence[Group]) -> Iterator[Outcome]:
        left: list[Task] = []
        parts: list[Group] = []
        for group in groups:
            left += [task for task in group.tasks if not takes(task, group.plan)]
            for part in _by_rows(group):
                if isinstance(part.launch, Obstacle):
                    left += part.tasks
                else:
                    parts.append(part)
        self._compile_ahead(groups, parts)
        for first in range(0, len(parts), GROUPS_AT_ONCE):
            yield from self._run_side_by_side(parts[first : first + GROUPS_AT_ONCE])
        yield from self._run_by_fit(groups, sorted(left, key=lambda task: task.number))

    def _run_by_fit(self, groups: Sequence[Group], tasks: Sequence[Task]) -> Iterator[Outcome]:
        """Train tasks that no launch takes: side by side those of which that is possible."""
        plans = {task.number: group.plan for group in groups for task in group.tasks}
        count = self._fits_at_once(groups)
        beside: list[Task] = []
        alone: list[Task] = []
        for task in tasks:
            is_beside = count > 1 and goes_beside(task, plans[task.number])
            (beside if is_beside else alone).append(task)
        yield from train_side_by_side(beside, self.device, count)
        yield from OneByOne().run_tasks(alone)

    def _compile_ahead(self, groups: Sequence[Group], together: Sequence[Group]) -> None:
        """Begin to compile kernels, several at once: of groups that go into a launch, and of
        `fit` for others.
        """
        ops = backends.get(self.device)
        launches = zip(together, _launches(together), strict=True)
        longest_first = sorted(launches, key=lambda each: -_compilation(each[1]))
        kernels: list[tuple[str, dict[str, Any]]] = []
        for group, launch in longest_first:
            x = group.tasks[0].data.x
            kernels.append(kernel_of_many(launch, keeps_best=any(map(_keeps_best, group.tasks))))
            if backends.is_device_array(x):
                place = str(x.dtype), str(launch.network.dtype)
                kernels.append(("gather_rows", dict(zip(("SOURCE", "DTYPE"), place, strict=True))))
        left = [group for group in groups if isinstance(group.launch, Obstacle)]
        for group in left:
            prepared = group.plan.prepared
            if isinstance(prepared, PreparedLaunch):
                kernels += kernels_of(prepared.launch, str(group.tasks[0].data.x.dtype))
        ops.compile_ahead(kernels)
        for data in {id(group.tasks[0].data): group.tasks[0].data for group in left}.values():
            if backends.is_device_array(data.x):
                key = data.x.shape, str(data.x.dtype), len(data.folds) > 0
                ops.rehearse(("rows of a fit", key), partial(_look_through, data))

    def run_in_rungs(
        self, groups: Sequence[Group], rule: Rule, metric: Metric, num_folds: int
    ) -> Iterator[Outcome]:
        """Halve in one launch, where the kernel decides, if one takes all networks and can tell
        which are better; the host follows any other rule.
        """
        epochs = rule.rungs(
            max(task.arguments["epochs"] for group in groups for task in group.tasks)
        )
        if isinstance(rule, Halving) and epochs and self._halves(groups, metric):
            found = self._halved(groups[0], Rungs(epochs, rule.factor, num_folds, metric.name))
            if found:
                yield from found
                return
        yield from super().run_in_rungs(groups, rule, metric, num_folds)

    def _halved(self, group: Group, rungs: Rungs) -> list[Outcome]:
        """Train a group's networks in a launch that halves them; none if one of them cannot
        begin.
        """
        tasks = in_order([group])
        try:
            with self._awaited(), _Wave.of(tasks, group, GroupRows.of(group)) as wave:
                if wave.failed:
                    return []  # the kernel would take others' folds for a candidate's
                wave.start(rungs)
                return wave.outcomes(fetches=self.keeps_models)
        except KeyboardInterrupt:
            return [interrupted(task) for task in tasks]

    def _halves(self, groups: Sequence[Group], metric: Metric) -> bool:
        """Return whether all networks go into one launch, whose kernel finds the metric in each
        epoch.
        """
        group = groups[0]
        if len(groups) > 1 or metric.name not in COLUMNS or group.plan.report_every > 1:
            return False
        parts = list(_by_rows(group))
        if (
            isinstance(group.launch, Obstacle)
            or len(parts) != 1
            or len(parts[0].tasks) < len(group.tasks)
        ):
            return False
        return len(group.tasks) <= self._most(group.launch)

    def _run_side_by_side(self, groups: Sequence[Group]) -> Iterator[Outcome]:
        """Train groups that share the card, and then those of them anew that overflow."""
        with self._awaited():
            queues = [_Queue.of(group) for group in groups]
        try:
            yield from self._run_in_waves(queues)
            for queue in queues:
                yield from self._trained_anew(queue)
        except KeyboardInterrupt:
            yield from (each.broken_off() for queue in queues for each in queue.overflown)
            raise

    def _run_in_waves(self, queues: Sequence[_Queue]) -> Iterator[Outcome]:
        """Train wave by wave: a launch for each queue, whose blocks come as others leave."""
        for queue in queues:
            launch = queue.rows.all.launch
            queue.most = max(1, self._most(launch) // len(queues))
            at_once = launch.groups(self._runtime.num_multiprocessors)
            queue.share = max(1, at_once // len(queues))
            queue.count = min(queue.most, at_once)
        while queues:
            start = perf_counter()
            taken = [queue.take() for queue in queues]
            try:
                outcomes = self._trained(queues, taken)
            except KeyboardInterrupt:
                yield from (interrupted(task) for tasks in taken for task in tasks)
                raise
            yield from outcomes
            longer = LAUNCH_SECONDS / (perf_counter() - start)
            for queue, tasks in zip(queues, taken, strict=True):
                # A multiple of what trains at once: fewer take as long, and so does what is over.
                wanted = int(min(GROWTH, longer) * len(tasks)) // queue.share
                queue.count = min(queue.most, max(1, wanted) * queue.share)
            queues = [queue for queue in queues if queue.tasks]

    def _trained_anew(self, queue: _Queue) -> Iterator[Outcome]:
        """Train those of a queue that are not finite in float16 in bfloat16, from where they began,
        if they may be.
        """
        overflown = queue.overflown
        found = with_more_range(queue.group.plan, queue.group.tasks) if overflown else None
        if found is None:
            while overflown:
                yield overflown.pop(0).told()
            return
        plan, launch = found
        group = replace(queue.group, plan=plan, launch=launch)
        with self._awaited():
            rows = GroupRows.of(group)
        plans, most = OwnPlans(group, rows), max(1, self._most(launch))
        while overflown:
            taken = overflown[:most]
            del overflown[:most]
            try:
                with self._awaited():
                    runs = [each.run.anew(plans.of(each.run.task)) for each in taken]
                    with _Wave(runs, [], rows) as wave:
                        wave.start()
                        outcomes = wave.outcomes(fetches=self.keeps_models)
            except KeyboardInterrupt:
                yield from (interrupted(each.run.task) for each in taken)
                raise
            yield from outcomes

    def _trained(self, queues: Sequence[_Queue], taken: Sequence[list[Task]]) -> list[Outcome]:
        """Train what was taken from each queue, all of it at once."""
        with self._awaited(), ExitStack() as closed:
            waves = []
            for queue, tasks in zip(queues, taken, strict=True):
                waves.append(closed.enter_context(_Wave.of(tasks, queue.group, queue.rows)))
                waves[-1].start()
            fetches = self.keeps_models or any(queue.needs_room for queue in queues)
            found = [outcome for wave in waves for outcome in wave.outcomes(fetches=fetches)]
            for queue, wave in zip(queues, waves, strict=True):
                queue.overflown += wave.overflown
            return found

    def _most(self, launch: ManyLaunch) -> int:
        """Return how many networks have room at once."""
        left = int(MEMORY_SHARE * self._runtime.memory_left())
        return max(1, left // launch.network_bytes)


def _compilation(launch: ManyLaunch) -> float:
    """Return what grows with the seconds that a launch's kernel compiles for: the parameters that a
    thread updates, each by instructions of its own.
    """
    return launch.num_parameters / launch.threads


def _look_through(data: SweepData, ops: Any) -> None:
    """Do what finds the magnitude of rows on a device, after they were gathered for a fold."""
    x = ops.take(data.x, np.arange(len(data.x))) if data.folds else data.x
    numbers = ops.asarray(x, "float32")
    for name in ("min", "max"):
        ops.reduce(name, numbers)


def _keeps_best(task: Task) -> bool:
    rules = (callback.rule() for callback in task.callbacks)
    return any(rule is not None and rule.keeps_best for rule in rules)


def _launches(groups: Sequence[Group]) -> list[ManyLaunch]:
    return [group.launch for group in groups if not isinstance(group.launch, Obstacle)]


def _by_rows(group: Group) -> Iterator[Group]:
    """Yield the tasks of a group that can be trained in one launch, those with the same data
    together.
    """
    parts: dict[int, list[Task]] = {}
    for task in group.tasks:
        if takes(task, group.plan):
            parts.setdefault(id(task.data), []).append(task)
    for tasks in parts.values():
        yield replace(group, tasks=tuple(tasks))


@dataclass
class _Queue:
    """Tasks of a group that wait, and how many of them are trained next."""

    group: Group
    rows: GroupRows
    tasks: list[Task]
    most: int = 1
    share: int = 1  # how many of them the device trains at once, beside other queues'
    count: int = 1
    overflown: list[_Overflown] = field(default_factory=list)

    @staticmethod
    def of(group: Group) -> _Queue:
        return _Queue(group, group.rows or GroupRows.of(group), list(group.tasks))

    @property
    def needs_room(self) -> bool:
        """Whether others wait for the memory that networks have on the device."""
        return bool(self.tasks) and len(self.group.tasks) > self.most

    def take(self) -> list[Task]:
        wave, self.tasks = self.tasks[: self.count], self.tasks[self.count :]
        return wave


@dataclass(frozen=True)
class _Overflown:
    """A network that is not finite in float16, which the engine chose, and what came of it."""

    run: TrainedTask
    result: Trained
    seconds: float

    def told(self) -> Outcome:
        """Return its outcome, after all have heard of it."""
        self.run.tell(self.result, self.seconds)
        with errors_told(self.run.outcome):
            close(self.run.outcome.callbacks)
        return self.run.outcome

    def broken_off(self) -> Outcome:
        """Return its outcome if Ctrl-C comes before it is trained anew."""
        with errors_told(self.run.outcome):
            close(self.run.outcome.callbacks)
        return interrupted(self.run.task)


@dataclass
class _Wave:
    """Networks on their way through a launch, and what came of those that could not begin.

    Of those that overflow nobody is told, unless there is no other precision, or they are halved.
    """

    runs: list[TrainedTask]
    failed: list[Outcome]
    rows: GroupRows
    launch: Launch | None = None
    began: float = 0.0
    halves: bool = False
    overflown: list[_Overflown] = field(default_factory=list)

    @staticmethod
    def of(tasks: Sequence[Task], group: Group, rows: GroupRows) -> _Wave:
        wave, plans = _Wave([], [], rows), OwnPlans(group, rows)
        for task in tasks:
            outcome = unfinished(task)
            with errors_told(outcome):
                wave.runs.append(TrainedTask.of(task, plans, rows, outcome))
            if outcome.error is not None:
                wave.failed.append(outcome)
        return wave

    def start(self, rungs: Rungs | None = None) -> None:
        self.began, self.halves = perf_counter(), rungs is not None
        if self.runs:
            self.launch = start_many([run.member for run in self.runs], self.rows.all, rungs)

    def outcomes(self, *, fetches: bool = True) -> list[Outcome]:
        """Wait for the launch, and return what came of all tasks; `fetches` as
        `Launch.outcomes` takes it.
        """
        fetches = fetches or any(run.reads_weights for run in self.runs)
        results = [] if self.launch is None else self.launch.outcomes(fetches=fetches)
        seconds = (perf_counter() - self.began) / max(
            1, sum(len(result.reported) for result in results)
        )
        told = []
        for run, result in zip(self.runs, results, strict=True):
            own_seconds = seconds * len(result.reported)
            if result.error is not None and not self.halves and run.may_begin_anew:
                self.overflown.append(_Overflown(run, result, own_seconds))
                continue
            run.tell(result, own_seconds)
            told.append(run.outcome)
        return [*told, *self.failed]

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        kept = {id(each.run) for each in self.overflown}
        for run in self.runs:
            if id(run) in kept:
                continue
            with errors_told(run.outcome):
                close(run.outcome.callbacks)
