"""Networks on tables, ours and others', and boosted trees: how good, and how fast?

A table's rows are cut into 64 % to train on, 16 % to validate on and 20 % to score on. A seed
decides the first two, initial values, orders and dropout; the last are the same for all. A program
fits all seeds of a table in one process, which takes no other at the same time. Times are of `fit`
alone, by the wall, with its preprocessing; the first fit of the process is apart, and finds no
kernels in the cache. Scores are log loss and accuracy of classes, RMSE of numbers.

Networks are equally good if the difference of their scores is: two one-sided t-tests, paired by
seed, against half the standard deviation of the peer's scores over seeds (TOST).

    python benchmarks/tables.py [--tables magic,...] [--programs "warpfit realmlp,lightgbm"]
        [--seeds 10] [--peer-seeds 3] [--epochs 256] [--minutes 8]

Writes results/tables.json after each program, and called again goes on with what is missing. Where
the data come from, and their licences, says table_data.py.
"""

from __future__ import annotations

import argparse
import json
import os
import warnings
from collections.abc import Sequence
from statistics import geometric_mean, mean
from tempfile import TemporaryDirectory
from time import perf_counter, process_time
from typing import Any

import numpy as np
from scipy import stats
from sklearn.metrics import log_loss

from harness import read_results, run_command, run_worker, spread, write_results
from peers.tabular import PROGRAMS, missing
from table_data import TABLES, missing_package, split

# A network of ours, and the same method's of another maker.
PAIRS = {
    "warpfit realmlp": "pytabkit realmlp",
    "warpfit realmlp cpu": "pytabkit realmlp cpu",
    "warpfit tabm": "pytabkit tabm",
}


def measured(program: str, table: str, seeds: int, epochs: int | None) -> dict[str, Any]:
    """Fit a program once for each seed, and return its times and its scores, seed by seed."""
    fit, _, _ = PROGRAMS[program]
    found: list[dict[str, float]] = []
    for seed in range(seeds):
        rows = split(table, seed)
        wall, cpu = perf_counter(), process_time()
        model = fit(rows, seed, epochs)
        times = {"wall_s": perf_counter() - wall, "cpu_s": process_time() - cpu}
        found.append({**times, **scores_of(model, rows)})
    return {name: [each[name] for each in found] for name in found[0]}


def scores_of(model: Any, rows: Any) -> dict[str, float]:
    """Return how good predictions for the rows to score on are."""
    if not rows.num_classes:
        distances = np.asarray(model.predict(rows.x_test)).ravel() - rows.y_test
        return {"rmse": float(np.sqrt(np.mean(distances**2)))}
    chances = np.asarray(model.predict_proba(rows.x_test), np.float64)
    chances /= chances.sum(axis=1, keepdims=True)
    return {
        "log_loss": float(log_loss(rows.y_test, chances, labels=range(rows.num_classes))),
        "accuracy": float(np.mean(chances.argmax(axis=1) == rows.y_test)),
    }


def summary(found: dict[str, list[float]]) -> dict[str, Any]:
    """Return what the results file has of a program on a table."""
    walls = found.pop("wall_s")
    cpus = found.pop("cpu_s")
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
        "ours": mean(ours[:count]),
        "theirs": mean(theirs[:count]),
        "margin": margin,
        "difference": float(differences.mean()),
        "p": float(max(below, above)),
        "p_different": float(stats.ttest_1samp(differences, 0).pvalue),
    }


def compared(rows: dict[str, Any]) -> dict[str, Any]:
    """Return, of one table, the equivalence of each pair that has been measured."""
    found = {}
    for ours, theirs in PAIRS.items():
        if ours in rows and theirs in rows:
            scores = rows[ours]["scores"], rows[theirs]["scores"]
            if min(len(values) for each in scores for values in each.values()) < 3:
                continue
            found[ours] = {
                name: equivalence(scores[0][name], scores[1][name]) for name in scores[0]
            }
    return found


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--tables", default=",".join(TABLES), help="of these, some")
    parser.add_argument("--programs", default=",".join(PROGRAMS), help="of these, some")
    parser.add_argument("--seeds", type=int, default=10, help="of networks")
    parser.add_argument("--peer-seeds", type=int, default=3, help="of trees, and bags")
    parser.add_argument("--epochs", type=int, help="of networks, fewer for a trial")
    parser.add_argument("--minutes", type=float, default=60, help="after which no program starts")
    parser.add_argument("--worker", nargs=4, help=argparse.SUPPRESS)
    arguments = parser.parse_args()
    if arguments.worker:
        program, table, seeds, epochs = arguments.worker
        warnings.simplefilter("ignore")
        print(json.dumps(measured(program, table, int(seeds), int(epochs) or None)))
        return
    tables, programs = arguments.tables.split(","), arguments.programs.split(",")
    for names, known in ((tables, TABLES), (programs, PROGRAMS)):
        if unknown := [name for name in names if name not in known]:
            parser.error(f"expected some of {', '.join(known)}, got {', '.join(unknown)}")
    ends = perf_counter() + 60 * arguments.minutes
    results = earlier(arguments.epochs)
    for table in tables:
        if package := missing_package(table):
            print(f"{table}: {package} is not installed")
            continue
        for program in programs:
            if why := missing(program):
                print(f"{table} {program}: {why}")
            elif program not in results["tables"].get(table, {}) and perf_counter() < ends:
                seeds = arguments.seeds if program in {*PAIRS, *PAIRS.values()} else None
                run(results, table, program, seeds or arguments.peer_seeds)


