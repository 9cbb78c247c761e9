"""Python with AddressSanitizer: kernels compiled with ``sanitize=True`` load only there.

The sanitizer's library has to be in the process from its start, so :func:`run_sanitized` starts
another one.
"""

from __future__ import annotations

import functools
import os
import subprocess
import sys
from collections.abc import Sequence

__all__ = ["is_sanitized", "run_sanitized", "sanitizer_missing"]

# Python itself leaks at exit; fibers need real stacks, not the sanitizer's fake ones.
ASAN_OPTIONS = "detect_leaks=0:detect_stack_use_after_return=0"


@functools.cache
def _library(name: str) -> str | None:
    """Return the path of a library that came with g++, or None."""
    path = subprocess.run(
        ["g++", f"-print-file-name={name}"], capture_output=True, text=True, check=True
    ).stdout.strip()
    return path if os.path.isabs(path) else None


def sanitizer_missing() -> str | None:
    """Return why kernels cannot be sanitized here, or None if they can; g++ must be there."""
    return None if _library("libasan.so") else "this g++ comes without libasan"


def is_sanitized() -> bool:
    """Return whether this process was started by :func:`run_sanitized`."""
    return "libasan" in os.environ.get("LD_PRELOAD", "")


def run_sanitized(
    args: Sequence[str], *, timeout: float | None = None
) -> subprocess.CompletedProcess[str]:
    """Run ``python ARGS...`` with AddressSanitizer and return what came of it, its output as text.

    A program that breaks a rule ends with a non-zero status and a report in ``stderr``; pytest
    needs ``-s`` to let the report through.
    """
    preload = [path for path in map(_library, ("libasan.so", "libstdc++.so.6")) if path]
    tests = os.path.dirname(os.path.dirname(__file__))
    path = os.pathsep.join([tests, *filter(None, [os.environ.get("PYTHONPATH")])])
    environment = {
        **os.environ,
        "LD_PRELOAD": ":".join(preload),
        "ASAN_OPTIONS": ASAN_OPTIONS,
        "UBSAN_OPTIONS": "print_stacktrace=1",
        "PYTHONPATH": path,
    }
    return subprocess.run(
        [sys.executable, *args],
        env=environment,
        capture_output=True,
        text=True,
        check=False,
        timeout=timeout,
    )
