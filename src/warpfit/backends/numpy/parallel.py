"""Parts of an operation by several threads at once, as many as BLAS may use.

A part is computed by one thread, with one thread of BLAS, and what the parts are depends on shapes
alone. So its numbers do not depend on how many threads there are. NumPy lets others run while it
computes; threads wait for each other only between two of its calls.

Threads of BLAS itself go on looking for work for some time after a product, on cores that others
need. So a run has none of them: large products are parts, too.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import ExitStack, contextmanager, suppress
from contextvars import ContextVar, copy_context
from functools import cache
from threading import Lock
from typing import Any, TypeVar

import numpy as np

from warpfit.backends.base import Array
from warpfit.blas import num_blas_threads, one_blas_thread
from warpfit.cores import num_cores

# Threads wait some 20 us for their turn between two of NumPy's calls where others compute. So parts
# are large, and threads few.
PART_BYTES, MOST_THREADS = 2 << 20, 8
# Of a product: operations that outweigh that, columns or rows that BLAS takes together, and parts
# that suffice for all threads.
PART_FLOP, GRAIN, MOST_PARTS = 16e6, 32, 16
# Products for which BLAS itself takes one thread: of matrices, and of a vector.
SMALL_FLOP, SMALL_VECTOR_FLOP = 5e5, 1.8e4

Part = TypeVar("Part")


class _Block:
    """A block of `own_threads`, which takes BLAS's from the first operation on that has any."""

    def __init__(self) -> None:
        self.count, self.held = 0, ExitStack()

    def num_threads(self) -> int:
        if not self.count:
            self.count = _available()
            self.held.enter_context(one_blas_thread())
        return self.count


_block: ContextVar[_Block | None] = ContextVar("block", default=None)


@contextmanager
def own_threads() -> Iterator[None]:
    """Let operations in this block have as many threads as BLAS might, and BLAS one."""
    block = _Block()
    token = _block.set(block)
    try:
        with block.held:
            yield
    finally:
        _block.reset(token)


def each_part(parts: Sequence[Part], begin: Callable[[], Callable[[Part], None]]) -> None:
    """Do every part: `begin` returns, for each thread, the function that does one.

    It is called before any part is done, and may ask a backend for buffers; the function may not.
    """
    if not parts:
        return
    count = min(len(parts), _num_threads())
    left, functions = _Left(parts), [begin() for _ in range(count)]
    if count == 1:
        left.do(functions[0])
        return
    with one_blas_thread():
        helpers: list[Future[None]] = []
        try:
            with suppress(RuntimeError):  # as Python ends, or where no more threads can be had
                for function in functions[1:]:
                    helpers.append(_pool().submit(copy_context().run, left.do, function))
            left.do(functions[0])
        finally:
            waited_for = [helper for helper in helpers if not helper.cancel()]
            errors = [helper.exception() for helper in waited_for]
    for error in errors:
        if error is not None:
            raise error


def each_rows(function: Callable[..., Any], *arrays: Array) -> None:
    """Call an elementwise function with the same rows of all arrays, in parts by the first."""
    first = arrays[0]
    rows = PART_BYTES * len(first) // max(first.nbytes, 1) if first.ndim else 0
    if not first.ndim or rows >= len(first):
        function(*arrays)
        return
    parts = spans(len(first), max(rows, 1))
    each_part(parts, lambda: lambda own: function(*(array[own] for array in arrays)))


def multiply(a: Array, b: Array, out: Array) -> Array:
    """Write the product of two matrices to `out`, and return it."""
    num_rows, num_columns = out.shape
    flop = 2.0 * out.size * a.shape[1]
    count = min(int(flop / PART_FLOP), MOST_PARTS)
    if count < 2:
        small = SMALL_VECTOR_FLOP if 1 in out.shape else SMALL_FLOP
        if flop > small and _block.get() is not None:
            _num_threads()
        return np.matmul(a, b, out=out)
    by_columns = num_columns >= num_rows

    def part(own: slice) -> None:
        if by_columns:
            np.matmul(a, b[:, own], out=out[:, own])
        else:
            np.matmul(a[own], b, out=out[own])

    length = num_columns if by_columns else num_rows
    each_part(spans(length, -(-length // (GRAIN * count)) * GRAIN), lambda: part)
    return out


def spans(length: int, size: int) -> list[slice]:
    """Return slices of at most `size` that cover a length."""
    return [slice(first, min(first + size, length)) for first in range(0, length, size)]


class SumInOrder:
    """A sum of parts that come in any order: they are added in theirs.

    Parameters
    ----------
    total : ndarray
        To which they are added.
    """

    def __init__(self, total: Array) -> None:
        self._total, self._waiting = total, dict[int, Array]()
        self._next, self._lock = 0, Lock()

    def add(self, idx: int, part: Array) -> None:
        """Add part number `idx`, now or once those before have come."""
        with self._lock:
            self._waiting[idx] = part
            while self._next in self._waiting:
                self._total += self._waiting.pop(self._next)
                self._next += 1


class _Left:
    """Parts that threads take, one after the other."""

    def __init__(self, parts: Sequence[Any]) -> None:
        self._parts, self._lock = iter(parts), Lock()

    def do(self, function: Callable[[Any], None]) -> None:
        """Do parts until none is left; the rest is left out if there is an error."""
        try:
            for part in self:
                function(part)
        except BaseException:
            self._parts = iter(())
            raise

    def __iter__(self) -> Iterator[Any]:
        while True:
            with self._lock:
                found = next(self._parts, None)
            if found is None:
                return
            yield found


def _num_threads() -> int:
    block = _block.get()
    return _available() if block is None else block.num_threads()


def _available() -> int:
    return min(_most_threads(), num_blas_threads())


@cache
def _most_threads() -> int:
    return min(num_cores(), MOST_THREADS)


@cache
def _pool() -> ThreadPoolExecutor:
    return ThreadPoolExecutor(max(1, _most_threads() - 1), "warpfit-part")


if hasattr(os, "register_at_fork"):  # a forked process has none of the threads
    os.register_at_fork(after_in_child=_pool.cache_clear)
