"""Networks on tables, ours and others', and boosted trees: how good, and how fast?

A table's rows are cut into 64 % to train on, 16 % to validate on and 20 % to score on. A seed
decides the first two, initial values, orders and dropout; the last are the same for all. A program
fits its tables in one process, with no other beside it, each table with one seed after the other,
as many as `--seconds` allow. Times are of `fit` alone, by the wall, with its preprocessing; the
first fit to a table is apart: it finds no kernels in the cache. Scores are log loss and accuracy of
classes, RMSE of numbers.

Networks are equally good if the difference of their scores is: two one-sided t-tests, paired by
seed, against half the standard deviation of the peer's scores over seeds (TOST). Half of it is more
than the noise of ten pairs; a hundred show it. pytabkit trains networks for a hundred splits at
once, with one matrix product for all. Where ours is fitted four times to each split, its mean score
counts, and a third fewer splits will do.

    python benchmarks/tables.py [--tables magic,...] [--programs "warpfit realmlp,lightgbm"]
        [--seeds 10] [--seconds 20] [--epochs 256] [--minutes 8] [--scores-only [--replayed]]

Writes results/tables.json after each table of a program, and called again goes on with what is
missing. With `--scores-only` several may run at once, and on another machine, for no times are
kept; a program that has times, of fewer seeds, keeps them. pytabkit's steps may then be replayed as
CUDA graphs, which takes a fraction of the time. Where the data come from, and their licences, says
table_data.py.
"""

from __future__ import annotations

import argparse
import fcntl
import json
import os
import subprocess
import sys
import warnings
from collections.abc import Iterator, Sequence
from signal import SIGKILL
from statistics import mean
from tempfile import TemporaryDirectory, TemporaryFile
from threading import Timer
from time import perf_counter, process_time
from typing import Any

import numpy as np
from scipy import stats
from sklearn.metrics import log_loss

import harness
from harness import Options, names, read_results, run_command, spread, write_results
from peers.tabular import PROGRAMS, missing
from table_data import TABLES, missing_package, split

# A network of ours, and the same method's of another maker.
PAIRS = {
    "warpfit realmlp": "pytabkit realmlp at once",
    "warpfit realmlp four times": "pytabkit realmlp at once",
    "warpfit realmlp cpu": "pytabkit realmlp cpu",
    "warpfit tabm": "pytabkit tabm",
    "warpfit tabm four times": "pytabkit tabm",
}
# A network of ours, and what it is without one of its parts, or in another precision.
WHOLE = "warpfit realmlp"
VARIANTS = (
    "warpfit realmlp bfloat16",
    "warpfit realmlp float32",
    "warpfit realmlp no embeddings",
    "warpfit realmlp constant rate",
)
AGAIN = " four times"  # ends the name of a program that counts instead of the one without
FEWEST_PAIRS = 3  # that a test is made of
FOUND = "found "  # begins the lines of a worker that have results


def measured(
    name: str, table: str, seeds: int, seconds: float, epochs: int | None
) -> dict[str, Any]:
    """Fit a program to a table, once for each seed until fits have taken so many seconds, and
    return its times and its scores, seed by seed.
    """
    program = PROGRAMS[name]
    found: list[dict[str, float]] = []
    while len(found) < seeds and sum(each["wall_s"] for each in found) <= seconds:
        seed = len(found)
        splits = [split(table, seed + idx) for idx in range(seeds if program.is_at_once else 1)]
        wall, cpu = perf_counter(), process_time()
        model = program.fit(splits if program.is_at_once else splits[0], seed, epochs)
        times = {
            "wall_s": (perf_counter() - wall) / len(splits),
            "cpu_s": (process_time() - cpu) / len(splits),
        }
        found += [{**times, **each} for each in scores_of(model, splits, program.networks)]
    return {each: [one[each] for one in found] for each in found[0]}


def scores_of(model: Any, splits: Sequence[Any], networks: int = 1) -> list[dict[str, float]]:
    """Return how good the predictions of a model for the rows to score on are, or those of its
    networks for each of several splits; of several networks of a split, the mean.
    """
    rows, count = splits[0], len(splits) * networks
    method = "predict_proba" if rows.num_classes else "predict"
    predict = getattr(model, method if count == 1 else f"{method}_ensemble")
    predicted = np.asarray(predict(rows.x_test), np.float64)
    each = predicted[None] if count == 1 else predicted
    found = [(_of_classes if rows.num_classes else _of_numbers)(one, rows) for one in each]
    parts = [found[first : first + networks] for first in range(0, count, networks)]
    return [{name: mean(one[name] for one in part) for name in part[0]} for part in parts]


