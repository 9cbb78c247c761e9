"""Copies from the host and back, over a driver that we made up."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor

import numpy as np
import pytest

from support.fake_driver import FakeDriver, launch
from warpfit.backends.cuda.runtime import Runtime
from warpfit.backends.cuda.transfers import STAGING_BYTES
from warpfit.errors import DeviceError, KernelError


@pytest.mark.parametrize("nbytes", [0, 1, 1000, STAGING_BYTES, 3 * STAGING_BYTES + 1])
def test_bytes_come_back_as_they_went(device: Runtime, nbytes: int) -> None:
    values = np.random.default_rng(0).integers(0, 256, nbytes, dtype=np.uint8)
    first, second = device.allocate(nbytes), device.allocate(nbytes)
    sent = values.copy()
    device.upload(first.pointer, sent)
    sent[:] = 0
    device.copy(second.pointer, first.pointer, nbytes)
    device.fill(first.pointer, nbytes, 7)
    for memory, expected in ((second, values), (first, np.full_like(values, 7))):
        received = np.empty_like(values)
        device.download(received, memory.pointer)
        np.testing.assert_array_equal(received, expected)


def test_threads_that_upload_at_once(device: Runtime, short_turns: None) -> None:
    def come_back(value: int) -> bool:
        sent, memory = np.full(1 << 18, value, np.uint8), device.allocate(1 << 18)
        received = np.empty_like(sent)
        device.upload(memory.pointer, sent)
        device.download(received, memory.pointer)
        return bool((received == value).all())

    with ThreadPoolExecutor(8) as pool:
        assert all(pool.map(come_back, range(200)))


def test_uploads_do_not_wait_for_the_device(driver: FakeDriver, device: Runtime) -> None:
    memory = device.allocate(3 * STAGING_BYTES)
    for number in range(3):
        device.upload(memory.pointer, np.full(10, number))
    device.upload(memory.pointer, np.zeros(3 * STAGING_BYTES, np.uint8))
    assert driver.calls["synchronize"] == 0
    assert driver.calls["HtoD"] == 6


def test_an_upload_buffer_copies_beside_what_the_device_does(
    driver: FakeDriver, device: Runtime
) -> None:
    buffer = device.create_upload_buffer(100)
    own, other = 77, 78  # the streams
    (_, released), *_ = driver.records
    assert driver.records == [(own, released)]
    buffer.await_host()
    buffer.host[:] = np.arange(100)
    buffer.send(60)
    (_, sent) = driver.records[-1]
    assert driver.copies == [other]
    assert driver.waits == [(other, released)]
    assert driver.records[-1] == (other, sent) != (other, released)
    buffer.receive()
    assert driver.waits[-1] == (own, sent)
    received = np.empty(60, np.uint8)
    device.download(received, buffer.memory.pointer)
    np.testing.assert_array_equal(received, np.arange(60))
    buffer.release()
    assert driver.records[-1] == (own, released)
    free = driver.free
    buffer.close()
    buffer.close()
    assert driver.free == free + 100
    assert driver.calls["event sync"] == 2
    device.create_upload_buffer(1).send(1)
    assert driver.copies[-1] == other  # all of them share a stream


def test_an_upload_buffer_tells_what_is_missing(driver: FakeDriver, device: Runtime) -> None:
    driver.most_pinned = 2**20
    with pytest.raises(
        DeviceError, match=r"cannot pin 2.0 MiB of the host's memory: CUDA_ERROR_OUT_OF_MEMORY"
    ):
        device.create_upload_buffer(2**21)
    assert driver.free == driver.total
    buffer = device.create_upload_buffer(10)
    driver.faulty = {"train"}
    launch(device, "train")
    with pytest.raises(KernelError, match=r"an upload failed .*; the kernel was train"):
        buffer.await_host()
    buffer.close()
