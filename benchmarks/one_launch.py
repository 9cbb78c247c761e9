"""How long is a training step of the one_launch engine, beside the strongest programs that others
offer?

Microseconds a step are a whole epoch's wall time (order, gathering, forward, loss, backward,
update, sums of loss and right rows, and reading these) over its number of steps: the median, least
and largest of some epochs, in which the programs take turns. Ours trains several epochs in a
launch, of whose time each has an equal share. Everything lies on the GPU beforehand. An epoch has
at most 2,000 steps, on the same rows for all. Optimizer, dropout and schedule are the same for all,
too; dropout's random numbers are each program's own, and a cosine falls to 0 over each epoch of the
others, over each call of `fit` of ours. PyTorch in CUDA graphs and JAX leave the shorter last batch
out, which would be a second compilation, and have one step less to divide by; PyTorch eager and
ours train on it. The first call, apart, is from making a program to its first trained epoch, less
the time of a later one: compilation, with empty caches. First losses show that all train alike.

Parts: `ours` and `peers`, by rows of networks and batches; `headline`, ten epochs over all of MNIST
and the accuracy they reach; `curves`, ours over batch and hidden width. Prints a table and writes
results/one_launch.json after every row. What the file holds from the same GPU and packages stays:
peers are measured once, unless with --again, ours when asked for; ours of another commit says so.
So parts can come from several commands, and one that broke off starts again.

    python benchmarks/one_launch.py [--parts peers,ours,curves,headline] [--minutes 9]
    python benchmarks/one_launch.py --rows '784-256-10/64 adam,64-64-64-64-1/256 adamw'
"""

from __future__ import annotations

import argparse
import gc
import json
import os
import tempfile
from collections.abc import Callable
from dataclasses import dataclass
from functools import cache
from importlib import import_module
from itertools import pairwise
from time import perf_counter
from typing import Any, Protocol

import numpy as np

import harness
from harness import Options, environment, names, read_results, run_command, spread, write_results

RATES = {"sgd": 0.1, "adam": 1e-3, "adamw": 1e-3}
WEIGHT_DECAY = 1e-2  # of adamw
MOST_STEPS = 2000
TURNS = 3
EPOCHS = 5  # of a turn
OURS = ("float16", "bfloat16")
PARTS = ("peers", "ours", "curves", "headline")
CURVE_BATCHES = (1, 2, 4, 8, 16, 32, 64, 128, 256, 512, 1024)
CURVE_WIDTHS = (16, 32, 64, 128, 256, 512)
HEADLINE_EPOCHS = 10

MNIST_PIXELS = 784

# What floors are made of, on an H200: its clock, a sub-core's mma.sync, and what shared memory
# delivers.
CLOCK_HZ = 1.76e9
SUB_CORES = 4
MMA_FLOP, MMA_CYCLES = 2 * 16 * 8 * 16, 6.4
SHARED_BYTES_A_CYCLE = 128


@dataclass(frozen=True)
class Case:
    """A network, a batch, and how it is trained: what a row measures."""

    sizes: tuple[int, ...]
    batch: int
    optimizer: str = "sgd"
    dropout: float = 0.0  # after each hidden activation
    schedule: str = "constant"  # or "cosine", from the rate to 0

    @property
    def network(self) -> str:
        return "-".join(map(str, self.sizes))

    @property
    def training(self) -> tuple[str, ...]:
        """What is not plain SGD, in words."""
        words = (
            "" if self.optimizer == "sgd" else self.optimizer,
            f"dropout {self.dropout:g}" if self.dropout else "",
            "" if self.schedule == "constant" else self.schedule,
        )
        return tuple(filter(None, words))

    @property
    def name(self) -> str:
        return " ".join((f"{self.network}/{self.batch}", *self.training))

    @property
    def loss(self) -> str:
        return "mse" if self.sizes[-1] == 1 else "cross_entropy"

    @property
    def settings(self) -> dict[str, Any]:
        """What the peers' trainers take beside the network and the data."""
        return {
            "batch_size": self.batch,
            "lr": RATES[self.optimizer],
            "optimizer": self.optimizer,
            "weight_decay": WEIGHT_DECAY if self.optimizer == "adamw" else 0.0,
            "schedule": self.schedule,
        }


