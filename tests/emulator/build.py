"""Compiles kernel files with g++ into libraries that the emulator runs.

A library is cached by a hash over everything that goes into it, but for the checkout's place: all
of a user's have one cache. Next to the libraries lie the scheduler, which all of them use, and the
emulator's headers, compiled: half of the time of most builds was reading the standard library's.
"""

from __future__ import annotations

import functools
import hashlib
import os
import re
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path

from warpfit.backends.cuda.jit import Defines, macros_of, unit_of
from warpfit.errors import CompileError
from warpfit.files import atomic_path

__all__ = ["KERNELS", "build", "build_scheduler", "compile_once", "gxx_missing"]

EMULATOR = Path(__file__).parent
ROOT = EMULATOR.parents[1]
KERNELS = ROOT / "src" / "warpfit" / "backends" / "cuda" / "kernels"

FLAGS = ("-std=c++17", "-w", "-fPIC", "-fno-strict-aliasing", "-U_FORTIFY_SOURCE")
KERNEL_FLAGS = (*FLAGS, "-fdata-sections", "-fno-exceptions", "-fno-asynchronous-unwind-tables")
LINK_FLAGS = ("-shared", "-Wl,-rpath,$ORIGIN", f"-Wl,-T,{EMULATOR / 'shared.ld'}")
# The scheduler's library brings the standard libraries along; looking through them takes half of
# linking.
ALONE = ("-nostdlib", "-lgcc")
HEADER = "cuda_emulator.h"
# Unoptimized, kernels compile in half the time; much of their work is the scheduler's library's.
# A few have few variants, and much to do in many tests. Collecting the compiler's garbage would
# take 6% of it.
UNOPTIMIZED = ("-O0", "--param=ggc-min-heapsize=400000")
OPTIMIZED = ("-O1", *UNOPTIMIZED[1:])
HAVE_MUCH_TO_DO = {"all_finite", "initial_values", "l2_penalty", "matrix_products", "sum_columns"}
INLINED = ("-O2", "-fno-semantic-interposition")  # nobody replaces the scheduler's functions
SANITIZE_FLAGS = (
    "-O1",
    "-g1",
    "-fsanitize=address,undefined",
    "-fno-sanitize-recover=all",
    "-fno-omit-frame-pointer",
)


@functools.cache
def gxx_missing() -> str | None:
    """Return why kernels cannot be emulated here, or None if they can."""
    if not sys.platform.startswith("linux"):
        return f"the emulator needs Linux, this is {sys.platform}"
    if shutil.which("g++") is None:
        return "the emulator needs g++, which is not installed"
    return None


def build(source: Path, entry: str, defines: Mapping[str, str], *, sanitize: bool = False) -> Path:
    """Compile a kernel file and return the library, which exports ``emulator_launch``.

    Parameters
    ----------
    source : Path
        The ``.cu`` file.
    entry : str
        The name of its ``__global__`` function.
    defines : mapping of str to str
        Its settings: preprocessor definitions, or what `Config` declares. The compiler's own
        begin with an underscore.
    sanitize : bool
        Compile with AddressSanitizer and UndefinedBehaviorSanitizer; such a library loads only into
        a process that has libasan preloaded (:func:`emulator.sanitized.run_sanitized`).

    Raises
    ------
    CompileError
        g++ rejected the file; the message carries its log.
    """
    usual = OPTIMIZED if entry in HAVE_MUCH_TO_DO else UNOPTIMIZED
    flags = (*KERNEL_FLAGS, *(SANITIZE_FLAGS if sanitize else usual))
    own = {name: value for name, value in defines.items() if name.startswith("_")}
    settings = tuple((name, value) for name, value in defines.items() if name not in own)
    macros = {
        "__CUDA_ARCH__": "900",
        **own,
        **dict(macros_of(entry, settings)),
        "ENTRY": entry,
        "KERNEL_FILE": f'"{_unit(source, entry, settings)}"',
        "LAUNCH_BOUND": _launch_bound(source.read_text(), entry),
    }
    arguments = (*flags, *(f"-D{name}={value}" for name, value in macros.items()))
    scheduler = build_scheduler()
    parts = () if KERNELS in source.parents else sorted(source.parent.glob("*.cuh"))
    link = [str(scheduler), *LINK_FLAGS, *(() if sanitize else ALONE)]
    target = (
        _cache() / f"{entry}-{_digest([*arguments, *link, _parts_digest()], [source, *parts])}.so"
    )
    if not target.exists():
        header = _compiled_header((*flags, f"-D__CUDA_ARCH__={macros['__CUDA_ARCH__']}"))
        source_files = [*_folders(header.parent), "-include", HEADER, str(EMULATOR / "entry.cpp")]
        compile_once([*arguments, *source_files, *link], target)
    return target


