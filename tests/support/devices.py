"""The CUDA devices that a test finds open, and a machine without any."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from functools import cache
from typing import Any

import numpy as np
import pytest

from emulator.runtime import EmulatedRuntime
from warpfit import backends
from warpfit.backends.cuda import driver, runtime

__all__ = [
    "assert_bits_when_late",
    "no_gpu",
    "open_devices",
    "open_emulated",
    "open_in_both_orders",
]


def open_devices(monkeypatch: pytest.MonkeyPatch, *opened: Any) -> None:
    """Let these be the devices that are open, and forget what ``'auto'`` stood for, and that it was
    told.
    """
    monkeypatch.setattr(runtime, "_OPEN", dict(enumerate(opened)))
    monkeypatch.delenv("WARPFIT_DEVICE", raising=False)
    for name in ("_found_device", "_warn_of_cpu"):
        monkeypatch.setattr(backends, name, cache(getattr(backends, name).__wrapped__))


def no_gpu(monkeypatch: pytest.MonkeyPatch) -> None:
    """Let there be no driver, so that no device can be opened."""
    open_devices(monkeypatch)
    monkeypatch.setattr(driver, "library", lambda: None)


def open_emulated(monkeypatch: pytest.MonkeyPatch, **settings: Any) -> None:
    """Let an emulated device with these settings be the first GPU."""
    device: Any = EmulatedRuntime(**settings)
    device.name = "cuda:0"
    monkeypatch.setitem(runtime._OPEN, 0, device)


def assert_bits_when_late(
    monkeypatch: pytest.MonkeyPatch,
    train: Callable[[], Sequence[Any]],
    blocks: int,
    warps: int,
    **settings: Any,
) -> None:
    """Assert that `train` gives the same arrays whichever warp of so many blocks is late.

    In each block every third warp takes its turn, others in the next block than in this one: what
    warps are for is the same in all blocks.
    """
    open_emulated(monkeypatch, **settings)
    expected = train()
    for late_warp in ((block, warp) for block in range(blocks) for warp in range(block, warps, 3)):
        open_emulated(monkeypatch, late_warp=late_warp, **settings)
        for got, wanted in zip(train(), expected, strict=True):
            np.testing.assert_array_equal(got, wanted, err_msg=f"block, warp {late_warp} is late")


def open_in_both_orders(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """Let the first GPU be one that runs threads and blocks from the first to the last, then one
    from the last on.
    """
    for reverse in (False, True):
        open_emulated(monkeypatch, reverse=reverse)
        yield
