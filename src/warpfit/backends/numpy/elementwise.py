"""Elementwise functions, reductions, and what moves elements about: the vocabulary of the tape."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Any

import numpy as np

from warpfit.backends.base import Array, Axis, Backend
from warpfit.backends.checks import check_broadcast, check_float, check_known
from warpfit.errors import DTypeError, ShapeError

_UNARY: dict[str, np.ufunc] = {
    "neg": np.negative,
    "exp": np.exp,
    "log": np.log,
    "sqrt": np.sqrt,
    "square": np.square,
    "abs": np.absolute,
    "sign": np.sign,
    "reciprocal": np.reciprocal,
    "sin": np.sin,
    "cos": np.cos,
}

_BINARY: dict[str, np.ufunc] = {
    "add": np.add,
    "sub": np.subtract,
    "mul": np.multiply,
    "div": np.divide,
    "pow": np.power,
    "maximum": np.maximum,
    "minimum": np.minimum,
}

_COMPARISON: dict[str, np.ufunc] = {
    "eq": np.equal,
    "lt": np.less,
    "gt": np.greater,
    "le": np.less_equal,
    "ge": np.greater_equal,
}

_REDUCTION: dict[str, np.ufunc] = {
    "sum": np.add,
    "mean": np.add,
    "max": np.maximum,
    "min": np.minimum,
}


@contextmanager
def _naming(op: str) -> Iterator[None]:
    """Turn NumPy's complaints about shapes and axes into ShapeError under the operation's name."""
    try:
        yield
    except ValueError as error:
        raise ShapeError(f"{op}: {error}") from error


def _operands(op: str, *values: Any) -> list[Array]:
    """Return arrays of one float dtype; numbers and arrays of shape () take that of the others."""
    arrays = [value for value in values if isinstance(value, (np.ndarray, np.generic))]
    dtypes = [array.dtype for array in sorted(arrays, key=lambda array: array.ndim == 0)]
    dtype = dtypes[0] if dtypes else None
    operands = [value if np.ndim(value) else np.asarray(value, dtype) for value in values]
    check_float(op, *operands)
    return operands


def _is_basic(index: Any) -> bool:
    """Whether the index names no element twice: only integers, slices, None and Ellipsis."""
    parts = index if isinstance(index, tuple) else (index,)
    return all(
        part is None or part is Ellipsis or isinstance(part, (int, np.integer, slice))
        for part in parts
    )


class ElementwiseOps(Backend):
    """IEEE arithmetic: what is infinite or not a number comes back as such, without a warning."""

    def unary(self, name: str, x: Array) -> Array:
        check_known("unary", name, _UNARY)
        check_float(name, x)
        with np.errstate(all="ignore"):
            return _UNARY[name](x, out=self.empty(x.shape, x.dtype))

    def binary(self, name: str, a: Any, b: Any) -> Array:
        check_known("binary", name, [*_BINARY, *_COMPARISON])
        a, b = _operands(name, a, b)
        shape = check_broadcast(name, a.shape, b.shape)
        if name in _COMPARISON:
            return _COMPARISON[name](a, b, out=self.empty(shape, bool))
        with np.errstate(all="ignore"):
            return _BINARY[name](a, b, out=self.empty(shape, a.dtype))

    def where(self, condition: Array, a: Any, b: Any) -> Array:
        if condition.dtype != bool:
            raise DTypeError(f"where: expected a condition of bool, got {condition.dtype}")
        a, b = _operands("where", a, b)
        check_broadcast("where", condition.shape, a.shape, b.shape)
        return np.where(condition, a, b)

    def reduce(self, name: str, x: Array, axis: Axis = None, keepdims: bool = False) -> Array:
        check_known("reduce", name, _REDUCTION)
        check_float(name, x)
        with _naming(name):
            result = _REDUCTION[name].reduce(x, axis=axis, keepdims=keepdims)
        if name == "mean":
            count = x.size // max(1, result.size)
            result = result / x.dtype.type(max(1, count))
        return result

    def reshape(self, x: Array, shape: tuple[int, ...]) -> Array:
        with _naming("reshape"):
            return x.reshape(shape)

    def transpose(self, x: Array, axes: tuple[int, ...] | None = None) -> Array:
        with _naming("transpose"):
            return x.transpose(axes)

    def broadcast_to(self, x: Array, shape: tuple[int, ...]) -> Array:
        with _naming("broadcast_to"):
            return np.broadcast_to(x, shape)

    def take(self, x: Array, index: Any) -> Array:
        return x[index]

    def add_at(self, shape: tuple[int, ...], dtype: Any, index: Any, values: Array) -> Array:
        out = self.empty(shape, dtype)
        out.fill(0)
        with _naming("add_at"):
            if _is_basic(index):
                out[index] = values
            else:
                np.add.at(out, index, values)
        return out

    def concatenate(self, arrays: Sequence[Array], axis: int = 0) -> Array:
        check_float("concatenate", *arrays)
        with _naming("concatenate"):
            return np.concatenate(arrays, axis=axis)

    def stack(self, arrays: Sequence[Array], axis: int = 0) -> Array:
        check_float("stack", *arrays)
        with _naming("stack"):
            return np.stack(arrays, axis=axis)

    def unbroadcast(self, x: Array, shape: tuple[int, ...]) -> Array:
        if check_broadcast("unbroadcast", shape, x.shape) != x.shape:
            raise ShapeError(
                f"unbroadcast: expected a shape that broadcasts to {x.shape}, got {shape}"
            )
        added = x.ndim - len(shape)
        stretched = [axis for axis, size in enumerate(shape, added) if size != x.shape[axis]]
        axes = (*range(added), *stretched)
        return np.add.reduce(x, axis=axes).reshape(shape) if axes else x
