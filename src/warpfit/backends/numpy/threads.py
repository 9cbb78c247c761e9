"""Ranks that are threads of this process, whose arrays are NumPy's."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from threading import Barrier, BrokenBarrierError, Lock, Thread
from typing import Any

from warpfit.backends.contract.communicator import Communicator
from warpfit.backends.contract.terms import Array
from warpfit.errors import DeviceError


class _Meeting:
    """Where the threads wait for each other, and what they have brought."""

    def __init__(self, size: int) -> None:
        self.barrier, self.brought = Barrier(size), [None] * size
        self.error: BaseException | None = None
        self.acts: list[Callable[[], None]] = []
        self.lock = Lock()


class ThreadCommunicator(Communicator):
    """A thread among several; `of_size` makes one for each.

    Of each array every thread adds up a share of the rows, in the order of the ranks, and writes it
    to all.
    """

    def __init__(self, meeting: _Meeting, rank: int) -> None:
        self._meeting, self.rank, self.size = meeting, rank, meeting.barrier.parties

    @staticmethod
    def of_size(size: int) -> list[ThreadCommunicator]:
        """Return the communicators of so many ranks."""
        meeting = _Meeting(size)
        return [ThreadCommunicator(meeting, rank) for rank in range(size)]

    def all_reduce(self, arrays: Sequence[Array]) -> None:
        for same in zip(*self._gathered(list(arrays)), strict=True):
            own = self._own_part(same[0])
            if own is None:
                continue
            total = same[0][own].copy()
            for other in same[1:]:
                total += other[own]
            for array in same:
                array[own] = total
        self._meet()

    def _own_part(self, array: Array) -> Any:
        """Return the index of the rows that this rank adds up; None if it has none of them."""
        if not array.ndim:
            return ... if not self.rank else None
        bounds = [len(array) * rank // self.size for rank in (self.rank, self.rank + 1)]
        return slice(*bounds) if bounds[0] < bounds[1] else None

    def join(self) -> None:
        """Do nothing: sums are there when `all_reduce` returns."""

    def broadcast(self, arrays: Sequence[Array]) -> None:
        first = self._gathered(list(arrays))[0]
        if self.rank:
            for array, value in zip(arrays, first, strict=True):
                array[...] = value
        self._meet()

    def share(self, value: Any) -> Any:
        shared = self._gathered(value)[0]
        self._meet()
        return shared

    def barrier(self) -> None:
        self._meet()

    def _gathered(self, value: Any) -> list[Any]:
        """Return what all ranks have brought, which stays until the next `_meet`."""
        self._meeting.brought[self.rank] = value
        self._meet()
        return self._meeting.brought

    def _meet(self) -> None:
        try:
            self._meeting.barrier.wait()
        except BrokenBarrierError:
            raise self._meeting.error or DeviceError("expected all ranks, got one lost") from None

    def abort(self, error: BaseException) -> BaseException:
        meeting = self._meeting
        with meeting.lock:
            if meeting.error is not None:
                return meeting.error
            meeting.error = error
        if self.rank:
            error.add_note(f"rank {self.rank} of {self.size} raised it")
        meeting.barrier.abort()
        for act in meeting.acts:  # one may wait for another
            Thread(target=act, daemon=True).start()
        return error

    def on_abort(self, act: Callable[[], None]) -> None:
        self._meeting.acts.append(act)
