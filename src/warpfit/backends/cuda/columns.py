"""Sums over the rows of a matrix: gradients of biases, and of all that a batch's rows share."""

from __future__ import annotations

from functools import lru_cache
from typing import Any

from warpfit.backends.base import Array
from warpfit.backends.checks import check_matrix
from warpfit.backends.cuda.array import DeviceArray
from warpfit.backends.cuda.arrays import ArrayOps
from warpfit.backends.cuda.dtypes import acc_dtype

THREADS = 512
# Blocks that a multiprocessor holds at once, by the kernel's registers.
BLOCKS_AT_ONCE = 3
# Columns of a block: a line of memory where the matrix is small and its blocks are few, more where
# they are many.
NARROW, WIDE = 32, 128
SMALL = 1 << 20
# Where columns alone are enough for all blocks: as many as leave a thread for three rows, in whole
# sectors of memory for float32.
WIDEST, SECTOR = 168, 8
# Rows that a thread loads before it adds them up.
ROWS_AT_ONCE = 8
# Rows that a thread sums alone, of as many columns as a vector has, where these are enough.
FEW_ROWS, FEW_THREADS, VECTOR_BYTES = 32, 128, 16


@lru_cache(maxsize=4096)
def _split(num_rows: int, num_columns: int, most_blocks: int) -> tuple[int, int, int, int]:
    """Return width, tiles of columns, parts of rows and rows of a part for `sum_columns`."""
    if num_columns >= THREADS * most_blocks:
        width = THREADS
    elif num_columns > WIDE * most_blocks:
        # All blocks at once, or as often as it takes, without a few that are left over.
        waves = -(-num_columns // (WIDEST * most_blocks))
        width = -(-num_columns // (waves * most_blocks * SECTOR)) * SECTOR
    else:
        widest = NARROW if num_rows * num_columns <= SMALL else WIDE
        # Equal shares, so that the last tile is as full as the others.
        width = -(-num_columns // -(-num_columns // widest))
    tiles = -(-num_columns // width)
    rows_of_a_round = THREADS // width * ROWS_AT_ONCE
    parts = max(1, min(most_blocks // tiles, num_rows // rows_of_a_round))
    rows = -(-max(num_rows, 1) // parts)
    return width, tiles, -(-max(num_rows, 1) // rows), rows


def _in_vectors(x: DeviceArray) -> bool:
    """Whether rows are whole vectors of numbers of 32 or 64 bits, at multiples of their size."""
    return x.itemsize >= 4 and not (x.shape[1] * x.itemsize | x.pointer) % VECTOR_BYTES


class ColumnOps(ArrayOps):
    """Σ over rows."""

    def sum_columns(self, x: Array) -> Array:
        check_matrix("sum_columns", x)
        return self.column_sums(x, x.dtype)

    def column_sums(self, x: DeviceArray, dtype: Any, scale: float = 1.0) -> DeviceArray:
        """Return scale · Σ over rows: x (M, N) of a float dtype → (N,) of `dtype`.

        Sums of half-precision numbers are taken in float32.
        """
        num_rows, num_columns = x.shape
        out = self.empty((num_columns,), dtype)
        if not num_columns:
            return out
        x = self.contiguous(x)
        most_blocks = self.runtime.num_multiprocessors * BLOCKS_AT_ONCE
        kernel = self.kernel("sum_columns", DTYPE=x.dtype, OUT=out.dtype)
        is_wide = num_columns > WIDEST * most_blocks and out.dtype == x.dtype
        if num_rows <= FEW_ROWS and is_wide and _in_vectors(x):
            grid = -(-num_columns * x.itemsize // (VECTOR_BYTES * FEW_THREADS))
            kernel(grid, FEW_THREADS, x, out, None, None, scale, num_rows, num_columns, 0, 0)
            return out
        width, tiles, parts, rows = _split(num_rows, num_columns, most_blocks)
        partials = arrivals = None
        if parts > 1:
            partials = self.empty((parts, num_columns), acc_dtype(x.dtype))
            arrivals = self.arrivals(tiles)
        grid = (tiles, parts)
        kernel(grid, THREADS, x, out, partials, arrivals, scale, num_rows, num_columns, width, rows)
        return out
