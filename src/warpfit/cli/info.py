"""``warpfit info``."""

from __future__ import annotations

import os
import platform
import re
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Annotated

import typer

import warpfit
from warpfit.cli.cache import kernel_cache
from warpfit.cli.console import Printer
from warpfit.cores import num_cores
from warpfit.errors import ConfigError

# What a report names besides, of those that are installed.
LIBRARIES = (
    *("joblib", "threadpoolctl", "rich", "typer", "pandas", "pillow", "requests", "onnx"),
    "ipywidgets",
    *("starlette", "uvicorn", "websockets", "distributed", "torch", "cupy-cuda12x", "cupy-cuda13x"),
)

# Variables that change what warpfit does, and hold no secrets.
VARIABLES = (
    *("WARPFIT_AUTOTUNE", "WARPFIT_CACHE_DIR", "WARPFIT_DATA"),
    *("WARPFIT_DEBUG", "WARPFIT_DEVICE", "WARPFIT_LINES"),
    *("WARPFIT_LOCAL_RANK", "WARPFIT_MEETING", "WARPFIT_RANK", "WARPFIT_WORLD_SIZE"),
    *("CUDA_VISIBLE_DEVICES", "CUDA_HOME", "CUDA_PATH", "LD_LIBRARY_PATH", "XDG_CACHE_HOME"),
    *("OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS", "OPENBLAS_CORETYPE", "MKL_NUM_THREADS", "LANG"),
)
NVIDIA_MODULE = Path("/proc/driver/nvidia/version")


def info(
    report: Annotated[
        bool,
        typer.Option(
            "--report", help="Show all that a bug report should say, ready to paste into it."
        ),
    ] = False,
) -> None:
    """Show versions, devices, engines, datasets and folders."""
    printer = Printer()
    sections = {
        "versions": _versions(),
        "devices": _devices(),
        "engines": _engines(),
        "datasets": _datasets(),
        "folders": _folders(),
    }
    if report:
        sections |= {"system": _system(), "libraries": _libraries(), "environment": _environment()}
        printer.line("```text")
    for title, rows in sections.items():
        printer.line(title, style=None if report else "bold")
        printer.pairs(
            (f"  {name}", _without_home(value) if report else value) for name, value in rows
        )
    if report:
        printer.line("```")


def _without_home(text: str) -> str:
    """Return text with ``~`` for the home folder, whose name is often a person's."""
    home = os.path.expanduser("~").rstrip(os.sep)
    return re.sub(rf"{re.escape(home)}(?![\w.-])", "~", text) if os.path.isabs(home) else text


def _versions() -> Iterator[tuple[str, str]]:
    yield "warpfit", warpfit.__version__
    yield "python", f"{platform.python_version()} ({platform.system()} {platform.machine()})"
    for package in ("numpy", "scipy", "scikit-learn", "safetensors", "matplotlib"):
        yield package, _version_of(package)
    yield "BLAS", _blas()
    for package in ("cuda-core", "cuda-bindings"):
        yield package, _version_of(package)
    yield "NVRTC", _version_of("nvidia-cuda-nvrtc", "nvidia-cuda-nvrtc-cu12")


def _version_of(*packages: str) -> str:
    """Return the version of the first of these packages that is installed."""
    from importlib.metadata import PackageNotFoundError, version

    for package in packages:
        try:
            return version(package)
        except PackageNotFoundError:
            continue
    return "not installed"


def _blas() -> str:
    try:
        from threadpoolctl import threadpool_info  # type: ignore[import-untyped]
    except ImportError:
        return "unknown: threadpoolctl is not installed"
    found = [
        f"{pool['internal_api']} {pool['version']}, {pool['num_threads']} threads"
        for pool in threadpool_info()
        if pool["user_api"] == "blas"
    ]
    return "; ".join(found) or "unknown"


def _devices() -> Iterator[tuple[str, str]]:
    from warpfit.backends.cuda.runtime import devices, why_unavailable

    yield "cpu", f"{num_cores()} cores"
    reason = why_unavailable()
    if reason is not None:
        yield "cuda", f"not available: {reason}"
        return
    for device in devices():
        memory = f"{device.num_bytes / 2**30:.0f} GiB"
        about = f"{device.model}, {device.arch}, {memory}, driver for CUDA {device.driver}"
        yield device.name, about


def _engines() -> Iterator[tuple[str, str]]:
    from warpfit.training.plan import ENGINES

    for name, engine in ENGINES.items():
        yield name, "available, on a GPU" if engine.needs_gpu else "available, on every device"


def _datasets() -> Iterator[tuple[str, str]]:
    from warpfit.data import available_datasets

    for listing in available_datasets():
        yield listing.name, listing.location or "not here"


def _folders() -> Iterator[tuple[str, str]]:
    from warpfit.data.registry import WARPFIT_DATA, user_cache
    from warpfit.training.settings import default_folder

    yield "results", str(default_folder())
    yield f"${WARPFIT_DATA}", os.environ.get(WARPFIT_DATA) or "not set"
    yield "downloads", str(user_cache())
    try:
        yield "kernels", kernel_cache()
    except ConfigError as error:
        yield "kernels", str(error)


def _system() -> Iterator[tuple[str, str]]:
    yield "platform", platform.platform()
    yield "interpreter", f"{platform.python_implementation()} {sys.version}".replace("\n", " ")
    yield "installed in", str(Path(warpfit.__file__).parent)
    try:
        yield "NVIDIA's driver", NVIDIA_MODULE.read_text(encoding="utf-8").splitlines()[0]
    except (OSError, IndexError):
        yield "NVIDIA's driver", f"unknown: no {NVIDIA_MODULE}"


def _libraries() -> Iterator[tuple[str, str]]:
    versions = {package: _version_of(package) for package in LIBRARIES}
    return ((package, found) for package, found in versions.items() if found != "not installed")


def _environment() -> Iterator[tuple[str, str]]:
    return ((name, os.environ.get(name, "not set")) for name in VARIABLES)
