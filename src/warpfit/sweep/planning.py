"""How a sweep is computed; planned and checked before anything trains."""

from __future__ import annotations

import os
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

from warpfit import backends
from warpfit.backends.transfer import to_host
from warpfit.engines.base import Plan
from warpfit.errors import Obstacle, WarpfitError
from warpfit.sweep.candidates import error_of_candidate
from warpfit.sweep.groups import Group, grouped
from warpfit.sweep.preparing import prepare_group
from warpfit.sweep.tasks import Task, draft_of_task
from warpfit.training.fit import prepared_targets, prepared_validation, with_class_weight
from warpfit.training.inputs import check_held, check_weight_left
from warpfit.training.loop import rule_of
from warpfit.training.plan import plan as make_plan
from warpfit.training.state import state_of

if TYPE_CHECKING:
    from warpfit.backends.cuda.many_launch import ManyLaunch

MEMORY_SHARE = 0.8  # of what is free, for processes


@dataclass(frozen=True)
class GroupPlan:
    """A group of networks in words, how many they are, how `fit` would train the first of them, and
    what trains all.

    `launch` is what trains them at once on a GPU, or why they are trained by `fit`, one by one.
    """

    title: str
    num_networks: int
    plan: Plan
    launch: ManyLaunch | Obstacle


@dataclass(frozen=True)
class SweepPlan:
    """How a sweep is computed, and why so.

    Attributes
    ----------
    num_candidates, num_folds : int
        `num_folds` is 0 without folds.
    device : str
    groups : tuple of GroupPlan
    at_once : int
        Networks that are trained at the same time.
    waves : int
        How often so many, for all networks to have had their turn.
    bytes : int
        Memory that the networks at work take, data included.
    reason : str
        Who trains them, and why so.
    """

    num_candidates: int
    num_folds: int
    device: str
    groups: tuple[GroupPlan, ...]
    at_once: int
    waves: int
    bytes: int
    reason: str

    @property
    def num_networks(self) -> int:
        return sum(group.num_networks for group in self.groups)

    def __str__(self) -> str:
        folds = f" × {self.num_folds} folds" if self.num_folds else ""
        networks = _counted(self.num_networks, "network")
        head = (
            f"{networks} ({_counted(self.num_candidates, 'candidate')}{folds}) on "
            f"{self.device}: {self.reason}"
        )
        waves = (
            f"; {_counted(self.waves, 'wave')} of {self.at_once:,}, {self.bytes / 2**20:,.0f} MiB"
            if self.at_once > 1
            else ""
        )
        lines = [
            f"  {group.title}: {_counted(group.num_networks, 'network')}, "
            f"{group.plan.engine} in {group.plan.precision}"
            for group in self.groups
        ]
        return "\n".join((head + waves, *lines))


def _counted(number: int, noun: str) -> str:
    return f"{number:,} {noun}{'' if number == 1 else 's'}"


