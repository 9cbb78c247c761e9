"""How a group's networks are trained on a GPU: by which launch that takes many, or why by `fit`,
one by one.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, Any

from warpfit import backends
from warpfit.engines.base import Plan, Stopping
from warpfit.engines.many_networks import prepare_many
from warpfit.errors import ConfigError, DeviceError, Obstacle
from warpfit.optim.schedules import ReduceOnPlateau
from warpfit.sweep.tasks import Task
from warpfit.training.callbacks import Callback
from warpfit.training.fit import prepared_targets, with_class_weight
from warpfit.training.loop import rule_of
from warpfit.training.plan import plan as make_plan
from warpfit.training.precisions import later_drafts
from warpfit.training.state import state_of

if TYPE_CHECKING:
    from warpfit.backends.cuda.many_launch import ManyLaunch


def prepare_group(plan: Plan, tasks: Sequence[Task]) -> ManyLaunch | Obstacle:
    """Return the launch that trains a group's networks at once, or why `fit` does; `plan` is of the
    first.

    The launch is of those that it `takes`.
    """
    task = tasks[0]
    if task.arguments["engine"] != "auto":
        return Obstacle(f"engine {plan.engine!r} was asked for")
    taken = next((task for task in tasks if takes(task, plan)), None)
    if taken is None:
        return Obstacle("callbacks, or rates that follow the loss")
    if plan.engine != "one_launch":
        return Obstacle(plan.reason)
    return prepare_many(weighed(plan, taken), task.data.to_train_on(task.data.y))


def with_more_range(plan: Plan, tasks: Sequence[Task]) -> tuple[Plan, ManyLaunch] | None:
    """Return the plan and the launch of tasks whose losses are not finite in float16, if the
    precision was left open and there is a launch in bfloat16, which has the range of float32.
    """
    if plan.precision != "float16" or not (drafts := list(later_drafts(plan))):
        return None
    task, draft = tasks[0], drafts[0]
    y = prepared_targets(draft, task.data.y, len(task.data.x))
    state = state_of(task.model, task.optimizer, backends.get(plan.device), plan.dtype, 0)
    rule = rule_of(task.callbacks, draft.optimizer.lr)
    try:
        found = make_plan(draft, state, task.data.to_train_on(y), stopping=rule)
    except (ConfigError, DeviceError):
        return None
    launch = prepare_group(found, tasks)
    if isinstance(launch, Obstacle):
        return None
    why = f"not finite in {plan.precision}, trained anew in {found.precision}"
    return replace(found, reason=f"{why}; {found.reason}"), launch


def weighed(plan: Plan, task: Task, labels: Any = ()) -> Plan:
    """Return a plan with a task's class weights, which may depend on the labels of its rows."""
    return with_class_weight(plan, task.arguments.get("class_weight"), labels)


def takes(task: Task, plan: Plan) -> bool:
    """Return whether a task is nothing but epochs, whose rates are known beforehand."""
    rules = [rule for each in task.callbacks if (rule := each.rule()) is not None]
    others = [each for each in task.callbacks if each.rule() is None]
    if len(rules) > 1 or not all(_follows(rule, task, plan) for rule in rules):
        return False
    return all(_reads_reports(each) for each in others) and not isinstance(
        task.optimizer.spec.lr, ReduceOnPlateau
    )


def _follows(rule: Stopping, task: Task, plan: Plan) -> bool:
    """Return whether a kernel can stop by what it finds of each epoch itself."""
    if plan.report_every > 1:
        return False
    return (task.data.is_validated(task.fold) or not rule.monitor.startswith("val")) and (
        plan.loss.counts_correct or not rule.monitor.endswith("accuracy")
    )


def _reads_reports(callback: Callback) -> bool:
    """Return whether a callback does nothing but read what reports of a launch have, after it."""
    is_deaf = type(callback).on_step is Callback.on_step
    return is_deaf and not callback.needs_run and not callback.needs_step_losses
