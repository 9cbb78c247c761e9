"""Running operations on NumPy arrays, and judging what comes back."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from typing import Any

import numpy as np
import numpy.typing as npt

from warpfit.backends import Array, Backend
from warpfit.backends.base import TOLERANCE

Numbers = npt.NDArray[Any]

DTYPES = tuple(TOLERANCE)


def call(op: Callable[..., Any], *args: Any, **kwargs: Any) -> Any:
    """Run an operation, a bound method of a backend, on NumPy arrays; return its results as NumPy
    arrays.

    The results are copies, so that a test may call the operation again.
    """
    backend: Backend = op.__self__  # type: ignore[attr-defined]
    results = op(
        *(upload(backend, value) for value in args),
        **{name: upload(backend, value) for name, value in kwargs.items()},
    )
    return download(backend, results)


def upload(backend: Backend, value: Any) -> Any:
    """Return arrays, alone or in a list, as the backend's, and anything else as it is."""
    if isinstance(value, list):
        return [upload(backend, item) for item in value]
    return backend.asarray(value) if isinstance(value, np.ndarray | np.generic) else value


def download(backend: Backend, results: Any) -> Any:
    """Return an operation's results as NumPy arrays that belong to the caller."""
    if results is None:
        return None
    if isinstance(results, tuple):
        return tuple(download(backend, result) for result in results)
    return np.array(backend.to_numpy(results))


def owned(backend: Backend, arrays: Sequence[Numbers]) -> list[Array]:
    """Return copies on the backend, for operations that update in place."""
    return [backend.copy(backend.asarray(array)) for array in arrays]


def assert_within_tolerance(
    result: Numbers, reference: npt.ArrayLike, dtype: str | None = None
) -> None:
    """Assert the result's shape, and its closeness to the reference by the contract's measure."""
    reference = np.asarray(reference, dtype=np.float64)
    assert result.shape == reference.shape
    error = np.abs(result - reference) / np.maximum(1, np.abs(reference))
    assert error.max(initial=0) <= TOLERANCE[dtype or str(result.dtype)]


def central_differences(f: Callable[[Numbers], Any], x: Numbers, step: float = 1e-5) -> Numbers:
    """Return the gradient of a scalar function of a float64 array by central differences."""
    gradient = np.empty_like(x)
    for place in np.ndindex(x.shape):
        ahead, behind = x.copy(), x.copy()
        ahead[place] += step
        behind[place] -= step
        gradient[place] = (f(ahead) - f(behind)) / (2 * step)
    return gradient


def assert_derivative(
    result: Numbers, f: Callable[[Numbers], Any], x: Numbers, limit: float = 1e-6
) -> None:
    """Assert that `result` is the gradient of `f` at x, to a relative error element by element."""
    expected = central_differences(f, x)
    assert result.shape == expected.shape
    scale = np.maximum(np.maximum(np.abs(result), np.abs(expected)), 1e-3)
    assert (np.abs(result - expected) / scale).max(initial=0) < limit


def layouts(array: Numbers) -> Iterator[tuple[str, Numbers]]:
    """Yield the array's values in other layouts of memory, each with its name."""
    read_only = array.copy()
    read_only.flags.writeable = False
    yield "read-only", read_only
    yield "fortran", np.asfortranarray(array)
    yield "transposed", np.ascontiguousarray(array.T).T
    spread = np.zeros([2 * size for size in array.shape], array.dtype)
    strided = spread[tuple(slice(None, None, 2) for _ in array.shape)]
    strided[...] = array
    yield "strided", strided
    everywhere = tuple(slice(None, None, -1) for _ in array.shape)
    yield "reversed", array[everywhere].copy()[everywhere]
    yield "broadcast", np.broadcast_to(array, array.shape)


LAYOUTS = tuple(name for name, _ in layouts(np.zeros((1, 1))))
