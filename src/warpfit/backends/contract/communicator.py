"""The contract of collectives: what ranks that train one network together ask of each other."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence
from typing import Any

from warpfit.backends.contract.terms import Array


class Communicator(ABC):
    """One of several ranks: threads, processes, or cards.

    All ranks make the same calls in the same order, with arrays of equal shapes and dtypes. A sum
    has the same bits on all of them, and for a number of ranks at every call: it is added up in a
    fixed order.

    Attributes
    ----------
    rank : int
        This one's number, from 0.
    size : int
        How many there are.
    have_agreed : bool
        Whether processes know that they are asked for the same run.
    """

    rank: int
    size: int
    have_agreed: bool = True

    @abstractmethod
    def all_reduce(self, arrays: Sequence[Array]) -> None:
        """Replace every array by its sum over all ranks.

        That may go on beside what is started later, and has ended for what is started after `join`.
        """

    @abstractmethod
    def join(self, but: int = 0) -> None:
        """Let what starts later find the results of `all_reduce`, but the last so many."""

    @abstractmethod
    def broadcast(self, arrays: Sequence[Array]) -> None:
        """Replace every array by that of rank 0."""

    @abstractmethod
    def exchange(self, value: Any) -> list[Any]:
        """Return the values of all ranks, Python objects, on every rank."""

    def share(self, value: Any) -> Any:
        """Return rank 0's value on every rank."""
        return self.exchange(None if self.rank else value)[0]

    @abstractmethod
    def barrier(self) -> None:
        """Return once all ranks have called it."""

    @abstractmethod
    def abort(self, error: BaseException) -> BaseException:
        """Let no rank wait for another any more: their calls raise this error, or their processes
        end.

        Returned is the error of the first rank that aborts, which others may only follow from.
        """

    @abstractmethod
    def on_abort(self, act: Callable[[], None]) -> None:
        """Call a function when any rank of this process aborts."""


def in_words(error: BaseException) -> str:
    """Return what kind of error it is, and what it says, if that is anything."""
    return ": ".join(filter(None, (type(error).__name__, str(error))))


class Alone(Communicator):
    """The only rank."""

    rank, size = 0, 1

    def all_reduce(self, arrays: Sequence[Array]) -> None:
        """Leave them: a sum over one rank."""

    def join(self, but: int = 0) -> None:
        """Do nothing: there is nothing to wait for."""

    def broadcast(self, arrays: Sequence[Array]) -> None:
        """Leave them."""

    def barrier(self) -> None:
        """Return."""

    def exchange(self, value: Any) -> list[Any]:
        return [value]

    def abort(self, error: BaseException) -> BaseException:
        """Return the error: nobody waits."""
        return error

    def on_abort(self, act: Callable[[], None]) -> None:
        """Likewise."""
