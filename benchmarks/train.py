"""How long are forward, backward, a step and an epoch of 784-256-10 on MNIST, over batch sizes?

On the CPU: the NumPy backend and PyTorch. On a GPU: the engines `layerwise`, `graph` and
`one_launch`, PyTorch eager, PyTorch's compiled step in a CUDA graph, and JAX's scan; programs,
turns and peers are those of one_launch.py, and each program draws its own order of the same rows. A
step is an epoch's wall time over its steps: order, gathering and sums included, data on the device
beforehand, an epoch of at most 600 steps; the epoch of 60,000 rows is the step times their number.
The first call, apart, is what the first epoch takes longer, with empty caches.

Programs that go from operation to operation can be taken apart: forward, and the rest of a step on
one batch, gradients and update together, as some of our kernels do both. Their time is wall time
over calls that follow each other; of `graph` it is the device's, by events around a CUDA graph of
some calls. A run in one launch, a compiled step and a scan have no such parts.

Writes results/train.json after every batch. Peers that the file holds from the same machine and
packages are measured again with --again only; what a broken run or one without time left out, the
next one measures.

    warpfit bench train [--batches 64,512] [--minutes 2.4] [--again] [--profile]
"""

from __future__ import annotations

import argparse
import gc
import os
import tempfile
from collections.abc import Callable
from statistics import median
from time import perf_counter
from typing import Any

from harness import (
    ROOT,
    Options,
    caches_in,
    environment,
    names,
    read_results,
    run_command,
    spread,
    write_results,
)
from one_launch import (
    PEERS,
    Case,
    Ours,
    Peer,
    PeerKind,
    Program,
    is_ours,
    kept_results,
    measured,
    mnist,
    step_flop,
)
from warpfit.backends.contract.communicator import Alone
from warpfit.backends.cuda.runtime import why_unavailable
from warpfit.engines import steps as engine_steps
from warpfit.engines.base import TrainingData
from warpfit.engines.parts import part_of
from warpfit.nn.spec import Call
from warpfit.training.callbacks import Callback

SIZES = (784, 256, 10)
# The first are what is asked for most, should the time not suffice for all.
BATCHES = (64, 1, 512, 32, 128, 8)
MOST_STEPS = 600
ROWS = 60_000
CALLS, ROUNDS = 20, 7  # of a part of a step, and how often
MINUTES = 2.4

CPU_PEERS = {
    "torch_eager_cpu": PeerKind(
        "PyTorch eager, CPU", "torch_eager", {"device": "cpu"}, ("float32",), epochs=1
    )
}
GPU_PEERS = {
    "torch_eager": PeerKind("PyTorch eager", "torch_eager", {}, ("float32",), epochs=1),
    "torch_graph": PeerKind(PEERS["torch_graph"].label, "torch_graph", {}, ("bfloat16",)),
    "jax_scan_8": PeerKind(PEERS["jax_scan_8"].label, "jax_scan", {"unroll": 8}, ("bfloat16",)),
}
KINDS = {**CPU_PEERS, **GPU_PEERS}


# -- programs
# -------------------------------------------------------------------------------------------------


class OnCpu(Ours):
    """The NumPy backend."""

    engine, device, epochs = "layerwise", "cpu", 1


class Layerwise(Ours):
    engine, epochs = "layerwise", 2


class Graph(Ours):
    engine = "graph"


OURS_ON_CPU: dict[str, tuple[type[Ours], str]] = {"warpfit NumPy float32": (OnCpu, "float32")}
OURS_ON_GPU: dict[str, tuple[type[Ours], str]] = {
    "warpfit layerwise float32": (Layerwise, "float32"),
    "warpfit graph float16": (Graph, "float16"),
    "warpfit one_launch float16": (Ours, "float16"),
}


def label_of(program: str) -> str:
    """Return what a program is called in tables."""
    if is_ours(program):
        return program.replace("warpfit ", "warpfit, ")
    kind, precision = program.split()
    return f"{KINDS[kind].label}, {precision}"


