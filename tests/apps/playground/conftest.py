"""One playground, on small images, for all tests of the protocol."""

from __future__ import annotations

from collections.abc import Iterator
from importlib.util import find_spec
from typing import Any

import pytest

PACKAGES = ("starlette", "uvicorn", "websockets")  # of the extra `playground`

# A machine that is there for its GPU may lack what serves pages; what trains needs none of it.
collect_ignore = (
    [] if all(map(find_spec, PACKAGES)) else ["test_page.py", "test_server.py", "test_session.py"]
)


@pytest.fixture(scope="module")
def playground() -> Iterator[Any]:
    from support.pages import serving, small_digits

    with serving(small_digits()) as running:
        yield running
