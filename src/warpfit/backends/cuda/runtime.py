"""A CUDA device: what opens it, and its kernels, launches, memory, copies and order.

`Runtime` is the only thing that talks to the driver. The tests put an emulator with the same
methods in its place, so everything above runs on a machine without a GPU.
"""

from __future__ import annotations

import ctypes
import os
import threading
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from math import prod
from typing import Any, NamedTuple

from warpfit.backends.cuda import driver, jit
from warpfit.backends.cuda.context import active
from warpfit.backends.cuda.driver import DeviceInfo, core
from warpfit.backends.cuda.transfers import Transfers
from warpfit.errors import DeviceError

TENSOR_MAP_BYTES = 128
LARGEST_BOX = 256  # rows or columns
SWIZZLED_BYTES = 128  # of a row of a box
MOST_STEP = 8  # from a row or column of a box to the next
# Of what tensor maps are made for: dtypes, and float32 that is rounded to tf32 where it is copied
# from.
ITEM_BYTES = {"float16": 2, "bfloat16": 2, "float32": 4, "tf32": 4}
_MAP_DTYPES = {"tf32": "TFLOAT32"}  # in the driver's words, where they are others

Grid = tuple[int, int, int]

_OPEN: dict[int, Runtime] = {}
_OPENING = threading.RLock()
_OF_PARENT: list[Runtime] = []  # kept, as what they hold is not for a child process to free


def why_unavailable(opening: int | None = None) -> str | None:
    """Return why no CUDA device can be used, in words that say what is missing, or None if one can.

    Parameters
    ----------
    opening : int, optional
        A device that is to be opened next: its context is made meanwhile.
    """
    if _OF_PARENT:
        return (
            "this process was forked from one that uses CUDA, which no child can "
            "(start it by the method 'spawn' or 'forkserver')"
        )
    with _OPENING:  # what another thread opens need not be looked for
        return None if _OPEN else driver.why_unusable(opening)


def _leave_to_parent() -> None:
    """Forget open devices in a child process, where the driver does not know of them, and threads
    that were opening some, which it does not have.
    """
    global _OPENING
    _OPENING = threading.RLock()
    if any(isinstance(each, Runtime) for each in _OPEN.values()):
        _OF_PARENT.extend(_OPEN.values())
        _OPEN.clear()


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_leave_to_parent)


def devices() -> list[DeviceInfo]:
    """Return all CUDA devices, none where `why_unavailable` gives a reason; nothing is started."""
    return (
        []
        if why_unavailable() is not None
        else [driver.info(index) for index in range(driver.num_devices())]
    )


def open_device(index: int) -> Runtime:
    """Return the runtime of device `index`, the same object at every call.

    Raises
    ------
    DeviceError
        If there is no usable driver or no such device; the message says what is missing.
    """
    with _OPENING:
        if index not in _OPEN:
            _OPEN[index] = _opened(index)
        return _OPEN[index]


class Target(NamedTuple):
    """What kernels for a device are chosen by, of one that is still being opened."""

    arch: str
    num_multiprocessors: int
    max_shared_bytes: int

    def compile_ahead(self, kernels: Iterable[tuple[str, jit.Defines]]) -> None:
        """Begin to compile kernels that `Runtime.load` will be asked for."""
        jit.compile_ahead(kernels, self.arch)


def target_of(index: int) -> Runtime | Target:
    """Return the runtime of device `index` if it is open; else begin to open it, and return what is
    known before.

    Raises
    ------
    DeviceError
        As `open_device` does.
    """
    if index in _OPEN or why_unavailable(opening=index) is not None:
        return open_device(index)
    return Target(*driver.limits(index)) if index < driver.num_devices() else open_device(index)


def _opened(index: int) -> Runtime:
    reason = why_unavailable(opening=index)
    if reason is not None:
        raise DeviceError(f"expected a CUDA device for 'cuda:{index}', but {reason}")
    count = driver.num_devices()
    if index >= count:
        raise DeviceError(f"expected a device among cuda:0 to cuda:{count - 1}, got 'cuda:{index}'")
    return Runtime(index)


