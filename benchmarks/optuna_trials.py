"""What do a thousand trials of Optuna's take by batches, beside one after the other?

The parts:

* ours: a study of 784-width-10 on MNIST, 3 epochs each, whose learning rate, momentum, weight
  decay, width and batch size TPE suggests, by `warpfit.optuna.optimize`: a new process with an
  empty kernel cache, and one with a warm cache. Optuna's own seconds (asking, suggesting,
  reporting, telling) are told apart from those of building and training.
* journal, sqlite: the same in a journal file, and in SQLite, after a first batch.
* one-by-one: the same by `study.optimize` with `wf.fit`, extrapolated from 20 trials.
* torch: the same with PyTorch's eager loop, likewise extrapolated.
* values: the best loss on scikit-learn's digits by batches and one after the other, with equal
  trials, over ten seeds: results/optuna_values.json.

Prints a line for each, and writes results/optuna.json after each: parts may be measured by several
calls, at one commit.

    python benchmarks/optuna_trials.py [--parts ours,journal,sqlite,one-by-one,torch,values]
    [--trials 1000] [--batch 256] [--rows 60000] [--device cuda] [--measured 20]
"""

from __future__ import annotations

import argparse
import json
import os
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, replace
from importlib import import_module
from pathlib import Path
from tempfile import TemporaryDirectory
from time import perf_counter
from typing import Any

import numpy as np

from harness import (
    Options,
    caches_in,
    environment,
    names,
    read_results,
    run_command,
    run_worker,
    write_results,
)
from one_launch import MNIST_PIXELS, mnist, reason

PARTS = ("ours", "journal", "sqlite", "one-by-one", "torch", "values")
WIDTHS, BATCH_SIZES, EPOCHS = (32, 64, 96, 128), (16, 32, 64), 3
GIVEN = ("trials", "batch", "rows", "device")  # arguments of the command
MEASURED = 20  # trials that others are extrapolated from, unless that is said
SEEDS = 10

Rows = tuple[Any, Any]


@dataclass(frozen=True)
class Settings:
    """What is suggested for a trial."""

    lr: float
    momentum: float
    weight_decay: float
    width: int
    batch_size: int

    @staticmethod
    def of(trial: Any) -> Settings:
        return Settings(
            lr=trial.suggest_float("lr", 1e-3, 1.0, log=True),
            momentum=trial.suggest_float("momentum", 0.0, 0.95),
            weight_decay=trial.suggest_float("weight_decay", 1e-6, 1e-2, log=True),
            width=trial.suggest_categorical("width", WIDTHS),
            batch_size=trial.suggest_categorical("batch_size", BATCH_SIZES),
        )


@dataclass
class Task:
    """The data, and how many trials are made of them."""

    train: Rows
    held_out: Rows
    trials: int
    batch: int
    device: str
    most_measured: int = MEASURED

    @property
    def sizes(self) -> tuple[int, int]:
        return self.train[0].shape[1], int(self.train[1].max()) + 1

    @property
    def measured(self) -> int:
        """Trials of a program that takes them one after the other."""
        return min(self.most_measured, self.trials)


def new_study(seed: int = 0, **settings: Any) -> Any:
    import optuna

    optuna.logging.set_verbosity(optuna.logging.WARNING)
    sampler = optuna.samplers.TPESampler(seed=seed, constant_liar=True)
    pruner = optuna.pruners.NopPruner()
    return optuna.create_study(sampler=sampler, pruner=pruner, **settings)


# -- programs
# -------------------------------------------------------------------------------------------------


class Build:
    """Builds trials' networks, and knows how long it suggested and how long it built."""

    def __init__(self, sizes: tuple[int, int]) -> None:
        self.sizes = sizes
        self.suggest_seconds = self.build_seconds = 0.0

    def __call__(self, trial: Any) -> Any:
        from warpfit import nn, optim

        start = perf_counter()
        found = Settings.of(trial)
        suggested = perf_counter()
        features, classes = self.sizes
        model = nn.Sequential(
            nn.Linear(features, found.width), nn.ReLU(), nn.Linear(found.width, classes)
        )
        optimizer = optim.SGD(
            model.parameters(), found.lr, found.momentum, weight_decay=found.weight_decay
        )
        self.suggest_seconds += suggested - start
        self.build_seconds += perf_counter() - suggested
        return model, optimizer, {"batch_size": found.batch_size}


