"""Checks of arguments that any part of the package may need."""

from __future__ import annotations

from typing import Any

import numpy as np

from warpfit.errors import ConfigError

__all__ = ["check_count"]


def check_count(name: str, value: Any, lowest: int) -> int:
    """Return `value` as an int, or raise ConfigError unless it is an integer of at least `lowest`."""
    if isinstance(value, bool) or not isinstance(value, (int, np.integer)) or value < lowest:
        raise ConfigError(f"expected {name} to be an integer of at least {lowest}, got {value!r}")
    return int(value)
