"""In what order a device works: its streams, the graphs captured there, and marks between."""

from __future__ import annotations

import gc
import threading
import weakref
from collections import deque
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager, suppress
from dataclasses import dataclass
from typing import Any

from warpfit.backends.cuda.context import Context, ThreadStream
from warpfit.backends.cuda.driver import core
from warpfit.errors import CaptureError, DeviceError

NOT_READY = 600  # CUDA_ERROR_NOT_READY
USE_NODE_PRIORITY = 8  # CUDA_GRAPH_INSTANTIATE_FLAG_USE_NODE_PRIORITY


class Streams(Context):
    """Everything runs in order on one stream, but for what is captured, started beside it, or by
    threads that have streams of their own.
    """

    watcher: Any = None

    def __init__(self, index: int) -> None:
        super().__init__(index)
        self._capture_stream: Any = None  # most runs need none
        self._capturing: _Capturing | None = None
        self._side_streams: list[Any] = []  # made when they are needed; those that no thread has
        self._apart: dict[int, list[Any]] = {}  # those that each thread has used since it joined
        self._beside: dict[int, Any] = {}  # the one on which a thread starts kernels now
        self._capture_lock = threading.Lock()
        self._unused: deque[Any] = deque()  # graphs that are to be destroyed

    # -- graphs

    @contextmanager
    def capture(self, *, allocates: bool = False) -> Iterator[Graph]:
        """Note this thread's launches, copies and fills in place of starting them; afterwards the
        graph repeats them.

        `allocates`: what is allocated meanwhile stays alive as long as the graph. Other threads go
        on as ever, but those that want to capture, too, wait.

        Raises
        ------
        DeviceError
            If the thread tries anything else meanwhile: to allocate, unless it may, load, upload,
            download or wait. The message says what.
        KernelError
            If the driver does not take what was captured.
        """
        self._refuse_in_capture("another capture")
        self.activate()
        graph = Graph(self)
        # Memory of the host that is freed meanwhile would end the capture, so nothing may be found
        # to be garbage.
        with self._capture_lock, _collecting.held_off():
            try:
                stream = self._begin_capture()
                held = graph.holds if allocates else None
                self._capturing = _Capturing(threading.get_ident(), stream, graph.names, held)
                try:
                    yield graph
                except BaseException:
                    self._drop_capture(stream)
                    raise
                graph.take(self._end_capture(stream))
            finally:
                self._capturing = None
                self._destroy_unused()

    def _begin_capture(self) -> Any:
        # Of its own: memory may be freed on the other stream meanwhile.
        if self._capture_stream is None:
            self._capture_stream = self.device.create_stream()
        handle = self._capture_stream.handle
        mode = self._driver.CUstreamCaptureMode.CU_STREAM_CAPTURE_MODE_THREAD_LOCAL
        (error,) = self._driver.cuStreamBeginCapture(handle, mode)
        self._check(error, "beginning a capture")
        return handle

    @contextmanager
    def _growing_in_capture(self) -> Iterator[None]:
        """Let the pool take more memory, which the driver refuses to a thread that captures."""
        error, mode = self._driver.cuThreadExchangeStreamCaptureMode(
            self._driver.CUstreamCaptureMode.CU_STREAM_CAPTURE_MODE_RELAXED
        )
        self._check(error, "relaxing a capture")
        try:
            yield
        finally:
            self._driver.cuThreadExchangeStreamCaptureMode(mode)

    def _end_capture(self, stream: Any) -> Any:
        """Return what was captured as the device runs it."""
        driver = self._driver
        error, captured = driver.cuStreamEndCapture(stream)
        self._check(error, "a capture")
        error, executable = driver.cuGraphInstantiate(captured, USE_NODE_PRIORITY)
        driver.cuGraphDestroy(captured)
        self._check(error, "making a captured graph executable")
        return executable

    def _drop_capture(self, stream: Any) -> None:
        """End a capture that came to nothing; whatever broke it is being told."""
        error, captured = self._driver.cuStreamEndCapture(stream)
        if not int(error):
            self._driver.cuGraphDestroy(captured)

    def _give_up(self, executable: Any) -> None:
        """Destroy a graph; after a capture of any thread, which the driver might end else."""
        self._unused.append(executable)
        if self._capture_lock.acquire(blocking=False):
            try:
                self._destroy_unused()
            finally:
                self._capture_lock.release()

    def _destroy_unused(self) -> None:
        with suppress(IndexError):
            while True:
                self._driver.cuGraphExecDestroy(self._unused.popleft())

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
            raise CaptureError(
                "expected launches, copies and fills only while a graph is captured on "
                f"{self.name}, got {what}"
            )

    # -- order

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
        """Let kernels that this thread starts run after all that came before, and beside all until
        its `join`.

        Memory is still allocated and freed in order with all else: what these kernels use has to
        live until then.
        """
        self._refuse_in_capture("a kernel beside others")
        stream, thread = self._side_stream(), threading.get_ident()
        self._apart.setdefault(thread, []).append(stream)
        self._beside[thread] = stream.handle
        try:
            yield
        finally:
            del self._beside[thread]

    def _side_stream(self) -> Any:
        """Return a stream that nobody has, behind all that this thread has started so far."""
        try:
            stream = self._side_streams.pop(0)
        except IndexError:
            stream = self.device.create_stream()
        self._let_wait(stream.handle, self.stream.record())
        return stream

    @contextmanager
    def own_stream(self, waiting: Callable[[], AbstractContextManager[None]]) -> Iterator[None]:
        """Let all that this thread starts in this block run on a stream of its own: after all that
        was started on the device's before, and before all that is started there afterwards.

        Memory comes from the pool, and goes back to it, in the order of the stream on which it was
        allocated. While the thread waits for its stream, it is in a context of `waiting`.
        """
        self._refuse_in_capture("a stream of a thread's own")
        self.activate()
        stream, thread = self._side_stream(), threading.get_ident()
        self._own_streams[thread] = ThreadStream(stream, stream.handle, waiting)
        try:
            yield
        finally:
            del self._own_streams[thread]
            self._let_wait(self._stream_handle, stream.record())
            self._side_streams.append(stream)

    def hand_over(self) -> None:
        """Let what comes later on the device's stream wait for what this thread started."""
        self._let_wait(self._shared_stream.handle, self.stream.record())

    def join(self) -> None:
        """Let all that comes later wait for what this thread started beside it."""
        self._refuse_in_capture("a wait for other kernels")
        streams = self._apart.pop(threading.get_ident(), [])
        for stream in streams:
            self._let_wait(self._stream_handle, stream.record())
        self._side_streams += streams

    def fork(self, stream: Any = None) -> Any:
        """Return a stream, this or a new one, that waits for all that this thread has started so
        far; in a capture it becomes part of that. Its blocks come before those of other streams.
        """
        self.activate()
        if stream is None:
            stream = self.device.create_stream(options=core().StreamOptions(priority=-1))
        self._let_wait(stream.handle, self._started_on.record())
        return stream

    def merge(self, place: Any) -> None:
        """Let what this thread starts later wait for a `record()` of a stream that it forked."""
        self.activate()
        self._let_wait(self._started_on.handle, place)
        if self._capturing is not None and self.is_capturing():
            self._capturing.is_merged = True

    def _was_merged(self) -> bool:
        """Return whether a kernel captured now waits for more than the one before it."""
        was, self._capturing.is_merged = self._capturing.is_merged, False  # type: ignore[union-attr]
        return was

    @property
    def _started_on(self) -> Any:
        """The stream of what this thread starts, but for kernels beside others."""
        return self._capture_stream if self.is_capturing() else self.stream

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
        own = self.thread_stream
        with own.waiting():
            (error,) = self._driver.cuStreamSynchronize(own.handle)
        self._check(error, "a kernel")
        self._recent.clear()


