"""The vector-Jacobian products of the tensor's operators: each formula beside its derivative, once.

Every formula is a function ``f(ops, *arrays, **settings)`` that returns y and its pullback: the
function from dy, of y's shape, to a tuple of gradients, one for each array. Operands broadcast as
in NumPy, and the gradient of a broadcast operand is summed down to its shape. Where a function has
no derivative, a value between those on both sides is taken: abs' is 0 at 0, maximum and minimum
give each of two equal operands half, and max and min share among equal entries.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from math import prod
from typing import Any

from warpfit.backends import Activation, Array, Backend
from warpfit.backends.base import Axis
from warpfit.errors import ShapeError

Derivative = Callable[[Array], Array]
Pullback = Callable[..., tuple[Array | None, ...]]
Shape = tuple[int, ...]


def _pullback(*derivatives: Derivative) -> Pullback:
    """Return the pullback of one function for each operand, from dy to that operand's gradient.

    It takes, besides dy, which operands need a gradient; the others get None, and nothing is
    computed for them.
    """

    def pullback(dy: Array, needed: Sequence[bool] | None = None) -> tuple[Array | None, ...]:
        wanted = needed or [True] * len(derivatives)
        return tuple(d(dy) if want else None for d, want in zip(derivatives, wanted, strict=True))

    return pullback


# -- arithmetic


def add(ops: Backend, a: Array, b: Array) -> tuple[Array, Pullback]:
    """y = a + b; da = dy, db = dy."""
    return ops.binary("add", a, b), _pullback(
        lambda dy: ops.unbroadcast(dy, a.shape),
        lambda dy: ops.unbroadcast(dy, b.shape),
    )


def sub(ops: Backend, a: Array, b: Array) -> tuple[Array, Pullback]:
    """y = a - b; da = dy, db = -dy."""
    return ops.binary("sub", a, b), _pullback(
        lambda dy: ops.unbroadcast(dy, a.shape),
        lambda dy: ops.unary("neg", ops.unbroadcast(dy, b.shape)),
    )


def mul(ops: Backend, a: Array, b: Array) -> tuple[Array, Pullback]:
    """y = a · b; da = dy · b, db = dy · a."""
    return ops.binary("mul", a, b), _pullback(
        lambda dy: ops.unbroadcast(ops.binary("mul", dy, b), a.shape),
        lambda dy: ops.unbroadcast(ops.binary("mul", dy, a), b.shape),
    )


def div(ops: Backend, a: Array, b: Array) -> tuple[Array, Pullback]:
    """y = a / b; da = dy / b, db = -dy · y / b."""
    y = ops.binary("div", a, b)

    def to_b(dy: Array) -> Array:
        derivative = ops.binary("div", ops.unary("neg", y), b)
        return ops.unbroadcast(ops.binary("mul", dy, derivative), b.shape)

    return y, _pullback(lambda dy: ops.unbroadcast(ops.binary("div", dy, b), a.shape), to_b)


def pow(ops: Backend, a: Array, b: Array) -> tuple[Array, Pullback]:
    """y = aᵇ; da = dy · b · aᵇ⁻¹, 0 where b is 0; db = dy · y · log a, 0 where a = 0 and b ≥ 0."""
    y = ops.binary("pow", a, b)

    def to_a(dy: Array) -> Array:
        derivative = ops.binary("mul", b, ops.binary("pow", a, ops.binary("sub", b, 1.0)))
        derivative = ops.where(ops.binary("eq", b, 0.0), 0.0, derivative)
        return ops.unbroadcast(ops.binary("mul", dy, derivative), a.shape)

    def to_b(dy: Array) -> Array:
        derivative = ops.binary("mul", y, ops.unary("log", a))
        at_zero = ops.where(ops.binary("ge", b, 0.0), 0.0, derivative)
        derivative = ops.where(ops.binary("eq", a, 0.0), at_zero, derivative)
        return ops.unbroadcast(ops.binary("mul", dy, derivative), b.shape)

    return y, _pullback(to_a, to_b)


def neg(ops: Backend, x: Array) -> tuple[Array, Pullback]:
    """y = -x; dx = -dy."""
    return ops.unary("neg", x), _pullback(lambda dy: ops.unary("neg", dy))


def _larger(name: str, ops: Backend, a: Array, b: Array) -> tuple[Array, Pullback]:
    wins = {"maximum": "gt", "minimum": "lt"}[name]

    def to(own: Array, other: Array) -> Derivative:
        def derivative(dy: Array) -> Array:
            half = ops.where(ops.binary("eq", own, other), ops.binary("mul", dy, 0.5), 0.0)
            return ops.unbroadcast(ops.where(ops.binary(wins, own, other), dy, half), own.shape)

        return derivative

    return ops.binary(name, a, b), _pullback(to(a, b), to(b, a))


def maximum(ops: Backend, a: Array, b: Array) -> tuple[Array, Pullback]:
    """y = the larger of a and b; dy goes to the larger, half of it to each where they are equal."""
    return _larger("maximum", ops, a, b)


def minimum(ops: Backend, a: Array, b: Array) -> tuple[Array, Pullback]:
    """y = the smaller of a and b; dy goes to the smaller, half of it to each if they are equal."""
    return _larger("minimum", ops, a, b)


def where(ops: Backend, a: Array, b: Array, *, condition: Array) -> tuple[Array, Pullback]:
    """y = a where the condition (bool) holds, else b; dy goes where y came from."""
    condition = ops.asarray(condition)
    return ops.where(condition, a, b), _pullback(
        lambda dy: ops.unbroadcast(ops.where(condition, dy, 0.0), a.shape),
        lambda dy: ops.unbroadcast(ops.where(condition, 0.0, dy), b.shape),
    )


# -- functions of one array


def exp(ops: Backend, x: Array) -> tuple[Array, Pullback]:
    """y = exp(x); dx = dy · y."""
    y = ops.unary("exp", x)
    return y, _pullback(lambda dy: ops.binary("mul", dy, y))


def log(ops: Backend, x: Array) -> tuple[Array, Pullback]:
    """y = log(x), natural; dx = dy / x."""
    return ops.unary("log", x), _pullback(lambda dy: ops.binary("div", dy, x))


def sqrt(ops: Backend, x: Array) -> tuple[Array, Pullback]:
    """y = √x; dx = dy / (2 y)."""
    y = ops.unary("sqrt", x)
    return y, _pullback(lambda dy: ops.binary("div", dy, ops.binary("mul", y, 2.0)))


def square(ops: Backend, x: Array) -> tuple[Array, Pullback]:
    """y = x²; dx = 2 x · dy."""
    return ops.unary("square", x), _pullback(
        lambda dy: ops.binary("mul", dy, ops.binary("mul", x, 2.0))
    )


def abs(ops: Backend, x: Array) -> tuple[Array, Pullback]:
    """y = |x|; dx = dy · sign(x), 0 where x is 0."""
    return ops.unary("abs", x), _pullback(lambda dy: ops.binary("mul", dy, ops.unary("sign", x)))


def sin(ops: Backend, x: Array) -> tuple[Array, Pullback]:
    """y = sin(x), x in radians; dx = dy · cos(x)."""
    return ops.unary("sin", x), _pullback(lambda dy: ops.binary("mul", dy, ops.unary("cos", x)))


def cos(ops: Backend, x: Array) -> tuple[Array, Pullback]:
    """y = cos(x), x in radians; dx = -dy · sin(x)."""
    return ops.unary("cos", x), _pullback(
        lambda dy: ops.unary("neg", ops.binary("mul", dy, ops.unary("sin", x)))
    )


def activate(ops: Backend, x: Array, *, activation: Activation) -> tuple[Array, Pullback]:
    """y = f(x), f from the table of activations; dx = dy · f'(x)."""
    y = ops.activation_forward(activation, x)
    return y, _pullback(lambda dy: ops.activation_backward(activation, dy, y, x))


