"""Views, and elements taken from places and added to places: NumPy's indexing."""

from __future__ import annotations

from math import prod
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt

from warpfit.backends.base import Array
from warpfit.backends.checks import check_float
from warpfit.backends.cuda.array import DeviceArray, row_major_strides, viewed
from warpfit.backends.cuda.arrays import ArrayOps, blocks_for
from warpfit.backends.cuda.layouts import broadcast_shape, broadcast_strides, layout
from warpfit.errors import ShapeError

THREADS = 256
TAKEN_PER_BLOCK = 1024

Shape = tuple[int, ...]
Integers = npt.NDArray[np.int64]


class Selection(NamedTuple):
    """What an index with arrays selects: places along the indexed axes, for all other axes."""

    shape: Shape  # of the result: outer axes, the axes of the index arrays, inner axes
    offset: int  # of the first element, in bytes, before a place is added
    places: Integers  # (num_places,), int64: in elements
    # outer and inner (shape, strides in bytes): of the axes before and after the indexed ones.
    outer: tuple[Shape, Shape]
    inner: tuple[Shape, Shape]


def _part(part: Any) -> Any:
    """Return one part of an index: None, Ellipsis, a slice, an int, or an array of NumPy's."""
    if part is None or part is Ellipsis or isinstance(part, slice):
        return part
    if isinstance(part, int | np.integer) and not isinstance(part, bool):
        return int(part)
    array = part.numpy() if isinstance(part, DeviceArray) else np.asarray(part)
    if array.size == 0 and not isinstance(part, DeviceArray | np.ndarray):
        array = array.astype(np.int64)  # of an empty list NumPy makes floats
    if array.dtype.kind not in "biu":
        raise IndexError(f"expected an index of integers or bools, got {array.dtype}")
    return array if array.ndim or array.dtype.kind == "b" else int(array)


def _parts(index: Any) -> tuple[tuple[Any, ...], bool]:
    """Return the parts of an index, and whether any of them is an array."""
    parts = tuple(_part(part) for part in (index if isinstance(index, tuple) else (index,)))
    return parts, any(isinstance(part, np.ndarray) for part in parts)


class _Indexed(NamedTuple):
    """An axis of the view under index arrays, and the places along it."""

    axis: int
    places: Integers


class _Reader:
    """Goes through the parts of an index with arrays; integers are arrays of shape () then.

    What remains is a basic index, `basic`, which leaves every indexed axis whole.
    """

    def __init__(self, shape: Shape) -> None:
        self._shape = shape
        self._axis = 0
        self._is_after_array = False
        self.basic: list[Any] = []
        self.indexed: list[_Indexed] = []
        # Whether anything stands between two arrays: then their axes come first in the result.
        self.is_parted = False

    def read(self, parts: tuple[Any, ...]) -> None:
        """Fill `basic`, `indexed` and `is_parted`, or raise IndexError if parts do not fit."""
        used = sum(
            part.ndim if _is_mask(part) else part is not None and part is not Ellipsis
            for part in parts
        )
        if used > len(self._shape):
            raise IndexError(f"expected at most {len(self._shape)} indices, got {used}")
        if sum(part is Ellipsis for part in parts) > 1:
            raise IndexError("expected at most one Ellipsis in an index, got several")
        for part in parts:
            if part is Ellipsis:
                self._pass(*[slice(None)] * (len(self._shape) - used))
            elif part is None or isinstance(part, slice):
                self._pass(part)
            elif _is_mask(part):
                self._mask(part)
            else:
                self._array(np.asarray(part))

    def _pass(self, *parts: Any) -> None:
        self.basic.extend(parts)
        self._axis += sum(part is not None for part in parts)
        self._is_after_array = False

    def _mask(self, mask: npt.NDArray[np.bool_]) -> None:
        if not mask.ndim:
            # As an index of an axis of its own: one place, or none.
            self._add(np.zeros(int(mask), np.int64), None)
            return
        expected = self._shape[self._axis : self._axis + mask.ndim]
        if mask.shape != expected:
            raise IndexError(f"expected a mask of shape {expected}, got {mask.shape}")
        for places in mask.nonzero():
            self._array(places)

    def _array(self, places: npt.NDArray[Any]) -> None:
        size = self._shape[self._axis]
        places = places.astype(np.int64)
        wrong = (places < -size) | (places >= size)
        if wrong.any():
            raise IndexError(
                f"expected an index into axis {self._axis} of size {size}, got "
                f"{places[wrong].flat[0]}"
            )
        self._axis += 1
        self._add(np.where(places < 0, places + size, places), slice(None))

    def _add(self, places: Integers, part: Any) -> None:
        self.is_parted = self.is_parted or (bool(self.indexed) and not self._is_after_array)
        self._is_after_array = True
        self.indexed.append(_Indexed(len(self.basic), places))
        self.basic.append(part)


def _is_mask(part: Any) -> bool:
    return isinstance(part, np.ndarray) and part.dtype.kind == "b"


