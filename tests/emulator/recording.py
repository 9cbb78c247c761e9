"""What kernels do with barriers in shared memory, written down by the emulator."""

from __future__ import annotations

import ctypes
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any, NamedTuple

import numpy as np
import pytest

from emulator import runtime

MADE, WAIT, ARRIVAL, BYTES = range(4)
FIELDS = 6


class Record(NamedTuple):
    """What a thread of a block did with a block's barrier, which that made as its `barrier`-th.

    Attributes
    ----------
    number : int
        The count of a barrier that is made, the parity of a wait, bytes that are to come with an
        arrival, and bytes that are sent.
    """

    what: int
    block: int
    thread: int
    owner: int
    barrier: int
    number: int


class Launch(NamedTuple):
    """A launch: the kernel, its settings, its threads, and what they did.

    Attributes
    ----------
    made : list of Record
        The barriers that were made.
    events : dict of (int, int) to bytes
        What else a thread did, by its block and its own number: see `events_of`.
    """

    kernel: str
    settings: dict[str, str]
    threads: int
    made: list[Record]
    events: dict[tuple[int, int], bytes]


def events_of(events: bytes) -> list[list[int]]:
    """Return what a thread did, one after the other: what, owner, barrier and number of each."""
    return np.frombuffer(events, np.int64).reshape(-1, 4).tolist()


@contextmanager
def recorded(kernels: tuple[str, ...]) -> Iterator[list[Launch]]:
    """Record all launches of some kernels in this block."""
    launches: list[Launch] = []
    launch = runtime.EmulatedRuntime.launch_cluster

    def recording(self: Any, function: Any, grid: Any, block: Any, *others: Any) -> None:
        name, defines = function.variant
        if name not in kernels:
            return launch(self, function, grid, block, *others)
        scheduler = runtime._scheduler()
        scheduler.emulator_record(True)
        try:
            launch(self, function, grid, block, *others)
            records = _records(scheduler)
            launches.append(Launch(name, dict(defines), block[0], *_sorted_out(records)))
        finally:
            scheduler.emulator_record(False)
        return None

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(runtime.EmulatedRuntime, "launch_cluster", recording)
        yield launches


def _records(scheduler: Any) -> np.ndarray:
    """Return all records, (count, fields of a `Record`)."""
    count = ctypes.c_size_t()
    scheduler.emulator_records.restype = ctypes.POINTER(ctypes.c_longlong)
    place = scheduler.emulator_records(ctypes.byref(count))
    return np.ctypeslib.as_array(place, (count.value,)).reshape(-1, FIELDS).copy()


def _sorted_out(records: np.ndarray) -> tuple[list[Record], dict[tuple[int, int], bytes]]:
    """Return the barriers that were made, and what else each thread did."""
    is_made = records[:, 0] == MADE
    made = [Record(*row) for row in records[is_made].tolist()]
    others = records[~is_made]
    others = others[np.lexsort((others[:, 2], others[:, 1]))]  # which keeps the order of each
    ends = np.flatnonzero((np.diff(others[:, 1:3], axis=0) != 0).any(axis=1)) + 1
    return made, {
        (int(own[0, 1]), int(own[0, 2])): own[:, [0, 3, 4, 5]].tobytes()
        for own in np.split(others, ends)
        if len(own)
    }
