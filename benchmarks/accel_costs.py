"""What does `warpfit.accel` cost on a CPU where there is nothing for it to gain?

CPU seconds, the least of some rounds in turns, with accel and without:

* the start of a script that imports NumPy, and trains no perceptron, by `python -m warpfit.accel`;
* a fit of a subclass, which falls back to scikit-learn, and a cross-validation of two such fits;
* the first fit of a process, which imports what trains.

    python benchmarks/accel_costs.py [--rounds 12]
"""

from __future__ import annotations

import argparse
import json
import os
import resource
import subprocess
import sys
import warnings
from collections.abc import Callable
from pathlib import Path
from tempfile import TemporaryDirectory
from time import process_time
from typing import Any

from harness import ROOT, Options, run_command, run_worker, write_results

CALLS = 200  # of what takes milliseconds
ROWS, FEATURES = 40, 4


def started(words: list[str]) -> float:
    """Return the CPU seconds of a process of Python's."""
    before = resource.getrusage(resource.RUSAGE_CHILDREN)
    subprocess.run([sys.executable, *words], check=True, stderr=subprocess.DEVNULL)
    after = resource.getrusage(resource.RUSAGE_CHILDREN)
    return after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime


def start_up(rounds: int) -> dict[str, float]:
    """Return the CPU seconds of a script that trains nothing."""
    with TemporaryDirectory() as folder:
        script = Path(folder) / "script.py"
        script.write_text("import numpy\n", encoding="utf-8")
        turns = [
            (started([str(script)]), started(["-m", "warpfit.accel", str(script)]))
            for _ in range(rounds)
        ]
    return least_of(turns)


def least_of(turns: list[tuple[float, float]]) -> dict[str, float]:
    """Return the least seconds of both, without and with accel."""
    without, with_accel = (min(times) for times in zip(*turns, strict=True))
    return {"without_seconds": without, "with_seconds": with_accel}


def in_processes(what: str, rounds: int) -> dict[str, float]:
    """Return the CPU seconds of something in new processes."""
    return least_of(
        [
            tuple(
                run_worker(__file__, "--worker", what, *given)["seconds"]
                for given in ([], ["--accel"])
            )  # type: ignore[misc]
            for _ in range(rounds)
        ]
    )


# -- in a process
# -------------------------------------------------------------------------------------------------


def first_fit() -> float:
    """Return the CPU seconds of a process's first fit."""
    from sklearn.neural_network import MLPClassifier

    x, y = data()
    return seconds_of(lambda: MLPClassifier((3,), max_iter=1, random_state=0).fit(x, y))


def falling_back() -> float:
    """Return the least CPU seconds of a fit that falls back."""
    x, y = data()
    own = falls_back()
    return min(seconds_of(lambda: own.fit(x, y)) for _ in range(CALLS))


def cross_validation() -> float:
    """Return the least CPU seconds of a cross-validation whose two fits fall back."""
    from sklearn.model_selection import cross_val_score

    x, y = data()
    own = falls_back()
    return min(seconds_of(lambda: cross_val_score(own, x, y, cv=2)) for _ in range(CALLS // 4))


def falls_back() -> Any:
    """Return a perceptron of a subclass that overrides an inner method."""
    from sklearn.neural_network import MLPClassifier

    class Own(MLPClassifier):  # type: ignore[misc]
        def _backprop(self, *given: Any, **named: Any) -> Any:
            return super()._backprop(*given, **named)

    return Own((3,), max_iter=1, random_state=0, solver="sgd")


def data() -> tuple[Any, Any]:
    import numpy as np

    x = np.random.default_rng(0).normal(size=(ROWS, FEATURES))
    return x, (x[:, 0] > 0).astype(int)


def seconds_of(call: Callable[[], Any]) -> float:
    start = process_time()
    call()
    return process_time() - start


WORKERS: dict[str, Callable[[], float]] = {
    "first fit": first_fit,
    "fallback": falling_back,
    "cross-validation": cross_validation,
}
LABELS = {
    "start": "start of `python -m warpfit.accel` without perceptrons",
    "fallback": "a fit that falls back",
    "cross-validation": "a cross-validation that falls back, of two fits",
    "first fit": "the first fit of a process, which imports what trains",
}


def table(results: dict[str, Any]) -> str:
    """Return the table of docs/accel.md."""
    lines = ["| CPU milliseconds | without | with accel | more |", "|---|---|---|---|"]
    for name, label in LABELS.items():
        without, own = (
            1e3 * results["rows"][name][key] for key in ("without_seconds", "with_seconds")
        )
        lines.append(f"| {label} | {without:.2f} | {own:.2f} | {own - without:.2f} |")
    return "\n".join(lines) + "\n"


def work(what: str, *, accelerated: bool) -> None:
    """Print the seconds of something, as JSON."""
    from warpfit import accel

    if accelerated:
        accel.install()
    warnings.simplefilter("ignore")
    print(json.dumps({"seconds": WORKERS[what]()}))


def main() -> None:
    parser = Options(__doc__)
    parser.add_argument("--rounds", type=int, default=12)
    parser.add_argument("--worker", choices=WORKERS, help=argparse.SUPPRESS)
    parser.add_argument("--accel", action="store_true", help=argparse.SUPPRESS)
    arguments = parser.parse_args()
    if arguments.worker:
        work(arguments.worker, accelerated=arguments.accel)
        return
    os.environ["OPENBLAS_NUM_THREADS"] = "1"
    os.environ["WARPFIT_DEVICE"] = "cpu"
    os.environ["PYTHONPATH"] = os.pathsep.join(
        [str(ROOT / "src"), *filter(None, [os.environ.get("PYTHONPATH")])]
    )
    few = max(1, arguments.rounds // 4)
    rows = {"start": start_up(arguments.rounds)}
    for what in WORKERS:
        rows[what] = in_processes(what, arguments.rounds if what == "first fit" else few)
    for name, row in rows.items():
        print(
            f"{name:18} {1e3 * row['without_seconds']:8.2f} ms, "
            f"with accel {1e3 * row['with_seconds']:8.2f}"
        )
    print(write_results("accel_costs", {"rows": rows}))


if __name__ == "__main__":
    run_command(main)
