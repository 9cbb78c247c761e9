"""What a captured step finds on the device: its own numbers, and the rows of its batch."""

from __future__ import annotations

import struct
from collections.abc import Sequence
from math import prod

from warpfit.backends.base import Array
from warpfit.backends.cuda.arrays import THREADS, ArrayOps, blocks_for

__all__ = ["StepSource", "variants"]

# As in kernels/next_batch.cu.
MAX_WINDOWS, UNIT_BYTES = 3, 16
_WINDOW = struct.Struct("=QQq")


class StepSource:
    """Copies to the same places, for each step, what belongs to it.

    `begin` says which steps come; `take` is then the same launch whichever they are, and so can be captured.

    Parameters
    ----------
    ops : CudaBackend
    sources : sequence of up to 3 arrays (N, ...)
        Contiguous, of the same N; each step takes the next rows of them. They may change between steps, in place.
    rows_per_step : int
    table : array (steps, columns) float64
        The numbers of each step; likewise.

    Attributes
    ----------
    numbers : array (columns,) float64
        Those of the step taken last.
    batch : list of arrays (rows_per_step or N if that is less, ...)
        Its rows of each source.
    """

    def __init__(self, ops: ArrayOps, sources: Sequence[Array], rows_per_step: int, table: Array) -> None:
        self._ops, self._sources, self._table, self._rows_per_step = ops, list(sources), table, rows_per_step
        self.numbers = ops.zeros(table.shape[1:], "float64")
        self.batch = [
            ops.zeros((min(rows_per_step, len(source)), *source.shape[1:]), source.dtype)
            for source in sources
        ]
        self._first_step = ops.zeros((), "float64")
        row_bytes = [prod(source.shape[1:]) * source.itemsize for source in sources]
        self._most_row_bytes = max(row_bytes)
        windows = [
            _WINDOW.pack(source.pointer, target.pointer, size)
            for source, target, size in zip(sources, self.batch, row_bytes, strict=True)
        ]
        self._windows = b"".join(windows).ljust(MAX_WINDOWS * _WINDOW.size, b"\0")

    def begin(self, first_step: int) -> None:
        """Let `take` count from this step of the table, for the launches that come."""
        self._ops.kernel("write_number")(1, 1, self._first_step, first_step)

    def take(self, offset: int, num_rows: int) -> None:
        """Take the numbers and the first rows of the step that comes `offset` after the first."""
        num_units = num_rows * self._most_row_bytes // UNIT_BYTES
        grid = (blocks_for(num_units, THREADS, self._ops.most_blocks), len(self._sources))
        settings = (
            self._table.shape[1],
            self._first_step.pointer,
            0.0,
            offset,
            self._rows_per_step,
            num_rows,
        )
        self._ops.kernel("next_batch")(grid, THREADS, self._windows, self._table, self.numbers, *settings)


def variants() -> list[tuple[str, dict[str, str]]]:
    """Return every kernel of this file with every set of defines that it is asked for."""
    return [("next_batch", {}), ("write_number", {})]
