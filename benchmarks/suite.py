"""The suites of ``warpfit bench``: which script measures what, and what it needs.

    warpfit bench list
    warpfit bench SUITE [--out DIR] [options of the suite]
    warpfit bench report [--check] [--redraw]
    warpfit bench compare A.json B.json [--threshold 0.05]

A suite writes benchmarks/results/<name>.json, or DIR/<name>.json, with the machine and the versions
in it.
"""

from __future__ import annotations

import os
import subprocess
import sys
from dataclasses import dataclass
from importlib.util import find_spec
from pathlib import Path

from harness import RESULTS_VARIABLE, ROOT, Options, run_command
from warpfit.errors import ConfigError, DeviceError

INTERRUPTED = 130


@dataclass(frozen=True)
class Suite:
    """A script of this folder.

    Parameters
    ----------
    script : str
        Its name without ``.py``.
    measures : str
        What it measures, in a line.
    needs_gpu : bool
        Whether all of it does.
    packages : tuple of str
        What it imports beyond the package's own requirements.
    on_cpu : str
        The option, with its value, by which one that needs a GPU can do without.
    """

    script: str
    measures: str
    needs_gpu: bool = True
    packages: tuple[str, ...] = ()
    on_cpu: str = ""

    def devices(self) -> str:
        """Return in words where it can measure, if not on a GPU only."""
        if not self.needs_gpu:
            return " (with or without a GPU)"
        return f" (without a GPU: {self.on_cpu})" if self.on_cpu else ""


SUITES = {
    "gemm": Suite("gemm", "matrix products, beside cuBLAS", packages=("torch",)),
    "ops": Suite("bandwidth", "operations that move memory, beside a copy on the device"),
    "train": Suite(
        "train",
        "forward, backward, step and epoch over batch sizes, beside the peers",
        needs_gpu=False,
    ),
    "widths": Suite("widths", "steps of wide networks, beside the peers"),
    "cold-start": Suite("prompt", "`warpfit train`, from prompt to prompt"),
    "waits": Suite("waits", "whole calls, first and second, beside the peers'", needs_gpu=False),
    "estimators": Suite(
        "estimators", "MLPClassifier and MLPRegressor, beside scikit-learn's", needs_gpu=False
    ),
    "accel": Suite(
        "accel_costs", "what `warpfit.accel` costs where it gains nothing", needs_gpu=False
    ),
    "report-run": Suite(
        "report_run",
        "the run of a report, 784-256-10, beside its figures and NumPy",
        needs_gpu=False,
    ),
    "scaling": Suite(
        "scaling",
        "one network, and a sweep, on several cards, beside PyTorch's DistributedDataParallel",
        on_cpu="--devices cpu,cpu",
    ),
    "sweep": Suite("sweep", "many networks at once, beside JAX vmap and PyTorch bmm"),
    "optuna": Suite(
        "optuna_trials",
        "a thousand trials of Optuna's by batches, beside one after the other",
        packages=("optuna",),
        on_cpu="--device cpu",
    ),
    "ladder": Suite("ladder", "every rung of `warpfit ladder`, beside the peers", needs_gpu=False),
    "curves": Suite("curves", "the networks of `warpfit train` in full, beside NumPy's loss curve"),
    "engine-curves": Suite(
        "engine_curves",
        "loss of every step, every engine and precision, beside PyTorch",
        needs_gpu=False,
    ),
    "one-launch": Suite("one_launch", "steps of the engine one_launch, beside all peers"),
    "layerwise": Suite(
        "layerwise", "steps of the engine layerwise, and the time to the first step"
    ),
    "cnn": Suite(
        "cnn",
        "PyTorch's MNIST example, LeNet-5, a residual network",
        needs_gpu=False,
        packages=("torch",),
    ),
    "mnist-fast": Suite(
        "mnist_fast", "99 % on MNIST in an epoch, and 30 seeds at once", on_cpu="--device cpu"
    ),
    "airbench": Suite("airbench", "steps of airbench94, beside PyTorch's"),
    "levels": Suite("levels", "what each step to the fastest product gains", packages=("torch",)),
    "launch-costs": Suite("launch_costs", "steps of one_launch, beside what plans expect"),
    "run-costs": Suite(
        "run_costs", "whole runs on the CPU, beside what device 'auto' expects", needs_gpu=False
    ),
    "hops": Suite(
        "hops", "messages between warps, blocks and clusters, and each kernel's chain of them"
    ),
    "streaming": Suite("streaming", "data that stays on the host"),
    "counters": Suite("counters", "Nsight Compute's counters of some kernels"),
    "notebook": Suite(
        "notebook", "what the demo notebook takes when a slider is moved", needs_gpu=False
    ),
    "cpu-epoch": Suite("cpu_epoch", "an epoch on the CPU, beside scikit-learn", needs_gpu=False),
    "estimator-scores": Suite(
        "estimator_scores", "scores of the estimators over seeds", needs_gpu=False
    ),
    "tables": Suite(
        "tables",
        "RealMLP and TabM on tables, scores and times, beside pytabkit's and boosted trees",
        needs_gpu=False,
    ),
    "accuracy-gap": Suite("accuracy_gap", "a sum against a mean over the batch", needs_gpu=False),
}
TOOLS = {
    "report": (
        "write tables and charts of README and docs from the results (--check: say which are stale)"
    ),
    "compare": "two results files, figure by figure; exit code 1 if the second is slower",
}


