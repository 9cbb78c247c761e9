"""What all benchmarks share: the environment they ran in, and the one writer of results files."""

from __future__ import annotations

import argparse
import json
import os
import platform
import shutil
import subprocess
import sys
from collections.abc import Callable, Iterable, Sequence
from datetime import UTC, datetime
from importlib import metadata
from pathlib import Path
from statistics import median
from typing import Any, NoReturn

from warpfit.errors import ConfigError, WarpfitError
from warpfit.files import atomic_path

ROOT = Path(__file__).resolve().parents[1]
# Names another folder for the results: `warpfit bench SUITE --out DIR` sets it.
RESULTS_VARIABLE = "WARPFIT_BENCH_RESULTS"
RESULTS = Path(os.environ.get(RESULTS_VARIABLE) or ROOT / "benchmarks" / "results")
FAILED, MISUSED = 1, 2  # exit codes

PACKAGES = (
    "warpfit",
    "numpy",
    "scipy",
    "scikit-learn",
    "torch",
    "jax",
    "optuna",
    "lightgbm",
    "xgboost-cpu",
    "catboost",
    "pytabkit",
    "tabm",
    "cuda-core",
    "cuda-bindings",
    "nvidia-cuda-nvrtc",
)


def environment() -> dict[str, Any]:
    """Return machine (with its GPU, if there is one), versions, commit and date."""
    return {
        "date": datetime.now(UTC).strftime("%Y-%m-%d %H:%M UTC"),
        "commit": _commit(),
        "cpu": _cpu_name(),
        "cores": len(os.sched_getaffinity(0)),
        **_gpu(),
        "python": platform.python_version(),
        "packages": {name: version for name in PACKAGES if (version := _version(name)) is not None},
    }


def origin_of(env: dict[str, Any]) -> dict[str, Any]:
    """Return what each cell of a results file says of where it comes from."""
    return {name: env[name] for name in ("commit", "date")}


def write_results(name: str, results: dict[str, Any]) -> Path:
    """Write results with their environment to results/<name>.json, and return the path."""
    path = RESULTS / f"{name}.json"
    text = json.dumps({"environment": environment(), **results}, indent=1)
    with atomic_path(path) as temporary:
        temporary.write_text(text + "\n", encoding="utf-8")
    return path


def read_results(name: str) -> dict[str, Any]:
    """Return what results/<name>.json holds; nothing if there is no such file."""
    path = RESULTS / f"{name}.json"
    found: dict[str, Any] = json.loads(path.read_text(encoding="utf-8")) if path.exists() else {}
    return found


class Options(argparse.ArgumentParser):
    """The options of a script, whose first paragraph is the help; a mistake in them is a
    ConfigError.
    """

    def __init__(self, doc: str | None, **settings: Any) -> None:
        super().__init__(description=(doc or "").partition("\n\n")[0], **settings)

    def error(self, message: str) -> NoReturn:
        raise ConfigError(message)


def names(known: Iterable[str]) -> Callable[[str], list[str]]:
    """Return a parser of names separated by commas."""
    all_names = tuple(known)

    def parse(text: str) -> list[str]:
        found = text.split(",")
        if unknown := [repr(name) for name in found if name not in all_names]:
            raise argparse.ArgumentTypeError(
                f"expected some of {', '.join(all_names)}, got {', '.join(unknown)}"
            )
        return found

    return parse


def whole_numbers(text: str) -> list[int]:
    """Return numbers from 1 on that are separated by commas."""
    found = text.split(",")
    if not all(each.isdecimal() and int(each) for each in found):
        raise argparse.ArgumentTypeError(f"expected numbers from 1 on with commas, got {text!r}")
    return [int(each) for each in found]


def run_command(main: Callable[[], Any]) -> None:
    """Run a script's main function; what the user can mend is said in one line, and is exit
    code 2.
    """
    try:
        code = main()
        sys.stdout.flush()
    except WarpfitError as error:
        print(f"warpfit: {error}", file=sys.stderr)
        code = MISUSED
    except BrokenPipeError:  # `head`, or a pager, has read enough
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        code = FAILED
    sys.exit(code)


def spread(values: list[float]) -> dict[str, float]:
    """Return median, least and largest of some measurements."""
    return {"median": median(values), "min": min(values), "max": max(values)}


def as_table(header: Sequence[str], rows: Iterable[Sequence[str]]) -> str:
    """Return the lines of a table in Markdown."""
    lines = [header, ["---"] * len(header), *rows]
    return "".join("| " + " | ".join(line) + " |\n" for line in lines)


def run_worker(script: str, *arguments: str) -> dict[str, Any]:
    """Run ``python script arguments`` in a process of its own, and return the JSON that it prints
    last.
    """
    command = [sys.executable, script, *arguments]
    finished = subprocess.run(command, capture_output=True, text=True, check=False)
    if finished.returncode:
        raise SystemExit(f"{' '.join(command)} failed:\n{finished.stderr}")
    result: dict[str, Any] = json.loads(finished.stdout.splitlines()[-1])
    return result


def caches_in(folder: str | Path) -> dict[str, str]:
    """Return the variables by which all that is compiled is kept below a folder: ours, the driver's
    with NVRTC's own, PyTorch's and Triton's. In an empty one nothing is found of earlier processes.
    """
    return {
        name: str(Path(folder) / name.lower())
        for name in (
            *("WARPFIT_CACHE_DIR", "CUDA_CACHE_PATH"),
            *("TORCHINDUCTOR_CACHE_DIR", "TRITON_CACHE_DIR"),
        )
    }


def _version(package: str) -> str | None:
    try:
        return metadata.version(package)
    except metadata.PackageNotFoundError:
        return None


def _commit() -> str:
    """Return the commit; ``$WARPFIT_COMMIT`` names that of a copy that came without its history."""
    if named := os.environ.get("WARPFIT_COMMIT"):
        return named
    if shutil.which("git") is None:
        return "unknown"
    git = ["git", "-C", str(ROOT)]
    commit = subprocess.run(
        [*git, "rev-parse", "--short=12", "HEAD"], capture_output=True, text=True, check=False
    )
    changes = subprocess.run(
        [*git, "status", "--porcelain", "--", "src"], capture_output=True, text=True, check=False
    )
    return (commit.stdout.strip() or "unknown") + (
        " with changes" if changes.stdout.strip() else ""
    )


def _gpu() -> dict[str, str]:
    """Return the first GPU's name and its driver's version, where there is a GPU."""
    query = ["nvidia-smi", "--query-gpu=name,driver_version", "--format=csv,noheader", "--id=0"]
    try:
        found = subprocess.run(query, capture_output=True, text=True, check=True).stdout.strip()
    except (OSError, subprocess.CalledProcessError):
        return {}
    name, _, driver = found.partition(", ")
    return {"gpu": name, "driver": driver}


def _cpu_name() -> str:
    for line in Path("/proc/cpuinfo").read_text(encoding="utf-8").splitlines():
        if line.startswith("model name"):
            return line.partition(":")[2].strip()
    return platform.processor() or "unknown"
