"""How long is a training step of networks that no cluster holds, beside the strongest programs that
others offer?

Three kinds of rows: 784-h-h-h-10 at batch 32 on rows of MNIST, h from 128 to 8192 (the sweep of
cuda-mnist); networks of four equal layers in bfloat16 with large batches, whose steps are products
near the card's limits; and tiny-cuda-nn's 64-64×3-64 with Adam. Microseconds a step are a whole
epoch's wall time over its steps, as in one_launch.py, whose programs these are: median, least and
largest of some epochs, in which the programs take turns. Ours runs on the engine that `auto`
chooses, which the row tells. Operations are those of a step's products, no gradient of the data
among them.

Prints a table and writes results/widths.json after every row; peers that the file holds from the
same GPU and packages are measured again with --again only.

    python benchmarks/widths.py [--parts ours,peers] [--rows h=1024,4x4096/8192] [--minutes 9]
    [--again]
"""

from __future__ import annotations

import argparse
import gc
import os
import tempfile
from dataclasses import dataclass
from time import perf_counter
from typing import Any

import numpy as np

from harness import (
    Options,
    caches_in,
    environment,
    names,
    origin_of,
    read_results,
    run_command,
    write_results,
)
from one_launch import (
    MNIST_PIXELS,
    PEERS,
    RATES,
    Case,
    Ours,
    Peer,
    Program,
    measured,
    mnist,
    print_row,
    step_flop,
    summarised,
    with_earlier,
)

WIDTHS = (128, 256, 512, 1024, 2048, 4096, 8192)
MOST_STEPS = 500
BATCHES_OF_LARGE = 16
PARTS = ("ours", "peers")
USUAL_PEERS = ("torch_graph", "jax_scan_8")


@dataclass(frozen=True)
class WidthCase(Case):
    """A row: a case of one_launch.py with a name of its own, and the precision that ours has."""

    label: str = ""
    precision: str = "float16"

    @property
    def name(self) -> str:
        return self.label

    @property
    def loss(self) -> str:
        return "cross_entropy" if self.sizes[0] == MNIST_PIXELS else "mse"


def _equal(width: int, batch: int) -> WidthCase:
    return WidthCase((width,) * 5, batch, label=f"4x{width}/{batch}", precision="bfloat16")


CASES = (
    *(WidthCase((784, h, h, h, 10), 32, label=f"h={h}") for h in WIDTHS),
    _equal(4096, 8192),
    _equal(1024, 8192),
    _equal(2048, 512),
    WidthCase((64,) * 5, 65536, "adam", label="64-64x3-64/65536", precision="bfloat16"),
)


class OursByAuto(Ours):
    """Ours, on the engine that `auto` chooses."""

    engine = "auto"


def rows_of(case: WidthCase) -> tuple[Any, Any]:
    """Return the rows of an epoch, and their targets."""
    if case.loss == "cross_entropy":
        x, y = mnist("train")
        rows = min(len(x), MOST_STEPS * case.batch)
        return x[:rows], y[:rows]
    rng = np.random.default_rng(0)
    rows = BATCHES_OF_LARGE * case.batch
    x = rng.standard_normal((rows, case.sizes[0]), np.float32)
    return x, np.sin(x[:, : case.sizes[-1]])


def row_of(
    case: WidthCase, old: dict[str, Any], arguments: Any, deadline: float, origin: Any
) -> dict[str, Any]:
    """Return a row, with what an older one holds and is not measured again."""
    x, y = rows_of(case)
    kept: dict[str, Any] = old.get("programs", {})
    programs: dict[str, Program] = {}
    if "ours" in arguments.parts:
        programs[f"warpfit {case.precision}"] = OursByAuto(case, case.precision, x, y)
    for name in arguments.peers if "peers" in arguments.parts else ():
        key = f"{name} bfloat16"
        if arguments.again or "us" not in kept.get(key, {}):
            programs[key] = Peer(PEERS[name], case, "bfloat16", x, y)
    cells = {name: {**cell, **origin} for name, cell in measured(programs, deadline).items()}
    ours = programs.get(f"warpfit {case.precision}")
    row = {
        "network": case.network,
        "batch": case.batch,
        "training": ", ".join(case.training),
        "rows": len(x),
        "flop": step_flop(case.sizes, case.batch),
        "plan": ours.history.plan.reason
        if isinstance(ours, Ours) and ours.history
        else old.get("plan", ""),
        "programs": {**kept, **cells},
    }
    return summarised(row)


def save(results: dict[str, Any]) -> None:
    settings = {"lr": RATES, "most_steps": MOST_STEPS, "batches_of_large": BATCHES_OF_LARGE}
    rows = {case.name: results["rows"][case.name] for case in CASES if case.name in results["rows"]}
    write_results("widths", {"settings": settings, "rows": rows})


def draw(results: dict[str, Any]) -> Any:
    """Return the figure of microseconds a step over the width of three hidden layers."""
    from matplotlib.figure import Figure

    figure = Figure(figsize=(7, 4), layout="constrained")
    axes = figure.subplots()
    rows = [
        (width, results["rows"][f"h={width}"])
        for width in WIDTHS
        if f"h={width}" in results["rows"]
    ]
    labels = {"warpfit float16": "warpfit, float16"}
    labels |= {f"{peer} bfloat16": f"{PEERS[peer].label}, bfloat16" for peer in USUAL_PEERS}
    for program, label in labels.items():
        points = [
            (width, row["programs"][program]["us"]["median"])
            for width, row in rows
            if "us" in row["programs"].get(program, {})
        ]
        if points:
            axes.plot(*zip(*points, strict=True), marker="o", label=label)
    axes.set_xscale("log", base=2)
    axes.set_xticks([width for width, _ in rows], [str(width) for width, _ in rows])
    axes.set(xlabel="h", ylabel="µs a step", yscale="log")
    axes.set_title(f"784-h-h-h-10, batch 32, {results['environment'].get('gpu', '')}")
    axes.grid(alpha=0.3, which="both")
    axes.legend()
    return figure


def parsed() -> argparse.Namespace:
    cases = tuple(case.name for case in CASES)
    parser = Options(__doc__)
    parser.add_argument("--parts", type=names(PARTS), default=list(PARTS))
    parser.add_argument("--rows", type=names(cases), default=list(cases))
    parser.add_argument("--peers", type=names(tuple(PEERS)), default=list(USUAL_PEERS))
    parser.add_argument(
        "--minutes", type=float, default=9.0, help="after which no program is started"
    )
    parser.add_argument(
        "--again", action="store_true", help="measure peers that the file holds already, too"
    )
    return parser.parse_args()


def main() -> None:
    arguments = parsed()
    # PyTorch and JAX share the GPU here: neither takes all memory for itself.
    os.environ.setdefault("XLA_PYTHON_CLIENT_PREALLOCATE", "false")
    with tempfile.TemporaryDirectory(ignore_cleanup_errors=True) as folder:
        os.environ |= caches_in(folder)
        deadline = perf_counter() + 60 * arguments.minutes
        env = environment()
        results = with_earlier(read_results("widths"), env)
        for case in (case for case in CASES if case.name in arguments.rows):
            old = results["rows"].get(case.name, {})
            row = row_of(case, old, arguments, deadline, origin_of(env))
            results["rows"][case.name] = row
            save(results)
            print_row(case.name, row)
            gc.collect()


if __name__ == "__main__":
    run_command(main)
