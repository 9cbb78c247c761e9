"""What the parts of a step cost, kernel by kernel, on a card that was measured: one file per card.

A launch counts how often a step has each cost (`ResidentLaunch.costs`), and a step is expected to
take their sum at these prices. ``benchmarks/launch_costs.py`` measures steps, fits the prices and
writes the file, with the date.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from functools import lru_cache
from pathlib import Path
from typing import Any

__all__ = ["CARD", "expected_microseconds", "path_of", "read_prices"]

# The only one that has been measured. Plans say so: "on an H200".
CARD = "h200"


def path_of(card: str) -> Path:
    """Return where a card's prices lie."""
    return Path(__file__).with_name(f"{card}.json")


@lru_cache
def read_prices(card: str = CARD) -> dict[str, Any]:
    """Return a card's file: by kernel, when it was measured, and the nanoseconds of each cost."""
    found: dict[str, Any] = json.loads(path_of(card).read_text(encoding="utf-8"))
    return found


def expected_microseconds(kernel: str, costs: Mapping[str, float]) -> float:
    """Return what a step of a kernel is expected to take that has each of `costs` so many times."""
    nanoseconds = read_prices()["kernels"][kernel]["nanoseconds"]
    return float(sum(nanoseconds[name] * count for name, count in costs.items())) / 1000
