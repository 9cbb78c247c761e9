"""Arrays on a device: a place in memory, shape, dtype and strides. Backends do the arithmetic."""

from __future__ import annotations

from collections.abc import Callable
from functools import lru_cache
from math import prod
from typing import Any, ClassVar

import numpy as np
import numpy.typing as npt

from warpfit.backends.cuda.driver import core
from warpfit.backends.cuda.dtypes import BFLOAT16, DEVICE_FLOATS, dtype_of, host_dtype
from warpfit.errors import DeviceError, DTypeError, ShapeError

Shape = tuple[int, ...]


@lru_cache(maxsize=4096)
def row_major_strides(shape: Shape, itemsize: int) -> Shape:
    """Return the strides in bytes of a contiguous array."""
    strides, step = [], itemsize
    for size in reversed(shape):
        strides.append(step)
        step *= max(size, 1)
    return tuple(reversed(strides))


class DeviceArray:
    """An array in device memory, or a view of one.

    Other libraries read it without a copy (``__dlpack__``, ``__cuda_array_interface__``); NumPy
    gets a copy.

    Attributes
    ----------
    runtime : Runtime
        The device.
    memory : Memory
        What keeps the memory alive.
    pointer : int
        Address of the first element.
    shape, strides : tuple of int
        Strides in bytes.
    dtype : numpy.dtype, or BFLOAT16
    ndim, size, itemsize, nbytes : int
        As NumPy's.
    is_contiguous : bool
        Whether the elements lie one after the other in C order.
    """

    __slots__ = (
        "__weakref__",
        "_strides",
        "dtype",
        "is_contiguous",
        "itemsize",
        "memory",
        "pointer",
        "runtime",
        "shape",
    )

    float_dtypes = DEVICE_FLOATS
    # Returns a contiguous copy on the same device. It takes a kernel, so the backend above provides
    # it.
    copied: ClassVar[Callable[[DeviceArray], DeviceArray]]
    # NumPy leaves operators between one of its arrays and this to this class, which has none.
    __array_ufunc__ = None

    def __init__(
        self,
        runtime: Any,
        memory: Any,
        pointer: int,
        shape: Shape,
        dtype: Any,
        strides: Shape | None = None,
    ) -> None:
        self.runtime = runtime
        self.memory = memory
        self.pointer = pointer
        self.shape = shape
        self.dtype = dtype
        self.itemsize = itemsize = dtype.itemsize
        self._strides = strides
        self.is_contiguous = strides is None or _same_places(
            shape, strides, row_major_strides(shape, itemsize)
        )

    @staticmethod
    def allocate(runtime: Any, shape: Shape, dtype: Any) -> DeviceArray:
        """Return an uninitialised array."""
        dtype = dtype_of(dtype)
        memory = runtime.allocate(prod(shape) * dtype.itemsize)
        return DeviceArray(runtime, memory, memory.pointer, tuple(shape), dtype)

    # -- what it is

    @property
    def strides(self) -> Shape:
        return (
            row_major_strides(self.shape, self.itemsize) if self._strides is None else self._strides
        )

    @property
    def ndim(self) -> int:
        return len(self.shape)

    @property
    def size(self) -> int:
        return prod(self.shape)

    @property
    def nbytes(self) -> int:
        return self.size * self.itemsize

    def __len__(self) -> int:
        if not self.shape:
            raise TypeError("len() of an array without axes")
        return self.shape[0]

    def __repr__(self) -> str:
        return f"DeviceArray(shape={self.shape}, dtype={self.dtype}, device={self.runtime.name!r})"

    # -- views

    def view(self, shape: Shape, strides: Shape, offset: int = 0) -> DeviceArray:
        """Return a view of the same memory; `strides` and `offset` in bytes."""
        return DeviceArray(
            self.runtime, self.memory, self.pointer + offset, shape, self.dtype, strides
        )

    def __getitem__(self, index: Any) -> DeviceArray:
        """Return a view at integers, slices, None and Ellipsis; `Backend.take` knows the rest."""
        if type(index) is slice and self._strides is None and self.shape:
            start, stop, step = index.indices(self.shape[0])
            if step == 1 and stop > start:  # what a training loop does at every step
                return self._rows(start, stop)
        offset, shape, strides = viewed(self.shape, self.strides, index)
        return self.view(shape, strides, offset)

    def _rows(self, start: int, stop: int) -> DeviceArray:
        """Return some rows of a contiguous array, none of them missing."""
        offset = start * prod(self.shape[1:]) * self.itemsize
        shape = (stop - start, *self.shape[1:])
        return DeviceArray(self.runtime, self.memory, self.pointer + offset, shape, self.dtype)

    # -- copies

    def __deepcopy__(self, memo: dict[int, Any]) -> DeviceArray:
        return self.copied()

    # -- on the host, and to other libraries

    def numpy(self) -> npt.NDArray[Any]:
        """Return a copy on the host; bfloat16 widens to float32."""
        source = self if self.is_contiguous else self.copied()
        host = np.empty(self.shape, host_dtype(self.dtype))
        self.runtime.download(host, source.pointer)
        if self.dtype is BFLOAT16:
            return (host.astype(np.uint32) << 16).view(np.float32)
        return host

    def __array__(self, dtype: Any = None, copy: bool | None = None) -> npt.NDArray[Any]:
        if copy is False:
            raise ValueError(
                "expected copy None or True, got False: no NumPy array of a device without a copy"
            )
        return self.numpy() if dtype is None else self.numpy().astype(dtype, copy=False)

    def item(self) -> Any:
        """Return the one element as a Python number."""
        if self.size != 1:
            raise ShapeError(f"item: expected an array of one element, got shape {self.shape}")
        return self.numpy().item()

    def __float__(self) -> float:
        return float(self.item())

    @property
    def __cuda_array_interface__(self) -> dict[str, Any]:
        if self.dtype is BFLOAT16:
            raise AttributeError(
                "expected a dtype with a name in __cuda_array_interface__, got bfloat16; use DLPack"
            )
        # Not all wait for the stream that it names: PyTorch reads on the default stream at once.
        self.runtime.let_wait(None)
        return {
            "shape": self.shape,
            "typestr": self.dtype.str,
            "data": (self.pointer if self.size else 0, False),
            "strides": None if self.is_contiguous else self.strides,
            "stream": int(self.runtime.stream.handle),
            "version": 3,
        }

    def __dlpack_device__(self) -> tuple[int, int]:
        from warpfit.backends.cuda import dlpack

        return dlpack.CUDA, self.runtime.index

    def __dlpack__(
        self,
        *,
        stream: Any = None,
        max_version: tuple[int, int] | None = None,
        dl_device: tuple[int, int] | None = None,
        copy: bool | None = None,
    ) -> Any:
        """Return the array as a DLPack capsule; the consumer's `stream` waits for this array's."""
        from warpfit.backends.cuda import dlpack

        if dl_device not in (None, self.__dlpack_device__()):
            raise BufferError(f"expected DLPack device {self.__dlpack_device__()}, got {dl_device}")
        if copy:
            return self.copied().__dlpack__(stream=stream)
        if stream != -1:
            self.runtime.let_wait(stream)
        return dlpack.capsule(self)


