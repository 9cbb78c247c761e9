"""Sums, means, maxima and minima over axes."""

from __future__ import annotations

from functools import lru_cache
from math import prod
from typing import NamedTuple

from warpfit.backends.base import REDUCTIONS, Array, Axis
from warpfit.backends.checks import check_axis, check_float, check_known
from warpfit.backends.cuda.array import row_major_strides
from warpfit.backends.cuda.arrays import ArrayOps, power_of_two
from warpfit.backends.cuda.dtypes import acc_dtype
from warpfit.backends.cuda.layouts import AxisStrides, broadcast_shape, joined, packed
from warpfit.errors import ShapeError

THREADS = 256
# Blocks that a multiprocessor holds at once.
BLOCKS_PER_MULTIPROCESSOR = 4
# A thread takes a multiple of this from every part, so that its loads are under way several at a
# time.
ELEMENTS_PER_THREAD = 32
# Of rows, whose threads are neighbours: within a warp they are joined without a barrier.
VECTORS_PER_THREAD = 8
WARP = 32
LINE_BYTES = 128
VECTOR_BYTES = 16

Shape = tuple[int, ...]

_JOINS = {"sum": "Sum", "mean": "Sum", "max": "Max", "min": "Min"}


class _Launch(NamedTuple):
    """How threads share the work: grid, block, a part's size."""

    grid: tuple[int, int]
    block: tuple[int, int]
    per_part: int


class _Plan(NamedTuple):
    """What `reduce` is launched with; `arguments` are its last parameters, from `kept` on."""

    shape: Shape
    num_kept: int
    num_reduced: int
    launch: _Launch
    arguments: tuple[bytes | int, ...]


def _reduced_axes(op: str, axis: Axis, ndim: int) -> frozenset[int]:
    """Return the axes, counted from 0, or raise ShapeError."""
    axes = range(ndim) if axis is None else axis if isinstance(axis, tuple) else (axis,)
    found = frozenset(check_axis(op, each, ndim) for each in axes)
    if len(found) < len(axes):
        raise ShapeError(f"{op}: expected every axis once, got {axis}")
    return found


def _by_stride(axes: list[AxisStrides]) -> list[AxisStrides]:
    """Return the axes joined, smallest strides last; repeated ones count as the largest."""
    far = 1 + max((abs(axis[1]) for axis in axes), default=0)
    return joined(
        sorted((axis for axis in axes if axis[0] != 1), key=lambda axis: -(abs(axis[1]) or far))
    )


def _smallest_stride(axes: list[AxisStrides]) -> float:
    return min((abs(axis[1]) for axis in axes if axis[1]), default=float("inf"))


def _lanes(num_kept: int, num_vectors: int, num_multiprocessors: int) -> int:
    """Return how many threads share a row: each takes several vectors, if there are rows enough."""
    widest = min(THREADS, power_of_two(num_vectors))
    lanes = min(
        widest, max(WARP, min(THREADS, power_of_two(-(-num_vectors // VECTORS_PER_THREAD))))
    )
    while (
        lanes < widest
        and num_kept * lanes < BLOCKS_PER_MULTIPROCESSOR * num_multiprocessors * THREADS
    ):
        lanes *= 2
    return lanes


def _launch(
    num_kept: int, num_reduced: int, by_rows: bool, itemsize: int, num_multiprocessors: int
) -> _Launch:
    """Return a launch with 256 threads a block, which fills the device if there is enough to do."""
    if by_rows:
        lanes = _lanes(num_kept, -(-num_reduced * itemsize // VECTOR_BYTES), num_multiprocessors)
    else:
        across = min(LINE_BYTES // itemsize, power_of_two(num_kept))
        lanes = min(THREADS // across, power_of_two(num_reduced))
    results = THREADS // lanes
    num_blocks = max(1, -(-num_kept // results))
    most_parts = max(1, BLOCKS_PER_MULTIPROCESSOR * num_multiprocessors // num_blocks)
    step = lanes * ELEMENTS_PER_THREAD
    per_part = max(1, -(-num_reduced // (most_parts * step))) * step
    return _Launch(
        grid=(num_blocks, max(1, -(-num_reduced // per_part))),
        block=(lanes, results) if by_rows else (results, lanes),
        per_part=per_part,
    )


@lru_cache(maxsize=4096)
def _plan(
    op: str,
    shape: Shape,
    strides: Shape,
    itemsize: int,
    axis: Axis,
    keepdims: bool,
    num_multiprocessors: int,
) -> _Plan:
    """Return how to reduce: along rows where reduced axes lie closest in memory, else across."""
    gone = _reduced_axes(op, axis, len(shape))
    kept_shape = tuple(1 if place in gone else size for place, size in enumerate(shape))
    steps = [step // itemsize for step in strides]
    y_steps = row_major_strides(kept_shape, 1)
    kept = _by_stride([(n, steps[i], y_steps[i]) for i, n in enumerate(shape) if i not in gone])
    reduced = _by_stride([(shape[i], steps[i]) for i in sorted(gone)])
    num_kept, num_reduced = prod(kept_shape), prod(shape[i] for i in gone)
    by_rows = _smallest_stride(reduced) <= _smallest_stride(kept)
    launch = _launch(num_kept, num_reduced, by_rows, itemsize, num_multiprocessors)
    layouts = (packed(kept, 0), packed(reduced, 0), packed(kept, 1))
    return _Plan(
        shape=kept_shape if keepdims else tuple(n for i, n in enumerate(shape) if i not in gone),
        num_kept=num_kept,
        num_reduced=num_reduced,
        launch=launch,
        arguments=(*layouts, num_kept, num_reduced, launch.per_part, int(by_rows)),
    )


class ReductionOps(ArrayOps):
    """Deterministic: which numbers are added in which order depends on shapes and strides alone."""

    def reduce(self, name: str, x: Array, axis: Axis = None, keepdims: bool = False) -> Array:
        check_known("reduce", name, REDUCTIONS)
        check_float(name, x)
        multiprocessors = self.runtime.num_multiprocessors
        plan = _plan(
            name, x.shape, x.strides, x.dtype.itemsize, axis, bool(keepdims), multiprocessors
        )
        if not plan.num_reduced and name in ("max", "min"):
            raise ShapeError(
                f"{name}: zero-size array: expected at least one entry, got shape {x.shape}"
            )
        y = self.empty(plan.shape, x.dtype)
        if not x.size:
            self.runtime.fill(y.pointer, y.nbytes)
            return y
        kernel = self.kernel("reduce", OP=_JOINS[name], DTYPE=x.dtype)
        num_blocks, num_parts = plan.launch.grid
        partial = arrivals = None
        if num_parts > 1:
            partial = self.empty((num_parts, plan.num_kept), acc_dtype(x.dtype))
            arrivals = self.arrivals(num_blocks)
        divisor = plan.num_reduced if name == "mean" else 1
        kernel(
            plan.launch.grid, plan.launch.block, x, y, partial, arrivals, divisor, *plan.arguments
        )
        return y

    def unbroadcast(self, x: Array, shape: tuple[int, ...]) -> Array:
        if x.shape == shape:
            return x
        if broadcast_shape("unbroadcast", shape, x.shape) != x.shape:
            raise ShapeError(
                f"unbroadcast: expected a shape that broadcasts to {x.shape}, got {shape}"
            )
        added = x.ndim - len(shape)
        stretched = [axis for axis, size in enumerate(shape, added) if size != x.shape[axis]]
        return self.reshape(self.reduce("sum", x, (*range(added), *stretched)), shape)
