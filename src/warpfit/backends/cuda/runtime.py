"""A CUDA device: its context, stream, memory pool and launches, and what its errors mean.

`Runtime` is the only thing that talks to the driver. The tests put an emulator with the same methods in its
place, so everything above runs on a machine without a GPU.
"""

from __future__ import annotations

import ctypes
import gc
import os
import threading
import weakref
from collections import deque
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager, suppress
from importlib import import_module
from importlib.util import find_spec
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt

from warpfit.backends.cuda import jit
from warpfit.errors import DeviceError, KernelError

__all__ = [
    "DeviceInfo",
    "Graph",
    "Mark",
    "Memory",
    "Runtime",
    "SharedMemory",
    "UploadBuffer",
    "check_tensor_map",
    "devices",
    "is_debugging",
    "open_device",
    "why_unavailable",
]

# How many launches an error message looks back on.
LAUNCHES_REMEMBERED = 16
# Uploads pass through pinned memory in pieces of this size, so that the host need not wait for them.
STAGING_BYTES = 1 << 20
EXTRAS = (12, 13)  # versions of CUDA that the package has extras for: warpfit[cu12], ...
NO_DEVICE = 100  # CUDA_ERROR_NO_DEVICE
NOT_READY = 600  # CUDA_ERROR_NOT_READY

TENSOR_MAP_BYTES = 128
LARGEST_BOX = 256  # rows or columns
SWIZZLED_BYTES = 128  # of a row of a box
# Of what tensor maps are made for: dtypes, and float32 that is rounded to tf32 where it is copied from.
ITEM_BYTES = {"float16": 2, "bfloat16": 2, "float32": 4, "tf32": 4}
_MAP_DTYPES = {"tf32": "TFLOAT32"}  # in the driver's words, where they are others

Grid = tuple[int, int, int]

_OPEN: dict[int, Runtime] = {}
_OPENING = threading.Lock()
_active = threading.local()


def why_unavailable(opening: int | None = None) -> str | None:
    """Return why no CUDA device can be used, in words that say what is missing, or None if one can.

    Parameters
    ----------
    opening : int, optional
        A device that is to be opened next: its context is made meanwhile.
    """
    if _OPEN:
        return None
    library = _driver_library()
    if library is None:
        return "no NVIDIA driver was found (libcuda.so.1 cannot be loaded)"
    if find_spec("cuda") is None or find_spec("cuda.core") is None:
        return "cuda-core is not installed (pip install 'warpfit[cuda]')"
    with ThreadPoolExecutor(1) as pool:
        if opening is not None:
            pool.submit(_make_context, library, opening)
        return _driver_fault()


def is_debugging() -> bool:
    """Return whether ``$WARPFIT_DEBUG`` asks that each launch is waited for, and that kernels bound their own waits."""
    return os.environ.get("WARPFIT_DEBUG", "") not in ("", "0")


def _driver_library() -> ctypes.CDLL | None:
    """Return the driver's library, or None if it does not load; far cheaper than importing what needs it."""
    try:
        return ctypes.CDLL("nvcuda.dll" if os.name == "nt" else "libcuda.so.1")
    except OSError:
        return None


def _make_context(library: ctypes.CDLL, index: int) -> None:
    """Make a device's context ahead: it takes 0.2 s, in which Python can import modules.

    What fails here fails again, and is reported, when the device is opened.
    """
    device, context = ctypes.c_int(), ctypes.c_void_p()
    if library.cuInit(0) == 0 and library.cuDeviceGet(ctypes.byref(device), index) == 0:
        library.cuDevicePrimaryCtxRetain(ctypes.byref(context), device)


def _driver() -> Any:
    from cuda.bindings import driver

    return driver


def _bindings_major() -> int:
    import cuda.bindings

    return int(cuda.bindings.__version__.split(".")[0])


