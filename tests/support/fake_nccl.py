"""NCCL's communicators as threads that meet, over emulated cards; sums in a captured graph are
noted there.
"""

from __future__ import annotations

import sys
import threading
from collections import Counter
from contextlib import nullcontext
from types import ModuleType, SimpleNamespace
from typing import Any

import numpy as np
import pytest

from emulator.runtime import EmulatedRuntime, SharedLaunch
from warpfit.backends import communicators
from warpfit.backends.cuda import runtime
from warpfit.backends.numpy.threads import ThreadCommunicator

__all__ = ["FakeNccl", "open_cards"]

# One card's kernel after the other: the emulator's threads are those of one kernel.
_ONE_AT_A_TIME = threading.RLock()


# What some of as many cards have launched that do so together.
_TOGETHER: dict[int, SharedLaunch] = {}


class Card(EmulatedRuntime):
    """An emulated card among others.

    Attributes
    ----------
    forks, merges : int
        How often a stream was to go beside, and how often what follows was to wait for it.
    launched : Counter
        Kernels by their names.
    """

    def __init__(self, index: int, **settings: Any) -> None:
        super().__init__(**settings)
        self.index, self.name = index, f"cuda:{index}"
        self.forks = self.merges = 0
        self.launched: Counter[str] = Counter()

    def activate(self) -> None:
        """Do nothing: memory is where it is."""

    def fork(self, stream: Any = None) -> Any:
        """Return a stream that is the card's own."""
        self.forks += 1
        if stream is None:
            stream = SimpleNamespace(handle=0, card=self)
            stream.record = lambda: stream
        return stream

    def merge(self, place: Any) -> None:
        """Do nothing: a sum is there when it returns."""
        assert place.card is self
        self.merges += 1

    def load(self, name: str, defines: tuple[tuple[str, str], ...]) -> Any:
        with _ONE_AT_A_TIME:
            return super().load(name, defines)

    def reaches(self, others: Any) -> bool:
        """Return True: memory is where it is."""
        return True

    def _call(self, function: Any, *arguments: Any) -> None:
        with _ONE_AT_A_TIME:
            self.launched[function.variant[0]] += 1
            cards = int(dict(function.variant[1]).get("CARDS", 1))
            if cards > 1:
                _TOGETHER.setdefault(cards, SharedLaunch(cards)).join(self, function, *arguments)
            else:
                super()._call(function, *arguments)


class FakeNccl:
    """What stands in for `nccl.core`, and what was asked of it.

    Attributes
    ----------
    calls : list of (str, int, bool)
        Each collective, by rank, and whether it was captured.
    numbers : set of bytes
        By which processes met.
    """

    SUM = "sum"

    def __init__(self) -> None:
        self.calls: list[tuple[str, int, bool]] = []
        self.aborted: list[int] = []
        self.numbers: set[bytes] = set()
        self.Communicator = SimpleNamespace(init_all=self._init_all, init=self._init)
        self.UniqueId = SimpleNamespace(from_bytes=bytes)
        self._hosts = ThreadCommunicator.of_size(2)

    def group(self) -> Any:
        """Return a block of calls that are one."""
        return nullcontext()

    def get_unique_id(self) -> bytes:
        """Return what a rank hands to the others."""
        return b"the first rank's number"

    def _init(self, size: int, rank: int, number: bytes) -> Any:
        assert size == len(self._hosts)
        self.numbers.add(number)
        return _Communicator(self, self._hosts[rank], rank)

    def _init_all(self, devices: list[int]) -> list[Any]:
        hosts = ThreadCommunicator.of_size(len(devices))
        return [_Communicator(self, host, idx) for host, idx in zip(hosts, devices, strict=True)]


class _Communicator:
    def __init__(self, nccl: FakeNccl, host: ThreadCommunicator, device: int) -> None:
        self._nccl, self._host, self._device = nccl, host, device

    def allreduce(self, source: Any, target: Any, op: str, *, stream: Any) -> None:
        assert source is target
        assert op == FakeNccl.SUM
        self._start("all_reduce", target, self._host.all_reduce, stream.card)

    def broadcast(self, source: Any, target: Any, root: int, *, stream: Any) -> None:
        assert source is target
        assert root == 0
        self._start("broadcast", target, self._host.broadcast, stream.card)

    def _start(self, name: str, array: Any, act: Any, card: Card) -> None:
        assert array.runtime is card
        assert card.index == self._device
        self._nccl.calls.append((name, self._host.rank, card.is_capturing()))
        place = np.ctypeslib.as_array(
            (np.ctypeslib.ctypes.c_uint8 * array.nbytes).from_address(array.pointer)
        )
        host = place.view(array.dtype).reshape(array.shape)
        card._run(name, lambda: act([host]), array.pointer)

    def abort(self) -> None:
        self._nccl.aborted.append(self._host.rank)
        self._host.abort(RuntimeError("aborted"))


def open_cards(monkeypatch: pytest.MonkeyPatch, count: int, **settings: Any) -> FakeNccl:
    """Let there be so many emulated cards, and return what adds up over them."""
    for index in range(count):
        monkeypatch.setitem(runtime._OPEN, index, Card(index, **settings))
    monkeypatch.setattr(runtime, "devices", lambda: [None] * count)
    nccl: Any = FakeNccl()
    package = ModuleType("nccl")
    package.core = nccl  # type: ignore[attr-defined]
    monkeypatch.setitem(sys.modules, "nccl", package)
    monkeypatch.setattr(communicators, "_IDLE", {})
    return nccl