CASES = (
    *(Case((784, 256, 10), batch) for batch in (1, 8, 32, 64, 128, 512)),
    Case((784, 10), 128),
    Case((64, 64, 1), 256),
    Case((784, 128, 128, 128, 10), 32),
    Case((784, 256, 256, 256, 10), 32),
    Case((784, 256, 10), 64, "adam"),
    Case((37, 53, 17, 3), 48, "adam"),
    Case((64, 64, 64, 64, 1), 256, "adamw"),
    Case((32, 256, 256, 256, 8), 256, "adamw", dropout=0.1, schedule="cosine"),
)


@dataclass(frozen=True)
class PeerKind:
    """A program of others: its name in tables, its module in `peers`, and its settings."""

    label: str
    module: str
    settings: dict[str, Any]
    precisions: tuple[str, ...] = ("tf32", "bfloat16")
    turns: int = TURNS
    epochs: int = EPOCHS
    optimizers: tuple[str, ...] = ("sgd", "adam", "adamw")


PEERS = {
    "jax_scan_32": PeerKind("JAX scan, unroll=32", "jax_scan", {"unroll": 32}),
    "jax_scan_8": PeerKind("JAX scan, unroll=8", "jax_scan", {"unroll": 8}),
    "jax_scan_1": PeerKind("JAX scan", "jax_scan", {"unroll": 1}),
    "jax_scan_8_inside": PeerKind(
        "JAX scan, unroll=8, gathering in its steps",
        "jax_scan",
        {"unroll": 8, "gathers_first": False},
    ),
    "torch_graph": PeerKind("PyTorch compile + CUDA graph", "torch_graph", {}),
    "torch_graph_fused": PeerKind(
        "PyTorch compile + fused optimizer + CUDA graph",
        "torch_graph",
        {"fused": True},
        optimizers=("adam", "adamw"),
    ),
    "torch_graph_tuned": PeerKind(
        "PyTorch compile, max-autotune, + CUDA graph",
        "torch_graph",
        {"mode": "max-autotune-no-cudagraphs"},
    ),
    # It takes a millisecond a step, so that two epochs are enough.
    "torch_eager": PeerKind(
        "PyTorch eager", "torch_eager", {}, ("float32", "tf32", "bfloat16"), 1, 2
    ),
}
# The likely best come first; the others take minutes more, and are measured when --peers asks for
# them.
USUAL_PEERS = (
    "jax_scan_32",
    "jax_scan_8",
    "torch_graph",
    "torch_graph_fused",
    "jax_scan_1",
    "torch_eager",
)


# -- data
# --------------------------------------------------------------------------------------------------


@cache
def mnist(part: str) -> tuple[Any, Any]:
    """Return rows (N, 784) float32 in [0, 1] and labels (N,) int64 of MNIST's ``'train'`` or
    ``'test'`` part.
    """
    from warpfit.data import load_dataset

    data = load_dataset("mnist", flat=True)
    x, y = (data.x_train, data.y_train) if part == "train" else (data.x_test, data.y_test)
    return np.ascontiguousarray(x, np.float32), y.astype(np.int64)


@cache
def made_up(features: int) -> tuple[Any, Any]:
    """Return 60,000 normal rows (N, features) and smooth targets (N, 1), float32."""
    rng = np.random.default_rng(0)
    x = rng.standard_normal((60_000, features)).astype(np.float32)
    direction = (rng.standard_normal((features, 1)) / features**0.5).astype(np.float32)
    return x, np.sin(x @ direction)


@cache
def made_up_classes(features: int, classes: int) -> tuple[Any, Any]:
    """Return 60,000 normal rows (N, features) float32 and labels (N,) int64: the largest of some
    smooth functions.
    """
    rng = np.random.default_rng(0)
    x = rng.standard_normal((60_000, features)).astype(np.float32)
    directions = (2 * rng.standard_normal((features, classes)) / features**0.5).astype(np.float32)
    return x, np.sin(x @ directions).argmax(axis=1)


def rows_of(case: Case) -> tuple[Any, Any]:
    """Return the rows of an epoch, at most MOST_STEPS batches, and their targets."""
    features, outputs = case.sizes[0], case.sizes[-1]
    if case.loss == "mse":
        x, y = made_up(features)
    else:
        x, y = mnist("train") if features == MNIST_PIXELS else made_up_classes(features, outputs)
    rows = min(len(x), MOST_STEPS * case.batch)
    return x[:rows], y[:rows]


