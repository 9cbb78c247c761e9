"""NVIDIA's driver: whether it can be used, what devices it sees, and its errors in words."""

from __future__ import annotations

import ctypes
import os
from contextlib import suppress
from importlib import import_module
from importlib.util import find_spec
from threading import Lock, Thread
from typing import Any, NamedTuple

EXTRAS = (12, 13)  # versions of CUDA that the package has extras for: warpfit[cu12], ...
NO_DEVICE = 100  # CUDA_ERROR_NO_DEVICE
_IMPORTING = Lock()


def why_unusable(opening: int | None = None) -> str | None:
    """Return why no device can be used, in words that say what is missing, or None if one can.

    Parameters
    ----------
    opening : int, optional
        A device that is to be opened next: its context goes on being made, by another thread.
    """
    found = library()
    if found is None:
        return "no NVIDIA driver was found (libcuda.so.1 cannot be loaded)"
    if find_spec("cuda") is None or find_spec("cuda.core") is None:
        return "cuda-core is not installed (pip install 'warpfit[cuda]')"
    if opening is not None:
        Thread(target=_make_context, args=(found, opening), name="making a context").start()
        Thread(target=_import_core, name="importing cuda.core").start()
    return _fault()


def num_devices() -> int:
    """Return how many devices the driver sees, once it is known to be usable."""
    _, count = bindings().cuDeviceGetCount()
    return int(count)


def _in_words(version: int) -> str:
    return f"{version // 1000}.{version % 1000 // 10}"


def library() -> ctypes.CDLL | None:
    """Return the driver's library, None if it does not load, without all that needs it."""
    try:
        return ctypes.CDLL("nvcuda.dll" if os.name == "nt" else "libcuda.so.1")
    except OSError:
        return None


def _make_context(library: ctypes.CDLL, index: int) -> None:
    """Make a device's context ahead: it takes 0.2 s, in which Python can import modules, and begin
    to compile kernels.

    What fails here fails again, and is reported, when the device is opened.
    """
    device, context = ctypes.c_int(), ctypes.c_void_p()
    if library.cuInit(0) == 0 and library.cuDeviceGet(ctypes.byref(device), index) == 0:
        library.cuDevicePrimaryCtxRetain(ctypes.byref(context), device)


def core() -> Any:
    """Return cuda.core; threads that import it at once would find it half made."""
    with _IMPORTING:
        return import_module("cuda.core")


def _import_core() -> None:
    """Import it ahead, for it takes 0.15 s; what fails here fails again where it is needed."""
    with suppress(Exception):
        core()


def bindings() -> Any:
    """Return the functions of the driver, as NVIDIA binds them to Python."""
    from cuda.bindings import driver

    return driver


def _bindings_major() -> int:
    import cuda.bindings

    return int(cuda.bindings.__version__.split(".")[0])


def _fault() -> str | None:
    """Return what is wrong with the driver: not started, older than the bindings, no device."""
    driver = bindings()
    wanted = _bindings_major()
    error, version = driver.cuDriverGetVersion()
    major = version // 1000
    if int(error) == 0 and major < wanted:
        remedy = f", or pip install 'warpfit[cu{major}]'" if major in EXTRAS else ""
        return (
            f"the driver is for CUDA {_in_words(version)}, too old for the installed bindings for "
            f"CUDA {wanted} (update the driver{remedy})"
        )
    (error,) = driver.cuInit(0)
    if int(error) == NO_DEVICE:
        return "the NVIDIA driver sees no device (is CUDA_VISIBLE_DEVICES set?)"
    if int(error):
        return f"the NVIDIA driver does not start: {describe(error)}"
    error, count = driver.cuDeviceGetCount()
    if int(error) or count == 0:
        return "the NVIDIA driver sees no device (is CUDA_VISIBLE_DEVICES set?)"
    return None


def describe(error: Any) -> str:
    """Return the driver's name and words for an error code."""
    driver = bindings()
    _, name = driver.cuGetErrorName(error)
    _, text = driver.cuGetErrorString(error)
    if not isinstance(name, bytes) or not isinstance(text, bytes):
        return f"error {int(error)}"
    return f"{name.decode()} ({text.decode()})"


class DeviceInfo(NamedTuple):
    """What a device is."""

    # name, model and arch: such as 'cuda:0', 'NVIDIA H200' and 'sm_90a'.
    name: str
    model: str
    arch: str
    num_bytes: int  # its memory
    driver: str  # the newest version of CUDA that the driver knows: '13.0'


def info(index: int) -> DeviceInfo:
    """Return what device `index` is; nothing is started on it."""
    driver = bindings()
    _, version = driver.cuDriverGetVersion()
    _, device = driver.cuDeviceGet(index)
    _, model = driver.cuDeviceGetName(128, device)
    _, num_bytes = driver.cuDeviceTotalMem(device)
    name, arch = model.split(b"\0")[0].decode(), limits(index)[0]
    return DeviceInfo(f"cuda:{index}", name, arch, int(num_bytes), _in_words(version))


def limits(index: int) -> tuple[str, int, int]:
    """Return what kernels for device `index` are chosen by, and what is known before it has a
    context: what they are compiled for, its multiprocessors, and the shared memory of a block.
    """
    driver = bindings()
    _, device = driver.cuDeviceGet(index)
    found = []
    for name in (
        "COMPUTE_CAPABILITY_MAJOR",
        "COMPUTE_CAPABILITY_MINOR",
        "MULTIPROCESSOR_COUNT",
        "MAX_SHARED_MEMORY_PER_BLOCK_OPTIN",
    ):
        kind = getattr(driver.CUdevice_attribute, f"CU_DEVICE_ATTRIBUTE_{name}")
        _, value = driver.cuDeviceGetAttribute(kind, device)
        found.append(int(value))
    return arch_of(*found[:2]), found[2], found[3]


def arch_of(major: int, minor: int) -> str:
    """Return what kernels are compiled for on a device of this compute capability."""
    # Only the "a" targets have the instructions of their own generation; older ones have no such
    # target.
    return f"sm_{major}{minor}" + ("a" if major >= 9 else "")


def is_debugging() -> bool:
    """Return whether ``$WARPFIT_DEBUG`` asks to wait for each launch, and to bound waits."""
    return is_set("WARPFIT_DEBUG")


def is_set(variable: str) -> bool:
    """Return whether an environment variable says yes: anything but nothing and 0."""
    return os.environ.get(variable, "") not in ("", "0")
