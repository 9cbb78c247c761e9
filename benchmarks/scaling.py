"""Are several cards right, and how much faster than one?

Checks first: N ranks against one, the bits of two runs, a checkpoint of N ranks that one goes on
with, and an error of one rank, which has to end all. Then microseconds a step of wide networks with
as many rows a card whatever N is, beside PyTorch's DistributedDataParallel, and seconds of a sweep.
Efficiency is the time of one card over that of N. For a check without a GPU: --devices cpu,cpu.

Prints a line for each figure, and writes results/scaling.json after every part.

    python benchmarks/scaling.py [--devices cuda:all] [--parts right,fast,peers,sweep]
    [--rows 4x4096/8192,784-8192x3-10/8192] [--seconds 60]
"""

from __future__ import annotations

import argparse
import tempfile
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import pairwise
from math import inf
from pathlib import Path
from time import perf_counter
from typing import Any

import numpy as np

import warpfit as wf
from harness import run_command, run_worker, write_results
from warpfit import nn, optim
from warpfit.engines import steps
from warpfit.errors import DataError
from warpfit.training.devices import ALL_CARDS, all_cards

PARTS = ("right", "fast", "peers", "sweep")
BATCHES = 4
EPOCHS = 24
# Of the checks: three batches of 96 rows, and one of 37.
CHECKED_ROWS, CHECKED_BATCH = 325, 96
SWEPT_NETWORKS, SWEPT_ROWS, SWEPT_EPOCHS = 1056, 8192, 40


@dataclass(frozen=True)
class Case:
    """A network of equal hidden layers, and its rows on each card."""

    sizes: tuple[int, ...]
    rows_of_card: int

    @property
    def name(self) -> str:
        first, *hidden, last = self.sizes
        if len(set(self.sizes)) == 1:
            return f"{len(hidden) + 1}x{first}/{self.rows_of_card}"
        return f"{first}-{hidden[0]}x{len(hidden)}-{last}/{self.rows_of_card}"


CASES = (Case((4096,) * 5, 8192), Case((784, 8192, 8192, 8192, 10), 8192), Case((1024,) * 5, 8192))


def network(sizes: Sequence[int]) -> nn.Sequential:
    layers: list[nn.Module] = []
    for idx, (inputs, outputs) in enumerate(pairwise(sizes)):
        layers += [nn.ReLU()] if layers else []
        layers.append(nn.Linear(inputs, outputs, seed=idx))
    return nn.Sequential(*layers)


def rows_of(sizes: Sequence[int], num_rows: int) -> tuple[Any, Any]:
    """Return rows of bytes, of which a block is repeated, and labels."""
    rng = np.random.default_rng(0)
    block = rng.integers(0, 256, (min(num_rows, 4096), sizes[0]), np.uint8)
    return np.resize(block, (num_rows, sizes[0])), rng.integers(0, sizes[-1], num_rows)


def trained(
    sizes: Sequence[int], x: Any, y: Any, devices: Sequence[str], **settings: Any
) -> tuple[nn.Sequential, wf.History]:
    model = network(sizes)
    opt = optim.SGD(model.parameters(), lr=0.01, momentum=0.9)
    history = wf.fit(model, x, y, optimizer=opt, device=devices, verbose=False, **settings)
    return model, history


# -- right
# --------------------------------------------------------------------------------------------------


def checks(devices: Sequence[str]) -> Iterator[tuple[str, dict[str, Any]]]:
    """Yield each check, what came of it, and whether it passed."""
    sizes = (64, 256, 256, 10)
    x, y = rows_of(sizes, CHECKED_ROWS)
    asked: dict[str, Any] = {"batch_size": CHECKED_BATCH, "precision": "float32", "seed": 3}
    asked["engine"] = "layerwise" if devices[0] == "cpu" else "graph"
    _, one = trained(sizes, x, y, devices[:1], epochs=6, **asked)
    for count in counts_of(len(devices))[1:]:
        several, ranks = devices[:count], f"{count} ranks"
        model, history = trained(sizes, x, y, several, epochs=6, **asked)
        again, _ = trained(sizes, x, y, several, epochs=6, **asked)
        away = np.abs(history.step_losses / one.step_losses - 1).max()
        yield f"{ranks}, losses away from one's", _checked(float(away), away < 1e-4)
        is_same = _same_bits(model, again)
        yield f"{ranks}, equal bits", _checked(is_same, is_same)
        away = _away_when_resumed(sizes, x, y, several, one, asked)
        yield f"{ranks}, resumed on one, losses away", _checked(away, away < 1e-4)
    for count in counts_of(len(devices))[1:]:
        seconds = _seconds_to_fail(sizes, x, y, devices[:count], asked)
        yield f"{count} ranks, seconds until one's error ends all", _checked(seconds, seconds < 10)


def _checked(value: Any, passed: Any) -> dict[str, Any]:
    return {"value": value, "passed": bool(passed)}


def _same_bits(one: nn.Module, other: nn.Module) -> bool:
    pairs = zip(one.state_dict().values(), other.state_dict().values(), strict=True)
    return all(np.array_equal(a, b) for a, b in pairs)


def _away_when_resumed(
    sizes: Sequence[int], x: Any, y: Any, devices: Sequence[str], one: Any, asked: dict[str, Any]
) -> float:
    """Return how far losses are away of which one device has the last, from a checkpoint."""
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "run.ckpt"
        trained(sizes, x, y, devices, epochs=3, callbacks=[wf.Checkpoint(path)], **asked)
        _, history = trained(sizes, x, y, devices[:1], epochs=6, resume_from=path, **asked)
    return float(np.abs(history.step_losses / one.step_losses - 1).max())


