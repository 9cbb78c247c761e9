"""Which half precision suits a run: float16 has more digits, bfloat16 more range."""

from __future__ import annotations

from collections.abc import Iterator

from warpfit.engines.base import TrainingData
from warpfit.errors import ConfigError
from warpfit.losses import Loss

__all__ = ["LARGEST", "check_range", "suitable"]

# What x, and the targets of a loss whose slope grows with them, may reach in magnitude for float16.
LARGEST = 1024.0


def suitable(loss: Loss, data: TrainingData) -> tuple[str, str]:
    """Return float16, or bfloat16 where numbers of the data are too large for it, and in words why."""
    for name, largest in _magnitudes(loss, data):
        if largest > LARGEST:
            return "bfloat16", f"{name} reaches {largest:g}, float16 is for at most {LARGEST:g}"
    return "float16", "the data suits float16"


def check_range(loss: Loss, data: TrainingData) -> None:
    """Raise ConfigError if numbers of the data are too large for float16."""
    for name, largest in _magnitudes(loss, data):
        if largest > LARGEST:
            raise ConfigError(f"expected {name} of at most {LARGEST:g} in magnitude, got {largest:g}")


def _magnitudes(loss: Loss, data: TrainingData) -> Iterator[tuple[str, float]]:
    """Yield by name what the numbers of the data reach that float16 has to do with."""
    yield "x", data.largest_x
    if loss.slope(LARGEST) >= LARGEST:
        yield "y", data.largest_y