def softmax(ops: Backend, x: Array) -> tuple[Array, Pullback]:
    """y = exp(x) / Σ exp(x) along the last axis; dx = y · (dy - Σ dy · y)."""
    y = ops.softmax_forward(x)
    return y, _pullback(lambda dy: ops.softmax_backward(dy, y))


def log_softmax(ops: Backend, x: Array) -> tuple[Array, Pullback]:
    """y = x - log Σ exp(x) along the last axis; dx = dy - exp(y) · Σ dy."""
    y = ops.log_softmax_forward(x)
    return y, _pullback(lambda dy: ops.log_softmax_backward(dy, y))


# -- products


def matmul(ops: Backend, a: Array, b: Array) -> tuple[Array, Pullback]:
    """y = a @ b; da = dy @ bᵀ, db = aᵀ @ dy.

    a (..., K) with any number of axes, b (K,) or (K, N), y (...) or (..., N).

    Raises
    ------
    ShapeError
        If a has no axis, b has none or more than two, or their inner sizes differ.
    """
    if a.ndim == 0 or b.ndim not in (1, 2) or a.shape[-1] != b.shape[0]:
        raise ShapeError(
            f"matmul: expected shapes (..., K) and (K,) or (K, N), got {a.shape} and {b.shape}"
        )
    num_rows, inner, num_columns = prod(a.shape[:-1]), b.shape[0], prod(b.shape[1:])
    rows, columns = ops.reshape(a, (num_rows, inner)), ops.reshape(b, (inner, num_columns))
    y = ops.reshape(ops.matmul(rows, columns), a.shape[:-1] + b.shape[1:])

    def to_a(dy: Array) -> Array:
        dy = ops.reshape(dy, (num_rows, num_columns))
        return ops.reshape(ops.matmul(dy, columns, transpose_b=True), a.shape)

    def to_b(dy: Array) -> Array:
        dy = ops.reshape(dy, (num_rows, num_columns))
        return ops.reshape(ops.matmul(rows, dy, transpose_a=True), b.shape)

    return y, _pullback(to_a, to_b)


# -- reductions


