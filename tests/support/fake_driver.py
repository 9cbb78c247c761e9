"""A driver and a `cuda.core` that keep device memory on the host and record what was asked of
them.
"""

# ruff: noqa: N802  (the driver's names)

from __future__ import annotations

import ctypes
import sys
import threading
from collections import Counter
from enum import IntEnum
from importlib.machinery import ModuleSpec
from types import ModuleType, SimpleNamespace
from typing import Any

import numpy as np
import pytest

from warpfit.backends.cuda import driver

__all__ = ["BLOCK", "GIB", "GRID", "FakeDriver", "Result", "function", "launch"]

GIB = 2**30
GRID, BLOCK = (4, 1, 1), (256, 1, 1)


class Result(IntEnum):
    """Error codes of the driver, by their numbers."""

    CUDA_SUCCESS = 0
    CUDA_ERROR_INVALID_VALUE = 1
    CUDA_ERROR_OUT_OF_MEMORY = 2
    CUDA_ERROR_NO_DEVICE = 100
    CUDA_ERROR_ILLEGAL_ADDRESS = 700


class FakeDriver:
    """What `cuda.bindings.driver` offers to the runtime, over host memory.

    Attributes
    ----------
    version : int
        1000 · major + 10 · minor.
    count : int
        Devices.
    init : Result
        What `cuInit` answers.
    free, total : int
        Bytes of device memory.
    reserved, used : int
        Bytes that the pool says it has, and that its arrays have.
    most_pinned : int
        Bytes of host memory that can be pinned at once.
    faulty : set of str
        Kernels that access memory that is not theirs; the next synchronisation says so.
    launched, streams : list of str, list of int
    attributes : list of dict
        Of each launch that has some: cluster size, and whether it is cooperative.
    waits, records : list of (int, str)
        Streams, and the events that they wait for, or that are recorded on them.
    copies : list of int
        The streams of copies to the device.
    maps : list of tuple
        What tensor maps were asked for.
    refuses_maps : bool
        Whether none is made.
    unreachable : set of int
        Devices that no other can write to.
    calls : Counter
    capturing : dict of int to list of str
        What each stream that captures has captured.
    mode : str
        What a thread that captures may do meanwhile.
    instantiation : Result
        What making a graph executable is answered.
    graphs : list of list of str
        What was captured, for each launch of a graph.
    """

    CUdevice_attribute = SimpleNamespace(
        CU_DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_MAJOR="major",
        CU_DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_MINOR="minor",
        CU_DEVICE_ATTRIBUTE_MULTIPROCESSOR_COUNT="multiprocessors",
        CU_DEVICE_ATTRIBUTE_MAX_SHARED_MEMORY_PER_BLOCK_OPTIN="shared",
    )
    CUfunction_attribute = SimpleNamespace(
        CU_FUNC_ATTRIBUTE_MAX_DYNAMIC_SHARED_SIZE_BYTES="dynamic shared",
        CU_FUNC_ATTRIBUTE_SHARED_SIZE_BYTES="static shared",
        CU_FUNC_ATTRIBUTE_NON_PORTABLE_CLUSTER_SIZE_ALLOWED="any cluster",
    )
    CUlaunchAttributeID = SimpleNamespace(
        CU_LAUNCH_ATTRIBUTE_CLUSTER_DIMENSION="clusterDim",
        CU_LAUNCH_ATTRIBUTE_COOPERATIVE="cooperative",
        CU_LAUNCH_ATTRIBUTE_PROGRAMMATIC_STREAM_SERIALIZATION="programmaticStreamSerializationAllowed",
    )
    CUlaunchConfig = SimpleNamespace
    CUstreamCaptureMode = SimpleNamespace(
        CU_STREAM_CAPTURE_MODE_THREAD_LOCAL="thread local", CU_STREAM_CAPTURE_MODE_RELAXED="relaxed"
    )
    CUtensorMapDataType = SimpleNamespace(
        CU_TENSOR_MAP_DATA_TYPE_FLOAT16="float16",
        CU_TENSOR_MAP_DATA_TYPE_BFLOAT16="bfloat16",
        CU_TENSOR_MAP_DATA_TYPE_FLOAT32="float32",
        CU_TENSOR_MAP_DATA_TYPE_TFLOAT32="tf32",
    )
    CUtensorMapInterleave = SimpleNamespace(CU_TENSOR_MAP_INTERLEAVE_NONE="no interleave")
    CUtensorMapSwizzle = SimpleNamespace(CU_TENSOR_MAP_SWIZZLE_128B="swizzle 128")
    CUtensorMapL2promotion = SimpleNamespace(
        CU_TENSOR_MAP_L2_PROMOTION_L2_128B="L2 128", CU_TENSOR_MAP_L2_PROMOTION_L2_256B="L2 256"
    )
    CUtensorMapFloatOOBfill = SimpleNamespace(CU_TENSOR_MAP_FLOAT_OOB_FILL_NONE="zeros")
    cuuint64_t = cuuint32_t = int

    def __init__(self) -> None:
        self.version, self.count, self.init = 13000, 1, Result.CUDA_SUCCESS
        self.free = self.total = 2 * GIB
        self.reserved = self.used = 0
        self.most_pinned = GIB
        self.faulty: set[str] = set()
        self.launched: list[str] = []
        self.streams: list[int] = []
        self.attributes: list[dict[str, Any]] = []
        self.contexts: list[int] = []
        self.waits: list[tuple[int, Any]] = []
        self.records: list[tuple[int, Any]] = []
        self.priorities: dict[int, int] = {}  # of streams
        self.copies: list[int] = []
        self.maps: list[tuple[Any, ...]] = []
        self.refuses_maps = False
        self.unreachable: set[int] = set()
        self.pending: list[int] = []  # what the next questions for the stream are answered
        self.calls: Counter[str] = Counter()
        self.capturing: dict[int, list[str]] = {}  # what streams capture
        self.mode = "thread local"  # in which a thread captures
        self._capturer = 0
        self.instantiation = Result.CUDA_SUCCESS
        self.graphs: list[list[str]] = []  # launched
        self._fault = Result.CUDA_SUCCESS

    # -- devices
    # -----------------------------------------------------------------------------------------

    def cuDriverGetVersion(self) -> tuple[Result, int]:
        return Result.CUDA_SUCCESS, self.version

    def cuInit(self, flags: int) -> tuple[Result]:
        return (self.init,)

    def cuDeviceGetCount(self) -> tuple[Result, int]:
        return Result.CUDA_SUCCESS, self.count

    def cuDeviceGet(self, index: int) -> tuple[Result, int]:
        return Result.CUDA_SUCCESS, index

    def cuDeviceGetName(self, length: int, device: int) -> tuple[Result, bytes]:
        return Result.CUDA_SUCCESS, f"Fake {device}".encode().ljust(length, b"\0")

    def cuDeviceTotalMem(self, device: int) -> tuple[Result, int]:
        return Result.CUDA_SUCCESS, self.total

    def cuDeviceGetAttribute(self, attribute: str, device: int) -> tuple[Result, int]:
        known = {"major": 9, "minor": 0, "multiprocessors": 132, "shared": 232448}
        return Result.CUDA_SUCCESS, known[attribute]

    def cuGetErrorName(self, error: int) -> tuple[Result, bytes | None]:
        known = error in set(Result)
        return Result.CUDA_SUCCESS, Result(error).name.encode() if known else None

    def cuGetErrorString(self, error: int) -> tuple[Result, bytes | None]:
        known = error in set(Result)
        return Result.CUDA_SUCCESS, f"words for {int(error)}".encode() if known else None

    # -- memory
    # ------------------------------------------------------------------------------------------

    def cuMemGetInfo(self) -> tuple[Result, int, int]:
        return Result.CUDA_SUCCESS, self.free, self.total

    def cuMemcpyHtoDAsync(
        self, target: int, source: int, nbytes: int, stream: int
    ) -> tuple[Result]:
        self.copies.append(stream)
        return self._move("HtoD", target, source, nbytes)

    def cuMemcpyDtoHAsync(
        self, target: int, source: int, nbytes: int, stream: int
    ) -> tuple[Result]:
        return self._move("DtoH", target, source, nbytes)

    def cuMemcpyDtoDAsync(
        self, target: int, source: int, nbytes: int, stream: int
    ) -> tuple[Result]:
        return self._move("DtoD", target, source, nbytes, stream)

    def _move(
        self, kind: str, target: int, source: int, nbytes: int, stream: int = 0
    ) -> tuple[Result]:
        self.calls[kind] += 1
        if self._captures(stream, kind):
            return (Result.CUDA_SUCCESS,)
        ctypes.memmove(target, source, nbytes)
        return (Result.CUDA_SUCCESS,)

    def cuMemsetD8Async(self, target: int, byte: int, nbytes: int, stream: int) -> tuple[Result]:
        if not self._captures(stream, "fill"):
            ctypes.memset(target, byte, nbytes)
        return (Result.CUDA_SUCCESS,)

    def _pin(self, nbytes: int) -> _Buffer:
        if nbytes > self.most_pinned:
            raise RuntimeError("CUDA_ERROR_OUT_OF_MEMORY: no pages")
        return _Buffer(nbytes)

    def take(self, nbytes: int) -> None:
        # As the driver's pool, where it has to grow.
        captures = self.capturing and self._capturer == threading.get_ident()
        if captures and self.mode != "relaxed":
            raise RuntimeError("CUDA_ERROR_STREAM_CAPTURE_UNSUPPORTED: not permitted")
        if nbytes > self.free:
            raise RuntimeError(
                "CUDA_ERROR_OUT_OF_MEMORY: The API call failed because it was unable to allocate"
            )
        self.free -= nbytes

    # -- kernels
    # -----------------------------------------------------------------------------------------

    def cuKernelGetFunction(self, kernel: str) -> tuple[Result, str]:
        return Result.CUDA_SUCCESS, kernel

    def cuFuncGetAttribute(self, attribute: str, function: str) -> tuple[Result, int]:
        return Result.CUDA_SUCCESS, {"static shared": 1024}[attribute]

    def cuFuncSetAttribute(self, function: str, attribute: str, value: int) -> tuple[Result]:
        self.calls[f"{attribute} {value}"] += 1
        return (Result.CUDA_SUCCESS,)

    def cuLaunchKernel(self, function: str, *settings: Any) -> tuple[Result]:
        if settings[0] == 0:  # a grid without blocks
            return (Result.CUDA_ERROR_INVALID_VALUE,)
        if len(settings) > 7 and self._captures(settings[7], function):
            return (Result.CUDA_SUCCESS,)
        self.launched.append(function)
        self.streams.append(settings[7] if len(settings) > 7 else settings[6])
        if function in self.faulty:
            self._fault = Result.CUDA_ERROR_ILLEGAL_ADDRESS
        return (Result.CUDA_SUCCESS,)

    @staticmethod
    def CUlaunchAttribute() -> SimpleNamespace:
        return SimpleNamespace(
            id=None, value=SimpleNamespace(clusterDim=SimpleNamespace(), cooperative=0)
        )

    def cuLaunchKernelEx(self, config: Any, function: str, *parameters: int) -> tuple[Result]:
        assert config.numAttrs == len(config.attrs)
        self.attributes.append({each.id: getattr(each.value, each.id) for each in config.attrs})
        return self.cuLaunchKernel(function, config.gridDimX, *(0,) * 6, config.hStream)

    def cuTensorMapEncodeTiled(self, *settings: Any) -> tuple[Result, Any]:
        if self.refuses_maps:
            return Result.CUDA_ERROR_INVALID_VALUE, None
        self.maps.append(settings)
        content = ctypes.create_string_buffer(bytes(range(128)), 128)
        return Result.CUDA_SUCCESS, SimpleNamespace(
            content=content, getPtr=lambda: ctypes.addressof(content)
        )

    def cuStreamSynchronize(self, stream: int) -> tuple[Result]:
        self.calls["synchronize"] += 1
        return (self._fault,)

    def cuEventSynchronize(self, event: Any) -> tuple[Result]:
        self.calls["event sync"] += 1
        return (self._fault,)

    def cuStreamQuery(self, stream: int) -> tuple[int]:
        return (self.pending.pop() if self.pending else int(self._fault),)

    def CUstream(self, handle: int) -> int:
        return handle

    def cuStreamWaitEvent(self, stream: int, event: Any, flags: int) -> tuple[Result]:
        self.waits.append((stream, event))
        return (Result.CUDA_SUCCESS,)

    # -- graphs
    # ------------------------------------------------------------------------------------------

    def _captures(self, stream: int, what: str) -> bool:
        if stream in self.capturing:
            self.capturing[stream].append(what)
        return stream in self.capturing

    def cuStreamBeginCapture(self, stream: int, mode: str) -> tuple[Result]:
        self.capturing[stream] = []
        self._capturer = threading.get_ident()
        return (Result.CUDA_SUCCESS,)

    def cuThreadExchangeStreamCaptureMode(self, mode: str) -> tuple[Result, str]:
        before, self.mode = self.mode, mode
        return Result.CUDA_SUCCESS, before

    def cuStreamEndCapture(self, stream: int) -> tuple[Result, list[str]]:
        return Result.CUDA_SUCCESS, self.capturing.pop(stream)

    def cuGraphInstantiate(self, graph: list[str], flags: int) -> tuple[Result, list[str]]:
        self.calls[f"graph of flags {flags}"] += 1
        return self.instantiation, graph

    def cuGraphUpload(self, graph: list[str], stream: int) -> tuple[Result]:
        self.calls["graph upload"] += 1
        return (Result.CUDA_SUCCESS,)

    def cuGraphLaunch(self, graph: list[str], stream: int) -> tuple[Result]:
        self.graphs.append(graph)
        if self.faulty & set(graph):
            self._fault = Result.CUDA_ERROR_ILLEGAL_ADDRESS
        return (Result.CUDA_SUCCESS,)

    def cuGraphDestroy(self, graph: list[str]) -> tuple[Result]:
        self.calls["graph destroyed"] += 1
        return (Result.CUDA_SUCCESS,)

    def cuGraphExecDestroy(self, graph: list[str]) -> tuple[Result]:
        self.calls["executable destroyed"] += 1
        return (Result.CUDA_SUCCESS,)

    def library(self) -> SimpleNamespace:
        """Return the driver's C functions that the runtime calls directly."""

        def device_get(place: Any, index: int) -> int:
            place._obj.value = index
            return 0 if index < self.count else 101  # CUDA_ERROR_INVALID_DEVICE

        def retain(place: Any, device: ctypes.c_int) -> int:
            self.contexts.append(device.value)
            return 0

        return SimpleNamespace(
            cuInit=lambda flags: int(self.init),
            cuDeviceGet=device_get,
            cuDevicePrimaryCtxRetain=retain,
        )

    # -- in place of the packages
    # ------------------------------------------------------------------------

    def install(self, monkeypatch: pytest.MonkeyPatch, bindings: str = "13.1.0") -> None:
        """Stand in for cuda-core and cuda-bindings of a version, and for the driver's library."""
        bindings_module = _module("cuda.bindings", driver=self, __version__=bindings, __path__=[])
        core = _module(
            "cuda.core",
            StreamOptions=SimpleNamespace,
            Device=lambda index: _Device(self, index),
            DeviceMemoryResource=lambda index: SimpleNamespace(
                allocate=lambda n, stream: _Buffer(n, self),
                peer_accessible_by=set(),
                attributes=SimpleNamespace(
                    reserved_mem_current=self.reserved, used_mem_current=self.used
                ),
            ),
            LegacyPinnedMemoryResource=lambda: SimpleNamespace(allocate=self._pin),
            ObjectCode=SimpleNamespace(
                from_cubin=lambda cubin, name: SimpleNamespace(get_kernel=_Kernel)
            ),
        )
        parent = _module("cuda", bindings=bindings_module, core=core, __path__=[])
        for module in (parent, bindings_module, core):
            monkeypatch.setitem(sys.modules, module.__name__, module)
        monkeypatch.setattr(driver, "library", lambda: self.library())


