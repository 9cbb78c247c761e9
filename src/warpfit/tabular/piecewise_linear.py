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

Numbers = npt.NDArray[Any]

NAMES = ("weight", "bias", "pieces")
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
        bins = [each.data for each in (self.factor, self.offset, self.low, self.high)]
        parameters = (self.weight.data, self.bias.data, self.pieces.data)

        def pullback(dy: Array) -> dict[str, Array]:
            found = ops.piecewise_linear_backward(dy, x, bins)
            return dict(zip(NAMES, found, strict=True))

        return ops.piecewise_linear_forward(x, *parameters, bins), pullback

    def forward(self, x: Tensor) -> Tensor:
        y, pullback = self.vjp(backend_of(x.data), x.data)
        parameters = [getattr(self, name) for name in NAMES]
        return record(y, parameters, lambda dy: [pullback(dy)[name] for name in NAMES])
