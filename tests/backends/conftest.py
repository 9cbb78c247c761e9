"""The backends that the operations' tests run on."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from conftest import ON_A_GPU, on_emulator
from emulator.runtime import EmulatedRuntime
from warpfit.backends import Backend, NumpyBackend
from warpfit.backends.cuda import CudaBackend
from warpfit.backends.cuda.runtime import open_device


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Leave the emulator's runs over random shapes, each a build or two, to `make test-all`."""
    for item in items:
        if "any_shape" in item.name and "emulator" in item.name:
            item.add_marker(pytest.mark.slow)


@pytest.fixture(
    scope="session",
    params=[
        "numpy",
        pytest.param("emulator", marks=on_emulator),
        *ON_A_GPU,
    ],
)
def make_backend(request: pytest.FixtureRequest) -> Callable[..., Backend]:
    """Makes a backend, with ``reuse=True`` or without."""
    if request.param == "numpy":
        return NumpyBackend
    runtime: Any = EmulatedRuntime() if request.param == "emulator" else open_device(0)
    return lambda *args, **kwargs: CudaBackend(runtime, *args, **kwargs)


@pytest.fixture(scope="session")
def backend(make_backend: Callable[..., Backend]) -> Backend:
    """A backend whose results belong to the caller; it has no state, so one serves the session."""
    return make_backend()


@pytest.fixture(scope="session")
def torch() -> Any:
    """PyTorch, where it is installed, as a second opinion on formulas."""
    return pytest.importorskip("torch")
