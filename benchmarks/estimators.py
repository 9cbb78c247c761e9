"""How long do fits of the estimators take, beside scikit-learn's?

Both are fitted in one process, in turns, after a fit of each that does not count; figures are of
whole fits, checks of the input and copies to the device included. The parts:

* cpu: an epoch of 784-256-10 on MNIST (or rows like it, where it is not at hand), float32, batches
  of 64, on the CPU;
* tabular: a fit with all defaults on 1,000 rows of 20 features, on the CPU;
* gpu: ten epochs of the part cpu on the first GPU, beside scikit-learn on the same machine's CPU,
  of which fewer epochs are measured; and, under clocks, what a fit of ours spends its time on;
* search: a grid search of 3 x 5 fits on digits, ours on the first GPU.

Prints a line for each comparison, and writes results/estimators.json, where parts not measured stay
as they were.

    python benchmarks/estimators.py [--parts cpu,tabular,gpu,search] [--rounds 5]
"""

from __future__ import annotations

import argparse
import json
import os
import warnings
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from functools import partial
from importlib import import_module
from time import perf_counter
from typing import Any
from unittest import mock

import numpy as np
import sklearn.neural_network as theirs
from sklearn.datasets import load_digits, make_classification
from sklearn.model_selection import GridSearchCV
from threadpoolctl import threadpool_info

from harness import RESULTS, Options, environment, names, run_command, spread, write_results
from stages import OTHER, Clocks
from warpfit.data import load_dataset
from warpfit.errors import WarpfitError
from warpfit.estimators import MLPClassifier

SOLVERS = ("sgd", "adam")
ALPHAS = (1e-4, 1e-3, 1e-2)
FOLDS = 5

# What we hope for: at most this share of scikit-learn's time, or at least as many times its speed.
LARGEST_RATIO = {"sgd": 0.6, "adam": 0.7, "tabular": 1.0}
LEAST_SPEED = {"gpu": 60.0, "search": 5.0}

# Stages of a fit, with the functions that are theirs; a stage within another counts for itself.
STAGES: dict[str, tuple[tuple[str, str], ...]] = {
    "checks and encoding of the input": (
        ("warpfit.estimators.fitting", "check"),
        ("warpfit.estimators.targets", "Labels.as_loss_takes"),
        ("warpfit.training.fit", "as_rows"),
    ),
    "initial values": (("warpfit.estimators.fitted", "begin"),),
    "copies to the device": (
        ("warpfit.engines.base", "TrainingData.on"),
        ("warpfit.training.fit", "state_of"),
    ),
    "plan": (("warpfit.training.precisions", "make_plan"),),
    "snapshots": (("warpfit.training.loop", "TrainingLoop._snapshot"),),
    "copies back": (
        ("warpfit.training.loop", "write_back"),
        ("warpfit.estimators.fitted", "hold"),
    ),
}
TRAINING = "training"

Fit = Callable[[], Any]


@dataclass(frozen=True)
class Sizes:
    """How large everything is; smaller for a trial."""

    rows: int = 60_000
    hidden: int = 256
    batch: int = 64
    cpu_epochs: int = 2
    gpu_epochs: int = 10
    tabular_rows: int = 1_000
    tabular_iterations: int = 200
    digits: int = 1_797
    search_iterations: int = 200


SMALL = Sizes(96, 8, 32, 1, 2, 60, 3, 120, 2)


def mnist_like(rows: int) -> tuple[Any, Any, str]:
    """Return x (rows, 784) float32 in [0, 1], labels, and what they are."""
    try:
        data = load_dataset("mnist", flat=True, download=False)
    except WarpfitError:
        rng = np.random.default_rng(0)
        labels = rng.integers(0, 10, rows)
        lit = rng.random((10, 784))[labels] * rng.random((rows, 784)) > 0.5
        return lit.astype(np.float32), labels, "made-up rows of MNIST's shape"
    return np.ascontiguousarray(data.x_train[:rows]), data.y_train[:rows], "MNIST"


def seconds_of(fit: Fit) -> float:
    start = perf_counter()
    fit()
    return perf_counter() - start


def in_turns(ours: Fit, theirs: Fit, rounds: int) -> tuple[list[float], list[float]]:
    """Return the seconds of some fits of each, after one of each that does not count."""
    ours()
    theirs()
    measured = [(seconds_of(ours), seconds_of(theirs)) for _ in range(rounds)]
    return [own for own, _ in measured], [other for _, other in measured]


def compared(ours: list[float], theirs: list[float], **more: Any) -> dict[str, Any]:
    """Return a row of results from the seconds of ours and scikit-learn's, turn by turn."""
    pairs = list(zip(ours, theirs, strict=True))
    return {
        "warpfit_seconds": spread(ours),
        "sklearn_seconds": spread(theirs),
        "ratio": spread([own / other for own, other in pairs]),
        "speed": spread([other / own for own, other in pairs]),
        **more,
    }