def _unit(source: Path, entry: str, settings: Defines) -> Path:
    """Return the file that is compiled: the kernel's, or a copy with what the host declares."""
    text = source.read_text()
    unit = unit_of(entry, text, settings)
    if unit == text:
        return source
    path = _cache() / f"{entry}-{hashlib.sha256(unit.encode()).hexdigest()[:24]}.cu"
    if not path.exists():
        with atomic_path(path) as temporary:
            temporary.write_text(unit)
    return path


def _folders(first: Path | None = None) -> list[str]:
    """Return the options that name the folders of headers."""
    return [
        option for folder in (first, EMULATOR, KERNELS) if folder for option in ("-I", str(folder))
    ]


@functools.cache
def _compiled_header(flags: tuple[str, ...]) -> Path:
    """Compile the emulator's headers, once for all kernels with these flags; g++ takes the first
    that it finds.
    """
    folder = _cache() / f"headers-{_digest([*flags, _parts_digest()], ())}"
    target = folder / f"{HEADER}.gch"
    if not target.exists():
        folder.mkdir(exist_ok=True)
        compile_once([*flags, *_folders(), "-x", "c++-header", str(EMULATOR / HEADER)], target)
    return target


def _launch_bound(source: str, entry: str) -> str:
    """Return the entry's most threads of a block, as the expression in its
    ``__launch_bounds__``.
    """
    found = re.search(
        rf"__launch_bounds__\(([^,()]+)(?:,[^()]+)?\)\s*(?:void\s+)?{entry}\s*\(", source
    )
    return f"({found[1]})" if found else "1024"


@functools.cache
def build_scheduler() -> Path:
    """Compile the scheduler, once for all kernels, and return its library."""
    target = _cache() / f"libemulator-{_digest([*FLAGS, *INLINED], ())}.so"
    if not target.exists():
        name = f"-Wl,-soname,{target.name}"
        sources = map(str, sorted({*EMULATOR.glob("*.cpp")} - {EMULATOR / "entry.cpp"}))
        compile_once([*FLAGS, *INLINED, "-shared", *sources, name, "-pthread"], target)
    return target


@functools.cache
def _cache() -> Path:
    """Return the folder of the compiled files, this user's own."""
    default = Path(tempfile.gettempdir()) / f"warpfit-emulator-{os.getuid()}"
    folder = Path(os.environ.get("WARPFIT_EMULATOR_CACHE") or default)
    folder.mkdir(mode=0o700, parents=True, exist_ok=True)
    if folder.stat().st_uid != os.getuid():
        raise PermissionError(f"expected a cache folder of this user's own, got {folder}")
    return folder


def _digest(arguments: Iterable[str], files: Iterable[Path]) -> str:
    """Return a name for what g++ would make of these arguments and files."""
    digest = hashlib.sha256(_emulator_digest().encode())
    for argument in arguments:
        digest.update(argument.replace(str(ROOT), "").encode() + b"\0")
    for file in files:
        digest.update(file.read_bytes() + b"\0")
    return digest.hexdigest()[:24]


@functools.cache
def _parts_digest() -> str:
    """Return a hash over what kernels include."""
    digest = hashlib.sha256()
    for part in sorted(KERNELS.rglob("*.cuh")):
        digest.update(f"{part.relative_to(KERNELS)}\0".encode() + part.read_bytes() + b"\0")
    return digest.hexdigest()


@functools.cache
def _emulator_digest() -> str:
    """Return a hash over the compiler's version and the emulator's own files."""
    version = subprocess.run(
        ["g++", "--version"], capture_output=True, text=True, check=True
    ).stdout
    digest = hashlib.sha256(version.encode())
    for file in sorted(EMULATOR.iterdir()):
        if file.suffix in {".h", ".cpp", ".ld"}:
            digest.update(file.name.encode() + file.read_bytes())
    return digest.hexdigest()


def compile_once(arguments: list[str], target: Path) -> None:
    """Run g++, unless another process did meanwhile; the target appears whole or not at all."""
    with _alone(target):
        if target.exists():
            return
        handle, temporary = tempfile.mkstemp(dir=target.parent, prefix=f".{target.name}.")
        os.close(handle)
        try:
            result = subprocess.run(
                ["g++", *arguments, "-o", temporary], capture_output=True, text=True, check=False
            )
            if result.returncode != 0:
                raise CompileError(f"g++ rejected {target.stem}:\n{result.stderr}")
            os.replace(temporary, target)
        finally:
            Path(temporary).unlink(missing_ok=True)


@contextmanager
def _alone(target: Path) -> Iterator[None]:
    """Wait for whoever compiles the same."""
    import fcntl  # which Windows lacks

    path = target.with_name(f".{target.name}.lock")
    with path.open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        try:
            yield
        finally:
            path.unlink(missing_ok=True)