def select(shape: Shape, strides: Shape, itemsize: int, parts: tuple[Any, ...]) -> Selection:
    """Return what `parts`, one of which is an array, select of an array, as NumPy does.

    Raises
    ------
    IndexError
        If they do not fit the shape, or each other.
    """
    reader = _Reader(shape)
    reader.read(parts)
    offset, shape, strides = viewed(shape, strides, tuple(reader.basic))
    try:
        place_shape = np.broadcast_shapes(*(places.shape for _, places in reader.indexed))
    except ValueError as error:
        listed = " and ".join(str(places.shape) for _, places in reader.indexed)
        raise IndexError(f"expected index arrays that broadcast, got shapes {listed}") from error
    total = np.zeros(place_shape, np.int64)
    for axis, places in reader.indexed:
        total += places * (strides[axis] // itemsize)

    indexed = {axis for axis, _ in reader.indexed}
    first = 0 if reader.is_parted else min(indexed)
    outer = [axis for axis in range(len(shape)) if axis not in indexed and axis < first]
    inner = [axis for axis in range(len(shape)) if axis not in indexed and axis >= first]
    outer_shape, inner_shape = (
        tuple(shape[axis] for axis in outer),
        tuple(shape[axis] for axis in inner),
    )
    return Selection(
        shape=(*outer_shape, *place_shape, *inner_shape),
        offset=offset,
        places=total.reshape(-1),
        outer=(outer_shape, tuple(strides[axis] for axis in outer)),
        inner=(inner_shape, tuple(strides[axis] for axis in inner)),
    )


class IndexingOps(ArrayOps):
    """Indices are read on the host: those on the device are downloaded first, and waited for."""

    def reshape(self, x: Array, shape: tuple[int, ...]) -> Array:
        wanted = _whole_shape(x, shape)
        x = self.contiguous(x)
        return x.view(wanted, row_major_strides(wanted, x.itemsize))

    def transpose(self, x: Array, axes: tuple[int, ...] | None = None) -> Array:
        order = (
            range(x.ndim)[::-1]
            if axes is None
            else [axis + x.ndim if axis < 0 else axis for axis in axes]
        )
        if sorted(order) != list(range(x.ndim)):
            raise ShapeError(f"transpose: expected an order of the {x.ndim} axes, got {axes}")
        return x.view(
            tuple(x.shape[axis] for axis in order), tuple(x.strides[axis] for axis in order)
        )

    def broadcast_to(self, x: Array, shape: tuple[int, ...]) -> Array:
        return _broadcast("broadcast_to", x, shape)

    def take(self, x: Array, index: Any) -> Array:
        parts, has_arrays = _parts(index)
        if not has_arrays:
            return x[parts]
        chosen = select(x.shape, x.strides, x.itemsize, parts)
        y = self.empty(chosen.shape, x.dtype)
        if y.size:
            kernel = self.kernel("take", DTYPE=f"uint{8 * x.itemsize}")
            kernel(
                *(blocks_for(y.size, TAKEN_PER_BLOCK), THREADS, x.pointer + chosen.offset),
                *(
                    layout(*chosen.outer, x.itemsize),
                    self.asarray(chosen.places),
                    len(chosen.places),
                ),
                *(layout(*chosen.inner, x.itemsize), prod(chosen.inner[0]), y, y.size),
            )
        return y

    def add_at(self, shape: tuple[int, ...], dtype: Any, index: Any, values: Array) -> Array:
        out = self.empty(shape, dtype)
        check_float("add_at", out)
        self.runtime.fill(out.pointer, out.nbytes)
        parts, has_arrays = _parts(index)
        values = self.asarray(values, out.dtype)
        if not has_arrays:
            target = out[parts]
            self._copy_into(target, _broadcast("add_at", values, target.shape))
            return out
        chosen = select(out.shape, out.strides, out.itemsize, parts)
        values = self.contiguous(_broadcast("add_at", values, chosen.shape))
        if values.size:
            self._add_chosen(out, chosen, values)
        return out

    def _add_chosen(self, out: DeviceArray, chosen: Selection, values: DeviceArray) -> None:
        """Add values to their places, sorted by these, so that no two threads meet."""
        order = np.argsort(chosen.places, kind="stable")
        sorted_places = chosen.places[order]
        starts = np.flatnonzero(np.diff(sorted_places, prepend=sorted_places[0] - 1))
        num_targets, num_places = len(starts), len(order)
        numbers = self.asarray(np.concatenate([sorted_places[starts], starts, [num_places], order]))
        targets = numbers.pointer
        inner_size = prod(chosen.inner[0])
        count = prod(chosen.outer[0]) * num_targets * inner_size
        kernel = self.kernel("add_at", DTYPE=out.dtype)
        kernel(
            *(blocks_for(count, THREADS), THREADS, values),
            *(
                targets,
                targets + 8 * num_targets,
                targets + 8 * (2 * num_targets + 1),
                num_targets,
                num_places,
            ),
            *(out.pointer + chosen.offset, layout(*chosen.outer, out.itemsize)),
            *(layout(*chosen.inner, out.itemsize), inner_size, count),
        )


def _whole_shape(x: DeviceArray, shape: Shape) -> Shape:
    """Return a shape for x with -1 replaced by what is left."""
    known = prod(size for size in shape if size != -1)
    open_axes = sum(size == -1 for size in shape)
    if open_axes == 1 and known > 0 and x.size % known == 0:
        shape, known = tuple(x.size // known if size == -1 else size for size in shape), x.size
    if open_axes > 1 or known != x.size or any(size < 0 for size in shape):
        raise ShapeError(
            f"reshape: expected a shape of {x.size} entries for {x.shape}, got {shape}"
        )
    return tuple(shape)


def _broadcast(op: str, x: DeviceArray, shape: Shape) -> DeviceArray:
    """Return a view of x, repeated to a shape, or raise ShapeError under the operation's name."""
    shape = tuple(shape)
    if broadcast_shape(op, x.shape, shape) != shape:
        raise ShapeError(f"{op}: expected a shape that {x.shape} broadcasts to, got {shape}")
    return x.view(shape, broadcast_strides(x.shape, x.strides, shape))
