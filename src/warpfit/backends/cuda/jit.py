"""From kernel source to machine code: compiled once for each architecture, kept on disk.

An entry's name is a digest of all that decides its content: source, headers, defines, options,
compiler and architecture. A damaged one is compiled again. What the optional package
`warpfit_kernels` brings is not compiled at all: its entries are the same, but for the compiler,
which is whichever built the package.
"""

from __future__ import annotations

import hashlib
import os
import re
from collections import deque
from collections.abc import Callable, Iterable, Iterator
from contextlib import suppress
from functools import cache
from importlib import metadata
from pathlib import Path
from threading import Thread
from typing import TYPE_CHECKING, Any

from warpfit.backends.cuda.driver import is_debugging, is_set
from warpfit.backends.cuda.machine_code import (
    add_entry,
    cache_folder,
    packaged_folder,
    read_entry,
)
from warpfit.backends.cuda.nvrtc import compiled
from warpfit.backends.cuda.resident_arguments import ARGUMENTS
from warpfit.backends.cuda.resident_config import CONFIGS
from warpfit.backends.cuda.signatures import SIGNATURES, check_of
from warpfit.backends.cuda.waits_of_kernels import check_waits
from warpfit.cores import num_cores
from warpfit.errors import CompileError, ConfigError

if TYPE_CHECKING:
    from concurrent.futures import Future

Defines = tuple[tuple[str, str], ...]

KERNELS = Path(__file__).parent / "kernels"
# What the kernels are written for, oldest first; the tests compile every kernel for each.
ARCHITECTURES = ("sm_75", "sm_80", "sm_86", "sm_89", "sm_90a", "sm_100a", "sm_120a")

_CONFIG, _ARGUMENTS = "#include <config>", "#include <arguments>"
_INCLUDE = re.compile(r'#include "(?P<file>[^"]+)"')
_PACKAGES = ("nvidia-cuda-nvrtc", "nvidia-cuda-nvrtc-cu12")
_LOCATION = re.compile(r"^(?P<file>[^\s(]+)\((?P<line>\d+)\): ", re.MULTILINE)


def generation(arch: str) -> int:
    """Return the number in the name of an architecture: 90 for ``'sm_90a'``."""
    return int(arch.removeprefix("sm_").rstrip("af"))


@cache
def _files(folder: Path) -> dict[str, Path]:
    """Return the kernels below a folder by their names."""
    return {path.stem: path for path in folder.rglob("*.cu")}


def path_of(name: str) -> Path:
    """Return the file of the kernel `name`, in whatever folder, or raise CompileError."""
    try:
        return _files(KERNELS)[name]
    except KeyError:
        raise CompileError(f"expected a kernel among {KERNELS}/**/*.cu, got {name!r}") from None


@cache
def source_of(name: str) -> str:
    """Return the source of the kernel `name`; CompileError if there is none."""
    return path_of(name).read_text(encoding="utf-8")


def unit_of(name: str, source: str, defines: Defines = ()) -> str:
    """Return what is compiled of a kernel: with settings and the host's structs declared."""
    lines = source.splitlines()
    for idx, line in enumerate(lines):
        if (declared := _declared(name, line, defines)) is not None:
            lines[idx] = f"{declared}\n#line {idx + 2}"
    checks = [check_of(name)] if name in SIGNATURES else []
    return "\n".join([*lines, *checks, ""])


def _declared(name: str, line: str, defines: Defines) -> str | None:
    """Return what stands for a line of a kernel's source, if the host writes it."""
    if line.startswith(_CONFIG) and defines:
        return CONFIGS[name].declaration(dict(defines))
    return ARGUMENTS[name].declaration() if line.startswith(_ARGUMENTS) else None


def macros_of(name: str, defines: Defines) -> Defines:
    """Return what the compiler takes as macros: a kernel's settings, but for those that the host
    declares, and whether waits are bounded.
    """
    bounded = ("BOUNDED_WAITS", str(int(is_debugging())))
    return (bounded, *(() if name in CONFIGS else defines))


