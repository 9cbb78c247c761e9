"""Where the real MNIST is, if it is on this machine."""

from __future__ import annotations

import os
from pathlib import Path

from support.environment import DATA

__all__ = ["find_mnist"]

REPO_ROOT = Path(__file__).parents[2]


def find_mnist() -> Path | None:
    """Return the first folder that has ``mnist/*.gz``: $WARPFIT_DATA, .data or ../shared/data."""
    named = os.environ.get(DATA)
    roots = [Path(named)] if named else []
    roots += [REPO_ROOT / ".data", REPO_ROOT.parent / "shared" / "data"]
    for root in roots:
        if len(list((root / "mnist").glob("*ubyte.gz"))) == 4:
            return root.resolve()
    return None