class _Collecting:
    """Whether garbage is collected, which threads that capture on several devices hold off."""

    def __init__(self) -> None:
        self._lock, self._num_inside, self._was_on = threading.Lock(), 0, False

    @contextmanager
    def held_off(self) -> Iterator[None]:
        """Let nothing be found to be garbage in this block, nor in those of other threads."""
        with self._lock:
            if not self._num_inside:
                self._was_on = gc.isenabled()
                gc.disable()
            self._num_inside += 1
        try:
            yield
        finally:
            with self._lock:
                self._num_inside -= 1
                if not self._num_inside and self._was_on:
                    gc.enable()


_collecting = _Collecting()


class Mark:
    """A place in the order of what is started, whose time the device notes when it gets there."""

    __slots__ = ("_driver", "event")

    def __init__(self, runtime: Streams) -> None:
        self._driver = runtime._driver
        error, self.event = self._driver.cuEventCreate(0)
        runtime._check(error, "making an event")
        (error,) = self._driver.cuEventRecord(self.event, runtime._stream_handle)
        runtime._check(error, "recording an event")

    def __del__(self) -> None:
        with suppress(Exception):  # of a driver that has shut down
            self._driver.cuEventDestroy(self.event)


@dataclass
class _Capturing:
    """Who captures on which stream, the kernels so far, as the keys of `names`, what is allocated
    meanwhile, None if nothing may be, and whether the next kernel waits for another stream, too.
    """

    thread: int
    stream: Any
    names: dict[str, None]
    held: list[Any] | None = None
    is_merged: bool = False


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

    def __init__(self, runtime: Streams) -> None:
        self._runtime = runtime
        self._executable: Any = None
        self.names: dict[str, None] = {}
        self.holds: list[Any] = []

    def take(self, executable: Any) -> None:
        """Take ownership of the captured graph."""
        runtime = self._runtime
        self._executable = executable
        # The driver lets a launch that is under way end first.
        weakref.finalize(self, runtime._give_up, executable).atexit = False
        (error,) = runtime._driver.cuGraphUpload(executable, runtime._stream_handle)
        runtime._check(error, "uploading a captured graph")

    def launch(self) -> None:
        """Start all of it, after what was started before."""
        runtime = self._runtime
        runtime._refuse_in_capture("the launch of a graph")
        if self._executable is None:
            raise DeviceError(
                f"expected a graph whose capture on {runtime.name} has ended, got one before its "
                "end"
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
