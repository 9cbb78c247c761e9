"""Threads that train networks, and how Ctrl-C reaches them."""

from __future__ import annotations

import ctypes
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import Executor, Future, ThreadPoolExecutor
from contextlib import contextmanager
from queue import SimpleQueue
from threading import Event, Lock, Thread, get_ident, local
from typing import Any

# Of each thread of `DeviceThreads` its device.
_own = local()


class Stop(Event):
    """Tells threads to stop. Those at work get a KeyboardInterrupt, as the main thread does on
    Ctrl-C.
    """

    def __init__(self) -> None:
        super().__init__()
        self._at_work: set[int] = set()
        self._lock = Lock()

    def set(self) -> None:
        """Stop them; each is interrupted once, wherever it is."""
        super().set()
        with self._lock:
            while self._at_work:
                _raise_in(self._at_work.pop(), KeyboardInterrupt)

    def begin(self) -> None:
        """Let the thread that calls be interrupted.

        Raises
        ------
        KeyboardInterrupt
            If it comes too late.
        """
        with self._lock:
            if self.is_set():
                raise KeyboardInterrupt
            self._at_work.add(get_ident())

    def end(self) -> None:
        """Let it be interrupted no more, not even by what is pending."""
        with self._lock:
            self._at_work.discard(get_ident())
            _raise_in(get_ident(), None)


def _raise_in(ident: int, error: type[BaseException] | None) -> None:
    """Have an exception raised in a thread when it next runs Python; None takes it back."""
    ctypes.pythonapi.PyThreadState_SetAsyncExc(
        ctypes.c_ulong(ident), None if error is None else ctypes.py_object(error)
    )


@contextmanager
def heard(stop: Event | None) -> Iterator[None]:
    """Let a `Stop` interrupt the thread in this block."""
    if not isinstance(stop, Stop):
        yield
        return
    stop.begin()
    try:
        yield
    finally:
        stop.end()


def stop_of(executor: Executor) -> Event | None:
    """Return what tells an executor's workers that they are to stop, if it can: Ctrl-C does not
    reach threads.
    """
    return Stop() if isinstance(executor, ThreadPoolExecutor | DeviceThreads) else None


def is_set(stop: Event | None) -> bool:
    return stop is not None and stop.is_set()


class DeviceThreads(Executor):
    """A thread for each device, which takes the next call when it has done one.

    For those of ThreadPoolExecutor the interpreter waits at its end, also after a second Ctrl-C.
    """

    def __init__(self, devices: Sequence[str]) -> None:
        self._calls: SimpleQueue[tuple[Future[Any], Callable[[], Any]] | None] = SimpleQueue()
        self._max_workers = len(devices)
        self._threads = [
            Thread(target=self._work, args=(device,), daemon=True) for device in devices
        ]
        try:
            for thread in self._threads:
                thread.start()
        except BaseException:  # Ctrl-C: those that were started would wait for calls for ever
            self.shutdown(wait=False)
            raise

    def submit(self, function: Any, /, *args: Any, **kwargs: Any) -> Future[Any]:
        future: Future[Any] = Future()
        self._calls.put((future, lambda: function(*args, **kwargs)))
        return future

    def shutdown(self, wait: bool = True, *, cancel_futures: bool = False) -> None:
        for _ in self._threads:
            self._calls.put(None)
        for thread in self._threads if wait else ():
            thread.join()

    def _work(self, device: str) -> None:
        _own.device = device
        while (call := self._calls.get()) is not None:
            future, function = call
            if not future.set_running_or_notify_cancel():
                continue
            try:
                future.set_result(function())
            except BaseException as error:
                future.set_exception(error)


def own_device() -> str | None:
    """Return the device of the thread that calls, if it is one of `DeviceThreads`."""
    return getattr(_own, "device", None)
