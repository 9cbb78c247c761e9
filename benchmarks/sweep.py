"""What does a network of a sweep cost, beside the strongest programs that others offer for many
networks at once?

The parts:

* ours, peers: N networks of one shape, which differ in learning rate, order and initial values, by
  plain SGD. Microseconds per network and step are an epoch's wall time (orders, gathering, losses
  and reading these included) over N and its steps. Ours is what an epoch adds to a call of
  `fit_many`: the difference between calls of two lengths. JAX (vmap over scan) and PyTorch (batched
  products, compiled, in CUDA graphs) leave the shorter last batch out; each also with one order for
  all networks, which is less to do.
* search: 200 candidates x 5 folds of 784-64-10 on MNIST, 5 epochs each: whole calls of `fit_many`
  and `SweepCV`, beside scikit-learn's `GridSearchCV` and PyTorch one network after the other, of
  which a few fits are measured and extrapolated.
* curve: what an epoch takes over N, and the card's limits.

Prints a line for each measurement, and writes results/sweep.json after each. What the file holds
from the same GPU and packages stays: peers are measured once, unless with --again; ours of another
commit goes.

    python benchmarks/sweep.py [--parts ours,peers,search,curve] [--rows 784-128-10/64x1024]
    [--minutes 9]
"""

from __future__ import annotations

import argparse
import copy
import gc
import json
import os
from collections.abc import Callable
from dataclasses import dataclass
from importlib import import_module
from itertools import pairwise
from math import ceil
from time import perf_counter
from typing import Any

import numpy as np

from harness import RESULTS, Options, environment, names, origin_of, run_command, write_results
from one_launch import (
    CLOCK_HZ,
    MMA_CYCLES,
    MMA_FLOP,
    MNIST_PIXELS,
    SUB_CORES,
    TURNS,
    PeerKind,
    Program,
    made_up_classes,
    measured,
    mnist,
    print_programs,
    reason,
    summarised,
    with_earlier,
)

PARTS = ("ours", "peers", "search", "curve")
OURS = ("float16", "bfloat16")
RATES = (0.02, 0.2)  # the lowest and the highest of a sweep
EPOCHS = 2  # of a peer's turn
# By so many epochs two calls of ours differ: as many as take tensor cores so many seconds, lest
# what the host's part of both varies by is seen.
FLOOR_SECONDS, MOST_EPOCHS = 1.0, 300
CURVE_NETWORKS = (1, 4, 16, 64, 128, 256, 512, 1024, 2048)
MULTIPROCESSORS = 132  # of an H200


@dataclass(frozen=True)
class Case:
    """Networks of one shape: what a row measures."""

    sizes: tuple[int, ...]
    batch: int
    networks: int
    num_rows: int

    @property
    def network(self) -> str:
        return "-".join(map(str, self.sizes))

    @property
    def name(self) -> str:
        return f"{self.network}/{self.batch}x{self.networks}"

    @property
    def rates(self) -> Any:
        return np.geomspace(*RATES, self.networks).astype(np.float32)

    @property
    def epochs(self) -> int:
        """By how many epochs two calls of ours differ."""
        of_epoch = self.floor_us * 1e-6 * self.networks * self.num_rows / self.batch
        return min(MOST_EPOCHS, ceil(FLOOR_SECONDS / of_epoch))

    @property
    def floor_us(self) -> float:
        """Microseconds per network and step that tensor cores need for the products, all of them at
        work.
        """
        products = [inputs * outputs for inputs, outputs in pairwise(self.sizes)]
        flop = (
            2 * self.batch * (3 * sum(products) - products[0])
        )  # the first layer has no gradient of its input
        a_cycle = MULTIPROCESSORS * SUB_CORES * MMA_FLOP / MMA_CYCLES
        return flop / a_cycle / CLOCK_HZ * 1e6


MNIST_SIZES = (MNIST_PIXELS, 128, 10)
CASES = (
    *(Case(MNIST_SIZES, 64, networks, 60_000) for networks in (64, 256, 1024)),
    Case((32, 64, 64, 2), 128, 4096, 12_800),
)


