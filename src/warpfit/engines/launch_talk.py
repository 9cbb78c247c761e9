"""What a host and a kernel of the engine one_launch tell each other while it runs."""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt

from warpfit.backends.launch_structs import PROGRESS_FIELDS

# Of a record for which there is room at first: to pin more takes the host longer than many a
# launch.
RECORD_BYTES = 1 << 22
# Passes that a kernel makes before it looks whether it is to end.
PASSES_BETWEEN_TALKS = 256
# Epochs between talks where there are to be none.
NEVER = 2**31 - 1


class SharedRecord:
    """Memory that the host shares with launches: ``Progress``, and a record of any length."""

    def __init__(self, runtime: Any) -> None:
        self.runtime = runtime
        self._take(RECORD_BYTES)

    def _take(self, nbytes: int) -> None:
        self.memory = self.runtime.share(PROGRESS_FIELDS.itemsize + nbytes)
        self.progress = self.memory.host[: PROGRESS_FIELDS.itemsize].view(PROGRESS_FIELDS)[0]

    def records(self, shape: tuple[int, int, int, int]) -> npt.NDArray[np.float64]:
        """Return zeros for the record of the next launch, with zeros for the progress before it."""
        size = 8 * int(np.prod(shape))
        if len(self.memory.host) < PROGRESS_FIELDS.itemsize + size:
            self._take(2 * size)
        host = self.memory.host[: PROGRESS_FIELDS.itemsize + size]
        host[:] = 0
        return host[PROGRESS_FIELDS.itemsize :].view(np.float64).reshape(shape)


class Talk:
    """What a running kernel and the host tell each other, and the record, in shared memory."""

    def __init__(self, memory: SharedRecord, shape: tuple[int, int, int, int]) -> None:
        epochs, passes, _, _ = shape
        self.records = memory.records(shape)
        self.progress, pointer = memory.progress, memory.memory.pointer
        self.progress_pointer, self.record_pointer = pointer, pointer + PROGRESS_FIELDS.itemsize
        self.every = min(epochs, -(-PASSES_BETWEEN_TALKS // passes))

    @property
    def epochs_done(self) -> int:
        """Epochs whose record is there."""
        return int(self.progress["epochs_done"])

    @property
    def has_ended(self) -> bool:
        """Whether the kernel did as it was asked; then after `epochs_done`."""
        return bool(self.progress["has_ended"])

    def ask_to_end(self) -> None:
        """Let the kernel end after the epoch in which it hears of it."""
        self.progress["is_asked_to_end"] = 1
