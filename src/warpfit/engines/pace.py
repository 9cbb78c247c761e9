"""How many epochs an engine trains at once, before it comes back with their reports."""

from __future__ import annotations

from warpfit.engines.base import BorderTest

# How long epochs that are trained at once should take at most: Ctrl-C is heard after them.
LAUNCH_SECONDS = 0.25
# How many times as many epochs as the time before: what they need is found while those run.
GROWTH = 4


def epochs_to_border(is_border: BorderTest, epoch: int, most: int) -> int:
    """Return how many epochs, of `most`, may be trained at once after `epoch` of them are done."""
    return next((count for count in range(1, most) if is_border(epoch + count)), most)


def epochs_next_time(epochs: int, seconds: float, times_longer: float = 1) -> int:
    """Return how many epochs to train at once after so many, of so many seconds each."""
    return max(1, int(min(GROWTH * epochs, times_longer * LAUNCH_SECONDS / seconds)))