def rows_of(batch: int) -> tuple[Any, Any]:
    """Return the rows of an epoch of at most MOST_STEPS steps."""
    x, y = mnist("train")
    return x[: MOST_STEPS * batch], y[: MOST_STEPS * batch]


def programs_of(batch: int, kept: dict[str, Any], has_gpu: bool, again: bool) -> dict[str, Program]:
    """Return the programs to measure at a batch: all of ours, and peers that are not kept."""
    case, (x, y) = Case(SIZES, batch), rows_of(batch)
    ours = {**OURS_ON_CPU, **(OURS_ON_GPU if has_gpu else {})}
    found: dict[str, Program] = {
        name: kind(case, precision, x, y) for name, (kind, precision) in ours.items()
    }
    for name, kind in (KINDS if has_gpu else CPU_PEERS).items():
        for precision in kind.precisions:
            if again or "us" not in kept.get(f"{name} {precision}", {}):
                found[f"{name} {precision}"] = Peer(kind, case, precision, x, y)
    return found


# -- parts of a step
# ------------------------------------------------------------------------------------------


class Parts(engine_steps.Run):
    """A step of ours on one batch, in parts; the rate is 0, so that it stays the same step."""

    def __init__(self, plan: Any, state: Any, data: TrainingData) -> None:
        super().__init__(plan, state, data, None, float(plan.loss_scale), Alone())
        if self.keeps_copies:
            self._write_copies()
        size = min(plan.batch_size, len(data))
        rows = self.ops.asarray(self._order(state.seed, 0))[:size]
        x, y = (
            self.ops.copy(self.ops.gather_rows(array, rows, dtype)) for array, dtype in self.sources
        )
        self.batch: engine_steps.Batch = (x, y, None)
        self.part = part_of(size, self.ranks)
        self.record = self.ops.zeros((1, 3), "float64")

    def train_epoch(self, rates: list[float], order: Any) -> Any:
        raise NotImplementedError("a step only")

    def forward(self) -> None:
        self.ops.begin_step()
        call = Call(training=True, step=0, seed=self.state.seed)
        self.network.vjp(self.ops, {**self.arrays, **self.copies}, self.batch[0], call)

    def whole(self) -> None:
        self.ops.begin_step()
        self.step(self.batch, engine_steps.StepNumbers(0, 0, self.part, 1, 0.0), self.record)


class _Keeper(Callback):
    """Keeps what a run is computed from."""

    needs_run = False

    def on_start(self, run: Any) -> None:
        self.plan, self.state, self.ops = run.plan, run.state, run.ops


def parts_of_ours(program: Ours) -> tuple[Parts, Any]:
    """Return the parts of a program's step, and its device's runtime, None on the CPU."""
    keeper = _Keeper()
    program.fit(1, callbacks=[keeper])
    size = program.case.batch
    data = TrainingData(keeper.ops.asarray(program.x[:size]), keeper.ops.asarray(program.y[:size]))
    return Parts(keeper.plan, keeper.state, data), getattr(keeper.ops, "runtime", None)


def in_turn(call: Callable[[], Any], wait: Callable[[], Any]) -> list[float]:
    """Return the wall time of a call among some that follow each other, in each round but the
    first.
    """
    seconds = []
    for _ in range(1 + ROUNDS):
        start = perf_counter()
        for _ in range(CALLS):
            call()
        wait()
        seconds.append((perf_counter() - start) / CALLS)
    return seconds[1:]


def on_device(call: Callable[[], Any], runtime: Any) -> list[float]:
    """Return the device's time of a call, in each round, in a CUDA graph of some."""
    for _ in range(2):  # kernels are compiled, and buffers made
        call()
    runtime.synchronize()
    with runtime.capture() as graph:
        for _ in range(CALLS):
            call()
    return [runtime.seconds_of(graph.launch) / CALLS for _ in range(1 + ROUNDS)][1:]


