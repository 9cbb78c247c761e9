"""How many cores this process may use."""

from __future__ import annotations

import os
from contextlib import suppress
from pathlib import Path

# Microseconds of all cores that a container may use in each period, and the period; "max" is all.
QUOTA = Path("/sys/fs/cgroup/cpu.max")


def num_cores() -> int:
    """Return how many cores this process may use, at least 1, as affinity and containers say."""
    return max(1, min(_allowed(), _of_quota()))


def _allowed() -> int:
    if hasattr(os, "process_cpu_count"):  # Python 3.13
        return os.process_cpu_count() or 1
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


def _of_quota() -> int:
    with suppress(OSError, ValueError):
        quota, period = QUOTA.read_text(encoding="ascii").split()
        return -(-int(quota) // int(period))
    return os.cpu_count() or 1