def _module(name: str, **contents: Any) -> ModuleType:
    module = ModuleType(name)
    module.__spec__ = ModuleSpec(name, None)
    vars(module).update(contents)
    return module


class _Buffer:
    """Memory on the host; counted against a driver's, if one is given, until it goes."""

    def __init__(self, nbytes: int, driver: FakeDriver | None = None) -> None:
        self._driver, self._nbytes = None, nbytes
        if driver is not None:
            driver.take(nbytes)
            self._driver = driver
        self._content = np.zeros(nbytes, np.uint8)  # no page of it is there until it is used
        self.handle = self._content.ctypes.data

    def __del__(self) -> None:
        if self._driver is not None:
            self._driver.free += self._nbytes


class _Kernel:
    def __init__(self, name: str) -> None:
        self.handle = name


class _Device:
    compute_capability = (9, 0)
    properties = SimpleNamespace(multiprocessor_count=132, max_shared_memory_per_block_optin=232448)

    def __init__(self, driver: FakeDriver, index: int) -> None:
        self._driver, self._index = driver, index
        self._num_streams = self._num_events = 0

    def set_current(self) -> None:
        self._driver.calls[f"current {self._index}"] += 1

    def can_access_peer(self, other: _Device) -> bool:
        return not {self._index, other._index} & self._driver.unreachable

    def create_stream(self, options: Any = None) -> Any:
        number = 77 + self._num_streams
        self._driver.priorities[number] = options.priority if options else 0
        self._num_streams += 1

        def record(event: Any = None) -> Any:
            event = event or SimpleNamespace(handle="event")
            self._driver.records.append((number, event.handle))
            return event

        return SimpleNamespace(handle=number, record=record)

    def create_event(self) -> Any:
        self._num_events += 1
        return SimpleNamespace(
            sync=lambda: self._driver.calls.update(["event sync"]),
            handle=f"event {self._num_events}",
        )


def function(name: str, *, takes_turn: bool = False) -> SimpleNamespace:
    """Return a kernel that was loaded."""
    return SimpleNamespace(name=name, handle=name, takes_turn=takes_turn)


def launch(device: Any, *names: str) -> None:
    """Launch kernels of these names, one after another."""
    for name in names:
        device.launch(function(name), GRID, BLOCK, 0, 0)
