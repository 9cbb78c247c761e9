"""A property that is computed once for each object, whatever other threads compute meanwhile."""

from __future__ import annotations

from functools import cached_property
from typing import Any, TypeVar

T = TypeVar("T")


class UnlockedProperty(cached_property[T]):
    """As `functools.cached_property`, whose lock is all objects' of a class before Python 3.12.

    What waits for the device lets other threads take their turn; one of them would wait for the
    lock, with the turn.
    """

    def __get__(self, instance: Any, owner: Any = None) -> Any:
        if instance is None:
            return self
        found = instance.__dict__[self.attrname] = self.func(instance)
        return found
