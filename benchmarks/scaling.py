"""Are several cards right, and how much faster than one?

Checks first: N ranks against one, the bits of two runs, a checkpoint of N ranks that one goes on
with, an error of one rank, which has to end all, and N processes, of which one is killed. Then
microseconds a step of wide networks with as many rows a card whatever N is, and of small ones in
one launch; seconds of a sweep; and steps of PyTorch's DistributedDataParallel. Efficiency is the
time of one card over that of N; of linear layers it says what `warpfit plan --cards` expected. For
a check without a GPU: --devices cpu,cpu.

Prints a line for each figure, and writes it to results/scaling.json as it comes. There, figures of
another number of devices stay, and so do parts that are not measured again.

    python benchmarks/scaling.py [--devices cuda:all] [--parts right,fast,launch,sweep,peers]
    [--rows 4x4096/8192,cnn/512] [--counts 1,2,4,8] [--seconds 60]
"""

from __future__ import annotations

import argparse
import json
import os
import signal
import subprocess
import sys
import tempfile
from collections.abc import Iterator, Sequence
from contextlib import suppress
from itertools import product
from pathlib import Path
from threading import Timer
from time import perf_counter
from typing import IO, Any, cast

import warpfit as wf
from harness import (
    Options,
    environment,
    names,
    read_results,
    run_command,
    whole_numbers,
    write_results,
)
from scaling_cases import CASES, Case, network, rows_of, trained
from scaling_checks import checks
from warpfit import nn, optim
from warpfit.backends import ALL_CARDS
from warpfit.errors import ConfigError
from warpfit.training.devices import devices_of

ENVIRONMENT = "environment"
PARTS = ("right", "fast", "launch", "sweep", "peers")
# Epochs whose steps' mean is told, after as many; and PyTorch's steps.
EPOCHS, STEPS_OF_PEER = 12, 48
SWEPT_NETWORKS, SWEPT_ROWS, SWEPT_EPOCHS = 1056, 8192, 600
# Networks that one launch trains on several cards, and rows of a batch of all.
LAUNCHED: tuple[tuple[tuple[int, ...], int], ...] = (
    ((784, 128, 128, 10), 1024),
    ((784, 128, 128, 10), 2048),
    ((784, 256, 128, 10), 1024),
    ((64, 64, 64, 64, 10), 2048),
    ((64, 64, 64, 64, 10), 4096),
)
LAUNCHED_BATCHES, LAUNCHED_EPOCHS = 16, 800


# -- fast
# --------------------------------------------------------------------------------------------------


def steps_of_ours(case: Case, devices: Sequence[str], counts: Sequence[int]) -> dict[int, float]:
    """Return the microseconds of a step on so many devices each."""
    model = case.model()
    x, y = case.rows(case.steps_per_epoch * case.rows_of_card * max(counts))
    return {count: step_of_ours(case, model, x, y, devices[:count]) for count in counts}


def step_of_ours(case: Case, model: nn.Sequential, x: Any, y: Any, devices: Sequence[str]) -> float:
    batch = case.rows_of_card * len(devices)
    num_rows = case.steps_per_epoch * batch
    asked: dict[str, Any] = {"batch_size": batch, "epochs": 2 * EPOCHS}
    asked["precision"] = "float32" if devices[0] == "cpu" else "bfloat16"
    _, history = trained(case.sizes, x[:num_rows], y[:num_rows], devices, model, **asked)
    seconds = [report.seconds for report in history.reports[EPOCHS:]]
    return sum(seconds) / (EPOCHS * case.steps_per_epoch) * 1e6


def with_expected(case: Case, found: dict[str, Any]) -> dict[str, Any]:
    """Add to times of a case what was expected of them."""
    for count, of_count in found.items():
        if (us := case.expected(int(count))) is not None:
            of_count["expected"] = {"us": us, "ratio": us / of_count["us"]}
    return found


def steps_of_launch(
    sizes: Sequence[int], batch: int, devices: Sequence[str], counts: Sequence[int]
) -> dict[str, Any]:
    """Return the microseconds of a step as one launch, and as graphs, where they can run it on so
    many devices.
    """
    x, y = rows_of(sizes, LAUNCHED_BATCHES * batch)
    found: dict[str, Any] = {}
    for engine, count in product(("one_launch", "graph"), counts):
        settings = {"engine": engine, "batch_size": batch, "epochs": LAUNCHED_EPOCHS}
        try:
            _, history = trained(
                sizes, x, y, devices[:count], precision="bfloat16", seed=3, **settings
            )
        except ConfigError as error:
            found[f"{engine} on {count}"] = str(error)
            continue
        seconds = min(report.seconds for report in history.reports)
        found[f"{engine} on {count}"] = own = {"us": seconds / LAUNCHED_BATCHES * 1e6}
        if (us := history.plan.prepared.microseconds) is not None:
            own["expected"] = {"us": us, "ratio": us / own["us"]}
    return found