def listing() -> str:
    """Return the suites and tools in lines."""
    lines = [(name, suite.measures + suite.devices()) for name, suite in SUITES.items()]
    width = max(len(name) for name in (*SUITES, *TOOLS))
    return "\n".join(f"{name:<{width}}  {what}" for name, what in (*lines, *TOOLS.items()))


def check_can_run(name: str, suite: Suite, arguments: list[str]) -> None:
    """Raise ConfigError or DeviceError if something is missing that the suite needs."""
    missing = [package for package in suite.packages if find_spec(package) is None]
    if missing:
        raise ConfigError(f"bench {name} needs {' and '.join(missing)}, which is not installed")
    needing_none = {"-h", "--help", *suite.on_cpu.split()[:1]}
    if suite.needs_gpu and needing_none.isdisjoint(each.partition("=")[0] for each in arguments):
        from warpfit.backends.cuda.runtime import why_unavailable

        if reason := why_unavailable():
            instead = f", or {suite.on_cpu}" if suite.on_cpu else ""
            raise DeviceError(f"bench {name} needs an NVIDIA GPU{instead}: {reason}")


def results_folder(arguments: list[str]) -> tuple[list[str], Path | None]:
    """Return the arguments without ``--out DIR``, and the folder, made where it is missing."""
    parser = Options(__doc__, add_help=False, allow_abbrev=False)
    parser.add_argument("--out")
    own, others = parser.parse_known_args(arguments)
    if own.out is None:
        return others, None
    from warpfit.files import make_folder

    return others, make_folder(Path(own.out).resolve())


def run_suite(name: str, arguments: list[str]) -> int:
    """Run a suite in a process of its own, and return its exit code."""
    suite = SUITES[name]
    check_can_run(name, suite, arguments)
    arguments, folder = results_folder(arguments)
    environment = (
        dict(os.environ) if folder is None else {**os.environ, RESULTS_VARIABLE: str(folder)}
    )
    return run_script(suite.script, arguments, environment)


def run_script(script: str, arguments: list[str], environment: dict[str, str]) -> int:
    path = ROOT / "benchmarks" / f"{script}.py"
    try:
        return subprocess.run(
            [sys.executable, str(path), *arguments], check=False, env=environment
        ).returncode
    except KeyboardInterrupt:
        return INTERRUPTED


def main() -> None:
    name, *arguments = sys.argv[1:] or ["list"]
    name = name.removeprefix("--") if name in ("--compare", "--list", "--report") else name
    if name in ("list", "-h", "--help"):
        if arguments:
            raise ConfigError(f"expected nothing after {name}, got {' '.join(arguments)}")
        print(listing())
    elif name in TOOLS:
        sys.exit(run_script(name, arguments, dict(os.environ)))
    elif name in SUITES:
        sys.exit(run_suite(name, arguments))
    else:
        raise ConfigError(
            f"expected a suite ({', '.join(SUITES)}), list, report or compare, got {name!r}"
        )


if __name__ == "__main__":
    run_command(main)
