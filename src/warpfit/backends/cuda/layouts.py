"""An array's axes as kernels take them: strides, joined and ordered beforehand."""

from __future__ import annotations

import struct
from collections.abc import Iterable, Sequence
from functools import lru_cache
from typing import NamedTuple

from warpfit.backends.checks import check_broadcast
from warpfit.errors import ShapeError

Shape = tuple[int, ...]
# An axis: its size, and its stride in each of some arrays of one shape.
AxisStrides = tuple[int, ...]

MAX_AXES = 8
# What a block of a kernel that goes through its elements in runs of 16 bytes takes.
BLOCK_BYTES = 8192
# Edge of the square that a block turns over in shared memory, and the shortest axis for which that
# pays.
TILE, SHORTEST_TILED = 64, 8


def pack_layout(shape: list[int], strides: list[int]) -> bytes:
    """Return the bytes of a ``Layout`` with these axes, strides in elements.

    Raises
    ------
    ShapeError
        If there are more than 8.
    """
    if len(shape) > MAX_AXES:
        raise ShapeError(f"expected at most {MAX_AXES} axes that do not join, got {len(shape)}")
    unused = [0] * (MAX_AXES - len(shape))
    return struct.pack(f"q{MAX_AXES}q{MAX_AXES}q", len(shape), *shape, *unused, *strides, *unused)


def joined(axes: Iterable[AxisStrides]) -> list[AxisStrides]:
    """Return the axes without those of one entry, joined where one continues the other."""
    result: list[AxisStrides] = []
    for size, *strides in axes:
        if size == 1:
            continue
        if result and all(
            before == size * step for before, step in zip(result[-1][1:], strides, strict=True)
        ):
            result[-1] = (result[-1][0] * size, *strides)
        else:
            result.append((size, *strides))
    return result


def packed(axes: Sequence[AxisStrides], array: int = 0) -> bytes:
    """Return the ``Layout`` of one of the arrays that the axes belong to."""
    return pack_layout([axis[0] for axis in axes], [axis[1 + array] for axis in axes])


@lru_cache(maxsize=4096)
def layout(shape: Shape, strides: Shape, itemsize: int) -> bytes:
    """Return the kernels' ``Layout``: an array's axes, joined where they lie in sequence, strides
    in elements.

    Raises
    ------
    ShapeError
        If more than 8 axes remain.
    """
    return packed(
        joined((size, step // itemsize) for size, step in zip(shape, strides, strict=True))
    )


@lru_cache(maxsize=4096)
def broadcast_shape(op: str, *shapes: Shape) -> Shape:
    """Return the shape that the shapes broadcast to, or raise ShapeError."""
    return check_broadcast(op, *shapes)


@lru_cache(maxsize=4096)
def broadcast_strides(shape: Shape, strides: Shape, new_shape: Shape) -> Shape:
    """Return the strides of an array broadcast to a shape that its own broadcasts to."""
    added = len(new_shape) - len(shape)
    own = zip(shape, strides, new_shape[added:], strict=True)
    return (0,) * added + tuple(0 if size == 1 and new != 1 else step for size, step, new in own)


class CopyPlan(NamedTuple):
    """How `copy_strided` goes from one layout to another."""

    x_layout: bytes
    y_layout: bytes
    is_tiled: int
    num_blocks: int


@lru_cache(maxsize=4096)
def copy_plan(
    shape: Shape, x_strides: Shape, x_itemsize: int, y_strides: Shape, y_itemsize: int
) -> CopyPlan:
    """Return how to copy an array of at least one entry; both are gone through in the order of y's
    memory.

    Where x's memory runs along another axis than y's, those two come last, x's first, for the
    tiles.
    """
    sizes = zip(shape, x_strides, y_strides, strict=True)
    in_elements = (
        (size, x_step // x_itemsize, y_step // y_itemsize) for size, x_step, y_step in sizes
    )
    axes = joined(
        sorted((axis for axis in in_elements if axis[0] > 1), key=lambda axis: -abs(axis[2]))
    )
    count = 1
    for axis in axes:
        count *= axis[0]
    fastest = min(range(len(axes)), key=lambda place: abs(axes[place][1]) or count, default=0)
    is_tiled = fastest < len(axes) - 1 and min(axes[fastest][0], axes[-1][0]) >= SHORTEST_TILED
    if is_tiled:
        moved = axes.pop(fastest)
        axes.insert(len(axes) - 1, moved)
        rows, columns = axes[-2][0], axes[-1][0]
        num_blocks = count // (rows * columns) * -(-rows // TILE) * -(-columns // TILE)
    else:
        num_blocks = -(-count * max(x_itemsize, y_itemsize) // BLOCK_BYTES)
    return CopyPlan(packed(axes, 0), packed(axes, 1), int(is_tiled), num_blocks)