def by_batches(task: Task, storage: Any = None) -> dict[str, Any]:
    """Return seconds and best value of a study by `warpfit.optuna.optimize`."""
    import warpfit as wf

    study, build = new_study(storage=storage), Build(task.sizes)
    start = perf_counter()
    found = wf.optuna.optimize(
        study,
        build,
        *task.train,
        n_trials=task.trials,
        batch=task.batch,
        validation_data=task.held_out,
        epochs=EPOCHS,
        device=task.device,
    )
    seconds = perf_counter() - start
    failed = sum(trial.value is None for trial in study.get_trials(deepcopy=False))
    return {
        "seconds": seconds,
        "optuna_seconds": found.ask_seconds - build.build_seconds + found.tell_seconds,
        "suggest_seconds": build.suggest_seconds,
        "build_seconds": build.build_seconds,
        "train_seconds": found.train_seconds,
        "best": study.best_value,
        "failed": failed,
    }


def first_of_processes(arguments: argparse.Namespace) -> dict[str, Any]:
    """Return `by_batches` of a process with a warm kernel cache, and of one with an empty cache."""
    given = [f"--{name}={getattr(arguments, name)}" for name in GIVEN]
    with (
        TemporaryDirectory() as cache,
        variables(**caches_in(cache)),
    ):
        empty, warm = (run_worker(__file__, "--worker", *given) for _ in range(2))
    return {**warm, "empty_cache": empty}


@contextmanager
def variables(**values: str) -> Iterator[None]:
    """Set variables of the environment in this block."""
    before = os.environ.copy()
    os.environ.update(values)
    try:
        yield
    finally:
        os.environ.clear()
        os.environ.update(before)


def warmed_up(task: Task, storage: Any) -> dict[str, Any]:
    """Return `by_batches` after a first batch, whose kernels are compiled."""
    by_batches(replace(task, trials=min(task.batch, task.trials)))
    return by_batches(task, storage)


def in_journal(task: Task) -> dict[str, Any]:
    """Return `warmed_up` in a journal file."""
    from optuna.storages import JournalStorage
    from optuna.storages.journal import JournalFileBackend

    with TemporaryDirectory() as folder:
        return warmed_up(task, JournalStorage(JournalFileBackend(str(Path(folder) / "study.log"))))


def in_sqlite(task: Task) -> dict[str, Any]:
    """Return `warmed_up` in SQLite."""
    with TemporaryDirectory() as folder:
        return warmed_up(task, f"sqlite:///{folder}/study.db")


def extrapolated(task: Task, objective: Callable[[Any], float]) -> dict[str, Any]:
    """Return what a study of all trials would take, from some of them after a first."""
    study = new_study()
    study.optimize(objective, n_trials=1)
    start = perf_counter()
    study.optimize(objective, n_trials=task.measured)
    each = (perf_counter() - start) / task.measured
    return {
        "seconds": each * task.trials,
        "trial_seconds": each,
        "extrapolated_from": task.measured,
    }


def one_by_one(task: Task) -> dict[str, Any]:
    """Return what `study.optimize` with `wf.fit` takes."""
    import warpfit as wf

    build = Build(task.sizes)

    def objective(trial: Any) -> float:
        model, optimizer, settings = build(trial)
        try:
            history = wf.fit(
                model,
                *task.train,
                optimizer=optimizer,
                epochs=EPOCHS,
                validation_data=task.held_out,
                device=task.device,
                verbose=False,
                **settings,
            )
        except wf.errors.DivergedError:
            return float("nan")
        return float(history["val_loss"][-1])

    return extrapolated(task, objective)


