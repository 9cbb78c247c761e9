"""A CUDA device as threads use it in turns: its context, its stream, its errors' meaning."""

from __future__ import annotations

import threading
from collections import deque
from collections.abc import Callable
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass
from typing import Any

from warpfit.backends.cuda.driver import arch_of, bindings, core, describe, is_debugging
from warpfit.errors import KernelError

# How many launches an error message looks back on.
LAUNCHES_REMEMBERED = 16
STOPPED = 719  # CUDA_ERROR_LAUNCH_FAILED, also of a kernel that gave up

# Its `context` is the device that is the calling thread's current one.
active = threading.local()


@dataclass(frozen=True, eq=False)
class ThreadStream:
    """Where a thread starts its work; what lasts as long is found by it."""

    stream: Any
    handle: Any  # the driver's
    # Gives a context in which the thread waits for the device.
    waiting: Callable[[], AbstractContextManager[None]]


class Context:
    """A device and its stream; see `Runtime`."""

    def __init__(self, index: int) -> None:
        self.index, self.name = index, f"cuda:{index}"
        self.device = core().Device(index)
        self.device.set_current()
        active.context = self
        self.arch = arch_of(*self.device.compute_capability)
        properties = self.device.properties
        self.num_multiprocessors = int(properties.multiprocessor_count)
        self.max_shared_bytes = int(properties.max_shared_memory_per_block_optin)
        stream = self.device.create_stream()
        self._shared_stream = ThreadStream(stream, stream.handle, nullcontext)
        self._own_streams: dict[int, ThreadStream] = {}  # by threads
        self._driver = bindings()
        self._recent: deque[str] = deque(maxlen=LAUNCHES_REMEMBERED)
        self._blocking = is_debugging()

    @property
    def thread_stream(self) -> ThreadStream:
        """The calling thread's own, or the one that all others share."""
        if not self._own_streams:
            return self._shared_stream
        return self._own_streams.get(threading.get_ident(), self._shared_stream)

    @property
    def stream(self) -> Any:
        """The calling thread's."""
        return self.thread_stream.stream

    @property
    def _stream_handle(self) -> Any:
        return self.thread_stream.handle

    @property
    def card(self) -> str:
        """What the GPU is called."""
        return str(self.device.name)

    def activate(self) -> None:
        """Make this device the calling thread's current one."""
        if getattr(active, "context", None) is not self:
            self.device.set_current()
            active.context = self

    def _check(self, error: Any, act: str) -> None:
        if not int(error):
            return
        started = list(dict.fromkeys(self._recent))
        if len(started) == 1:
            suspects = f"; the kernel was {started[0]}"
        elif started:
            suspects = (
                f"; the kernel is one of {', '.join(started)} (WARPFIT_DEBUG=1 waits for "
                "each, and so names it)"
            )
        else:
            suspects = ""
        if int(error) == STOPPED:
            suspects += (
                "; kernels stop themselves if what they wait for does not come in ten seconds or "
                "more (WARPFIT_DEBUG=1 says where)"
            )
        raise KernelError(f"{act} failed on {self.name}: {describe(error)}{suspects}")
