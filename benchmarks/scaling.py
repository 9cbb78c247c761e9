"""Are several cards right, and how much faster than one?

Checks first: N ranks against one, the bits of two runs, a checkpoint of N ranks that one goes on
with, an error of one rank, which has to end all, and N processes, of which one is killed. Then
microseconds a step of wide networks with as many rows a card whatever N is, seconds of a sweep, and
steps of PyTorch's DistributedDataParallel. Efficiency is the time of one card over that of N. For a
check without a GPU: --devices cpu,cpu.

Prints a line for each figure, and writes results/scaling.json after every part.

    python benchmarks/scaling.py [--devices cuda:all] [--parts right,fast,peers,sweep]
    [--rows 4x4096/8192,784-8192x3-10/8192] [--counts 1,2,4,8] [--seconds 60]
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import tempfile
from collections.abc import Iterator, Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from itertools import pairwise
from math import inf
from pathlib import Path
from time import perf_counter
from typing import IO, Any, cast

import numpy as np

import warpfit as wf
from harness import run_command, run_worker, write_results
from warpfit import nn, optim
from warpfit.backends import ALL_CARDS, PROCESSES
from warpfit.engines import steps
from warpfit.errors import DataError
from warpfit.training.devices import all_cards

PARTS = ("right", "fast", "peers", "sweep")
# Steps whose mean is told, of warpfit as of PyTorch, after as many.
BATCHES, EPOCHS = 4, 12
# Of the checks: three batches of 96 rows, and one of 37.
CHECKED_SIZES, CHECKED_ROWS, CHECKED_BATCH = (64, 256, 256, 10), 325, 96
SWEPT_NETWORKS, SWEPT_ROWS, SWEPT_EPOCHS = 1056, 8192, 600


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
    sizes: Sequence[int],
    x: Any,
    y: Any,
    devices: str | Sequence[str],
    model: nn.Sequential | None = None,
    **settings: Any,
) -> tuple[nn.Sequential, wf.History]:
    model = network(sizes) if model is None else model
    opt = optim.SGD(model.parameters(), lr=0.01, momentum=0.9)
    history = wf.fit(model, x, y, optimizer=opt, device=devices, verbose=False, **settings)
    return model, history


# -- right
# --------------------------------------------------------------------------------------------------


def checks(devices: Sequence[str], counts: Sequence[int]) -> Iterator[tuple[str, dict[str, Any]]]:
    """Yield each check, what came of it, and whether it passed."""
    sizes = CHECKED_SIZES
    x, y = rows_of(sizes, CHECKED_ROWS)
    asked: dict[str, Any] = {"batch_size": CHECKED_BATCH, "precision": "float32", "seed": 3}
    asked["engine"] = "layerwise" if devices[0] == "cpu" else "graph"
    _, one = trained(sizes, x, y, devices[:1], epochs=6, **asked)
    for count in counts[1:]:
        several, ranks = devices[:count], f"{count} ranks"
        model, history = trained(sizes, x, y, several, epochs=6, **asked)
        again, _ = trained(sizes, x, y, several, epochs=6, **asked)
        away = np.abs(history.step_losses / one.step_losses - 1).max()
        yield f"{ranks}, losses away from one's", _checked(float(away), away < 1e-4)
        is_same = _same_bits(model, again)
        yield f"{ranks}, equal bits", _checked(is_same, is_same)
        away = _away_when_resumed(sizes, x, y, several, one, asked)
        yield f"{ranks}, resumed on one, losses away", _checked(away, away < 1e-4)
    for count in counts[1:]:
        seconds = _seconds_to_fail(sizes, x, y, devices[:count], asked)
        yield f"{count} ranks, seconds until one's error ends all", _checked(seconds, seconds < 10)
        found, seconds = _of_processes(count, devices[0], {**asked, "epochs": 6})
        away = np.abs(found / one.step_losses.ravel() - 1).max()
        yield f"{count} processes, losses away from one's", _checked(float(away), away < 1e-4)
        yield (
            f"{count} processes, seconds until one killed ends all",
            _checked(seconds, seconds < 10),
        )


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


def _of_processes(count: int, device: str, asked: dict[str, Any]) -> tuple[Any, float]:
    """Return the losses of a run of so many processes, and after how many seconds all have ended
    once the last of them is killed.
    """
    command = [sys.executable, __file__, "--process", json.dumps(asked)]
    with tempfile.TemporaryDirectory() as folder, ExitStack() as started:
        shared = {"WARPFIT_MEETING": f"{folder}/meeting", "WARPFIT_WORLD_SIZE": str(count)}
        shared |= {"WARPFIT_DEVICE": "cpu"} if device == "cpu" else {}
        processes = []
        for rank in range(count):
            environment = {**os.environ, **shared, "WARPFIT_RANK": str(rank)}
            errors = started.enter_context(open(f"{folder}/errors{rank}", "w"))
            process = subprocess.Popen(
                command, env=environment, stdout=subprocess.PIPE, stderr=errors, text=True
            )
            started.enter_context(process)
            started.callback(process.kill)
            processes.append(process)
        first = cast(IO[str], processes[0].stdout)
        line = first.readline()
        if not line:
            raise DataError(f"expected losses of rank 0, got {Path(errors.name).read_text()}")
        losses = np.array(json.loads(line))
        first.readline()
        processes[-1].kill()
        begin = perf_counter()
        for process in processes[:-1]:
            process.communicate(timeout=60)
        return losses.ravel(), perf_counter() - begin


class _Telling(wf.Callback):
    """Says that an epoch is done."""

    def on_epoch_end(self, run: wf.Run) -> None:
        print("epoch", flush=True)


def train_as_process(asked: dict[str, Any]) -> None:
    """Print the losses of a run as one of several processes, and train on until one is killed."""
    x, y = rows_of(CHECKED_SIZES, CHECKED_ROWS)
    _, history = trained(CHECKED_SIZES, x, y, PROCESSES[0], **asked)
    print(json.dumps(history.step_losses.tolist()), flush=True)
    endless = {**asked, "epochs": 10**6, "callbacks": [_Telling()]}
    trained(CHECKED_SIZES, x, y, PROCESSES[0], **endless)


# -- fast
# --------------------------------------------------------------------------------------------------


def steps_of_ours(case: Case, devices: Sequence[str], counts: Sequence[int]) -> dict[int, float]:
    """Return the microseconds of a step on so many devices each."""
    model = network(case.sizes)
    x, y = rows_of(case.sizes, BATCHES * case.rows_of_card * max(counts))
    return {count: step_of_ours(case, model, x, y, devices[:count]) for count in counts}


def step_of_ours(case: Case, model: nn.Sequential, x: Any, y: Any, devices: Sequence[str]) -> float:
    batch = case.rows_of_card * len(devices)
    x, y = x[: BATCHES * batch], y[: BATCHES * batch]
    asked: dict[str, Any] = {"batch_size": batch, "epochs": 2 * EPOCHS}
    asked["precision"] = "float32" if devices[0] == "cpu" else "bfloat16"
    _, history = trained(case.sizes, x, y, devices, model, **asked)
    seconds = [report.seconds for report in history.reports[EPOCHS:]]
    return sum(seconds) / (EPOCHS * BATCHES) * 1e6


def steps_of_peer(cases: Sequence[Case], count: int) -> list[dict[str, float]]:
    """Return for each case the microseconds of a step of DistributedDataParallel: on one card, and
    on so many, eager and compiled.
    """
    script = Path(__file__).parent / "peers" / "torch_ddp.py"
    words = [f"{','.join(map(str, case.sizes))}/{case.rows_of_card}" for case in cases]
    found = run_worker(str(script), str(count), str(EPOCHS * BATCHES), *words)["us"]
    return [found[word] for word in words]


def seconds_of_sweep(
    devices: Sequence[str], counts: Sequence[int], num_networks: int
) -> dict[int, float]:
    """Return the seconds that networks 784-128-10 take on so many devices each, after a sweep that
    compiles. That they are made before counts nowhere.
    """
    x, y = rows_of((784, 10), SWEPT_ROWS)
    models = [network((784, 128, 10)) for _ in range(num_networks)]
    rates = [0.01 + 1e-5 * idx for idx in range(num_networks)]

    def build(candidate: dict[str, Any]) -> Any:
        model = models[candidate["idx"]]
        return model, optim.SGD(model.parameters(), lr=rates[candidate["idx"]])

    found = {}
    for count, epochs in [(max(counts), 1), *((count, SWEPT_EPOCHS) for count in counts)]:
        candidates = [{"idx": idx} for idx in range(num_networks)]
        begin = perf_counter()
        wf.fit_many(
            build,
            x,
            y,
            candidates=candidates,
            epochs=epochs,
            device=list(devices[:count]),
            verbose=False,
        )
        found[count] = perf_counter() - begin
    return {count: found[count] for count in counts}


def with_efficiency(
    values: dict[int, float], unit: str = "us", *, is_shared: bool = False
) -> dict[str, Any]:
    """Return times by the number of cards, and how well more of them are used; `is_shared` says
    that they have the same work together.
    """
    return {
        str(count): {
            unit: value,
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
    parser.add_argument("--process", help="settings, as JSON, of a run that this process shares")
    parser.add_argument("--counts", default="1,2,4,8", help="of cards, as far as there are so many")
    parser.add_argument("--networks", type=int, default=SWEPT_NETWORKS)
    parser.add_argument("--seconds", type=float, default=400, help="after which nothing is begun")
    return parser.parse_args()


def main() -> None:
    arguments = parsed()
    if arguments.process:
        train_as_process(json.loads(arguments.process))
        return
    is_all = arguments.devices == ALL_CARDS
    devices = list(all_cards()) if is_all else arguments.devices.split(",")
    parts = arguments.parts.split(",")
    counts = [n for n in map(int, arguments.counts.split(",")) if n <= len(devices)]
    results = Results(devices, perf_counter() + arguments.seconds)
    if "right" in parts:
        for name, value in checks(devices, counts):
            results.add("right", name, value)
    cases = [case for case in CASES if case.name in arguments.rows.split(",")]
    for case in cases if "fast" in parts else ():
        if results.has_time:
            values = steps_of_ours(case, devices, counts)
            results.add("fast", case.name, with_efficiency(values))
    if "sweep" in parts and results.has_time:
        values = seconds_of_sweep(devices, counts, arguments.networks)
        results.add("sweep", "784-128-10", with_efficiency(values, "seconds", is_shared=True))
    for count in counts[1:] if "peers" in parts else ():
        if results.has_time:
            for case, found in zip(cases, steps_of_peer(cases, count), strict=True):
                own = {kind: {"us": us} for kind, us in found.items()}
                results.add("peers", f"{case.name} on {count}", own)


if __name__ == "__main__":
    run_command(main)
