"""How long does an epoch take on the CPU, beside scikit-learn's MLPClassifier?

784-256-10 on MNIST, batch 64, float32. Each measurement is a process of its own that fits for
EPOCHS epochs and divides; the two programs take turns. Prints a table and writes
results/cpu_epoch.json.

    python benchmarks/cpu_epoch.py [--rounds 5]
"""

from __future__ import annotations

import argparse
import json
import resource
import warnings
from time import perf_counter
from typing import Any

import numpy as np

from harness import Options, run_command, run_worker, spread, write_results

EPOCHS = 3
HIDDEN, BATCH = 256, 64
# name: (solver, learning rate, momentum with Nesterov's form, largest ratio that we promise)
CASES: dict[str, tuple[str, float, float, float]] = {
    "sgd": ("sgd", 0.1, 0.0, 0.6),
    "sgd, momentum 0.9": ("sgd", 0.1, 0.9, 0.6),
    "adam": ("adam", 1e-3, 0.0, 0.7),
}


def fit_warpfit(case: str, x: Any, y: Any) -> None:
    import warpfit as wf
    from warpfit import nn, optim

    solver, lr, momentum, _ = CASES[case]
    model = nn.Sequential(nn.Linear(x.shape[1], HIDDEN), nn.ReLU(), nn.Linear(HIDDEN, 10))
    optimizer = (
        optim.Adam(model.parameters(), lr=lr)
        if solver == "adam"
        else optim.SGD(model.parameters(), lr=lr, momentum=momentum, nesterov=momentum > 0)
    )
    wf.fit(
        model,
        x,
        y,
        optimizer=optimizer,
        epochs=EPOCHS,
        batch_size=BATCH,
        device="cpu",
        verbose=False,
    )


def fit_sklearn(case: str, x: Any, y: Any) -> None:
    from sklearn.exceptions import ConvergenceWarning
    from sklearn.neural_network import MLPClassifier

    solver, lr, momentum, _ = CASES[case]
    model = MLPClassifier(
        (HIDDEN,),
        solver=solver,
        batch_size=BATCH,
        max_iter=EPOCHS,
        learning_rate_init=lr,
        momentum=momentum,
        alpha=0.0,
    )
    warnings.simplefilter("ignore", ConvergenceWarning)
    model.fit(x, y)


PROGRAMS = {"warpfit": fit_warpfit, "scikit-learn": fit_sklearn}


def work(program: str, case: str) -> None:
    """Measure one fit in this process and print it as JSON."""
    from warpfit.data import load_dataset

    data = load_dataset("mnist", flat=True)
    x, y = np.ascontiguousarray(data.x_train), data.y_train
    start = perf_counter()
    PROGRAMS[program](case, x, y)
    seconds = (perf_counter() - start) / EPOCHS
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024
    print(json.dumps({"seconds": seconds, "peak_bytes": peak, "data_bytes": x.nbytes + y.nbytes}))


def measure(rounds: int) -> dict[str, Any]:
    """Return, for each case, seconds per epoch of both programs, the ratio round by round, and peak
    memory.
    """
    rows = {}
    for case, (*_, promise) in CASES.items():
        runs: dict[str, list[dict[str, Any]]] = {program: [] for program in PROGRAMS}
        for _ in range(rounds):
            for program in PROGRAMS:
                runs[program].append(run_worker(__file__, "--worker", program, case))
        ours, theirs = ([run["seconds"] for run in runs[program]] for program in PROGRAMS)
        peak, data = (
            max(run["peak_bytes"] for run in runs["warpfit"]),
            runs["warpfit"][0]["data_bytes"],
        )
        rows[case] = {
            "warpfit_seconds": spread(ours),
            "sklearn_seconds": spread(theirs),
            "ratio": spread([a / b for a, b in zip(ours, theirs, strict=True)]),
            "promised_ratio": promise,
            "peak_bytes": peak,
            "promised_peak_bytes": int(1.3 * data + 200e6),
        }
    return rows


def main() -> None:
    parser = Options(__doc__)
    parser.add_argument(
        "--rounds", type=int, default=5, help="processes of each program for each case"
    )
    parser.add_argument("--worker", nargs=2, metavar=("PROGRAM", "CASE"), help=argparse.SUPPRESS)
    arguments = parser.parse_args()
    if arguments.worker:
        work(*arguments.worker)
        return
    rows = measure(arguments.rounds)
    print(
        f"{'':18} {'warpfit':>9} {'sklearn':>9} {'ratio':>7} {'at most':>8} {'peak MB':>8} "
        f"{'at most':>8}"
    )
    for case, row in rows.items():
        print(
            f"{case:18} {row['warpfit_seconds']['median']:8.3f}s "
            f"{row['sklearn_seconds']['median']:8.3f}s "
            f"{row['ratio']['median']:7.2f} {row['promised_ratio']:8.2f} "
            f"{row['peak_bytes'] / 1e6:8.0f} {row['promised_peak_bytes'] / 1e6:8.0f}"
        )
    settings = {
        "network": f"784-{HIDDEN}-10",
        "batch_size": BATCH,
        "dtype": "float32",
        "epochs_per_fit": EPOCHS,
    }
    print(f"written to {write_results('cpu_epoch', {'settings': settings, 'rows': rows})}")


if __name__ == "__main__":
    run_command(main)
