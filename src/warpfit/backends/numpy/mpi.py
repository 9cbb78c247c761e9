"""Ranks that are processes of MPI, whose arrays are NumPy's."""

from __future__ import annotations

import os
import sys
from collections.abc import Callable, Sequence
from functools import partial
from time import sleep
from typing import Any

import numpy as np

from warpfit.backends.contract.communicator import Communicator, in_words
from warpfit.backends.contract.terms import Array

# A launcher may drop what it has not passed on when processes abort.
SECONDS_TO_TELL = 0.5


class MpiCommunicator(Communicator):
    """A process among several.

    Attributes
    ----------
    local_rank : int
        Its number among those of this machine.
    """

    def __init__(self, mpi: Any) -> None:
        self._mpi, self._world = mpi, mpi.COMM_WORLD.Dup()
        self.rank, self.size = self._world.rank, self._world.size
        self.local_rank = int(self._world.Split_type(mpi.COMM_TYPE_SHARED).rank)

    def all_reduce(self, arrays: Sequence[Array]) -> None:
        _change(arrays, partial(self._world.Allreduce, self._mpi.IN_PLACE))

    def join(self, but: int = 0) -> None:
        """Do nothing: sums are there when `all_reduce` returns."""

    def broadcast(self, arrays: Sequence[Array]) -> None:
        _change(arrays, self._world.Bcast)

    def exchange(self, value: Any) -> list[Any]:
        found: list[Any] = self._world.allgather(value)
        return found

    def share(self, value: Any) -> Any:
        return self._world.bcast(value)

    def barrier(self) -> None:
        self._world.Barrier()

    def abort(self, error: BaseException) -> BaseException:
        """End the processes of all ranks: those that wait within MPI hear of nothing else."""
        print(f"rank {self.rank} of {self.size}: {in_words(error)}", file=sys.stderr, flush=True)
        sleep(SECONDS_TO_TELL)
        self._mpi.COMM_WORLD.Abort(1)
        os._exit(1)  # which some implementations of MPI leave to the caller

    def on_abort(self, act: Callable[[], None]) -> None:
        """Do nothing: an abort ends this process."""


def _change(arrays: Sequence[Array], change: Callable[[Any], None]) -> None:
    for array in arrays:
        dense = np.ascontiguousarray(array)
        change(dense)
        if dense is not array:
            array[...] = dense.reshape(array.shape)
