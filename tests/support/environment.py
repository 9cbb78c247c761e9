"""What tests run in: the same environment and signals, whatever the user's shell holds."""

from __future__ import annotations

import os
import signal
import sys
import tempfile
import threading
from collections.abc import Mapping
from pathlib import Path

__all__ = ["DATA", "cleaned", "start_clean"]

# Under this name tests that ask for real data find what the user calls WARPFIT_DATA, pytest's
# workers too.
DATA = "WARPFIT_TESTS_DATA"
# Asks for kernels that say where they wait in vain, and that racecheck can follow.
DEBUG = "WARPFIT_TESTS_DEBUG"

# Of WARPFIT_*: that, what the emulator is told, and where a GPU's kernels are kept that take
# minutes to compile.
KEPT = {
    DATA,
    DEBUG,
    "WARPFIT_EMULATOR_CACHE",
    "WARPFIT_EMULATE_REVERSED",
    "WARPFIT_LAUNCHES",
    "WARPFIT_CACHE_DIR",
}

# What changes how programs look, speak, warn, draw, count threads and find things.
DROPPED = {
    *(
        "BROWSER",
        "CI",
        "CLICOLOR",
        "CLICOLOR_FORCE",
        "COLORTERM",
        "COLUMNS",
        "DISPLAY",
        "FORCE_COLOR",
    ),
    *(
        "GITHUB_ACTIONS",
        "GIT_DIR",
        "GIT_INDEX_FILE",
        "GIT_WORK_TREE",
        "JUPYTER_COLUMNS",
        "JUPYTER_LINES",
    ),
    *(
        "LANGUAGE",
        "LC_ALL",
        "LINES",
        "LOKY_MAX_CPU_COUNT",
        "MKL_NUM_THREADS",
        "MPLBACKEND",
        "NO_COLOR",
    ),
    *("OMP_NUM_THREADS", "PYTEST_ADDOPTS", "PYTHONINSPECT", "PYTHONOPTIMIZE", "PYTHONUNBUFFERED"),
    *(
        "PYTHONWARNINGS",
        "TERM",
        "TTY_COMPATIBLE",
        "TTY_INTERACTIVE",
        "WAYLAND_DISPLAY",
        "XDG_CACHE_HOME",
    ),
}


def cleaned(environment: Mapping[str, str]) -> dict[str, str]:
    """Return an environment without what would change the outcome of a test."""
    given = {DATA: environment["WARPFIT_DATA"]} if "WARPFIT_DATA" in environment else {}
    if DEBUG in environment:
        given["WARPFIT_DEBUG"] = environment[DEBUG]
    kept = {
        name: value
        for name, value in environment.items()
        if name not in DROPPED and (not name.startswith("WARPFIT_") or name in KEPT)
    }
    return {**kept, **given, "LANG": "C.UTF-8"}


def keep_bytecode() -> None:
    """Keep bytecode elsewhere where none may lie beside sources: compiling takes half of a
    process's start.
    """
    if not sys.dont_write_bytecode or sys.platform == "win32":
        return
    folder = Path(tempfile.gettempdir()) / f"warpfit-bytecode-{os.getuid()}"
    folder.mkdir(mode=0o700, exist_ok=True)
    if folder.stat().st_uid == os.getuid():
        sys.dont_write_bytecode, sys.pycache_prefix = False, str(folder)
        os.environ["PYTHONPYCACHEPREFIX"] = str(folder)
        os.environ.pop("PYTHONDONTWRITEBYTECODE", None)


def start_clean() -> None:
    """Clean the environment of this process, and so of all that it starts, and let it hear Ctrl-C.

    What a shell starts in the background ignores Ctrl-C, and hands that on to its own processes.
    """
    clean = cleaned(os.environ)
    for name in set(os.environ) - set(clean):
        del os.environ[name]
    os.environ.update(clean)
    keep_bytecode()
    main = threading.current_thread() is threading.main_thread()
    if main and signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
        signal.signal(signal.SIGINT, signal.default_int_handler)