def _driver_fault() -> str | None:
    """Return what is wrong with the driver: it does not start, is older than the bindings, or sees no device."""
    driver = _driver()
    wanted = _bindings_major()
    error, version = driver.cuDriverGetVersion()
    major, minor = version // 1000, version % 1000 // 10
    if int(error) == 0 and major < wanted:
        remedy = f", or pip install 'warpfit[cu{major}]'" if major in EXTRAS else ""
        return (
            f"the driver is for CUDA {major}.{minor}, too old for the installed bindings for CUDA {wanted} "
            f"(update the driver{remedy})"
        )
    import_module("cuda.core")  # 0.1 s, while another thread may be starting the driver
    (error,) = driver.cuInit(0)
    if int(error) == NO_DEVICE:
        return "the NVIDIA driver sees no device (is CUDA_VISIBLE_DEVICES set?)"
    if int(error):
        return f"the NVIDIA driver does not start: {_describe(error)}"
    error, count = driver.cuDeviceGetCount()
    if int(error) or count == 0:
        return "the NVIDIA driver sees no device (is CUDA_VISIBLE_DEVICES set?)"
    return None


def _describe(error: Any) -> str:
    """Return the driver's name and words for an error code."""
    driver = _driver()
    _, name = driver.cuGetErrorName(error)
    _, text = driver.cuGetErrorString(error)
    if not isinstance(name, bytes) or not isinstance(text, bytes):
        return f"error {int(error)}"
    return f"{name.decode()} ({text.decode()})"


class DeviceInfo(NamedTuple):
    """What a device is.

    Attributes
    ----------
    name, model, arch : str
        Such as ``'cuda:0'``, ``'NVIDIA H200'`` and ``'sm_90a'``.
    num_bytes : int
        Its memory.
    driver : str
        The newest version of CUDA that the driver knows: ``'13.0'``.
    """

    name: str
    model: str
    arch: str
    num_bytes: int
    driver: str


def devices() -> list[DeviceInfo]:
    """Return all CUDA devices, none where `why_unavailable` gives a reason; nothing is started on them."""
    if why_unavailable() is not None:
        return []
    driver = _driver()
    _, version = driver.cuDriverGetVersion()
    _, count = driver.cuDeviceGetCount()
    return [_info(index, f"{version // 1000}.{version % 1000 // 10}") for index in range(count)]


def _info(index: int, version: str) -> DeviceInfo:
    driver = _driver()
    kinds = driver.CUdevice_attribute
    _, device = driver.cuDeviceGet(index)
    _, model = driver.cuDeviceGetName(128, device)
    _, num_bytes = driver.cuDeviceTotalMem(device)
    _, major = driver.cuDeviceGetAttribute(kinds.CU_DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_MAJOR, device)
    _, minor = driver.cuDeviceGetAttribute(kinds.CU_DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_MINOR, device)
    name = model.split(b"\0")[0].decode()
    return DeviceInfo(f"cuda:{index}", name, _arch_of(int(major), int(minor)), int(num_bytes), version)


def _arch_of(major: int, minor: int) -> str:
    # Only the "a" targets have the instructions of their own generation; older ones have no such target.
    return f"sm_{major}{minor}" + ("a" if major >= 9 else "")


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


def _opened(index: int) -> Runtime:
    reason = why_unavailable(opening=index)
    if reason is not None:
        raise DeviceError(f"expected a CUDA device for 'cuda:{index}', but {reason}")
    _, count = _driver().cuDeviceGetCount()
    if index >= count:
        raise DeviceError(f"expected a device among cuda:0 to cuda:{count - 1}, got 'cuda:{index}'")
    return Runtime(index)


class Memory:
    """A piece of device memory, given back to the pool when the last array on it goes."""

    __slots__ = ("nbytes", "owner", "pointer")

    def __init__(self, pointer: int, nbytes: int, owner: Any) -> None:
        self.pointer, self.nbytes, self.owner = pointer, nbytes, owner


class SharedMemory(NamedTuple):
    """Memory of the host that kernels read and write where it lies, over the bus.

    Attributes
    ----------
    host : ndarray (bytes,) uint8
    pointer : int
        Its address on the device.
    owner : Any
        What keeps it alive.
    """

    host: npt.NDArray[np.uint8]
    pointer: int
    owner: Any


