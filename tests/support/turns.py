"""Which cases of a test `make test` runs: of those ``in_turns(n)`` one of each n in a row, and of
every test one at least.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable
from typing import Any

import pytest

__all__ = ["COLLECTED", "has_turn", "is_slow_as_a_whole", "mark_turns", "never_run"]

# Where a session keeps all that was collected, for the process in which a test looks through it.
COLLECTED = pytest.StashKey[list[Any]]()
# Multiples of it, less their whole parts, lie evenly in [0, 1).
GOLDEN = (5**0.5 - 1) / 2


def is_slow_as_a_whole(name: str, test: Any) -> bool:
    """Whether a function or a class of tests is marked as slow itself."""
    is_test = name.lower().startswith("test")
    return is_test and any(mark.name == "slow" for mark in getattr(test, "pytestmark", ()))


def mark_turns(items: Iterable[Any]) -> None:
    """Mark as slow all but one of each n cases in a row of a test marked ``in_turns(n)``; slow ones
    and a GPU's have no turn.
    """
    turns: Counter[Any] = Counter()
    for item in items:
        marker = item.get_closest_marker("in_turns")
        if marker is None or _is(item, "gpu", "slow"):
            continue
        if not has_turn(turns[_test(item)], marker.args[0]):
            item.add_marker(pytest.mark.slow)
        turns[_test(item)] += 1


def has_turn(place: int, each: int) -> bool:
    """Whether a case is the one of its row: not always the first, for then a parameter that comes
    round after as many cases would have one value only.
    """
    row, place_in_row = divmod(place, each)
    return place_in_row == int(row * GOLDEN % 1 * each)


def never_run(items: Iterable[Any]) -> list[str]:
    """Return the tests that only some marks of their cases keep out of `make test` on a CPU.

    Neither those are named that are slow as a whole, or for a GPU only, nor those of which some
    case runs.
    """
    named: set[Any] = set()
    run: set[Any] = set()
    for item in items:
        if _is(item, "gpu") or _slow_as_a_whole(item):
            continue
        (run if not _is(item, "slow") else named).add(_test(item))
    return sorted(f"{path.name}::{name}" for path, *_, name in named - run)


def _is(item: Any, *marks: str) -> bool:
    return any(item.get_closest_marker(mark) for mark in marks)


def _slow_as_a_whole(item: Any) -> bool:
    """Whether the mark stands above the test, its class or its module."""
    above = [*getattr(item.function, "pytestmark", ()), *item.parent.iter_markers()]
    return any(mark.name == "slow" for mark in above)


def _test(item: Any) -> tuple[Any, ...]:
    """Return what the cases of a test have in common."""
    return item.path, item.cls, item.originalname