def check_tensor_map(
    pointer: int,
    dtype_name: str,
    rows: int,
    columns: int,
    leading_dimension: int,
    box_rows: int,
    box_columns: int,
) -> int:
    """Check what tensor maps demand of a matrix and its boxes, as :meth:`Runtime.tensor_map` takes
    them.

    Returns
    -------
    int
        Bytes of a number.

    Raises
    ------
    DeviceError
        If a map of this kind cannot be.
    """
    itemsize = ITEM_BYTES.get(dtype_name)
    if itemsize is None:
        raise DeviceError(
            f"expected a tensor map of {', '.join(ITEM_BYTES)}, got one of {dtype_name}"
        )
    row_bytes, box_bytes = leading_dimension * itemsize, box_columns * itemsize
    if pointer <= 0 or pointer % 16:
        raise DeviceError(
            f"expected a matrix at a multiple of 16 bytes for a tensor map, got {pointer:#x}"
        )
    if rows < 1 or columns < 1:
        raise DeviceError(
            f"expected at least one row and column for a tensor map, got {rows} and {columns}"
        )
    if leading_dimension < columns or row_bytes % 16:
        raise DeviceError(
            f"expected rows of a multiple of 16 bytes, with at least {columns} columns, for a "
            f"tensor map, got {leading_dimension} columns of {itemsize} bytes"
        )
    if not 1 <= box_rows <= LARGEST_BOX or not 1 <= box_columns <= LARGEST_BOX:
        raise DeviceError(
            f"expected boxes of 1 to {LARGEST_BOX} rows and columns for a tensor map, got "
            f"{box_rows} by {box_columns}"
        )
    if box_bytes > SWIZZLED_BYTES or box_bytes % 16:
        raise DeviceError(
            f"expected boxes with a multiple of 16 bytes in a row, at most {SWIZZLED_BYTES}, for a "
            f"tensor map, got {box_bytes}"
        )
    return itemsize


def check_image_map(
    pointer: int,
    dtype_name: str,
    shape: tuple[int, int, int, int],
    box: tuple[int, int, int],
    steps: tuple[int, int],
) -> int:
    """Check what tensor maps demand of images, as :meth:`Runtime.image_map` takes them, and return
    the bytes of a number; or raise DeviceError.
    """
    if 0 in shape:
        raise DeviceError(f"expected images for a tensor map, got none: {shape}")
    channels = shape[3]
    itemsize = ITEM_BYTES.get(dtype_name, 1)
    in_line = SWIZZLED_BYTES // itemsize
    found = check_tensor_map(pointer, dtype_name, 1, channels, channels, prod(box), in_line)
    traversed = (box[0], *(size * step for size, step in zip(box[1:], steps, strict=True)))
    if not all(1 <= size <= LARGEST_BOX for size in traversed) or not 1 <= max(steps) <= MOST_STEP:
        raise DeviceError(
            f"expected boxes over 1 to {LARGEST_BOX} images, rows and columns in steps of at most "
            f"{MOST_STEP} for a tensor map, got {box} in steps of {steps}"
        )
    return found


