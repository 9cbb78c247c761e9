"""Three ways of a batch to the device: uploaded each step, by pinned memory, or there already."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterator
from math import prod
from typing import Any

import numpy as np
import numpy.typing as npt

from warpfit import backends
from warpfit.apps.ladder.task import Task
from warpfit.backends import Array, Backend
from warpfit.data.order import epoch_order, round_keys
from warpfit.engines.layerwise import EpochRows
from warpfit.engines.steps import RowSource

Pair = tuple[Array, Array]

# Where an array may begin in a buffer.
ALIGNMENT = 256


class Batches(ABC):
    """The batches of an epoch's order, of the first rows of a task, on the backend's device.

    Steps compute with `dtype`: `Preloaded` gives batches of it, the others float32.
    """

    def __init__(self, ops: Backend, task: Task, rows: int, dtype: str) -> None:
        self.ops, self.seed, self.batch, self.dtype = ops, task.seed, task.batch, dtype
        self.x, self.y = task.x[:rows], task.y[:rows]

    @abstractmethod
    def epoch(self, epoch: int) -> Iterator[Pair]:
        """Yield x (M, features) and y (M,) of every step of an epoch, counted from 0.

        What reads a batch has been started when the next is asked for.
        """

    def _rows_of_steps(self, epoch: int) -> list[npt.NDArray[np.int64]]:
        order = epoch_order(len(self.x), self.seed, epoch)
        return [order[first : first + self.batch] for first in range(0, len(order), self.batch)]

    def close(self) -> None:  # noqa: B027  (most have nothing to give back)
        """Give back what was taken for the epochs."""


class Uploaded(Batches):
    """Gathered on the host and uploaded, step after step."""

    def epoch(self, epoch: int) -> Iterator[Pair]:
        for rows in self._rows_of_steps(epoch):
            yield self.ops.asarray(self.x[rows]), self.ops.asarray(self.y[rows])


class Pinned(Batches):
    """Gathered into pinned memory, in two buffers in turns: one goes up while the other is read."""

    ops: Any  # a device's

    def __init__(self, ops: Backend, task: Task, rows: int, dtype: str) -> None:
        super().__init__(ops, task, rows, dtype)
        row_bytes = self.x.itemsize * prod(self.x.shape[1:])
        self._y_place = -(-self.batch * row_bytes // ALIGNMENT) * ALIGNMENT
        self._nbytes = self._y_place + self.batch * self.y.itemsize
        self._buffers = [self.ops.runtime.create_upload_buffer(self._nbytes) for _ in range(2)]

    def epoch(self, epoch: int) -> Iterator[Pair]:
        steps = self._rows_of_steps(epoch)
        self._send(0, steps[0])
        for idx, rows in enumerate(steps):
            buffer = self._buffers[idx % 2]
            buffer.receive()
            yield self._on_device(buffer, len(rows))
            buffer.release()
            if idx + 1 < len(steps):
                self._send((idx + 1) % 2, steps[idx + 1])

    def _send(self, which: int, rows: npt.NDArray[np.int64]) -> None:
        buffer = self._buffers[which]
        buffer.await_host()
        for place, array in ((0, self.x), (self._y_place, self.y)):
            end = place + len(rows) * array[:1].nbytes
            target = buffer.host[place:end].view(array.dtype).reshape(len(rows), *array.shape[1:])
            # All rows are there; "raise" would gather into a copy first.
            np.take(array, rows, axis=0, out=target, mode="clip")
        buffer.send(self._nbytes)

    def _on_device(self, buffer: Any, num_rows: int) -> Pair:
        from warpfit.backends.cuda.array import DeviceArray

        memory, runtime = buffer.memory, self.ops.runtime
        x, y = (
            DeviceArray(
                runtime, memory, memory.pointer + place, (num_rows, *array.shape[1:]), array.dtype
            )
            for place, array in ((0, self.x), (self._y_place, self.y))
        )
        return x, y

    def close(self) -> None:
        for buffer in self._buffers:
            buffer.close()


class Preloaded(Batches):
    """On the device all along, and put in order there once an epoch, so that a batch is a slice."""

    def __init__(self, ops: Backend, task: Task, rows: int, dtype: str) -> None:
        super().__init__(ops, task, rows, dtype)
        sources = RowSource(ops.asarray(self.x), dtype), RowSource(ops.asarray(self.y), "int64")
        # Of the same device, with buffers that outlast a step.
        device = ops.runtime.name if hasattr(ops, "runtime") else "cpu"
        self._rows = EpochRows(ops, sources, backends.create(device))

    def epoch(self, epoch: int) -> Iterator[Pair]:
        num_rows = len(self.x)
        self._rows.put_in(self.ops.epoch_order(num_rows, round_keys(self.seed, epoch)))
        for first in range(0, num_rows, self.batch):
            x, y, _ = self._rows.batch(first, self.batch)
            yield x, y
