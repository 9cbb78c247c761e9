"""Backends, and the one place that finds which of them an array or a device belongs to."""

from __future__ import annotations

from typing import Any

import numpy as np

from warpfit.backends.base import Activation, Array, Backend
from warpfit.backends.numpy import NumpyBackend
from warpfit.errors import ConfigError, DeviceError, DTypeError

__all__ = ["Activation", "Array", "Backend", "NumpyBackend", "create", "get", "of", "resolve_device"]

_CPU = NumpyBackend()


def resolve_device(device: str) -> str:
    """Return the name of the device that `device` stands for: ``'auto'`` and ``'cpu'`` give ``'cpu'``.

    Raises
    ------
    DeviceError
        For a CUDA device, which this version cannot drive.
    ConfigError
        For any other name.
    """
    if device in ("auto", "cpu"):
        return "cpu"
    if isinstance(device, str) and device.split(":")[0] == "cuda":
        raise DeviceError(
            f"expected device 'cpu' or 'auto', got {device!r}: this version has no CUDA backend"
        )
    raise ConfigError(f"expected device 'auto', 'cpu' or 'cuda', got {device!r}")


def get(device: str) -> Backend:
    """Return the shared backend of a device; its results belong to the caller."""
    resolve_device(device)
    return _CPU


def create(device: str) -> Backend:
    """Return a backend of its own for a training loop: its buffers are reused from step to step."""
    resolve_device(device)
    return NumpyBackend(reuse=True)


def of(*arrays: Any) -> Backend:
    """Return the backend that the arrays belong to.

    Raises
    ------
    DTypeError
        If one of them is no array of a known backend.
    """
    for array in arrays:
        if not isinstance(array, (np.ndarray, np.generic)):
            raise DTypeError(f"expected an array, got {type(array).__name__}")
    return _CPU
