"""Functions of several tensors; each takes arrays and numbers as well, but at least one tensor."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from warpfit.autograd import formulas
from warpfit.autograd.operands import check_axis
from warpfit.autograd.tensor import Formula, Tensor, apply
from warpfit.backends import Activation, Array
from warpfit.checks import brief
from warpfit.errors import ConfigError, DTypeError, ShapeError

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


def activate(x: Tensor, name: str, negative_slope: float = 0.01) -> Tensor:
    """Return an activation of x, element by element, by the name that it has everywhere.

    Parameters
    ----------
    x : Tensor
    name : str
        As estimators have it: ``'gelu'``, ``'silu'`` and so on.
    negative_slope : float
        Of ``'leaky_relu'`` below 0.

    Raises
    ------
    ConfigError
        If there is no such activation.

    Examples
    --------
    >>> autograd.activate(wf.tensor([-2.0, 3.0]), "leaky_relu", negative_slope=0.5).data
    array([-1.,  3.], dtype=float32)
    """
    return apply(formulas.activate, x, activation=Activation(name, negative_slope))


def relu(x: Tensor) -> Tensor:
    """Return max(x, 0), element by element.

    Examples
    --------
    >>> autograd.relu(wf.tensor([-2.0, 3.0])).data
    array([0., 3.], dtype=float32)
    """
    return activate(x, "relu")


def sigmoid(x: Tensor) -> Tensor:
    """Return 1 / (1 + exp(-x)), element by element.

    Examples
    --------
    >>> autograd.sigmoid(wf.tensor([0.0])).data
    array([0.5], dtype=float32)
    """
    return activate(x, "sigmoid")


def tanh(x: Tensor) -> Tensor:
    """Return tanh(x), element by element.

    Examples
    --------
    >>> autograd.tanh(wf.tensor([0.0])).data
    array([0.], dtype=float32)
    """
    return activate(x, "tanh")


def softmax(x: Tensor, axis: int = -1) -> Tensor:
    """Return exp(x) / Σ exp(x) along an axis.

    Examples
    --------
    >>> autograd.softmax(wf.tensor([[1.0, 1.0]])).data
    array([[0.5, 0.5]], dtype=float32)
    """
    return _along(formulas.softmax, x, axis)


def log_softmax(x: Tensor, axis: int = -1) -> Tensor:
    """Return x - log Σ exp(x) along an axis.

    Examples
    --------
    >>> autograd.log_softmax(wf.tensor([[1.0, 1.0]])).exp().data
    array([[0.5, 0.5]], dtype=float32)
    """
    return _along(formulas.log_softmax, x, axis)


def _along(formula: Formula, x: Tensor, axis: int) -> Tensor:
    """Return a formula along the last axis as one along any, which changes places with the last."""
    name = formula.__name__
    check_axis(name, axis)
    if not isinstance(x, Tensor):
        raise DTypeError(f"{name}: expected a tensor, got {brief(x)}")
    if not -x.ndim <= axis < x.ndim:
        raise ShapeError(f"{name}: expected an axis of a tensor of shape {x.shape}, got {axis}")
    places = list(range(x.ndim))
    places[axis], places[-1] = places[-1], places[axis]
    if places[-1] == x.ndim - 1:
        return apply(formula, x)
    return apply(formula, x.transpose(places)).transpose(places)


def _several(op: str, tensors: Any) -> Sequence[Any]:
    if not isinstance(tensors, list | tuple):
        raise ConfigError(f"{op}: expected a list of tensors, got {brief(tensors)}")
    return tensors


def _axis(op: str, axis: Any) -> int:
    check_axis(op, axis)
    return max(-MAX_AXES, min(int(axis), MAX_AXES))  # beyond, there is no such axis in any case