def check_tensor_map(
    pointer: int,
    dtype_name: str,
    rows: int,
    columns: int,
    leading_dimension: int,
    box_rows: int,
    box_columns: int,
) -> int:
    """Check what tensor maps demand of a matrix and its boxes, as :meth:`Runtime.tensor_map` takes them.

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
        raise DeviceError(f"expected a tensor map of {', '.join(ITEM_BYTES)}, got one of {dtype_name}")
    row_bytes, box_bytes = leading_dimension * itemsize, box_columns * itemsize
    if pointer <= 0 or pointer % 16:
        raise DeviceError(f"expected a matrix at a multiple of 16 bytes for a tensor map, got {pointer:#x}")
    if rows < 1 or columns < 1:
        raise DeviceError(f"expected at least one row and column for a tensor map, got {rows} and {columns}")
    if leading_dimension < columns or row_bytes % 16:
        raise DeviceError(
            f"expected rows of a multiple of 16 bytes, with at least {columns} columns, for a tensor map, got "
            f"{leading_dimension} columns of {itemsize} bytes"
        )
    if not 1 <= box_rows <= LARGEST_BOX or not 1 <= box_columns <= LARGEST_BOX:
        raise DeviceError(
            f"expected boxes of 1 to {LARGEST_BOX} rows and columns for a tensor map, got {box_rows} by {box_columns}"
        )
    if box_bytes > SWIZZLED_BYTES or box_bytes % 16:
        raise DeviceError(
            f"expected boxes with a multiple of 16 bytes in a row, at most {SWIZZLED_BYTES}, for a tensor map, got "
            f"{box_bytes}"
        )
    return itemsize


class Runtime:
    """One device with one stream, on which everything runs in order but the copies of upload buffers.

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
        Hears of every launch: ``begin(name)`` before it, ``end(begun)`` with what that returned, unless it is None,
        after it. See `warpfit.training.profile`.
    """

    watcher: Any = None

    def __init__(self, index: int) -> None:
        from cuda.core import Device, DeviceMemoryResource

        self.index, self.name = index, f"cuda:{index}"
        self.device = Device(index)
        self.device.set_current()
        _active.runtime = self
        self.arch = _arch_of(*self.device.compute_capability)
        properties = self.device.properties
        self.num_multiprocessors = int(properties.multiprocessor_count)
        self.max_shared_bytes = int(properties.max_shared_memory_per_block_optin)
        self.stream = self.device.create_stream()
        self._pool = DeviceMemoryResource(index)
        self._driver = _driver()
        self._stream_handle = self.stream.handle
        self._staging = _Staging(self)
        self._copy_stream: Any = None  # most runs need none
        self._recent: deque[str] = deque(maxlen=LAUNCHES_REMEMBERED)
        self._capture_stream: Any = None  # nor this
        self._capturing: _Capturing | None = None
        self._side_streams: list[Any] = []  # made when they are needed; those that no thread has
        self._apart: dict[int, list[Any]] = {}  # those that each thread has used since it joined
        self._beside: dict[int, Any] = {}  # the one on which a thread starts kernels now
        self._capture_lock = threading.Lock()
        self._blocking = is_debugging()

    @property
    def card(self) -> str:
        """What the GPU is called."""
        return str(self.device.name)

    # -- memory ------------------------------------------------------------------------------------------

    def allocate(self, nbytes: int) -> Memory:
        """Return uninitialised memory of the stream's pool.

        Raises
        ------
        DeviceError
            If there is not enough; the message says how much was asked for and how much is free.
        """
        self._refuse_in_capture(f"an allocation of {nbytes} bytes")
        self.activate()
        try:
            return self._from_pool(nbytes)
        except Exception as error:
            if "OUT_OF_MEMORY" not in str(error):
                raise DeviceError(f"cannot allocate {nbytes} bytes on {self.name}: {error}") from error
        # What earlier arrays held is free only once the stream has passed their end.
        self.synchronize()
        try:
            return self._from_pool(nbytes)
        except Exception as error:
            free, total = self.memory_info()
            raise DeviceError(
                f"out of memory on {self.name}: asked for {_size(nbytes)}, {_size(free)} of {_size(total)} free"
            ) from error

    def _from_pool(self, nbytes: int) -> Memory:
        buffer = self._pool.allocate(max(nbytes, 1), stream=self.stream)
        return Memory(int(buffer.handle), nbytes, buffer)

    def share(self, nbytes: int) -> SharedMemory:
        """Return zeros in memory of the host that kernels may read and write while the host does.

        Raises
        ------
        DeviceError
            If the host has not as much that can be pinned.
        """
        self._refuse_in_capture("memory shared with the host")
        self.activate()
        buffer, host = _pin(nbytes)
        host[:] = 0
        # Pinned memory has the same address on the device (CUDA programming guide, unified addressing).
        return SharedMemory(host, host.ctypes.data, buffer)

    def memory_info(self) -> tuple[int, int]:
        """Return free and total memory of the device, in bytes."""
        self.activate()
        error, free, total = self._driver.cuMemGetInfo()
        self._check(error, "asking for free memory")
        return int(free), int(total)

    def memory_in_use(self) -> int:
        """Return the bytes that arrays of this process hold on the device."""
        return int(self._pool.attributes.used_mem_current)

    def memory_left(self) -> int:
        """Return the bytes that new arrays can take: what is free, and what the pool holds beside its arrays."""
        free, _ = self.memory_info()
        return free + int(self._pool.attributes.reserved_mem_current) - self.memory_in_use()

    def upload(self, pointer: int, host: npt.NDArray[Any]) -> None:
        """Copy a C-contiguous host array to the device; the array may change as soon as this returns."""
        self._refuse_in_capture(f"an upload of {host.nbytes} bytes")
        if host.nbytes:
            self.activate()
            self._staging.upload(pointer, host.reshape(-1).view(np.uint8))

    def download(self, host: npt.NDArray[Any], pointer: int) -> None:
        """Copy device memory into a C-contiguous host array, and wait for it."""
        self._refuse_in_capture(f"a download of {host.nbytes} bytes")
        if host.nbytes:
            self.activate()
            (error,) = self._driver.cuMemcpyDtoHAsync(
                host.ctypes.data, pointer, host.nbytes, self._stream_handle
            )
            self._check(error, "a download")
        self.synchronize()

    def create_upload_buffer(self, nbytes: int) -> UploadBuffer:
        """Return pinned memory with its counterpart on the device, for copies beside what the device does.

        Raises
        ------
        DeviceError
            If there is not enough memory of either kind.
        """
        self._refuse_in_capture("a buffer for uploads")
        self.activate()
        if self._copy_stream is None:
            self._copy_stream = self.device.create_stream()
        return UploadBuffer(self, self._copy_stream, nbytes)

    def copy(self, target: int, source: int, nbytes: int) -> None:
        """Copy between two places of the device."""
        if nbytes:
            self.activate()
            (error,) = self._driver.cuMemcpyDtoDAsync(target, source, nbytes, self._handle())
            self._check(error, "a copy on the device")

    def fill(self, pointer: int, nbytes: int, byte: int = 0) -> None:
        """Set every byte of a place on the device."""
        if nbytes:
            self.activate()
            (error,) = self._driver.cuMemsetD8Async(pointer, byte, nbytes, self._handle())
            self._check(error, "filling memory")

    # -- kernels -----------------------------------------------------------------------------------------

    def load(self, name: str, defines: tuple[tuple[str, str], ...]) -> Any:
        """Return the kernel `name`, compiled with `defines` for this device or taken from the cache."""
        self._refuse_in_capture(f"loading {name}")
        from cuda.core import ObjectCode

        cubin = jit.cubin(name, defines, self.arch)
        self.activate()
        kernel = ObjectCode.from_cubin(cubin, name=name).get_kernel(name)
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

        Boxes lie in shared memory with the 128-byte swizzle; what lies outside of the matrix is zero.

        Parameters
        ----------
        pointer : int
            Where the matrix begins on the device, a multiple of 16.
        dtype_name : {'float16', 'bfloat16', 'float32', 'tf32'}
            ``'tf32'``: of float32 numbers, which copies to shared memory round to 10 bits of mantissa.
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
        driver = self._driver
        wide, narrow = driver.cuuint64_t, driver.cuuint32_t
        name = _MAP_DTYPES.get(dtype_name, dtype_name.upper())
        error, found = driver.cuTensorMapEncodeTiled(
            getattr(driver.CUtensorMapDataType, f"CU_TENSOR_MAP_DATA_TYPE_{name}"),
            2,
            pointer,
            [wide(columns), wide(rows)],
            [wide(leading_dimension * itemsize)],
            [narrow(box_columns), narrow(box_rows)],
            [narrow(1), narrow(1)],
            driver.CUtensorMapInterleave.CU_TENSOR_MAP_INTERLEAVE_NONE,
            driver.CUtensorMapSwizzle.CU_TENSOR_MAP_SWIZZLE_128B,
            driver.CUtensorMapL2promotion.CU_TENSOR_MAP_L2_PROMOTION_L2_256B,
            driver.CUtensorMapFloatOOBfill.CU_TENSOR_MAP_FLOAT_OOB_FILL_NONE,
        )
        self._check(error, f"a tensor map of {rows} by {columns} numbers")
        return ctypes.string_at(found.getPtr(), TENSOR_MAP_BYTES)

    def launch(self, function: Any, grid: Grid, block: Grid, shared_bytes: int, parameters: int) -> None:
        """Start a kernel; `parameters` is the address of an array of the arguments' addresses."""
        if self.is_capturing() or self._beside:
            self.launch_cluster(function, grid, block, shared_bytes, parameters, 1, False)
            return
        if getattr(_active, "runtime", None) is not self:
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
        """Start a kernel whose blocks form clusters along x, or which are all resident at once, or both."""
        self.activate()
        if cluster > 1:
            (error,) = self._driver.cuFuncSetAttribute(
                function.handle,
                self._driver.CUfunction_attribute.CU_FUNC_ATTRIBUTE_NON_PORTABLE_CLUSTER_SIZE_ALLOWED,
                1,
            )
            self._check(error, f"launching {function.name}")
        # In a graph the blocks of one kernel come while those of the last are still at work, and wait for them.
        is_programmatic = function.takes_turn and self.is_capturing()
        attributes = self._launch_attributes(cluster, is_cooperative, is_programmatic)
        config = self._driver.CUlaunchConfig()
        config.gridDimX, config.gridDimY, config.gridDimZ = grid
        config.blockDimX, config.blockDimY, config.blockDimZ = block
        config.sharedMemBytes, config.hStream = shared_bytes, self._handle(function.name)
        config.attrs, config.numAttrs = attributes, len(attributes)
        self._recent.append(function.name)
        (error,) = self._driver.cuLaunchKernelEx(config, function.handle, parameters, 0)
        self._check(
            error, f"launching {function.name} with grid {grid} in clusters of {cluster} blocks of {block}"
        )
        if self._blocking and not self.is_capturing():
            self.synchronize()

    def _launch_attributes(self, cluster: int, is_cooperative: bool, is_programmatic: bool) -> list[Any]:
        driver, found = self._driver, []
        if cluster > 1:
            size = driver.CUlaunchAttribute()
            size.id = driver.CUlaunchAttributeID.CU_LAUNCH_ATTRIBUTE_CLUSTER_DIMENSION
            size.value.clusterDim.x, size.value.clusterDim.y, size.value.clusterDim.z = (cluster, 1, 1)
            found.append(size)
        if is_cooperative:
            together = driver.CUlaunchAttribute()
            together.id = driver.CUlaunchAttributeID.CU_LAUNCH_ATTRIBUTE_COOPERATIVE
            together.value.cooperative = 1
            found.append(together)
        if is_programmatic:
            early = driver.CUlaunchAttribute()
            early.id = driver.CUlaunchAttributeID.CU_LAUNCH_ATTRIBUTE_PROGRAMMATIC_STREAM_SERIALIZATION
            early.value.programmaticStreamSerializationAllowed = 1
            found.append(early)
        return found

    # -- graphs ------------------------------------------------------------------------------------------

    @contextmanager
    def capture(self) -> Iterator[Graph]:
        """Note this thread's launches, copies and fills in place of starting them; afterwards the graph repeats them.

        Other threads go on as ever, but those that want to capture, too, wait.

        Raises
        ------
        DeviceError
            If the thread tries anything else meanwhile: to allocate, load, upload, download or wait. The message
            says what.
        KernelError
            If the driver does not take what was captured.
        """
        self._refuse_in_capture("another capture")
        self.activate()
        graph = Graph(self)
        with self._capture_lock:
            # Memory of the host that is freed meanwhile would end the capture, so nothing may be found to be garbage.
            is_collecting = gc.isenabled()
            gc.disable()
            try:
                stream = self._begin_capture()
                self._capturing = _Capturing(threading.get_ident(), stream, graph.names)
                try:
                    yield graph
                except BaseException:
                    self._drop_capture(stream)
                    raise
                graph.take(self._end_capture(stream))
            finally:
                self._capturing = None
                if is_collecting:
                    gc.enable()

    def _begin_capture(self) -> Any:
        # Of its own: memory may be freed on the other stream meanwhile.
        if self._capture_stream is None:
            self._capture_stream = self.device.create_stream()
        handle = self._capture_stream.handle
        mode = self._driver.CUstreamCaptureMode.CU_STREAM_CAPTURE_MODE_THREAD_LOCAL
        (error,) = self._driver.cuStreamBeginCapture(handle, mode)
        self._check(error, "beginning a capture")
        return handle

    def _end_capture(self, stream: Any) -> Any:
        """Return what was captured as the device runs it."""
        driver = self._driver
        error, captured = driver.cuStreamEndCapture(stream)
        self._check(error, "a capture")
        error, executable = driver.cuGraphInstantiate(captured, 0)
        driver.cuGraphDestroy(captured)
        self._check(error, "making a captured graph executable")
        return executable

    def _drop_capture(self, stream: Any) -> None:
        """End a capture that came to nothing; whatever broke it is being told."""
        error, captured = self._driver.cuStreamEndCapture(stream)
        if not int(error):
            self._driver.cuGraphDestroy(captured)

    def is_capturing(self) -> bool:
        """Return whether this thread's launches are noted for a graph, and not started."""
        capturing = self._capturing
        return capturing is not None and capturing.thread == threading.get_ident()

    def _handle(self, name: str = "") -> Any:
        """Return the stream for what this thread starts, the kernel `name` perhaps."""
        if self._beside and (beside := self._beside.get(threading.get_ident())) is not None:
            return beside
        capturing = self._capturing
        if capturing is None or capturing.thread != threading.get_ident():
            return self._stream_handle
        if name:
            capturing.names[name] = None
        return capturing.stream

    def _refuse_in_capture(self, what: str) -> None:
        if self.is_capturing():
            raise DeviceError(
                f"expected launches, copies and fills only while a graph is captured on {self.name}, got {what}"
            )

    # -- order -------------------------------------------------------------------------------------------

    def activate(self) -> None:
        """Make this device the calling thread's current one."""
        if getattr(_active, "runtime", None) is not self:
            self.device.set_current()
            _active.runtime = self

    def let_wait(self, stream: int | None) -> None:
        """Let another stream, given by its handle, wait for all that was started here so far.

        Parameters
        ----------
        stream : int or None
            None and 1 mean the legacy default stream, as in DLPack.
        """
        self._refuse_in_capture("another stream's wait")
        self._let_wait(self._driver.CUstream(stream or 1), self.stream.record())

    def _let_wait(self, stream: Any, event: Any) -> None:
        self.activate()
        (error,) = self._driver.cuStreamWaitEvent(stream, event.handle, 0)
        self._check(error, "waiting for an event")

    @contextmanager
    def beside(self) -> Iterator[None]:
        """Let kernels that this thread starts run after all that came before, and beside all until its `join`.

        Memory is still allocated and freed in order with all else: what these kernels use has to live until then.
        """
        self._refuse_in_capture("a kernel beside others")
        try:
            stream = self._side_streams.pop(0)
        except IndexError:
            stream = self.device.create_stream()
        thread = threading.get_ident()
        self._apart.setdefault(thread, []).append(stream)
        self._let_wait(stream.handle, self.stream.record())
        self._beside[thread] = stream.handle
        try:
            yield
        finally:
            del self._beside[thread]

    def join(self) -> None:
        """Let all that comes later wait for what this thread started beside it."""
        self._refuse_in_capture("a wait for other kernels")
        streams = self._apart.pop(threading.get_ident(), [])
        for stream in streams:
            self._let_wait(self._stream_handle, stream.record())
        self._side_streams += streams

    def is_idle(self) -> bool:
        """Return whether all that was started has ended, well or not: `synchronize` says."""
        self.activate()
        (error,) = self._driver.cuStreamQuery(self._stream_handle)
        return int(error) != NOT_READY

    def seconds_of(self, start: Callable[[], Any]) -> float:
        """Return how long the device works on what `start` starts."""
        self.synchronize()
        before = self.mark()
        start()
        after = self.mark()
        self.synchronize()
        return self.seconds_between(before, after)

    def mark(self) -> Mark:
        """Return a mark behind all that was started so far."""
        self._refuse_in_capture("a mark")
        self.activate()
        return Mark(self)

    def seconds_between(self, first: Mark, second: Mark) -> float:
        """Return the device's time between two marks that it has passed."""
        error, milliseconds = self._driver.cuEventElapsedTime(first.event, second.event)
        self._check(error, "reading the time between two events")
        return float(milliseconds) / 1e3

    def synchronize(self) -> None:
        """Wait for all that was started.

        Raises
        ------
        DeviceError
            If any of it failed; the message names the kernels that may have.
        """
        self._refuse_in_capture("a wait for the device")
        (error,) = self._driver.cuStreamSynchronize(self._stream_handle)
        self._check(error, "a kernel")
        self._recent.clear()

    def _check(self, error: Any, act: str) -> None:
        if not int(error):
            return
        started = list(dict.fromkeys(self._recent))
        if len(started) == 1:
            suspects = f"; the kernel was {started[0]}"
        elif started:
            suspects = f"; the kernel is one of {', '.join(started)} (WARPFIT_DEBUG=1 waits for each, and so names it)"
        else:
            suspects = ""
        raise KernelError(f"{act} failed on {self.name}: {_describe(error)}{suspects}")


