"""Launches in a device's context, over a driver that we made up: what is remembered of them, and
named when one fails.
"""

from __future__ import annotations

import numpy as np
import pytest

from support.fake_driver import FakeDriver, launch
from warpfit.backends.cuda import runtime
from warpfit.backends.cuda.context import LAUNCHES_REMEMBERED
from warpfit.backends.cuda.runtime import Runtime
from warpfit.errors import DeviceError, KernelError


def test_devices_take_turns_as_the_threads_current_one(driver: FakeDriver, device: Runtime) -> None:
    driver.count = 2
    other = runtime.open_device(1)
    for each in (device, device, other, device):
        launch(each, "add")
    assert driver.calls["current 0"] == 3  # when opened, and twice after the other
    assert driver.calls["current 1"] == 2


def test_an_illegal_access_names_the_one_kernel_it_can_be(
    driver: FakeDriver, device: Runtime
) -> None:
    driver.faulty = {"softmax_forward"}
    launch(device, "softmax_forward", "softmax_forward")
    with pytest.raises(
        KernelError,
        match=r"^a kernel failed on cuda:0: CUDA_ERROR_ILLEGAL_ADDRESS \(words for 700\); "
        r"the kernel was softmax_forward$",
    ):
        device.synchronize()


def test_an_illegal_access_names_all_kernels_since_the_last_wait(
    driver: FakeDriver, device: Runtime
) -> None:
    launch(device, "early")
    device.synchronize()
    driver.faulty = {"second"}
    launch(device, "first", "second", "first")
    with pytest.raises(DeviceError, match=r"one of first, second \(WARPFIT_DEBUG=1 ") as caught:
        device.download(np.empty(1), device.allocate(8).pointer)
    assert "early" not in str(caught.value)


def test_a_kernel_that_gave_up_is_told(device: Runtime, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(device._driver, "cuStreamSynchronize", lambda stream: (719,))
    launch(device, "one_launch")
    with pytest.raises(
        KernelError, match=r"the kernel was one_launch; kernels stop themselves if "
    ):
        device.synchronize()


def test_only_the_last_launches_are_remembered(driver: FakeDriver, device: Runtime) -> None:
    driver.faulty = {"k0"}
    launch(device, *(f"k{number}" for number in range(LAUNCHES_REMEMBERED + 1)))
    with pytest.raises(DeviceError, match=r"one of k1, k2, .*, k16 "):
        device.synchronize()


def test_debugging_waits_for_each_launch(
    driver: FakeDriver, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("WARPFIT_DEBUG", "1")
    device = runtime.open_device(0)
    driver.faulty = {"second"}
    launch(device, "first")
    assert driver.calls["synchronize"] == 1
    with pytest.raises(DeviceError, match=r"the kernel was second$"):
        launch(device, "second")


def test_debugging_waits_for_no_launch_that_waits_for_others(
    driver: FakeDriver, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("WARPFIT_DEBUG", "1")
    device = runtime.open_device(0)
    with device.waiting_for_others():
        launch(device, "first")
    assert driver.calls["synchronize"] == 0
    launch(device, "second")
    assert driver.calls["synchronize"] == 1


@pytest.mark.parametrize("value", [None, "", "0"])
def test_without_debugging_nothing_waits(
    driver: FakeDriver, monkeypatch: pytest.MonkeyPatch, value: str | None
) -> None:
    if value is not None:
        monkeypatch.setenv("WARPFIT_DEBUG", value)
    launch(runtime.open_device(0), "first", "second")
    assert driver.calls["synchronize"] == 0