def flattened(name: str, defines: Defines) -> str:
    """Return a kernel's source with its settings and headers in place: what compilers see."""
    seen: set[Path] = set()

    def lines_of(path: Path) -> list[str]:
        if path in seen:
            return []
        seen.add(path)
        found: list[str] = []
        for line in path.read_text(encoding="utf-8").splitlines():
            included = _INCLUDE.match(line)
            if included:
                found += lines_of(KERNELS / included["file"])
            elif (declared := _declared(name, line, defines)) is not None:
                found.append(declared)
            elif line != "#pragma once":
                found.append(line)
        return [*found, ""]

    macros = [f"#define {key} {value}" for key, value in macros_of(name, defines)]
    return "\n".join([*macros, "", *lines_of(path_of(name))])


@cache
def _headers_digest() -> bytes:
    digest = hashlib.sha256()
    for path in sorted(KERNELS.rglob("*.cuh")):
        digest.update(path.relative_to(KERNELS).as_posix().encode() + b"\0" + path.read_bytes())
    return digest.digest()


@cache
def _compiler() -> str:
    """Return the compiler's version, from its package, if any: asking the library loads it."""
    versions = []
    for package in _PACKAGES:
        with suppress(metadata.PackageNotFoundError):
            versions.append(metadata.version(package))
    if not versions:
        from cuda.bindings import nvrtc

        _, *versions = nvrtc.nvrtcVersion()
    return ".".join(map(str, versions))


def _key(name: str, defines: Defines, arch: str, compiler: str) -> str:
    """Return a digest of all that decides the machine code."""
    digest = hashlib.sha256(_headers_digest())
    for part in (
        unit_of(name, source_of(name), defines),
        name,
        repr(sorted({*defines, *macros_of(name, defines)})),
        repr(compiler_options()),
        compiler,
        arch,
    ):
        digest.update(part.encode() + b"\0")
    return digest.hexdigest()


# -- the compiler


def compiler_options() -> list[str]:
    """Return what the compiler is told besides a kernel's settings."""
    options = ["--std=c++17"]
    # A lambda with `auto` parameters cannot say that it is for the device.
    options.append("--device-as-default-execution-space")
    if is_set("WARPFIT_LINES"):
        # For profilers, for a fifth of the compiler's time and three times the bytes.
        options.append("--generate-line-info")
    return options


def compile_kernel(
    name: str, defines: Defines, arch: str, *, verbose: bool = False
) -> tuple[bytes, str]:
    """Return machine code and the compiler's log for one architecture; needs no GPU.

    Parameters
    ----------
    name : str
        The kernel: its file's stem and its entry's name.
    defines : tuple of (str, str)
    arch : str
        Such as ``'sm_90a'``.
    verbose : bool
        Whether the log tells registers and spills.

    Raises
    ------
    CompileError
        With the log, each message under the line of source that it is about; or with who would wait
        for whom for ever.
    """
    waits = _begun(check_waits, name, dict(defines))  # the compiler leaves Python's lock to it
    options = [
        f"--gpu-architecture={arch}",
        *compiler_options(),
        *(f"--define-macro={key}={value}" for key, value in macros_of(name, defines)),
        f"--include-path={KERNELS}",
        *(["--ptxas-options=-v"] if verbose else []),
    ]
    try:
        code, log = compiled(unit_of(name, source_of(name), defines), f"{name}.cu", options)
    except Exception as error:
        waits.result()
        settings = " ".join(f"{key}={value}" for key, value in defines)
        text = _with_source_lines(str(error), name)
        raise CompileError(
            f"kernel {name} does not compile for {arch} with {settings}:\n{text}"
        ) from error
    waits.result()
    return code, log


def _with_source_lines(log: str, name: str) -> str:
    """Return the log with the line of source under every message that names one."""
    lines = []
    for line in log.splitlines():
        lines.append(line)
        place = _LOCATION.match(line)
        if place is None:
            continue
        path = path_of(name) if place["file"].endswith(f"{name}.cu") else Path(place["file"])
        if path.is_file():
            source = path.read_text(encoding="utf-8").splitlines()
            number = int(place["line"])
            if 0 < number <= len(source):
                lines.append(f"    {number} | {source[number - 1].strip()}")
    return "\n".join(lines)


# -- the cache


