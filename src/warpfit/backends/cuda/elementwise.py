"""Elementwise functions, and what moves elements about: the vocabulary of the tape."""

from __future__ import annotations

from collections.abc import Sequence
from functools import lru_cache
from math import prod
from typing import Any, NamedTuple

import numpy as np

from warpfit.backends.base import BINARY, COMPARISONS, UNARY, Array
from warpfit.backends.checks import check_axis, check_float, check_known
from warpfit.backends.cuda.array import DeviceArray, row_major_strides
from warpfit.backends.cuda.indexing import IndexingOps
from warpfit.backends.cuda.layouts import (
    BLOCK_BYTES,
    broadcast_shape,
    broadcast_strides,
    copy_plan,
    layout,
)
from warpfit.backends.cuda.reduction import ReductionOps
from warpfit.errors import DTypeError, ShapeError

THREADS = 256
# Entries from which on an operand that is transposed in memory is copied first.
LEAST_COPIED = 1 << 18

Shape = tuple[int, ...]

BINARY_KERNELS = (*BINARY, *COMPARISONS)
_BOOL = np.dtype(bool)


class _Plan(NamedTuple):
    """What a kernel over broadcast operands takes: layouts in the result's shape."""

    shape: Shape
    size: int
    num_blocks: int
    layouts: tuple[bytes, ...]


