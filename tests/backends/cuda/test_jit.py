"""The kernel cache and the compiler: what an entry depends on, what becomes of bad ones, and what
errors say.
"""

from __future__ import annotations

import hashlib
import os
import signal
import sys
import warnings
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from importlib.util import find_spec
from pathlib import Path
from subprocess import PIPE, Popen
from threading import Barrier, Event
from time import time
from typing import Any

import pytest

from support.commands import ENVIRONMENT
from warpfit.backends.cuda import jit, machine_code
from warpfit.errors import CompileError, ConfigError

KERNEL = """// Computes: x + HEADER_VALUE.
#include "include/probe.cuh"
extern "C" __global__ void probe(float* x) {
    x[threadIdx.x] += HEADER_VALUE + SCALE;
}
"""
DEFINES = (("SCALE", "2"), ("DTYPE", "float32"))
ARCH = "sm_90a"

needs_compiler = pytest.mark.skipif(
    find_spec("cuda") is None or find_spec("cuda.core") is None, reason="cuda-core is not installed"
)


class FakeCompiler:
    """Stands in for NVRTC: quick, and counts what it is asked to compile."""

    def __init__(self) -> None:
        self.compiled: list[tuple[str, jit.Defines, str]] = []

    def __call__(self, name: str, defines: jit.Defines, arch: str) -> tuple[bytes, str]:
        self.compiled.append((name, defines, arch))
        return f"code {len(self.compiled)} ".encode() * 100, "log"


def forget_sources() -> None:
    machine_code.packaged_folder.cache_clear()
    jit.source_of.cache_clear()
    jit._headers_digest.cache_clear()


@pytest.fixture(autouse=True)
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """The folder of the cache, which is not there yet."""
    monkeypatch.setenv("WARPFIT_CACHE_DIR", str(tmp_path / "cache"))
    yield tmp_path / "cache" / "kernels"
    forget_sources()


