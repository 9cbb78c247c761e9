"""Piecewise-linear embeddings of numbers."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from warpfit.backends.base import Array, Backend
from warpfit.backends.checks import check_piecewise_linear, check_shape


class PiecewiseLinearOps(Backend):
    """A line and pieces between edges, of each number."""

    def piecewise_linear_forward(
        self, x: Array, weight: Array, bias: Array, pieces: Array, bins: Sequence[Array]
    ) -> Array:
        op = "piecewise_linear_forward"
        check_piecewise_linear(op, x, bins, weight, bias, pieces)
        (num_rows, num_features), size = x.shape, pieces.shape[-1]
        check_shape(op, "pieces", pieces, (num_features, bins[0].shape[-1], size))
        for what, array in (("weight", weight), ("bias", bias)):
            check_shape(op, what, array, (num_features, size))
        out = self.empty((num_rows, num_features * size), x.dtype)
        columns = x.T[:, :, None]
        made = np.matmul(_shares(columns, bins), pieces)
        made += columns * weight[:, None]
        made += bias[:, None]
        out.reshape(num_rows, num_features, size)[...] = made.transpose(1, 0, 2)
        return out

    def piecewise_linear_backward(
        self, dy: Array, x: Array, bins: Sequence[Array]
    ) -> tuple[Array, Array, Array]:
        op = "piecewise_linear_backward"
        check_piecewise_linear(op, x, bins, dy)
        num_rows, num_features = x.shape
        size = dy.shape[-1] // num_features
        check_shape(op, "dy", dy, (num_rows, num_features * size))
        columns = x.T[:, None]
        of_columns = dy.reshape(num_rows, num_features, size).transpose(1, 0, 2)
        dweight = np.matmul(columns, of_columns)[:, 0]
        shares = _shares(x.T[:, :, None], bins).transpose(0, 2, 1)
        return dweight, of_columns.sum(axis=1), np.matmul(shares, of_columns)


def _shares(columns: Array, bins: Sequence[Array]) -> Array:
    """Return the share of each bin (F, M, B) that lies below numbers (F, M, 1)."""
    factor, offset, low, high = bins
    shares = columns * factor
    shares += offset
    np.maximum(shares, low, out=shares)
    return np.minimum(shares, high, out=shares)
