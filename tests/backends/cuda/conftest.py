"""A driver that we made up, for tests of what talks to one."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from types import SimpleNamespace

import pytest

from support.devices import open_devices
from support.fake_driver import FakeDriver
from warpfit.backends.cuda import context, runtime
from warpfit.backends.cuda.runtime import Runtime


@pytest.fixture
def driver(monkeypatch: pytest.MonkeyPatch) -> FakeDriver:
    """A driver without faults, with one device that nobody has opened."""
    fake = FakeDriver()
    fake.install(monkeypatch)
    open_devices(monkeypatch)
    nowhere = SimpleNamespace()
    for module in (context, runtime):
        monkeypatch.setattr(module, "active", nowhere)
    return fake


@pytest.fixture
def device(driver: FakeDriver) -> Runtime:
    return runtime.open_device(0)


@pytest.fixture
def short_turns() -> Iterator[None]:
    """Threads take turns so often that none is safe from the others by chance."""
    interval = sys.getswitchinterval()
    sys.setswitchinterval(1e-6)
    yield
    sys.setswitchinterval(interval)
