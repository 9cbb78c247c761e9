"""Arrays of the NumPy backend: conversion, buffers, rows of a batch."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import numpy.typing as npt

from warpfit.backends.base import Array, Backend, Number
from warpfit.backends.checks import check_float, check_same_shape, check_update
from warpfit.checks import as_numbers
from warpfit.errors import DataError
from warpfit.permutation import permuted

BYTE_SCALE = 255


class StepBuffers:
    """Buffers of one training step, handed out again in the same sequence at the next.

    A step asks for the same shapes in the same sequence as the one before; where it does not (the
    shorter last batch), the buffer at that place is replaced.
    """

    def __init__(self) -> None:
        self._buffers: list[npt.NDArray[Any]] = []
        self._next = 0

    def rewind(self) -> None:
        """Begin the sequence again."""
        self._next = 0

    def take(self, shape: tuple[int, ...], dtype: Any) -> npt.NDArray[Any]:
        """Return the next buffer, of this shape and dtype."""
        place = self._next
        self._next += 1
        if place == len(self._buffers):
            self._buffers.append(np.empty(shape, dtype))
        buffer = self._buffers[place]
        if buffer.shape != shape or buffer.dtype != dtype:
            buffer = self._buffers[place] = np.empty(shape, dtype)
        return buffer


class ArrayOps(Backend):
    """Conversion, allocation and gathering."""

    def __init__(self, reuse: bool = False) -> None:
        self._buffers = StepBuffers() if reuse else None

    def asarray(self, value: Any, dtype: str | None = None) -> Array:
        array = as_numbers(value)
        if dtype is None or array.dtype == dtype:
            return array
        if array.dtype == np.uint8 and np.dtype(dtype).kind == "f":
            return np.divide(array, BYTE_SCALE, dtype=dtype)
        try:
            with np.errstate(over="raise"):
                return array.astype(dtype)
        except FloatingPointError:
            largest = np.abs(array[np.isfinite(array)]).max()
            raise DataError(
                f"expected numbers that {dtype} can hold, got one of magnitude {largest:g}"
            ) from None

    def to_numpy(self, array: Array) -> npt.NDArray[Any]:
        return np.asarray(array)

    def empty(self, shape: tuple[int, ...], dtype: Any) -> Array:
        return np.empty(shape, dtype) if self._buffers is None else self._buffers.take(shape, dtype)

    def full(self, shape: tuple[int, ...], value: float, dtype: Any) -> Array:
        out = self.empty(shape, dtype)
        out.fill(value)
        return out

    def zeros(self, shape: tuple[int, ...], dtype: Any) -> Array:
        return np.zeros(shape, dtype)

    def copy(self, array: Array) -> Array:
        return np.array(array, order="C")

    def assign(self, target: Array, value: Array) -> None:
        check_same_shape("assign", target, value)
        target[...] = value

    def begin_step(self) -> None:
        if self._buffers is not None:
            self._buffers.rewind()

    def cast(self, x: Array, dtype: str, scale: float = 1.0) -> Array:
        check_float("cast", x)
        return np.multiply(x, scale, out=self.empty(x.shape, dtype), casting="same_kind")

    def cast_into(self, targets: Sequence[Array], sources: Sequence[Array]) -> None:
        check_update("cast_into", targets, sources, same_dtype=False)
        for target, source in zip(targets, sources, strict=True):
            target[...] = source

    def all_finite(self, arrays: Sequence[Array]) -> Array:
        check_float("all_finite", *arrays)
        return np.bool_(all(np.isfinite(array).all() for array in arrays))

    def epoch_order(self, num_rows: int, keys: npt.NDArray[Any]) -> Array:
        return permuted(np.arange(num_rows), num_rows, keys)

    def gather_rows(self, x: Array, rows: Array, dtype: str) -> Array:
        out = self.empty((len(rows), *x.shape[1:]), dtype)
        if x.dtype == dtype and x.flags.c_contiguous:
            # The rows are known to be in range; 'clip' lets take write into `out` without a detour.
            return np.take(x, rows, axis=0, out=out, mode="clip")
        if x.dtype == np.uint8 and out.dtype.kind == "f":
            return np.divide(x[rows], BYTE_SCALE, out=out, dtype=dtype)
        out[...] = x[rows]
        return out

    def record_step(
        self,
        record: Array,
        idx: Number,
        loss: Array,
        weight: Array,
        correct: Array | None,
        penalty: Array | None,
    ) -> None:
        record[int(idx)] = (
            loss if penalty is None else loss + penalty,
            weight,
            0 if correct is None else correct,
        )