def earlier(epochs: int | None) -> dict[str, Any]:
    """Return what is measured already with so many epochs."""
    found = read_results("tables")
    kept = found if found.get("epochs", 0) == epochs and "equivalence" in found else {}
    return {"epochs": epochs, "tables": kept.get("tables", {}), "equivalence": {}}


def run(results: dict[str, Any], table: str, program: str, seeds: int) -> None:
    """Measure a program on a table in a process of its own, and write what is known."""
    with TemporaryDirectory() as cache:
        os.environ["WARPFIT_CACHE_DIR"] = cache
        worker = ("--worker", program, table, str(seeds), str(results["epochs"] or 0))
        found = summary(run_worker(__file__, *worker))
    results["tables"].setdefault(table, {})[program] = found
    results["equivalence"] = {name: compared(rows) for name, rows in results["tables"].items()}
    scores = ", ".join(f"{name} {mean(each):.4f}" for name, each in found["scores"].items())
    print(
        f"{table:13} {program:24} first {found['first_s']:6.2f} s, "
        f"then {found['wall_s']['median']:7.3f} s, {scores}",
        flush=True,
    )
    write_results("tables", results)


# -- what pages show
# ------------------------------------------------------------------------------------------------


def error_of(row: dict[str, Any]) -> float:
    """Return the mean log loss, or RMSE, of a program on a table."""
    scores = row["scores"]
    return mean(scores["log_loss"] if "log_loss" in scores else scores["rmse"])


def points(results: dict[str, Any]) -> dict[str, tuple[float, float]]:
    """Return each program's time, a geometric mean over the tables that all of them ran, and its
    error there, as a multiple of the least.
    """
    tables = [rows for rows in results["tables"].values() if len(rows) > 1]
    most = max((len(rows) for rows in tables), default=0)
    whole = [rows for rows in tables if len(rows) == most]
    programs = set.intersection(*(set(rows) for rows in whole)) if whole else set()
    return {
        program: (
            geometric_mean([rows[program]["wall_s"]["median"] for rows in whole]),
            geometric_mean(
                [error_of(rows[program]) / min(map(error_of, rows.values())) for rows in whole]
            ),
        )
        for program in PROGRAMS
        if program in programs
    }


def draw(results: dict[str, Any]) -> Any:
    """Return the figure of error over time, a point for each program."""
    from matplotlib.figure import Figure

    figure = Figure(figsize=(6.5, 4), layout="constrained")
    axes = figure.subplots()
    for program, (seconds, error) in points(results).items():
        axes.scatter(seconds, error, color="C0" if program.startswith("warpfit") else "C7")
        axes.annotate(
            program, (seconds, error), xytext=(4, 4), textcoords="offset points", fontsize=8
        )
    axes.set(xscale="log", xlabel="seconds a fit", ylabel="error, least of all programs = 1")
    axes.grid(alpha=0.3)
    figure.suptitle(results["environment"].get("gpu", ""))
    return figure


SHOWN = (
    "warpfit realmlp",
    "warpfit realmlp cpu",
    "warpfit realmlp bag of 8",
    "warpfit tabm",
    "pytabkit realmlp",
    "pytabkit realmlp cpu",
    "pytabkit tabm",
    "lightgbm",
    "xgboost",
    "catboost",
    "scikit-learn hist",
)


def rows_of_programs(results: dict[str, Any]) -> tuple[list[str], list[list[str]]]:
    """Return a table's header and lines: of each program its error and its seconds."""
    shown = [each for each in SHOWN if any(each in rows for rows in results["tables"].values())]
    lines = []
    for table, rows in results["tables"].items():
        kind = "log loss" if TABLES[table].has_classes else "RMSE"
        cells = [
            f"{error_of(rows[each]):.4f}, {rows[each]['wall_s']['median']:.2f} s"
            if each in rows
            else "-"
            for each in shown
        ]
        lines.append([table, kind, *cells])
    return ["table", "error", *shown], lines


def rows_of_pairs(results: dict[str, Any]) -> tuple[list[str], list[list[str]]]:
    """Return a table's header and lines: of each pair and score, how far apart they are."""
    lines = [
        [
            table,
            f"{ours}, {PAIRS[ours]}",
            name.replace("_", " "),
            f"{found['ours']:.4f}",
            f"{found['theirs']:.4f}",
            f"{found['difference']:+.4f}",
            f"±{found['margin']:.4f}",
            f"{found['p']:.3f}",
            f"{found['p_different']:.3f}",
        ]
        for table, pairs in results["equivalence"].items()
        for ours, scores in pairs.items()
        for name, found in scores.items()
    ]
    header = ["table", "programs", "score", "ours", "theirs", "difference", "margin"]
    return [*header, "p of equivalence", "p of a difference"], lines


if __name__ == "__main__":
    run_command(main)