def _kept_shape(shape: Shape, axis: Axis) -> Shape:
    """Return a shape with size 1 in place of the reduced axes, all of them for None."""
    if axis is None:
        return (1,) * len(shape)
    axes = (
        {one % len(shape) for one in ((axis,) if isinstance(axis, int) else axis)}
        if shape
        else set()
    )
    return tuple(1 if place in axes else size for place, size in enumerate(shape))


def sum(
    ops: Backend, x: Array, *, axis: Axis = None, keepdims: bool = False
) -> tuple[Array, Pullback]:
    """y = Σ x over some axes; dx = dy, repeated."""
    y = ops.reduce("sum", x, axis, keepdims)
    kept = _kept_shape(x.shape, axis)
    return y, _pullback(lambda dy: ops.broadcast_to(ops.reshape(dy, kept), x.shape))


def mean(
    ops: Backend, x: Array, *, axis: Axis = None, keepdims: bool = False
) -> tuple[Array, Pullback]:
    """y = Σ x / n over some axes; dx = dy / n, repeated."""
    y = ops.reduce("mean", x, axis, keepdims)
    kept = _kept_shape(x.shape, axis)
    count = prod(x.shape) / (prod(kept) or 1)

    def derivative(dy: Array) -> Array:
        return ops.broadcast_to(ops.binary("div", ops.reshape(dy, kept), count or 1.0), x.shape)

    return y, _pullback(derivative)


def _extreme(
    name: str, ops: Backend, x: Array, axis: Axis, keepdims: bool
) -> tuple[Array, Pullback]:
    y = ops.reduce(name, x, axis, keepdims)
    kept = _kept_shape(x.shape, axis)

    def derivative(dy: Array) -> Array:
        chosen = ops.binary("eq", x, ops.reshape(y, kept))
        ones = ops.broadcast_to(ops.asarray(1.0, str(x.dtype)), x.shape)
        ties = ops.reduce("sum", ops.where(chosen, ones, 0.0), axis, keepdims=True)
        return ops.where(chosen, ops.binary("div", ops.reshape(dy, kept), ties), 0.0)

    return y, _pullback(derivative)


def max(
    ops: Backend, x: Array, *, axis: Axis = None, keepdims: bool = False
) -> tuple[Array, Pullback]:
    """y = the largest x over some axes; dx = dy there, shared equally among equal entries."""
    return _extreme("max", ops, x, axis, keepdims)


def min(
    ops: Backend, x: Array, *, axis: Axis = None, keepdims: bool = False
) -> tuple[Array, Pullback]:
    """y = the smallest x over some axes; dx = dy there, shared equally among equal entries."""
    return _extreme("min", ops, x, axis, keepdims)


# -- moving elements


def reshape(ops: Backend, x: Array, *, shape: Shape) -> tuple[Array, Pullback]:
    """y = x in another shape; dx = dy in x's."""
    return ops.reshape(x, shape), _pullback(lambda dy: ops.reshape(dy, x.shape))


def transpose(ops: Backend, x: Array, *, axes: Shape | None = None) -> tuple[Array, Pullback]:
    """y = x with its axes in another order (reversed for None); dx = dy with them back in x's."""
    y = ops.transpose(x, axes)
    places = range(x.ndim)[::-1] if axes is None else [axis % x.ndim for axis in axes]
    back = tuple(sorted(range(x.ndim), key=lambda axis: places[axis]))
    return y, _pullback(lambda dy: ops.transpose(dy, back))


def broadcast_to(ops: Backend, x: Array, *, shape: Shape) -> tuple[Array, Pullback]:
    """y = x repeated to a shape; dx = dy summed over the repetitions."""
    return ops.broadcast_to(x, shape), _pullback(lambda dy: ops.unbroadcast(dy, x.shape))


def index(ops: Backend, x: Array, *, index: Any) -> tuple[Array, Pullback]:
    """y = x[index]; dx = dy at index, added up where an element was taken repeatedly, else 0."""
    return ops.take(x, index), _pullback(lambda dy: ops.add_at(x.shape, x.dtype, index, dy))


def concatenate(ops: Backend, *arrays: Array, axis: int = 0) -> tuple[Array, Pullback]:
    """y = the arrays joined along an axis; each gets its part of dy."""
    y = ops.concatenate(arrays, axis)
    derivatives, start = [], 0
    for array in arrays:
        stop = start + array.shape[axis]
        derivatives.append(_taking(ops, y.ndim, axis, slice(start, stop)))
        start = stop
    return y, _pullback(*derivatives)


def stack(ops: Backend, *arrays: Array, axis: int = 0) -> tuple[Array, Pullback]:
    """y = the arrays joined along a new axis; each gets its part of dy."""
    y = ops.stack(arrays, axis)
    return y, _pullback(*(_taking(ops, y.ndim, axis, place) for place in range(len(arrays))))


def _taking(ops: Backend, ndim: int, axis: int, place: int | slice) -> Derivative:
    """Return the function that takes one place or range along an axis of dy."""
    where_in_dy = (*[slice(None)] * (axis % ndim), place)
    return lambda dy: ops.take(dy, where_in_dy)
