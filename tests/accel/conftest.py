"""scikit-learn with this package's training, for the time of a test."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from warpfit import accel


@pytest.fixture
def installed() -> Iterator[None]:
    """Train scikit-learn's perceptrons here, and report from now on."""
    accel.install()
    accel.forget()
    yield
    accel.uninstall()