# -- programs
# -------------------------------------------------------------------------------------------------


class Program(Protocol):
    """Something that trains; made without doing so."""

    def start(self) -> tuple[float, float]:
        """Train the first epoch; return its seconds with all preparations, and the mean of its
        losses.
        """

    def turn(self) -> list[float]:
        """Return the seconds of some later epochs."""

    @property
    def steps(self) -> int:
        """Steps of an epoch."""


class Peer:
    """A program of `peers`, on rows x and targets y."""

    def __init__(self, kind: PeerKind, case: Case, precision: str, x: Any, y: Any) -> None:
        self.kind, self.case, self.precision, self.x, self.y = kind, case, precision, x, y
        self.turns_left = kind.turns
        self.trainer: Any = None

    def start(self) -> tuple[float, float]:
        module = import_module(
            f"peers.{self.kind.module}"
        )  # imports and devices are not the first call's
        if self.kind.settings.get("device") != "cpu":
            _require_gpu(module)
        case, settings = self.case, {"precision": self.precision, **self.kind.settings}
        model: Any = case.sizes
        if self.kind.module == "torch_eager":
            model = module.mlp(case.sizes, case.dropout)  # which is not a setting there
        else:
            settings["dropout"] = case.dropout
        start = perf_counter()
        self.trainer = module.Trainer(model, self.x, self.y, **case.settings, **settings)
        loss, _ = self.trainer.epoch()
        return perf_counter() - start, loss

    def turn(self) -> list[float]:
        if not self.turns_left:
            return []
        self.turns_left -= 1
        return [self._epoch() for _ in range(self.kind.epochs)]

    @property
    def steps(self) -> int:
        return int(self.trainer.steps)

    def _epoch(self) -> float:
        start = perf_counter()
        self.trainer.epoch()
        return perf_counter() - start


def _require_gpu(module: Any) -> None:
    if hasattr(module, "jax"):
        found = module.jax.default_backend()
    else:
        found = "gpu" if module.torch.cuda.is_available() else "cpu"
    if found != "gpu":
        raise RuntimeError(f"expected {module.__name__} on a GPU, got it on {found}")


