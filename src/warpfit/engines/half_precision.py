"""Which half precision suits a run: float16 has more digits, bfloat16 more range."""

from __future__ import annotations

from warpfit.engines.base import TrainingData
from warpfit.losses import Loss

# What x, and the targets of a loss whose gradient grows with them, may reach in magnitude for
# float16.
LARGEST = 1024.0


def suitable(loss: Loss, data: TrainingData) -> tuple[str, str]:
    """Return float16, or bfloat16 for data with too large numbers, and in words why."""
    if (found := _too_large(loss, data)) is None:
        return "float16", "the data suits float16"
    name, largest = found
    return "bfloat16", f"{name} reaches {largest:g}, float16 is for at most {LARGEST:g}"


def _too_large(loss: Loss, data: TrainingData) -> tuple[str, float] | None:
    """Return numbers of the data too large for float16, by name, with the largest, or None."""
    if data.largest_x > LARGEST:
        return "x", data.largest_x
    if loss.largest_derivative(LARGEST) >= LARGEST and data.largest_y > LARGEST:
        return "y", data.largest_y
    return None
