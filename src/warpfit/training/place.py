"""Which device ``'auto'`` is for a run, or for many: the CPU, if that is done before a GPU compiled
its kernels; and where a run's data goes.

What is compared follows from sizes, rows and epochs, at prices in ``run_prices.json``: what runs
take on the CPU, and on one GPU that has compiled nothing yet. So equal runs have equal places,
whatever a cache holds, and a short run does not ask whether there is a GPU. Prices are fitted by
``benchmarks/run_costs.py``, with the date.
"""

from __future__ import annotations

import json
from collections.abc import Hashable, Mapping, Sequence
from dataclasses import replace
from functools import cache
from itertools import pairwise
from pathlib import Path
from typing import Any, NamedTuple, cast

from warpfit import backends
from warpfit.backends.base import FLOAT_DTYPES
from warpfit.backends.transfer import to_host
from warpfit.engines.base import Plan, Prepared, TrainingData, has_room
from warpfit.engines.scaling import AUTO
from warpfit.nn.activations import ActivationSpec
from warpfit.nn.dropout import DropoutSpec
from warpfit.nn.linear import LinearSpec
from warpfit.nn.network import NetworkSpec

CPU, GPU = "cpu", "gpu"
PRICES = Path(__file__).with_name("run_prices.json")

# Of processes as many as there are cores, each takes up to this many times what one alone takes:
# two share a core's units and its memory.
CROWDED = 2.0
# Networks that a GPU trains at once in the time of one: fewer than the least of docs/log/sweeps.md.
TRAINED_AT_ONCE = 40

# Rows of a step that predicts.
PREDICTED_ROWS = 1024


class ChosenDevice(NamedTuple):
    """What `fit` takes as a device, ``'auto'`` for what that is whatever is run; and why, if it was
    chosen.
    """

    device: Any
    reason: str = ""


class PlaceOfMany(NamedTuple):
    """Likewise, of many runs; and in how many processes, if the CPU was chosen for them."""

    device: str
    reason: str = ""
    num_processes: int = 0


class RunCosts(NamedTuple):
    """A run of many: its costs, and what tells its kernel from those of others."""

    costs: Mapping[str, float]
    kernel: Hashable


@cache
def read_prices() -> dict[str, Any]:
    """Return the file: by device, what was measured, when, and the microseconds of each cost."""
    found: dict[str, Any] = json.loads(PRICES.read_text(encoding="utf-8"))
    return found


def widths_of(network: Any) -> tuple[int, ...] | None:
    """Return the sizes of input, hidden layers and output of a network of linear layers; None for
    others.
    """
    if not isinstance(network, NetworkSpec) or len(network.input_shape) != 1:
        return None
    specs = [spec for _, spec in network.layers]
    if not all(isinstance(spec, LinearSpec | ActivationSpec | DropoutSpec) for spec in specs):
        return None
    widths = [spec.out_features for spec in specs if isinstance(spec, LinearSpec)]
    return (*network.input_shape, *widths)


