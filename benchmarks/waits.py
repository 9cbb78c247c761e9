"""How long does a user wait for a call, and how long for others' doing the same?

Whole calls on the wall's clock, each in a process of its own (`waits_calls.py`). A round is two
processes: the first with empty caches, of ours (kernels), the driver's, PyTorch's, Triton's, JAX's
(its persistent cache, which users turn on) and matplotlib's fonts; the second with what the first
left there. "First call" and "second call" are those of a process, without imports and the loading
of data; "process" is all from the start of Python to the end of the first call; "prompt" to the end
of the process. Where a row has several shapes, the runtime is up: a fit of another shape came
before. Bytecode and files lie in the operating system's cache, as after an earlier process.

Peers train as many networks, epochs and rows, with their data on the device: many networks by
`vmap` in JAX and by batched products in PyTorch. What they compiled they keep for their second
call. Of scikit-learn's search one candidate of 200 is measured, with all cores, and multiplied.

Prints a line for each figure beside what it shall take at most, and writes results/waits.json after
each row. What the file holds from the same machine stays: peers are measured once, unless with
--again.

    python benchmarks/waits.py [--rows many,shapes] [--parts ours,peers] [--rounds 3] [--minutes 9]
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import tempfile
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from time import perf_counter, time_ns
from typing import Any

import numpy as np

from harness import (
    ROOT,
    Options,
    as_table,
    caches_in,
    environment,
    names,
    read_results,
    run_command,
    spread,
    write_results,
)
from one_launch import machine_of
from waits_calls import FIRST, OURS, SECOND, SHAPES

PARTS = ("ours", "peers")
CACHES = ("empty", "warm")
MOST_SECONDS = 240  # of a process
IMPORT = "import over NumPy"
PROMPT = "prompt"

# Where else a program keeps what it compiled or found, below the folder of a process's caches.
CACHE_VARIABLES = {"JAX_COMPILATION_CACHE_DIR": "jax", "MPLCONFIGDIR": "matplotlib"}
# JAX keeps by default only what took a second to compile, and takes most of the memory for itself.
JAX_SETTINGS = {
    "JAX_PERSISTENT_CACHE_MIN_COMPILE_TIME_SECS": "0",
    "JAX_PERSISTENT_CACHE_MIN_ENTRY_SIZE_BYTES": "-1",
    "XLA_PYTHON_CLIENT_PREALLOCATE": "false",
}
IMPORTED = {
    OURS: "warpfit",
    "sklearn": "sklearn.neural_network",
    "torch_eager": "torch",
    "jax_scan": "jax",
}
MAKERS = {"sklearn": "scikit-learn", "torch": "PyTorch", "jax": "JAX"}


@dataclass(frozen=True)
class Row:
    """Calls that are timed together.

    Parameters
    ----------
    call : str
        What is done.
    limits : dict
        The seconds that a figure shall take at most, by cache and figure; ``'sklearn'`` is what
        scikit-learn takes; None is no limit.
    peers, ours : tuple of str
    needs : str
        ``'gpu'``, ``'network'``, or nothing.
    """

    call: str
    limits: dict[tuple[str, str], float | str | None]
    peers: tuple[str, ...] = ()
    ours: tuple[str, ...] = (OURS,)
    needs: str = ""


def calls(
    empty: float | None, warm: float | None, second: float | None
) -> dict[tuple[str, str], Any]:
    return {("empty", FIRST): empty, ("warm", FIRST): warm, ("warm", SECOND): second}


MANY = ("jax_vmap", "torch_bmm")
FITS = ("sklearn", "torch_eager", "torch_graph", "jax_scan")
BOTH = (OURS, "warpfit cuda")
ROWS = {
    "many": Row(
        "512 × 784-128-10, batch 64, 3 epochs of MNIST", calls(1.5, None, 0.3), MANY, needs="gpu"
    ),
    "folds": Row(
        "`fit_many`, 200 × 5 folds of 784-64-10, 5 epochs",
        calls(None, None, 0.8),
        MANY,
        needs="gpu",
    ),
    "search": Row(
        "`SweepCV`, 200 × 5 folds of 784-64-10, 5 epochs",
        calls(None, None, 1.5),
        ("sklearn",),
        needs="gpu",
    ),
    "small": Row(
        "1,000 × 32-64-64-2, batch 128, 20 epochs of 4,000 rows",
        calls(None, None, 0.5),
        MANY,
        needs="gpu",
    ),
    "shapes": Row(
        "a fit of a new shape, 100 epochs",
        {("empty", shape): 0.35 for shape in SHAPES},
        FITS,
        BOTH,
    ),
    "first-fit": Row(
        "a process's first fit, breast cancer (100,)",
        {("empty", "process"): 1.0, ("warm", "process"): 0.6, ("warm", SECOND): None},
        FITS,
        BOTH,
    ),
    "architectures": Row(
        "`SweepCV`, 20 architectures × 3 folds of digits, 20 epochs",
        calls(3.0, None, None),
        ("sklearn", "torch_eager", "jax_scan"),
        BOTH,
    ),
    "table": Row(
        "200,000 × 54 rows, 256-256-256, AdamW, 20 epochs",
        calls(1.5, None, None),
        ("torch_eager", "torch_graph", "jax_scan"),
        needs="gpu",
    ),
    "train": Row(
        "`warpfit train`, MNIST, with pictures",
        {("empty", PROMPT): 3.5, ("warm", PROMPT): 1.5},
        needs="gpu",
    ),
    "import": Row("an import", {("warm", IMPORT): 0.12}, ("sklearn", "torch_eager", "jax_scan")),
    "iris": Row(
        "a fit of iris (100,), 100 epochs",
        {("empty", FIRST): "sklearn", ("empty", "process"): "sklearn", ("warm", SECOND): "sklearn"},
        ("sklearn",),
        (OURS, "warpfit cpu"),
    ),
    "predict": Row(
        "on 10 rows of digits (64, 32), beyond NumPy's products",
        {("warm", "predict"): 100e-6, ("warm", "score"): 100e-6},
        ("sklearn",),
        (OURS, "warpfit cpu"),
    ),
    "make": Row("`make train`, a fresh clone", {("empty", PROMPT): 15.0}, needs="network"),
}


# -- processes
# -------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Process:
    """How processes are run: the folder of data sets, and what goes to each."""

    folder: Path
    options: tuple[str, ...] = ()
    train: tuple[str, ...] = ("--data", "mnist")
    environment: dict[str, str] = field(default_factory=lambda: dict(os.environ))

    def command(self, row: str, program: str, out: Path) -> list[str]:
        if row == "import":
            code = (
                "import numpy, time, json; start = time.perf_counter(); import "
                f"{IMPORTED[program]}; seconds = time.perf_counter() - start; "
                f"print(json.dumps({{'seconds': {{'{IMPORT}': seconds}}}}))"
            )
            return [sys.executable, "-c", code]
        if row == "train":
            return [
                sys.executable,
                "-m",
                "warpfit",
                "train",
                *self.train,
                "--out",
                str(out / "run"),
            ]
        if row == "make":
            clone = f"git clone --quiet '{ROOT}' '{out}/clone' && cd '{out}/clone' && make train"
            return ["sh", "-c", clone]
        script, started = ROOT / "benchmarks" / "waits_calls.py", str(time_ns())
        words = [row, program, started, str(self.folder), *self.options]
        return [sys.executable, str(script), *words]

    def run(self, row: str, program: str, caches: Path) -> dict[str, Any]:
        """Return what a process measured, and its own seconds; or the reason why there is
        nothing.
        """
        sources = os.pathsep.join(filter(None, (str(ROOT / "src"), os.environ.get("PYTHONPATH"))))
        own = {name: str(caches / folder) for name, folder in CACHE_VARIABLES.items()}
        own |= caches_in(caches)
        env = {**self.environment, **JAX_SETTINGS, **own, "PYTHONPATH": sources}
        env.pop("PYTHONDONTWRITEBYTECODE", None)  # a warm process has its bytecode
        with tempfile.TemporaryDirectory() as out:
            started = perf_counter()
            command = self.command(row, program, Path(out))
            try:
                done = subprocess.run(
                    command,
                    capture_output=True,
                    text=True,
                    check=False,
                    env=env,
                    cwd=out,
                    timeout=MOST_SECONDS,
                )
            except subprocess.TimeoutExpired:
                return {"reason": f"took more than {MOST_SECONDS} s"}
            seconds = perf_counter() - started
        if done.returncode:
            return {"reason": (done.stderr.strip().splitlines() or ["no message"])[-1][:300]}
        if row in ("train", "make"):
            return {"seconds": {PROMPT: seconds}}
        found: dict[str, Any] = json.loads(done.stdout.splitlines()[-1])
        return found


def write_datasets(folder: Path) -> None:
    """Write the data sets that estimators are fitted to, so that reading them takes no time."""
    from sklearn.datasets import load_breast_cancer, load_digits, load_iris

    for name, load in (
        ("cancer", load_breast_cancer),
        ("digits", load_digits),
        ("iris", load_iris),
    ):
        X, y = load(return_X_y=True)
        X = X / 16 if name == "digits" else (X - X.mean(axis=0)) / X.std(axis=0)
        np.save(folder / f"{name}_x.npy", X.astype(np.float32))
        np.save(folder / f"{name}_y.npy", y)


def measured(
    name: str, program: str, process: Process, rounds: int, deadline: float
) -> dict[str, Any]:
    """Return the seconds of a program's calls by cache and figure, or the reason why there are
    none.
    """
    times: dict[str, dict[str, list[float]]] = {cache: {} for cache in CACHES}
    quality: dict[str, float] = {}
    used = {cache for cache, _ in ROWS[name].limits}
    for idx in range(rounds):
        if idx and perf_counter() > deadline:
            break
        with tempfile.TemporaryDirectory() as caches:
            for cache in CACHES if "warm" in used else ("empty",):
                found = process.run(name, program, Path(caches))
                if "reason" in found:
                    return found
                quality = found.get("quality", {})
                for figure, seconds in found["seconds"].items():
                    times[cache].setdefault(figure, []).append(seconds)
    figures = {
        cache: {figure: spread(seconds) for figure, seconds in of_cache.items()}
        for cache, of_cache in times.items()
    }
    return {"figures": figures, "quality": quality}


def row_of(
    name: str, old: dict[str, Any], process: Process, arguments: argparse.Namespace, deadline: float
) -> dict[str, Any]:
    """Return a row, with what an older one of the same machine holds and is not measured again."""
    row, env = ROWS[name], environment()
    same = bool(old) and machine_of(old["environment"]) == machine_of(env)
    programs: dict[str, Any] = dict(old["programs"]) if same else {}
    if same and old["environment"]["commit"] != env["commit"]:
        programs = {key: cell for key, cell in programs.items() if not key.startswith("warpfit")}
    wanted = [*(row.ours if "ours" in arguments.parts else ())]
    if "peers" in arguments.parts:
        had = {key for key, cell in programs.items() if "figures" in cell}
        wanted += [peer for peer in row.peers if arguments.again or peer not in had]
    for program in wanted:
        if perf_counter() > deadline:
            print(f"no time left for {name}, {program}", flush=True)
            continue
        rounds = arguments.rounds if program.startswith("warpfit") else 1
        programs[program] = measured(name, program, process, rounds, deadline)
        if reason := programs[program].get("reason"):
            print(f"{name}, {program}: {reason}", flush=True)
    return {"environment": env, "programs": programs}


# -- tables
# -------------------------------------------------------------------------------------------------


def lines_of(rows: dict[str, Any]) -> Iterator[list[str]]:
    """Yield the cells of each figure: what, which, its limit, ours, and the makers of peers."""
    for name, row in ((name, rows[name]) for name in ROWS if name in rows):
        programs = row["programs"]
        for own in (own for own in ROWS[name].ours if own in programs):
            call = ROWS[name].call + ("" if own == OURS else f", device={own.split()[1]!r}")
            for (cache, figure), limit in ROWS[name].limits.items():
                key = (cache, figure)
                ours = cell_of(programs, [own], key)
                beside = [cell_of(programs, _of_maker(programs, maker), key) for maker in MAKERS]
                yield [call, f"{figure}, {cache}", limit_text(limit), ours, *beside]


def table(results: dict[str, Any]) -> str:
    """Return the table of docs, with the machine of each row's last measurement."""
    rows = results["rows"]
    text = as_table(HEADER, lines_of(rows))
    machines: dict[str, list[str]] = {}
    measured = {
        name: row for name, row in rows.items() if any(map(_has_figures, row["programs"].values()))
    }
    for name, row in measured.items():
        env = row["environment"]
        card = f"{env['gpu']}, driver {env['driver']}, " if "gpu" in env else ""
        where = f"{card}{env['cores']} cores of an {env['cpu']}; commit {env['commit']}"
        machines.setdefault(f"{where}, {env['date'].split()[0]}", []).append(name)
    return text + "".join(f"\n{', '.join(of)}: {where}.\n" for where, of in machines.items())