@lru_cache(maxsize=4096)
def _plan(op: str, itemsize: int, *operands: tuple[Shape, Shape, int]) -> _Plan:
    """Return the plan for operands given by shape, strides in bytes, and size of an element.

    Raises
    ------
    ShapeError
        If the shapes do not broadcast.
    """
    shape = broadcast_shape(op, *(own for own, _, _ in operands))
    size = prod(shape)
    layouts = (
        layout(shape, broadcast_strides(own, strides, shape), own_itemsize)
        for own, strides, own_itemsize in operands
    )
    return _Plan(shape, size, -(-size * itemsize // BLOCK_BYTES), tuple(layouts))


@lru_cache(maxsize=4096)
def _is_worth_copying(shape: Shape, strides: Shape, itemsize: int) -> bool:
    """Whether a strided operand is so large, and lies so far across, that tiles are a gain."""
    dense = row_major_strides(shape, itemsize)
    return prod(shape) >= LEAST_COPIED and bool(
        copy_plan(shape, strides, itemsize, dense, itemsize).is_tiled
    )


_NUMBER: tuple[Shape, Shape, int] = ((), (), 1)


def _axes(operand: Any) -> tuple[Shape, Shape, int]:
    if type(operand) is float:
        return _NUMBER
    return operand.shape, operand.strides, operand.dtype.itemsize


def _number(op: str, value: Any) -> float:
    """Return a number, or an array of shape () on the host, as a Python number."""
    if isinstance(value, int | float | np.number | np.bool_) or (
        isinstance(value, np.ndarray) and value.ndim == 0
    ):
        return float(value)
    raise DTypeError(f"{op}: expected numbers and arrays on one device, got {type(value).__name__}")


class ElementwiseOps(ReductionOps, IndexingOps):
    """IEEE arithmetic: what is infinite or not a number comes back as such."""

    def unary(self, name: str, x: Array) -> Array:
        check_known("unary", name, UNARY)
        check_float(name, x)
        x = self._in_order(x)
        y = self.empty(x.shape, x.dtype)
        plan = _plan(name, x.dtype.itemsize, (x.shape, x.strides, x.dtype.itemsize))
        if plan.size:
            kernel = self.kernel("unary", FUNCTION=name, DTYPE=x.dtype)
            kernel(plan.num_blocks, THREADS, x, plan.layouts[0], y, plan.size)
        return y

    def binary(self, name: str, a: Any, b: Any) -> Array:
        check_known("binary", name, BINARY_KERNELS)
        a, b = self._operands(name, a, b)
        dtype = b.dtype if type(a) is float else a.dtype
        plan = _plan(name, dtype.itemsize, _axes(a), _axes(b))
        y = self.empty(plan.shape, _BOOL if name in COMPARISONS else dtype)
        if plan.size:
            kernel = self.kernel("binary", FUNCTION=name, DTYPE=dtype)
            a, a_number = (None, a) if type(a) is float else (a, 0.0)
            b, b_number = (None, b) if type(b) is float else (b, 0.0)
            a_layout, b_layout = plan.layouts
            kernel(
                plan.num_blocks, THREADS, a, a_layout, a_number, b, b_layout, b_number, y, plan.size
            )
        return y

    def where(self, condition: Array, a: Any, b: Any) -> Array:
        if condition.dtype != _BOOL:
            raise DTypeError(f"where: expected a condition of bool, got {condition.dtype}")
        a, b = self._operands("where", a, b)
        condition = self._in_order(condition)
        dtype = b.dtype if type(a) is float else a.dtype
        plan = _plan("where", dtype.itemsize, _axes(condition), _axes(a), _axes(b))
        y = self.empty(plan.shape, dtype)
        if plan.size:
            kernel = self.kernel("where", DTYPE=dtype)
            a, a_number = (None, a) if type(a) is float else (a, 0.0)
            b, b_number = (None, b) if type(b) is float else (b, 0.0)
            chosen, *layouts = plan.layouts
            kernel(
                *(plan.num_blocks, THREADS, condition, chosen),
                *(a, layouts[0], a_number, b, layouts[1], b_number, y, plan.size),
            )
        return y

    def _operands(self, op: str, a: Any, b: Any) -> tuple[Any, Any]:
        """Return two arrays of one float dtype, or one and a number; () takes the other's dtype."""
        if type(a) is not DeviceArray:
            if type(b) is not DeviceArray:
                # Two numbers: NumPy knows what their dtypes are.
                return self._operands(op, self.asarray(_host(op, a)), self.asarray(_host(op, b)))
            check_float(op, b)
            return _number(op, a), self._in_order(b)
        if type(b) is not DeviceArray:
            check_float(op, a)
            return self._in_order(a), _number(op, b)
        if a.dtype != b.dtype:
            if not b.shape:
                b = self._number_as(b, a.dtype)
            elif not a.shape:
                a = self._number_as(a, b.dtype)
        check_float(op, a, b)
        return self._in_order(a), self._in_order(b)

    def _number_as(self, x: DeviceArray, dtype: Any) -> DeviceArray:
        """Return x () as another dtype, in a buffer of the step, as captured ones need it."""
        out: DeviceArray = self.empty((), dtype)
        self._copy_into(out, x)
        return out

    def _in_order(self, x: DeviceArray) -> DeviceArray:
        """Return x, or a contiguous copy where the kernels would read its memory across."""
        if x.is_contiguous or not _is_worth_copying(x.shape, x.strides, x.itemsize):
            return x
        return self.contiguous(x)

    # -- moving elements

    def concatenate(self, arrays: Sequence[Array], axis: int = 0) -> Array:
        check_float("concatenate", *arrays)
        if not arrays or not arrays[0].shape:
            raise ShapeError(
                "concatenate: expected at least one array, each of at least one axis, got "
                f"{_shapes(arrays)}"
            )
        axis = check_axis("concatenate", axis, arrays[0].ndim)
        rest = _without(arrays[0].shape, axis)
        for array in arrays:
            if array.ndim != arrays[0].ndim or _without(array.shape, axis) != rest:
                raise ShapeError(
                    f"concatenate: expected shapes that differ along axis {axis} only, got "
                    f"{_shapes(arrays)}"
                )
        total = sum(array.shape[axis] for array in arrays)
        return self._join(
            [(array, array.shape[axis]) for array in arrays],
            axis,
            (*rest[:axis], total, *rest[axis:]),
        )

    def stack(self, arrays: Sequence[Array], axis: int = 0) -> Array:
        check_float("stack", *arrays)
        if not arrays:
            raise ShapeError("stack: expected at least one array, got none")
        shape = arrays[0].shape
        axis = check_axis("stack", axis, len(shape) + 1)
        if any(array.shape != shape for array in arrays):
            raise ShapeError(f"stack: expected arrays of one shape, got {_shapes(arrays)}")
        layers = [(array[(slice(None),) * axis + (None,)], 1) for array in arrays]
        return self._join(layers, axis, (*shape[:axis], len(arrays), *shape[axis:]))

    def _join(self, parts: list[tuple[DeviceArray, int]], axis: int, shape: Shape) -> DeviceArray:
        """Copy the parts, each with its size along the axis, behind one another."""
        out = self.empty(shape, parts[0][0].dtype)
        start = 0
        for part, length in parts:
            self._copy_into(out[(slice(None),) * axis + (slice(start, start + length),)], part)
            start += length
        return out


def _host(op: str, value: Any) -> Any:
    """Return a number as NumPy's array of shape ()."""
    _number(op, value)
    return np.asarray(value)


def _shapes(arrays: Sequence[DeviceArray]) -> str:
    return " and ".join(str(array.shape) for array in arrays) or "none"


def _without(shape: Shape, axis: int) -> Shape:
    return (*shape[:axis], *shape[axis + 1 :])
