"""What a captured step finds on the device: its own numbers, and the rows of its batch."""

from __future__ import annotations

import struct
from collections.abc import Sequence
from math import prod
from typing import NamedTuple

from warpfit.backends.base import Array
from warpfit.backends.cuda.array import DeviceArray
from warpfit.backends.cuda.arrays import THREADS, ArrayOps, blocks_for, power_of_two
from warpfit.backends.cuda.dtypes import dtype_of

__all__ = ["StepRows", "StepSource", "variants"]

# As in kernels/next_batch.cu and include/copy_row.cuh.
MAX_WINDOWS, UNIT = 3, 8
_WINDOW = struct.Struct("=QQii")

# Bytes that kernels load at once where addresses allow it.
ALIGNMENT = 16


class StepRows(NamedTuple):
    """Which rows a captured step takes: those that the order has from (first_step + offset) · rows_per_step on.

    Attributes
    ----------
    sources : list of array (N, ...)
    order : array (N,) int64
    first_step : array () float64
    offset, rows_per_step, num_rows : int
    """

    sources: list[DeviceArray]
    order: DeviceArray
    first_step: DeviceArray
    offset: int
    rows_per_step: int
    num_rows: int


class StepSource:
    """Brings to the same places, for each step, what belongs to it.

    `begin` says which steps come; `take` is then the same launch whichever they are, and so can be captured.

    Parameters
    ----------
    ops : CudaBackend
    sources : sequence of up to 3 (array (N, ...), str)
        Of the same N, each with the dtype that a step takes it in; rows may change between steps, in place.
    order : array (N,) int64
        The numbers of the rows; each step takes those that come next. It may change likewise.
    rows_per_step : int
    table : array (steps, columns) float64
        The numbers of each step; likewise.

    Attributes
    ----------
    numbers : array (columns,) float64
        Those of the step taken last.
    """

    def __init__(
        self,
        ops: ArrayOps,
        sources: Sequence[tuple[Array, str]],
        order: Array,
        rows_per_step: int,
        table: Array,
    ) -> None:
        self._ops, self._order, self._table, self._rows_per_step = ops, order, table, rows_per_step
        self._sources = [ops.contiguous(array) for array, _ in sources]
        self._dtypes = [dtype_of(dtype) for _, dtype in sources]
        self.numbers = ops.zeros(table.shape[1:], "float64")
        self._first_step = ops.zeros((), "float64")
        most_rows = min(rows_per_step, len(order))
        self._sizes = [prod(source.shape[1:]) for source in self._sources]
        self._targets = [
            ops.zeros((most_rows * size * dtype.itemsize + ALIGNMENT,), "uint8")
            for size, dtype in zip(self._sizes, self._dtypes, strict=True)
        ]
        self._lanes = [min(THREADS, power_of_two(-(-size // UNIT))) for size in self._sizes]
        self._defines = {f"{kind}{i}": "uint8" for kind in ("SOURCE", "TARGET") for i in range(MAX_WINDOWS)}
        for i, (source, dtype) in enumerate(zip(self._sources, self._dtypes, strict=True)):
            self._defines |= {f"SOURCE{i}": source.dtype.name, f"TARGET{i}": dtype.name}

    def begin(self, first_step: int) -> None:
        """Let `take` count from this step of the table, for the launches that come."""
        self._ops.kernel("write_number")(1, 1, self._first_step, first_step)

    def take(self, offset: int, num_rows: int, shifts: Sequence[int]) -> list[Array]:
        """Take numbers and rows of the step that comes `offset` after the first; return the rows, (num_rows, ...).

        Those of source i lie `shifts[i]` bytes, less than 16, past a multiple of 16 bytes.
        """
        pointers = [target.pointer + shift for target, shift in zip(self._targets, shifts, strict=True)]
        self._start(offset, num_rows, pointers)
        return [
            DeviceArray(self._ops.runtime, target.memory, pointer, (num_rows, *source.shape[1:]), dtype)
            for source, target, pointer, dtype in zip(
                self._sources, self._targets, pointers, self._dtypes, strict=True
            )
        ]

    def take_numbers(self, offset: int, num_rows: int) -> StepRows:
        """Take numbers alone, and return which rows the step has."""
        self._start(offset, 0, [target.pointer for target in self._targets])
        return StepRows(self._sources, self._order, self._first_step, offset, self._rows_per_step, num_rows)

    def _start(self, offset: int, num_rows: int, pointers: Sequence[int]) -> None:
        ops = self._ops
        windows = [
            _WINDOW.pack(source.pointer, pointer, size, lanes)
            for source, pointer, size, lanes in zip(
                self._sources, pointers, self._sizes, self._lanes, strict=True
            )
        ]
        grid = (
            blocks_for(num_rows * max(self._lanes), THREADS, ops.most_blocks),
            len(windows) if num_rows else 1,
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
        kernel = ops.kernel("next_batch", **self._defines)
        kernel(grid, THREADS, packed, self._order, self._table, self.numbers, *settings)


def variants() -> list[tuple[str, dict[str, str]]]:
    """Return kernels of this file with defines that training asks for; of next_batch there are many more."""
    x, labels, weights = ("uint8", "float16"), ("int64", "int64"), ("float32", "float32")
    pairs = [x, labels, weights]
    defines = {f"SOURCE{i}": source for i, (source, _) in enumerate(pairs)}
    defines |= {f"TARGET{i}": target for i, (_, target) in enumerate(pairs)}
    return [("next_batch", defines), ("write_number", {})]
