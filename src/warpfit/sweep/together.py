"""Networks of a group trained in one launch of a GPU, wave by wave; those that no kernel takes, one after the other."""

from __future__ import annotations

import pickle
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from time import perf_counter
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt

from warpfit import backends
from warpfit.backends import Array
from warpfit.backends.transfer import to_host
from warpfit.engines.base import EpochReport, Plan, TrainingData, TrainState
from warpfit.engines.many_networks import (
    DeviceRows,
    Launch,
    Member,
    Rungs,
    bytes_of_network,
    bytes_of_rows,
    shape_for,
    start_many,
)
from warpfit.engines.many_networks import Outcome as Trained
from warpfit.errors import ConfigError, WarpfitError
from warpfit.nn.module import Module
from warpfit.optim.base import Optimizer
from warpfit.optim.schedules import ReduceOnPlateau
from warpfit.sweep.groups import Group
from warpfit.sweep.halving import Halving, message_of
from warpfit.sweep.metric import COLUMNS, Metric
from warpfit.sweep.runner import OneByOne, Runner
from warpfit.sweep.tasks import (
    DIVERGED,
    DONE,
    INTERRUPTED,
    PAUSED,
    STOPPED,
    Outcome,
    Task,
    report_of_weights,
)
from warpfit.training.callbacks import Callback, StoppingRule
from warpfit.training.evaluate import network_of
from warpfit.training.fit import prepared_targets
from warpfit.training.history import History
from warpfit.training.inputs import resolve_class_weight
from warpfit.training.run import Run
from warpfit.training.state import state_of, write_back

__all__ = ["Together"]

# Seconds that a launch should take, so that progress is seen and Ctrl-C heard between two, and how much longer than the
# one before one may be.
LAUNCH_SECONDS, GROWTH = 2.0, 8
# Groups that share the card at once: each has its rows there.
SIDE_BY_SIDE = 8
# Of the memory that is left, for the parameters and records of launches.
MEMORY_SHARE = 0.5


