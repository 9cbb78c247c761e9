"""A GPU that is opened in a thread while its caller does something else."""

from __future__ import annotations

import os
import threading

import pytest

from warpfit import backends
from warpfit.backends.cuda import runtime
from warpfit.errors import DeviceError


@pytest.mark.parametrize(
    ("device", "variable", "expected"),
    [
        ("auto", None, [0]),
        ("auto", "cuda:2", [2]),
        ("auto", "cpu", []),
        ("auto", "auto", [0]),
        ("cuda", "cpu", [0]),
        ("cuda:1", None, [1]),
        ("cpu", None, []),
        ("gpu", None, []),
    ],
)
def test_a_device_is_opened_in_a_thread(
    device: str, variable: str | None, expected: list[int], monkeypatch: pytest.MonkeyPatch
) -> None:
    opened: list[int] = []

    def open_device(index: int) -> None:
        assert threading.current_thread() is not threading.main_thread()
        opened.append(index)
        raise DeviceError("no such device")

    monkeypatch.delenv("WARPFIT_DEVICE", raising=False)
    if variable is not None:
        monkeypatch.setenv("WARPFIT_DEVICE", variable)
    monkeypatch.setattr(runtime, "open_device", open_device)
    backends.open_ahead(device)
    for thread in threading.enumerate():
        if thread.name == "opening a GPU":
            thread.join()
    assert opened == expected


def test_who_asks_meanwhile_waits_for_the_device(monkeypatch: pytest.MonkeyPatch) -> None:
    began, may_end = threading.Event(), threading.Event()
    device = object()

    def opened(index: int) -> object:
        began.set()
        assert may_end.wait(10)
        return device

    monkeypatch.setattr(runtime, "_OPEN", {})
    monkeypatch.setattr(runtime, "_opened", opened)
    monkeypatch.setattr(runtime.driver, "why_unusable", lambda opening: "asked the driver again")
    backends.open_ahead("cuda")
    assert began.wait(10)
    threading.Timer(0.05, may_end.set).start()
    assert runtime.why_unavailable() is None
    assert runtime.open_device(0) is device


@pytest.mark.skipif(not hasattr(os, "register_at_fork"), reason="needs fork")
def test_a_child_does_not_wait_for_a_thread_of_its_parent(monkeypatch: pytest.MonkeyPatch) -> None:
    held = threading.RLock()
    monkeypatch.setattr(runtime, "_OPENING", held)
    monkeypatch.setattr(runtime, "_OPEN", {})
    monkeypatch.setattr(runtime, "_OF_PARENT", [])
    thread = threading.Thread(target=held.acquire)
    thread.start()
    thread.join()
    runtime._leave_to_parent()
    monkeypatch.setattr(runtime.driver, "why_unusable", lambda opening: "no driver")
    assert runtime.why_unavailable() == "no driver"
