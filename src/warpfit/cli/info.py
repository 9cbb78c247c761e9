"""``warpfit info``."""

from __future__ import annotations

import os
import platform
from collections.abc import Iterator

import warpfit
from warpfit.cli.cache import kernel_cache
from warpfit.cli.console import Printer

__all__ = ["info"]


def info() -> None:
    """Show versions, devices, engines, datasets and folders."""
    printer = Printer()
    for title, rows in (
        ("versions", _versions()),
        ("devices", _devices()),
        ("engines", _engines()),
        ("datasets", _datasets()),
        ("folders", _folders()),
    ):
        printer.line(title, style="bold")
        printer.pairs((f"  {name}", value) for name, value in rows)


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

    yield "cpu", f"{os.cpu_count()} cores"
    reason = why_unavailable()
    if reason is not None:
        yield "cuda", f"not available: {reason}"
        return
    for device in devices():
        memory = f"{device.num_bytes / 2**30:.0f} GiB"
        yield (
            device.name,
            f"{device.model}, {device.arch}, {memory}, driver for CUDA {device.driver}",
        )


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
    yield "kernels", kernel_cache()
