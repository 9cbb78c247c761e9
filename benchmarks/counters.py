"""What do the card's counters say of some kernels?

Nsight Compute (`ncu`) runs each case in a process of its own and replays one launch of its kernel
until it has all counters: throughput of the multiprocessors, their tensor cores and the memory, hit
rates, occupancy, registers. The kernels are products from the textbook's to Hopper's (levels.py), a
whole epoch in one launch, a narrow network's step, and a joined update. Clocks stay as they are,
caches are emptied before each pass, so that a duration can be longer than in other tables. What
cannot be counted is told, with the reason. Writes results/counters.json after every case.

    warpfit bench counters [--cases one_launch,narrow_step]
"""

from __future__ import annotations

import argparse
import csv
import io
import re
import shutil
import subprocess
import sys
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from typing import Any

from harness import Options, names, read_results, run_command, write_results
from warpfit.errors import ConfigError

SECTIONS = (
    "SpeedOfLight",
    "ComputeWorkloadAnalysis",
    "MemoryWorkloadAnalysis",
    "Occupancy",
    "LaunchStats",
    "WarpStateStats",
)
# How busy tensor cores are, by the names that this has had; the first that the card has is taken.
OF_TENSOR_CORES = (
    "sm__pipe_tensor_cycles_active",
    "sm__pipe_tensor_op_hmma_cycles_active",
    "sm__inst_executed_pipe_tensor",
)
SHARE = ".avg.pct_of_peak_sustained_active"
TENSOR_CORES = "Tensor Cores"
SECONDS = 150  # of a case

# Section and metric as ncu names them: what is kept, under the metric's name or ours.
KEPT = {
    ("GPU Speed Of Light Throughput", "Duration"): "Duration",
    ("GPU Speed Of Light Throughput", "SM Frequency"): "SM Frequency",
    ("GPU Speed Of Light Throughput", "Compute (SM) Throughput"): "Compute Throughput",
    ("GPU Speed Of Light Throughput", "Memory Throughput"): "Memory Throughput",
    ("GPU Speed Of Light Throughput", "DRAM Throughput"): "DRAM Throughput",
    ("GPU Speed Of Light Throughput", "L2 Cache Throughput"): "L2 Throughput",
    ("Compute Workload Analysis", "SM Busy"): "SM Busy",
    ("Compute Workload Analysis", "Executed Ipc Active"): "Instructions Per Cycle",
    ("Memory Workload Analysis", "L1/TEX Hit Rate"): "L1 Hit Rate",
    ("Memory Workload Analysis", "L2 Hit Rate"): "L2 Hit Rate",
    ("Occupancy", "Achieved Occupancy"): "Achieved Occupancy",
    ("Occupancy", "Theoretical Occupancy"): "Theoretical Occupancy",
    ("Launch Statistics", "Registers Per Thread"): "Registers Per Thread",
    ("Launch Statistics", "Grid Size"): "Blocks",
    ("Launch Statistics", "Block Size"): "Threads of a Block",
    (
        "Warp State Statistics",
        "Warp Cycles Per Issued Instruction",
    ): "Cycles Between Instructions of a Warp",
}


# -- the cases, each in a process of its own
# -------------------------------------------------------------------


def run_level(number: int) -> None:
    """Run a product of levels.py, by its number there."""
    from gemm import Bench, Operands, Product
    from levels import SIZE, levels

    bench = Bench()
    _, config = levels(bench.runtime.num_multiprocessors)[number]
    operands = Operands(Product(SIZE, SIZE, SIZE, config.dtype))
    bench.run_all(bench.ours(config, operands), operands)


def run_one_launch() -> None:
    """Train an epoch of 784-256-10 on MNIST at batch 64 in one launch."""
    from one_launch import Case, Ours, mnist

    Ours(Case((784, 256, 10), 64), "float16", *mnist("train")).fit(1)


def run_width(name: str) -> None:
    """Train an epoch of a network of widths.py."""
    from widths import CASES, OursByAuto, rows_of

    case = next(case for case in CASES if case.name == name)
    OursByAuto(case, case.precision, *rows_of(case)).fit(1)


@dataclass(frozen=True)
class Case:
    """What launches a kernel, in words and as a function."""

    what: str
    run: Callable[[], None]


# By the kernel's name.
CASES = {
    "matmul_naive": Case("4096³, float32, a thread for every number", partial(run_level, 0)),
    "matmul_tiled": Case("4096³, float32, tiles in shared memory", partial(run_level, 1)),
    "matmul_register": Case("4096³, float32, tiles in registers", partial(run_level, 2)),
    "matmul_mma": Case("4096³, bfloat16, a warp's products", partial(run_level, 3)),
    "gemm_sm90": Case("4096³, bfloat16, a warpgroup's products", partial(run_level, -1)),
    "one_launch": Case("an epoch of 784-256-10, batch 64, float16", run_one_launch),
    "narrow_step": Case(
        "64-64-64-64-64, batch 65536, bfloat16, all layers and back",
        partial(run_width, "64-64x3-64/65536"),
    ),
    "linear_update_sm90": Case(
        "784-2048-2048-2048-10, batch 32, float16, gradients and update",
        partial(run_width, "h=2048"),
    ),
}


