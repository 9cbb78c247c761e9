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
    """A launch: the kernel, its settings, its threads, and what they did."""

    kernel: str
    settings: dict[str, str]
    threads: int
    records: list[Record]


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
            launches.append(Launch(name, dict(defines), block[0], _records(scheduler)))
        finally:
            scheduler.emulator_record(False)
        return None

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(runtime.EmulatedRuntime, "launch_cluster", recording)
        yield launches


def _records(scheduler: Any) -> list[Record]:
    count = ctypes.c_size_t()
    scheduler.emulator_records.restype = ctypes.POINTER(ctypes.c_longlong)
    place = scheduler.emulator_records(ctypes.byref(count))
    numbers = np.ctypeslib.as_array(place, (count.value,)).reshape(-1, FIELDS)
    return [Record(*map(int, row)) for row in numbers.tolist()]