def describe(
    groups: Sequence[Group],
    *,
    num_candidates: int,
    num_folds: int,
    device: str,
    at_once: int,
    num_bytes: int,
    reason: str,
) -> SweepPlan:
    """Return the plan of a sweep whose groups are trained `at_once` networks at a time, in so many
    bytes.
    """
    num_networks = sum(len(group.tasks) for group in groups)
    at_once = min(at_once, num_networks)
    return SweepPlan(
        num_candidates=num_candidates,
        num_folds=num_folds,
        device=device,
        groups=tuple(
            GroupPlan(group.title, len(group.tasks), group.plan, group.launch) for group in groups
        ),
        at_once=at_once,
        waves=-(-num_networks // at_once),
        bytes=num_bytes,
        reason=reason,
    )


def plan_groups(tasks: Iterable[Task], names: Sequence[str] = ()) -> list[Group]:
    """Return the groups of tasks, each with the plan that `fit` would make for its first network.

    Parameters
    ----------
    tasks : iterable of Task
    names : sequence of str
        What errors call each task.

    Raises
    ------
    WarpfitError
        As `fit` would for one of them.
    """
    drafts: list[tuple[Task, Plan]] = []
    known: dict[Any, Plan] = {}
    for idx, task in enumerate(tasks):
        try:
            drafts.append((task, _draft(task, known)))
        except WarpfitError as error:
            raise _named(error, names, idx) from error
    positions = {id(task): idx for idx, (task, _) in enumerate(drafts)}
    groups = grouped(drafts)
    planned = []
    for group in groups:
        first = group.tasks[0]
        try:
            plan = _full_plan(first, group.plan)
            launch = prepare_group(plan, group.tasks)
            planned.append(replace(group, plan=plan, launch=launch))
            _check_weights(group)
        except WarpfitError as error:
            raise _named(error, names, positions[id(first)]) from error
    return planned


def _draft(task: Task, known: dict[Any, Plan]) -> Plan:
    """Return what `fit` would begin a task's plan with: one for all of a candidate's folds."""
    own = id(task.model), id(task.optimizer), id(task.arguments), id(task.data)
    if own not in known:
        draft = draft_of_task(task, task.model, task.optimizer, task.data.x)
        with_class_weight(draft, task.arguments.get("class_weight"), ())  # for its error
        known[own] = draft
    return known[own]


def _named(error: WarpfitError, names: Sequence[str], idx: int) -> WarpfitError:
    return error_of_candidate(names[idx], error) if names else error


def _full_plan(task: Task, draft: Plan) -> Plan:
    """Return a task's plan with engine, precision, memory and reason, for all rows of the data."""
    ops, data = backends.get(draft.device), task.data
    data.check_held(draft.dtype)
    y: Any = prepared_targets(draft, data.y, len(data.x))
    if data.validation is not None:
        check_held("validation x", data.validation[0], draft.dtype)
        prepared_validation(draft, *data.validation)
    state = state_of(task.model, task.optimizer, ops, draft.dtype, 0)
    rule = rule_of(task.callbacks, draft.optimizer.lr)
    return make_plan(draft, state, data.to_train_on(y), stopping=rule)


def _check_weights(group: Group) -> None:
    """Raise DataError if class and sample weights are 0 for all rows of a task, or of one of its
    folds.
    """
    has_class_weights = group.plan.loss.class_weights() is not None
    for task in group.tasks:
        own_class_weights = task.arguments.get("class_weight") is not None
        if not (has_class_weights or own_class_weights) and task.data.sample_weight is None:
            continue
        data, labels = task.data, to_host(task.data.y)
        loss = with_class_weight(group.plan, task.arguments.get("class_weight"), labels).loss
        rows = slice(None) if task.fold is None else data.folds[task.fold].train
        check_weight_left(
            loss, labels[rows], None if data.sample_weight is None else data.sample_weight[rows]
        )


def memory_left() -> int | None:
    """Return the bytes of this machine's memory that are free, None where it does not say."""
    try:
        with open("/proc/meminfo", encoding="ascii") as lines:
            found = dict(line.split(":", 1) for line in lines)
        return int(found["MemAvailable"].split()[0]) * 1024
    except (OSError, KeyError, ValueError):
        pass
    try:
        return os.sysconf("SC_AVPHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")
    except (AttributeError, OSError, ValueError):
        return None


def affordable(num_processes: int, bytes_each: int, bytes_left: int | None) -> tuple[int, str]:
    """Return how many processes have room in memory, and in words why that is fewer than there
    might be.
    """
    if bytes_left is None or num_processes * bytes_each <= MEMORY_SHARE * bytes_left:
        return num_processes, ""
    room = max(1, int(MEMORY_SHARE * bytes_left) // max(1, bytes_each))
    fits = min(num_processes, room)
    if fits == num_processes:
        return fits, ""
    return fits, (
        f"{num_processes} would take {num_processes * bytes_each / 2**20:,.0f} MiB, and "
        f"{MEMORY_SHARE * bytes_left / 2**20:,.0f} are to be had"
    )