class Ours:
    """One of our engines; a turn is a call of `fit`, whose first epoch does not count."""

    engine, device = "one_launch", "cuda"
    epochs = EPOCHS  # of a turn

    def __init__(self, case: Case, precision: str, x: Any, y: Any) -> None:
        from warpfit import nn

        *hidden, last = pairwise(case.sizes)
        layers: list[Any] = []
        for inputs, outputs in hidden:
            layers += [nn.Linear(inputs, outputs), nn.ReLU()]
            layers += [nn.Dropout(case.dropout)] if case.dropout else []
        self.model = nn.Sequential(*layers, nn.Linear(*last))
        self.case, self.precision, self.x, self.y = case, precision, x, y
        self.history: Any = None

    def start(self) -> tuple[float, float]:
        from warpfit.training.callbacks import Callback

        times: list[float] = []

        class Clock(Callback):
            def on_epoch_end(self, run: Any) -> None:
                times.append(perf_counter())

        start = perf_counter()
        history = self.fit(1, callbacks=[Clock()])
        return times[0] - start, history.reports[0].loss

    def turn(self) -> list[float]:
        return [report.seconds for report in self.fit(1 + self.epochs).reports[1:]]

    @property
    def steps(self) -> int:
        return -(-len(self.x) // self.case.batch)

    @property
    def launch(self) -> Any:
        """How the last fit was launched."""
        return self.history.plan.prepared.launch

    def fit(self, epochs: int, **settings: Any) -> Any:
        """Train on, keep the history, and return it."""
        import warpfit as wf

        settings = {
            "loss": self.case.loss,
            "batch_size": self.case.batch,
            "precision": self.precision,
            **settings,
        }
        settings |= {"device": self.device, "engine": self.engine, "verbose": False}
        self.history = wf.fit(
            self.model, self.x, self.y, optimizer=self.make_optimizer(), epochs=epochs, **settings
        )
        return self.history

    def make_optimizer(self) -> Any:
        from warpfit import optim

        case, parameters = self.case, self.model.parameters()
        rate = RATES[case.optimizer]
        lr = optim.Cosine(rate) if case.schedule == "cosine" else rate
        if case.optimizer == "adamw":
            return optim.AdamW(parameters, lr, weight_decay=WEIGHT_DECAY)
        return optim.Adam(parameters, lr) if case.optimizer == "adam" else optim.SGD(parameters, lr)


# -- measurements
# ---------------------------------------------------------------------------------------------


def started(programs: dict[str, Program], deadline: float) -> dict[str, dict[str, Any]]:
    """Start programs, and return what is known of each then; those whose turn comes after the
    deadline are left out.
    """
    cells: dict[str, dict[str, Any]] = {}
    for name, program in programs.items():
        if perf_counter() > deadline:
            print(f"no time left for {name}", flush=True)
            continue
        try:
            seconds, loss = program.start()
        except (
            Exception
        ) as error:  # a program that is missing or fails must not take the others with it
            cells[name] = {"reason": reason(error)}
        else:
            cells[name] = {"first_call": seconds, "first_loss": loss}
    return cells


def measured(
    programs: dict[str, Program], deadline: float, turns: int = TURNS
) -> dict[str, dict[str, Any]]:
    """Return each program's microseconds a step, or the reason why there are none; they take
    turns.
    """
    cells = started(programs, deadline)
    times: dict[str, list[float]] = {
        name: [] for name, cell in cells.items() if "reason" not in cell
    }
    for _ in range(turns):
        for name in list(times):
            try:
                times[name] += programs[name].turn()
            except Exception as error:
                cells[name] = {"reason": reason(error)}
                del times[name]
    for name, seconds in times.items():
        steps, whole = programs[name].steps, spread(seconds)
        cells[name]["first_call"] -= whole["median"]
        cells[name] |= {
            "steps": steps,
            "us": {key: value / steps * 1e6 for key, value in whole.items()},
        }
    return cells


def reason(error: Exception) -> str:
    """Return an error's class and first line."""
    return f"{type(error).__name__}: {(str(error).splitlines() or [''])[0]}"[:300]


def is_ours(program: str) -> bool:
    return program.startswith("warpfit ")


def summarised(row: dict[str, Any]) -> dict[str, Any]:
    """Return a row with the quickest peer's name, and its time over ours in each precision."""
    us = {name: cell["us"]["median"] for name, cell in row["programs"].items() if "us" in cell}
    best = min((name for name in us if not is_ours(name)), key=lambda name: us[name], default=None)
    ours = {precision: us[name] for precision in OURS if (name := f"warpfit {precision}") in us}
    ratio = (
        {} if best is None else {precision: us[best] / value for precision, value in ours.items()}
    )
    return {**row, "best_peer": best, "ratio": ratio}


def row_of(
    case: Case, old: dict[str, Any], arguments: argparse.Namespace, deadline: float, origin: Any
) -> dict[str, Any]:
    """Return a row, with what an older one holds and is not measured again."""
    x, y = rows_of(case)
    kept: dict[str, Any] = old.get("programs", {})
    programs: dict[str, Program] = {}
    if "ours" in arguments.parts:
        programs |= {f"warpfit {precision}": Ours(case, precision, x, y) for precision in OURS}
    peers = [name for name in arguments.peers if case.optimizer in PEERS[name].optimizers]
    for name in peers if "peers" in arguments.parts else ():
        for precision in arguments.precisions or PEERS[name].precisions:
            if arguments.again or "us" not in kept.get(f"{name} {precision}", {}):
                programs[f"{name} {precision}"] = Peer(PEERS[name], case, precision, x, y)
    cells = {name: {**cell, **origin} for name, cell in measured(programs, deadline).items()}
    row = {
        "network": case.network,
        "batch": case.batch,
        "training": ", ".join(case.training),
        "rows": len(x),
        "programs": {**kept, **cells},
    }
    return summarised(row)


def headline(precision: str) -> dict[str, Any]:
    """Return milliseconds of ten epochs of 784-256-10 at batch 64, and the accuracy on the test set
    after them.
    """
    import warpfit as wf

    case = Case((784, 256, 10), 64)
    Ours(case, precision, *mnist("train")).fit(1)
    runs: list[float] = []
    accuracies: list[Any] = []
    for seed in range(TURNS):
        program = Ours(case, precision, *mnist("train"))
        history = program.fit(HEADLINE_EPOCHS, seed=seed)
        runs.append(sum(report.seconds for report in history.reports) * 1e3)
        accuracies.append(wf.evaluate(program.model, *mnist("test")).accuracy)
    return {"epochs": HEADLINE_EPOCHS, "ms": spread(runs), "accuracy": spread(accuracies)}


def attempted(measure: Callable[[Any], dict[str, Any]], what: Any) -> dict[str, Any]:
    """Return what is measured, or the reason why the engine does not run it."""
    from warpfit.errors import WarpfitError

    try:
        return measure(what)
    except WarpfitError as error:
        return {"reason": str(error)}


def curve_point(case: Case) -> dict[str, Any]:
    """Return ours at a batch and a network, and on how many blocks and replicas."""
    program = Ours(case, "float16", *rows_of(case))
    us = spread([second / program.steps * 1e6 for second in program.turn()])
    launch = program.launch
    blocks = launch.cluster * launch.replicas
    return {
        "us": us,
        "blocks": blocks,
        "replicas": launch.replicas,
        "plan": program.history.plan.reason,
    }


def curve(name: str) -> dict[str, Any]:
    """Return ours at all batches or widths, or the reasons why it does not run there."""
    points = {}
    for key, case in curve_cases(name).items():
        points[key] = attempted(curve_point, case)
        us = points[key].get("us", {}).get("median")
        print(
            f"{case.name}: " + (f"{us:.2f} µs a step" if us else points[key]["reason"]), flush=True
        )
    return points


def curve_cases(name: str) -> dict[str, Case]:
    """Return what the curve over ``'batch'`` or ``'width'`` is measured at."""
    if name == "batch":
        return {str(batch): Case((784, 256, 10), batch) for batch in CURVE_BATCHES}
    return {str(width): Case((784, width, 10), 64) for width in CURVE_WIDTHS}


# -- floors
# --------------------------------------------------------------------------------------------------


def step_flop(sizes: tuple[int, ...], batch: int) -> int:
    """Return the operations of a step's products: outputs, weight gradients, and input gradients
    but the first's.
    """
    return sum(
        (4 if idx == 0 else 6) * batch * inputs * outputs
        for idx, (inputs, outputs) in enumerate(pairwise(sizes))
    )


def arithmetic_floor_us(case: Case, blocks: int) -> float:
    """Return what a step's products take at the rate of `mma.sync` on the blocks' sub-cores."""
    rate = blocks * SUB_CORES * MMA_FLOP / MMA_CYCLES * CLOCK_HZ
    return step_flop(case.sizes, case.batch) / rate * 1e6


def shared_memory_floor_us(case: Case, replicas: int) -> float:
    """Return what each block takes to read its replica's rows of x twice from shared memory, in
    half precision.
    """
    return 2 * 2 * case.batch / replicas * case.sizes[0] / SHARED_BYTES_A_CYCLE / CLOCK_HZ * 1e6


# -- results
# --------------------------------------------------------------------------------------------------


def machine_of(env: dict[str, Any]) -> Any:
    """Return what peers' results depend on: the GPU, its driver, and the packages but ours."""
    others = {name: version for name, version in env["packages"].items() if name != "warpfit"}
    return env.get("gpu"), env.get("driver"), env["python"], others


def kept_results(old: dict[str, Any], env: dict[str, Any]) -> dict[str, Any]:
    """Return what an older file's results are still worth in an environment.

    Peers' stay with the same GPU, driver and packages; ours, if the commit is the same as well.
    """
    if not old or machine_of(old["environment"]) != machine_of(env):
        return {"rows": {}}
    if old["environment"]["commit"] == env["commit"]:
        return {name: value for name, value in old.items() if name != "environment"}
    rows = {}
    for name, row in old["rows"].items():
        peers = {program: cell for program, cell in row["programs"].items() if not is_ours(program)}
        rows[name] = summarised({**row, "programs": peers})
    return {"rows": rows}


# Parts beside the rows, of this benchmark and of sweep.py, in words.
APART = {
    "headline": "ten epochs",
    "curves": "the picture",
    "search": "the search",
    "curve": "the picture",
}


def with_earlier(old: dict[str, Any], env: dict[str, Any]) -> dict[str, Any]:
    """Return an older file's results of the same machine. Ours of another commit stay until they
    are measured again: cells name theirs, and `earlier` that of the other parts.
    """
    if not old or machine_of(old["environment"]) != machine_of(env):
        return {"rows": {}}
    earlier = dict(old.get("earlier", {}))
    if old["environment"]["commit"] != env["commit"]:
        parts = [name for name in APART if name in old and name not in earlier]
        earlier |= dict.fromkeys(parts, old["environment"]["commit"])
    return {name: value for name, value in old.items() if name != "environment"} | {
        "earlier": earlier
    }


def network_of(row: dict[str, Any]) -> str:
    """Return a row's network, and how it is trained unless by plain SGD."""
    return ", ".join(filter(None, (row["network"], row.get("training"))))


def elsewhere(results: dict[str, Any], prefix: str = "") -> str:
    """Return what of rows, whose names begin so, was measured at another commit than the file's, or
    on another day: nothing, or sentences that begin with a space.
    """
    here, peers = results["environment"], []
    told: list[tuple[str, str]] = []
    for row in (row for key, row in results["rows"].items() if key.startswith(prefix)):
        for program, cell in row["programs"].items():
            where = _where(cell, here)
            if not is_ours(program):
                peers.append(where)
            elif where:
                told.append((where, f"{network_of(row)} at {row['batch']}"))
    earlier = {} if prefix else results.get("earlier", {})
    told += [(commit[:12], APART[part]) for part, commit in earlier.items()]
    text = ""
    for where in sorted({*peers, *(where for where, _ in told)} - {""}):
        names = list(dict.fromkeys(name for own, name in told if own == where))
        if count := peers.count(where):
            few = f"{count} of {len(peers)} figures of peers"
            names.append(few if count < len(peers) else "all peers")
        text += f" At commit {where}: {', '.join(names)}."
    return text


def _where(cell: dict[str, Any], here: dict[str, Any]) -> str:
    """Return a cell's commit, with its day if it says so; nothing if both are the file's."""
    at = {**here, **cell}
    if (at["commit"][:12], at["date"][:10]) == (here["commit"][:12], here["date"][:10]):
        return ""
    return ", ".join([at["commit"][:12], *[at["date"][:10]] * ("date" in cell)])


def save(results: dict[str, Any]) -> None:
    settings = {
        "lr": RATES,
        "weight_decay": WEIGHT_DECAY,
        "most_steps": MOST_STEPS,
        "turns": TURNS,
        "epochs_of_a_turn": EPOCHS,
        "xla_flags": os.environ.get("XLA_FLAGS", ""),
    }
    rows = {case.name: results["rows"][case.name] for case in CASES if case.name in results["rows"]}
    write_results("one_launch", {**results, "settings": settings, "rows": rows})


def print_row(name: str, row: dict[str, Any]) -> None:
    print_programs(f"{name}, {row['rows']} rows", row, "µs a step", digits=2)


def print_programs(title: str, row: dict[str, Any], unit: str, digits: int) -> None:
    ratios = ", ".join(f"{precision} {ratio:.2f}" for precision, ratio in row["ratio"].items())
    print(f"{title}; best peer {row['best_peer']}, its time over ours: {ratios or '-'}")
    for program, cell in row["programs"].items():
        if "us" in cell:
            us, first = cell["us"], f"first call {cell['first_call']:.2f} s"
            least, median, most = (f"{us[name]:.{digits}f}" for name in ("min", "median", "max"))
            numbers = f"{median:>9} ({least} to {most}) {unit}"
            print(
                f"    {program:28} {numbers}, {first}, first loss {cell['first_loss']:.4f}",
                flush=True,
            )
        else:
            print(f"    {program:28} {cell['reason']}", flush=True)


def draw(results: dict[str, Any]) -> Any:
    """Return the figure of ours over batch and width, with the floors."""
    from matplotlib.figure import Figure

    figure = Figure(figsize=(10, 4), layout="constrained")
    over_batch, over_width = figure.subplots(1, 2)
    draw_curve(over_batch, results["curves"]["batch"], curve_cases("batch"))
    rows = results["rows"].values()
    plain = [row for row in rows if row["network"] == "784-256-10" and not row.get("training")]
    found = [row for row in plain if row["best_peer"]]
    if found:
        times = [row["programs"][row["best_peer"]]["us"]["median"] for row in found]
        over_batch.plot(
            [row["batch"] for row in found], times, marker="s", label="best of PyTorch and JAX"
        )
    over_batch.set(title="784-256-10", xlabel="batch (×: does not run)")
    draw_curve(over_width, results["curves"]["width"], curve_cases("width"))
    over_width.set(title="784-width-10, batch 64", xlabel="hidden width (×: does not run)")
    for axes in (over_batch, over_width):
        axes.legend()
    figure.suptitle(results["environment"].get("gpu", ""))
    return figure


def draw_curve(axes: Any, points: dict[str, Any], cases: dict[str, Case]) -> None:
    """Draw ours and its floors; sizes that do not run have a cross at their tick."""
    ran = {key: point for key, point in points.items() if "us" in point}
    lines = {
        "warpfit, float16": [point["us"]["median"] for point in ran.values()],
        "floor: tensor cores": [
            arithmetic_floor_us(cases[key], point["blocks"]) for key, point in ran.items()
        ],
        "floor: x from shared memory": [
            shared_memory_floor_us(cases[key], point["replicas"]) for key, point in ran.items()
        ],
    }
    styles: list[dict[str, Any]] = [
        {"marker": "o"},
        {"color": "0.4", "ls": "--"},
        {"color": "0.4", "ls": ":"},
    ]
    for (label, values), style in zip(lines.items(), styles, strict=True):
        axes.plot([int(key) for key in ran], values, label=label, **style)
    axes.set_xscale("log", base=2)
    axes.set_xticks(
        [int(key) for key in points], [key if key in ran else f"{key}\n×" for key in points]
    )
    axes.set(yscale="log", ylabel="µs a step")
    axes.grid(alpha=0.3, which="both")


# -- the command
# ----------------------------------------------------------------------------------------------


def parsed() -> argparse.Namespace:
    cases, precisions = tuple(case.name for case in CASES), ("float32", "tf32", "bfloat16")
    parser = Options(__doc__)
    parser.add_argument("--parts", type=names(PARTS), default=list(PARTS))
    parser.add_argument(
        "--rows", type=names(cases), default=list(cases), help="networks with their batches"
    )
    parser.add_argument("--peers", type=names(tuple(PEERS)), default=list(USUAL_PEERS))
    parser.add_argument(
        "--precisions", type=names(precisions), help="of peers, in place of their usual ones"
    )
    parser.add_argument(
        "--minutes", type=float, default=9.0, help="after which no program is started"
    )
    parser.add_argument(
        "--again", action="store_true", help="measure peers that the file holds already, too"
    )
    return parser.parse_args()


def measure(arguments: argparse.Namespace) -> None:
    """Measure the parts, and write the results after each and after every row."""
    deadline = perf_counter() + 60 * arguments.minutes
    env = environment()
    results = with_earlier(read_results("one_launch"), env)
    # First the rows: their first calls are to find no kernels.
    if {"ours", "peers"} & set(arguments.parts):
        for case in (case for case in CASES if case.name in arguments.rows):
            old = results["rows"].get(case.name, {})
            row = row_of(case, old, arguments, deadline, harness.origin_of(env))
            results["rows"][case.name] = row
            save(results)
            print_row(case.name, row)
            gc.collect()
    if "headline" in arguments.parts:
        results["headline"] = {precision: attempted(headline, precision) for precision in OURS}
        print(json.dumps(results["headline"]), flush=True)
        results.get("earlier", {}).pop("headline", None)
        save(results)
    if "curves" in arguments.parts:
        results["curves"] = {name: curve(name) for name in ("batch", "width")}
        results.get("earlier", {}).pop("curves", None)
        save(results)


def main() -> None:
    arguments = parsed()
    # PyTorch and JAX share the GPU here: neither takes all memory for itself.
    os.environ.setdefault("XLA_PYTHON_CLIENT_PREALLOCATE", "false")
    with tempfile.TemporaryDirectory(ignore_cleanup_errors=True) as folder:
        # Empty caches, lest the first call's time depend on what ran before.
        os.environ |= harness.caches_in(folder)
        measure(arguments)


if __name__ == "__main__":
    run_command(main)
