"""The page on clusters runs as it stands: its programs, by its commands."""

from __future__ import annotations

import os
import re
import shlex
import subprocess
import sys
from collections.abc import Iterator, Sequence
from contextlib import ExitStack
from pathlib import Path
from tempfile import TemporaryDirectory

import pytest

from support.clusters import RAYS_ENVIRONMENT, free_port, needs_dask, needs_ray, started, wait_for
from support.commands import ENVIRONMENT
from support.mpi import mpiexec, with_mpi

ROOT = Path(__file__).resolve().parents[1]
PAGE = (ROOT / "docs" / "distributed.md").read_text(encoding="utf-8")
BLOCKS = re.findall(r"^```(\w*)\n(.*?)^```$", PAGE, re.MULTILINE | re.DOTALL)
PROGRAMS = {code.split()[1]: code for language, code in BLOCKS if language == "python"}
DASK, RAY, SKLEARN, THREADS = (code.splitlines() for language, code in BLOCKS if not language)
MODULES = {"dask": ["-m", "dask"], "ray": ["-m", "ray.scripts.scripts"], "python": []}


@pytest.fixture
def folder() -> Iterator[Path]:
    """The programs, in a folder with a short name: sockets lie in it; no machine has cards."""
    with TemporaryDirectory(prefix="wf", ignore_cleanup_errors=True) as name:
        for program, code in PROGRAMS.items():
            (Path(name) / program).write_text(re.sub(r"cuda:\d", "cpu", code))
        yield Path(name)


def parsed(command: str) -> tuple[list[str], dict[str, str]]:
    """Return a command of the page as this Python's, and its environment."""
    words = shlex.split(command)
    own = dict(word.split("=", 1) for word in words if re.match("[A-Z_]+=", word))
    name, *rest = words[len(own) :]
    paths = [str(ROOT / "src"), *filter(None, sys.path)]
    path = {"PYTHONPATH": os.pathsep.join(paths), "OPENBLAS_NUM_THREADS": "1"}
    environment = {**ENVIRONMENT, **path, **RAYS_ENVIRONMENT, "WARPFIT_DEVICE": "cpu", **own}
    return [sys.executable, *MODULES[name], *rest], environment


def run(folder: Path, command: str, **more: str) -> subprocess.CompletedProcess[str]:
    words, environment = parsed(command)
    done = subprocess.run(
        words,
        cwd=folder,
        env={**environment, **more},
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    return done


def start(stack: ExitStack, folder: Path, commands: Sequence[str]) -> None:
    for command in commands:
        stack.enter_context(started(*parsed(command), folder))
        wait_for(folder / "cluster.json")


@pytest.mark.slow
def test_several_devices_of_one_machine(folder: Path) -> None:
    assert "in turn by cpu, cpu, whichever is free" in run(folder, *THREADS).stdout


def test_one_network_on_several_devices(folder: Path) -> None:
    done = run(folder, "python with_cards.py").stdout
    assert done.startswith("('cpu', 'cpu') ")
    assert "2 ranks share each batch" in done


@pytest.mark.slow
@with_mpi
def test_one_network_in_processes(folder: Path) -> None:
    process = mpiexec(folder, PROGRAMS["with_mpi.py"])
    out, errors = process.communicate(timeout=100)
    assert process.returncode == 0, errors
    first, second = out.split()
    assert first == second


@pytest.mark.slow
@needs_dask
def test_dask(folder: Path) -> None:
    *cluster, program = DASK
    with ExitStack() as stack:
        start(stack, folder, cluster)
        assert "2 shards by ClientExecutor, on auto {'lr'" in run(folder, program).stdout
        done = run(folder, *SKLEARN)
        assert done.stdout.startswith("{'alpha': ")
        assert "dask, 2 workers" in done.stderr


@pytest.mark.slow
@needs_ray
def test_ray(folder: Path) -> None:
    head, program, stop = RAY
    assert stop == "ray stop"  # which would stop every cluster of this machine
    port = free_port()
    head += f" --block --num-cpus=2 --num-gpus=2 --port={port} --temp-dir={folder}/ray"
    with started(*parsed(head), folder):
        wait_for(folder / "cluster.log", saying="Ray runtime started")
        found = run(folder, program, RAY_ADDRESS=f"127.0.0.1:{port}")
    assert "2 shards by ray, on auto {'lr'" in found.stdout
