"""Networks of a group trained in one launch of a GPU, wave by wave; those that no kernel takes, one
after the other.
"""

from __future__ import annotations

import pickle
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, replace
from time import perf_counter
from typing import TYPE_CHECKING, Any, NamedTuple, Self, cast

import numpy as np
import numpy.typing as npt

from warpfit import backends
from warpfit.backends import Array
from warpfit.backends.transfer import to_host
from warpfit.data.dataset import unit_floats
from warpfit.engines.base import EpochReport, Plan, TrainingData, TrainState
from warpfit.engines.many_networks import (
    Launch,
    Rungs,
    start_many,
)
from warpfit.engines.many_networks import Outcome as Trained
from warpfit.engines.many_rows import DeviceRows, Member
from warpfit.errors import Obstacle
from warpfit.losses import Loss
from warpfit.nn.module import Module
from warpfit.optim.base import Optimizer
from warpfit.sweep.groups import Group
from warpfit.sweep.halving import Halving, message_of
from warpfit.sweep.metric import COLUMNS, Metric
from warpfit.sweep.preparing import takes, weighed
from warpfit.sweep.runner import OneByOne, Runner, in_order
from warpfit.sweep.tasks import (
    DIVERGED,
    DONE,
    INTERRUPTED,
    PAUSED,
    STOPPED,
    Outcome,
    Task,
    errors_told,
    report_of_weights,
    tell_diverged,
    unfinished,
)
from warpfit.training.callbacks import Callback
from warpfit.training.evaluate import network_of
from warpfit.training.fit import prepared_targets, prepared_validation
from warpfit.training.history import History
from warpfit.training.run import Run
from warpfit.training.state import remember_loss, show, state_of, write_back

if TYPE_CHECKING:
    from warpfit.backends.cuda.many_launch import ManyLaunch

__all__ = ["Together"]

# Seconds that a launch should take, so that progress is seen and Ctrl-C heard between two, and how
# much longer than the one before one may be.
LAUNCH_SECONDS, GROWTH = 2.0, 8
# Groups that share the card at once: each has its rows there.
SIDE_BY_SIDE = 8
# Of the memory that is left, for the parameters and records of launches.
MEMORY_SHARE = 0.5


