"""Clusters of two workers on this machine, each with a card, started by their own commands."""

from __future__ import annotations

import os
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager
from importlib.util import find_spec
from pathlib import Path

import pytest

__all__ = [
    "RAYS_ENVIRONMENT",
    "dask_cluster",
    "free_port",
    "needs_dask",
    "needs_ray",
    "ray_cluster",
    "started",
    "wait_for",
]

needs_dask = pytest.mark.skipif(
    find_spec("distributed") is None, reason="distributed (Dask) is not installed"
)
needs_ray = pytest.mark.skipif(find_spec("ray") is None, reason="Ray is not installed")


@contextmanager
def started(
    command: Sequence[str], environment: dict[str, str], folder: Path
) -> Iterator[subprocess.Popen[bytes]]:
    """Run a command in a session of its own, all of which ends with the block."""
    with open(folder / "cluster.log", "ab") as log:
        process = subprocess.Popen(
            command, env=environment, cwd=folder, stdout=log, stderr=log, start_new_session=True
        )
    try:
        yield process
    finally:
        for sent in (signal.SIGTERM, signal.SIGKILL):
            try:
                os.killpg(process.pid, sent)
                process.wait(timeout=10)
            except (ProcessLookupError, subprocess.TimeoutExpired):
                continue


@contextmanager
def dask_cluster(folder: Path, environment: dict[str, str]) -> Iterator[str]:
    """Yield the file that says where the scheduler is."""
    where = str(folder / "scheduler.json")
    dask = (sys.executable, "-m", "dask")
    at = ("--scheduler-file", where)
    with ExitStack() as stack:
        scheduler = [*dask, "scheduler", *at, "--port", "0", "--no-dashboard"]
        stack.enter_context(started(scheduler, environment, folder))
        wait_for(Path(where))
        for card in range(2):
            worker = [*dask, "worker", *at, "--nthreads", "1", "--no-dashboard"]
            own = {**environment, "CUDA_VISIBLE_DEVICES": str(card)}
            stack.enter_context(started(worker, own, folder))
        yield where


# Whatever tokens other clusters have left in this home.
RAYS_ENVIRONMENT = {"RAY_AUTH_MODE": "disabled", "RAY_USAGE_STATS_ENABLED": "0"}


@contextmanager
def ray_cluster(folder: Path, environment: dict[str, str]) -> Iterator[str]:
    """Yield the address of a head that believes it has two cards."""
    port = free_port()
    ray = [sys.executable, "-m", "ray.scripts.scripts", "start", "--head", "--block"]
    sizes = ["--num-cpus=2", "--num-gpus=2", f"--port={port}", f"--temp-dir={folder / 'ray'}"]
    command = [*ray, *sizes, "--include-dashboard=false"]
    with started(command, {**environment, **RAYS_ENVIRONMENT}, folder):
        wait_for(folder / "cluster.log", saying="Ray runtime started")
        yield f"127.0.0.1:{port}"


def free_port() -> int:
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        found: int = taken.getsockname()[1]
        return found


def wait_for(path: Path, *, saying: str = "", seconds: float = 60) -> None:
    """Wait until a file is there, and says something."""
    end = time.monotonic() + seconds
    while not path.exists() or saying not in path.read_text():
        assert time.monotonic() < end, f"{path.name} is not there, or does not say {saying!r}"
        time.sleep(0.05)