def _of_classes(chances: Any, rows: Any) -> dict[str, float]:
    chances = chances / chances.sum(axis=1, keepdims=True)
    return {
        "log_loss": float(log_loss(rows.y_test, chances, labels=range(rows.num_classes))),
        "accuracy": float(np.mean(chances.argmax(axis=1) == rows.y_test)),
    }


def _of_numbers(numbers: Any, rows: Any) -> dict[str, float]:
    return {"rmse": float(np.sqrt(np.mean((numbers.ravel() - rows.y_test) ** 2)))}


def summary(found: dict[str, list[float]], scores_only: bool = False) -> dict[str, Any]:
    """Return what the results file has of a program on a table."""
    walls = found.pop("wall_s")
    cpus = found.pop("cpu_s")
    if scores_only:
        return {"scores": found}
    return {
        "first_s": walls[0],
        "wall_s": spread(walls[1:] or walls),
        "cpu_s": spread(cpus[1:] or cpus),
        "scores": found,
    }


def equivalence(ours: Sequence[float], theirs: Sequence[float]) -> dict[str, float]:
    """Return the means of two programs' scores, how far the second's spread, and the p-value of
    their being equally good: of a difference beyond half of that spread.
    """
    count = min(len(ours), len(theirs))
    differences = np.subtract(ours[:count], theirs[:count])
    margin = 0.5 * float(np.std(theirs[:count], ddof=1))
    below = stats.ttest_1samp(differences, -margin, alternative="greater").pvalue
    above = stats.ttest_1samp(differences, margin, alternative="less").pvalue
    return {
        "pairs": count,
        "ours": mean(ours[:count]),
        "theirs": mean(theirs[:count]),
        "margin": margin,
        "difference": float(differences.mean()),
        "standard_error": float(stats.sem(differences)),
        "p": float(max(below, above)),
        "p_different": float(stats.ttest_1samp(differences, 0).pvalue),
    }


def compared(rows: dict[str, Any], pairs: dict[str, str]) -> dict[str, Any]:
    """Return, of one table, the equivalence of each pair of programs that has been measured."""
    found = {}
    for one, other in pairs.items():
        if one in rows and other in rows and one + AGAIN not in rows:
            scores = rows[one]["scores"], rows[other]["scores"]
            if min(len(values) for each in scores for values in each.values()) < FEWEST_PAIRS:
                continue
            found[one] = {name: equivalence(scores[0][name], scores[1][name]) for name in scores[0]}
    return found


def main() -> None:
    parser = Options(__doc__)
    parser.add_argument("--tables", type=names(TABLES), default=list(TABLES))
    parser.add_argument("--programs", type=names(PROGRAMS), default=list(PROGRAMS))
    parser.add_argument("--seeds", type=int, default=10, help="of a program on a table, at most")
    parser.add_argument(
        "--seconds", type=float, default=60, help="that fits to a table take, then no seed starts"
    )
    parser.add_argument("--epochs", type=int, help="of networks, fewer for a trial")
    parser.add_argument("--minutes", type=float, default=60, help="after which all ends")
    parser.add_argument("--scores-only", action="store_true", help="keep no times")
    parser.add_argument("--replayed", action="store_true", help="pytabkit's steps as CUDA graphs")
    parser.add_argument("--worker", nargs=2, metavar=("PROGRAM", "TABLES"), help=argparse.SUPPRESS)
    arguments = parser.parse_args()
    if arguments.replayed and not arguments.scores_only:
        parser.error("--replayed is for --scores-only")
    if arguments.worker:
        work(*arguments.worker, arguments)
        return
    for table in arguments.tables:
        if package := missing_package(table):
            print(f"{table}: {package} is not installed")
    ends = perf_counter() + 60 * arguments.minutes
    results = earlier(arguments.epochs)
    for program in arguments.programs:
        if why := missing(program):
            print(f"{program}: {why}")
            continue
        left = [
            table
            for table in arguments.tables
            if not missing_package(table)
            and is_left(results["tables"].get(table, {}).get(program), arguments)
        ]
        if left and perf_counter() < ends:
            run(program, left, arguments, ends - perf_counter())