def by_torch(task: Task) -> dict[str, Any]:
    """Return what `study.optimize` with PyTorch's eager loop takes, data on the device once."""
    torch = import_module("torch")
    peer = import_module("peers.torch_eager")
    x, y, held_x, held_y = (
        torch.from_numpy(np.ascontiguousarray(array)).to(task.device)
        for array in (*task.train, *task.held_out)
    )

    def objective(trial: Any) -> float:
        found = Settings.of(trial)
        features, classes = task.sizes
        model = peer.mlp((features, found.width, classes)).to(task.device)
        optimizer = torch.optim.SGD(
            model.parameters(),
            lr=found.lr,
            momentum=found.momentum,
            weight_decay=found.weight_decay,
            fused=True,
        )
        for _ in range(EPOCHS):
            for rows in torch.randperm(len(x), device=x.device).split(found.batch_size):
                optimizer.zero_grad(set_to_none=True)
                torch.nn.functional.cross_entropy(model(x[rows]), y[rows]).backward()
                optimizer.step()
            with torch.no_grad():
                loss = torch.nn.functional.cross_entropy(model(held_x), held_y)
        return float(loss.item())

    return extrapolated(task, objective)


def best_values(task: Task) -> dict[str, Any]:
    """Return the best losses of studies by batches, and one after the other, with equal trials."""
    import warpfit as wf

    found: dict[str, Any] = {"trials": task.trials, "batch": task.batch}
    for name, batch in (("by_batches", task.batch), ("one_by_one", 1)):
        values = []
        for seed in range(SEEDS):
            study = new_study(seed)
            wf.optuna.optimize(
                study,
                Build(task.sizes),
                *task.train,
                n_trials=task.trials,
                batch=batch,
                validation_data=task.held_out,
                epochs=EPOCHS,
                device=task.device,
                n_jobs=1,
            )
            values.append(study.best_value)
        found[name] = values
    return found


# -- data
# -------------------------------------------------------------------------------------------------


def task_of_mnist(arguments: argparse.Namespace) -> Task:
    x, y = mnist("train")
    rows = slice(arguments.rows)
    return Task(
        (x[rows], y[rows]),
        mnist("test"),
        arguments.trials,
        arguments.batch,
        arguments.device,
        arguments.measured,
    )