PEERS = {
    "jax_vmap": PeerKind("JAX vmap over scan", "jax_vmap", {}),
    "jax_vmap_8": PeerKind("JAX vmap over scan, unroll=8", "jax_vmap", {"unroll": 8}),
    "torch_bmm": PeerKind("PyTorch bmm, compile + CUDA graph", "torch_bmm", {}),
    "jax_vmap_shared": PeerKind(
        "JAX vmap over scan, one order", "jax_vmap", {"has_own_orders": False}
    ),
    "torch_bmm_shared": PeerKind(
        "PyTorch bmm, compile + CUDA graph, one order", "torch_bmm", {"has_own_orders": False}
    ),
}


def rows_of(case: Case) -> tuple[Any, Any]:
    features, classes = case.sizes[0], case.sizes[-1]
    x, y = mnist("train") if features == MNIST_PIXELS else made_up_classes(features, classes)
    return x[: case.num_rows], y[: case.num_rows]


# -- programs
# -------------------------------------------------------------------------------------------------


class Peer:
    """A program of `peers`, on rows x and targets y."""

    def __init__(
        self, kind: PeerKind, case: Case, precision: str, x: Any, y: Any, device: str
    ) -> None:
        self.kind, self.case, self.precision, self.x, self.y = kind, case, precision, x, y
        self.device = device
        self.trainer: Any = None

    def start(self) -> tuple[float, float]:
        module = import_module(
            f"peers.{self.kind.module}"
        )  # imports and devices are not the first call's
        settings = dict(self.kind.settings)
        if hasattr(module, "torch"):
            settings["device"] = self.device
        case, start = self.case, perf_counter()
        self.trainer = module.Trainer(
            case.sizes,
            self.x,
            self.y,
            rates=case.rates,
            batch_size=case.batch,
            precision=self.precision,
            **settings,
        )
        losses, _ = self.trainer.epoch()
        return perf_counter() - start, float(losses.mean())

    def turn(self) -> list[float]:
        times = []
        for _ in range(EPOCHS):
            start = perf_counter()
            self.trainer.epoch()
            times.append(perf_counter() - start)
        return times

    @property
    def steps(self) -> int:
        """Steps of all networks in an epoch."""
        return int(self.trainer.steps) * self.case.networks


