"""Sizes and pairs of sizes, as the layers take them."""

from __future__ import annotations

from typing import Any

from warpfit.backends.base import Pair
from warpfit.checks import check_count
from warpfit.errors import ConfigError

LIMIT = 2**60


def as_size(layer: str, name: str, value: Any, least: int = 1) -> int:
    """Return the value as an int, or ConfigError unless it is an integer of at least `least`."""
    try:
        size = check_count(name, value, least)
    except ConfigError as error:
        raise ConfigError(f"{layer}: {error}") from None
    if size >= LIMIT:
        raise ConfigError(f"{layer}: expected {name} below 2**60, got {size}")
    return size


def as_pair(layer: str, name: str, value: Any, least: int) -> Pair:
    """Return (height, width) from a pair or one number for both, or ConfigError as `as_size`."""
    pair = value if isinstance(value, (tuple, list)) else (value, value)
    if len(pair) != 2:
        raise ConfigError(
            f"{layer}: expected {name} to be an integer or two of them, got {value!r}"
        )
    height, width = (as_size(layer, name, size, least) for size in pair)
    return height, width


def as_padding(layer: str, padding: Any, kernel: Pair, stride: Pair, dilation: Pair) -> Pair:
    """Return the zeros on either side: as many as are given, none for ``'valid'``, and for
    ``'same'`` those that keep the size of an image; or ConfigError if none do.
    """
    if not isinstance(padding, str):
        return as_pair(layer, "padding", padding, 0)
    if padding == "valid":
        return 0, 0
    if padding != "same":
        raise ConfigError(
            f"{layer}: expected padding as integers, 'same' or 'valid', got {padding!r}"
        )
    if stride != (1, 1):
        raise ConfigError(f"{layer}: expected stride 1 for padding='same', got {stride}")
    height, width = (step * (size - 1) for step, size in zip(dilation, kernel, strict=True))
    if height % 2 or width % 2:
        raise ConfigError(f"{layer}: expected an odd kernel_size for padding='same', got {kernel}")
    return height // 2, width // 2
