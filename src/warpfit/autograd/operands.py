"""What operations of tensors are given besides tensors: numbers and arrays, sizes, axes."""

from __future__ import annotations

from numbers import Integral
from typing import Any

from warpfit.backends import Array, Backend
from warpfit.backends.base import FLOAT_DTYPES
from warpfit.backends.transfer import home_of, moved
from warpfit.checks import as_integers, brief
from warpfit.errors import ShapeError


def values_of(ops: Backend, value: Any, dtype: str) -> Array:
    """Return a number or an array as `dtype`; integers, uint8 included, mean themselves here."""
    # Converted where it lives: a number on its way to a GPU costs one upload then, and no kernel.
    home = home_of(value)
    array = home.asarray(value)
    if array.dtype.kind != "f":
        array = home.asarray(array, "int64")
    return moved(home.asarray(array, dtype if dtype in FLOAT_DTYPES else "float32"), ops, dtype)


def sizes(op: str, numbers: tuple[Any, ...]) -> tuple[int, ...]:
    """Return what was given as ``f(2, 3)`` or ``f((2, 3))`` as one tuple, or raise ShapeError."""
    return as_integers(f"{op}: sizes or axes", numbers[0] if len(numbers) == 1 else numbers)


def check_axis(op: str, axis: Any) -> None:
    """Raise ShapeError unless an operation's axis is an integer."""
    if isinstance(axis, bool) or not isinstance(axis, Integral):
        raise ShapeError(f"{op}: expected an axis as an integer, got {brief(axis)}")
