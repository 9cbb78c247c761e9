"""All rows of a group's tasks on the device, and which of them each fold has."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, cast

import numpy as np
import numpy.typing as npt

from warpfit import backends
from warpfit.backends import Array
from warpfit.backends.transfer import device_of, to_host
from warpfit.data.dataset import unit_floats
from warpfit.engines.base import TrainingData
from warpfit.engines.many_rows import DeviceRows
from warpfit.sweep.groups import Group
from warpfit.sweep.preparing import weighed
from warpfit.sweep.tasks import Task
from warpfit.training.fit import prepared_targets, prepared_validation

if TYPE_CHECKING:
    from warpfit.backends.cuda.many_launch import ManyLaunch


def labels_to_weigh(task: Task, rows: GroupRows) -> Any:
    """Return the labels of a task's rows if class weights may depend on them."""
    if task.arguments.get("class_weight") is None:
        return ()
    train = rows.train[task.fold]
    return rows.all.data.y[: rows.num_rows] if train is None else rows.all.data.y[train]


@dataclass(frozen=True)
class GroupRows:
    """All rows of a group's tasks, and which of them each fold has."""

    all: DeviceRows
    num_rows: int
    train: dict[int | None, npt.NDArray[np.int32] | None]
    test: dict[int | None, npt.NDArray[np.int32] | None]

    @staticmethod
    def of(group: Group) -> GroupRows:
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
        for numbers in (*train.values(), *test.values()):
            rows.pointer_of(numbers)  # threads that share rows have a stream each afterwards
        return GroupRows(rows, len(data.x), train, test)


def _joined(first: Array, second: Array) -> Any:
    """Return the rows of both, where they are if that is one device."""
    places = {device_of(first), device_of(second)}
    if len(places) == 1 and "cpu" not in places and first.dtype == second.dtype:
        ops = backends.of(first)
        both = ops.empty((len(first) + len(second), *first.shape[1:]), str(first.dtype))
        ops.assign(both[: len(first)], first)
        ops.assign(both[len(first) :], second)
        return both
    parts = [to_host(first), to_host(second)]
    if len({part.dtype == np.uint8 for part in parts}) > 1:  # x / 255
        parts = [unit_floats(part) if part.dtype == np.uint8 else part for part in parts]
    return np.concatenate(parts)
