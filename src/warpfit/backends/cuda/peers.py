"""Ranks that are GPUs of one process, which reach each other's memory: copies bring what is added
up, so that sums leave the multiprocessors to the kernels beside them.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import lru_cache
from time import perf_counter, sleep
from typing import Any, NamedTuple

import numpy as np

from warpfit.backends.contract.terms import Array
from warpfit.backends.cuda.beside import BesideCommunicator
from warpfit.backends.cuda.columns import THREADS, split_columns
from warpfit.backends.cuda.launch import Kernel, Kernels
from warpfit.backends.cuda.memory import SharedMemory
from warpfit.backends.numpy.threads import ThreadCommunicator

# Of an array a rank adds up at least as much: fewer bytes take longer to begin with than to copy.
LEAST_BYTES, ALIGNMENT = 1 << 16, 1024
# Sums that go on at a time, and streams that copy for each.
LANES, COPIERS = 2, 2
# What ranks tell each other of a sum: their parts are with the one who adds them up, and the sums
# are back.
PARTS, SUMS = 0, 1
WORD_BYTES = 4
# After an error, how long streams are released that wait for another GPU, and how often: each may
# have many waits before it.
SECONDS_TO_RELEASE, SECONDS_OF_A_WAIT = 10.0, 1e-3


class _Part(NamedTuple):
    """What of an array a rank adds up: its bytes, from which on, and where all ranks' lie in its
    memory, one behind the other.
    """

    first: int
    nbytes: int
    place: int


class _Lane:
    """Streams on which a sum goes on, and memory for the parts of all ranks."""

    def __init__(self) -> None:
        self.stream: Any = None
        self.copiers: list[Any] = [None] * (COPIERS - 1)
        self.memory: list[Any] = []  # graphs have the addresses of all of it


class PeerCommunicator(BesideCommunicator):
    """A GPU among several of this process.

    Every rank adds up a part of each array. All others copy theirs into its memory before, and it
    copies the sum into theirs after. Where a stream has to wait for another GPU's, that writes a
    word of the host's memory.

    Parameters
    ----------
    host : ThreadCommunicator
        The same ranks as threads: they agree on Python objects.
    runtime : Runtime
        The GPU.
    words : SharedMemory
        Of all ranks, as `of_threads` makes it.
    """

    def __init__(self, host: ThreadCommunicator, runtime: Any, words: SharedMemory) -> None:
        super().__init__(host, runtime)
        self._host, self._words = host, words
        self._peers = [(host.rank + 1 + idx) % host.size for idx in range(host.size - 1)]
        self._lanes = [_Lane() for _ in range(LANES)]
        self._turn = 0
        if not host.rank:
            host.on_abort(self._release)

    @staticmethod
    def of_threads(
        hosts: Sequence[ThreadCommunicator], runtimes: Sequence[Any]
    ) -> list[PeerCommunicator]:
        """Return the communicators of GPUs that `reach` each other."""
        words = runtimes[0].share(LANES * 2 * len(hosts) ** 2 * WORD_BYTES)
        return [
            PeerCommunicator(host, own, words) for host, own in zip(hosts, runtimes, strict=True)
        ]

    def all_reduce(self, arrays: Sequence[Array]) -> None:
        given = [array for array in arrays if array.size]
        adders = [self._adder(array.dtype) for array in given]  # no kernel is loaded amid waits
        sizes = tuple((array.size, array.itemsize) for array in given)
        parts = [_parts(sizes, rank, self.size) for rank in range(self.size)]
        own_parts = parts[self.rank]
        places = self._meet(given, own_parts)
        pushes = [
            (
                places[rank][0] + part.place + self.rank * part.nbytes,
                array.pointer + part.first,
                part.nbytes,
            )
            for rank in (*self._peers, self.rank)
            for array, part in zip(given, parts[rank], strict=True)
        ]
        self._copy(pushes)
        self._tell(PARTS)
        memory, _ = places[self.rank]
        with self._runtime.on(self._stream):
            for add, array, part in zip(adders, given, own_parts, strict=True):
                self._add_up(add, array, part, memory + part.place)
        self._copy(
            [
                (pointer + part.first, array.pointer + part.first, part.nbytes)
                for peer in self._peers
                for pointer, array, part in zip(places[peer][1], given, own_parts, strict=True)
            ]
        )
        self._tell(SUMS)
        self._note()

    def _meet(self, arrays: Sequence[Array], parts: Sequence[_Part]) -> list[tuple[int, list[int]]]:
        """Begin on the streams of a lane, and return of each rank the address of its memory for
        all parts, and those of its arrays.
        """
        lane = self._lane
        self._stream = lane.stream
        self._begin(arrays)
        lane.stream = self._stream
        nbytes = parts[-1].place + parts[-1].nbytes * self.size if parts else 0
        if nbytes > (lane.memory[-1].nbytes if lane.memory else 0):
            lane.memory.append(self._runtime.allocate(nbytes))
            self._runtime.synchronize()  # other GPUs do not wait for what had it before
        memory = lane.memory[-1].pointer if lane.memory else 0
        return self._host.exchange((memory, [array.pointer for array in arrays]))

    @property
    def _lane(self) -> _Lane:
        return self._lanes[self._turn]

    def _note(self) -> None:
        super()._note()
        self._turn = (self._turn + 1) % LANES

    def join(self, but: int = 0) -> None:
        super().join(but)
        if not but:
            self._turn = 0  # a step has the lanes of the last, and so their memory

    def _copy(self, copies: Sequence[tuple[int, int, int]]) -> None:
        """Start copies, by target, source and bytes, on the streams of the lane."""
        runtime, lane = self._runtime, self._lane
        copies = [copy for copy in copies if copy[2]]
        count = min(COPIERS, len(copies))
        lane.copiers[: count - 1] = [
            runtime.fork(stream, self._stream) for stream in lane.copiers[: max(0, count - 1)]
        ]
        streams = [self._stream, *lane.copiers][:count]
        for idx, stream in enumerate(streams):
            with runtime.on(stream):
                for target, source, nbytes in copies[idx::count]:
                    runtime.copy(target, source, nbytes)
        for stream in streams[1:]:
            runtime.merge(stream.record(), self._stream)

    def _adder(self, dtype: Any) -> Kernel:
        return Kernels.of(self._runtime).get("sum_columns", DTYPE=dtype, OUT=dtype)

    def _add_up(self, add: Kernel, array: Array, part: _Part, memory: int) -> None:
        """Write the sum of all ranks' parts of an array to where this one's lies."""
        count = part.nbytes // array.itemsize
        if count:
            width, tiles, _, rows = split_columns(self.size, count, 1)
            out = array.pointer + part.first
            sizes = (self.size, count, width, rows)
            add((tiles, 1), THREADS, memory, out, None, None, 1.0, *sizes)

    def _tell(self, what: int) -> None:
        """Tell all others, and wait until they tell the same."""
        with self._runtime.on(self._stream):
            self._runtime.tell([self._word(what, self.rank, peer) for peer in self._peers])
            self._runtime.wait_for([self._word(what, peer, self.rank) for peer in self._peers])

    def _word(self, what: int, teller: int, listener: int) -> int:
        idx = ((self._turn * 2 + what) * self.size + teller) * self.size + listener
        return self._words.pointer + WORD_BYTES * idx

    def broadcast(self, arrays: Sequence[Array]) -> None:
        given = [array for array in arrays if array.size]
        places = self._meet(given, ())
        self._tell(PARTS)  # nothing reads them any more
        if not self.rank:
            self._copy(
                [
                    (pointer, array.pointer, array.nbytes)
                    for peer in self._peers
                    for array, pointer in zip(given, places[peer][1], strict=True)
                ]
            )
        self._tell(SUMS)
        self._note()
        self.join()

    def _release(self) -> None:
        """Let no stream wait for another GPU any more: whatever they compute is of no use."""
        words, end = self._words.host.view(np.uint32), perf_counter() + SECONDS_TO_RELEASE
        while perf_counter() < end:
            words[:] = 1
            sleep(SECONDS_OF_A_WAIT)


@lru_cache(maxsize=256)
def _parts(sizes: tuple[tuple[int, int], ...], rank: int, num_ranks: int) -> tuple[_Part, ...]:
    """Return what a rank adds up of each array, given by its size and that of an element; of small
    arrays each is one rank's, in turns.
    """
    parts, place = [], 0
    for idx, (size, itemsize) in enumerate(sizes):
        total = size * itemsize
        each = max(LEAST_BYTES, -(-total // (num_ranks * ALIGNMENT)) * ALIGNMENT)
        first = min((rank - idx) % num_ranks * each, total)
        part = _Part(first, min(each, total - first), place)
        parts.append(part)
        place += -(-part.nbytes * num_ranks // ALIGNMENT) * ALIGNMENT
    return tuple(parts)
