"""Notebooks that run in a kernel of their own."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

import pytest

ROOT = Path(__file__).resolve().parents[2]
SECONDS = 60


def executed(notebook: Any, monkeypatch: pytest.MonkeyPatch) -> Any:
    """Return the notebook with what its cells printed; the kernel imports this checkout's
    package.
    """
    import nbclient

    paths = [str(ROOT / "src"), *filter(None, [os.environ.get("PYTHONPATH")])]
    monkeypatch.setenv("PYTHONPATH", os.pathsep.join(paths))
    monkeypatch.setenv("OPENBLAS_NUM_THREADS", "1")
    monkeypatch.setenv("MPLBACKEND", "module://matplotlib_inline.backend_inline")
    client = nbclient.NotebookClient(
        notebook,
        timeout=SECONDS,
        kernel_name="python3",
        resources={"metadata": {"path": ROOT / "notebooks"}},
    )
    return client.execute()
