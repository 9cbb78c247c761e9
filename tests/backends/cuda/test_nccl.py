"""Processes whose cards NCCL adds up over: they agree on its number, and on sums."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor
from time import sleep
from typing import Any

import numpy as np
import pytest

from conftest import on_emulator
from support.fake_nccl import FakeNccl, open_cards
from warpfit import backends
from warpfit.backends.cuda.nccl import NcclCommunicator
from warpfit.backends.numpy.threads import ThreadCommunicator
from warpfit.errors import DataError, DeviceError

pytestmark = on_emulator


@pytest.fixture
def nccl(monkeypatch: pytest.MonkeyPatch) -> FakeNccl:
    return open_cards(monkeypatch, 2)


def on_processes(function: Any) -> list[Any]:
    """Return what a function of a rank's communicator and backend returns, of each rank."""

    def act(host: ThreadCommunicator) -> Any:
        ops: Any = backends.get(f"cuda:{host.rank}")
        return function(NcclCommunicator.of_process(host, ops.runtime), ops)

    with ThreadPoolExecutor(2) as pool:
        return list(pool.map(act, ThreadCommunicator.of_size(2)))


def meet_twice(ranks: Any) -> None:
    for _ in range(2):
        ranks.barrier()


def test_sums_and_broadcasts(nccl: FakeNccl) -> None:
    def act(ranks: Any, ops: Any) -> Any:
        arrays = [ops.asarray(np.full(3, 1.0 + ranks.rank)) for _ in range(2)]
        ranks.all_reduce(arrays[:1])
        ranks.broadcast(arrays[1:])
        ranks.join()
        return [ops.to_numpy(array).tolist() for array in arrays], ranks.exchange(ranks.rank)

    assert on_processes(act) == [([[3.0] * 3, [1.0] * 3], [0, 1])] * 2
    assert nccl.numbers == {b"the first rank's number"}


def test_what_fails_in_nccl(nccl: FakeNccl, monkeypatch: pytest.MonkeyPatch) -> None:
    def act(ranks: Any, ops: Any) -> None:
        def refuse(*_: Any, **__: Any) -> None:
            raise RuntimeError("no NVLink")

        ranks._nccl.allreduce = refuse
        with pytest.raises(DeviceError, match=f"NCCL failed on cuda:{ranks.rank}: no NVLink"):
            ranks.all_reduce([ops.asarray(np.ones(2))])

    on_processes(act)


def test_an_error_aborts_what_runs_on_the_cards(nccl: FakeNccl) -> None:
    def act(ranks: Any, ops: Any) -> str:
        if ranks.rank:
            ranks.barrier()
            ranks.abort(DataError("the second has no rows"))
            return "aborted"
        with pytest.raises(DataError, match="the second has no rows"):
            meet_twice(ranks)
        return "heard"

    assert on_processes(act) == ["heard", "aborted"]
    for _ in range(300):
        if len(nccl.aborted) < 2:
            sleep(0.01)
    assert sorted(nccl.aborted) == [0, 1]
