"""Lets every other process of pytest-xdist come to the files from the last to the first: where
there is no bytecode yet, each compiles half of it.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import pytest

__all__ = ["BothEnds"]


class FromTheLast(pytest.Dir):
    """A folder, from its last entry to its first."""

    def collect(self) -> Iterable[Any]:
        return reversed([*super().collect()])


class BothEnds:
    """A plugin of one process.

    Parameters
    ----------
    worker : str
        Its name: gw0, gw1, ...
    """

    def __init__(self, worker: str) -> None:
        self._from_the_last = int(worker.removeprefix("gw")) % 2 == 1

    def pytest_collect_directory(self, path: Any, parent: Any) -> pytest.Dir | None:
        return FromTheLast.from_parent(parent, path=path) if self._from_the_last else None

    @pytest.hookimpl(tryfirst=True)
    def pytest_collection_modifyitems(self, items: list[Any]) -> None:
        """Put the tests into one order, which all processes have."""
        items.sort(key=lambda item: str(item.path))