def _same_places(shape: Shape, strides: Shape, dense: Shape) -> bool:
    """Whether strides lead where contiguous ones would: those of an axis of one entry are free."""
    if strides == dense or 0 in shape:
        return True
    return all(size == 1 or a == b for size, a, b in zip(shape, strides, dense, strict=True))


def viewed(shape: Shape, strides: Shape, index: Any) -> tuple[int, Shape, Shape]:
    """Return offset in bytes, shape and strides of the elements at `index`: integers, slices, None
    and Ellipsis.

    Raises
    ------
    DTypeError
        If it has parts of another type.
    IndexError
        If it does not fit the shape.
    """
    parts = _without_ellipsis(index if isinstance(index, tuple) else (index,), len(shape))
    offset, axis = 0, 0
    new_shape: list[int] = []
    new_strides: list[int] = []
    for part in parts:
        if part is None:
            new_shape.append(1)
            new_strides.append(0)
            continue
        size, stride = shape[axis], strides[axis]
        axis += 1
        if isinstance(part, slice):
            start, stop, step = part.indices(size)
            length = len(range(start, stop, step))
            offset += start * stride if length else 0
            new_shape.append(length)
            new_strides.append(step * stride)
        else:
            offset += _place(part, size, axis - 1) * stride
    return offset, (*new_shape, *shape[axis:]), (*new_strides, *strides[axis:])


def _without_ellipsis(parts: tuple[Any, ...], ndim: int) -> tuple[Any, ...]:
    """Return index parts with Ellipsis written out, or raise unless they fit `ndim` axes."""
    for part in parts:
        if (
            part is not None
            and part is not Ellipsis
            and (isinstance(part, bool) or not isinstance(part, int | np.integer | slice))
        ):
            raise DTypeError(
                f"expected integers, slices, None or Ellipsis, got {type(part).__name__}"
            )
    used = sum(part is not None and part is not Ellipsis for part in parts)
    if used > ndim:
        raise IndexError(f"expected at most {ndim} indices, got {used}")
    places = [place for place, part in enumerate(parts) if part is Ellipsis]
    if not places:
        return parts
    if len(places) > 1:
        raise IndexError("expected at most one Ellipsis in an index, got several")
    at = places[0]
    return (*parts[:at], *[slice(None)] * (ndim - used), *parts[at + 1 :])


def _place(index: Any, size: int, axis: int) -> int:
    """Return an index counted from the front, or raise IndexError."""
    place = int(index)
    if not -size <= place < size:
        raise IndexError(f"expected an index into axis {axis} of size {size}, got {place}")
    return place % size


def from_exporter(runtime: Any, value: Any) -> DeviceArray:
    """Return a view of another library's array on this device, without a copy.

    Parameters
    ----------
    value : object with ``__cuda_array_interface__`` or ``__dlpack__``

    Raises
    ------
    DeviceError
        If it lives elsewhere.
    DTypeError
        If it holds no numbers of at most 8 bytes.
    """
    core()
    from cuda.core.utils import StridedMemoryView

    view = StridedMemoryView.from_any_interface(value, stream_ptr=int(runtime.stream.handle))
    if not view.is_device_accessible or view.device_id != runtime.index:
        raise DeviceError(
            f"expected an array on {runtime.name}, got one on device {view.device_id}"
        )
    dtype = _exported_dtype(value, view)
    strides = (
        None if view.strides is None else tuple(step * dtype.itemsize for step in view.strides)
    )
    return DeviceArray(runtime, _Borrowed(value, view), view.ptr, tuple(view.shape), dtype, strides)


def _exported_dtype(value: Any, view: Any) -> Any:
    return (
        BFLOAT16 if str(getattr(value, "dtype", "")).endswith("bfloat16") else dtype_of(view.dtype)
    )


class _Borrowed:
    """Memory of another library, kept alive."""

    __slots__ = ("owner", "view")

    def __init__(self, owner: Any, view: Any) -> None:
        self.owner, self.view = owner, view
