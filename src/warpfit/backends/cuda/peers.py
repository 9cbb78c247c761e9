"""Ranks that are cards of one process, which reach each other's memory: copies bring what is added
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
from warpfit.backends.cuda.launch import Kernel, Kernels
from warpfit.backends.cuda.layouts import BLOCK_BYTES, layout
from warpfit.backends.cuda.memory import SharedMemory
from warpfit.backends.numpy.threads import ThreadCommunicator

THREADS = 256
# Of an array a rank adds up at least as much, and a multiple of it: copies begin at these.
PART_BYTES = 1024
# What ranks tell each other of a sum: their parts are with the one who adds them up, and the sums
# are back.
PARTS, SUMS = 0, 1
WORD_BYTES = 4
# After an error, how long streams are released that wait for another card, and how often: each may
# have many waits before it.
SECONDS_TO_RELEASE, SECONDS_OF_A_WAIT = 10.0, 1e-3


class _Part(NamedTuple):
    """What of an array a rank adds up: its bytes, from which on, and where the other ranks' lie in
    its memory, one behind the other.
    """

    first: int
    nbytes: int
    place: int


class PeerCommunicator(BesideCommunicator):
    """A card among several of this process, on a stream of its own beside the card's.

    Every rank adds up a part of each array, in the order of the ranks. All others copy theirs into
    its memory before, and it copies the sum into theirs after. Where a stream has to wait for
    another card's, that writes a word of the host's memory.

    Parameters
    ----------
    host : ThreadCommunicator
        The same ranks as threads: they agree on Python objects.
    runtime : Runtime
        The card.
    words : SharedMemory
        Of all ranks, `words_of` so many.
    """

    def __init__(self, host: ThreadCommunicator, runtime: Any, words: SharedMemory) -> None:
        super().__init__(host, runtime)
        self._host, self._words = host, words
        self._peers = [(host.rank + 1 + idx) % host.size for idx in range(host.size - 1)]
        self._memory: list[Any] = []  # of others' parts; graphs have the addresses of all of it
        if not host.rank:
            host.on_abort(self._release)

    @staticmethod
    def of_threads(
        hosts: Sequence[ThreadCommunicator], runtimes: Sequence[Any]
    ) -> list[PeerCommunicator]:
        """Return the communicators of cards that `reach` each other."""
        words = runtimes[0].share(2 * len(hosts) ** 2 * WORD_BYTES)
        return [
            PeerCommunicator(host, own, words) for host, own in zip(hosts, runtimes, strict=True)
        ]

    def all_reduce(self, arrays: Sequence[Array]) -> None:
        given = [array for array in arrays if array.size]
        sizes = tuple((array.size, array.itemsize) for array in given)
        parts = [_parts(sizes, rank, self.size) for rank in range(self.size)]
        adders = [self._adder(array.dtype) for array in given]  # no kernel is loaded amid waits
        places = self._meet(given, parts[self.rank])
        with self._runtime.on(self._stream):
            for peer in self._peers:
                memory, _ = places[peer]
                row = self.rank - (self.rank > peer)
                for array, part in zip(given, parts[peer], strict=True):
                    target = memory + part.place + row * part.nbytes
                    self._runtime.copy(target, array.pointer + part.first, part.nbytes)
                self._tell(PARTS, peer)
            self._await(PARTS)
            memory, own = places[self.rank]
            for add, array, part in zip(adders, given, parts[self.rank], strict=True):
                self._add_up(add, array, part, memory + part.place)
            for peer in self._peers:
                _, pointers = places[peer]
                for pointer, source, part in zip(pointers, own, parts[self.rank], strict=True):
                    self._runtime.copy(pointer + part.first, source + part.first, part.nbytes)
                self._tell(SUMS, peer)
            self._await(SUMS)
        self._note()

    def _meet(self, arrays: Sequence[Array], parts: Sequence[_Part]) -> list[tuple[int, list[int]]]:
        """Begin on a stream beside the card's, and return of each rank the address of its memory
        for others' parts, and those of its arrays.
        """
        self._begin(arrays)
        nbytes = parts[-1].place + parts[-1].nbytes * (self.size - 1) if parts else 0
        if not self._memory or self._memory[-1].nbytes < nbytes:
            self._memory.append(self._runtime.allocate(nbytes))
            self._runtime.synchronize()  # other cards do not wait for what had it before
        own = self._memory[-1].pointer, [array.pointer for array in arrays]
        return self._host.exchange(own)

    def _adder(self, dtype: Any) -> Kernel:
        return Kernels.of(self._runtime).get("binary", FUNCTION="add", DTYPE=dtype)

    def _add_up(self, add: Kernel, array: Array, part: _Part, memory: int) -> None:
        """Write the sum of all ranks' parts of an array to where this one's lies."""
        if not part.nbytes:
            return
        count = part.nbytes // array.itemsize
        flat = layout((count,), (array.itemsize,), array.itemsize)
        grid = -(-part.nbytes // BLOCK_BYTES)
        own = array.pointer + part.first
        terms = [memory + row * part.nbytes for row in range(self.size - 1)]
        terms.insert(self.rank, own)
        total = terms[0]
        for idx, term in enumerate(terms[1:], 1):
            # This rank's own part is a term, too, and is only overwritten by the last sum.
            target = own if idx == self.size - 1 else term if term != own else total
            add(grid, THREADS, total, flat, 0.0, term, flat, 0.0, target, count)
            total = target

    def _tell(self, what: int, peer: int) -> None:
        self._runtime.tell(self._word(what, self.rank, peer))

    def _await(self, what: int) -> None:
        for peer in self._peers:
            self._runtime.wait_for(self._word(what, peer, self.rank))

    def _word(self, what: int, teller: int, listener: int) -> int:
        return self._words.pointer + WORD_BYTES * (
            (what * self.size + teller) * self.size + listener
        )

    def broadcast(self, arrays: Sequence[Array]) -> None:
        given = [array for array in arrays if array.size]
        places = self._meet(given, ())
        with self._runtime.on(self._stream):
            if self.rank:
                self._tell(PARTS, 0)
                self._runtime.wait_for(self._word(SUMS, 0, self.rank))
            for peer in self._peers if not self.rank else ():
                self._runtime.wait_for(self._word(PARTS, peer, 0))
                for array, pointer in zip(given, places[peer][1], strict=True):
                    self._runtime.copy(pointer, array.pointer, array.nbytes)
                self._tell(SUMS, peer)
        self._note()
        self.join()

    def _release(self) -> None:
        """Let no stream wait for another card any more: whatever they compute is of no use."""
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
        each = -(-total // (num_ranks * PART_BYTES)) * PART_BYTES
        first = min((rank - idx) % num_ranks * each, total)
        part = _Part(first, min(each, total - first), place)
        parts.append(part)
        place += -(-part.nbytes * (num_ranks - 1) // PART_BYTES) * PART_BYTES
    return tuple(parts)
