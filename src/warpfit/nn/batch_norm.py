"""Batch norm: its formula, and that with statistics of the whole batch, which ranks share."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from math import prod
from typing import TYPE_CHECKING, Any

from warpfit.backends import Activation, Array, Backend
from warpfit.backends.base import HALF_DTYPES, IDENTITY
from warpfit.backends.contract.communicator import Communicator

if TYPE_CHECKING:
    from warpfit.nn.spec import Call


# From dy to (dx, dweight, dbias); and y with it.
Backward = Callable[[Array], tuple[Array, Array, Array]]
Normalised = tuple[Array, Backward]


def batch_norm(
    ops: Backend,
    x: Array,
    weight: Array | None,
    bias: Array | None,
    running_mean: Array,
    running_var: Array,
    *,
    training: bool,
    momentum: float = 0.1,
    eps: float = 1e-5,
    activation: Activation = IDENTITY,
    added: Array | None = None,
) -> Normalised:
    """Return y = f(x, normalised per channel, + added), and the function from dy to gradients.

    x, y, added and dy (..., C), all else (C,). If something is added, the function takes dz in
    place of dy. Training moves the running statistics in place.
    """
    arrays = (x, weight, bias, running_mean, running_var)
    settings: dict[str, Any] = {"momentum": momentum, "eps": eps, "activation": activation}
    y, saved = ops.batch_norm_forward(*arrays, training=training, added=added, **settings)
    of_dy = activation if added is None else IDENTITY

    def backward(dy: Array) -> tuple[Array, Array, Array]:
        return ops.batch_norm_backward(
            dy, x, weight, saved, training=training, bias=bias, activation=of_dy
        )

    return y, backward


def batch_norm_over_ranks(
    ops: Backend,
    x: Array,
    weight: Array | None,
    bias: Array | None,
    running_mean: Array,
    running_var: Array,
    *,
    call: Call,
    momentum: float,
    eps: float,
    activation: Activation,
    added: Array | None = None,
) -> Normalised:
    """Return what `batch_norm` returns in training, of statistics over all ranks of a call.

    What a rank's rows give is normalised by given statistics; that these depend on x is what is
    left to add to its gradient.
    """
    num_rows = call.whole * prod(x.shape[1:-1])
    is_half = str(x.dtype) in HALF_DTYPES
    rows = ops.cast(x, str(running_mean.dtype)) if is_half else x
    mean, centred, squares = _moments(ops, rows, num_rows, call.ranks)
    variance = ops.binary("div", squares, num_rows)
    unbiased = ops.binary("div", squares, num_rows - 1)
    for running, value in ((running_mean, mean), (running_var, unbiased)):
        kept = ops.binary("mul", running, 1 - momentum)
        ops.assign(running, ops.binary("add", kept, ops.binary("mul", value, momentum)))
    settings: dict[str, Any] = {"eps": eps, "activation": activation, "added": added}
    y, by_given = batch_norm(ops, x, weight, bias, mean, variance, training=False, **settings)

    def backward(dy: Array) -> tuple[Array, Array, Array]:
        dx, dweight, dbias = by_given(dy)
        # The ranks' gradients themselves are added up later.
        totals = _totals(call.ranks, *(ops.binary("mul", own, 1.0) for own in (dweight, dbias)))
        inverse_std = ops.binary("div", 1.0, ops.unary("sqrt", ops.binary("add", variance, eps)))
        rest = _through_statistics(ops, centred, weight, inverse_std, totals)
        rest = ops.binary("div", rest, -num_rows)
        if is_half:
            rest = ops.cast(rest, str(x.dtype), ops.loss_scale)
        return ops.binary("add", dx, rest), dweight, dbias

    return y, backward


def _moments(
    ops: Backend, rows: Array, num_rows: int, ranks: Communicator
) -> tuple[Array, Array, Array]:
    """Return the ranks' mean, this one's rows less it, and the ranks' sum of squares of that."""
    axes = tuple(range(rows.ndim - 1))
    (total,) = _totals(ranks, ops.reduce("sum", rows, axes))
    mean = ops.binary("div", total, num_rows)
    centred = ops.binary("sub", rows, mean)
    (squares,) = _totals(ranks, ops.reduce("sum", ops.binary("mul", centred, centred), axes))
    return mean, centred, squares


def _through_statistics(
    ops: Backend, centred: Array, weight: Array | None, inverse_std: Array, totals: Sequence[Array]
) -> Array:
    """Return the part of dx that comes through mean and variance, times minus the rows."""
    of_weight, of_bias = totals
    scale = inverse_std if weight is None else ops.binary("mul", inverse_std, weight)
    slope = ops.binary("mul", ops.binary("mul", scale, inverse_std), of_weight)
    return ops.binary("add", ops.binary("mul", centred, slope), ops.binary("mul", scale, of_bias))


def _totals(ranks: Communicator, *arrays: Array) -> Sequence[Array]:
    """Return arrays that hold their sums over ranks."""
    ranks.all_reduce(arrays)
    ranks.join()
    return arrays
