"""Arrays of the CUDA backend: conversion, buffers, rows of a batch."""

from __future__ import annotations

from collections.abc import Callable, Hashable, Iterable, Mapping, Sequence
from contextvars import ContextVar
from math import prod
from typing import Any
from weakref import WeakKeyDictionary

import numpy as np
import numpy.typing as npt

from warpfit.backends.base import HALF_DTYPES, Array, Backend, Number
from warpfit.backends.checks import check_float, check_same_shape
from warpfit.backends.cuda import autotune
from warpfit.backends.cuda.array import DeviceArray, from_exporter
from warpfit.backends.cuda.dtypes import dtype_of
from warpfit.backends.cuda.joined_updates import JoinedUpdates
from warpfit.backends.cuda.launch import Kernels, scalar
from warpfit.backends.cuda.layouts import copy_plan
from warpfit.backends.cuda.tensors import TENSOR_THREADS, TensorPlan, plan_of
from warpfit.checks import as_numbers
from warpfit.errors import DeviceError, DTypeError
from warpfit.permutation import domain_bits

THREADS = 256
# What stands in for a device's shared backend, in a thread that rehearses.
rehearsing: ContextVar[Any] = ContextVar("rehearsing", default=None)
# Blocks of a kernel whose threads take several elements each: enough to fill any card.
BLOCKS_PER_MULTIPROCESSOR = 16


