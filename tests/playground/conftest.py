"""One playground, on small images, for all tests of the protocol."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from support.playground import serving, small_digits
from warpfit.playground.server import Playground


@pytest.fixture(scope="module")
def playground() -> Iterator[Playground]:
    with serving(small_digits()) as running:
        yield running
