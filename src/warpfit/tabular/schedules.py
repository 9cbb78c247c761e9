"""How RealMLP learns: Adam, and what changes from step to step."""

from __future__ import annotations

from typing import Any

import numpy as np

from warpfit.optim.adam import AdamSpec
from warpfit.optim.schedules import as_schedule

DROPOUT, WEIGHT_DECAY = 0.15, 0.02
ADAM = AdamSpec(as_schedule(1.0), betas=(0.9, 0.95))


def coslog4(t: Any) -> Any:
    """Return the share of the learning rate at a time t in [0, 1], or at each of several: four
    waves, each twice as long as the one before.
    """
    return 0.5 * (1 - np.cos(2 * np.pi * np.log2(1 + 15 * t)))


def flat_cos(t: Any) -> Any:
    """Return the share of dropout and weight decay likewise: 1, then from the middle on half a
    cosine down to 0.
    """
    return 0.5 * (1 + np.cos(np.pi * np.maximum(2 * t - 1, 0)))
