"""Functions of several tensors; each takes arrays and numbers as well, but at least one tensor."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from warpfit.autograd import formulas
from warpfit.autograd.tensor import Tensor, apply
from warpfit.backends import Array

__all__ = ["concatenate", "maximum", "minimum", "stack", "where"]


def maximum(a: Any, b: Any) -> Tensor:
    """Return the larger of a and b, element by element; the gradient is halved where they are equal."""
    return apply(formulas.maximum, a, b)


def minimum(a: Any, b: Any) -> Tensor:
    """Return the smaller of a and b, element by element; the gradient is halved where they are equal."""
    return apply(formulas.minimum, a, b)


def where(condition: Array, a: Any, b: Any) -> Tensor:
    """Return a where the condition, an array of bool, holds, else b; all three broadcast."""
    return apply(formulas.where, a, b, condition=condition)


def concatenate(tensors: Sequence[Any], axis: int = 0) -> Tensor:
    """Return the tensors joined along an axis that they have."""
    return apply(formulas.concatenate, *tensors, axis=axis)


def stack(tensors: Sequence[Any], axis: int = 0) -> Tensor:
    """Return the tensors, all of one shape, joined along a new axis."""
    return apply(formulas.stack, *tensors, axis=axis)
