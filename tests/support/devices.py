"""The CUDA devices that a test finds open, and a machine without any."""

from __future__ import annotations

from functools import cache
from typing import Any

import pytest

from warpfit import backends
from warpfit.backends.cuda import runtime

__all__ = ["no_gpu", "open_devices"]


def open_devices(monkeypatch: pytest.MonkeyPatch, *opened: Any) -> None:
    """Let these be the devices that are open, and forget which one ``'auto'`` stood for."""
    monkeypatch.setattr(runtime, "_OPEN", dict(enumerate(opened)))
    monkeypatch.delenv("WARPFIT_DEVICE", raising=False)
    monkeypatch.setattr(backends, "_best_device", cache(backends._best_device.__wrapped__))


def no_gpu(monkeypatch: pytest.MonkeyPatch) -> None:
    """Let there be no driver, so that no device can be opened."""
    open_devices(monkeypatch)
    monkeypatch.setattr(runtime, "_driver_library", lambda: None)