@dataclass
class Together(Runner):
    """Trains the networks of a group in one launch, as many at once as a device holds.

    A network has the same bits alone as among others. They are not those of the engines of `fit`,
    whose kernels add up in another order: a task that asks for an engine by its name is trained by
    that, after the others.

    Parameters
    ----------
    device : str
    """

    device: str

    def explain(self, groups: Sequence[Group]) -> str:
        words = [
            f"one after the other by `fit`: {group.launch}"
            if isinstance(group.launch, Obstacle)
            else str(group.launch)
            for group in groups
        ]
        kinds = "; ".join(dict.fromkeys(words))
        return f"in one launch, {kinds}" if _launches(groups) else kinds

    def at_once(self, groups: Sequence[Group]) -> int:
        return max((own.groups(self._num_multiprocessors) for own in _launches(groups)), default=1)

    def num_bytes(self, groups: Sequence[Group]) -> int:
        """Return the bytes of the group that takes most: its rows once, for all networks of a
        launch.
        """
        return max(map(self._bytes_of, groups))

    def _bytes_of(self, group: Group) -> int:
        launch, x = group.launch, group.tasks[0].data.x
        if isinstance(launch, Obstacle):
            return group.plan.bytes
        count = min(len(group.tasks), launch.groups(self._num_multiprocessors))
        return launch.bytes_of_rows(x.nbytes, len(x)) + count * launch.network_bytes

    @contextmanager
    def _awaited(self) -> Iterator[None]:
        """Have what is started in this block end before anything that comes after it, an error,
        too.
        """
        ops: Any = backends.get(self.device)
        try:
            yield
        finally:
            ops.runtime.join()

    @property
    def _num_multiprocessors(self) -> int:
        ops: Any = backends.get(self.device)
        return int(ops.runtime.num_multiprocessors)

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
        for first in range(0, len(parts), SIDE_BY_SIDE):
            yield from self._run_side_by_side(parts[first : first + SIDE_BY_SIDE])
        yield from OneByOne().run_tasks(sorted(left, key=lambda task: task.number))

    def run_in_rungs(
        self, groups: Sequence[Group], rule: Halving, metric: Metric, num_folds: int
    ) -> Iterator[Outcome]:
        """Halve in one launch, where the kernel decides, if one takes all networks and can tell
        which are better.
        """
        epochs = rule.rungs(
            max(task.arguments["epochs"] for group in groups for task in group.tasks)
        )
        if epochs and self._halves(groups, metric):
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
            with self._awaited(), _Wave.of(tasks, group.plan, _Rows.of(group)) as wave:
                if wave.failed:
                    return []  # the kernel would take others' folds for a candidate's
                wave.start(rungs)
                return wave.outcomes()
        except KeyboardInterrupt:
            return [_interrupted(task) for task in tasks]

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
        """Train groups that share the card, wave by wave: a launch for each, whose blocks come as
        others leave.
        """
        with self._awaited():
            queues = [_Queue.of(group) for group in groups]
        for queue in queues:
            launch = queue.rows.all.launch
            queue.most = max(1, self._most(launch) // len(queues))
            queue.count = min(queue.most, launch.groups(self._num_multiprocessors))
        while queues:
            start = perf_counter()
            taken = [queue.take() for queue in queues]
            try:
                outcomes = self._trained(queues, taken)
            except KeyboardInterrupt:
                yield from (_interrupted(task) for tasks in taken for task in tasks)
                raise
            yield from outcomes
            longer = LAUNCH_SECONDS / (perf_counter() - start)
            for queue, tasks in zip(queues, taken, strict=True):
                queue.count = max(
                    1, min(queue.most, GROWTH * queue.count, int(len(tasks) * longer))
                )
            queues = [queue for queue in queues if queue.tasks]

    def _trained(self, queues: Sequence[_Queue], taken: Sequence[list[Task]]) -> list[Outcome]:
        """Train what was taken from each queue, all of it at once."""
        with self._awaited(), ExitStack() as closed:
            waves = []
            for queue, tasks in zip(queues, taken, strict=True):
                waves.append(closed.enter_context(_Wave.of(tasks, queue.group.plan, queue.rows)))
                waves[-1].start()
            return [outcome for wave in waves for outcome in wave.outcomes()]

    def _most(self, launch: ManyLaunch) -> int:
        """Return how many networks have room at once."""
        ops: Any = backends.get(self.device)
        return max(1, int(MEMORY_SHARE * ops.runtime.memory_left()) // launch.network_bytes)


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


def _labels_to_weigh(task: Task, rows: _Rows) -> Any:
    """Return the labels of a task's rows if class weights may depend on them."""
    if task.arguments.get("class_weight") is None:
        return ()
    train = rows.train[task.fold]
    return rows.all.data.y[: rows.num_rows] if train is None else rows.all.data.y[train]


@dataclass(frozen=True)
class _Rows:
    """All rows of a group's tasks, and which of them each fold has."""

    all: DeviceRows
    num_rows: int
    train: dict[int | None, npt.NDArray[np.int32] | None]
    test: dict[int | None, npt.NDArray[np.int32] | None]

    @staticmethod
    def of(group: Group) -> _Rows:
        data, plan = group.tasks[0].data, weighed(group.plan, group.tasks[0])
        x, y = data.x, prepared_targets(plan, data.y, len(data.x))
        weights = data.sample_weight
        train: dict[int | None, Any] = {None: None}
        test: dict[int | None, Any] = {None: None}
        if data.validation is not None:
            val_x, val_y = data.validation
            test[None] = np.arange(len(x), len(x) + len(val_x), dtype=np.int32)
            x, y = _joined(x, val_x), _joined(y, prepared_validation(plan, val_x, val_y))
            weights = None if weights is None else _joined(weights, np.ones(len(val_x)))
        for idx, fold in enumerate(data.folds):
            train[idx] = fold.train.astype(np.int32)
            test[idx] = fold.test.astype(np.int32) if data.is_validated(idx) else None
        rows = DeviceRows(
            cast("ManyLaunch", group.launch), plan.device, TrainingData(x, y, weights)
        )
        return _Rows(rows, len(data.x), train, test)


def _joined(first: Array, second: Array) -> Any:
    parts = [to_host(first), to_host(second)]
    if len({part.dtype == np.uint8 for part in parts}) > 1:  # x / 255
        parts = [unit_floats(part) if part.dtype == np.uint8 else part for part in parts]
    return np.concatenate(parts)


@dataclass
class _Queue:
    """Tasks of a group that wait, and how many of them are trained next."""

    group: Group
    rows: _Rows
    tasks: list[Task]
    most: int = 1
    count: int = 1

    @staticmethod
    def of(group: Group) -> _Queue:
        return _Queue(group, _Rows.of(group), list(group.tasks))

    def take(self) -> list[Task]:
        wave, self.tasks = self.tasks[: self.count], self.tasks[self.count :]
        return wave


@dataclass
class _Wave:
    """Networks on their way through a launch, and what came of those that could not begin."""

    runs: list[_Trained]
    failed: list[Outcome]
    rows: _Rows
    launch: Launch | None = None
    began: float = 0.0

    @staticmethod
    def of(tasks: Sequence[Task], plan: Plan, rows: _Rows) -> _Wave:
        wave = _Wave([], [], rows)
        for task in tasks:
            outcome = unfinished(task)
            with errors_told(outcome):
                wave.runs.append(_Trained.of(task, plan, rows, outcome))
            if outcome.error is not None:
                wave.failed.append(outcome)
        return wave

    def start(self, rungs: Rungs | None = None) -> None:
        self.began = perf_counter()
        if self.runs:
            self.launch = start_many([run.member for run in self.runs], self.rows.all, rungs)

    def outcomes(self) -> list[Outcome]:
        results = [] if self.launch is None else self.launch.outcomes()
        seconds = (perf_counter() - self.began) / max(
            1, sum(len(result.reports) for result in results)
        )
        for run, result in zip(self.runs, results, strict=True):
            run.tell(result, seconds * len(result.reports))
        return [*(run.outcome for run in self.runs), *self.failed]

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        for run in self.runs:
            with errors_told(run.outcome):
                _close(run.outcome.callbacks)


def _close(callbacks: Sequence[Callback]) -> None:
    for callback in callbacks:
        callback.close()


class _Pause(NamedTuple):
    """What a network that paused goes on from."""

    state: TrainState
    reports: list[EpochReport]
    callbacks: list[Callback]
    loss: Loss


@dataclass(frozen=True)
class _Trained:
    """A task's network on its way through a launch; its run, and what comes of it."""

    task: Task
    model: Module
    optimizer: Optimizer
    member: Member
    run: Run
    outcome: Outcome

    @staticmethod
    def of(task: Task, plan: Plan, rows: _Rows, outcome: Outcome) -> _Trained:
        model, optimizer, callbacks = task.own()
        train, test = rows.train[task.fold], rows.test[task.fold]
        own = replace(
            weighed(plan, task, _labels_to_weigh(task, rows)),
            network=network_of(model, task.data.x.shape[1:]),
            optimizer=optimizer.spec,
            epochs=task.arguments["epochs"],
            num_rows=rows.num_rows if train is None else len(train),
        )
        ops = backends.get("cpu")
        before = _pause_of(task)
        if before is None:
            state = state_of(model, optimizer, ops, "float32", task.arguments["seed"])
            before = _Pause(state, [], callbacks, own.loss)
        run, callbacks = (
            Run(own, before.state, History(before.reports), ops, model),
            before.callbacks,
        )
        show(model, run.state)
        remember_loss(model, own.loss)
        try:
            for callback in callbacks:
                callback.on_start(run)
        except BaseException:
            _close(callbacks)
            raise
        rule = next((each.hand_over() for each in callbacks if each.rule() is not None), None)
        outcome.model, outcome.optimizer, outcome.callbacks = model, optimizer, callbacks
        outcome.history = run.history
        member = Member(own, before.state, train, test, task.until, rule)
        return _Trained(task, model, optimizer, member, run, outcome)

    def tell(self, result: Trained, seconds: float) -> None:
        """Record the network's result and its seconds in the outcome, and call the listener."""
        self.outcome.seconds = seconds
        with errors_told(self.outcome):
            self._tell(result)

    def _tell(self, result: Trained) -> None:
        run, found, callbacks = self.run, self.outcome, self.outcome.callbacks
        for report in result.reports:
            run.history.reports.append(report)
            for callback in callbacks:
                callback.on_epoch_end(run)
        run.history.plan = run.plan
        if result.error is not None:
            write_back(run.state, self.model, self.optimizer, run.plan.loss)
            found.report = report_of_weights(run.history, callbacks, DIVERGED)
            tell_diverged(found, result.error)
            return
        found.status = DONE
        if result.halved is not None:
            after, place, num_compared = result.halved
            found.status, found.halved_after = STOPPED, after
            found.message = run.history.stopped_by = message_of(place, num_compared, after)
        elif run.stop_reason is not None:
            found.status = STOPPED
            found.message = run.history.stopped_by = run.stop_reason
        elif run.state.epoch < run.plan.epochs:
            found.status = PAUSED
            found.checkpoint = pickle.dumps(
                _Pause(run.state, run.history.reports, list(callbacks), run.plan.loss)
            )
        for callback in callbacks:
            callback.on_end(run)
        write_back(run.state, self.model, self.optimizer, run.plan.loss)
        found.report = report_of_weights(run.history, callbacks, found.status)
        found.score = self.task.score_of(self.model)


def _pause_of(task: Task) -> _Pause | None:
    """Return what a task goes on from, if it has begun."""
    if task.checkpoint is None:
        return None
    found: _Pause = pickle.loads(task.checkpoint)  # our own, of some moments ago
    return found


def _interrupted(task: Task) -> Outcome:
    """Return the outcome of a task that Ctrl-C reached: what it had when it last paused."""
    outcome, before = unfinished(task), _pause_of(task)
    outcome.status = INTERRUPTED
    outcome.message = outcome.history.stopped_by = "interrupt"
    if before is not None:
        model, optimizer, _ = task.own()
        write_back(before.state, model, optimizer, before.loss)
        outcome.model, outcome.optimizer, outcome.callbacks = model, optimizer, before.callbacks
        outcome.history.reports[:] = before.reports
        outcome.report = report_of_weights(outcome.history, before.callbacks, INTERRUPTED)
    return outcome
