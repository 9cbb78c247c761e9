"""The CUDA backend's runtime, with kernels that run on the CPU."""

from __future__ import annotations

import ctypes
import ctypes.util
import functools
import os
import re
import struct
import weakref
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, ExitStack, contextmanager, nullcontext
from dataclasses import dataclass
from functools import partial
from math import prod
from pathlib import Path
from threading import Lock, get_ident, local
from time import perf_counter, sleep
from typing import Any

import numpy as np

from emulator.build import build, build_scheduler
from emulator.sanitized import is_sanitized
from warpfit.backends.cuda.cards import shared_bytes_of
from warpfit.backends.cuda.jit import path_of
from warpfit.backends.cuda.launch import parameter_formats
from warpfit.backends.cuda.memory import SharedMemory
from warpfit.backends.cuda.resident_arguments import ARGUMENTS
from warpfit.backends.cuda.runtime import check_image_map, check_tensor_map
from warpfit.backends.cuda.signatures import SIGNATURES
from warpfit.errors import CaptureError, DeviceError

__all__ = ["EmulatedGraph", "EmulatedRuntime", "EmulatedUploadBuffer", "Memory", "SharedLaunch"]

ALIGNMENT = 256
POISON = 0xFF
MOST_WATCHED = 1 << 20
TENSOR_MAP = struct.Struct("=QQQQQIIII8I40x")  # as fibers.h has it
TENSOR_MAP_MARK = 0x70616D5F726F736E
Dimensions = tuple[int, int, int]
Shape3, Shape4 = tuple[int, int, int], tuple[int, int, int, int]


# One kernel runs at a time.
_RUNNING = Lock()

# Memory that has not been freed, by its address.
_LIVE: dict[int, weakref.ref[Memory]] = {}


class Memory:
    """Bytes of emulated device memory, freed with the object.

    Attributes
    ----------
    pointer : int
        The address of the first byte, a multiple of 256.
    """

    def __init__(self, nbytes: int) -> None:
        self._free, self._forget = _c_library().free, _LIVE.pop
        address = ctypes.c_void_p()
        if (
            _c_library().posix_memalign(ctypes.byref(address), ALIGNMENT, nbytes) != 0
            or not address.value
        ):
            raise DeviceError(f"expected {nbytes} bytes of memory, got none")
        self.pointer: int = address.value
        self.nbytes = nbytes
        ctypes.memset(self.pointer, POISON, nbytes)
        _LIVE[self.pointer] = weakref.ref(self)

    def __del__(self) -> None:
        if hasattr(self, "pointer"):
            self._forget(self.pointer)
            self._free(self.pointer)


class EmulatedUploadBuffer:
    """The CUDA backend's ``UploadBuffer``, whose copies come as late as they may, and which tells
    misuse.

    Between ``send`` and ``receive`` all bytes of the device's side are 0xFF.
    """

    def __init__(self, nbytes: int) -> None:
        self.memory: Any = Memory(nbytes)
        self.host = np.full(nbytes, POISON, np.uint8)
        self._sent = np.empty(0, np.uint8)
        self._is_awaited, self._step = True, "release"

    def await_host(self) -> None:
        """Return at once: the copy has read the host's side."""
        self._check_host()
        self._is_awaited = True

    def send(self, nbytes: int) -> None:
        """Begin a copy."""
        self._take_turn("send", after="release")
        if not self._is_awaited:
            raise DeviceError("expected await_host between two sends of an upload buffer, got none")
        ctypes.memset(self.memory.pointer, POISON, self.memory.nbytes)
        self._sent, self._is_awaited = self.host[:nbytes].copy(), False

    def receive(self) -> None:
        """End the copy."""
        self._take_turn("receive", after="send")
        self._check_host()
        ctypes.memmove(self.memory.pointer, _address(self._sent), self._sent.nbytes)

    def release(self) -> None:
        """Let the next copy begin."""
        self._take_turn("release", after="receive")

    def close(self) -> None:
        """Give the memory back."""
        self.memory, self.host = None, np.empty(0, np.uint8)

    def _take_turn(self, step: str, after: str) -> None:
        if self._step != after:
            raise DeviceError(
                f"expected {step} of an upload buffer after {after}, got it after {self._step}"
            )
        self._step = step

    def _check_host(self) -> None:
        if not self._is_awaited and not np.array_equal(self.host[: self._sent.size], self._sent):
            raise DeviceError(
                "expected the host's side to stay as it is until await_host, got it changed"
            )


