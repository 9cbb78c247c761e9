"""Where the networks of a sweep are trained, and by which runner."""

from __future__ import annotations

from collections.abc import Hashable, Sequence
from concurrent.futures import Executor
from contextlib import suppress
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from warpfit import backends
from warpfit.engines.many_networks import without_rates
from warpfit.engines.scaling import AUTO
from warpfit.errors import ConfigError, DeviceError, WarpfitError
from warpfit.nn.module import Module
from warpfit.nn.network import NetworkSpec
from warpfit.nn.sequential import Sequential
from warpfit.sweep.elsewhere import Cards, Processes, Shards
from warpfit.sweep.groups import Group
from warpfit.sweep.here import CPU, runner_here
from warpfit.sweep.planning import affordable, memory_left, plan_groups
from warpfit.sweep.runner import Runner
from warpfit.sweep.tasks import Task
from warpfit.sweep.workers import DeviceWorkers, Workers, workers_for
from warpfit.training.devices import named_devices
from warpfit.training.evaluate import network_of
from warpfit.training.place import (
    PlaceOfMany,
    RunCosts,
    is_for_both,
    place_of_many,
    run_costs,
    widths_of,
)

Widths = tuple[int, ...]


@dataclass(frozen=True)
class Places:
    """Where the networks of a sweep are trained."""

    devices: list[str]  # taken in turn by shards, if there are several
    workers: Workers | None  # elsewhere; None if this process trains, or has processes of its own
    n_jobs: int  # as `fit_many` takes it
    reason: str = ""  # why there, if that was chosen

    @staticmethod
    def of(device: Any, executor: Any, n_jobs: Any) -> Places:
        """Return the places that `fit_many` is asked for, checked."""
        devices = named_devices(device)
        if executor is not None and not isinstance(executor, Executor):
            raise ConfigError(
                "expected executor to be a concurrent.futures.Executor or None, got "
                f"{type(executor).__name__}"
            )
        if isinstance(n_jobs, bool) or not isinstance(n_jobs, int | np.integer) or n_jobs == 0:
            raise ConfigError(f"expected n_jobs as an integer other than 0, got {n_jobs!r}")
        workers = workers_for(executor, int(n_jobs), devices)
        if workers is None and devices[0] != AUTO:
            devices = [backends.resolve_device(devices[0])]
        return Places(devices, workers, int(n_jobs))

    @property
    def first(self) -> str:
        return self.devices[0]

    def taken_by(self, tasks: Sequence[Task]) -> tuple[Places, Sequence[Task]]:
        """Return the places of these tasks, chosen if that is left to us, and the tasks with their
        device, and with their rows there, if it has room.
        """
        if self.workers is not None:
            return self, tasks
        found = PlaceOfMany(self.first)
        if self.first == AUTO:  # else nobody need know how many processes joblib would have
            found = place_of_tasks(self.first, tasks, self._num_processes(len(tasks)))
        device = backends.resolve_device(found.device)
        data = tasks[0].data.on(device)
        for task in tasks:  # of which those of a candidate have the same arguments
            task.arguments["device"] = device
        places = Places([device], None, found.num_processes or self.n_jobs, found.reason)
        return places, [replace(task, data=data) for task in tasks]

    def planned(self, tasks: Sequence[Task], names: Sequence[str]) -> list[Group]:
        """Return the groups with their plans; on the CPU, if workers elsewhere have devices that
        are not here.
        """
        try:
            backends.resolve_device(self.first)
        except DeviceError:
            if self.workers is None:
                raise
        else:
            return plan_groups(tasks, names)
        own = {task.number: task for task in tasks}
        here = {"device": CPU, "precision": "auto", "engine": "auto", "loss_scale": "auto"}
        stand_ins = [replace(task, arguments={**task.arguments, **here}) for task in tasks]
        return [
            replace(group, tasks=tuple(own[task.number] for task in group.tasks))
            for group in plan_groups(stand_ins, names)
        ]

    def runner(self, groups: Sequence[Group], *, keeps_models: bool) -> Runner:
        """Return the runner of the networks; on the CPU with as many processes as asked for and
        memory allows.
        """
        num_tasks = sum(len(group.tasks) for group in groups)
        if self.workers is not None:
            most = max(self.workers.count, len(self.devices))
            wanted = self.n_jobs if self.n_jobs > 0 else most
            kind = Cards if isinstance(self.workers, DeviceWorkers) else Shards
            return kind(self.workers, self.devices, min(wanted, num_tasks))
        if self.first != CPU or self.n_jobs == 1 or num_tasks == 1:
            return runner_here(self.first, keeps_models=keeps_models)
        each = max(group.plan.bytes for group in groups)
        count, note = affordable(self._num_processes(num_tasks), each, memory_left())
        return Processes(count, note) if count > 1 else runner_here(CPU, note)

    def _num_processes(self, num_tasks: int) -> int:
        """Return how many processes are asked for, of which each has a task."""
        from joblib import effective_n_jobs

        return int(min(effective_n_jobs(self.n_jobs), num_tasks))


def place_of_tasks(device: str, tasks: Sequence[Task], num_processes: int) -> PlaceOfMany:
    """Return where tasks are trained, `num_processes` at once if that is the CPU.

    What a GPU is expected to take has a compilation for each kind of network. Runs whose length is
    unknown, or that `fit` will refuse, leave the device as it is; so do arrays on a GPU.
    """
    if device != AUTO or backends.is_device_array(tasks[0].data.x):
        return PlaceOfMany(device)
    with suppress(WarpfitError, TypeError, ValueError):
        networks = _Networks(tasks[0].data.x.shape[1:])
        runs = [_costs_of(task, networks.of(task.model)) for task in tasks]
        return place_of_many(device, runs, num_processes)
    return PlaceOfMany(device)


class _Networks:
    """Networks on the host, found once for all models that have the same layers."""

    def __init__(self, input_shape: tuple[int, ...]) -> None:
        self._shape, self._known = input_shape, dict[Any, tuple[Widths, Hashable] | None]()

    def of(self, model: Module) -> tuple[Widths, Hashable] | None:
        """Return the sizes of a model's layers, and what of them is a kernel's; None if they tell
        nothing, or it is on a GPU.
        """
        chain = model if isinstance(model, Sequential) else [model]
        key = tuple(getattr(layer, "spec", layer) for layer in chain)
        if key not in self._known:
            network = network_of(model, self._shape)
            widths, self._known[key] = widths_of(network), None
            if widths is not None and isinstance(network, NetworkSpec):
                self._known[key] = widths, without_rates(network.fused)
        held = (each for each in model.parameters() if each.promised("data") is None)
        is_elsewhere = any(backends.is_device_array(each.data) for each in held)
        return None if is_elsewhere else self._known[key]


def _costs_of(task: Task, network: tuple[Widths, Hashable] | None) -> RunCosts | None:
    """Return the costs of a task's run; None if nobody can tell its length."""
    asked, data = task.arguments, task.data
    is_open = is_for_both(asked["engine"], asked["precision"])
    if network is None or not is_open:
        return None
    widths, layers = network
    num_rows, num_validated = len(data.x), 0
    if task.fold is not None:
        fold = data.folds[task.fold]
        num_rows, num_validated = len(fold.train), len(fold.test)
    elif data.validation is not None:
        num_validated = len(data.validation[0])
    batch = int(asked["batch_size"])
    costs = run_costs(widths, num_rows, batch, int(asked["epochs"]), num_validated)
    return RunCosts(costs, (layers, batch, task.optimizer.spec.kind, str(asked["loss"])))