class Runtime(Transfers):
    """One device with one stream, on which everything runs in order but the copies of upload
    buffers.

    Parameters
    ----------
    index : int
        The device's number.

    Attributes
    ----------
    name : str
        ``'cuda:0'``, ...
    arch : str
        What kernels are compiled for: ``'sm_90a'``, ...
    num_multiprocessors, max_shared_bytes : int
        `max_shared_bytes` is the shared memory that one block may ask for.
    stream : cuda.core.Stream
    watcher : object or None
        Hears of every launch: ``begin(name)`` before it, ``end(begun)`` with what that returned,
        unless it is None, after it. See `warpfit.training.profile`.
    """

    def compile_ahead(self, kernels: Iterable[tuple[str, jit.Defines]]) -> None:
        """Begin to compile kernels that `load` will be asked for."""
        jit.compile_ahead(kernels, self.arch)

    def load(self, name: str, defines: tuple[tuple[str, str], ...]) -> Any:
        """Return the kernel `name`, compiled with `defines` for this device or from the cache."""
        self._refuse_in_capture(f"loading {name}")
        cubin = jit.cubin(name, defines, self.arch)
        self.activate()
        kernel = core().ObjectCode.from_cubin(cubin, name=name).get_kernel(name)
        error, function = self._driver.cuKernelGetFunction(kernel.handle)
        self._check(error, f"loading {name}")
        attributes = self._driver.CUfunction_attribute
        error, static = self._driver.cuFuncGetAttribute(
            attributes.CU_FUNC_ATTRIBUTE_SHARED_SIZE_BYTES, function
        )
        self._check(error, f"loading {name}")
        (error,) = self._driver.cuFuncSetAttribute(
            function,
            attributes.CU_FUNC_ATTRIBUTE_MAX_DYNAMIC_SHARED_SIZE_BYTES,
            self.max_shared_bytes - static,
        )
        self._check(error, f"loading {name}")
        takes_turn = jit.generation(self.arch) >= 90 and "take_turn();" in jit.source_of(name)
        return _Function(name, kernel, function, takes_turn)

    def tensor_map(
        self,
        pointer: int,
        dtype_name: str,
        rows: int,
        columns: int,
        leading_dimension: int,
        box_rows: int,
        box_columns: int,
    ) -> bytes:
        """Return what tells tensor copies of a matrix: a `TensorMap` of ptx/ptx_sm90a.cuh.

        Boxes lie in shared memory with the 128-byte swizzle; what lies outside of the matrix is
        zero.

        Parameters
        ----------
        pointer : int
            Where the matrix begins on the device, a multiple of 16.
        dtype_name : {'float16', 'bfloat16', 'float32', 'tf32'}
            ``'tf32'``: of float32 numbers, which copies to shared memory round to 10 bits of
            mantissa.
        rows, columns : int
            The size of the matrix.
        leading_dimension : int
            Numbers from one row to the next, a multiple of 16 bytes.
        box_rows, box_columns : int
            The size of what is copied at once: at most 256 rows of 128 bytes.

        Raises
        ------
        DeviceError
            If a map of this kind cannot be, or the driver refuses it.
        """
        itemsize = check_tensor_map(
            pointer, dtype_name, rows, columns, leading_dimension, box_rows, box_columns
        )
        name = _MAP_DTYPES.get(dtype_name, dtype_name.upper())
        return self._encoded(
            f"a tensor map of {rows} by {columns} numbers",
            getattr(self._driver.CUtensorMapDataType, f"CU_TENSOR_MAP_DATA_TYPE_{name}"),
            pointer,
            (columns, rows),
            (leading_dimension * itemsize,),
            (box_columns, box_rows),
            (1, 1),
        )

    def image_map(
        self,
        pointer: int,
        dtype_name: str,
        shape: tuple[int, int, int, int],
        box: tuple[int, int, int],
        steps: tuple[int, int],
    ) -> bytes:
        """Return what tells tensor copies of images: a `TensorMap` of ptx/ptx_sm90a.cuh.

        Pixels lie in shared memory one after the other, a line of 128 bytes each, with the swizzle
        of as many; what lies outside of the images is zero.

        Parameters
        ----------
        pointer : int
            Where the images begin on the device, a multiple of 16.
        dtype_name : {'float16', 'bfloat16'}
        shape : (images, height, width, channels)
            Of contiguous images, whose pixels have a multiple of 16 bytes.
        box : (images, rows, columns)
            What is copied at once, 256 pixels at most, of a line of channels.
        steps : (int, int)
            From a row and column of a box to the next, in pixels.

        Raises
        ------
        DeviceError
            If a map of this kind cannot be, or the driver refuses it.
        """
        itemsize = check_image_map(pointer, dtype_name, shape, box, steps)
        driver = self._driver
        _, height, width, channels = shape
        pixel = channels * itemsize
        traversed = (SWIZZLED_BYTES // itemsize, box[2] * steps[1], box[1] * steps[0], box[0])
        return self._encoded(
            f"a tensor map of images {shape}",
            getattr(driver.CUtensorMapDataType, f"CU_TENSOR_MAP_DATA_TYPE_{dtype_name.upper()}"),
            pointer,
            shape[::-1],
            (pixel, width * pixel, height * width * pixel),
            traversed,
            (1, steps[1], steps[0], 1),
            fetched=128,  # more would fetch pixels that steps leave out
        )

    def _encoded(
        self,
        what: str,
        dtype: Any,
        pointer: int,
        sizes: Sequence[int],
        distances: Sequence[int],
        box: Sequence[int],
        steps: Sequence[int],
        fetched: int = 256,
    ) -> bytes:
        """Return the driver's map; sizes and so on are those of the axes, the last one first. L2
        fetches so many bytes at once.
        """
        driver = self._driver
        wide, narrow = driver.cuuint64_t, driver.cuuint32_t
        error, found = driver.cuTensorMapEncodeTiled(
            dtype,
            len(sizes),
            pointer,
            [wide(size) for size in sizes],
            [wide(distance) for distance in distances],
            [narrow(size) for size in box],
            [narrow(step) for step in steps],
            driver.CUtensorMapInterleave.CU_TENSOR_MAP_INTERLEAVE_NONE,
            driver.CUtensorMapSwizzle.CU_TENSOR_MAP_SWIZZLE_128B,
            getattr(driver.CUtensorMapL2promotion, f"CU_TENSOR_MAP_L2_PROMOTION_L2_{fetched}B"),
            driver.CUtensorMapFloatOOBfill.CU_TENSOR_MAP_FLOAT_OOB_FILL_NONE,
        )
        self._check(error, what)
        return ctypes.string_at(found.getPtr(), TENSOR_MAP_BYTES)

    def launch(
        self, function: Any, grid: Grid, block: Grid, shared_bytes: int, parameters: int
    ) -> None:
        """Start a kernel; `parameters` is the address of an array of the arguments' addresses."""
        if self.is_capturing() or self._beside:
            self.launch_cluster(function, grid, block, shared_bytes, parameters, 1, False)
            return
        if getattr(active, "context", None) is not self:
            self.activate()
        self._recent.append(function.name)
        (error,) = self._driver.cuLaunchKernel(
            function.handle, *grid, *block, shared_bytes, self._stream_handle, parameters, 0
        )
        if error:
            self._check(error, f"launching {function.name} with grid {grid} and block {block}")
        if self._blocking:
            self.synchronize()

    def launch_cluster(
        self,
        function: Any,
        grid: Grid,
        block: Grid,
        shared_bytes: int,
        parameters: int,
        cluster: int,
        is_cooperative: bool,
    ) -> None:
        """Start a kernel whose blocks form clusters along x, or are all resident at once."""
        self.activate()
        if cluster > 1:
            (error,) = self._driver.cuFuncSetAttribute(
                function.handle,
                self._driver.CUfunction_attribute.CU_FUNC_ATTRIBUTE_NON_PORTABLE_CLUSTER_SIZE_ALLOWED,
                1,
            )
            self._check(error, f"launching {function.name}")
        # In a graph the blocks of one kernel come while those of the last are still at work, and
        # wait for them.
        is_programmatic = function.takes_turn and self.is_capturing() and not self._was_merged()
        attributes = self._launch_attributes(cluster, is_cooperative, is_programmatic)
        config = self._driver.CUlaunchConfig()
        config.gridDimX, config.gridDimY, config.gridDimZ = grid
        config.blockDimX, config.blockDimY, config.blockDimZ = block
        config.sharedMemBytes, config.hStream = shared_bytes, self._handle(function.name)
        config.attrs, config.numAttrs = attributes, len(attributes)
        self._recent.append(function.name)
        (error,) = self._driver.cuLaunchKernelEx(config, function.handle, parameters, 0)
        self._check(
            error,
            f"launching {function.name} with grid {grid} in clusters of {cluster} blocks of "
            f"{block}",
        )
        if self._blocking and not self.is_capturing():
            self.synchronize()

    @contextmanager
    def waiting_for_others(self) -> Iterator[None]:
        """Let no launch of this block be waited for while debugging: it waits for other cards'."""
        blocking, self._blocking = self._blocking, False
        try:
            yield
        finally:
            self._blocking = blocking

    def _launch_attributes(
        self, cluster: int, is_cooperative: bool, is_programmatic: bool
    ) -> list[Any]:
        driver, found = self._driver, []
        if cluster > 1:
            size = driver.CUlaunchAttribute()
            size.id = driver.CUlaunchAttributeID.CU_LAUNCH_ATTRIBUTE_CLUSTER_DIMENSION
            size.value.clusterDim.x, size.value.clusterDim.y, size.value.clusterDim.z = (
                cluster,
                1,
                1,
            )
            found.append(size)
        if is_cooperative:
            together = driver.CUlaunchAttribute()
            together.id = driver.CUlaunchAttributeID.CU_LAUNCH_ATTRIBUTE_COOPERATIVE
            together.value.cooperative = 1
            found.append(together)
        if is_programmatic:
            early = driver.CUlaunchAttribute()
            early.id = (
                driver.CUlaunchAttributeID.CU_LAUNCH_ATTRIBUTE_PROGRAMMATIC_STREAM_SERIALIZATION
            )
            early.value.programmaticStreamSerializationAllowed = 1
            found.append(early)
        return found


class _Function:
    """A loaded kernel: its handle, what must outlive it, whether it waits for kernels before it."""

    __slots__ = ("handle", "kernel", "name", "takes_turn")

    def __init__(self, name: str, kernel: Any, handle: Any, takes_turn: bool) -> None:
        self.name, self.kernel, self.handle, self.takes_turn = name, kernel, handle, takes_turn
