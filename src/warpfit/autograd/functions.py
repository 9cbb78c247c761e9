"""Functions of several tensors; each takes arrays and numbers as well, but at least one tensor."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from warpfit.autograd import formulas
from warpfit.autograd.operands import check_axis
from warpfit.autograd.tensor import Tensor, apply
from warpfit.backends import Array
from warpfit.checks import brief
from warpfit.errors import ConfigError

__all__ = ["concatenate", "maximum", "minimum", "stack", "where"]


MAX_AXES = 65  # one more than NumPy's arrays have


def maximum(a: Any, b: Any) -> Tensor:
    """Return the larger of a and b, element by element; the gradient is halved where they are
    equal.

    Examples
    --------
    >>> autograd.maximum(wf.tensor([-1.0, 2.0]), 0).data
    array([0., 2.], dtype=float32)
    """
    return apply(formulas.maximum, a, b)


def minimum(a: Any, b: Any) -> Tensor:
    """Return the smaller of a and b, element by element; the gradient is halved where they are
    equal.

    Examples
    --------
    >>> autograd.minimum(wf.tensor([-1.0, 2.0]), 0).data
    array([-1.,  0.], dtype=float32)
    """
    return apply(formulas.minimum, a, b)


def where(condition: Array, a: Any, b: Any) -> Tensor:
    """Return a where the condition holds, else b; all three broadcast.

    Parameters
    ----------
    condition : array of bool
    a, b : Tensor, array or number
        At least one a tensor.

    Raises
    ------
    DTypeError
        If the condition is not of bool, or neither a nor b is a tensor.
    ShapeError
        If the three do not broadcast.

    Examples
    --------
    >>> autograd.where(np.array([True, False]), wf.tensor([1.0, 2.0]), 0).data
    array([1., 0.], dtype=float32)
    """
    return apply(formulas.where, a, b, condition=condition)


def concatenate(tensors: Sequence[Any], axis: int = 0) -> Tensor:
    """Return the tensors joined along an axis that they have.

    Examples
    --------
    >>> autograd.concatenate([wf.tensor([1.0]), wf.tensor([2.0, 3.0])]).data
    array([1., 2., 3.], dtype=float32)
    """
    return apply(
        formulas.concatenate, *_several("concatenate", tensors), axis=_axis("concatenate", axis)
    )


def stack(tensors: Sequence[Any], axis: int = 0) -> Tensor:
    """Return the tensors, all of one shape, joined along a new axis.

    Examples
    --------
    >>> autograd.stack([wf.tensor([1.0]), wf.tensor([2.0])]).shape
    (2, 1)
    """
    return apply(formulas.stack, *_several("stack", tensors), axis=_axis("stack", axis))


def _several(op: str, tensors: Any) -> Sequence[Any]:
    if not isinstance(tensors, list | tuple):
        raise ConfigError(f"{op}: expected a list of tensors, got {brief(tensors)}")
    return tensors


def _axis(op: str, axis: Any) -> int:
    check_axis(op, axis)
    return max(-MAX_AXES, min(int(axis), MAX_AXES))  # beyond, there is no such axis in any case