def run_costs(
    widths: Sequence[int], num_rows: int, batch_size: int, epochs: int, num_validated: int = 0
) -> dict[str, float]:
    """Return how often a run has each cost.

    They are epochs, steps, layers of a step, thousands of parameters that are updated, thousands of
    activations, and millions of operations of products. A row that is only validated counts as a
    third of one that is trained on.
    """
    steps = epochs * -(-num_rows // batch_size)
    weights = sum(fan_in * fan_out for fan_in, fan_out in pairwise(widths))
    rows = epochs * (num_rows + num_validated / 3)
    return {
        "epoch": epochs,
        "step": steps,
        "layer": steps * (len(widths) - 1),
        "parameter": steps * (weights + sum(widths[1:])) / 1e3,
        "number": rows * sum(widths) / 1e3,
        "product": rows * 6 * weights / 1e6,
    }


def expected_seconds(device: str, costs: Mapping[str, float]) -> float:
    """Return what a run of these costs is expected to take on ``'cpu'`` or ``'gpu'``, where
    ``'call'`` and ``'compilation'`` are costs, too; of many runs ``'kernel'``, each beside others,
    and on the CPU ``'processes'``, all of which begin.
    """
    prices = read_prices()[device]["microseconds"]
    return float(sum(prices[name] * count for name, count in costs.items())) / 1e6


def place_of(
    device: Any,
    widths: Sequence[int] | None,
    *,
    num_rows: int,
    batch_size: int,
    epochs: int,
    num_validated: int = 0,
    engine: str = AUTO,
    precision: str = AUTO,
    cpu_factor: float = 1.0,
) -> ChosenDevice:
    """Return where a run is trained.

    Parameters
    ----------
    device : str
        Any but ``'auto'`` stays.
    widths : sequence of int or None
        As `widths_of` returns them.
    num_rows, batch_size, epochs, num_validated : int
    engine, precision : str
        One that was asked for and that the CPU does not have leaves the device as it is.
    cpu_factor : float
        How many times as long as the prices say a run takes on the CPU.
    """
    if not all(isinstance(asked, str) for asked in (device, engine, precision)):
        return ChosenDevice(device)  # which is refused by what checks them
    if widths is None or not _is_open(device) or not is_for_both(engine, precision):
        return ChosenDevice(device)
    costs = run_costs(widths, num_rows, batch_size, epochs, num_validated)
    here = cpu_factor * expected_seconds(CPU, costs)
    there = expected_seconds(GPU, {**costs, "call": 1, "compilation": 1})
    if here > there:
        return ChosenDevice(device)
    return ChosenDevice(
        CPU,
        f"device 'auto': {here:.2g} s are expected on a CPU, and {there:.2g} s on a GPU, "
        "compilation included",
    )


def place_of_many(
    device: Any,
    runs: Sequence[RunCosts | None],
    num_processes: int,
    *,
    cpu_factor: float = 1.0,
    at_once: float = TRAINED_AT_ONCE,
) -> PlaceOfMany:
    """Return where many runs are trained.

    Parameters
    ----------
    device : str
        Any but ``'auto'`` stays.
    runs : sequence of RunCosts or None
        One that is None is of an unknown length, and leaves the device as it is.
    num_processes : int
        Of the CPU, that may train at once.
    cpu_factor : float
        As `place_of` takes it.
    at_once : float
        Networks that a GPU trains in the time of one.
    """
    known = [run for run in runs if run is not None]
    if not known or len(known) < len(runs) or not _is_open(device):
        return PlaceOfMany(device)
    total, num_kernels = _total(known), len({run.kernel for run in known})
    processes = min(num_processes, len(known))
    alone = cpu_factor * expected_seconds(CPU, total)
    shared = alone * CROWDED / processes + expected_seconds(CPU, {"processes": 1})
    here, chosen = (shared, processes) if shared < alone else (alone, 1)
    there = expected_seconds(GPU, total) / at_once
    there += expected_seconds(GPU, {"call": 1, "compilation": 1, "kernel": num_kernels})
    if here > there:
        return PlaceOfMany(device)
    where = f"in {chosen} processes of the CPU" if chosen > 1 else "on a CPU"
    kinds = "a kernel" if num_kernels == 1 else f"{num_kernels} kernels"
    return PlaceOfMany(
        CPU,
        f"device 'auto': {here:.2g} s are expected {where}, and {there:.2g} s on a GPU, "
        f"compilation of {kinds} included",
        chosen,
    )


def _total(runs: Sequence[RunCosts]) -> dict[str, float]:
    total = dict.fromkeys(runs[0].costs, 0.0)
    for run in runs:
        for name, count in run.costs.items():
            total[name] += count
    return total


def predicting_place(
    device: str, widths: Sequence[int], num_rows: int, cpu_factor: float = 1.0
) -> str:
    """Return where a network predicts rows: on the CPU, if a call to a GPU takes longer."""
    costs = run_costs(widths, 0, PREDICTED_ROWS, 1, num_rows)
    costs["layer"] = (len(widths) - 1) * -(-num_rows // PREDICTED_ROWS)
    is_short = cpu_factor * expected_seconds(CPU, costs) <= expected_seconds(GPU, {"call": 1})
    return CPU if is_short and _is_open(device) else device


def is_for_both(engine: str, precision: str) -> bool:
    """Return whether the CPU and a GPU can do what was asked for, and either may."""
    return engine == AUTO and precision in (AUTO, *FLOAT_DTYPES)


def _is_open(device: str) -> bool:
    return device == backends.preferred_device() == AUTO


def where_they_run(
    plan: Plan, data: TrainingData, validation: TrainingData | None
) -> tuple[TrainingData, TrainingData | None]:
    """Return data and validation data where the plan wants them.

    Streamed data stays on the host. So does x to validate on that has no room beside copies of the
    data; it comes batch by batch.
    """
    prepared = cast(Prepared, plan.prepared)
    data = replace(data, y=to_host(data.y)) if prepared.is_streamed else data.on(plan.device)
    if validation is None:
        return data, None
    if has_room(plan, validation, prepared.copied_bytes):
        return data, validation.on(plan.device)
    return data, replace(validation, y=backends.get(plan.device).asarray(validation.y))