class Ours:
    """`fit_many`; a turn is two calls, of which the longer has the case's epochs more."""

    def __init__(self, case: Case, precision: str, x: Any, y: Any, device: str) -> None:
        from warpfit import nn

        self.case, self.precision, self.x, self.y, self.device = case, precision, x, y, device
        *hidden, last = pairwise(case.sizes)
        layers = [layer for fans in hidden for layer in (nn.Linear(*fans), nn.ReLU())]
        self.model = nn.Sequential(*layers, nn.Linear(*last))
        self.sweep: Any = None

    def start(self) -> tuple[float, float]:
        seconds = self.fit(1)
        return seconds, float(np.mean([record["loss"] for record in self.sweep]))

    def turn(self) -> list[float]:
        short = self.fit(1)
        epochs = self.case.epochs
        return [(self.fit(1 + epochs) - short) / epochs]

    @property
    def steps(self) -> int:
        """Steps of all networks in an epoch."""
        return -(-len(self.x) // self.case.batch) * self.case.networks

    def fit(self, epochs: int) -> float:
        """Train all networks, keep the sweep, and return its seconds."""
        import warpfit as wf

        start = perf_counter()
        self.sweep = wf.fit_many(
            self.build,
            self.x,
            self.y,
            candidates=[
                {"lr": float(rate), "seed": seed} for seed, rate in enumerate(self.case.rates)
            ],
            epochs=epochs,
            batch_size=self.case.batch,
            device=self.device,
            precision=self.precision,
            report_every=epochs,
            n_jobs=1,
            keep_models=False,
            verbose=False,
        )
        return perf_counter() - start

    def build(self, candidate: dict[str, Any]) -> tuple[Any, Any]:
        """Return a copy of one network: drawing initial values is not what is measured."""
        from warpfit import optim

        model = copy.deepcopy(self.model)
        return model, optim.SGD(model.parameters(), lr=candidate["lr"])


# -- rows and curve
# -------------------------------------------------------------------------------------------


def row_of(
    case: Case, old: dict[str, Any], arguments: argparse.Namespace, deadline: float, origin: Any
) -> dict[str, Any]:
    """Return a row, with what an older one holds and is not measured again."""
    x, y = rows_of(case)
    kept: dict[str, Any] = old.get("programs", {})
    programs: dict[str, Program] = {}
    if "ours" in arguments.parts:
        for precision in arguments.ours:
            programs[f"warpfit {precision}"] = Ours(case, precision, x, y, arguments.device)
    for name in arguments.peers if "peers" in arguments.parts else ():
        for precision in arguments.precisions or PEERS[name].precisions:
            if arguments.again or "us" not in kept.get(f"{name} {precision}", {}):
                programs[f"{name} {precision}"] = Peer(
                    PEERS[name], case, precision, x, y, arguments.device
                )
    cells = {}
    for name in list(programs):  # one at a time: together their networks may fill the card
        program = programs.pop(name)
        cells |= {
            key: {**cell, "turns": arguments.turns, **origin}
            for key, cell in measured({name: program}, deadline, arguments.turns).items()
        }
        if isinstance(program, Ours) and program.sweep is not None:
            cells[name]["plan"] = str(program.sweep.plan)
        gc.collect()
    row = {
        "network": case.network,
        "batch": case.batch,
        "networks": case.networks,
        "rows": len(x),
        "floor_us": case.floor_us,
        "programs": {**kept, **cells},
    }
    return summarised(row)


def curve(arguments: argparse.Namespace, deadline: float) -> dict[str, Any]:
    """Return seconds that an epoch takes by the number of networks, of ours and of JAX's usual
    program.
    """
    points: dict[str, Any] = {}
    for networks in CURVE_NETWORKS:
        case = Case(MNIST_SIZES, 64, networks, 60_000)
        x, y = rows_of(case)
        programs: dict[str, Program] = {
            f"warpfit {OURS[0]}": Ours(case, OURS[0], x, y, arguments.device),
            "jax_vmap bfloat16": Peer(PEERS["jax_vmap"], case, "bfloat16", x, y, arguments.device),
        }
        point: dict[str, Any] = {"floor": case.floor_us * networks * len(x) / case.batch * 1e-6}
        for name, program in programs.items():
            if perf_counter() > deadline:
                continue
            try:
                program.start()
                point[name] = min(program.turn())
            except Exception as error:
                point[name] = reason(error)
        points[str(networks)] = point
        print(f"{networks} networks: {json.dumps(point)}", flush=True)
    return points


# -- the search
# -----------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Search:
    """A search for a good network on MNIST; smaller for a trial."""

    candidates: int = 200
    folds: int = 5
    epochs: int = 5
    hidden: int = 64
    batch: int = 64
    num_rows: int = 60_000
    measured_fits: int = 5

    @property
    def fits(self) -> int:
        return self.candidates * self.folds

    @property
    def rates(self) -> list[float]:
        return [float(rate) for rate in np.geomspace(0.01, 0.5, self.candidates)]

    @property
    def rows(self) -> tuple[Any, Any]:
        x, y = mnist("train")
        return x[: self.num_rows], y[: self.num_rows]


def searched(search: Search, arguments: argparse.Namespace, deadline: float) -> dict[str, Any]:
    """Return the seconds of the search by each program, or the reason why there are none."""
    programs: dict[str, Callable[[Search, argparse.Namespace], dict[str, Any]]] = {
        "fit_many": search_by_fit_many,
        "GridSearchCV": search_by_sklearn,
        "PyTorch, one after the other": search_by_torch,
        "SweepCV": search_by_sweep_cv,
    }
    found: dict[str, Any] = {}
    for name, run in programs.items():
        if perf_counter() > deadline:
            print(f"no time left for {name}", flush=True)
            continue
        try:
            found[name] = run(search, arguments)
        except Exception as error:
            found[name] = {"reason": reason(error)}
        print(f"{name}: {json.dumps(found[name])}", flush=True)
        gc.collect()
    return {
        "candidates": search.candidates,
        "folds": search.folds,
        "epochs": search.epochs,
        "programs": found,
    }


def search_by_fit_many(search: Search, arguments: argparse.Namespace) -> dict[str, Any]:
    import warpfit as wf

    def build(candidate: dict[str, Any]) -> tuple[Any, Any]:
        model = wf.nn.Sequential(
            wf.nn.Linear(MNIST_PIXELS, search.hidden), wf.nn.ReLU(), wf.nn.Linear(search.hidden, 10)
        )
        return model, wf.optim.SGD(model.parameters(), lr=candidate["lr"])

    start = perf_counter()
    sweep = wf.fit_many(
        build,
        *search.rows,
        grid={"lr": search.rates},
        folds=search.folds,
        epochs=search.epochs,
        batch_size=search.batch,
        device=arguments.device,
        report_every=search.epochs,
        keep_models=False,
        verbose=False,
    )
    best = max(summary["score"] for summary in sweep.candidates if summary["score"] is not None)
    return {"seconds": perf_counter() - start, "best": best, "plan": str(sweep.plan)}


def perceptron(search: Search, kind: Any, **settings: Any) -> Any:
    """Return an estimator, ours or scikit-learn's, that trains for all epochs by plain SGD."""
    return kind(
        (search.hidden,),
        solver="sgd",
        momentum=0.0,
        nesterovs_momentum=False,
        alpha=0.0,
        batch_size=search.batch,
        max_iter=search.epochs,
        tol=0.0,
        n_iter_no_change=search.epochs + 1,
        random_state=0,
        **settings,
    )


def search_by_sweep_cv(search: Search, arguments: argparse.Namespace) -> dict[str, Any]:
    from warpfit import MLPClassifier, SweepCV

    estimator = perceptron(search, MLPClassifier, device=arguments.device)
    start = perf_counter()
    found = SweepCV(estimator, {"learning_rate_init": search.rates}, cv=search.folds, refit=False)
    found.fit(*search.rows)
    return {
        "seconds": perf_counter() - start,
        "best": float(found.cv_results_["mean_test_score"].max()),
    }


def search_by_sklearn(search: Search, arguments: argparse.Namespace) -> dict[str, Any]:
    """Return what `GridSearchCV` would take, from one candidate's fits, one after the other with
    all BLAS threads.
    """
    import warnings

    from sklearn.exceptions import ConvergenceWarning
    from sklearn.model_selection import GridSearchCV
    from sklearn.neural_network import MLPClassifier

    grid = {"learning_rate_init": search.rates[:1]}
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", ConvergenceWarning)
        start = perf_counter()
        GridSearchCV(perceptron(search, MLPClassifier), grid, cv=search.folds, refit=False).fit(
            *search.rows
        )
    each = (perf_counter() - start) / search.folds
    cores = len(os.sched_getaffinity(0))
    return {
        "seconds": each * search.fits,
        "at_best_on_all_cores": each
        * search.fits
        / cores,  # if as many fits at once took no longer than one
        "cores": cores,
        "extrapolated_from": search.folds,
        "fit_seconds": each,
    }


def search_by_torch(search: Search, arguments: argparse.Namespace) -> dict[str, Any]:
    """Return what fits of a compiled step in CUDA graphs would take, one after the other, the first
    call apart.
    """
    torch_graph = import_module("peers.torch_graph")
    x, y = search.rows
    kept = len(x) - len(x) // search.folds
    sizes = (MNIST_PIXELS, search.hidden, 10)
    times = []
    for rate in [search.rates[0], *search.rates[: search.measured_fits]]:
        start = perf_counter()
        trainer = torch_graph.Trainer(
            sizes,
            x[:kept],
            y[:kept],
            batch_size=search.batch,
            lr=rate,
            precision="bfloat16",
            device=arguments.device,
        )
        for _ in range(search.epochs):
            trainer.epoch()
        times.append(perf_counter() - start)
    # The rate is a constant of what is compiled: each fit has its compilation, from the cache where
    # there is one.
    each = float(np.median(times[1:]))
    return {
        "seconds": times[0] + each * (search.fits - 1),
        "extrapolated_from": len(times) - 1,
        "fit_seconds": each,
    }


# -- results
# --------------------------------------------------------------------------------------------------


def read_results() -> dict[str, Any]:
    path = RESULTS / "sweep.json"
    found: dict[str, Any] = json.loads(path.read_text(encoding="utf-8")) if path.exists() else {}
    return found


def save(results: dict[str, Any]) -> None:
    settings = {"rates": RATES, "epochs_of_a_turn": EPOCHS, "floor_seconds": FLOOR_SECONDS}
    rows = {case.name: results["rows"][case.name] for case in CASES if case.name in results["rows"]}
    write_results("sweep", {**results, "settings": settings, "rows": rows})


def draw(results: dict[str, Any]) -> Any:
    """Return the figure of an epoch's time over the number of networks, with the card's limits."""
    from matplotlib.figure import Figure

    points = {int(networks): point for networks, point in results.get("curve", {}).items()}
    figure = Figure(figsize=(6.5, 4), layout="constrained")
    axes = figure.subplots()
    for program, label in (
        (f"warpfit {OURS[0]}", "warpfit, float16"),
        ("jax_vmap bfloat16", "JAX vmap, bfloat16"),
    ):
        ran = {
            n: point[program]
            for n, point in points.items()
            if isinstance(point.get(program), float)
        }
        axes.plot(list(ran), list(ran.values()), marker="o", label=label)
    axes.plot(
        list(points),
        [point["floor"] for point in points.values()],
        color="0.4",
        ls="--",
        label="floor: tensor cores",
    )
    alone = points.get(1, {}).get(f"warpfit {OURS[0]}")
    if isinstance(alone, float):
        axes.axhline(alone, color="0.4", ls=":", label="floor: one network alone")
    axes.set_xscale("log", base=2)
    axes.set_xticks(list(points), list(map(str, points)))
    axes.set(
        yscale="log", xlabel="networks, 784-128-10, batch 64", ylabel="seconds an epoch over MNIST"
    )
    axes.grid(alpha=0.3, which="both")
    axes.legend()
    figure.suptitle(results["environment"].get("gpu", ""))
    return figure


# -- the command
# ----------------------------------------------------------------------------------------------


def parsed(given: list[str] | None = None) -> argparse.Namespace:
    cases, precisions = tuple(case.name for case in CASES), ("float32", "tf32", "bfloat16")
    parser = Options(__doc__)
    parser.add_argument("--parts", type=names(PARTS), default=list(PARTS))
    parser.add_argument(
        "--rows", type=names(cases), default=list(cases), help="networks, batches and how many"
    )
    parser.add_argument(
        "--ours", type=names(("float32", *OURS)), default=list(OURS), help="our precisions"
    )
    parser.add_argument("--peers", type=names(tuple(PEERS)), default=list(PEERS))
    parser.add_argument(
        "--precisions", type=names(precisions), help="of peers, in place of their usual ones"
    )
    parser.add_argument("--device", default="cuda")
    parser.add_argument(
        "--minutes", type=float, default=9.0, help="after which no program is started"
    )
    parser.add_argument("--turns", type=int, default=TURNS, help="of which the median is taken")
    parser.add_argument(
        "--again", action="store_true", help="measure peers that the file holds already, too"
    )
    return parser.parse_args(given)


def measure(arguments: argparse.Namespace) -> None:
    """Measure the parts, and write the results after each and after every row."""
    deadline = perf_counter() + 60 * arguments.minutes
    env = environment()
    results = with_earlier(read_results(), env)
    if {"ours", "peers"} & set(arguments.parts):
        for case in (case for case in CASES if case.name in arguments.rows):
            old = results["rows"].get(case.name, {})
            row = row_of(case, old, arguments, deadline, origin_of(env))
            results["rows"][case.name] = row
            save(results)
            print_programs(case.name, row, "µs per network and step", digits=4)
    if "search" in arguments.parts:
        results["search"] = {**searched(Search(), arguments, deadline), **origin_of(env)}
        results.get("earlier", {}).pop("search", None)
        save(results)
    if "curve" in arguments.parts:
        results["curve"] = curve(arguments, deadline)
        results.get("earlier", {}).pop("curve", None)
        save(results)


def main() -> None:
    arguments = parsed()
    # PyTorch and JAX share the GPU here: neither takes all memory for itself.
    os.environ.setdefault("XLA_PYTHON_CLIENT_PREALLOCATE", "false")
    measure(arguments)


if __name__ == "__main__":
    run_command(main)