def _seconds_to_fail(
    sizes: Sequence[int], x: Any, y: Any, devices: Sequence[str], asked: dict[str, Any]
) -> float:
    """Return after how many seconds an error of the last rank is the run's; infinity if it is
    not.
    """
    epochs_of = steps.Run.epochs

    def failing(run: Any, count: int) -> Any:
        if run.ranks.rank == len(devices) - 1 and run.state.epoch >= 2:
            raise DataError("a rank ends")
        return epochs_of(run, count)

    steps.Run.epochs = failing  # type: ignore[method-assign]
    begin = perf_counter()
    try:
        trained(sizes, x, y, devices, epochs=6, **asked)
    except DataError:
        return perf_counter() - begin
    finally:
        steps.Run.epochs = epochs_of  # type: ignore[method-assign]
    return inf


# -- fast
# --------------------------------------------------------------------------------------------------


def counts_of(most: int) -> list[int]:
    """Return the numbers of cards to measure with."""
    return [count for count in (1, 2, 4, 8) if count <= most]


def step_of_ours(case: Case, devices: Sequence[str]) -> float:
    """Return the microseconds of a step."""
    batch = case.rows_of_card * len(devices)
    x, y = rows_of(case.sizes, BATCHES * batch)
    asked: dict[str, Any] = {"batch_size": batch, "epochs": EPOCHS}
    asked["precision"] = "float32" if devices[0] == "cpu" else "bfloat16"
    _, history = trained(case.sizes, x, y, devices, **asked)
    return float(min(report.seconds for report in history.reports[EPOCHS // 2 :])) / BATCHES * 1e6


def step_of_peer(case: Case, count: int) -> float:
    """Return the microseconds of a step of DistributedDataParallel."""
    script = Path(__file__).parent / "peers" / "torch_ddp.py"
    sizes = ",".join(map(str, case.sizes))
    return float(run_worker(str(script), sizes, str(case.rows_of_card), str(count))["us"])


def seconds_of_sweep(devices: Sequence[str], num_networks: int) -> float:
    """Return the seconds that networks 784-128-10 take, without what compiles."""
    x, y = rows_of((784, 10), SWEPT_ROWS)

    def build(candidate: dict[str, Any]) -> Any:
        model = network((784, 128, 10))
        return model, optim.SGD(model.parameters(), lr=candidate["lr"])

    seconds = []
    for _ in range(2):
        candidates = [{"lr": 0.01 + 1e-5 * idx} for idx in range(num_networks)]
        begin = perf_counter()
        wf.fit_many(
            build,
            x,
            y,
            candidates=candidates,
            epochs=SWEPT_EPOCHS,
            device=list(devices),
            verbose=False,
        )
        seconds.append(perf_counter() - begin)
    return min(seconds)


def with_efficiency(values: dict[int, float], *, is_shared: bool = False) -> dict[str, Any]:
    """Return times by the number of cards, and how well more of them are used; `is_shared` says
    that they have the same work together.
    """
    return {
        str(count): {
            "time": value,
            "efficiency": values[1] / value / (count if is_shared else 1),
        }
        for count, value in values.items()
    }


# --------------------------------------------------------------------------------------------------


class Results:
    """What was found so far, printed and written as it comes."""

    def __init__(self, devices: Sequence[str], deadline: float) -> None:
        self.found: dict[str, Any] = {"devices": list(devices)}
        self.deadline = deadline

    @property
    def has_time(self) -> bool:
        return perf_counter() < self.deadline

    def add(self, part: str, name: str, value: Any) -> None:
        self.found.setdefault(part, {})[name] = value
        print(f"{part}: {name}: {value}", flush=True)
        write_results("scaling", self.found)


def parsed() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--devices", default=ALL_CARDS)
    parser.add_argument("--parts", default=",".join(PARTS))
    parser.add_argument("--rows", default=",".join(case.name for case in CASES[:2]))
    parser.add_argument("--networks", type=int, default=SWEPT_NETWORKS)
    parser.add_argument("--seconds", type=float, default=400, help="after which nothing is begun")
    return parser.parse_args()


def main() -> None:
    arguments = parsed()
    is_all = arguments.devices == ALL_CARDS
    devices = list(all_cards()) if is_all else arguments.devices.split(",")
    parts, counts = arguments.parts.split(","), counts_of(len(devices))
    results = Results(devices, perf_counter() + arguments.seconds)
    if "right" in parts:
        for name, value in checks(devices):
            results.add("right", name, value)
    for case in (case for case in CASES if case.name in arguments.rows.split(",")):
        programs = {"fast": lambda count, case=case: step_of_ours(case, devices[:count])}
        if "peers" in parts:
            programs["peers"] = lambda count, case=case: step_of_peer(case, count)
        for part, measure in programs.items():
            if part in parts and results.has_time:
                values = {count: measure(count) for count in counts}
                results.add(part, f"{case.name}, us a step", with_efficiency(values))
    if "sweep" in parts and results.has_time:
        values = {count: seconds_of_sweep(devices[:count], arguments.networks) for count in counts}
        results.add("sweep", "seconds", with_efficiency(values, is_shared=True))


if __name__ == "__main__":
    run_command(main)
