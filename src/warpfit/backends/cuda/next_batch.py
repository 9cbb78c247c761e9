"""What a captured step finds on the device: its own numbers, and the rows of its batch."""

from __future__ import annotations

import struct
from collections.abc import Sequence
from dataclasses import dataclass
from math import prod
from typing import Any, NamedTuple

from warpfit.backends.base import Array
from warpfit.backends.cuda.array import DeviceArray
from warpfit.backends.cuda.arrays import THREADS, ArrayOps, blocks_for, power_of_two
from warpfit.backends.cuda.dtypes import dtype_of
from warpfit.backends.cuda.launch import scalar

# As in kernels/ops/batches/next_batch.cu and ops/batches/copy_row.cuh.
MAX_WINDOWS, UNIT = 3, 8
_WINDOW = struct.Struct("=QQii")

# Bytes that kernels load at once where addresses allow it.
ALIGNMENT = 16


class StepRows(NamedTuple):
    """Which rows a captured step takes: those that the order has from (first_step + offset) ·
    rows_per_step on.
    """

    sources: list[DeviceArray]  # (N, ...)
    order: DeviceArray  # (N,) int64
    first_step: DeviceArray  # () float64
    offset: int
    rows_per_step: int
    num_rows: int


@dataclass(frozen=True)
class OrderedRows:
    """A step's rows of an array, (num_rows, ...), for kernels that find them where they lie."""

    array: DeviceArray  # (N, ...)
    rows: StepRows

    @property
    def shape(self) -> tuple[int, ...]:
        return (self.rows.num_rows, *self.array.shape[1:])

    @property
    def dtype(self) -> Any:
        return self.array.dtype


def order_arguments(rows: StepRows | None) -> tuple[Any, ...]:
    """Return a kernel's order, first_step, offset and rows_per_step; None: it has no order."""
    if rows is None:
        return (None, *scalar(0.0), 0, 0)
    return (rows.order, *scalar(rows.first_step), rows.offset, rows.rows_per_step)


class _Window(NamedTuple):
    """A source that is copied, and memory for a batch of it."""

    source: DeviceArray
    dtype: Any
    memory: DeviceArray

    @property
    def size(self) -> int:
        """Elements of a row."""
        return prod(self.source.shape[1:])

    @property
    def lanes(self) -> int:
        return min(THREADS, power_of_two(-(-self.size // UNIT)))

    def rows_at(self, pointer: int, num_rows: int) -> DeviceArray:
        """Return the batch in the memory from there on."""
        memory, shape = self.memory, (num_rows, *self.source.shape[1:])
        return DeviceArray(memory.runtime, memory.memory, pointer, shape, self.dtype)


class StepSource:
    """Brings to the same places, for each step, what belongs to it.

    `begin` says which steps come; `take` is then the same launch whichever they are, and so can be
    captured.

    Parameters
    ----------
    ops : CudaBackend
    sources : sequence of up to 3 (array (N, ...), str)
        Of the same N, each with the dtype that a step takes it in; rows may change between steps,
        in place.
    order : array (N,) int64
        The numbers of the rows; each step takes those that come next. It may change likewise.
    rows_per_step : int
    table : array (steps, columns) float64
        The numbers of each step; likewise.
    in_place : sequence of int
        The sources that steps read where they lie, by the order.

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
        in_place: Sequence[int] = (),
    ) -> None:
        self._ops, self._order, self._table, self._rows_per_step = ops, order, table, rows_per_step
        self._sources = [ops.contiguous(array) for array, _ in sources]
        self.numbers = ops.zeros(table.shape[1:], "float64")
        self._first_step = ops.zeros((), "float64")
        self._windows = {
            i: self._window(source, dtype)
            for i, (source, (_, dtype)) in enumerate(zip(self._sources, sources, strict=True))
            if i not in in_place
        }
        self._defines = {
            f"{kind}{i}": "uint8" for kind in ("SOURCE", "TARGET") for i in range(MAX_WINDOWS)
        }
        for i, window in enumerate(self._windows.values()):
            self._defines |= {
                f"SOURCE{i}": window.source.dtype.name,
                f"TARGET{i}": window.dtype.name,
            }

    def _window(self, source: DeviceArray, dtype: str) -> _Window:
        taken_as, most_rows = dtype_of(dtype), min(self._rows_per_step, len(self._order))
        num_bytes = most_rows * prod(source.shape[1:]) * taken_as.itemsize + ALIGNMENT
        return _Window(source, taken_as, self._ops.zeros((num_bytes,), "uint8"))

    def begin(self, first_step: int) -> None:
        """Let `take` count from this step of the table, for the launches that come."""
        self._ops.kernel("write_number")(1, 1, self._first_step, first_step)

    def take(self, offset: int, num_rows: int, shifts: Sequence[int]) -> list[Array]:
        """Take numbers and rows of the step that comes `offset` after the first; return the rows,
        (num_rows, ...).

        Those of source i lie `shifts[i]` bytes, less than 16, past a multiple of 16 bytes; they are
        `OrderedRows` of a source in place.
        """
        pointers = {i: window.memory.pointer + shifts[i] for i, window in self._windows.items()}
        self._start(offset, num_rows, list(pointers.values()))
        rows = self._rows(offset, num_rows)
        return [
            self._windows[i].rows_at(pointers[i], num_rows)
            if i in pointers
            else OrderedRows(source, rows)
            for i, source in enumerate(self._sources)
        ]

    def take_numbers(self, offset: int, num_rows: int) -> StepRows:
        """Take numbers alone, and return which rows the step has."""
        self._start(offset, 0, [window.memory.pointer for window in self._windows.values()])
        return self._rows(offset, num_rows)

    def _rows(self, offset: int, num_rows: int) -> StepRows:
        return StepRows(
            self._sources, self._order, self._first_step, offset, self._rows_per_step, num_rows
        )

    def _start(self, offset: int, num_rows: int, pointers: Sequence[int]) -> None:
        ops, windows = self._ops, self._windows.values()
        packed = b"".join(
            _WINDOW.pack(window.source.pointer, pointer, window.size, window.lanes)
            for window, pointer in zip(windows, pointers, strict=True)
        )
        most_lanes = max(window.lanes for window in windows)
        grid = (
            blocks_for(num_rows * most_lanes, THREADS, ops.most_blocks),
            len(windows) if num_rows else 1,
        )
        settings = (
            self._table.shape[1],
            *scalar(self._first_step),
            offset,
            self._rows_per_step,
            num_rows,
        )
        kernel = ops.kernel("next_batch", **self._defines)
        all_windows = packed.ljust(MAX_WINDOWS * _WINDOW.size, b"\0")
        kernel(grid, THREADS, all_windows, self._order, self._table, self.numbers, *settings)
