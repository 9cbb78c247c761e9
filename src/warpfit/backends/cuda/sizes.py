"""Sizes in whole tiles: those of `sizes.cuh`."""

from __future__ import annotations


def up(size: int, unit: int) -> int:
    """Return the next multiple of `unit`."""
    return -(-size // unit) * unit


def padded(size: int) -> int:
    """Return the next multiple of 16: of numbers for tensor cores, of bytes for copies."""
    return up(size, 16)
