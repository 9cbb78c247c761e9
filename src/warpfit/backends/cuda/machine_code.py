"""Machine code on disk: the folder that keeps what was compiled, and the package that an optional
wheel brings. A file begins with a digest of the machine code in it, so that damage shows.
"""

from __future__ import annotations

import hashlib
import os
from collections.abc import Iterable
from contextlib import suppress
from functools import cache
from importlib.util import find_spec
from pathlib import Path
from time import time
from typing import NamedTuple

from warpfit.errors import ConfigError
from warpfit.files import atomic_path, make_folder

CACHE_BYTES = 256 << 20

_MAGIC = b"warpfit kernel 1\n"
_DIGEST_BYTES = 32
_PACKAGED = "warpfit_kernels"


class CacheUse(NamedTuple):
    """What the cache holds."""

    folder: Path
    num_kernels: int
    num_bytes: int


def cache_folder() -> Path:
    """Return the cache's folder: ``$WARPFIT_CACHE_DIR/kernels`` or ``~/.cache/warpfit/kernels``."""
    root = os.environ.get("WARPFIT_CACHE_DIR")
    return (Path(root).expanduser() if root else Path.home() / ".cache" / "warpfit") / "kernels"


def cache_use() -> CacheUse:
    """Return how many kernels the cache holds, and their size on disk."""
    sizes = [size for _, size, _ in _entries()]
    return CacheUse(cache_folder(), len(sizes), sum(sizes))


def clear_cache() -> CacheUse:
    """Remove every kernel from the cache, and return what was removed."""
    used = cache_use()
    _remove(path for path, _, _ in _entries())
    _remove(_leftovers())
    return used


@cache
def packaged_folder() -> Path | None:
    """Return the folder of the package of kernels, or None where it is not installed."""
    spec = find_spec(_PACKAGED)
    return Path(spec.origin).parent if spec is not None and spec.origin else None


def read_entry(path: Path) -> bytes | None:
    """Return the machine code of an entry, or None if there is none that is whole."""
    try:
        content = path.read_bytes()
    except OSError:
        return None
    head = len(_MAGIC) + _DIGEST_BYTES
    code = content[head:]
    if content[:head] != _MAGIC + hashlib.sha256(code).digest():
        return None
    with suppress(OSError):
        os.utime(path)  # the cache drops what was not used for longest
    return code


def add_entry(path: Path, code: bytes) -> None:
    """Add an entry, if the folder can be written to."""
    try:
        make_folder(path.parent)
        with atomic_path(path) as temporary:
            write_entry(temporary, code)
        _evict()
    except (ConfigError, OSError):
        return


def write_entry(path: Path, code: bytes) -> None:
    """Write a file of machine code as the cache and the package of kernels have them."""
    path.write_bytes(_MAGIC + hashlib.sha256(code).digest() + code)


def _entries() -> list[tuple[Path, int, float]]:
    """Return path, size in bytes and time of last use of every entry."""
    found = []
    for path in cache_folder().glob("*.cubin"):
        try:
            status = path.stat()
        except OSError:  # removed by another process since
            continue
        found.append((path, status.st_size, status.st_mtime))
    return found


def _leftovers() -> list[Path]:
    """Return what writers that were killed left behind: unfinished files of an hour ago or more."""
    found = []
    for path in cache_folder().glob(".*.tmp"):
        with suppress(OSError):
            if time() - path.stat().st_mtime > 3600:
                found.append(path)
    return found


def _evict() -> None:
    """Remove the entries that were not used for longest, until the rest fits."""
    old = _leftovers()
    entries = sorted(_entries(), key=lambda entry: entry[2])
    excess = sum(size for _, size, _ in entries) - CACHE_BYTES
    for path, size, _ in entries:
        if excess <= 0:
            break
        old.append(path)
        excess -= size
    _remove(old)


def _remove(paths: Iterable[Path]) -> None:
    for path in paths:
        path.unlink(missing_ok=True)
