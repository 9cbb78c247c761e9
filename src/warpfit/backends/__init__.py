"""Backends, and the one place that finds which of them an array or a device belongs to."""

from __future__ import annotations

import os
import re
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from contextvars import ContextVar
from functools import cache
from threading import Thread
from typing import Any

import numpy as np

from warpfit.backends.base import Activation, Array, Backend
from warpfit.backends.numpy import NumpyBackend
from warpfit.callers import warn
from warpfit.checks import brief
from warpfit.errors import ConfigError, DeviceError, DeviceWarning, DTypeError

__all__ = [
    "ALL_CARDS",
    "PROCESSES",
    "Activation",
    "Array",
    "Backend",
    "NumpyBackend",
    "check_device_name",
    "create",
    "expecting_no_device",
    "get",
    "is_device_array",
    "of",
    "open_ahead",
    "preferred_device",
    "resolve_device",
    "target_of",
]

_CPU = NumpyBackend()
# Several devices, which are for `fit` to find: all GPUs, or one for each process of any launcher.
ALL_CARDS, PROCESSES = "cuda:all", "processes"

_CUDA_NAME = re.compile(r"cuda(?::(0|[1-9][0-9]*))?")


def resolve_device(device: str) -> str:
    """Return the name of the device that `device` stands for.

    ``'auto'`` is what the environment variable ``WARPFIT_DEVICE`` names; without it the first CUDA
    device, or ``'cpu'`` where there is none, which a warning says once. ``'cuda'`` is ``'cuda:0'``.

    Raises
    ------
    DeviceError
        For a CUDA device that is not there, or cannot be used; the message says what is missing.
    ConfigError
        For any other name.
    """
    check_device_name(device)
    if device == "auto":
        device = preferred_device()
        check_device_name(device, "WARPFIT_DEVICE as")
    if device == "auto":
        return _best_device()
    if device == "cpu":
        return device
    return str(_runtime(f"cuda:{_cuda_index(device)}").name)


def first_device(device: Any) -> Any:
    """Return the first of several devices, whether or not the others are there; one as it is."""
    if isinstance(device, list | tuple) and device:
        return device[0]
    return "cuda" if isinstance(device, str) and device == ALL_CARDS else device


def preferred_device() -> str:
    """Return what the environment variable ``WARPFIT_DEVICE`` names, ``'auto'`` without it."""
    return os.environ.get("WARPFIT_DEVICE") or "auto"


def check_device_name(device: Any, origin: str = "one device,") -> None:
    """Raise ConfigError unless it can name a device, which need not be on this machine."""
    is_known = isinstance(device, str) and device in ("auto", "cpu")
    if not is_known and _cuda_index(device) is None:
        raise ConfigError(
            f"expected {origin} 'auto', 'cpu', 'cuda' or 'cuda:1', ..., got {brief(device)}"
        )


def _cuda_index(device: Any) -> int | None:
    match = _CUDA_NAME.fullmatch(device) if isinstance(device, str) else None
    return None if match is None else int(match[1] or 0)


def _best_device() -> str:
    name, reason = _found_device()
    if reason is not None and not _EXPECTS_NONE.get():
        _warn_of_cpu(reason)
    return name


@cache
def _found_device() -> tuple[str, str | None]:
    """Return what ``'auto'`` is on this machine, and why that is the CPU, if it is."""
    from warpfit.backends.cuda.runtime import why_unavailable

    reason = why_unavailable(opening=0)
    return ("cuda:0", None) if reason is None else ("cpu", reason)


@cache
def _warn_of_cpu(reason: str) -> None:
    warn(f"device 'auto' is the CPU: {reason}", DeviceWarning)


_EXPECTS_NONE: ContextVar[bool] = ContextVar("expects_none", default=False)


@contextmanager
def expecting_no_device() -> Iterator[None]:
    """Let 'auto' be the CPU without a warning in this block, whose caller asked for no GPU."""
    token = _EXPECTS_NONE.set(True)
    try:
        yield
    finally:
        _EXPECTS_NONE.reset(token)


def _runtime(device: str) -> Any:
    from warpfit.backends.cuda.runtime import open_device

    return open_device(int(device.partition(":")[2]))


def open_ahead(device: str) -> None:
    """Begin to open the GPU that `device` stands for, if it is one, while the caller does something
    else first, such as reading data.

    What fails meanwhile fails again, and is reported, where the device is asked for.
    """
    if device == "auto":
        device = "cuda" if preferred_device() == "auto" else preferred_device()
    index = _cuda_index(device)
    if index is None:
        return

    def open_it() -> None:
        from warpfit.backends.cuda.runtime import open_device

        with suppress(Exception):
            open_device(index)

    Thread(target=open_it, name="opening a GPU").start()


def target_of(device: str) -> Any:
    """Return what kernels for a device are chosen by: its ``arch``, ``num_multiprocessors`` and
    ``max_shared_bytes``; with ``compile_ahead``, which begins to compile some. None for the CPU. A
    GPU goes on being opened meanwhile.

    Raises
    ------
    DeviceError, ConfigError
        As `resolve_device` does.
    """
    check_device_name(device)
    if device == "auto":
        device = resolve_device(device)
    if device == "cpu":
        return None
    from warpfit.backends.cuda import runtime

    return runtime.target_of(_cuda_index(device) or 0)


def get(device: str) -> Backend:
    """Return the shared backend of a device; its results belong to the caller."""
    name = resolve_device(device)
    if name == "cpu":
        return _CPU
    from warpfit.backends.cuda.backend import backend_of

    return backend_of(_runtime(name))


def create(
    device: str,
    *,
    precision: str = "float32",
    loss_scale: float = 1.0,
    product_kernel: str | None = None,
    shares_device: bool = False,
) -> Backend:
    """Return a backend of its own for a training loop: its buffers are reused from step to step.

    Parameters
    ----------
    device : str
    precision : str
        One of ``PRECISIONS``; ``'tf32'`` lets products of float32 numbers use tensor cores.
    loss_scale : float
        See `Backend.loss_scale`.
    product_kernel : str, optional
        The kernel that computes all products on CUDA, in place of the one that suits each best; for
        those who compare them.
    shares_device : bool
        Whether other kernels run beside its products, as sums over devices do.
    """
    name = resolve_device(device)
    if name == "cpu":
        return NumpyBackend(reuse=True)
    from warpfit.backends.cuda.backend import CudaBackend

    return CudaBackend(
        _runtime(name),
        reuse=True,
        precision=precision,
        loss_scale=loss_scale,
        product_kernel=product_kernel,
        shares_device=shares_device,
    )


def of(*arrays: Any) -> Backend:
    """Return the backend that the arrays belong to.

    Raises
    ------
    DTypeError
        If one of them is no array of a known backend.
    DeviceError
        If they live on different devices.
    """
    places = {_place(array) for array in arrays}
    if len(places) > 1:
        names = sorted("cpu" if place is None else place.name for place in places)
        raise DeviceError(f"expected arrays on one device, got some on {' and '.join(names)}")
    runtime = places.pop() if places else None
    if runtime is None:
        return _CPU
    from warpfit.backends.cuda.backend import backend_of

    return backend_of(runtime)


def is_device_array(value: Any) -> bool:
    """Whether a value is an array of ours on a device, by its name: that backend need not load."""
    return type(value).__name__ == "DeviceArray"


def _place(array: Any) -> Any:
    """Return the runtime that an array lives on, None for the CPU."""
    if isinstance(array, (np.ndarray, np.generic)):
        return None
    if not is_device_array(array):
        raise DTypeError(f"expected an array, got {type(array).__name__}")
    return array.runtime
