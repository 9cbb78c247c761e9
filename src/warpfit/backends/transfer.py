"""Where values live, and how they come to another device: the one place for both."""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt

from warpfit import backends
from warpfit.backends.base import Array, Backend
from warpfit.checks import as_numbers

_DLPACK_CUDA = 2  # kDLCUDA


def home_of(value: Any) -> Backend:
    """Return the shared backend of the device that a value lives on.

    That is the GPU of an array of this package or of another library (``__dlpack__``,
    ``__cuda_array_interface__``), and the CPU for everything else: NumPy's arrays, lists, numbers.
    """
    if backends.is_device_array(value):
        return backends.of(value)
    return backends.get(
        "cpu" if isinstance(value, np.ndarray | np.generic) else _foreign_device(value)
    )


def device_of(array: Array) -> str:
    """Return the name of the device that an array lives on: ``'cpu'``, ``'cuda:0'``, ..."""
    return str(array.runtime.name) if backends.is_device_array(array) else "cpu"


def to_host(value: Any, name: str = "") -> npt.NDArray[Any]:
    """Return a value on any device as a NumPy array, uncopied from the host. Errors name it."""
    ops = home_of(value)
    return as_numbers(value, name) if ops.name == "numpy" else ops.to_numpy(ops.asarray(value))


def moved(value: Any, target: Backend, dtype: str | None = None) -> Array:
    """Return a value as an array of `target`, converted as `Backend.asarray` does.

    What is there already, in this dtype, is not copied; between two GPUs values pass through the
    host.
    """
    runtime = getattr(home_of(value), "runtime", None)
    if runtime is not None and runtime is not getattr(target, "runtime", None):
        value = to_host(value)
    return target.asarray(value, dtype)


def _foreign_device(value: Any) -> str:
    """Return the device of another library's array; the CPU for what is none."""
    if hasattr(value, "__dlpack_device__"):
        try:
            kind, index = value.__dlpack_device__()
        except Exception:  # it cannot be exported; the reader reports that
            return "cpu"
        return f"cuda:{int(index)}" if int(kind) == _DLPACK_CUDA else "cpu"
    return "cuda:0" if hasattr(value, "__cuda_array_interface__") else "cpu"
