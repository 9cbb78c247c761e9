"""The threads of BLAS: one, for as long as any thread of the process needs it so."""

from __future__ import annotations

import os
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from threading import Lock
from typing import Any

_lock = Lock()
_num_inside = 0
_limit: Any = None
_known: Any = None
_num_modules = 0  # that were loaded then


@contextmanager
def one_blas_thread() -> Iterator[None]:
    """Limit BLAS, of the whole process, to one thread until the last leaves this block."""
    _enter()
    try:
        yield
    finally:
        _leave()


def num_blas_threads() -> int:
    """Return how many threads BLAS may use now, at least 1."""
    libraries = _libraries().lib_controllers
    return min((lib.num_threads or 1 for lib in libraries if lib.user_api == "blas"), default=1)


def _enter() -> None:
    global _limit, _num_inside
    with _lock:
        if not _num_inside:
            _limit = _libraries().limit(limits=1, user_api="blas")
        _num_inside += 1


def _libraries() -> Any:
    """Return the BLAS libraries that are loaded. Looking for them takes some milliseconds, and
    there are others only once there are other modules.
    """
    from threadpoolctl import ThreadpoolController  # type: ignore[import-untyped]

    global _known, _num_modules
    if len(sys.modules) != _num_modules:
        _known, _num_modules = ThreadpoolController(), len(sys.modules)
    return _known


def _leave() -> None:
    global _limit, _num_inside
    with _lock:
        _num_inside -= 1
        if not _num_inside:
            _limit.restore_original_limits()
            _limit = None


def _forget_others() -> None:
    """Forget what other threads held as this process was forked."""
    global _lock, _limit, _num_inside
    if _limit is not None:
        _limit.restore_original_limits()
    _lock, _limit, _num_inside = Lock(), None, 0


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_forget_others)
