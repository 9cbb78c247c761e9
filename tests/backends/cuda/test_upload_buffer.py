"""Upload buffers: what is sent comes, in turns, whatever the device does meanwhile."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest

from emulator.runtime import EmulatedRuntime
from warpfit.errors import DeviceError

NBYTES = 3000


@pytest.fixture
def buffer() -> Iterator[Any]:
    """An emulated one."""
    made = EmulatedRuntime().create_upload_buffer(NBYTES)
    yield made
    made.close()


def test_two_in_turns(kernel_runtime: Any) -> None:
    turns = [
        np.random.default_rng(turn).integers(0, 256, NBYTES, dtype=np.uint8) for turn in range(7)
    ]
    kept = kernel_runtime.allocate(NBYTES * len(turns))
    buffers = [kernel_runtime.create_upload_buffer(NBYTES) for _ in range(2)]
    for turn, content in enumerate(turns):
        buffer = buffers[turn % 2]
        buffer.await_host()
        buffer.host[:] = content
        buffer.send(NBYTES - turn)
        buffer.receive()
        kernel_runtime.copy(kept.pointer + turn * NBYTES, buffer.memory.pointer, NBYTES - turn)
        buffer.release()
    found = np.empty((len(turns), NBYTES), np.uint8)
    kernel_runtime.download(found, kept.pointer)
    for turn, content in enumerate(turns):
        np.testing.assert_array_equal(found[turn, : NBYTES - turn], content[: NBYTES - turn])
    buffers[0].await_host()
    buffers[0].send(NBYTES)  # what nobody receives
    for buffer in buffers:
        buffer.close()


def test_the_emulator_sends_as_late_as_it_may(buffer: Any) -> None:
    kept = np.empty(NBYTES, np.uint8)
    buffer.await_host()
    buffer.host[:] = 1
    buffer.send(NBYTES)
    EmulatedRuntime().download(kept, buffer.memory.pointer)
    assert (kept == 0xFF).all()
    buffer.receive()
    EmulatedRuntime().download(kept, buffer.memory.pointer)
    assert (kept == 1).all()


def test_the_emulator_tells_misuse(buffer: Any) -> None:
    with pytest.raises(
        DeviceError, match="expected receive of an upload buffer after send, got it after release"
    ):
        buffer.receive()
    buffer.await_host()
    buffer.send(NBYTES)
    with pytest.raises(
        DeviceError, match="expected send of an upload buffer after release, got it after send"
    ):
        buffer.send(NBYTES)
    buffer.host[7] = 1
    for act in (buffer.receive, buffer.await_host):
        with pytest.raises(
            DeviceError, match="expected the host's side to stay as it is until await_host"
        ):
            act()


def test_the_emulator_misses_a_wait_for_the_host(buffer: Any) -> None:
    for act in (buffer.await_host, lambda: buffer.send(1), buffer.receive, buffer.release):
        act()
    with pytest.raises(DeviceError, match="expected await_host between two sends"):
        buffer.send(1)