class Mark:
    """A place in the order of what is started, whose time the device notes when it gets there."""

    __slots__ = ("_driver", "event")

    def __init__(self, runtime: Runtime) -> None:
        self._driver = runtime._driver
        error, self.event = self._driver.cuEventCreate(0)
        runtime._check(error, "making an event")
        (error,) = self._driver.cuEventRecord(self.event, runtime._stream_handle)
        runtime._check(error, "recording an event")

    def __del__(self) -> None:
        with suppress(Exception):  # of a driver that has shut down
            self._driver.cuEventDestroy(self.event)


class _Capturing(NamedTuple):
    """Who captures on which stream, and the kernels so far: the keys of `names`."""

    thread: int
    stream: Any
    names: dict[str, None]


class Graph:
    """Launches, copies and fills that were captured, and that the device repeats as they were.

    Arguments are those of the capture: what changes must change in memory.

    Attributes
    ----------
    names : dict of str to None
        The kernels, each once.
    holds : list
        What must stay alive as long as the graph; the code that captures fills it in.
    """

    def __init__(self, runtime: Runtime) -> None:
        self._runtime = runtime
        self._executable: Any = None
        self.names: dict[str, None] = {}
        self.holds: list[Any] = []

    def take(self, executable: Any) -> None:
        """Take ownership of the captured graph."""
        runtime = self._runtime
        self._executable = executable
        # The driver lets a launch that is under way end first.
        weakref.finalize(self, runtime._driver.cuGraphExecDestroy, executable).atexit = False
        (error,) = runtime._driver.cuGraphUpload(executable, runtime._stream_handle)
        runtime._check(error, "uploading a captured graph")

    def launch(self) -> None:
        """Start all of it, after what was started before."""
        runtime = self._runtime
        runtime._refuse_in_capture("the launch of a graph")
        if self._executable is None:
            raise DeviceError(
                f"expected a graph whose capture on {runtime.name} has ended, got one before its end"
            )
        runtime.activate()
        runtime._recent.extend(self.names)
        begun = None if runtime.watcher is None else runtime.watcher.begin("graph")
        (error,) = runtime._driver.cuGraphLaunch(self._executable, runtime._stream_handle)
        runtime._check(error, "launching a captured graph")
        if begun is not None:
            runtime.watcher.end(begun)
        if runtime._blocking:
            runtime.synchronize()


