"""Programs that MPI runs in several processes."""

from __future__ import annotations

import os
import subprocess
import sys
from importlib.util import find_spec
from pathlib import Path

import pytest

__all__ = ["mpiexec", "with_mpi"]

MPIEXEC = Path(sys.executable).with_name("mpiexec")
ROOT = Path(__file__).resolve().parents[2]

with_mpi = pytest.mark.skipif(
    find_spec("mpi4py") is None or not MPIEXEC.exists(), reason="mpi4py or mpich is not installed"
)


def mpiexec(folder: Path, program: str, size: int = 2) -> subprocess.Popen[str]:
    """Start processes that run a program, which is written to a folder, on the CPU."""
    path = folder / "program.py"
    path.write_text(program, encoding="utf-8")
    command = [str(MPIEXEC), "-n", str(size), sys.executable, str(path)]
    paths = os.pathsep.join(map(str, (ROOT / "src", ROOT / "tests")))
    environment = {"PYTHONPATH": paths, "OPENBLAS_NUM_THREADS": "1", "WARPFIT_DEVICE": "cpu"}
    return subprocess.Popen(
        command,
        env={**os.environ, **environment},
        cwd=folder,
        text=True,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
    )