@pytest.fixture
def kernels(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A folder of kernels with one kernel and one header in it."""
    kernels = tmp_path / "source"
    (kernels / "include").mkdir(parents=True)
    (kernels / "probe.cu").write_text(KERNEL)
    (kernels / "include" / "probe.cuh").write_text("#pragma once\n#define HEADER_VALUE 1\n")
    monkeypatch.setattr(jit, "KERNELS", kernels)
    forget_sources()
    return kernels


@pytest.fixture
def compiler(kernels: Path, monkeypatch: pytest.MonkeyPatch) -> FakeCompiler:
    compiler = FakeCompiler()
    monkeypatch.setattr(jit, "compile_kernel", compiler)
    return compiler


def entry(folder: Path) -> Path:
    (path,) = folder.iterdir()
    return path


# -- what an entry depends on
# --------------------------------------------------------------------------------


def test_the_second_time_nothing_is_compiled(compiler: FakeCompiler) -> None:
    code = jit.cubin("probe", DEFINES, ARCH)
    assert jit.cubin("probe", DEFINES, ARCH) == code
    assert (
        jit.cubin("probe", DEFINES[::-1], ARCH) == code
    )  # the order of the defines does not matter
    assert compiler.compiled == [("probe", DEFINES, ARCH)]


class SlowCompiler(FakeCompiler):
    """Waits until it has been asked for so many kernels at once."""

    def __init__(self, at_once: int) -> None:
        super().__init__()
        self.barrier = Barrier(at_once)

    def __call__(self, name: str, defines: jit.Defines, arch: str) -> tuple[bytes, str]:
        self.barrier.wait(timeout=30)
        if not defines:
            raise CompileError("no defines")
        return super().__call__(name, defines, arch)


def test_kernels_are_compiled_ahead_at_once_and_errors_told_when_asked_for(
    kernels: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    compiler, others = SlowCompiler(3), (("SCALE", "5"),)
    monkeypatch.setattr(jit, "compile_kernel", compiler)
    monkeypatch.setattr(jit, "num_cores", lambda: 3)
    wanted: list[tuple[str, jit.Defines]] = [("probe", DEFINES), ("probe", others), ("probe", ())]
    jit.compile_ahead(wanted, ARCH)
    jit.compile_ahead(wanted, ARCH)  # who asks meanwhile starts nothing anew
    codes = [jit.cubin("probe", defines, ARCH) for defines in (others, DEFINES)]
    with pytest.raises(CompileError, match="no defines"):
        jit.cubin("probe", (), ARCH)
    assert len(compiler.compiled) == 2
    assert codes == [jit.cubin("probe", defines, ARCH) for defines in (others, DEFINES)]
    jit.compile_ahead(wanted[:2], ARCH)  # they are in the cache
    assert len(compiler.compiled) == 2
    assert not jit._compiling


def test_kernels_beside_others_under_way_take_a_quarter_of_the_cores(
    compiler: FakeCompiler, monkeypatch: pytest.MonkeyPatch
) -> None:
    started: list[Any] = []
    monkeypatch.setattr(jit, "_compiling", {})
    monkeypatch.setattr(jit, "num_cores", lambda: 8)
    monkeypatch.setattr(jit.Thread, "start", lambda thread: started.append(thread))
    for first, count, threads in ((0, 3, 3), (3, 6, 2)):
        jit.compile_ahead([("probe", (("SCALE", str(first + i)),)) for i in range(count)], ARCH)
        assert len(started) == threads
        started.clear()


def test_threads_that_ask_for_the_same_kernel_wait_for_one_compiler(
    kernels: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    compiler, both_ask = FakeCompiler(), Barrier(2)

    class Watched(dict[str, Any]):
        def setdefault(self, name: str, value: Any) -> Any:
            found = super().setdefault(name, value)
            both_ask.wait(timeout=30)
            return found

    monkeypatch.setattr(jit, "compile_kernel", compiler)
    monkeypatch.setattr(jit, "_compiling", Watched())
    with ThreadPoolExecutor(2) as threads:
        asked = [threads.submit(jit.cubin, "probe", DEFINES, ARCH) for _ in range(2)]
    assert asked[0].result() == asked[1].result()
    assert len(compiler.compiled) == 1


def test_the_cache_is_built_of_what_is_not_in_it(compiler: FakeCompiler, folder: Path) -> None:
    others = (("SCALE", "5"),)
    jit.cubin("probe", DEFINES, ARCH)
    built = jit.build([("probe", DEFINES), ("probe", others), ("probe", ())], ARCH)
    assert sorted(built) == [False, True, True]
    assert len(list(folder.iterdir())) == len(compiler.compiled) == 3


def test_a_cache_that_cannot_be_built(
    compiler: FakeCompiler, folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder.parent.write_text("a file")
    with pytest.raises(ConfigError, match="cannot write compiled kernels to"):
        list(jit.build([("probe", DEFINES)], ARCH))
    folder.parent.unlink()

    def failing(*_: Any) -> None:
        raise CompileError("no such thing")

    monkeypatch.setattr(jit, "compile_kernel", failing)
    with pytest.raises(CompileError, match="no such thing"):
        list(jit.build([("probe", DEFINES)], ARCH))


@pytest.mark.skipif(not hasattr(os, "fork"), reason="processes are not forked here")
def test_a_forked_process_waits_for_no_thread_of_its_parent(
    kernels: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    goes_on, compiler = Event(), FakeCompiler()

    def compile_late(*kernel: Any) -> tuple[bytes, str]:
        goes_on.wait(timeout=30)
        return compiler(*kernel)

    monkeypatch.setattr(jit, "compile_kernel", compile_late)
    jit.compile_ahead([("probe", DEFINES)], ARCH)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", DeprecationWarning)  # of forks beside threads
        child = os.fork()
    if not child:
        signal.alarm(30)
        jit.compile_kernel = compiler
        os._exit(0 if jit.cubin("probe", DEFINES, ARCH) else 1)
    goes_on.set()
    assert os.waitpid(child, 0)[1] == 0
    assert jit.cubin("probe", DEFINES, ARCH)


def change_source(kernels: Path) -> None:
    (kernels / "probe.cu").write_text(KERNEL + "// another\n")


def change_header(kernels: Path) -> None:
    (kernels / "include" / "probe.cuh").write_text("#pragma once\n#define HEADER_VALUE 3\n")


def add_header(kernels: Path) -> None:
    (kernels / "include" / "another.cuh").write_text("#pragma once\n")


@pytest.mark.parametrize("change", [change_source, change_header, add_header])
def test_a_change_of_the_source_compiles_anew(
    compiler: FakeCompiler, kernels: Path, change: Any
) -> None:
    first = jit.cubin("probe", DEFINES, ARCH)
    change(kernels)
    forget_sources()  # as a new process would
    assert jit.cubin("probe", DEFINES, ARCH) != first
    assert len(compiler.compiled) == 2


@pytest.mark.parametrize(
    ("defines", "arch"),
    [
        ((("SCALE", "3"), ("DTYPE", "float32")), ARCH),
        ((("SCALE", "2"),), ARCH),
        ((("SCALE", "2"), ("DTYPE", "float32"), ("BIAS", "1")), ARCH),
        ((), ARCH),
        (DEFINES, "sm_89"),
    ],
)
def test_other_defines_or_another_architecture(
    compiler: FakeCompiler, folder: Path, defines: jit.Defines, arch: str
) -> None:
    first = jit.cubin("probe", DEFINES, ARCH)
    assert jit.cubin("probe", defines, arch) != first
    assert len(list(folder.iterdir())) == 2


def test_another_compiler_or_other_options(
    compiler: FakeCompiler, monkeypatch: pytest.MonkeyPatch
) -> None:
    first = jit.cubin("probe", DEFINES, ARCH)
    monkeypatch.setenv("WARPFIT_LINES", "1")
    with_lines = jit.cubin("probe", DEFINES, ARCH)
    monkeypatch.setattr(jit, "_compiler", lambda: "99.9")
    assert len({first, with_lines, jit.cubin("probe", DEFINES, ARCH)}) == 3


def test_the_compiler_is_known_by_its_version() -> None:
    assert jit._compiler()[0].isdigit()


# -- entries that are not whole
# ------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "damage",
    [
        lambda content: b"",
        lambda content: content[:10],
        lambda content: content[:-1],
        lambda content: content + b"\0",
        lambda content: content[:-1] + bytes([content[-1] ^ 1]),
        lambda content: bytes([content[0] ^ 1]) + content[1:],
        lambda content: content.replace(b"warpfit kernel 1", b"warpfit kernel 0"),
        lambda content: b"something else entirely",
    ],
    ids=[
        "empty",
        "cut",
        "last byte lost",
        "longer",
        "bit lost",
        "first bit lost",
        "other version",
        "foreign",
    ],
)
def test_a_damaged_entry_is_compiled_anew(
    compiler: FakeCompiler, folder: Path, damage: Any
) -> None:
    jit.cubin("probe", DEFINES, ARCH)
    path = entry(folder)
    path.write_bytes(damage(path.read_bytes()))
    anew = jit.cubin("probe", DEFINES, ARCH)
    assert len(compiler.compiled) == 2
    assert jit.cubin("probe", DEFINES, ARCH) == anew  # the entry is whole again
    assert len(compiler.compiled) == 2


def test_a_folder_in_the_place_of_an_entry_costs_the_time_to_compile(
    compiler: FakeCompiler, folder: Path
) -> None:
    jit.cubin("probe", DEFINES, ARCH)
    path = entry(folder)
    path.unlink()
    path.mkdir()
    (path / "file").touch()
    for calls in (2, 3):
        jit.cubin("probe", DEFINES, ARCH)
        assert len(compiler.compiled) == calls


# -- where it is, and how large
# ------------------------------------------------------------------------------


@pytest.mark.parametrize("value", [None, ""])
def test_the_folder_is_the_users_unless_told_otherwise(
    folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, value: str | None
) -> None:
    assert machine_code.cache_folder() == folder
    monkeypatch.setattr(Path, "home", lambda: tmp_path)
    monkeypatch.delenv("WARPFIT_CACHE_DIR")
    if value is not None:
        monkeypatch.setenv("WARPFIT_CACHE_DIR", value)
    assert machine_code.cache_folder() == tmp_path / ".cache" / "warpfit" / "kernels"


def test_a_cache_that_cannot_be_written_to(
    compiler: FakeCompiler, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "file").touch()
    monkeypatch.setenv("WARPFIT_CACHE_DIR", str(tmp_path / "file"))
    for calls in (1, 2):
        assert jit.cubin("probe", DEFINES, ARCH).startswith(b"code")
        assert len(compiler.compiled) == calls
    assert machine_code.cache_use().num_kernels == 0
    assert machine_code.clear_cache().num_bytes == 0


def test_beyond_its_size_the_cache_drops_what_was_not_used_for_longest(
    compiler: FakeCompiler, folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def compile_scaled(scale: int) -> None:
        jit.cubin("probe", (("SCALE", str(scale)),), ARCH)

    ages = {}
    for scale in range(4):
        before = set(folder.iterdir()) if folder.exists() else set()
        compile_scaled(scale)
        (ages[scale],) = set(folder.iterdir()) - before
        os.utime(ages[scale], (1000 + scale, 1000 + scale))
    compile_scaled(0)  # now the one used last
    assert len(compiler.compiled) == 4
    size = ages[0].stat().st_size
    monkeypatch.setattr(machine_code, "CACHE_BYTES", 3 * size + size // 2)
    compile_scaled(9)
    assert [path.exists() for path in ages.values()] == [True, False, False, True]
    assert machine_code.cache_use().num_kernels == 3


def test_what_killed_writers_left_goes_after_an_hour(compiler: FakeCompiler, folder: Path) -> None:
    folder.mkdir(parents=True)
    old, young = folder / ".probe.cubin.0a1b2c3d.tmp", folder / ".probe.cubin.ffffffff.tmp"
    for path, age in ((old, 4000), (young, 0)):
        path.write_bytes(b"unfinished")
        os.utime(path, (time() - age, time() - age))
    jit.cubin("probe", DEFINES, ARCH)
    assert (old.exists(), young.exists()) == (False, True)
    os.utime(young, (0, 0))
    machine_code.clear_cache()
    assert list(folder.iterdir()) == []


def test_the_folder_may_begin_with_a_tilde(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HOME", str(tmp_path))
    monkeypatch.setenv("WARPFIT_CACHE_DIR", "~/kernels of mine")
    assert machine_code.cache_folder() == tmp_path / "kernels of mine" / "kernels"


def test_use_and_clearing(compiler: FakeCompiler, folder: Path) -> None:
    assert machine_code.cache_use() == machine_code.clear_cache() == (folder, 0, 0)
    for scale in "12":
        jit.cubin("probe", (("SCALE", scale),), ARCH)
    (folder / "notes.txt").write_text("not ours")
    use = machine_code.cache_use()
    assert use == (folder, 2, sum(path.stat().st_size for path in folder.glob("*.cubin")))
    assert machine_code.clear_cache() == use
    assert machine_code.cache_use().num_kernels == 0
    assert [path.name for path in folder.iterdir()] == ["notes.txt"]
    jit.cubin("probe", (("SCALE", "1"),), ARCH)
    assert len(compiler.compiled) == 3


def test_an_entry_that_another_process_removes_meanwhile(
    compiler: FakeCompiler, folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    jit.cubin("probe", DEFINES, ARCH)
    gone = folder / "gone.cubin"
    monkeypatch.setattr(Path, "glob", lambda self, pattern: [gone, entry(folder)])
    assert machine_code.cache_use().num_kernels == 1


# -- the compiler itself
# -------------------------------------------------------------------------------------


@needs_compiler
def test_machine_code_for_an_architecture(kernels: Path) -> None:
    code, _ = jit.compile_kernel("probe", DEFINES, ARCH)
    assert code.startswith(b"\x7fELF")
    assert b"probe" in code
    _, log = jit.compile_kernel("probe", DEFINES, ARCH, verbose=True)
    assert "registers" in log


@needs_compiler
def test_an_error_shows_the_log_and_the_line_of_source(kernels: Path) -> None:
    (kernels / "probe.cu").write_text(KERNEL.replace("x[threadIdx.x]", "  y[threadIdx.x]"))
    with pytest.raises(CompileError) as caught:
        jit.cubin("probe", DEFINES, ARCH)
    lines = str(caught.value).splitlines()
    assert lines[0] == "kernel probe does not compile for sm_90a with SCALE=2 DTYPE=float32:"
    (place,) = [idx for idx, line in enumerate(lines) if '"y" is undefined' in line]
    assert "probe.cu(4): error" in lines[place]
    assert lines[place + 1] == "    4 | y[threadIdx.x] += HEADER_VALUE + SCALE;"


@needs_compiler
def test_an_error_in_a_header_shows_the_headers_line(kernels: Path) -> None:
    (kernels / "include" / "probe.cuh").write_text("#pragma once\n\nint broken = nothing;\n")
    with pytest.raises(CompileError, match=r"3 \| int broken = nothing;"):
        jit.cubin("probe", DEFINES, ARCH)


def test_a_kernel_that_is_not_there(kernels: Path) -> None:
    with pytest.raises(
        CompileError, match=r"expected a kernel among .*/\*\*/\*\.cu, got 'nowhere'"
    ):
        jit.cubin("nowhere", (), ARCH)


COMPILE = """
import hashlib
from pathlib import Path
from warpfit.backends.cuda import jit
jit.KERNELS = Path({kernels!r})
print(hashlib.sha256(jit.cubin("probe", {defines!r}, {arch!r})).hexdigest())
"""


@needs_compiler
def test_two_processes_at_once(kernels: Path, folder: Path) -> None:
    code = COMPILE.format(kernels=str(kernels), defines=DEFINES, arch=ARCH)
    environment = {**ENVIRONMENT, "WARPFIT_CACHE_DIR": os.environ["WARPFIT_CACHE_DIR"]}
    both = [
        Popen([sys.executable, "-c", code], env=environment, stdout=PIPE, stderr=PIPE, text=True)
        for _ in range(2)
    ]
    answers = [process.communicate(timeout=120) for process in both]
    assert [process.returncode for process in both] == [0, 0], answers
    digests = {out.strip() for out, _ in answers}
    assert len(digests) == 1
    assert {path.suffix for path in folder.iterdir()} == {".cubin"}
    path = entry(folder)
    here = jit.cubin("probe", DEFINES, ARCH)
    assert hashlib.sha256(here).hexdigest() in digests
    assert entry(folder) == path


@pytest.fixture
def package(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The package of kernels, installed, with nothing in it."""
    package = tmp_path / "site" / "warpfit_kernels"
    package.mkdir(parents=True)
    (package / "__init__.py").touch()
    monkeypatch.syspath_prepend(package.parent)
    machine_code.packaged_folder.cache_clear()
    return package


def test_what_the_package_of_kernels_has_is_not_compiled(
    folder: Path, package: Path, compiler: FakeCompiler
) -> None:
    machine_code.write_entry(package / jit.package_entry("probe", DEFINES, ARCH), b"built ahead")
    assert jit.cubin("probe", DEFINES, ARCH) == b"built ahead"
    assert (compiler.compiled, folder.exists()) == ([], False)


def test_what_it_lacks_is_compiled(package: Path, compiler: FakeCompiler) -> None:
    machine_code.write_entry(package / jit.package_entry("probe", DEFINES, "sm_80"), b"built ahead")
    jit.cubin("probe", DEFINES, ARCH)
    assert compiler.compiled == [("probe", DEFINES, ARCH)]


def test_the_package_of_another_release_counts_for_nothing(
    package: Path, kernels: Path, compiler: FakeCompiler
) -> None:
    machine_code.write_entry(package / jit.package_entry("probe", DEFINES, ARCH), b"built ahead")
    (kernels / "include" / "probe.cuh").write_text("#pragma once\n#define HEADER_VALUE 2\n")
    jit._headers_digest.cache_clear()
    assert jit.cubin("probe", DEFINES, ARCH) != b"built ahead"


def test_damage_in_the_package_is_compiled_anew(package: Path, compiler: FakeCompiler) -> None:
    path = package / jit.package_entry("probe", DEFINES, ARCH)
    machine_code.write_entry(path, b"built ahead")
    path.write_bytes(path.read_bytes()[:-1] + b"?")
    jit.cubin("probe", DEFINES, ARCH)
    assert len(compiler.compiled) == 1


def test_kernels_with_bounded_waits_are_others(monkeypatch: pytest.MonkeyPatch) -> None:
    kernel = ("unary", (("DTYPE", "float"),), "sm_90a")
    plain = jit.package_entry(*kernel)
    monkeypatch.setenv("WARPFIT_DEBUG", "1")
    assert jit.package_entry(*kernel) != plain
