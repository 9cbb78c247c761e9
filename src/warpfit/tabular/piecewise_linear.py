"""Piecewise-linear embeddings of numbers: sums of a line and of pieces between quantiles.

References
----------
Gorishniy, Rubachev, Babenko: On Embeddings for Numerical Features in Tabular Deep Learning (2022);
version B is that of TabM (2025). The program is rtdl_num_embeddings 0.0.12.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import numpy.typing as npt

from warpfit.autograd import Tensor, record
from warpfit.backends import Array, Backend
from warpfit.backends import of as backend_of
from warpfit.nn import Buffer, Module, Parameter

__all__ = ["PiecewiseLinear", "quantile_edges"]

Numbers = npt.NDArray[Any]

NO_LIMIT = 1e30  # finite, as files of networks want all numbers


def quantile_edges(x: Numbers, num_bins: int) -> list[Numbers]:
    """Return the edges of each column's bins, which hold as many rows each, as far as values
    differ.

    Parameters
    ----------
    x : ndarray (N, F)
        Columns of which none has equal numbers only.
    num_bins : int
        At most as many, and at most N - 1.

    Returns
    -------
    list of ndarray (at least 2,)

    Examples
    --------
    >>> from warpfit.tabular.piecewise_linear import quantile_edges
    >>> [edges.tolist() for edges in quantile_edges(np.arange(5.0)[:, None], 2)]
    [[0.0, 2.0, 4.0]]
    """
    shares = np.linspace(0, 1, max(1, min(num_bins, len(x) - 1)) + 1)
    return [np.unique(column) for column in np.quantile(x, shares, axis=0).T]


class PiecewiseLinear(Module):
    """e(x) = weight x + bias + Σ_j piece_j · c_j((x - l_j) / w_j), of each number 16.

    c_j is the identity limited to [0, 1]; the first bin of a column has no lower limit, its last no
    upper one. x (M, F) becomes (M, 16 F), the numbers of a column side by side.

    Parameters
    ----------
    num_features, num_bins : int
    dtype : {'float32', 'float64'}
    """

    SIZE = 16

    def __init__(self, num_features: int, num_bins: int, dtype: str = "float32") -> None:
        self.weight = Parameter(np.zeros((num_features, self.SIZE), dtype))
        self.bias = Parameter(np.zeros((num_features, self.SIZE), dtype))
        self.pieces = Parameter(np.zeros((num_features, num_bins, self.SIZE), dtype))
        bins = (num_features, 1, num_bins)
        self.factor, self.offset, self.low = (Buffer(np.zeros(bins, dtype)) for _ in range(3))
        self.high = Buffer(np.ones(bins, dtype))

    def set_edges(self, edges: Sequence[Numbers]) -> None:
        """Set the edges of each column's bins, of which there may be fewer than `num_bins`: the
        others then are 0 everywhere.
        """
        for idx, each in enumerate(edges):
            widths, count = np.diff(each), len(each) - 1
            self.factor.data[idx, 0, :count] = 1 / widths
            self.offset.data[idx, 0, :count] = -each[:-1] / widths
            self.low.data[idx, 0, 0], self.high.data[idx, 0, count - 1] = -NO_LIMIT, NO_LIMIT

    def vjp(self, ops: Backend, x: Array) -> tuple[Array, Callable[[Array], dict[str, Array]]]:
        """Return e (M, 16 F), and the function from its gradient to those of the parameters, by
        name; x is data.
        """
        num_rows, num_features = x.shape
        columns = ops.reshape(ops.transpose(x), (num_features, num_rows, 1))
        scaled = ops.binary("mul", columns, self.factor.data)
        scaled = ops.binary("add", scaled, self.offset.data)
        scaled = ops.binary("maximum", scaled, self.low.data)
        scaled = ops.binary("minimum", scaled, self.high.data)
        made = ops.batched_matmul(scaled, self.pieces.data)
        ones = (num_features, 1, self.SIZE)
        line = ops.binary("mul", columns, ops.reshape(self.weight.data, ones))
        made = ops.binary("add", made, line)
        made = ops.binary("add", made, ops.reshape(self.bias.data, ones))

        def pullback(dy: Array) -> dict[str, Array]:
            of_columns = ops.reshape(dy, (num_rows, num_features, self.SIZE))
            of_columns = ops.transpose(of_columns, (1, 0, 2))
            dweight = ops.batched_matmul(columns, of_columns, transpose_a=True)
            return {
                "weight": ops.reshape(dweight, self.weight.shape),
                "bias": ops.reshape(ops.unbroadcast(of_columns, ones), self.bias.shape),
                "pieces": ops.batched_matmul(scaled, of_columns, transpose_a=True),
            }

        rows = ops.transpose(made, (1, 0, 2))
        return ops.reshape(rows, (num_rows, num_features * self.SIZE)), pullback

    def forward(self, x: Tensor) -> Tensor:
        y, pullback = self.vjp(backend_of(x.data), x.data)
        names = ("weight", "bias", "pieces")
        parameters = [getattr(self, name) for name in names]
        return record(y, parameters, lambda dy: [pullback(dy)[name] for name in names])