class EmulatedGraph:
    """Launches, copies and fills as they were captured; kernels with copies of their arguments.

    A launch is refused once memory that any argument pointed to has been freed.

    Attributes
    ----------
    nodes : list of (str, function)
        What is run, and its name: a kernel's, ``"copy"`` or ``"fill"``.
    holds : list
        As `Graph`'s.
    num_launches : int
    """

    def __init__(self, runtime: Any = None) -> None:
        self._runtime = runtime
        self.nodes: list[tuple[str, Callable[[], None]]] = []
        self.holds: list[Any] = []
        self.is_ready, self.num_launches = False, 0
        self._used: dict[int, tuple[str, weakref.ref[Memory]]] = {}

    def note(self, name: str, run: Callable[[], Any], *addresses: int) -> None:
        """Take up what is run, and the memory at those of the addresses that have any."""
        self.nodes.append((name, run))
        for memory in _memory_at(np.array(addresses, np.uint64)):
            self._used.setdefault(memory.pointer, (name, weakref.ref(memory)))

    def launch(self) -> None:
        """Run all of it."""
        if not self.is_ready:
            raise DeviceError("expected a graph whose capture has ended, got one before its end")
        for name, memory in self._used.values():
            if memory() is None:
                raise DeviceError(
                    f"expected the memory of a graph to be there, got that of {name} freed"
                )
        self.num_launches += 1
        watcher = getattr(self._runtime, "watcher", None)
        begun = None if watcher is None else watcher.begin("graph")
        for _, run in self.nodes:
            run()
        if begun is not None:
            watcher.end(begun)


@dataclass(frozen=True, eq=False)
class _ThreadStream:
    waiting: Callable[[], AbstractContextManager[None]]