def epochs_of(
    kind: Any, solver: str, epochs: int, sizes: Sizes, data: tuple[Any, Any], **more: Any
) -> Fit:
    """Return a function that fits for exactly so many epochs."""
    settings = {"solver": solver, "batch_size": sizes.batch, "max_iter": epochs, "random_state": 0}
    never = {"tol": 0.0, "n_iter_no_change": epochs + 1}
    return lambda: kind((sizes.hidden,), **settings, **never, **more).fit(*data)


def measure_cpu(sizes: Sizes, rounds: int, device: str) -> dict[str, Any]:
    """Return seconds per epoch on the CPU, by solver."""
    *data, name = mnist_like(sizes.rows)
    rows, epochs = {}, sizes.cpu_epochs
    for solver in SOLVERS:
        own = epochs_of(MLPClassifier, solver, epochs, sizes, tuple(data), device="cpu")
        other = epochs_of(theirs.MLPClassifier, solver, epochs, sizes, tuple(data))
        per_epoch = (
            [seconds / epochs for seconds in measured] for measured in in_turns(own, other, rounds)
        )
        rows[f"784-{sizes.hidden}-10, {solver}, batch {sizes.batch}: an epoch on {name}"] = (
            compared(*per_epoch, largest_ratio=LARGEST_RATIO[solver])
        )
    return rows


