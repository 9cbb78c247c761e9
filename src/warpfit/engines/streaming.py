"""Data that stays on the host, because the device has no room for it, and comes to it in pieces of
an epoch.

The engine `one_launch` calls this module, in this order: `cut_of` says how many rows a launch
takes; a `Stream` then fetches a piece, hands it over, and fetches the next while the device trains
on it:

    host      gather 1   gather 2     gather 3 ...
    copies           1 ────►    2 ────►      3 ────► ...
    device              batches of 1, train   batches of 2, train ...

It owes each row of each epoch once, in the order that the kernel `gather_batches` would have
brought them in, so that a streamed run has the bits of one whose data is on the device. It knows
neither networks nor kernels.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass
from math import prod
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt

from warpfit.backends import Array
from warpfit.cores import num_cores
from warpfit.data.order import MAX_ROWS, order_at
from warpfit.engines.base import TrainingData
from warpfit.errors import Obstacle

# The most bytes of a piece, on the host and as batches. A launch costs the host some tenths of a
# millisecond, and gathering a piece of this size some milliseconds. Larger pieces would spread the
# fixed cost of a piece's order (docs/log/streaming.md). But they take more pinned memory, more time
# before the first launch, and longer until Ctrl-C is handled.
PIECE_BYTES = 1 << 25
# One is filled and copied while the device reads the other.
BUFFERS = 2
# Arrays begin at multiples of so many bytes.
ALIGNMENT = 256
# Threads that gather rows, which are far from each other in memory.
THREADS = min(8, num_cores())


class Piece(NamedTuple):
    """Rows that one launch takes: `num_rows` of an epoch, from 0 on, from a place of its order."""

    epoch: int
    first: int
    num_rows: int


@dataclass(frozen=True)
class Cut:
    """How an epoch is cut into pieces: whole batches, and what remains."""

    # num_rows and batch: of the epoch, and of a step.
    num_rows: int
    batch: int
    steps: int  # of every piece but the last, which may have fewer

    @property
    def most_rows(self) -> int:
        """Rows of the largest piece."""
        return min(self.num_rows, self.steps * self.batch)

    @property
    def launches(self) -> int:
        """Pieces of an epoch."""
        return -(-self.num_rows // self.most_rows)

    def __str__(self) -> str:
        return f"x stays on the host, and comes to the device in {self.launches} launches an epoch"

    def pieces(self, epoch: int) -> Iterator[Piece]:
        """Yield the pieces of an epoch."""
        for first in range(0, self.num_rows, self.most_rows):
            yield Piece(epoch, first, min(self.most_rows, self.num_rows - first))

    def bytes_of(self, data: TrainingData, step_bytes: int) -> int:
        """Return what pieces take of the device's memory, if a step's batch takes `step_bytes`."""
        steps = -(-self.most_rows // self.batch)
        return BUFFERS * _layout(_arrays(data), self.most_rows)[1] + steps * step_bytes


def cut_of(
    data: TrainingData, batch: int, step_bytes: int, most_bytes: int, most_steps: int
) -> Cut | Obstacle:
    """Return how an epoch is cut so that pieces fit, and are as large as makes sense, or why it
    cannot be.

    Parameters
    ----------
    data : TrainingData
    batch : int
        Rows of a step.
    step_bytes : int
        What a launch takes of the device's memory for each of its steps.
    most_bytes : int
        What the device has for pieces.
    most_steps : int
        Of a launch, so that none takes too long.
    """
    if len(data) > MAX_ROWS:
        return Obstacle(f"expected at most 2**31 rows, got {len(data)}")
    least = Cut(len(data), batch, 1)
    needed = least.bytes_of(data, step_bytes)
    if needed > most_bytes:
        return Obstacle(
            f"expected at most {most_bytes} bytes for single batches, {BUFFERS} in flight, got "
            f"{needed}"
        )
    fetched = batch * sum(map(_row_bytes, _arrays(data)))
    steps = min(PIECE_BYTES // max(fetched, step_bytes), most_bytes // needed, most_steps)
    return Cut(len(data), batch, max(1, steps))


class Stream:
    """The pieces of a run, on their way to the device one after the other.

    Parameters
    ----------
    ops : Backend
        Of the device.
    data : TrainingData
        On the host.
    cut : Cut
    seed : int or None
        Of the epochs' orders; None is the order of the rows themselves.

    Raises
    ------
    DeviceError
        If there is no memory for two pieces, on the device or pinned on the host.
    """

    def __init__(self, ops: Any, data: TrainingData, cut: Cut, seed: int | None) -> None:
        self.runtime, self.seed, self.num_rows = ops.runtime, seed, len(data)
        self.arrays = _arrays(data)
        self.sources = [_as_bytes(array) for array in self.arrays]
        _, nbytes = _layout(self.arrays, cut.most_rows)
        self.buffers = [self.runtime.create_upload_buffer(nbytes) for _ in range(BUFFERS)]
        self.pool = ThreadPoolExecutor(THREADS)
        self.fetched = 0  # pieces so far
        self.num_fetched_rows = 0

    def fetch(self, piece: Piece) -> None:
        """Gather a piece, and begin to copy it; the one before must have been handed over."""
        buffer = self.buffers[self.fetched % BUFFERS]
        places, nbytes = _layout(self.arrays, piece.num_rows)
        buffer.await_host()
        targets = [
            buffer.host[place : place + piece.num_rows * _row_bytes(array)]
            .view(source.dtype.newbyteorder("="))
            .reshape(piece.num_rows, -1)
            for place, array, source in zip(places, self.arrays, self.sources, strict=True)
        ]
        rows = self._rows_of(piece)
        self._in_parts(piece.num_rows, lambda part: self._gather(rows, part, targets))
        buffer.send(nbytes)
        self.fetched += 1
        self.num_fetched_rows = piece.num_rows

    def _rows_of(self, piece: Piece) -> slice | npt.NDArray[np.int64]:
        """Return a piece's rows; in one thread, as NumPy's short calls wait for each other."""
        first, end = piece.first, piece.first + piece.num_rows
        if self.seed is None:
            return slice(first, end)
        return order_at(np.arange(first, end), self.num_rows, self.seed, piece.epoch)

    def _in_parts(self, num_rows: int, act: Callable[[slice], None]) -> None:
        """Act on the rows of a piece, in several threads."""
        size = -(-num_rows // THREADS)
        parts = [slice(at, min(at + size, num_rows)) for at in range(0, num_rows, size)]
        list(self.pool.map(act, parts))  # raises what a thread has raised

    def _gather(
        self, rows: slice | npt.NDArray[np.int64], part: slice, targets: list[npt.NDArray[Any]]
    ) -> None:
        """Gather some rows of a piece to their places."""
        for source, target in zip(self.sources, targets, strict=True):
            if isinstance(rows, slice):
                target[part] = source[rows][part]
            else:
                # All rows are there; "raise" would gather into a copy first.
                np.take(source, rows[part], axis=0, out=target[part], mode="clip")

    @contextmanager
    def received(self) -> Iterator[tuple[Array, ...]]:
        """Give the piece that was fetched last to the device: x, y, and sample weights if there are
        some.

        All that reads them must have been started when the block ends.
        """
        from warpfit.backends.cuda.array import DeviceArray

        buffer = self.buffers[(self.fetched - 1) % BUFFERS]
        rows = self.num_fetched_rows
        places, _ = _layout(self.arrays, rows)
        buffer.receive()
        try:
            yield tuple(
                DeviceArray(
                    self.runtime,
                    buffer.memory,
                    buffer.memory.pointer + place,
                    (rows, *array.shape[1:]),
                    array.dtype.newbyteorder("="),
                )
                for place, array in zip(places, self.arrays, strict=True)
            )
        finally:
            buffer.release()

    def close(self) -> None:
        """Give back all memory, when no thread and no copy uses it any more."""
        self.pool.shutdown(cancel_futures=True)
        for buffer in self.buffers:
            buffer.close()


def _arrays(data: TrainingData) -> list[Any]:
    """Return what has a row for each sample."""
    return [array for array in (data.x, data.y, data.sample_weight) if array is not None]


def _row_bytes(array: Any) -> int:
    """Return the bytes of a row of an array."""
    return int(prod(array.shape[1:])) * int(array.itemsize)


def _layout(arrays: list[Any], num_rows: int) -> tuple[list[int], int]:
    """Return where arrays of so many rows begin, one after the other, and the bytes of all."""
    sizes = [-(-num_rows * _row_bytes(array) // ALIGNMENT) * ALIGNMENT for array in arrays]
    return [sum(sizes[:idx]) for idx in range(len(sizes))], sum(sizes)


def _as_bytes(array: Any) -> npt.NDArray[Any]:
    """Return the rows (N, bytes) of an array in C order; (N, numbers) if its bytes are to be
    swapped.

    As bytes, they may begin anywhere, as those of a file may: of numbers that begin where the
    processor would not have them, NumPy copies all at each call.
    """
    rows = array.reshape(len(array), -1)
    return rows.view(np.uint8) if array.dtype.isnative else rows