def _has_figures(program: dict[str, Any]) -> bool:
    return bool(program.get("figures"))


def _of_maker(programs: Iterable[str], maker: str) -> list[str]:
    return [program for program in programs if program.startswith(maker)]


def cell_of(programs: dict[str, Any], chosen: list[str], key: tuple[str, str]) -> str:
    """Return the figure of the quickest of some programs."""
    cache, figure = key
    found = [
        programs[program]["figures"][cache][figure]
        for program in chosen
        if figure in programs[program].get("figures", {}).get(cache, {})
    ]
    if not found:
        return "-"
    best = min(found, key=lambda times: float(times["median"]))
    text = seconds_text(best["median"])
    same = best["min"] == best["max"]
    return text if same else f"{text} ({seconds_text(best['min'])} to {seconds_text(best['max'])})"


def limit_text(limit: float | str | None) -> str:
    if limit is None:
        return "-"
    return "scikit-learn's" if isinstance(limit, str) else seconds_text(limit)


def seconds_text(seconds: float) -> str:
    if seconds < 1e-3:
        return f"{seconds * 1e6:.0f} µs"
    return f"{seconds * 1e3:.0f} ms" if seconds < 0.1 else f"{seconds:.2f} s"


HEADER = ["call", "figure, caches", "at most", "warpfit", *MAKERS.values()]


