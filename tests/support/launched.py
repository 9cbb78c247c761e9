"""Programs that a launcher runs in several processes, which find each other by a file."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

__all__ = ["launch"]

ROOT = Path(__file__).resolve().parents[2]


def launch(
    folder: Path, program: str, size: int = 2, *, as_torchrun: bool = False
) -> list[subprocess.Popen[str]]:
    """Start a process for each rank, on the CPU, of a program that is written to a folder."""
    path = folder / "program.py"
    path.write_text(program, encoding="utf-8")
    paths = os.pathsep.join(map(str, (ROOT / "src", ROOT / "tests")))
    shared = {"PYTHONPATH": paths, "OPENBLAS_NUM_THREADS": "1", "WARPFIT_DEVICE": "cpu"}
    if as_torchrun:
        prefix = ""
        shared |= {"TORCHELASTIC_RUN_ID": folder.name, "MASTER_PORT": str(os.getpid())}
    else:
        prefix = "WARPFIT_"
        shared["WARPFIT_MEETING"] = str(folder / "meeting")
    shared[f"{prefix}WORLD_SIZE"] = str(size)
    return [
        subprocess.Popen(
            [sys.executable, str(path)],
            env={
                **os.environ,
                **shared,
                **{f"{prefix}{name}": str(rank) for name in ("RANK", "LOCAL_RANK")},
            },
            cwd=folder,
            text=True,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
        )
        for rank in range(size)
    ]
