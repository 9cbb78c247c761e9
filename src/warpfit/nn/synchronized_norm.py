"""Batch norm whose statistics are of the whole batch, which several ranks share."""

from __future__ import annotations

from collections.abc import Callable
from math import prod
from typing import TYPE_CHECKING, Any

from warpfit.backends import Activation, Array, Backend
from warpfit.backends.base import HALF_DTYPES

if TYPE_CHECKING:
    from warpfit.nn.spec import Call


def batch_norm_over_ranks(
    ops: Backend,
    x: Array,
    weight: Array | None,
    bias: Array | None,
    running_mean: Array,
    running_var: Array,
    call: Call,
    *,
    momentum: float,
    eps: float,
    activation: Activation,
    added: Array | None = None,
) -> tuple[Array, Callable[[Array], tuple[Array, Array, Array]]]:
    """Return what `batch_norm` returns in training, of statistics over all ranks of a call.

    What a rank's rows give is normalised by given statistics; that these depend on x is what is
    left to add to its gradient.
    """
    dtype, axes = running_mean.dtype, tuple(range(x.ndim - 1))
    num_rows = call.whole * prod(x.shape[1:-1])
    over_ranks = _Sums(ops, call.ranks)
    is_half = str(x.dtype) in HALF_DTYPES
    rows = ops.cast(x, str(dtype)) if is_half else x
    (total,) = over_ranks(ops.reduce("sum", rows, axes))
    mean = ops.binary("div", total, num_rows)
    centred = ops.binary("sub", rows, mean)
    (total,) = over_ranks(ops.reduce("sum", ops.binary("mul", centred, centred), axes))
    variance = ops.binary("div", total, num_rows)
    unbiased = ops.binary("div", total, num_rows - 1)
    for running, value in ((running_mean, mean), (running_var, unbiased)):
        kept = ops.binary("mul", running, 1 - momentum)
        ops.assign(running, ops.binary("add", kept, ops.binary("mul", value, momentum)))
    settings: dict[str, Any] = {} if activation.name == "identity" else {"activation": activation}
    more = settings if added is None else {**settings, "added": added}
    y, saved = ops.batch_norm_forward(
        x, weight, bias, mean, variance, training=False, eps=eps, **more
    )

    def backward(dy: Array) -> tuple[Array, Array, Array]:
        own = {} if added is not None else settings
        dx, dweight, dbias = ops.batch_norm_backward(
            dy, x, weight, saved, training=False, bias=bias, **own
        )
        inverse_std = ops.binary("div", 1.0, ops.unary("sqrt", ops.binary("add", variance, eps)))
        scale = inverse_std if weight is None else ops.binary("mul", inverse_std, weight)
        of_weight, of_bias = over_ranks(dweight, dbias)
        slope = ops.binary("mul", ops.binary("mul", scale, inverse_std), of_weight)
        rest = ops.binary(
            "add", ops.binary("mul", centred, slope), ops.binary("mul", scale, of_bias)
        )
        rest = ops.binary("div", rest, -num_rows)
        if is_half:
            rest = ops.cast(rest, str(x.dtype), ops.loss_scale)
        return ops.binary("add", dx, rest), dweight, dbias

    return y, backward


class _Sums:
    """Copies of arrays, added up over ranks."""

    def __init__(self, ops: Backend, ranks: Any) -> None:
        self._ops, self._ranks = ops, ranks

    def __call__(self, *arrays: Array) -> list[Array]:
        ops, copies = self._ops, []
        for array in arrays:
            copies.append(ops.empty(array.shape, array.dtype))
            ops.assign(copies[-1], array)
        self._ranks.all_reduce(copies)
        self._ranks.join()
        return copies