class _Function:
    """A loaded kernel: the driver's handle, what must stay alive for it, and whether it waits for kernels before it."""

    __slots__ = ("handle", "kernel", "name", "takes_turn")

    def __init__(self, name: str, kernel: Any, handle: Any, takes_turn: bool) -> None:
        self.name, self.kernel, self.handle, self.takes_turn = name, kernel, handle, takes_turn


def _pin(nbytes: int) -> tuple[Any, npt.NDArray[np.uint8]]:
    """Return pinned host memory, and an array over it that does not keep it alive."""
    from cuda.core import LegacyPinnedMemoryResource

    try:
        buffer = LegacyPinnedMemoryResource().allocate(nbytes)
    except Exception as error:
        raise DeviceError(f"cannot pin {_size(nbytes)} of the host's memory: {error}") from error
    place = (ctypes.c_uint8 * nbytes).from_address(int(buffer.handle))
    return buffer, np.ctypeslib.as_array(place)


class UploadBuffer:
    """Pinned host memory, and device memory of the same size that it is copied to while the device goes on.

    Each use goes round once, in this order; with two such buffers in turns, one is filled and copied while the device
    reads the other:

        await_host()   the host's side may be written to again
        send(nbytes)   the copy begins, once all that reads the device's side is done
        receive()      what is started on the device from here on finds the bytes there
        release()      all that reads them has been started

    A use may be broken off: `close` waits for a copy that is under way. Only `await_host` and `close` wait.

    Parameters
    ----------
    runtime : Runtime
    copy_stream : cuda.core.Stream
        On which copies run.
    nbytes : int
        At least 1.

    Attributes
    ----------
    host : ndarray (nbytes,) uint8
    memory : Memory
        The device's side.
    """

    def __init__(self, runtime: Runtime, copy_stream: Any, nbytes: int) -> None:
        self._runtime, self._driver, self._copy_stream = runtime, runtime._driver, copy_stream
        self.memory: Any = runtime.allocate(nbytes)
        self._pinned: Any
        self._pinned, self.host = _pin(nbytes)
        self._sent, self._released = (runtime.device.create_event() for _ in range(2))
        self.release()  # the device has the memory when it has come so far

    def await_host(self) -> None:
        """Wait until the last copy has read the host's side."""
        self._runtime.activate()
        (error,) = self._driver.cuEventSynchronize(self._sent.handle)
        self._runtime._check(error, "an upload")

    def send(self, nbytes: int) -> None:
        """Begin to copy the first bytes of the host's side."""
        runtime = self._runtime
        runtime.activate()
        stream = self._copy_stream.handle
        (error,) = self._driver.cuStreamWaitEvent(stream, self._released.handle, 0)
        runtime._check(error, "waiting for an event")
        (error,) = self._driver.cuMemcpyHtoDAsync(self.memory.pointer, self.host.ctypes.data, nbytes, stream)
        runtime._check(error, "an upload")
        self._copy_stream.record(self._sent)

    def receive(self) -> None:
        """Let what is started on the device from here on wait for the copy."""
        self._runtime.activate()
        (error,) = self._driver.cuStreamWaitEvent(self._runtime.stream.handle, self._sent.handle, 0)
        self._runtime._check(error, "waiting for an event")

    def release(self) -> None:
        """Let the next copy wait for what has been started on the device so far."""
        self._runtime.activate()
        self._runtime.stream.record(self._released)

    def close(self) -> None:
        """Give the memory back, when no copy uses it any more."""
        if self.memory is None:
            return
        self._runtime.activate()
        self._driver.cuEventSynchronize(self._sent.handle)  # a failure is reported at the next wait
        self.memory = self._pinned = None
        self.host = np.empty(0, np.uint8)


