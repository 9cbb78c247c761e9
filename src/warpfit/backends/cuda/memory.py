"""Memory of a device, and of the host that it reads and writes."""

from __future__ import annotations

import ctypes
from collections.abc import Iterable
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt

from warpfit.backends.cuda.driver import core
from warpfit.backends.cuda.streams import Streams
from warpfit.errors import DeviceError


class Memory:
    """A piece of device memory, given back to the pool when the last array on it goes."""

    __slots__ = ("nbytes", "owner", "pointer")

    def __init__(self, pointer: int, nbytes: int, owner: Any) -> None:
        self.pointer, self.nbytes, self.owner = pointer, nbytes, owner


class SharedMemory(NamedTuple):
    """Memory of the host that kernels read and write where it lies, over the bus."""

    host: npt.NDArray[np.uint8]  # (bytes,) uint8
    pointer: int  # its address on the device
    owner: Any  # what keeps it alive


class MemoryPool(Streams):
    """A pool that memory comes from in the order of the stream."""

    def __init__(self, index: int) -> None:
        super().__init__(index)
        self._pool = core().DeviceMemoryResource(index)

    def allocate(self, nbytes: int) -> Memory:
        """Return uninitialised memory of the stream's pool.

        Raises
        ------
        DeviceError
            If there is not enough; the message says how much was asked for and how much is free.
        """
        capturing = self._capturing  # another thread's may end meanwhile
        held = capturing.held if capturing is not None else None
        if held is None:
            self._refuse_in_capture(f"an allocation of {nbytes} bytes")
        self.activate()
        try:
            if held is None or not self.is_capturing():
                return self._from_pool(nbytes)
            with self._growing_in_capture():
                held.append(self._from_pool(nbytes))
            return held[-1]
        except Exception as error:
            if "OUT_OF_MEMORY" not in str(error):
                raise DeviceError(
                    f"cannot allocate {nbytes} bytes on {self.name}: {error}"
                ) from error
        # What earlier arrays held is free only once the stream has passed their end.
        self.synchronize()
        try:
            return self._from_pool(nbytes)
        except Exception as error:
            free, total = self.memory_info()
            raise DeviceError(
                f"out of memory on {self.name}: asked for {_size(nbytes)}, {_size(free)} of "
                f"{_size(total)} free"
            ) from error

    def _from_pool(self, nbytes: int) -> Memory:
        buffer = self._pool.allocate(max(nbytes, 1), stream=self.stream)
        return Memory(int(buffer.handle), nbytes, buffer)

    def share(self, nbytes: int) -> SharedMemory:
        """Return zeros in memory of the host that kernels may read and write while the host does.

        Raises
        ------
        DeviceError
            If the host has not as much that can be pinned.
        """
        self._refuse_in_capture("memory shared with the host")
        self.activate()
        buffer, host = pinned(nbytes)
        host[:] = 0
        # Pinned memory has the same address on the device (CUDA programming guide, unified
        # addressing).
        return SharedMemory(host, host.ctypes.data, buffer)

    def reaches(self, others: Iterable[MemoryPool]) -> bool:
        """Return whether this card can write to the memory of others; if so, it may from now on."""
        self.activate()
        mine = [other for other in others if other is not self]
        if not all(self.device.can_access_peer(other.device) for other in mine):
            return False
        for other in mine:
            other._pool.peer_accessible_by.add(self.index)
        return True

    def memory_info(self) -> tuple[int, int]:
        """Return free and total memory of the device, in bytes."""
        self.activate()
        error, free, total = self._driver.cuMemGetInfo()
        self._check(error, "asking for free memory")
        return int(free), int(total)

    def memory_in_use(self) -> int:
        """Return the bytes that arrays of this process hold on the device."""
        return int(self._pool.attributes.used_mem_current)

    def memory_left(self) -> int:
        """Return the bytes that new arrays can take: free ones, and those the pool has left."""
        free, _ = self.memory_info()
        return free + int(self._pool.attributes.reserved_mem_current) - self.memory_in_use()


def pinned(nbytes: int) -> tuple[Any, npt.NDArray[np.uint8]]:
    """Return pinned host memory, and an array over it that does not keep it alive."""
    try:
        buffer = core().LegacyPinnedMemoryResource().allocate(nbytes)
    except Exception as error:
        raise DeviceError(f"cannot pin {_size(nbytes)} of the host's memory: {error}") from error
    place = (ctypes.c_uint8 * nbytes).from_address(int(buffer.handle))
    return buffer, np.ctypeslib.as_array(place)


def _size(nbytes: int) -> str:
    """Return a number of bytes in words."""
    return f"{nbytes / 2**30:.2f} GiB" if nbytes >= 2**30 else f"{nbytes / 2**20:.1f} MiB"
