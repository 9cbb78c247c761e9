"""Memory of a device, over a driver that we made up: when it goes, and what is said when there is
none.
"""

from __future__ import annotations

import numpy as np
import pytest

from support.fake_driver import GIB, FakeDriver
from warpfit.backends.cuda import runtime
from warpfit.backends.cuda.runtime import Runtime
from warpfit.errors import DeviceError


def test_out_of_memory_says_how_much_and_can_be_recovered_from(
    driver: FakeDriver, device: Runtime
) -> None:
    held = device.allocate(int(1.5 * GIB))
    with pytest.raises(
        DeviceError,
        match=r"out of memory on cuda:0: asked for 1.00 GiB, 512.0 MiB of 2.00 GiB free",
    ):
        device.allocate(GIB)
    assert driver.calls["synchronize"] == 1  # what is freed in the stream's order may suffice
    del held
    assert device.allocate(GIB).nbytes == GIB


def test_memory_goes_with_its_last_array(driver: FakeDriver, device: Runtime) -> None:
    from warpfit.backends.cuda import DeviceArray

    array = DeviceArray.allocate(device, (256, 1024), "float32")
    row = array[3]
    del array
    assert driver.free == driver.total - 2**20
    del row
    assert driver.free == driver.total


def test_the_pool_grows_within_a_capture_that_allocates(
    driver: FakeDriver, device: Runtime
) -> None:
    with device.capture(allocates=True) as graph:
        memory = device.allocate(2**20)
        assert driver.mode == "thread local"
    assert graph.holds == [memory]
    assert driver.free == driver.total - 2**20
    del graph, memory
    assert driver.free == driver.total


def test_what_the_pool_holds_for_no_array_is_left_too(driver: FakeDriver) -> None:
    driver.reserved, driver.used = 700, 300
    assert runtime.open_device(0).memory_left() == driver.free + 400


def test_memory_that_host_and_device_share(driver: FakeDriver, device: Runtime) -> None:
    memory = device.share(40)
    assert memory.pointer == memory.host.ctypes.data
    assert (memory.host.shape, memory.host.dtype, memory.host.any()) == ((40,), np.uint8, False)
    driver.most_pinned = 2**20
    with pytest.raises(
        DeviceError, match=r"cannot pin 2.0 MiB of the host's memory: CUDA_ERROR_OUT_OF_MEMORY"
    ):
        device.share(2**21)


def test_a_card_that_reaches_others_may_write_to_their_memory(driver: FakeDriver) -> None:
    driver.count = 3
    cards = [runtime.open_device(index) for index in range(3)]
    assert cards[1].reaches(cards)
    assert [sorted(card._pool.peer_accessible_by) for card in cards] == [[1], [], [1]]
    driver.unreachable = {2}
    assert not cards[0].reaches(cards)
    assert cards[0].reaches(cards[:2])
    assert [sorted(card._pool.peer_accessible_by) for card in cards] == [[1], [0], [1]]
