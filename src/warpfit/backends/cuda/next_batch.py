"""What a captured step finds on the device: its own numbers, and the rows of its batch."""

from __future__ import annotations

import struct
from collections.abc import Sequence
from math import prod

from warpfit.backends.base import Array
from warpfit.backends.cuda.array import DeviceArray
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
    """

    def __init__(self, ops: ArrayOps, sources: Sequence[Array], rows_per_step: int, table: Array) -> None:
        self._ops, self._sources, self._table, self._rows_per_step = ops, list(sources), table, rows_per_step
        self.numbers = ops.zeros(table.shape[1:], "float64")
        self._first_step = ops.zeros((), "float64")
        self._row_bytes = [prod(source.shape[1:]) * source.itemsize for source in sources]
        most_rows = min(rows_per_step, len(sources[0]))
        self._targets = [ops.zeros((most_rows * size + UNIT_BYTES,), "uint8") for size in self._row_bytes]

    def phase(self, step: int) -> tuple[int, ...]:
        """Return how far past a multiple of 16 bytes the step's rows begin, in each source."""
        return tuple(step * self._rows_per_step * size % UNIT_BYTES for size in self._row_bytes)

    def begin(self, first_step: int) -> None:
        """Let `take` count from this step of the table, for the launches that come."""
        self._ops.kernel("write_number")(1, 1, self._first_step, first_step)

    def take(self, offset: int, num_rows: int, phase: tuple[int, ...]) -> list[Array]:
        """Take numbers and rows of the step that comes `offset` after the first; return the rows, (num_rows, ...).

        They lie as far past a multiple of 16 bytes as `phase`, the step's own, says: some sums go by that, and come
        to the bits that they have where the rows are.
        """
        ops = self._ops
        pointers = [target.pointer + shift for target, shift in zip(self._targets, phase, strict=True)]
        windows = [
            _WINDOW.pack(source.pointer, pointer, size)
            for source, pointer, size in zip(self._sources, pointers, self._row_bytes, strict=True)
        ]
        grid = (
            blocks_for(num_rows * max(self._row_bytes) // UNIT_BYTES, THREADS, ops.most_blocks),
            len(windows),
        )
        settings = (
            self._table.shape[1],
            self._first_step.pointer,
            0.0,
            offset,
            self._rows_per_step,
            num_rows,
        )
        packed = b"".join(windows).ljust(MAX_WINDOWS * _WINDOW.size, b"\0")
        ops.kernel("next_batch")(grid, THREADS, packed, self._table, self.numbers, *settings)
        return [
            DeviceArray(ops.runtime, target.memory, pointer, (num_rows, *source.shape[1:]), source.dtype)
            for source, target, pointer in zip(self._sources, self._targets, pointers, strict=True)
        ]


def variants() -> list[tuple[str, dict[str, str]]]:
    """Return every kernel of this file with every set of defines that it is asked for."""
    return [("next_batch", {}), ("write_number", {})]