def steps_of_peer(
    cases: Sequence[Case], count: int, deadline: float
) -> Iterator[tuple[Case, str, float]]:
    """Yield microseconds of a step of DistributedDataParallel as they come: on so many cards, on
    one, and on so many compiled.
    """
    script = Path(__file__).parent / "peers" / "torch_ddp.py"
    words = {case.of_peer: case for case in cases}
    command = [sys.executable, str(script), str(count), str(STEPS_OF_PEER), *words]
    with (
        tempfile.TemporaryFile("w+") as errors,
        subprocess.Popen(
            command, stdout=subprocess.PIPE, stderr=errors, text=True, start_new_session=True
        ) as peer,
    ):
        late = Timer(max(1.0, deadline - perf_counter()), lambda: _end_all(peer))
        late.start()
        try:
            for line in cast(IO[str], peer.stdout):
                if line.startswith("{"):
                    found = json.loads(line)
                    yield words[found["network"]], found["kind"], found["us"]
        finally:
            late.cancel()
            _end_all(peer)
        if peer.wait() > 0:
            errors.seek(0)
            print(errors.read()[-2000:], file=sys.stderr)


def _end_all(process: subprocess.Popen[str]) -> None:
    """End a process with those that it has started."""
    with suppress(ProcessLookupError):
        os.killpg(process.pid, signal.SIGKILL)


def seconds_of_sweep(
    devices: Sequence[str], counts: Sequence[int], num_networks: int
) -> dict[int, float]:
    """Return the seconds that networks 784-128-10 take on so many devices each, after a sweep that
    compiles. That new ones are made before each counts nowhere.
    """
    x, y = rows_of((784, 10), SWEPT_ROWS)
    models: list[Any] = []
    rates = [0.01 + 1e-5 * idx for idx in range(num_networks)]

    def build(candidate: dict[str, Any]) -> Any:
        model = models[candidate["idx"]]
        return model, optim.SGD(model.parameters(), lr=rates[candidate["idx"]])

    found = {}
    for count, epochs in [(max(counts), 1), *((count, SWEPT_EPOCHS) for count in counts)]:
        candidates = [{"idx": idx} for idx in range(num_networks)]
        models[:] = [network((784, 128, 10)) for _ in range(num_networks)]
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
        kind = "CPUs" if devices[0] == "cpu" else "devices"
        self.key, self.deadline = f"{len(devices)} {kind}", deadline
        self.all = {name: of for name, of in read_results("scaling").items() if name != ENVIRONMENT}
        self.own: dict[str, Any] = self.all.setdefault(self.key, {})
        self.own["devices"] = list(devices)

    @property
    def has_time(self) -> bool:
        return perf_counter() < self.deadline

    def add(self, part: str, name: str, value: Any) -> None:
        figures = self.own.setdefault(part, {})
        figures[ENVIRONMENT] = environment()
        figures[name] = figures.get(name, {}) | value if part == "peers" else value
        print(f"{part}: {name}: {value}", flush=True)
        write_results("scaling", self.all)


def parsed() -> argparse.Namespace:
    parser = Options(__doc__)
    parser.add_argument("--devices", default=ALL_CARDS)
    parser.add_argument("--parts", type=names(PARTS), default=list(PARTS))
    cases = [case.name for case in CASES]
    parser.add_argument("--rows", type=names(cases), default=cases)
    usual = [1, 2, 4, 8]
    parser.add_argument(
        "--counts", type=whole_numbers, default=usual, help="of cards, as far as there are so many"
    )
    parser.add_argument("--networks", type=int, default=SWEPT_NETWORKS)
    parser.add_argument("--seconds", type=float, default=400, help="after which nothing is begun")
    return parser.parse_args()


def main() -> None:
    arguments = parsed()
    given, parts = arguments.devices, arguments.parts
    named = devices_of(given if given == ALL_CARDS else given.split(",")).names
    devices = list(named)
    counts = sorted({1, *(count for count in arguments.counts if count <= len(devices))})
    results = Results(devices, perf_counter() + arguments.seconds)
    if "right" in parts:
        for name, value in checks(devices, counts):
            results.add("right", name, value)
    cases = [case for case in CASES if case.name in arguments.rows]
    for case in cases if "fast" in parts else ():
        if results.has_time:
            found = with_efficiency(steps_of_ours(case, devices, counts))
            results.add("fast", case.name, with_expected(case, found))
    for sizes, batch in LAUNCHED if "launch" in parts else ():
        if results.has_time:
            name = f"{'-'.join(map(str, sizes))}/{batch}"
            results.add("launch", name, steps_of_launch(sizes, batch, devices, counts))
    if "sweep" in parts and results.has_time:
        values = seconds_of_sweep(devices, counts, arguments.networks)
        results.add("sweep", "784-128-10", with_efficiency(values, "seconds", is_shared=True))
    for count in counts[1:] if "peers" in parts else ():
        if results.has_time:
            for case, kind, us in steps_of_peer(cases, count, results.deadline):
                results.add("peers", f"{case.name} on {count}", {kind: {"us": us}})


if __name__ == "__main__":
    run_command(main)
