"""Where the networks of a sweep are trained that leaves the device to us."""

from __future__ import annotations

from collections.abc import Hashable, Sequence
from contextlib import suppress
from typing import Any

from warpfit import backends
from warpfit.engines.many_networks import without_rates
from warpfit.engines.scaling import AUTO
from warpfit.errors import WarpfitError
from warpfit.nn.module import Module
from warpfit.nn.network import NetworkSpec
from warpfit.nn.sequential import Sequential
from warpfit.sweep.tasks import Task
from warpfit.training.evaluate import network_of
from warpfit.training.place import (
    PlaceOfMany,
    RunCosts,
    is_for_both,
    place_of_many,
    run_costs,
    widths_of,
)

__all__ = ["place_of_tasks"]

Widths = tuple[int, ...]


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
