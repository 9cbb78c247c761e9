"""Sizes and pairs of sizes, as the layers take them."""

from __future__ import annotations

from typing import Any

from warpfit.backends.base import Pair
from warpfit.checks import check_count
from warpfit.errors import ConfigError

__all__ = ["as_pair", "as_size"]


LIMIT = 2**60


def as_size(layer: str, name: str, value: Any, least: int = 1) -> int:
    """Return the value as an int, or raise ConfigError unless it is an integer of at least
    `least`.
    """
    try:
        size = check_count(name, value, least)
    except ConfigError as error:
        raise ConfigError(f"{layer}: {error}") from None
    if size >= LIMIT:
        raise ConfigError(f"{layer}: expected {name} below 2**60, got {size}")
    return size


def as_pair(layer: str, name: str, value: Any, least: int) -> Pair:
    """Return (height, width) from a pair or from one number for both, or raise ConfigError as
    `as_size`.
    """
    pair = value if isinstance(value, (tuple, list)) else (value, value)
    if len(pair) != 2:
        raise ConfigError(
            f"{layer}: expected {name} to be an integer or two of them, got {value!r}"
        )
    height, width = (as_size(layer, name, size, least) for size in pair)
    return height, width