def cubin(name: str, defines: Defines, arch: str) -> bytes:
    """Return the machine code of a kernel, from the cache or compiled now.

    A cache that cannot be written to costs the time to compile, and nothing else.

    Raises
    ------
    CompileError
        If the kernel does not compile.
    """
    path = _entry(name, defines, arch)
    future, is_new = _under_way(path)
    if is_new:
        _do(future, _cached, path, name, defines, arch)
    try:
        return future.result()
    finally:
        _compiling.pop(path.name, None)


def compile_ahead(kernels: Iterable[tuple[str, Defines]], arch: str) -> None:
    """Begin to compile kernels that are not in the cache, as many at once as there are cores, or,
    lest they delay others that are compiled, a quarter; `cubin` waits for its own.

    The compiler leaves Python's lock to others meanwhile. An error is raised where the kernel is
    asked for.
    """
    wanted: deque[Any] = deque()
    are_first = all(future.done() for future in [*_compiling.values()])
    for name, defines in kernels:
        path = _entry(name, defines, arch)
        if path.exists():
            continue
        future, is_new = _under_way(path)
        if is_new:
            wanted.append((future, _cached, path, name, defines, arch))
    most = num_cores() if are_first else max(1, num_cores() // 4)
    for _ in range(min(len(wanted), most)):
        Thread(target=_compile_all, args=(wanted,)).start()


def _compile_all(wanted: deque[Any]) -> None:
    with suppress(IndexError):  # another thread may take the last one
        while True:
            _do(*wanted.popleft())


def build(kernels: Iterable[tuple[str, Defines]], arch: str) -> Iterator[bool]:
    """Compile kernels into the cache, as many at once as there are cores; yield of each, once it is
    there, whether it is new.

    Raises
    ------
    CompileError
        If one does not compile.
    ConfigError
        If the cache cannot be written to.
    """
    from concurrent.futures import ThreadPoolExecutor, as_completed

    def compiled(name: str, defines: Defines) -> bool:
        path = _entry(name, defines, arch)
        if path.exists():
            return False
        cubin(name, defines, arch)
        if not path.exists():
            raise ConfigError(f"cannot write compiled kernels to {path.parent}")
        return True

    threads = ThreadPoolExecutor(num_cores())
    try:
        for done in as_completed([threads.submit(compiled, *kernel) for kernel in kernels]):
            yield done.result()
    finally:
        threads.shutdown(cancel_futures=True)


# What is being compiled, or was ahead and nobody has asked for yet, by the entries' names.
_compiling: dict[str, Future[bytes]] = {}
if hasattr(os, "register_at_fork"):  # a child process has none of the threads
    os.register_at_fork(after_in_child=_compiling.clear)


def _under_way(path: Path) -> tuple[Future[bytes], bool]:
    """Return what will be an entry's machine code, and whether the caller is to compile it."""
    from concurrent.futures import Future

    own = Future[bytes]()
    future = _compiling.setdefault(path.name, own)
    return future, future is own


def _begun(act: Callable[..., Any], *given: Any) -> Future[Any]:
    """Begin to do something in a thread of its own."""
    from concurrent.futures import Future

    future = Future[Any]()
    Thread(target=_do, args=(future, act, *given)).start()
    return future


def _do(future: Future[Any], act: Callable[..., Any], *given: Any) -> None:
    try:
        future.set_result(act(*given))
    except BaseException as error:
        future.set_exception(error)


def _entry(name: str, defines: Defines, arch: str) -> Path:
    return cache_folder() / _entry_name(name, defines, arch, _compiler())


def _entry_name(name: str, defines: Defines, arch: str, compiler: str) -> str:
    return f"{name}-{arch}-{_key(name, defines, arch, compiler)[:32]}.cubin"


def package_entry(name: str, defines: Defines, arch: str) -> str:
    """Return the name of the file that has a kernel's machine code in the package of kernels."""
    return _entry_name(name, defines, arch, compiler="")


def _cached(path: Path, name: str, defines: Defines, arch: str) -> bytes:
    code = read_entry(path) or _packaged(name, defines, arch)
    if code is None:
        code, _ = compile_kernel(name, defines, arch)
        add_entry(path, code)
    return code


def _packaged(name: str, defines: Defines, arch: str) -> bytes | None:
    folder = packaged_folder()
    return None if folder is None else read_entry(folder / package_entry(name, defines, arch))