@dataclass
class Together(Runner):
    """Trains the networks of a group in one launch, as many at once as a device holds.

    A network has the same bits alone as among others. They are not those of the engines of `fit`, whose kernels add up
    in another order: a task that asks for an engine by its name is trained by that, after the others.

    Parameters
    ----------
    device : str
    """

    device: str

    def explain(self, groups: Sequence[Group]) -> str:
        shapes = [_shape(group) for group in groups]
        words = [
            f"one after the other by `fit`: {why_not}" if shape is None else str(shape)
            for shape, why_not in shapes
        ]
        kinds = "; ".join(dict.fromkeys(words))
        return kinds if all(shape is None for shape, _ in shapes) else f"in one launch, {kinds}"

    def at_once(self, groups: Sequence[Group]) -> int:
        shapes = [shape for group in groups if (shape := _shape(group)[0]) is not None]
        return max((shape.groups(self._num_multiprocessors) for shape in shapes), default=1)

    def num_bytes(self, groups: Sequence[Group]) -> int:
        """Return the bytes of the group that takes most: its rows once, for all networks of a launch."""
        return max(map(self._bytes_of, groups))

    def _bytes_of(self, group: Group) -> int:
        shape, _ = _shape(group)
        if shape is None:
            return group.plan.bytes
        count = min(len(group.tasks), shape.groups(self._num_multiprocessors))
        return bytes_of_rows(shape, group.tasks[0].data.x) + count * bytes_of_network(shape)

    @property
    def _num_multiprocessors(self) -> int:
        ops: Any = backends.get(self.device)
        return int(ops.runtime.num_multiprocessors)

    def run(self, groups: Sequence[Group]) -> Iterator[Outcome]:
        left: list[Task] = []
        parts: list[Group] = []
        for group in groups:
            left += [task for task in group.tasks if not _takes(task, group.plan)]
            for part in _by_rows(group):
                if _shape(part)[0] is None:
                    left += part.tasks
                else:
                    parts.append(part)
        for first in range(0, len(parts), SIDE_BY_SIDE):
            yield from self._run_side_by_side(parts[first : first + SIDE_BY_SIDE])
        yield from OneByOne().run_tasks(sorted(left, key=lambda task: task.number))

    def run_in_rungs(
        self, groups: Sequence[Group], rule: Halving, metric: Metric, num_folds: int
    ) -> Iterator[Outcome]:
        """Halve in one launch, where the kernel decides, if one takes all networks and can tell which are better."""
        epochs = rule.rungs(max(task.arguments["epochs"] for group in groups for task in group.tasks))
        if not epochs or not self._halves(groups, metric):
            return super().run_in_rungs(groups, rule, metric, num_folds)
        return _halved(groups[0], Rungs(epochs, rule.factor, num_folds, metric.name))

    def _halves(self, groups: Sequence[Group], metric: Metric) -> bool:
        """Return whether all networks go into one launch, whose kernel finds the metric in each epoch."""
        group = groups[0]
        if len(groups) > 1 or metric.name not in COLUMNS or group.plan.report_every > 1:
            return False
        shape, _ = _shape(group)
        parts = list(_by_rows(group))
        if shape is None or len(parts) != 1 or len(parts[0].tasks) < len(group.tasks):
            return False
        return len(group.tasks) <= self._most(shape)

    def _run_side_by_side(self, groups: Sequence[Group]) -> Iterator[Outcome]:
        """Train groups that share the card, wave by wave: a launch for each, whose blocks come as others leave."""
        queues = [_Queue.of(group) for group in groups]
        for queue in queues:
            shape = queue.rows.all.shape
            queue.most = max(1, self._most(shape) // len(queues))
            queue.count = min(queue.most, shape.groups(self._num_multiprocessors))
        while queues:
            start = perf_counter()
            waves = [queue.take() for queue in queues]
            try:
                launches = [
                    _Wave.of(tasks, queue.group.plan, queue.rows)
                    for queue, tasks in zip(queues, waves, strict=True)
                ]
                outcomes = [outcome for launch in launches for outcome in launch.outcomes()]
            except KeyboardInterrupt:
                yield from (_interrupted(task) for tasks in waves for task in tasks)
                raise
            yield from outcomes
            longer = LAUNCH_SECONDS / (perf_counter() - start)
            for queue, tasks in zip(queues, waves, strict=True):
                queue.count = max(1, min(queue.most, GROWTH * queue.count, int(len(tasks) * longer)))
            queues = [queue for queue in queues if queue.tasks]

    def _most(self, shape: Any) -> int:
        """Return how many networks of a shape have room at once."""
        ops: Any = backends.get(self.device)
        return max(1, int(MEMORY_SHARE * ops.runtime.memory_left()) // bytes_of_network(shape))


def _by_rows(group: Group) -> Iterator[Group]:
    """Yield the tasks of a group that can be trained in one launch, those with the same data together."""
    parts: dict[int, list[Task]] = {}
    for task in group.tasks:
        if _takes(task, group.plan):
            parts.setdefault(id(task.data), []).append(task)
    for tasks in parts.values():
        yield replace(group, tasks=tuple(tasks))


def _takes(task: Task, plan: Plan) -> bool:
    """Return whether a task is nothing but epochs, whose rates are known beforehand, whatever rows weigh."""
    rules = [each for each in task.callbacks if isinstance(each, StoppingRule)]
    others = [each for each in task.callbacks if not isinstance(each, StoppingRule)]
    if len(rules) > 1 or not all(_follows(rule, task, plan) for rule in rules):
        return False
    if not all(_reads_reports(each) for each in others) or isinstance(
        task.optimizer.spec.lr, ReduceOnPlateau
    ):
        return False
    try:
        _weighed(plan, task)
    except WarpfitError:
        return False  # `fit` says what is wrong with the weights
    return True


def _weighed(plan: Plan, task: Task, labels: Any = ()) -> Plan:
    """Return a plan with a task's weights of classes, which may follow from the labels of its rows."""
    num_classes = (*plan.network.output_shape, 0)[0]
    weights = task.arguments.get("class_weight")
    return replace(plan, loss=resolve_class_weight(plan.loss, weights, labels, num_classes))


def _labels_to_weigh(task: Task, rows: _Rows) -> Any:
    """Return the labels of a task's rows if weights of classes may follow from them."""
    if task.arguments.get("class_weight") is None:
        return ()
    train = rows.train[task.fold]
    return rows.all.data.y[: rows.num_rows] if train is None else rows.all.data.y[train]


def _follows(rule: StoppingRule, task: Task, plan: Plan) -> bool:
    """Return whether a kernel can do what a callback does: stop by what it finds of each epoch itself."""
    watched = rule.watched
    if watched is None or plan.report_every > 1:
        return False
    return (task.data.is_validated(task.fold) or not watched.startswith("val")) and (
        plan.loss.counts_correct or not watched.endswith("accuracy")
    )


def _reads_reports(callback: Callback) -> bool:
    """Return whether a callback does nothing but read what reports of a launch have, after it."""
    is_deaf = type(callback).on_step is Callback.on_step
    return is_deaf and not callback.needs_run and not callback.needs_step_losses


def _shape(group: Group) -> tuple[Any, str]:
    """Return how a group's networks are trained in one launch, or None, and why not."""
    task, plan = group.tasks[0], group.plan
    if task.arguments["engine"] != "auto":
        return None, f"engine {plan.engine!r} was asked for"
    taken = next((task for task in group.tasks if _takes(task, plan)), None)
    if taken is None:
        return None, "callbacks, or rates that follow the loss"
    if plan.engine != "one_launch":
        return None, plan.reason
    data = TrainingData(task.data.x, task.data.y, task.data.sample_weight)
    try:
        return shape_for(_weighed(plan, taken), data), ""
    except ConfigError as error:
        return None, str(error)


@dataclass(frozen=True)
class _Rows:
    """All rows of a group's tasks, and which of them each fold has."""

    all: DeviceRows
    num_rows: int
    train: dict[int | None, npt.NDArray[np.int32] | None]
    test: dict[int | None, npt.NDArray[np.int32] | None]

    @staticmethod
    def of(group: Group) -> _Rows:
        data, plan = group.tasks[0].data, _weighed(group.plan, group.tasks[0])
        x, y = data.x, prepared_targets(plan, data.y, len(data.x))
        weights = data.sample_weight
        train: dict[int | None, Any] = {None: None}
        test: dict[int | None, Any] = {None: None}
        if data.validation is not None:
            val_x, val_y = data.validation
            test[None] = np.arange(len(x), len(x) + len(val_x), dtype=np.int32)
            x, y = _joined(x, val_x), _joined(y, prepared_targets(plan, val_y, len(val_x)))
            weights = None if weights is None else _joined(weights, np.ones(len(val_x)))
        for idx, fold in enumerate(data.folds):
            train[idx] = fold.train.astype(np.int32)
            test[idx] = fold.test.astype(np.int32) if data.is_validated(idx) else None
        return _Rows(DeviceRows(plan, TrainingData(x, y, weights)), len(data.x), train, test)


def _joined(first: Array, second: Array) -> Any:
    return np.concatenate([to_host(first), to_host(second)])


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


@dataclass(frozen=True)
class _Wave:
    """Networks on their way through a launch."""

    tasks: Sequence[Task]
    runs: list[_Trained]
    launch: Launch
    start: float

    @staticmethod
    def of(tasks: Sequence[Task], plan: Plan, rows: _Rows, rungs: Rungs | None = None) -> _Wave:
        start = perf_counter()
        runs = [_Trained.of(task, plan, rows) for task in tasks]
        return _Wave(tasks, runs, start_many([run.member for run in runs], rows.all, rungs), start)

    def outcomes(self) -> list[Outcome]:
        results = self.launch.outcomes()
        seconds = (perf_counter() - self.start) / max(1, sum(len(result.reports) for result in results))
        return [
            run.outcome(task, result, seconds * len(result.reports))
            for run, task, result in zip(self.runs, self.tasks, results, strict=True)
        ]


def _halved(group: Group, rungs: Rungs) -> Iterator[Outcome]:
    """Train a group's networks in a launch that halves them."""
    tasks = sorted(group.tasks, key=lambda task: task.number)
    try:
        yield from _Wave.of(tasks, group.plan, _Rows.of(group), rungs).outcomes()
    except KeyboardInterrupt:
        yield from map(_interrupted, tasks)


class _Pause(NamedTuple):
    """What a network that paused goes on from."""

    state: TrainState
    reports: list[EpochReport]
    callbacks: list[Callback]


@dataclass(frozen=True)
class _Trained:
    """A task's network on its way through a launch; its run, and who hears of it."""

    member: Member
    model: Module
    optimizer: Optimizer
    run: Run
    callbacks: list[Callback]

    @staticmethod
    def of(task: Task, plan: Plan, rows: _Rows) -> _Trained:
        model, optimizer, callbacks = task.own()
        train, test = rows.train[task.fold], rows.test[task.fold]
        own = replace(
            _weighed(plan, task, _labels_to_weigh(task, rows)),
            network=network_of(model, task.data.x.shape[1:]),
            optimizer=optimizer.spec,
            epochs=task.arguments["epochs"],
            num_rows=rows.num_rows if train is None else len(train),
        )
        ops = backends.get("cpu")
        if task.checkpoint is None:
            state = state_of(model, optimizer, ops, "float32", task.arguments["seed"])
            before = _Pause(state, [], callbacks)
        else:
            before = pickle.loads(task.checkpoint)  # our own, of some moments ago
        run, callbacks = Run(own, before.state, History(before.reports), ops), before.callbacks
        for callback in callbacks:
            callback.on_start(run)
        rule = next((each.hand_over() for each in callbacks if isinstance(each, StoppingRule)), None)
        member = Member(own, before.state, train, test, task.until, rule)
        return _Trained(member, model, optimizer, run, callbacks)

    def outcome(self, task: Task, result: Trained, seconds: float) -> Outcome:
        run, callbacks = self.run, self.callbacks
        for report in result.reports:
            run.history.reports.append(report)
            for callback in callbacks:
                callback.on_epoch_end(run)
        run.history.plan = run.plan
        found = Outcome(task.number, DONE, "", run.history, self.model, self.optimizer, callbacks, seconds)
        if result.error is not None:
            found.status, found.message, found.error = DIVERGED, str(result.error), result.error
        elif result.halved is not None:
            after, place, num_compared = result.halved
            found.status, found.halved_after = STOPPED, after
            found.message = message_of(place, num_compared, after)
        elif run.stop_reason is not None:
            found.status, found.message = STOPPED, run.stop_reason
            run.history.stopped_by = run.stop_reason
        elif run.state.epoch < run.plan.epochs:
            found.status = PAUSED
            found.checkpoint = pickle.dumps(_Pause(run.state, run.history.reports, callbacks))
        if result.error is None:
            for callback in callbacks:
                callback.on_end(run)
        write_back(run.state, self.model, self.optimizer)
        found.report = report_of_weights(run.history, callbacks, found.status)
        if result.error is None:
            found.score = task.score_of(self.model)
        return found


def _interrupted(task: Task) -> Outcome:
    return Outcome(task.number, INTERRUPTED, "interrupt", History(), task.model, task.optimizer, ())
