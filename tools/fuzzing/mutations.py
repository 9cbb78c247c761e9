"""Random changes of bytes and of JSON values."""

from __future__ import annotations

import copy
from typing import Any

import numpy as np

__all__ = ["NASTY", "altered", "altered_bytes", "nasty"]

Rng = np.random.Generator

NASTY: tuple[Any, ...] = (
    *(
        None,
        True,
        False,
        "",
        "x",
        "0",
        [],
        [[]],
        {},
        {"a": 1},
        [1, 2],
        "linear",
        "float32",
        "identity",
    ),
    *(0, 1, -1, 2, 3, 7, 255, 10**9, 2**31, 2**63 - 1, 2**63, 2**64, -(2**63), 10**30, 10**400),
    *(0.0, 0.5, -0.5, 1e-300, 1e300, float("inf"), float("-inf"), float("nan")),
)


def nasty(rng: Rng) -> Any:
    """Return one of the values that programs tend to stumble over."""
    return copy.deepcopy(NASTY[rng.integers(len(NASTY))])


def _places(node: Any, path: tuple[Any, ...] = ()) -> list[tuple[Any, ...]]:
    """Return the path of every entry inside a JSON value."""
    children = (
        node.items()
        if isinstance(node, dict)
        else enumerate(node)
        if isinstance(node, list)
        else ()
    )
    return [
        place for key, child in children for place in ((*path, key), *_places(child, (*path, key)))
    ]


def altered(value: Any, rng: Rng) -> Any:
    """Return a JSON value with one to three entries replaced, removed, renamed, doubled or
    moved.
    """
    value = copy.deepcopy(value)
    for _ in range(rng.integers(1, 4)):
        known = _places(value)
        if not known:
            return value
        *above, key = known[rng.integers(len(known))]
        parent = value
        for step in above:
            parent = parent[step]
        _alter_entry(parent, key, int(rng.integers(5)), rng)
    return value


def _alter_entry(parent: Any, key: Any, kind: int, rng: Rng) -> None:
    if kind == 0:
        del parent[key]
    elif kind == 1 and isinstance(parent, list):
        parent.insert(int(rng.integers(len(parent) + 1)), parent[key])
    elif kind == 1:
        parent[str(nasty(rng))] = parent.pop(key)
    elif kind == 2 and isinstance(parent, list):
        parent[key], parent[0] = parent[0], parent[key]
    elif kind == 3 and isinstance(parent[key], int | float):
        parent[key] = parent[key] * int(rng.integers(-2, 4)) + int(rng.integers(-1, 2))
    else:
        parent[key] = nasty(rng)


def altered_bytes(content: bytes, rng: Rng, head: int = 24) -> bytes:
    """Return bytes cut, changed, inserted, removed or appended, every second time among the first
    `head`.
    """
    if not content:
        return rng.bytes(int(rng.integers(1, 9)))
    place = int(rng.integers(len(content) if rng.random() < 0.5 else min(head, len(content))))
    some = rng.bytes(int(rng.integers(1, 20)))
    return (
        lambda: content[:place],
        lambda: (
            content[:place]
            + bytes([content[place] ^ int(rng.integers(1, 256))])
            + content[place + 1 :]
        ),
        lambda: (
            content[:place]
            + bytes([content[place] ^ 1 << int(rng.integers(8))])
            + content[place + 1 :]
        ),
        lambda: content[:place] + some + content[place:],
        lambda: content[:place] + content[place + len(some) :],
        lambda: content + some,
    )[rng.integers(6)]()
