"""What the driver's library says of itself, and what is missing, over one that is not there or
that we made up.
"""

from __future__ import annotations

import sys

import pytest

from support.devices import no_gpu
from support.fake_driver import FakeDriver, Result
from warpfit import backends
from warpfit.backends.cuda import runtime
from warpfit.backends.cuda.driver import arch_of
from warpfit.errors import DeviceError


def test_without_the_drivers_library(monkeypatch: pytest.MonkeyPatch) -> None:
    FakeDriver().install(monkeypatch)
    no_gpu(monkeypatch)
    with pytest.raises(
        DeviceError, match=r"'cuda:0', but no NVIDIA driver was found \(libcuda.so.1"
    ):
        backends.resolve_device("cuda")
    assert runtime.devices() == []


@pytest.mark.parametrize("missing", ["cuda", "cuda.core"])
def test_without_cuda_core(
    driver: FakeDriver, monkeypatch: pytest.MonkeyPatch, missing: str
) -> None:
    monkeypatch.setitem(sys.modules, missing, None)
    with pytest.raises(
        DeviceError, match=r"but cuda-core is not installed \(pip install 'warpfit\[cuda\]'\)"
    ):
        backends.get("cuda")


def test_a_driver_without_cuda_core_is_said(monkeypatch: pytest.MonkeyPatch) -> None:
    no_gpu(monkeypatch)
    monkeypatch.setattr("warpfit.backends.cuda.driver.library", object)
    monkeypatch.setitem(sys.modules, "cuda.core", None)
    assert runtime.why_unavailable() == "cuda-core is not installed (pip install 'warpfit[cuda]')"


@pytest.mark.parametrize(
    ("version", "bindings", "remedy"),
    [
        (
            12040,
            "13.1.0",
            r"CUDA 12.4, .* CUDA 13 \(update the driver, or pip install 'warpfit\[cu12\]'\)",
        ),
        (11080, "12.9.0", r"CUDA 11.8, .* CUDA 12 \(update the driver\)"),
    ],
)
def test_a_driver_too_old_for_the_bindings(
    driver: FakeDriver, monkeypatch: pytest.MonkeyPatch, version: int, bindings: str, remedy: str
) -> None:
    driver.version = version
    driver.install(monkeypatch, bindings)
    with pytest.raises(DeviceError, match=f"the driver is for {remedy}"):
        backends.get("cuda:0")


def test_a_newer_driver_serves_older_bindings(
    driver: FakeDriver, monkeypatch: pytest.MonkeyPatch
) -> None:
    driver.install(monkeypatch, "12.9.0")
    assert backends.resolve_device("cuda") == "cuda:0"


@pytest.mark.parametrize("fault", [{"count": 0}, {"init": Result.CUDA_ERROR_NO_DEVICE}])
def test_a_driver_that_sees_no_device(driver: FakeDriver, fault: dict[str, int]) -> None:
    vars(driver).update(fault)
    with pytest.raises(DeviceError, match=r"sees no device .*CUDA_VISIBLE_DEVICES"):
        backends.get("cuda")


@pytest.mark.parametrize(
    ("error", "words"),
    [
        (Result.CUDA_ERROR_INVALID_VALUE, r"CUDA_ERROR_INVALID_VALUE \(words for 1\)"),
        (4711, "error 4711"),
    ],
)
def test_a_driver_that_does_not_start(driver: FakeDriver, error: Result, words: str) -> None:
    driver.init = error
    with pytest.raises(DeviceError, match=f"does not start: {words}"):
        backends.get("cuda")


@pytest.mark.parametrize(
    ("capability", "arch"),
    [
        ((7, 5), "sm_75"),
        ((8, 9), "sm_89"),
        ((9, 0), "sm_90a"),
        ((10, 0), "sm_100a"),
        ((12, 0), "sm_120a"),
    ],
)
def test_architectures(capability: tuple[int, int], arch: str) -> None:
    assert arch_of(*capability) == arch