class EmulatedRuntime:
    """Loads kernels compiled by g++ and runs them in this process, one thread after another.

    Parameters
    ----------
    reverse : bool, optional
        Run blocks and threads from the last to the first; unless told, where
        $WARPFIT_EMULATE_REVERSED is set.
    sanitize : bool, optional
        Compile with AddressSanitizer and UndefinedBehaviorSanitizer; unless told, in processes that
        can load such kernels (:mod:`emulator.sanitized`).
    late_writes : bool, optional
        Let other blocks see what a block writes as late as CUDA lets them (late_writes.cpp), in
        arrays of up to `MOST_WATCHED` bytes; unless told, where the order is reversed, too.
    late_warp : (int, int) or None
        A block, among those that run at once, and one of its warps that runs only where no other
        warp of theirs can go on.
    num_multiprocessors : int
        What the emulated device says it has.
    arch : str
        What it says it is: kernels take what stands in for the instructions that it lacks.
    folder : Path or None
        Where kernels are looked for before the package's own.
    """

    name = card = "emulator"
    watcher: Any = None

    def __init__(
        self,
        *,
        reverse: bool | None = None,
        sanitize: bool | None = None,
        late_writes: bool | None = None,
        late_warp: tuple[int, int] | None = None,
        num_multiprocessors: int = 4,
        arch: str = "sm_90a",
        folder: Path | None = None,
    ) -> None:
        self.num_multiprocessors = num_multiprocessors
        self.arch, self.max_shared_bytes = arch, shared_bytes_of(arch)
        self._reverse = "WARPFIT_EMULATE_REVERSED" in os.environ if reverse is None else reverse
        self._sanitize = is_sanitized() if sanitize is None else sanitize
        self._late_writes = self._reverse if late_writes is None else late_writes
        self._late_warp = late_warp
        self._folder = folder
        self._capturing = local()  # its `graph` is the one that a thread captures
        self._shared_stream = _ThreadStream(nullcontext)
        self._own_streams: dict[int, _ThreadStream] = {}  # by threads

    @property
    def _graph(self) -> EmulatedGraph | None:
        return getattr(self._capturing, "graph", None)

    def memory_info(self) -> tuple[int, int]:
        """Return free and total memory, in bytes, of a device that has 64 GiB."""
        return 1 << 36, 1 << 36

    def memory_left(self) -> int:
        """Return the bytes that new arrays can take."""
        return self.memory_info()[0]

    def create_upload_buffer(self, nbytes: int) -> EmulatedUploadBuffer:
        """Return host memory with its counterpart on the device."""
        self._refuse_in_capture("a buffer for uploads")
        return EmulatedUploadBuffer(nbytes)

    def allocate(self, nbytes: int) -> Memory:
        """Return memory of exactly ``nbytes`` bytes, all 0xFF."""
        if not getattr(self._capturing, "allocates", False):
            self._refuse_in_capture(f"an allocation of {nbytes} bytes")
        memory = Memory(nbytes)
        if self._graph is not None:
            self._graph.holds.append(memory)
        return memory

    def share(self, nbytes: int) -> SharedMemory:
        """Return zeros that host and device both see."""
        self._refuse_in_capture("memory shared with the host")
        memory = Memory(nbytes)
        host = np.ctypeslib.as_array((ctypes.c_uint8 * nbytes).from_address(memory.pointer))
        host[:] = 0
        return SharedMemory(host, memory.pointer, memory)

    def upload(self, pointer: int, host: np.ndarray) -> None:
        """Copy a C-contiguous array's bytes to the device."""
        self._refuse_in_capture(f"an upload of {host.nbytes} bytes")
        ctypes.memmove(pointer, _address(host), host.nbytes)

    def download(self, host: np.ndarray, pointer: int) -> None:
        """Fill a C-contiguous array with bytes from the device."""
        self._refuse_in_capture(f"a download of {host.nbytes} bytes")
        ctypes.memmove(_address(host), pointer, host.nbytes)
        self._await()

    def copy(self, target: int, source: int, nbytes: int) -> None:
        """Copy bytes from one place of the device to another."""
        self._run("copy", partial(ctypes.memmove, target, source, nbytes), target, source)

    def fill(self, pointer: int, nbytes: int, byte: int = 0, *, at_once: bool = False) -> None:
        """Set bytes of the device to one value."""
        fill = partial(ctypes.memset, pointer, byte, nbytes)
        if at_once:
            fill()
        else:
            self._run("fill", fill, pointer)

    @contextmanager
    def capture(self, *, allocates: bool = False) -> Iterator[EmulatedGraph]:
        """Note launches, copies and fills in place of running them."""
        self._refuse_in_capture("another capture")
        self._capturing.graph = graph = EmulatedGraph(self)
        self._capturing.allocates = allocates
        try:
            yield graph
        finally:
            self._capturing.graph, self._capturing.allocates = None, False
        graph.is_ready = True

    def _run(self, name: str, node: Callable[[], Any], *addresses: int) -> None:
        if self._graph is None:
            node()
        else:
            self._graph.note(name, node, *addresses)

    def _refuse_in_capture(self, what: str) -> None:
        if self._graph is not None:
            raise CaptureError(
                "expected launches, copies and fills only while a graph is captured on "
                f"{self.name}, got {what}"
            )

    def is_idle(self) -> bool:
        """Return True: launches are complete when they return."""
        return True

    def beside(self) -> AbstractContextManager[None]:
        """Kernels have ended when they are started."""
        return nullcontext()

    def join(self) -> None:
        """Likewise."""

    def waiting_for_others(self) -> AbstractContextManager[None]:
        """Likewise."""
        return nullcontext()

    def hand_over(self) -> None:
        """Likewise."""

    @contextmanager
    def own_stream(self, waiting: Callable[[], AbstractContextManager[None]]) -> Iterator[None]:
        """Let this thread be in a context of `waiting` wherever it waits for the device."""
        self._own_streams[get_ident()] = _ThreadStream(waiting)
        try:
            yield
        finally:
            del self._own_streams[get_ident()]

    @property
    def thread_stream(self) -> _ThreadStream:
        """The calling thread's own, or the one that all others share."""
        return self._own_streams.get(get_ident(), self._shared_stream)

    def _await(self) -> None:
        if (own := self.thread_stream) is not self._shared_stream:
            with own.waiting():
                sleep(0.001)  # so that other threads go on

    def is_capturing(self) -> bool:
        """Return whether launches are noted for a graph."""
        return self._graph is not None

    def seconds_of(self, start: Callable[[], Any]) -> float:
        """Return how long `start` takes."""
        begin = self.mark()
        start()
        return self.seconds_between(begin, self.mark())

    def mark(self) -> float:
        """Return the time: launches are complete when they return."""
        self._refuse_in_capture("a mark")
        return perf_counter()

    def seconds_between(self, first: float, second: float) -> float:
        """Return the time between two marks."""
        return second - first

    def synchronize(self) -> None:
        """Return at once: launches are complete when they return."""
        self._refuse_in_capture("a wait for the device")
        self._await()

    def compile_ahead(self, kernels: Any) -> None:
        """Do nothing: a kernel is built when it is loaded."""

    def load(self, name: str, defines: tuple[tuple[str, str], ...]) -> Any:
        """Return the kernel ``name`` compiled with these preprocessor definitions."""
        self._refuse_in_capture(f"loading {name}")
        own = self._folder and self._folder / f"{name}.cu"
        source = own if own and own.exists() else path_of(name)
        macros = {**dict(defines), "__CUDA_ARCH__": f"{re.sub('[^0-9]', '', self.arch)}0"}
        function = _load(build(source, name, macros, sanitize=self._sanitize))
        function.variant = (name, defines)
        return function

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
        """Return what tells emulated tensor copies of a matrix."""
        itemsize = check_tensor_map(
            pointer, dtype_name, rows, columns, leading_dimension, box_rows, box_columns
        )
        row_bytes, is_tf32 = leading_dimension * itemsize, dtype_name == "tf32"
        return TENSOR_MAP.pack(
            TENSOR_MAP_MARK,
            pointer,
            rows,
            columns,
            row_bytes,
            box_rows,
            box_columns,
            itemsize,
            is_tf32,
            *(0,) * 8,
        )

    def image_map(
        self, pointer: int, dtype_name: str, shape: Shape4, box: Shape3, steps: tuple[int, int]
    ) -> bytes:
        """Return what tells emulated tensor copies of images."""
        itemsize = check_image_map(pointer, dtype_name, shape, box, steps)
        rows, channels = prod(shape[:3]), shape[3]
        of_matrix = (rows, channels, channels * itemsize, prod(box), 128 // itemsize, itemsize, 0)
        return TENSOR_MAP.pack(TENSOR_MAP_MARK, pointer, *of_matrix, *shape[:3], *box, *steps)

    def launch(
        self, function: Any, grid: Dimensions, block: Dimensions, shared_bytes: int, parameters: int
    ) -> None:
        """Run a kernel to its end: :meth:`launch_cluster` without clusters."""
        self.launch_cluster(function, grid, block, shared_bytes, parameters, 1, False)

    def launch_cluster(
        self,
        function: Any,
        grid: Dimensions,
        block: Dimensions,
        shared_bytes: int,
        parameters: int,
        cluster: int,
        is_cooperative: bool,
    ) -> None:
        """Run a kernel whose blocks form clusters, or take turns, to its end.

        Parameters
        ----------
        function : Any
            What :meth:`load` returned.
        grid, block : tuple of three int
            Blocks in the grid, threads in a block.
        shared_bytes : int
            Dynamic shared memory of a block.
        parameters : int
            The address of an array of pointers to the arguments.
        cluster : int
            Blocks along x that form a cluster, 1, 2, 4, 8 or 16.
        is_cooperative : bool
            Whether all blocks take turns, as those of a cluster do.

        Raises
        ------
        DeviceError
            The launch exceeds a limit, or the kernel broke a rule: a barrier that not all threads
            reach, say.
        """
        settings = grid, block, shared_bytes, cluster, is_cooperative
        if self._graph is None:
            self._call(function, parameters, *settings)
        else:
            name = function.variant[0]
            arguments = _copied(name, parameters)
            node = partial(self._call_captured, function, arguments, *settings)
            self._graph.note(name, node, *_words(arguments))

    def _call_captured(self, function: Any, arguments: list[bytes], *settings: Any) -> None:
        with _placed(arguments) as places:
            self._call(function, places, *settings)

    def _call(
        self,
        function: Any,
        parameters: int,
        grid: Dimensions,
        block: Dimensions,
        shared_bytes: int,
        cluster: int,
        is_cooperative: bool,
    ) -> None:
        self._call_on_cards(
            function, [parameters], grid, block, shared_bytes, cluster, is_cooperative
        )

    def _call_on_cards(
        self,
        function: Any,
        parameters: list[int],
        grid: Dimensions,
        block: Dimensions,
        shared_bytes: int,
        cluster: int,
        is_cooperative: bool,
    ) -> None:
        """Run a kernel that cards launch together, each with its own arguments."""
        sizes, of_cards = ctypes.c_uint * 3, (ctypes.c_void_p * len(parameters))(*parameters)
        settings = shared_bytes, of_cards, len(parameters), cluster, is_cooperative, self._reverse
        watched = _watched(function, parameters) if self._late_writes else nullcontext()
        with _RUNNING, watched:
            _scheduler().emulator_be_late(*(self._late_warp or (-1, -1)))
            failed = function(sizes(*grid), sizes(*block), *settings)
            if failed:
                raise DeviceError(_scheduler().emulator_error().decode())


class SharedLaunch:
    """A launch of several cards, which begins when all have asked for it.

    Parameters
    ----------
    count : int
    """

    def __init__(self, count: int) -> None:
        self.count = count
        self._arguments: list[list[bytes]] = []
        self._held: list[Any] = []  # memory that those who asked may have given back

    def join(
        self, runtime: EmulatedRuntime, function: Any, parameters: int, *settings: Any
    ) -> None:
        """Take a card's arguments; the last one's call runs the kernel on all."""
        arguments = _copied(function.variant[0], parameters)
        self._held += _memory_at(np.array(_words(arguments), np.uint64))
        self._arguments.append(arguments)
        if len(self._arguments) < self.count:
            return
        of_cards, self._arguments = self._arguments, []
        with ExitStack() as placed:
            places = [placed.enter_context(_placed(own)) for own in of_cards]
            runtime._call_on_cards(function, places, *settings)
        self._held.clear()


@contextmanager
def _watched(function: Any, parameters: list[int]) -> Iterator[None]:
    """Let writes to memory be late that is not large, and that the arguments of cards lead to."""
    name = function.variant[0]
    if name in ARGUMENTS or name in SIGNATURES:
        words = [word for place in parameters for word in _words(_copied(name, place))]
        found = _reached(words)
    else:
        found = _live()
    found = [memory for memory in found if memory.nbytes <= MOST_WATCHED]
    begins = (ctypes.c_void_p * len(found))(*(memory.pointer for memory in found))
    nbytes = (ctypes.c_ulonglong * len(found))(*(memory.nbytes for memory in found))
    _scheduler().emulator_watch(begins, nbytes, len(found))
    try:
        yield
    finally:
        _scheduler().emulator_watch(None, None, 0)


def _reached(words: list[int]) -> list[Memory]:
    """Return the memory that words are addresses in, and what lies in such memory."""
    found: dict[int, Memory] = {}
    addresses = np.array(words, np.uint64)
    while fresh := [each for each in _memory_at(addresses) if each.pointer not in found]:
        found.update((each.pointer, each) for each in fresh)
        addresses = np.concatenate([*map(_contents, fresh)])
    return list(found.values())


def _contents(memory: Memory) -> np.ndarray:
    """Return the words of 8 bytes of memory that is not large."""
    count = memory.nbytes // 8 if memory.nbytes <= MOST_WATCHED else 0
    return np.ctypeslib.as_array((ctypes.c_uint64 * count).from_address(memory.pointer))


def _copied(name: str, parameters: int) -> list[bytes]:
    """Return the arguments of a kernel, given the address of the array of their addresses."""
    sizes = [struct.calcsize(kind) for kind in parameter_formats(name)]
    places = (ctypes.c_void_p * len(sizes)).from_address(parameters)
    return [ctypes.string_at(place, size) for place, size in zip(places, sizes, strict=True)]


@contextmanager
def _placed(arguments: list[bytes]) -> Iterator[int]:
    """Give the address of an array of addresses of arguments."""
    places = (ctypes.c_void_p * max(len(arguments), 1))()
    held = [_aligned(argument) for argument in arguments]
    places[: len(held)] = [place for place, _ in held]
    yield ctypes.addressof(places)


def _live() -> list[Memory]:
    """Return the memory that has not been freed, by its addresses."""
    places = map(_LIVE.get, sorted(_LIVE))  # some may be freed meanwhile
    return [memory for place in places if place and (memory := place())]


def _memory_at(addresses: np.ndarray) -> list[Memory]:
    """Return the memory that any of the addresses are in."""
    live = _live()
    begins = np.array([memory.pointer for memory in live], np.uint64)
    ends = begins + np.array([memory.nbytes for memory in live], np.uint64)
    places = np.searchsorted(begins, addresses, "right")
    within = addresses < np.append(ends, np.uint64(0))[places - 1]
    return [live[place - 1] for place in np.unique(places[within]) if place]


def _words(arguments: list[bytes]) -> list[int]:
    """Return all words of 8 bytes of the arguments, addresses among them."""
    return [
        word
        for argument in arguments
        for (word,) in struct.iter_unpack("Q", argument[: len(argument) // 8 * 8])
    ]


def _aligned(argument: bytes) -> tuple[int, Any]:
    """Return the address of a copy of an argument, a multiple of 16, and what keeps it there."""
    buffer = ctypes.create_string_buffer(len(argument) + 16)
    place = -(-ctypes.addressof(buffer) // 16) * 16
    ctypes.memmove(place, argument, len(argument))
    return place, buffer


def _address(host: np.ndarray) -> int:
    if not host.flags.c_contiguous:
        raise DeviceError(
            f"expected a C-contiguous array, got strides {host.strides} for shape {host.shape}"
        )
    return host.ctypes.data


@functools.cache
def _c_library() -> ctypes.CDLL:
    library = ctypes.CDLL(None)
    library.free.argtypes = [ctypes.c_void_p]
    library.posix_memalign.argtypes = [ctypes.c_void_p, ctypes.c_size_t, ctypes.c_size_t]
    return library


@functools.cache
def _scheduler() -> ctypes.CDLL:
    library = ctypes.CDLL(str(build_scheduler()))
    library.emulator_error.restype = ctypes.c_char_p
    return library


@functools.cache
def _load(library: Path) -> Any:
    launch = ctypes.CDLL(str(library)).emulator_launch
    launch.argtypes = [
        ctypes.c_void_p,
        ctypes.c_void_p,
        ctypes.c_ulonglong,
        ctypes.c_void_p,
        ctypes.c_uint,
        ctypes.c_uint,
        ctypes.c_int,
        ctypes.c_int,
    ]
    return launch