class _Staging:
    """Pinned host memory in two halves: one is filled while the copy from the other is under way.

    Threads take turns.
    """

    def __init__(self, runtime: Runtime) -> None:
        self._runtime, self._lock = runtime, threading.Lock()
        self._halves: list[tuple[Any, npt.NDArray[np.uint8], Any]] = []
        self._next = 0

    def _allocate(self) -> None:
        for _ in range(2):
            self._halves.append((*_pin(STAGING_BYTES), self._runtime.device.create_event()))

    def upload(self, pointer: int, content: npt.NDArray[np.uint8]) -> None:
        with self._lock:
            self._upload(pointer, content)

    def _upload(self, pointer: int, content: npt.NDArray[np.uint8]) -> None:
        if not self._halves:
            self._allocate()
        runtime = self._runtime
        for first in range(0, content.size, STAGING_BYTES):
            piece = content[first : first + STAGING_BYTES]
            _, place, event = self._halves[self._next]
            self._next = 1 - self._next
            event.sync()  # the copy before last, which read this half
            place[: piece.size] = piece
            (error,) = runtime._driver.cuMemcpyHtoDAsync(
                pointer + first, place.ctypes.data, piece.size, runtime._stream_handle
            )
            runtime._check(error, "an upload")
            runtime.stream.record(event)


def _size(nbytes: int) -> str:
    """Return a number of bytes in words."""
    return f"{nbytes / 2**30:.2f} GiB" if nbytes >= 2**30 else f"{nbytes / 2**20:.1f} MiB"