def parts_us(program: Program) -> dict[str, Any]:
    """Return the microseconds of forward, and of backward with the update, of programs that have
    such parts.
    """
    if isinstance(program, Graph):
        parts, runtime = parts_of_ours(program)
        forward, whole = (on_device(call, runtime) for call in (parts.forward, parts.whole))
    elif isinstance(program, (Layerwise, OnCpu)):
        parts, runtime = parts_of_ours(program)
        wait = (lambda: None) if runtime is None else runtime.synchronize
        forward, whole = (in_turn(call, wait) for call in (parts.forward, parts.whole))
    elif isinstance(program, Peer) and program.kind.module == "torch_eager":
        forward, whole = parts_of_eager(program.trainer)
    else:
        return {}
    rest = median(whole) - median(forward)
    return {
        "forward_us": spread([second * 1e6 for second in forward]),
        "backward_and_update_us": rest * 1e6,
    }


def parts_of_eager(trainer: Any) -> tuple[list[float], list[float]]:
    import torch

    batch, targets = trainer.x[: trainer.batch_size], trainer.y[: trainer.batch_size]
    wait = torch.cuda.synchronize if trainer.x.is_cuda else lambda: None
    return (
        in_turn(lambda: trainer.forward(batch), wait),
        in_turn(lambda: trainer.step(batch, targets), wait),
    )


# -- measurements
# ---------------------------------------------------------------------------------------------


def row_of(
    batch: int, kept: dict[str, Any], programs: dict[str, Program], deadline: float
) -> dict[str, Any]:
    """Return what is measured at a batch, with what is kept."""
    cells = measured(programs, deadline)
    for name, cell in cells.items():
        if "us" in cell:
            cells[name] = {**cell, **parts_us(programs[name]), **whole_epoch(batch, cell["us"])}
    number_of_rows = len(rows_of(batch)[0])
    return {
        "network": "-".join(map(str, SIZES)),
        "batch": batch,
        "rows": number_of_rows,
        "flop": step_flop(SIZES, batch),
        "programs": {**kept, **cells},
    }


