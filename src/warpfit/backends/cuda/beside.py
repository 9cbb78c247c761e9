"""What ranks that are cards have in common: sums on a stream beside the card's."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from warpfit.backends.contract.communicator import Communicator
from warpfit.backends.contract.terms import Array
from warpfit.errors import ShapeError


class BesideCommunicator(Communicator):
    """A card among several.

    Parameters
    ----------
    host : Communicator
        The same ranks as threads or processes: they agree on Python objects.
    runtime : Runtime
        The card.
    """

    def __init__(self, host: Communicator, runtime: Any) -> None:
        self._host, self._runtime = host, runtime
        self.rank, self.size = host.rank, host.size
        self._stream: Any = None  # made with the first sum
        self._ends: list[Any] = []  # of what was started since the last `join`

    def _begin(self, arrays: Sequence[Array]) -> None:
        """Let what is started on the stream find the arrays."""
        if not all(array.is_contiguous for array in arrays):
            raise ShapeError("expected contiguous arrays to add up, got one that is not")
        self._stream = self._runtime.fork(self._stream)

    def _note(self) -> None:
        """Note that all of a call was started."""
        self._ends.append(self._stream.record())

    def join(self, but: int = 0) -> None:
        ends = self._ends[: len(self._ends) - but]
        for end in ends:  # they need not come one after the other
            self._runtime.merge(end)
        self._ends = self._ends[len(ends) :]

    def barrier(self) -> None:
        self._host.barrier()

    def exchange(self, value: Any) -> list[Any]:
        return self._host.exchange(value)

    def abort(self, error: BaseException) -> BaseException:
        return self._host.abort(error)

    def on_abort(self, act: Callable[[], None]) -> None:
        self._host.on_abort(act)