def blocks_for(count: int, per_block: int, most: int = 2**31 - 1) -> int:
    """Return how many blocks cover `count` elements, at least 1 and at most `most`."""
    return max(1, min(-(-count // per_block), most))


def check_record(op: str, record: DeviceArray, row: Number) -> None:
    """Raise IndexError unless `row` is one of the record's, or lies on the device."""
    if type(row) is not DeviceArray and not 0 <= row < record.shape[0]:
        raise IndexError(f"{op}: expected a row of record {record.shape}, got {row}")


def power_of_two(least: int) -> int:
    """Return the smallest power of two that is at least `least`."""
    return 1 << max(0, least - 1).bit_length()


class StepBuffers:
    """Buffers of one training step, handed out again in the same sequence at the next.

    A buffer grows when a larger array is asked for at its place, and serves smaller ones as it is.
    """

    def __init__(self, runtime: Any) -> None:
        self._runtime = runtime
        self._arrays: list[DeviceArray] = []
        self._next = 0

    def rewind(self) -> None:
        """Begin the sequence again."""
        self._next = 0

    def arrays(self) -> list[DeviceArray]:
        """Return all of them, as they were last asked for."""
        return list(self._arrays)

    def take(self, shape: tuple[int, ...], dtype: Any) -> DeviceArray:
        """Return the next buffer, of this shape and dtype."""
        place = self._next
        self._next += 1
        if place == len(self._arrays):
            self._arrays.append(DeviceArray.allocate(self._runtime, shape, dtype))
        array = self._arrays[place]
        if array.shape != shape or array.dtype != dtype:
            array = self._arrays[place] = self._reshaped(array.memory, shape, dtype_of(dtype))
        return array

    def _reshaped(self, memory: Any, shape: tuple[int, ...], dtype: Any) -> DeviceArray:
        if prod(shape) * dtype.itemsize > memory.nbytes:
            return DeviceArray.allocate(self._runtime, shape, dtype)
        return DeviceArray(self._runtime, memory, memory.pointer, shape, dtype)


class ArrayOps(Backend):
    """Conversion, allocation and gathering."""

    def __init__(
        self,
        runtime: Any,
        reuse: bool = False,
        *,
        precision: str = "float32",
        loss_scale: float = 1.0,
    ) -> None:
        self.runtime = runtime
        # Whether products of float32 numbers may use tensor cores.
        self.precision = "tf32" if precision == "tf32" else "float32"
        self.is_half = precision in HALF_DTYPES
        self.loss_scale = loss_scale
        self.kernel = Kernels.of(runtime).get
        self.most_blocks = runtime.num_multiprocessors * BLOCKS_PER_MULTIPROCESSOR
        self._buffers = StepBuffers(runtime) if reuse else None
        self._arrivals: WeakKeyDictionary[Any, DeviceArray] = WeakKeyDictionary()  # by streams
        self.joined_updates: JoinedUpdates | None = None

    def asarray(self, value: Any, dtype: str | None = None) -> Array:
        array = value if isinstance(value, DeviceArray) else self._imported(value)
        if array.runtime is not self.runtime:
            raise DeviceError(
                f"expected an array on {self.runtime.name}, got one on {array.runtime.name}"
            )
        return array if dtype is None or array.dtype == dtype else self._converted(array, dtype)

    def compile_ahead(self, kernels: Iterable[tuple[str, Mapping[str, Any]]]) -> None:
        Kernels.of(self.runtime).compile_ahead(kernels)

    def rehearse(self, key: Hashable, function: Callable[[Any], Any]) -> None:
        kernels = Kernels.of(self.runtime)
        if key in kernels.rehearsed or autotune.is_asked_for():  # which measures what runs
            return
        kernels.rehearsed.add(key)
        noted: dict[Any, tuple[str, Mapping[str, Any]]] = {}

        def note(name: str, **defines: Any) -> Callable[..., None]:
            noted[name, *defines.items()] = name, defines
            return lambda *_, **__: None

        ops: Any = type(self)(self.runtime, reuse=True)
        ops.kernel = note
        token = rehearsing.set(ops)
        try:
            function(ops)
        except DeviceError:  # lack of room, which matters once they run
            pass
        finally:
            rehearsing.reset(token)
        self.compile_ahead(noted.values())

    def _imported(self, value: Any) -> DeviceArray:
        """Return a view of another library's array on this device, or a copy of anything else."""
        if hasattr(value, "__cuda_array_interface__") or _is_on_device(value):
            return from_exporter(self.runtime, value)
        host = as_numbers(value)
        native = host.dtype.newbyteorder("=")
        array = DeviceArray.allocate(self.runtime, host.shape, native)
        self.runtime.upload(array.pointer, np.ascontiguousarray(host, native))
        return array

    def _converted(self, array: DeviceArray, dtype: Any) -> DeviceArray:
        """Return an array of another dtype that belongs to the caller; uint8 becomes x / 255."""
        out = DeviceArray.allocate(self.runtime, array.shape, dtype)
        self._copy_into(out, array)
        return out

    def _copy_into(self, out: DeviceArray, x: DeviceArray) -> None:
        """Copy x, of out's shape, with the conversion of `asarray`."""
        if not x.size:
            return
        if out.dtype == x.dtype and out.is_contiguous and x.is_contiguous:
            self.runtime.copy(out.pointer, x.pointer, x.nbytes)
            return
        kernel = self.kernel("copy_strided", SOURCE=x.dtype, DTYPE=out.dtype)
        plan = copy_plan(x.shape, x.strides, x.itemsize, out.strides, out.itemsize)
        kernel(
            plan.num_blocks, THREADS, x, plan.x_layout, out, plan.y_layout, plan.is_tiled, x.size
        )

    def contiguous(self, x: DeviceArray) -> DeviceArray:
        """Return x, or a contiguous copy in a buffer of the step."""
        if x.is_contiguous:
            return x
        out = self.empty(x.shape, x.dtype)
        self._copy_into(out, x)
        return out

    def contiguous_or_none(self, x: DeviceArray | None) -> DeviceArray | None:
        """Return `contiguous` of an operand that may be missing."""
        return None if x is None else self.contiguous(x)

    def to_numpy(self, array: Array) -> npt.NDArray[Any]:
        return array.numpy()

    def empty(self, shape: tuple[int, ...], dtype: Any) -> Array:
        if self._buffers is None:
            return DeviceArray.allocate(self.runtime, shape, dtype)
        return self._buffers.take(shape, dtype)

    def full(self, shape: tuple[int, ...], value: float, dtype: Any) -> Array:
        out: Any = self.empty(shape, dtype)
        self.runtime.fill(out.pointer, out.nbytes)
        return self.binary("add", out, value) if value else out

    def zeros(self, shape: tuple[int, ...], dtype: Any) -> Array:
        out = DeviceArray.allocate(self.runtime, shape, dtype)
        self.runtime.fill(out.pointer, out.nbytes)
        return out

    def copy(self, array: Array) -> Array:
        out = DeviceArray.allocate(self.runtime, array.shape, array.dtype)
        self._copy_into(out, array)
        return out

    def assign(self, target: Array, value: Array) -> None:
        check_same_shape("assign", target, value)
        self._copy_into(target, value)

    def arrivals(self, count: int) -> DeviceArray:
        """Return at least `count` counters of uint32, zero between two kernels of this backend."""
        stream = self.runtime.thread_stream
        found = self._arrivals.get(stream)
        if found is None or found.size < count:
            found = DeviceArray.allocate(self.runtime, (max(count, 1024),), "uint32")
            self.runtime.fill(found.pointer, found.nbytes, at_once=True)
            self._arrivals[stream] = found
        return found

    def begin_step(self) -> None:
        if self._buffers is not None:
            self._buffers.rewind()

    def step_memory(self) -> list[DeviceArray]:
        """Return what the operations of a step use besides their operands, on this thread's stream:
        a captured step needs it as it is.
        """
        held = [] if self._buffers is None else self._buffers.arrays()
        counters = self._arrivals.get(self.runtime.thread_stream)
        return held if counters is None else [*held, counters]

    def cast(self, x: Array, dtype: str, scale: float = 1.0) -> Array:
        check_float("cast", x)
        x = self.contiguous(x)
        out = self.empty(x.shape, dtype)
        if out.size:
            kernel = self.kernel("cast", SOURCE=x.dtype, DTYPE=out.dtype)
            kernel(
                blocks_for(out.size, 4 * THREADS, self.most_blocks),
                THREADS,
                x,
                out,
                scale,
                out.size,
            )
        return out

    def cast_into(self, targets: Sequence[Array], sources: Sequence[Array]) -> None:
        plan = plan_of(self, "cast_into", (targets, sources), same_dtype=False)
        for launch in plan.launches:
            target, source = launch.dtypes
            kernel = self.kernel("cast_into", SOURCE=source, DTYPE=target)
            kernel(launch.num_blocks, TENSOR_THREADS, launch.tensors)
        self._copy_back(plan, unless=1)

    def _copy_back(self, plan: TensorPlan, unless: int | None = None) -> None:
        """Write to the tensors that copies stood in for, except those of one list."""
        for number, own, copy in plan.copies:
            if number != unless:
                self._copy_into(own, copy)

    def keep_copies(self, parameters: Sequence[Array], copies: Sequence[Array]) -> bool:
        if not JoinedUpdates.are_possible(self.runtime, *(copy.dtype for copy in copies)):
            return False
        self.joined_updates = JoinedUpdates(self, parameters, copies)
        return True

    def all_finite(self, arrays: Sequence[Array]) -> Array:
        finite = self.empty((), "bool")
        self.runtime.fill(finite.pointer, finite.nbytes, 1)
        for launch in plan_of(self, "all_finite", (arrays,)).launches:
            kernel = self.kernel("all_finite", DTYPE=launch.dtypes[0])
            kernel(launch.num_blocks, TENSOR_THREADS, launch.tensors, finite)
        return finite

    def epoch_order(self, num_rows: int, keys: npt.NDArray[Any]) -> Array:
        out = DeviceArray.allocate(self.runtime, (num_rows,), "int64")
        if num_rows:
            words = (int(key) for key in keys)
            grid = blocks_for(num_rows, THREADS, self.most_blocks)
            self.kernel("epoch_order")(grid, THREADS, out, num_rows, domain_bits(num_rows), *words)
        return out

    def gather_rows(self, x: Array, rows: Array, dtype: str) -> Array:
        if rows.itemsize != 8:  # the kernel reads int64
            raise DTypeError(f"gather_rows: expected rows of int64, got {rows.dtype}")
        out = self.empty((rows.shape[0], *x.shape[1:]), dtype)
        row_size = prod(x.shape[1:])
        if not row_size or not rows.shape[0]:
            return out
        x, rows = self.contiguous(x), self.contiguous(rows)
        across = min(THREADS, power_of_two(-(-row_size // 4)))
        down = THREADS // across
        kernel = self.kernel("gather_rows", SOURCE=x.dtype, DTYPE=out.dtype)
        kernel(blocks_for(len(rows), down), (across, down), x, rows, out, len(rows), row_size)
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
        check_record("record_step", record, idx)
        kernel = self.kernel("record_step", DTYPE=loss.dtype)
        kernel(1, 1, record, *scalar(idx), loss, weight, correct, penalty)


def _is_on_device(value: Any) -> bool:
    """Whether DLPack says that `value` lives on a GPU."""
    from warpfit.backends.cuda.dlpack import CUDA

    return hasattr(value, "__dlpack_device__") and value.__dlpack_device__()[0] == CUDA
