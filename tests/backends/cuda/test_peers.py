"""Cards that reach each other's memory: sums by copies, in graphs, too."""

from __future__ import annotations

from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from itertools import pairwise
from typing import Any

import numpy as np
import pytest

from conftest import on_emulator
from support.fake_nccl import open_cards
from warpfit import backends
from warpfit.backends import communicators
from warpfit.backends.cuda import peers
from warpfit.backends.cuda.array import DeviceArray
from warpfit.errors import DataError, ShapeError

SHAPES = [(), (1,), (3, 2), (0, 4), (700,), (3, 431), (257,)]


@pytest.fixture(autouse=True)
def small_parts(monkeypatch: pytest.MonkeyPatch) -> None:
    """All ranks add up something of arrays that are quickly emulated."""
    monkeypatch.setattr(peers, "LEAST_BYTES", peers.ALIGNMENT)
    peers._parts.cache_clear()


pytestmark = on_emulator


def host_arrays(rank: int, dtype: str) -> list[Any]:
    rng = np.random.default_rng(rank)
    return [rng.normal(size=shape).astype(dtype) for shape in SHAPES]


def on_cards(
    size: int, monkeypatch: pytest.MonkeyPatch, function: Callable[[Any, Any], Any]
) -> list[Any]:
    """Return what a function of a rank's communicator and backend returns, of each rank."""
    nccl = open_cards(monkeypatch, size)
    devices = [f"cuda:{idx}" for idx in range(size)]
    with communicators.of_threads(devices) as ranks, ThreadPoolExecutor(size) as pool:
        found = list(pool.map(function, ranks, [backends.get(device) for device in devices]))
    assert nccl.calls == []
    return found


@pytest.mark.parametrize("dtype", ["float32", "float64"])
@pytest.mark.parametrize("size", [2, 3, 4])
def test_sums_have_the_same_bits_on_all_ranks_and_in_graphs(
    size: int, dtype: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    expected = host_arrays(0, dtype)
    for rank in range(1, size):
        expected = [a + b for a, b in zip(expected, host_arrays(rank, dtype), strict=True)]

    def summed(ranks: Any, ops: Any) -> Any:
        arrays = [ops.asarray(array) for array in host_arrays(ranks.rank, dtype)]
        ranks.all_reduce(arrays)
        ranks.join()
        once = [ops.to_numpy(array) for array in arrays]
        places = [ops.asarray(array) for array in host_arrays(ranks.rank, dtype)]
        with ops.runtime.capture() as graph:
            ranks.all_reduce(places)
            ranks.join()
        for array, value in zip(places, host_arrays(ranks.rank, dtype), strict=True):
            ops.assign(array, ops.asarray(value))
        graph.launch()
        return once, [ops.to_numpy(array) for array in places]

    everywhere = on_cards(size, monkeypatch, summed)
    close: dict[str, float] = (
        {"rtol": 1e-6, "atol": 1e-6} if dtype == "float32" else {"rtol": 1e-12}
    )
    for array, total in zip(everywhere[0][0], expected, strict=True):
        np.testing.assert_allclose(array, total, **close)
    for once, captured in everywhere:
        for found in (once, captured):
            for array, first in zip(found, everywhere[0][0], strict=True):
                np.testing.assert_array_equal(array, first)


def test_larger_sums_later_and_what_is_joined_but_for_the_last(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    def summed(ranks: Any, ops: Any) -> Any:
        arrays = [ops.asarray(np.full(size, 1.0 + ranks.rank)) for size in (5, 9000)]
        merges = ops.runtime.merges
        for array in (*arrays, arrays[0]):
            ranks.all_reduce([array])
        ranks.join(but=1)
        ranks.join()
        ranks.join()
        return [ops.to_numpy(array) for array in arrays], ops.runtime.merges - merges

    for found, merges in on_cards(2, monkeypatch, summed):
        assert merges == 3
        for array, total in zip(found, (6.0, 3.0), strict=True):
            np.testing.assert_array_equal(array, np.full(array.shape, total))


def test_all_have_what_the_first_has(monkeypatch: pytest.MonkeyPatch) -> None:
    def received(ranks: Any, ops: Any) -> Any:
        arrays = [ops.asarray(array) for array in host_arrays(ranks.rank, "float32")]
        ranks.broadcast(arrays)
        ranks.barrier()
        return [ops.to_numpy(array) for array in arrays], ranks.exchange(ranks.rank)

    for found, shared in on_cards(3, monkeypatch, received):
        assert shared == [0, 1, 2]
        for array, first in zip(found, host_arrays(0, "float32"), strict=True):
            np.testing.assert_array_equal(array, first)


def test_a_rank_that_ends_lets_streams_wait_no_more(monkeypatch: pytest.MonkeyPatch) -> None:
    def act(ranks: Any, ops: Any) -> str:
        if ranks.rank == 1:
            ranks.abort(DataError("the second card has no rows"))
            return "aborted"
        waiting = ops.runtime
        waiting.wait_for([ranks._word(peers.SUMS, 1, 0)])  # returns, though nobody tells
        with pytest.raises(DataError, match="the second card has no rows"):
            ranks.all_reduce([ops.asarray(np.ones(3))])
        return "heard"

    assert on_cards(2, monkeypatch, act) == ["heard", "aborted"]


def test_arrays_that_are_not_contiguous_are_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    def act(ranks: Any, ops: Any) -> None:
        array: DeviceArray = ops.asarray(np.ones((4, 4)))[:, :2]
        with pytest.raises(ShapeError, match="expected contiguous arrays to add up"):
            ranks.all_reduce([array])

    on_cards(2, monkeypatch, act)


@pytest.mark.parametrize("num_ranks", [1, 2, 3, 8])
def test_parts_cover_each_array_once(num_ranks: int) -> None:
    sizes = ((1, 4), (1000, 4), (4097, 8), (256 * 8, 4))
    parts = [peers._parts(sizes, rank, num_ranks) for rank in range(num_ranks)]
    for idx, (size, itemsize) in enumerate(sizes):
        own = sorted((part[idx].first, part[idx].nbytes) for part in parts if part[idx].nbytes)
        ends = [first + nbytes for first, nbytes in own]
        assert [first for first, _ in own] == [0, *ends[:-1]]
        assert ends[-1] == size * itemsize
        assert all(first % peers.ALIGNMENT == 0 for first, _ in own)
    for of_rank in parts:
        places = [(part.place, part.nbytes * num_ranks) for part in of_rank]
        assert all(a + n <= b for (a, n), (b, _) in pairwise(places))
