"""How long does ``warpfit train`` on MNIST take, from prompt to prompt, for a model with 97.5 % of
the test set right?

The whole process, with the start of Python, the imports, the data, the GPU, the test on all of the
test set, the pictures and the end of Python. Seconds are from before the process is started to its
end; those to the model file's time are told as well. Each is the median of some runs with an empty
kernel cache, or with a warm one; in random turns with these are runs under `stages.py`, which tell
where the time goes. What is read lies in the operating system's cache, and Python's bytecode beside
its sources: a run before the others sees to that.

Prints a table and writes results/prompt.json. MNIST must be at hand, for example in $WARPFIT_DATA.

    python benchmarks/prompt.py [--rounds 7] [--seed 0]
"""

from __future__ import annotations

import json
import os
import random
import subprocess
import sys
import tempfile
import tomllib
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from time import time_ns
from typing import Any

from harness import ROOT, Options, caches_in, run_command, spread, write_results
from stages import STAGES

# Of what was tried, what gets there soonest. Epochs take milliseconds; kernels take seconds to
# compile, and those of plain SGD in a given precision are the fewest and the shortest.
OPTIONS = {
    "data": "mnist",
    "hidden": "256",
    "optimizer": "sgd",
    "lr": "0.5",
    "momentum": "0",
    "schedule": "cosine",
    "epochs": "4",
    "batch-size": "64",
    "precision": "float16",
    "device": "cuda",
}
LEAST_ACCURACY = 0.975
ROUNDS = 7
CACHES = ("empty", "warm")
UNTIL, AFTER = "prompt", "pictures and end"


@dataclass(frozen=True)
class Outcome:
    """Seconds to the end of the process and to the saved model, its accuracy on the test set, the
    engine, and, under clocks, the seconds of the stages up to the saved model.
    """

    seconds: float
    seconds_to_model: float
    accuracy: float
    engine: str
    stages: dict[str, float] | None


def command(options: dict[str, str]) -> list[str]:
    """Return the command line behind ``warpfit``."""
    return ["train", *(word for name, value in options.items() for word in (f"--{name}", value))]


def run(options: dict[str, str], cache: Path, folder: Path, *, clocks: bool) -> Outcome:
    """Train in a process of its own, which keeps its kernels in `cache` and its results in
    `folder`.
    """
    words, seconds_file = [*command(options), "--out", str(folder / "run")], folder / "seconds.json"
    sources = os.pathsep.join(filter(None, (str(ROOT / "src"), os.environ.get("PYTHONPATH"))))
    environment = {
        **os.environ,
        **caches_in(cache),
        "PYTHONPATH": sources,
    }
    environment.pop("PYTHONDONTWRITEBYTECODE", None)
    stages = [str(ROOT / "benchmarks" / "stages.py"), str(seconds_file)]
    started = time_ns()
    python = [sys.executable, *([*stages, str(started)] if clocks else ["-m", "warpfit"])]
    done = subprocess.run(
        [*python, *words], capture_output=True, text=True, check=False, env=environment
    )
    ended = time_ns()
    if done.returncode:
        raise SystemExit(f"{' '.join([*python, *words])} failed:\n{done.stderr}")
    # The time of the change that put the file, complete, into its place.
    saved = (folder / "run" / "model.safetensors").stat().st_ctime_ns
    history = json.loads((folder / "run" / "history.json").read_text(encoding="utf-8"))
    settings = tomllib.loads((folder / "run" / "config.toml").read_text(encoding="utf-8"))
    return Outcome(
        (ended - started) / 1e9,
        (saved - started) / 1e9,
        history["test"]["accuracy"],
        settings["engine"],
        json.loads(seconds_file.read_text(encoding="utf-8")) if clocks else None,
    )


def measure(
    options: dict[str, str], rounds: int, seed: int
) -> dict[tuple[str, bool], list[Outcome]]:
    """Return the runs with each cache, without and with clocks."""
    runs: dict[tuple[str, bool], list[Outcome]] = {
        (cache, clocks): [] for cache in CACHES for clocks in (False, True)
    }
    order = random.Random(seed)
    with tempfile.TemporaryDirectory() as name:
        folders = new_folders(Path(name))
        warm = next(folders)
        for clocks in (False, True):
            run(options, warm, next(folders), clocks=clocks)
        for _ in range(rounds):
            for cache, clocks in order.sample(list(runs), len(runs)):
                used = warm if cache == "warm" else next(folders)
                outcome = run(options, used, next(folders), clocks=clocks)
                runs[cache, clocks].append(outcome)
                under = "under clocks" if clocks else ""
                print(
                    f"{cache:6} {outcome.seconds:6.2f} s, {outcome.accuracy:.2%} {under}",
                    flush=True,
                )
    return runs


def new_folders(parent: Path) -> Iterator[Path]:
    """Yield empty folders."""
    while True:
        yield Path(tempfile.mkdtemp(dir=parent))


def summary(runs: list[Outcome], timed: list[Outcome]) -> dict[str, Any]:
    """Return the seconds of the whole, to the model, of the whole under clocks, and of its
    stages.
    """
    stages = {
        stage: [outcome.stages[stage] for outcome in timed if outcome.stages] for stage in STAGES
    }
    stages[AFTER] = [outcome.seconds - outcome.seconds_to_model for outcome in timed]
    return {
        "seconds": spread([outcome.seconds for outcome in runs]),
        "seconds_to_model": spread([outcome.seconds_to_model for outcome in runs]),
        "seconds_under_clocks": spread([outcome.seconds for outcome in timed]),
        "stages": {stage: spread(seconds) for stage, seconds in stages.items()},
    }


def results_of(
    options: dict[str, str], runs: dict[tuple[str, bool], list[Outcome]]
) -> dict[str, Any]:
    """Return what the file holds, or exit if a model is not as good as it should be."""
    outcomes = [outcome for group in runs.values() for outcome in group]
    accuracy = spread([outcome.accuracy for outcome in outcomes])
    if accuracy["min"] < LEAST_ACCURACY:
        raise SystemExit(
            f"expected an accuracy of at least {LEAST_ACCURACY:.1%}, got {accuracy['min']:.2%}"
        )
    return {
        "command": " ".join(["warpfit", *command(options)]),
        "until": UNTIL,
        "engines": sorted({outcome.engine for outcome in outcomes}),
        "accuracy": accuracy,
        "rounds": len(runs["warm", False]),
        "caches": {cache: summary(runs[cache, False], runs[cache, True]) for cache in CACHES},
    }


def print_results(results: dict[str, Any]) -> None:
    print(f"{results['command']}\n{', '.join(results['engines'])}, accuracy {results['accuracy']}")
    for cache, found in results["caches"].items():
        whole, under = found["seconds"]["median"], found["seconds_under_clocks"]["median"]
        print(f"{cache} kernel cache: {whole:.3f} s; under clocks {under:.3f} s, of which")
        for stage, seconds in found["stages"].items():
            print(f"    {stage:20} {seconds['median']:7.3f} s")
        total = sum(seconds["median"] for seconds in found["stages"].values())
        print(
            f"    {'all stages':20} {total:7.3f} s, {total / whole:.1%} of the whole without clocks"
        )


def main() -> None:
    parser = Options(__doc__)
    parser.add_argument("--rounds", type=int, default=ROUNDS, help="runs of each kind")
    parser.add_argument("--seed", type=int, default=0, help="of the turns")
    arguments = parser.parse_args()
    results = results_of(OPTIONS, measure(OPTIONS, arguments.rounds, arguments.seed))
    print_results(results)
    print(write_results("prompt", results))


if __name__ == "__main__":
    run_command(main)
