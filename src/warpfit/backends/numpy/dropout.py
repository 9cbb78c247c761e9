"""Inverted dropout from counter-based random numbers."""

from __future__ import annotations

from math import prod

import numpy as np

from warpfit.backends.base import Array, Backend, Number
from warpfit.backends.checks import check_dropout, check_float, check_same_shape
from warpfit.backends.numpy.parallel import each_part, each_rows, spans
from warpfit.random import DROPOUT, philox, stream_key

# Philox keeps some ten words of 64 bits for every counter in flight; so many counters stay in a
# core's own cache.
COUNTERS_PER_BLOCK = 1 << 13


class DropoutOps(Backend):
    """Each unit is 0 with probability p, else x / (1 - p)."""

    def dropout_forward(
        self,
        x: Array,
        *,
        p: float,
        seed: int,
        step: Number,
        layer_idx: int,
        first_row: int = 0,
    ) -> tuple[Array, Array]:
        check_float("dropout_forward", x)
        check_dropout("dropout_forward", x, p)
        mask, y = self.empty(x.shape, x.dtype), self.empty(x.shape, x.dtype)
        num_rows, num_units = len(x), prod(x.shape[1:])
        mask_rows = mask.reshape(num_rows, num_units)
        key, threshold, scale = (
            stream_key(seed, DROPOUT),
            round(p * 2**32),
            x.dtype.type(1 / (1 - p)),
        )
        groups = np.arange(-(-num_units // 4))

        def drop(own: slice) -> None:
            part = mask_rows[own]
            rows = first_row + np.arange(own.start, own.stop)[:, None]
            kept = np.empty((len(part), len(groups), 4), bool)
            for idx, words in enumerate(philox((int(step), layer_idx, rows, groups), key)):
                np.greater_equal(words, threshold, out=kept[..., idx])
            np.multiply(kept.reshape(len(part), -1)[:, :num_units], scale, out=part)
            np.multiply(x[own], mask[own], out=y[own])

        rows_per_block = max(1, COUNTERS_PER_BLOCK // max(1, len(groups)))
        each_part(spans(num_rows, rows_per_block), lambda: drop)
        return y, mask

    def dropout_backward(self, dy: Array, mask: Array) -> Array:
        check_float("dropout_backward", dy, mask)
        check_same_shape("dropout_backward", dy, mask)
        dx = self.empty(dy.shape, dy.dtype)
        each_rows(np.multiply, dy, mask, dx)
        return dx
