"""A task's network on its way through a launch that trains many, and what comes of it."""

from __future__ import annotations

import pickle
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import Any, NamedTuple, cast

import numpy as np

from warpfit import backends
from warpfit.backends.transfer import moved
from warpfit.engines.base import EpochReport, Plan, Stopping, TrainState
from warpfit.engines.launch_network import parameter_names
from warpfit.engines.many_members import Member
from warpfit.engines.many_members import Outcome as Trained
from warpfit.engines.state_on_demand import StateOnDemand
from warpfit.losses import Loss
from warpfit.nn.init import InitialValues
from warpfit.nn.module import Module
from warpfit.on_demand import Maker, OnDemand
from warpfit.optim.base import Optimizer
from warpfit.sweep.group_rows import GroupRows, labels_to_weigh
from warpfit.sweep.groups import Group
from warpfit.sweep.halving import message_of
from warpfit.sweep.preparing import weighed
from warpfit.sweep.tasks import (
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
from warpfit.training.history import History
from warpfit.training.precisions import later_drafts
from warpfit.training.run import Run
from warpfit.training.state import (
    remember_loss,
    show_on_demand,
    state_of,
    write_back,
    write_back_on_demand,
)


class HistoryOnDemand(OnDemand, History):
    """A network's history, whose reports are made when they are asked for."""

    def __init__(self, before: list[EpochReport], result: Trained) -> None:
        super().__init__()
        self._last_epoch = before[-1].epoch if before else 0
        if result.reported:
            self._last_epoch = result.reported[-1] + 1
        self.promise(lambda: {"reports": [*before, *result.reports]}, "reports")

    @property
    def last_epoch(self) -> int:
        return self._last_epoch


def close(callbacks: Sequence[Callback]) -> None:
    for callback in callbacks:
        callback.close()


class _Pause(NamedTuple):
    """What a network that paused goes on from."""

    state: TrainState
    reports: list[EpochReport]
    callbacks: list[Callback]
    loss: Loss


class OwnPlans:
    """The plans of a group's tasks, one for all that are alike."""

    def __init__(self, group: Group, rows: GroupRows) -> None:
        self.group, self.rows = group, rows
        self._known: dict[Any, Plan] = {}
        self._starts: dict[int, Mapping[str, InitialValues]] = {}
        self._names: dict[int, list[str]] = {}  # of parameters, by networks

    def of(self, task: Task) -> Plan:
        train = self.rows.train[task.fold]
        num_rows = self.rows.num_rows if train is None else len(train)
        is_weighed = task.arguments.get("class_weight") is not None
        key = id(task.model), id(task.arguments), num_rows, is_weighed and task.number
        if key not in self._known:
            own = weighed(self.group.plan, task, labels_to_weigh(task, self.rows))
            draft = self.group.drafts[task.number]
            self._known[key] = replace(
                own,
                network=draft.network,
                optimizer=draft.optimizer,
                epochs=draft.epochs,
                num_rows=num_rows,
            )
        return self._known[key]

    def starts_of(self, task: Task, plan: Plan) -> Mapping[str, InitialValues]:
        """Return what a task's parameters are, by name and in the order of layers, if nobody has
        asked for them yet, nor is there optimizer state; else none.
        """
        key = id(task.model)
        if key not in self._starts:
            if id(plan.network) not in self._names:
                self._names[id(plan.network)] = parameter_names(plan)
            names = self._names[id(plan.network)]
            self._starts[key] = {} if task.optimizer.slots else _starts_of(task.model, names)
        return self._starts[key]


def _starts_of(model: Module, names: Sequence[str]) -> dict[str, InitialValues]:
    promised = {name: p.promised("data") for name, p in model.named_parameters()}
    starts = {name: promised[name] for name in names}
    found = {name: start for name, start in starts.items() if isinstance(start, InitialValues)}
    return found if len(found) == len(starts) else {}


@dataclass(frozen=True)
class TrainedTask:
    """A task's network on its way through a launch; its run, and what comes of it.

    Model and optimizer get what was trained when they are asked for. Those that other tasks have,
    too, are copied then, if there are no callbacks to see them before.
    """

    task: Task
    member: Member
    outcome: Outcome
    before: list[EpochReport]
    run: Run | None  # that callbacks see
    start: Callable[[], TrainState]  # where it begins

    @staticmethod
    def of(task: Task, plans: OwnPlans, rows: GroupRows, outcome: Outcome) -> TrainedTask:
        own, before = plans.of(task), _pause_of(task)
        starts = plans.starts_of(task, own) if before is None else {}
        seed = task.arguments["seed"]
        if task.is_shared and not task.callbacks:
            outcome.promise(partial(_copies_of, task), "model", "optimizer")
        else:
            outcome.model, outcome.optimizer, outcome.callbacks = task.own()
        reports: list[EpochReport] = []
        on_demand = partial(StateOnDemand.of, step=task.optimizer.step_count, seed=seed)
        start: Callable[[], TrainState]
        if before is not None:
            reports, outcome.callbacks = before.reports, before.callbacks
            start = partial(before.state.copy, backends.get("cpu"))
        elif starts:
            start = partial(on_demand, partial(_arrays_of, starts, own))
        elif not any(callback.needs_model for callback in outcome.callbacks):
            start = partial(on_demand, _arrays_now(task, own))
        else:
            host = backends.get("cpu")
            begun = state_of(task.model, task.optimizer, host, "float32", seed)
            start = partial(begun.copy, host)
        state = start()
        run = _begun(outcome, own, state, reports) if outcome.callbacks else None
        rule = _rule_of(outcome)
        train, test = rows.train[task.fold], rows.test[task.fold]
        member = Member(own, state, train, test, task.until, rule, tuple(starts.values()))
        return TrainedTask(task, member, outcome, reports, run, start)

    def anew(self, plan: Plan) -> TrainedTask:
        """Return it where it begins, with another plan; nobody has been told of what came of it."""
        state = self.start()
        if self.run is not None:
            self.run.plan, self.run.state = plan, state
            show_on_demand(self.run.model, state)
        member = replace(self.member, plan=plan, state=state, stopping=_rule_of(self.outcome))
        return replace(self, member=member)

    @property
    def reads_weights(self) -> bool:
        """Whether something may look at what was trained as soon as that is known."""
        task, callbacks = self.task, self.outcome.callbacks
        is_read = any(callback.needs_model for callback in callbacks)
        return is_read or task.scoring is not None or task.until is not None

    @property
    def may_begin_anew(self) -> bool:
        """Whether it is trained in float16, though no precision was asked for, and without a
        pause.
        """
        plan, task = self.member.plan, self.task
        is_whole = task.until is None and task.checkpoint is None
        return is_whole and plan.precision == "float16" and any(later_drafts(plan))

    def tell(self, result: Trained, seconds: float) -> None:
        """Record the network's result and its seconds in the outcome, and call the listener."""
        self.outcome.seconds = seconds
        with errors_told(self.outcome):
            self._tell(result)

    def _tell(self, result: Trained) -> None:
        found, state, plan = self.outcome, self.member.state, self.member.plan
        if self.run is None:
            found.history = HistoryOnDemand(self.before, result)
        else:
            show_on_demand(self.run.model, state)  # callbacks may have asked for what was before
            for report in result.reports:
                self.run.history.reports.append(report)
                for callback in found.callbacks:
                    callback.on_epoch_end(self.run)
        found.history.plan = plan
        if isinstance(state, StateOnDemand):
            found.on_device = state.on_device
        if result.error is not None:
            self._write_back()
            found.report = self._report_of_weights(result)
            tell_diverged(found, result.error)
            return
        found.status = DONE
        if result.halved is not None:
            after, place, num_compared = result.halved
            found.status, found.halved_after = STOPPED, after
            found.message = found.history.stopped_by = message_of(place, num_compared, after)
        elif self.run is not None and self.run.stop_reason is not None:
            found.status = STOPPED
            found.message = found.history.stopped_by = self.run.stop_reason
        elif state.epoch < plan.epochs:
            found.status = PAUSED
            found.checkpoint = pickle.dumps(
                _Pause(state, found.history.reports, list(found.callbacks), plan.loss)
            )
        for callback in found.callbacks:
            callback.on_end(cast(Run, self.run))
        self._write_back()
        found.report = self._report_of_weights(result)
        if self.task.scoring is not None:
            found.score = self.task.score_of(cast(Module, found.model))

    def _report_of_weights(self, result: Trained) -> EpochReport | None:
        if self.run is None:
            return result.last or (self.before[-1] if self.before else None)
        return report_of_weights(self.run.history, self.outcome.callbacks)

    def _write_back(self) -> None:
        """Let model and optimizer have what was trained, copied only when they are asked for."""
        found, state, loss = self.outcome, self.member.state, self.member.plan.loss
        if found.promised("model") is None:
            model, optimizer = cast(Module, found.model), cast(Optimizer, found.optimizer)
            write_back_on_demand(state, model, optimizer, loss)
        else:
            found.promise(partial(_copies_of, self.task, state, loss), "model", "optimizer")


def _rule_of(outcome: Outcome) -> Stopping | None:
    """Return the rule by which a callback ends a network's run, as it stands."""
    return next((c.hand_over() for c in outcome.callbacks if c.rule() is not None), None)


def _copies_of(
    task: Task, state: TrainState | None = None, loss: Loss | None = None
) -> dict[str, Any]:
    """Return copies of a task's model and optimizer, with what was trained if it was."""
    model, optimizer, _ = task.own()
    if state is not None and loss is not None:
        write_back_on_demand(state, model, optimizer, loss)
    return {"model": model, "optimizer": optimizer}


def _arrays_now(task: Task, plan: Plan) -> Maker:
    """Return what gives the arrays of a state that begins with those of a task; nobody writes to
    them.
    """
    host = backends.get("cpu")
    holders = task.model.named_parameters()
    now = {name: moved(parameter.data, host, "float32") for name, parameter in holders}
    if not task.optimizer.slots:
        return partial(_arrays_of, {name: partial(dict, data=now[name]) for name in now}, plan)
    slots = state_of(task.model, task.optimizer, host, "float32", 0).slots
    return partial(dict, parameters=now, buffers={}, slots=slots)


def _arrays_of(starts: Mapping[str, Maker], plan: Plan) -> dict[str, Any]:
    """Return the arrays of a state before its first step, whose optimizer state is zeros."""
    parameters = {name: start()["data"] for name, start in starts.items()}
    slots = {
        slot: {name: np.zeros_like(array) for name, array in parameters.items()}
        for slot in plan.optimizer.slot_names
    }
    return {"parameters": parameters, "buffers": {}, "slots": slots}


def _begun(outcome: Outcome, plan: Plan, state: TrainState, reports: list[EpochReport]) -> Run:
    """Return the run that an outcome's callbacks see, begun."""
    model, callbacks = cast(Module, outcome.model), outcome.callbacks
    run = Run(plan, state, History(reports), backends.get("cpu"), model)
    show_on_demand(model, state)
    remember_loss(model, plan.loss)
    outcome.history = run.history
    try:
        for callback in callbacks:
            callback.on_start(run)
    except BaseException:
        close(callbacks)
        raise
    return run


def _pause_of(task: Task) -> _Pause | None:
    """Return what a task goes on from, if it has begun."""
    if task.checkpoint is None:
        return None
    found: _Pause = pickle.loads(task.checkpoint)  # our own, of some moments ago
    return found


def interrupted(task: Task) -> Outcome:
    """Return the outcome of a task that Ctrl-C reached: what it had when it last paused."""
    outcome, before = unfinished(task), _pause_of(task)
    outcome.status = INTERRUPTED
    outcome.message = outcome.history.stopped_by = "interrupt"
    if before is not None:
        model, optimizer, _ = task.own()
        write_back(before.state, model, optimizer, before.loss)
        outcome.model, outcome.optimizer, outcome.callbacks = model, optimizer, before.callbacks
        outcome.history.reports[:] = before.reports
        outcome.report = before.reports[-1]
    return outcome