def task_of_digits(arguments: argparse.Namespace) -> Task:
    """Return the trials of `best_values`: fewer, on fewer rows, by batches of a sixteenth."""
    from sklearn.datasets import load_digits

    x, y = load_digits(return_X_y=True)
    x = (x / 16).astype(np.float32)
    trials = max(1, arguments.trials // 10)
    return Task(
        (x[:1200], y[:1200]), (x[1200:], y[1200:]), trials, max(1, trials // 16), arguments.device
    )


# -- results
# -------------------------------------------------------------------------------------------------

LABELS = {
    "empty": "`wf.optuna.optimize`, empty kernel cache",
    "ours": "`wf.optuna.optimize`, warm kernel cache",
    "journal": "the same, in a journal file",
    "sqlite": "the same, in SQLite",
    "one-by-one": "`study.optimize` with `wf.fit`",
    "torch": "`study.optimize` with PyTorch, eager",
}


def table(results: dict[str, Any]) -> str:
    """Return the table of docs/optuna.md."""
    head = f"{results['trials']:,} trials of {MNIST_PIXELS}-width-10, {EPOCHS} epochs"
    lines = [f"| {head} | seconds | Optuna's own | |", "|---|---|---|---|"]
    parts = results["parts"]
    cells = {"empty": parts.get("ours", {}).get("empty_cache", {}), **parts}
    for name, label in LABELS.items():
        cell = cells.get(name, {})
        if "seconds" in cell:
            own = f"{cell['optuna_seconds']:.1f}" if "optuna_seconds" in cell else "-"
            of = cell.get("extrapolated_from")
            how = f"extrapolated from {of} trials" if of else "measured"
            lines.append(f"| {label} | {cell['seconds']:.1f} | {own} | {how} |")
        elif "reason" in cell:
            lines.append(f"| {label} | - | - | {cell['reason']} |")
    return "\n".join(lines) + "\n"


def table_of_values(results: dict[str, Any]) -> str:
    """Return the table of docs/optuna.md that compares best values, seed by seed."""
    ours, others = (np.asarray(results[name]) for name in ("by_batches", "one_by_one"))
    better, count = int((ours < others).sum()), len(ours)
    difference = ours - others
    error = float(difference.std(ddof=1) / np.sqrt(count))
    head = f"best loss of {results['trials']} trials on digits"
    lines = [f"| {head} | mean of {count} seeds | least | most |", "|---|---|---|---|"]
    rows = [(f"by batches of {results['batch']}", ours), ("one by one", others)]
    for label, values in (*rows, ("difference of a seed", difference)):
        numbers = " | ".join(f"{number:.4f}" for number in (values.mean(), *_ends(values)))
        lines.append(f"| {label} | {numbers} |")
    words = (
        f"The mean difference has a standard error of {error:.4f}; batches were better in "
        f"{better} of {count} seeds."
    )
    return "\n".join(lines) + f"\n\n{words}\n"


def _ends(values: Any) -> tuple[float, float]:
    return float(values.min()), float(values.max())


# -- the command
# -------------------------------------------------------------------------------------------------


def parsed(given: list[str] | None = None) -> argparse.Namespace:
    parser = Options(__doc__)
    parser.add_argument("--parts", type=names(PARTS), default=list(PARTS))
    parser.add_argument("--trials", type=int, default=1000)
    parser.add_argument("--batch", type=int, default=256, help="trials that are trained at a time")
    parser.add_argument("--rows", type=int, default=60_000, help="to train on")
    parser.add_argument("--device", default="cuda")
    parser.add_argument(
        "--measured", type=int, default=MEASURED, help="trials that others are extrapolated from"
    )
    parser.add_argument("--worker", action="store_true", help="print what a process takes, as JSON")
    return parser.parse_args(given)


def measure(arguments: argparse.Namespace) -> dict[str, Any]:
    """Measure the parts, write the results after each, and return them."""
    programs: dict[str, Callable[[Task], dict[str, Any]]] = {
        "journal": in_journal,
        "sqlite": in_sqlite,
        "one-by-one": one_by_one,
        "torch": by_torch,
        "values": best_values,
    }
    given = {name: getattr(arguments, name) for name in GIVEN}
    space = {"widths": WIDTHS, "batch_sizes": BATCH_SIZES, "epochs": EPOCHS}
    results: dict[str, Any] = {**given, "space": space, "commit": environment()["commit"]}
    earlier = read_results("optuna")
    is_same = all(earlier.get(name) == results[name] for name in (*given, "commit"))
    results["parts"] = earlier["parts"] if is_same else {}
    for part in arguments.parts:
        task_of = task_of_digits if part == "values" else task_of_mnist
        results["parts"][part] = (
            first_of_processes(arguments)
            if part == "ours"
            else found_by(programs[part], task_of, arguments)
        )
        print(f"{part}: {json.dumps(results['parts'][part])}", flush=True)
        if parts := _but_values(results["parts"]):
            write_results("optuna", {**results, "parts": parts})
        if "by_batches" in (values := results["parts"].get("values", {})):
            write_results("optuna_values", {"device": arguments.device, **values})
    return results


def found_by(
    program: Callable[[Task], dict[str, Any]],
    task_of: Callable[[argparse.Namespace], Task],
    arguments: argparse.Namespace,
) -> dict[str, Any]:
    """Return what a program measures, or why it cannot."""
    try:
        return program(task_of(arguments))
    except Exception as error:
        return {"reason": reason(error)}


def _but_values(parts: dict[str, Any]) -> dict[str, Any]:
    return {name: cell for name, cell in parts.items() if name != "values"}


def main() -> None:
    arguments = parsed()
    if arguments.worker:
        print(json.dumps(found_by(by_batches, task_of_mnist, arguments)))
    else:
        measure(arguments)


if __name__ == "__main__":
    run_command(main)