def print_row(name: str, row: dict[str, Any]) -> None:
    for cells in lines_of({name: row}):
        print("  ".join(f"{cell:{width}}" for cell, width in zip(cells, WIDTHS, strict=True)))
    sys.stdout.flush()


WIDTHS = (62, 30, 14, 28, 14, 14, 14)


# -- the command
# -------------------------------------------------------------------------------------------------


def rows_that_run() -> list[str]:
    """Return all rows but those that need a network, or those that need no GPU where there is
    none.
    """
    from warpfit.backends.cuda.runtime import why_unavailable

    reason = why_unavailable()
    if reason:
        print(f"without the rows that need a GPU: {reason}", flush=True)
    left_out = {"network", "gpu"} if reason else {"network"}
    return [name for name, row in ROWS.items() if row.needs not in left_out]


def measure(arguments: argparse.Namespace, process: Process) -> dict[str, Any]:
    deadline = perf_counter() + 60 * arguments.minutes
    rows: dict[str, Any] = read_results("waits").get("rows", {})
    write_datasets(process.folder)
    for name in arguments.rows or rows_that_run():
        rows[name] = row_of(name, rows.get(name, {}), process, arguments, deadline)
        print_row(name, rows[name])
        write_results("waits", {"rows": {key: rows[key] for key in ROWS if key in rows}})
    return rows


def parsed(given: list[str] | None = None) -> argparse.Namespace:
    parser = Options(__doc__)
    parser.add_argument("--parts", type=names(PARTS), default=list(PARTS))
    parser.add_argument(
        "--rows", type=names(tuple(ROWS)), help="of " + ", ".join(ROWS) + "; default: what can run"
    )
    parser.add_argument("--rounds", type=int, default=2, help="of ours; of peers one")
    parser.add_argument(
        "--minutes", type=float, default=9.0, help="after which no program is started"
    )
    parser.add_argument("--again", action="store_true", help="measure peers anew")
    parser.add_argument("--small", action="store_true", help=argparse.SUPPRESS)
    return parser.parse_args(given)


def main() -> None:
    arguments = parsed()
    with tempfile.TemporaryDirectory() as folder:
        options = ("--small",) if arguments.small else ()
        measure(arguments, Process(Path(folder), options))


if __name__ == "__main__":
    run_command(main)