def whole_epoch(batch: int, us: dict[str, float]) -> dict[str, float]:
    """Return what 60,000 rows take at the measured step, and how many rows a second that is."""
    seconds = us["median"] / 1e6
    return {"epoch_seconds": seconds * -(-ROWS // batch), "samples_per_second": batch / seconds}


def print_row(row: dict[str, Any]) -> None:
    print(f"batch {row['batch']}, {row['rows']} rows")
    for name, cell in row["programs"].items():
        if "us" not in cell:
            print(f"    {label_of(name):45} {cell['reason']}", flush=True)
            continue
        parts = (
            "forward {:.1f}, backward and update {:.1f}, ".format(
                *(cell["forward_us"]["median"], cell["backward_and_update_us"])
            )
            if "forward_us" in cell
            else ""
        )
        us = cell["us"]
        print(
            f"    {label_of(name):45} {us['median']:8.2f} ({us['min']:.2f} to {us['max']:.2f}) µs "
            f"a step; {parts}epoch {cell['epoch_seconds']:.3f} s, "
            f"{cell['samples_per_second']:,.0f} rows/s, first call {cell['first_call']:.1f} s",
            flush=True,
        )


def kept_rows(env: dict[str, Any]) -> dict[str, Any]:
    """Return the rows that the file has, as far as they are of this machine, and ours of this
    commit.
    """
    old = read_results("train")
    if old.get("environment", {}).get("cpu") != env["cpu"]:
        return {}
    rows: dict[str, Any] = kept_results(old, env)["rows"]
    return rows


def save(rows: dict[str, Any]) -> Any:
    in_order = {key: rows[key] for key in sorted(rows, key=int)}
    settings = {"most_steps": MOST_STEPS, "calls_of_a_part": CALLS, "rounds_of_a_part": ROUNDS}
    return write_results("train", {"settings": settings, "rows": in_order})


def profile(batches: list[int], has_gpu: bool) -> None:
    """Write a trace of two epochs of each of our programs, apart from the measurements."""
    from warpfit.training.profile import Profile

    folder = ROOT / "runs" / "bench-train"
    folder.mkdir(parents=True, exist_ok=True)
    for batch in batches:
        for name, program in programs_of(batch, {}, has_gpu, again=False).items():
            if isinstance(program, Ours):
                path = folder / f"trace-{batch}-{name.replace(' ', '-')}.json"
                program.fit(2, callbacks=[Profile(path)])
                print(path)


def draw(results: dict[str, Any]) -> Any:
    """Return the figure of microseconds a step and rows a second over the batch."""
    from matplotlib.figure import Figure

    figure = Figure(figsize=(11, 4.5), layout="constrained")
    steps, rates = figure.subplots(1, 2)
    rows = list(results["rows"].values())
    for program in dict.fromkeys(name for row in rows for name in row["programs"]):
        found = [
            (row["batch"], row["programs"][program])
            for row in rows
            if "us" in row["programs"].get(program, {})
        ]
        style: dict[str, Any] = {
            "marker": "o" if is_ours(program) else "s",
            "label": label_of(program),
        }
        style |= {"linewidth": 2.2} if is_ours(program) else {"linewidth": 1, "linestyle": "--"}
        batches = [batch for batch, _ in found]
        steps.plot(batches, [cell["us"]["median"] for _, cell in found], **style)
        rates.plot(batches, [cell["samples_per_second"] for _, cell in found], **style)
    for axes, what in ((steps, "µs a step"), (rates, "rows a second")):
        axes.set_xscale("log", base=2)
        axes.set_xticks([row["batch"] for row in rows], [str(row["batch"]) for row in rows])
        axes.set(xlabel="batch", ylabel=what, yscale="log")
        axes.grid(alpha=0.3, which="both")
    env = results["environment"]
    figure.suptitle(f"784-256-10, {env.get('gpu', env['cpu'])}")
    figure.legend(*steps.get_legend_handles_labels(), loc="outside right upper", fontsize=8)
    return figure


def batch_sizes(text: str) -> list[int]:
    """Return batches from text, or raise argparse's error."""
    return [int(name) for name in names(tuple(map(str, sorted(BATCHES))))(text)]


def main() -> None:
    parser = Options(__doc__, prog="warpfit bench train")
    parser.add_argument(
        "--batches", type=batch_sizes, default=list(BATCHES), help="of 1, 8, 32, 64, 128, 512"
    )
    parser.add_argument(
        "--minutes", type=float, default=MINUTES, help="after which no program is started"
    )
    parser.add_argument(
        "--again", action="store_true", help="measure peers that the file holds already, too"
    )
    parser.add_argument(
        "--profile",
        action="store_true",
        help="write traces of ours into runs/bench-train, and measure nothing",
    )
    arguments = parser.parse_args()
    with tempfile.TemporaryDirectory(ignore_cleanup_errors=True) as folder:
        # Empty caches, lest the first call's time depend on what ran before.
        os.environ |= caches_in(folder)
        run(arguments)


def run(arguments: argparse.Namespace) -> None:
    why_no_gpu = why_unavailable()
    if why_no_gpu is not None:
        print(f"CPU only: {why_no_gpu}")
    # PyTorch and JAX share the GPU here: neither takes all memory for itself.
    os.environ.setdefault("XLA_PYTHON_CLIENT_PREALLOCATE", "false")
    if arguments.profile:
        profile(arguments.batches, why_no_gpu is None)
        return
    deadline = perf_counter() + 60 * arguments.minutes
    rows = kept_rows(environment())
    for batch in arguments.batches:
        kept = rows.get(str(batch), {}).get("programs", {})
        programs = programs_of(batch, kept, why_no_gpu is None, arguments.again)
        rows[str(batch)] = row_of(batch, kept, programs, deadline)
        path = save(rows)
        print_row(rows[str(batch)])
        gc.collect()
    print(f"written to {path}")


if __name__ == "__main__":
    run_command(main)
