"""``warpfit bench``."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path
from typing import Annotated

import typer

import warpfit
from warpfit.errors import ConfigError

# Options go to the suite as they are, `--help` after its name too.
CONTEXT_SETTINGS = {"ignore_unknown_options": True, "allow_interspersed_args": False}


def bench(
    arguments: Annotated[
        list[str] | None,
        typer.Argument(
            metavar="SUITE [OPTIONS]...",
            help="A suite and its options (`warpfit bench SUITE --help`); list; report "
            "[--check]; or compare A.json B.json [--threshold X].",
        ),
    ] = None,
) -> None:
    """Measure on this machine: suites of a checkout's benchmarks folder, tables, comparisons."""
    script = _folder() / "suite.py"
    done = subprocess.run(
        [sys.executable, str(script), *(arguments or ["list"])], check=False, env=_environment()
    )
    raise typer.Exit(done.returncode)


def _folder() -> Path:
    """Return the benchmarks folder of the checkout that this package is of."""
    package = Path(warpfit.__file__).parent
    folder = package.parents[1] / "benchmarks"
    if not (folder / "suite.py").is_file():
        raise ConfigError(
            "expected a checkout of warpfit, whose benchmarks folder has the suites, got the "
            f"package in {package}"
        )
    return folder


def _environment() -> dict[str, str]:
    """Return the environment, in which the same package is found."""
    paths = (str(Path(warpfit.__file__).parents[1]), os.environ.get("PYTHONPATH"))
    return {**os.environ, "PYTHONPATH": os.pathsep.join(filter(None, paths))}