def measure_tabular(sizes: Sizes, rounds: int, device: str) -> dict[str, Any]:
    """Return the seconds of a fit with all defaults on few rows, on the CPU."""
    X, y = make_classification(sizes.tabular_rows, 20, random_state=0)
    settings = {"random_state": 0, "max_iter": sizes.tabular_iterations}
    own, other = in_turns(
        lambda: MLPClassifier(**settings, device="cpu").fit(X, y),
        lambda: theirs.MLPClassifier(**settings).fit(X, y),
        rounds,
    )
    steps = theirs.MLPClassifier(**settings).fit(X, y).n_iter_ * -(-len(X) // min(200, len(X)))
    row = compared(own, other, largest_ratio=LARGEST_RATIO["tabular"], steps=steps)
    return {f"{len(X):,} rows of 20 features, all defaults: a fit": row}


def measure_gpu(sizes: Sizes, rounds: int, device: str) -> dict[str, Any]:
    """Return the seconds of fits on the GPU, and of as many epochs of scikit-learn's on the CPU, by
    solver.
    """
    *data, name = mnist_like(sizes.rows)
    rows, scale = {}, sizes.gpu_epochs / sizes.cpu_epochs
    for solver in SOLVERS:
        own = epochs_of(MLPClassifier, solver, sizes.gpu_epochs, sizes, tuple(data), device=device)
        other = epochs_of(theirs.MLPClassifier, solver, sizes.cpu_epochs, sizes, tuple(data))
        ours, others = in_turns(own, other, rounds)
        case = (
            f"784-{sizes.hidden}-10, {solver}, batch {sizes.batch}: {sizes.gpu_epochs} "
            f"epochs on {name}"
        )
        rows[case] = compared(
            ours,
            [seconds * scale for seconds in others],
            least_speed=LEAST_SPEED["gpu"],
            sklearn_epochs_measured=sizes.cpu_epochs,
            sklearn_epochs=sizes.gpu_epochs,
            stages=stages_of(own, rounds),
        )
    return rows


def stages_of(fit: Fit, rounds: int) -> dict[str, Any]:
    """Return the seconds of each stage of some fits."""
    measured = []
    for _ in range(rounds):
        clocks = Clocks(stages=(*STAGES, TRAINING, OTHER))
        with clocked(clocks):
            fit()
        clocks.switch()
        measured.append(clocks.seconds)
    return {stage: spread([seconds[stage] for seconds in measured]) for stage in measured[0]}


@contextmanager
def clocked(clocks: Clocks) -> Iterator[None]:
    """Let calls of all stages' functions be timed."""
    with ExitStack() as patches:

        def change(owner: Any, name: str, timed: Callable[[Any], Any]) -> None:
            patches.enter_context(mock.patch.object(owner, name, timed(getattr(owner, name))))

        for stage, functions in STAGES.items():
            for module, path in functions:
                *classes, name = path.split(".")
                owner = import_module(module)
                for each in classes:
                    owner = getattr(owner, each)
                change(owner, name, partial(clocks.timed, stage=stage))
        for engine in import_module("warpfit.training.plan").ENGINES.values():
            change(engine, "run", partial(clocks.timed_steps, stage=TRAINING))
        yield


def measure_search(sizes: Sizes, rounds: int, device: str) -> dict[str, Any]:
    """Return the seconds of a grid search, ours on the GPU, scikit-learn's with one process and
    with all.
    """
    X, y = load_digits(return_X_y=True)
    X, y = X[: sizes.digits] / 16, y[: sizes.digits]

    def search(estimator: Any, n_jobs: int) -> Any:
        return GridSearchCV(estimator, {"alpha": ALPHAS}, cv=FOLDS, n_jobs=n_jobs, refit=False).fit(
            X, y
        )

    settings = {"max_iter": sizes.search_iterations, "random_state": 0}
    own = partial(search, MLPClassifier(**settings, device=device), 1)
    rows = {}
    for n_jobs in (1, -1):
        ours, others = in_turns(
            own, partial(search, theirs.MLPClassifier(**settings), n_jobs), rounds
        )
        case = (
            f"grid search of {len(ALPHAS)} x {FOLDS} fits on digits, scikit-learn with "
            f"n_jobs={n_jobs}"
        )
        goal = {"least_speed": LEAST_SPEED["search"]} if n_jobs == 1 else {}
        rows[case] = compared(ours, others, **goal)
    return rows


PARTS = {
    "cpu": measure_cpu,
    "tabular": measure_tabular,
    "gpu": measure_gpu,
    "search": measure_search,
}


def blas_threads() -> int:
    """Return how many threads the products of this process take."""
    return max(
        (pool["num_threads"] for pool in threadpool_info() if pool["user_api"] == "blas"), default=1
    )


def measure(parts: list[str], sizes: Sizes, rounds: int, device: str) -> dict[str, Any]:
    """Return the results of some parts by name, each with the machine that it was measured on."""
    results = {}
    for part in parts:
        rows = PARTS[part](sizes, rounds, device)
        results[part] = {
            "environment": environment(),
            "rounds": rounds,
            "blas_threads": blas_threads(),
            "rows": rows,
        }
        for case, row in rows.items():
            print(line_of(case, row), flush=True)
    return results


def line_of(case: str, row: dict[str, Any]) -> str:
    """Return a comparison in a line, with the stages of our fit below it."""
    goal = (
        f"at most {row['largest_ratio']:.2f} of it"
        if "largest_ratio" in row
        else f"at least {row['least_speed']:.0f} times as quick"
        if "least_speed" in row
        else "nothing"
    )
    text = (
        f"{case}: warpfit {row['warpfit_seconds']['median']:.3f} s, scikit-learn "
        f"{row['sklearn_seconds']['median']:.3f} s, ratio {row['ratio']['median']:.3f} "
        f"({row['ratio']['min']:.3f} to {row['ratio']['max']:.3f}), {row['speed']['median']:.1f} "
        f"times as quick; hoped for: {goal}"
    )
    stages = row.get("stages", {})
    return "\n".join(
        [
            text,
            *(
                f"    {seconds['median'] * 1e3:8.2f} ms {stage}"
                for stage, seconds in stages.items()
            ),
        ]
    )


def kept_parts() -> dict[str, Any]:
    """Return the parts that an older file has."""
    path = RESULTS / "estimators.json"
    kept: dict[str, Any] = (
        json.loads(path.read_text(encoding="utf-8"))["parts"] if path.exists() else {}
    )
    return kept


def parts_that_run(device: str) -> list[str]:
    """Return all parts, or those of the CPU where the device is missing."""
    from warpfit.backends.cuda.runtime import why_unavailable

    if not device.startswith("cuda") or (reason := why_unavailable()) is None:
        return list(PARTS)
    print(f"CPU only: {reason}", flush=True)
    return ["cpu", "tabular"]


def main() -> None:
    parser = Options(__doc__)
    parser.add_argument("--parts", type=names(PARTS), help="some of " + ", ".join(PARTS))
    parser.add_argument(
        "--rounds", type=int, default=5, help="fits of each program for each comparison"
    )
    parser.add_argument("--small", action="store_true", help=argparse.SUPPRESS)
    parser.add_argument("--device", default="cuda", help=argparse.SUPPRESS)
    arguments = parser.parse_args()
    # Runs end after a given number of epochs; also in the processes of a search.
    warnings.simplefilter("ignore")
    os.environ["PYTHONWARNINGS"] = "ignore"
    sizes = SMALL if arguments.small else Sizes()
    parts = arguments.parts or parts_that_run(arguments.device)
    measured = measure(parts, sizes, arguments.rounds, arguments.device)
    if not arguments.small:
        print(f"written to {write_results('estimators', {'parts': kept_parts() | measured})}")


if __name__ == "__main__":
    run_command(main)
