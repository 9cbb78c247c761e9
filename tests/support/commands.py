"""Runs commands as the shell would."""

from __future__ import annotations

import contextlib
import io
import os
import subprocess
import sys
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import pytest

import warpfit
from support.strict import STRICT
from warpfit.cli import main

# A quick run that learns something.
DIGITS = (
    "--data",
    "digits",
    "--limit",
    "320",
    "--batch-size",
    "16",
    "--hidden",
    "32",
    "--epochs",
    "3",
)

# For commands in other processes and folders: the package that is under test.
ENVIRONMENT = {
    **os.environ,
    "PYTHONPATH": str(Path(warpfit.__file__).parents[1]),
    "WARPFIT_DEVICE": "cpu",  # on a machine with a GPU, too
}


@dataclass(frozen=True)
class Outcome:
    """What a command left: its exit code and what it printed."""

    code: int
    out: str
    err: str


Invoke = Callable[..., Outcome]


def run_main(*arguments: object) -> Outcome:
    """Return the outcome of ``warpfit`` with arguments, run in this process."""
    out, err = io.StringIO(), io.StringIO()
    with (
        contextlib.redirect_stdout(out),
        contextlib.redirect_stderr(err),
        pytest.raises(SystemExit) as exit_of,
    ):
        main([str(argument) for argument in arguments])
    assert isinstance(exit_of.value.code, int)
    return Outcome(exit_of.value.code, out.getvalue(), err.getvalue())


def run_python(*arguments: str) -> Outcome:
    """Return the outcome of a Python process in which warnings are errors."""
    command = [sys.executable, *STRICT, *arguments]
    done = subprocess.run(
        command, capture_output=True, text=True, timeout=60, check=False, env=ENVIRONMENT
    )
    return Outcome(done.returncode, done.stdout, done.stderr)
