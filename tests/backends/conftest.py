"""The backends that the operations' tests run on."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from warpfit.backends import Backend, NumpyBackend

BACKENDS: dict[str, Callable[..., Backend]] = {"numpy": NumpyBackend}


@pytest.fixture(scope="session", params=BACKENDS)
def make_backend(request: pytest.FixtureRequest) -> Callable[..., Backend]:
    """Makes a backend, with ``reuse=True`` or without."""
    return BACKENDS[request.param]


@pytest.fixture(scope="session")
def backend(make_backend: Callable[..., Backend]) -> Backend:
    """A backend whose results belong to the caller; it has no state, so one serves the session."""
    return make_backend()


@pytest.fixture(scope="session")
def torch() -> Any:
    """PyTorch, where it is installed, as a second opinion on formulas."""
    return pytest.importorskip("torch")
