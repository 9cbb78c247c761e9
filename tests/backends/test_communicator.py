"""Collectives: the same sums on all ranks, in threads and in processes of MPI; an error ends
all.
"""

from __future__ import annotations

import signal
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from threading import Event
from typing import Any

import numpy as np
import pytest

from support.mpi import mpiexec, with_mpi
from warpfit.backends.contract.communicator import Alone, Communicator
from warpfit.backends.numpy.threads import ThreadCommunicator
from warpfit.errors import DataError

SHAPES = [(), (1,), (3, 2), (2, 5), (0, 4), (17,)]


def arrays_of(rank: int) -> list[Any]:
    """Return arrays that differ from rank to rank, one of them a view with strides."""
    rng = np.random.default_rng(rank)
    return [*(np.array(rng.normal(size=shape)) for shape in SHAPES), rng.normal(size=(6, 4)).T[1:]]


def on_threads(size: int, function: Callable[[Communicator], Any]) -> list[Any]:
    with ThreadPoolExecutor(size) as pool:
        return list(pool.map(function, ThreadCommunicator.of_size(size)))


def summed(ranks: Communicator) -> list[Any]:
    arrays = arrays_of(ranks.rank)
    ranks.all_reduce(arrays)
    ranks.join()
    return arrays


@pytest.mark.parametrize("size", [2, 3, 8])
def test_all_ranks_have_the_same_sum_added_up_in_their_order(size: int) -> None:
    expected = arrays_of(0)
    for rank in range(1, size):
        for total, array in zip(expected, arrays_of(rank), strict=True):
            total += array
    for _ in range(2):
        for found in on_threads(size, summed):
            for array, total in zip(found, expected, strict=True):
                np.testing.assert_array_equal(array, total)


def test_all_ranks_have_what_the_first_has() -> None:
    def received(ranks: Communicator) -> Any:
        arrays = arrays_of(ranks.rank)
        ranks.broadcast(arrays)
        ranks.barrier()
        return arrays, ranks.share({"rank": ranks.rank})

    for arrays, shared in on_threads(3, received):
        assert shared == {"rank": 0}
        for array, first in zip(arrays, arrays_of(0), strict=True):
            np.testing.assert_array_equal(array, first)


def test_one_rank_leaves_all_as_it_is() -> None:
    for array, own in zip(summed(Alone()), arrays_of(0), strict=True):
        np.testing.assert_array_equal(array, own)
    assert Alone().share(3) == 3


def test_an_error_of_one_rank_is_raised_by_all_that_wait() -> None:
    first, second = Event(), Event()

    def act(ranks: Communicator) -> str:
        if ranks.rank == 1:
            ranks.on_abort(lambda: second.wait(30) and first.set())  # one waits for the other
            ranks.on_abort(second.set)
            error = DataError("the second rank has no rows")
            assert ranks.abort(error) is error
            assert ranks.abort(DataError("nobody hears of a second error")) is error
            return "aborted"
        with pytest.raises(DataError, match="the second rank has no rows"):
            ranks.barrier()
        return "heard"

    assert on_threads(3, act) == ["heard", "aborted", "heard"]
    assert first.wait(30)


@with_mpi
def test_processes_of_mpi_have_the_same_sum(tmp_path: Path) -> None:
    program = f"""
import numpy as np
from warpfit.backends.numpy.mpi import processes
ranks, shapes = processes(), {SHAPES!r}
def arrays_of(rank):
    rng = np.random.default_rng(rank)
    return [*(np.array(rng.normal(size=s)) for s in shapes), rng.normal(size=(6, 4)).T[1:]]
arrays, own = arrays_of(ranks.rank), arrays_of(ranks.rank)
ranks.all_reduce(arrays)
for array, one, other in zip(arrays, arrays_of(0), arrays_of(1)):
    np.testing.assert_array_equal(array, one + other)
ranks.broadcast(own)
for array, one in zip(own, arrays_of(0)):
    np.testing.assert_array_equal(array, one)
ranks.barrier()
assert ranks.share(ranks.rank) == 0 and ranks.size == 2 and ranks.local_rank == ranks.rank
print("rank", ranks.rank)
"""
    process = mpiexec(tmp_path, program)
    out, errors = process.communicate(timeout=60)
    assert process.returncode == 0, errors
    assert sorted(out.split()) == ["0", "1", "rank", "rank"]


@with_mpi
@pytest.mark.parametrize("end", ["raise", "kill"])
def test_a_process_that_ends_ends_the_others(end: str, tmp_path: Path) -> None:
    program = f"""
import os
from warpfit.backends.numpy.mpi import processes
from warpfit.errors import DataError
ranks = processes()
ranks.barrier()
if ranks.rank == 1:
    if {end!r} == "kill":
        os.kill(os.getpid(), {int(signal.SIGKILL)})
    ranks.abort(DataError("no rows"))
ranks.barrier()
print("not reached")
"""
    process = mpiexec(tmp_path, program)
    out, errors = process.communicate(timeout=60)
    assert process.returncode != 0
    assert "not reached" not in out
    if end == "raise":
        assert "rank 1 of 2: DataError: no rows" in errors
