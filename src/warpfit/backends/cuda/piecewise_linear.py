"""Piecewise-linear embeddings of numbers."""

from __future__ import annotations

from collections.abc import Sequence

from warpfit.backends.base import FLOAT_DTYPES, Array
from warpfit.backends.checks import check_known, check_piecewise_linear, check_shape
from warpfit.backends.cuda.arrays import ArrayOps, blocks_for

# As in kernels/ops/embedding/: numbers of an embedding; rows of a block forward; bins of a block
# backward, with two more for the line, and its threads.
SIZE, ROWS, BINS_AT_ONCE, THREADS = 16, 128, 64, 256
# Rows of which a block backward sums at least, and blocks of a multiprocessor.
LEAST_ROWS, BLOCKS_OF_MULTIPROCESSOR = 64, 2


class PiecewiseLinearOps(ArrayOps):
    """A block works for one number."""

    def piecewise_linear_forward(
        self, x: Array, weight: Array, bias: Array, pieces: Array, bins: Sequence[Array]
    ) -> Array:
        op = "piecewise_linear_forward"
        check_piecewise_linear(op, x, bins, weight, bias, pieces)
        check_known(op, x.dtype.name, FLOAT_DTYPES)
        (num_rows, num_features), num_bins = x.shape, bins[0].shape[-1]
        check_shape(op, "pieces", pieces, (num_features, num_bins, SIZE))
        for what, array in (("weight", weight), ("bias", bias)):
            check_shape(op, what, array, (num_features, SIZE))
        out = self.empty((num_rows, num_features * SIZE), x.dtype)
        if out.size:
            arrays = map(self.contiguous, (x, weight, bias, pieces, *bins))
            kernel = self.kernel(op, DTYPE=x.dtype)
            grid = (blocks_for(num_rows, ROWS), num_features)
            kernel(grid, ROWS, *arrays, out, num_rows, num_features, num_bins)
        return out

    def piecewise_linear_backward(
        self, dy: Array, x: Array, bins: Sequence[Array]
    ) -> tuple[Array, Array, Array]:
        op = "piecewise_linear_backward"
        check_piecewise_linear(op, x, bins, dy)
        check_known(op, x.dtype.name, FLOAT_DTYPES)
        (num_rows, num_features), num_bins = x.shape, bins[0].shape[-1]
        check_shape(op, "dy", dy, (num_rows, num_features * SIZE))
        sizes = ((num_features, SIZE), (num_features, SIZE), (num_features, num_bins, SIZE))
        dweight, dbias, dpieces = (self.empty(size, x.dtype) for size in sizes)
        passes = blocks_for(num_bins + 2, BINS_AT_ONCE)
        blocks = BLOCKS_OF_MULTIPROCESSOR * self.runtime.num_multiprocessors
        most = max(1, blocks // (passes * num_features))
        grid = (blocks_for(num_rows, LEAST_ROWS, most), num_features, passes)
        partials = self.empty((*grid, BINS_AT_ONCE, SIZE), x.dtype)
        kernel = self.kernel(op, DTYPE=x.dtype)
        arrays = map(self.contiguous, (dy, x, *bins))
        kernel(
            grid,
            THREADS,
            *arrays,
            dweight,
            dbias,
            dpieces,
            partials,
            self.arrivals(num_features * passes),
            num_rows,
            num_features,
            num_bins,
        )
        return dweight, dbias, dpieces
