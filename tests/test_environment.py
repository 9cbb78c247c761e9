"""Tests see the same environment and hear Ctrl-C, whatever the shell holds that starts them."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from support.environment import DATA, DEBUG, KEPT, cleaned

HOSTILE = {
    "WARPFIT_DATA": "/data",
    "WARPFIT_DEVICE": "cuda:7",
    "WARPFIT_DEBUG": "1",
    "WARPFIT_AUTOTUNE": "1",
    "WARPFIT_OF_TOMORROW": "1",
    "COLUMNS": "37",
    "NO_COLOR": "1",
    "FORCE_COLOR": "1",
    "TERM": "dumb",
    "LANG": "C",
    "LC_ALL": "C",
    "CI": "true",
    "PYTHONWARNINGS": "error",
    "PYTEST_ADDOPTS": "-x",
    "MPLBACKEND": "TkAgg",
    "DISPLAY": ":9",
    "GIT_DIR": "/nowhere",
    "OMP_NUM_THREADS": "3",
    "XDG_CACHE_HOME": "/proc/nothing",
}

TELL = """
import json, os, signal
from support.environment import start_clean
start_clean()
print(json.dumps([dict(os.environ), signal.getsignal(signal.SIGINT) is signal.default_int_handler]))
"""


def test_what_is_left_of_a_hostile_environment() -> None:
    assert cleaned({**HOSTILE, "PATH": "/bin"}) == {
        "PATH": "/bin",
        "LANG": "C.UTF-8",
        DATA: "/data",
    }
    for name in KEPT:
        assert cleaned({name: "x"})[name] == "x"
    assert cleaned(cleaned(HOSTILE)) == cleaned(HOSTILE)  # as pytest's workers clean it once more


def test_this_session_is_clean() -> None:
    given = {name: value for name, value in os.environ.items() if name != "WARPFIT_DEVICE"}
    assert cleaned(given) == given
    assert signal.getsignal(signal.SIGINT) is not signal.SIG_IGN


@pytest.mark.skipif(sys.platform == "win32", reason="no such signals")
def test_a_job_in_the_background_hears_ctrl_c() -> None:
    tests = str(Path(__file__).parent)
    command = ["sh", "-c", "trap '' INT; exec \"$@\"", "sh", sys.executable, "-c", TELL]
    environment = {**os.environ, **HOSTILE, "PYTHONPATH": tests, "PYTHONWARNINGS": "default"}
    done = subprocess.run(
        command, env=environment, capture_output=True, text=True, timeout=60, check=True
    )
    left, heard = json.loads(done.stdout)
    assert heard
    assert left[DATA] == "/data"
    assert not set(left) & (set(HOSTILE) - {"LANG"})


def test_kernels_are_debugged_where_tests_are_asked_to() -> None:
    assert "WARPFIT_DEBUG" not in cleaned({"WARPFIT_DEBUG": "1"})
    assert cleaned({DEBUG: "1"})["WARPFIT_DEBUG"] == "1"
