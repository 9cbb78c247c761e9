"""Inverted dropout from counter-based random numbers."""

from __future__ import annotations

from math import prod

import numpy as np

from warpfit.backends.base import Array, Backend, Number
from warpfit.backends.checks import check_dropout, check_float, check_same_shape
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
        mask = self.empty(x.shape, x.dtype)
        num_rows, num_units = len(x), prod(x.shape[1:])
        mask_rows = mask.reshape(num_rows, num_units)
        key, threshold, scale = (
            stream_key(seed, DROPOUT),
            round(p * 2**32),
            x.dtype.type(1 / (1 - p)),
        )
        groups = np.arange(-(-num_units // 4))
        rows_per_block = max(1, COUNTERS_PER_BLOCK // max(1, len(groups)))
        for start in range(0, num_rows, rows_per_block):
            part = mask_rows[start : start + rows_per_block]
            rows = first_row + np.arange(start, start + len(part))[:, None]
            kept = np.empty((len(part), len(groups), 4), bool)
            for idx, words in enumerate(philox((int(step), layer_idx, rows, groups), key)):
                np.greater_equal(words, threshold, out=kept[..., idx])
            np.multiply(kept.reshape(len(part), -1)[:, :num_units], scale, out=part)
        return np.multiply(x, mask, out=self.empty(x.shape, x.dtype)), mask

    def dropout_backward(self, dy: Array, mask: Array) -> Array:
        check_float("dropout_backward", dy, mask)
        check_same_shape("dropout_backward", dy, mask)
        return np.multiply(dy, mask, out=self.empty(dy.shape, dy.dtype))