def is_left(row: dict[str, Any] | None, options: argparse.Namespace) -> bool:
    """Return whether a program has nothing on a table yet, or too few seeds where scores count."""
    return row is None or (options.scores_only and num_seeds(row) < options.seeds)


def num_seeds(row: dict[str, Any]) -> int:
    return len(next(iter(row["scores"].values())))


def earlier(epochs: int | None) -> dict[str, Any]:
    """Return what is measured already with so many epochs."""
    found = read_results("tables")
    kept = found.get("tables", {}) if found.get("epochs", 0) == epochs else {}
    return {"epochs": epochs, "tables": kept}


def work(program: str, tables: str, options: argparse.Namespace) -> None:
    """Fit a program to some tables, and print a line of results for each."""
    warnings.simplefilter("ignore")
    if options.replayed and program.startswith("pytabkit"):
        from peers.pytabkit_graphs import replay_steps

        replay_steps()
    for table in tables.split(","):
        found = measured(program, table, options.seeds, options.seconds, options.epochs)
        line = {"table": table, "found": summary(found, options.scores_only)}
        print(FOUND + json.dumps(line), flush=True)


def run(program: str, tables: Sequence[str], options: argparse.Namespace, seconds: float) -> None:
    """Measure a program on some tables in a process of its own, for some seconds at most, and
    write what is known after each table.
    """
    command = [sys.executable, __file__, "--worker", program, ",".join(tables)]
    for name in ("seeds", "seconds", "epochs"):
        if (value := getattr(options, name)) is not None:
            command += [f"--{name}", str(value)]
    command += ["--scores-only"] * options.scores_only + ["--replayed"] * options.replayed
    for line in lines_of(command, seconds):
        if line.startswith(FOUND):
            each = json.loads(line.removeprefix(FOUND))
            show(program, **each)
            take_up(program, **each, epochs=options.epochs)


def lines_of(command: Sequence[str], seconds: float) -> Iterator[str]:
    """Yield what a process prints, which ends after some seconds at most and finds no kernels in
    its cache. Say so if it fails.
    """
    with TemporaryDirectory() as cache, TemporaryFile("w+") as errors:
        environment = {**os.environ, **harness.caches_in(cache)}
        with subprocess.Popen(
            command, stdout=subprocess.PIPE, stderr=errors, text=True, env=environment
        ) as process:
            clock = Timer(seconds, process.kill)
            clock.start()
            yield from process.stdout or ()
        clock.cancel()
        if process.returncode == -SIGKILL:
            print(f"{command[3]}: ended, for time is over", flush=True)
        elif process.returncode:
            errors.seek(0)
            said = errors.read().strip().splitlines()[-1:]
            print(f"{command[3]}: {' '.join(said)}", flush=True)


def show(program: str, table: str, found: dict[str, Any]) -> None:
    scores = ", ".join(f"{name} {mean(each):.4f}" for name, each in found["scores"].items())
    times = (
        f"first {found['first_s']:6.2f} s, then {found['wall_s']['median']:7.3f} s, "
        if "wall_s" in found
        else ""
    )
    print(f"{table:13} {program:30} {times}{num_seeds(found)} x {scores}", flush=True)


def take_up(program: str, table: str, found: dict[str, Any], epochs: int | None) -> None:
    """Add what was measured to the results file, which another process may do, too."""
    with open(harness.RESULTS / "tables.lock", "w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        results = earlier(epochs)
        tables = results["tables"]
        rows, origin = tables.setdefault(table, {}), harness.origin_of(harness.environment())
        if program in rows:
            rows[program] |= found | {"scores_of": origin}
            results["environment"] = read_results("tables")["environment"]  # that of the times
        else:
            rows[program] = found | origin
        results["equivalence"] = {name: compared(rows, PAIRS) for name, rows in tables.items()}
        results["variants"] = {
            name: compared(rows, dict.fromkeys(VARIANTS, WHOLE)) for name, rows in tables.items()
        }
        write_results("tables", results)


if __name__ == "__main__":
    run_command(main)
