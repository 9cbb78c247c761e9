"""Copies: from the host to a device and back, on the device, and beside what it does."""

from __future__ import annotations

import threading
from typing import Any

import numpy as np
import numpy.typing as npt

from warpfit.backends.cuda.memory import MemoryPool, pinned

# Uploads pass through pinned memory in pieces of this size, so that the host need not wait for
# them.
STAGING_BYTES = 1 << 20


class Transfers(MemoryPool):
    """Copies and fills in the stream's order, and buffers whose copies have one of their own."""

    def __init__(self, index: int) -> None:
        super().__init__(index)
        self._staging = _Staging(self)
        self._copy_stream: Any = None  # most runs need none

    def upload(self, pointer: int, host: npt.NDArray[Any]) -> None:
        """Copy a C-contiguous host array to the device; it may change as soon as this returns."""
        self._refuse_in_capture(f"an upload of {host.nbytes} bytes")
        if host.nbytes:
            self.activate()
            self._staging.upload(pointer, host.reshape(-1).view(np.uint8))

    def download(self, host: npt.NDArray[Any], pointer: int) -> None:
        """Copy device memory into a C-contiguous host array, and wait for it."""
        self._refuse_in_capture(f"a download of {host.nbytes} bytes")
        if host.nbytes:
            self.activate()
            if self._own_streams:  # this copy returns once all before it is done
                self.synchronize()
            (error,) = self._driver.cuMemcpyDtoHAsync(
                host.ctypes.data, pointer, host.nbytes, self._stream_handle
            )
            self._check(error, "a download")
        self.synchronize()

    def create_upload_buffer(self, nbytes: int) -> UploadBuffer:
        """Return pinned memory with its counterpart on the device, for copies beside what the
        device does.

        Raises
        ------
        DeviceError
            If there is not enough memory of either kind.
        """
        self._refuse_in_capture("a buffer for uploads")
        self.activate()
        if self._copy_stream is None:
            self._copy_stream = self.device.create_stream()
        return UploadBuffer(self, self._copy_stream, nbytes)

    def copy(self, target: int, source: int, nbytes: int) -> None:
        """Copy between two places of the device."""
        if nbytes:
            self.activate()
            (error,) = self._driver.cuMemcpyDtoDAsync(target, source, nbytes, self._handle())
            self._check(error, "a copy on the device")

    def fill(self, pointer: int, nbytes: int, byte: int = 0, *, at_once: bool = False) -> None:
        """Set every byte of a place on the device; `at_once`: in a capture before the graph."""
        if nbytes:
            self.activate()
            is_before = at_once and self.is_capturing()
            stream = self._stream_handle if is_before else self._handle()
            (error,) = self._driver.cuMemsetD8Async(pointer, byte, nbytes, stream)
            self._check(error, "filling memory")


class UploadBuffer:
    """Pinned host memory, and device memory of the same size that it is copied to while the device
    goes on.

    Each use goes round once, in this order; with two such buffers in turns, one is filled and
    copied while the device reads the other:

        await_host()   the host's side may be written to again
        send(nbytes)   the copy begins, once all that reads the device's side is done
        receive()      what is started on the device from here on finds the bytes there
        release()      all that reads them has been started

    A use may be broken off: `close` waits for a copy that is under way. Only `await_host` and
    `close` wait.

    Parameters
    ----------
    runtime : Transfers
    copy_stream : cuda.core.Stream
        On which copies run.
    nbytes : int
        At least 1.

    Attributes
    ----------
    host : ndarray (nbytes,) uint8
    memory : Memory
        The device's side.
    """

    def __init__(self, runtime: Transfers, copy_stream: Any, nbytes: int) -> None:
        self._runtime, self._driver, self._copy_stream = runtime, runtime._driver, copy_stream
        self.memory: Any = runtime.allocate(nbytes)
        self._pinned: Any
        self._pinned, self.host = pinned(nbytes)
        self._sent, self._released = (runtime.device.create_event() for _ in range(2))
        self.release()  # the device has the memory when it has come so far

    def await_host(self) -> None:
        """Wait until the last copy has read the host's side."""
        self._runtime.activate()
        (error,) = self._driver.cuEventSynchronize(self._sent.handle)
        self._runtime._check(error, "an upload")

    def send(self, nbytes: int) -> None:
        """Begin to copy the first bytes of the host's side."""
        runtime = self._runtime
        runtime.activate()
        stream = self._copy_stream.handle
        (error,) = self._driver.cuStreamWaitEvent(stream, self._released.handle, 0)
        runtime._check(error, "waiting for an event")
        (error,) = self._driver.cuMemcpyHtoDAsync(
            self.memory.pointer, self.host.ctypes.data, nbytes, stream
        )
        runtime._check(error, "an upload")
        self._copy_stream.record(self._sent)

    def receive(self) -> None:
        """Let what is started on the device from here on wait for the copy."""
        self._runtime.activate()
        (error,) = self._driver.cuStreamWaitEvent(self._runtime.stream.handle, self._sent.handle, 0)
        self._runtime._check(error, "waiting for an event")

    def release(self) -> None:
        """Let the next copy wait for what has been started on the device so far."""
        self._runtime.activate()
        self._runtime.stream.record(self._released)

    def close(self) -> None:
        """Give the memory back, when no copy uses it any more."""
        if self.memory is None:
            return
        self._runtime.activate()
        self._driver.cuEventSynchronize(self._sent.handle)  # a failure is reported at the next wait
        self.memory = self._pinned = None
        self.host = np.empty(0, np.uint8)


class _Staging:
    """Pinned host memory in two halves: one is filled while the copy from the other is under way.

    Threads take turns.
    """

    def __init__(self, runtime: Transfers) -> None:
        self._runtime, self._lock = runtime, threading.Lock()
        self._halves: list[tuple[Any, npt.NDArray[np.uint8], Any]] = []
        self._next = 0

    def _allocate(self) -> None:
        for _ in range(2):
            self._halves.append((*pinned(STAGING_BYTES), self._runtime.device.create_event()))

    def upload(self, pointer: int, content: npt.NDArray[np.uint8]) -> None:
        with self._lock:
            self._upload(pointer, content)

    def _upload(self, pointer: int, content: npt.NDArray[np.uint8]) -> None:
        if not self._halves:
            self._allocate()
        runtime = self._runtime
        for first in range(0, content.size, STAGING_BYTES):
            piece = content[first : first + STAGING_BYTES]
            _, place, event = self._halves[self._next]
            self._next = 1 - self._next
            event.sync()  # the copy before last, which read this half
            place[: piece.size] = piece
            (error,) = runtime._driver.cuMemcpyHtoDAsync(
                pointer + first, place.ctypes.data, piece.size, runtime._stream_handle
            )
            runtime._check(error, "an upload")
            runtime.stream.record(event)