# -- Nsight Compute
# --------------------------------------------------------------------------------------------


def find_ncu() -> str:
    """Return the path of ncu, or raise ConfigError."""
    found = shutil.which("ncu") or shutil.which("ncu", path="/usr/local/cuda/bin")
    if found is None:
        raise ConfigError(
            "bench counters needs ncu, of Nsight Compute or the CUDA toolkit, on the PATH"
        )
    return found


def output_of(command: list[str]) -> str:
    """Return what a short command prints; nothing if it fails."""
    try:
        done = subprocess.run(command, capture_output=True, text=True, check=True, timeout=60)
    except (OSError, subprocess.SubprocessError):
        return ""
    return done.stdout


def tensor_metric(ncu: str) -> str | None:
    """Return the metric that says how busy tensor cores are, if this card has one."""
    known = set(re.findall(r"^\w+", output_of([ncu, "--query-metrics"]), re.MULTILINE))
    return next((f"{name}{SHARE}" for name in OF_TENSOR_CORES if name in known), None)


def command_of(ncu: str, name: str, metric: str | None) -> list[str]:
    """Return the command that counts one launch of a case's kernel."""
    options = ["--csv", "--page", "details", "--print-units", "base", "--clock-control", "none"]
    options += ["--kernel-name", f"regex:^{name}$", "--launch-count", "1"]
    for section in SECTIONS:
        options += ["--section", section]
    options += [] if metric is None else ["--metrics", metric]
    return [ncu, *options, sys.executable, __file__, "--worker", name]


def counters_of(text: str, metric: str | None) -> dict[str, Any]:
    """Return what is kept of ncu's CSV: by name, a value and its unit."""
    lines = text.splitlines()
    start = next((i for i, line in enumerate(lines) if line.startswith('"ID"')), None)
    if start is None:
        return {}
    found: dict[str, Any] = {}
    for row in csv.DictReader(io.StringIO("\n".join(lines[start:]))):
        name = KEPT.get((row["Section Name"], row["Metric Name"]))
        name = TENSOR_CORES if metric is not None and row["Metric Name"] == metric else name
        value = (row["Metric Value"] or "").replace(",", "")
        if name is not None and re.fullmatch(r"-?\d+(\.\d+)?(e[+-]?\d+)?", value):
            found[name] = {"value": float(value), "unit": row["Metric Unit"]}
    return found


def counted(ncu: str, name: str, metric: str | None) -> dict[str, Any]:
    """Return the counters of a case, or the reason why there are none."""
    start = {"what": CASES[name].what}
    try:
        done = subprocess.run(
            command_of(ncu, name, metric),
            capture_output=True,
            text=True,
            check=False,
            timeout=SECONDS,
        )
    except subprocess.TimeoutExpired:
        return {**start, "reason": f"ncu took longer than {SECONDS} s"}
    counters = counters_of(done.stdout, metric)
    if counters:
        return {**start, "counters": counters}
    return {**start, "reason": reason_of(done.stdout + done.stderr, done.returncode)}


def reason_of(text: str, code: int) -> str:
    """Return what ncu or the case says went wrong."""
    lines = [line.strip() for line in text.splitlines() if line.strip()]
    told = [
        line
        for line in lines
        if line.startswith(("==ERROR==", "==WARNING==", "warpfit:")) or "Error" in line
    ]
    return (told or lines[-1:] or [f"ncu printed nothing, exit code {code}"])[0][:300]


def tools(ncu: str) -> dict[str, str]:
    """Return the versions of Nsight's tools, or that they are missing."""
    nsys = shutil.which("nsys")
    version = (output_of([ncu, "--version"]).splitlines() or ["unknown version"])[-1]
    return {
        "ncu": version,
        "nsys": "not installed"
        if nsys is None
        else (output_of([nsys, "--version"]).strip() or "unknown version"),
    }


def main() -> None:
    parser = Options(__doc__, prog="warpfit bench counters")
    parser.add_argument("--cases", type=names(tuple(CASES)), default=list(CASES), help="kernels")
    parser.add_argument("--worker", choices=list(CASES), help=argparse.SUPPRESS)
    arguments = parser.parse_args()
    if arguments.worker:
        CASES[arguments.worker].run()
        return
    ncu = find_ncu()
    metric = tensor_metric(ncu)
    cases: dict[str, Any] = read_results("counters").get("cases", {})
    for name in arguments.cases:
        cases[name] = counted(ncu, name, metric)
        in_order = {key: cases[key] for key in CASES if key in cases}
        path = write_results(
            "counters", {"tools": tools(ncu), "sections": SECTIONS, "cases": in_order}
        )
        print(f"{name}: {in_words(cases[name])}", flush=True)
    print(f"written to {path}")


def in_words(case: dict[str, Any]) -> str:
    if "reason" in case:
        return str(case["reason"])
    return ", ".join(
        f"{name} {found['value']:g} {found['unit']}" for name, found in case["counters"].items()
    )


if __name__ == "__main__":
    run_command(main)
