"""Fixtures for the data tests: the real MNIST, if it is on this machine."""

from __future__ import annotations

from pathlib import Path

import pytest

from support.mnist import find_mnist


@pytest.fixture(scope="session")
def mnist_root() -> Path:
    """Return the folder that has the real MNIST, or skip."""
    root = find_mnist()
    if root is None:
        pytest.skip("MNIST is not in $WARPFIT_DATA, .data or ../shared/data")
    return root
