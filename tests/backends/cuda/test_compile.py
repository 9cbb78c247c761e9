"""Every kernel compiles for every architecture, in every dtype it is used in, and keeps its numbers
in registers.
"""

from __future__ import annotations

import re
import sys
from importlib.util import find_spec
from struct import unpack_from
from subprocess import run

import numpy as np
import pytest

from kernel_variants import is_supported
from support.commands import ENVIRONMENT
from support.kernels import VARIANTS
from warpfit.backends.cuda import jit
from warpfit.backends.cuda.dtypes import DEVICE_FLOATS

# Kernels whose numbers do not all fit into registers on sm_90a: the most bytes that do not, and the
# reason.
MAY_SPILL = {
    "conv2d_backward_input": (
        36,
        "float32 without tensor cores, outputs not in whole vectors: the compiler keeps to 128 "
        "registers, for a fourth block on a multiprocessor",
    ),
    "element_loss_step": (
        24,
        "absolute error and Huber's loss in bfloat16 with NVRTC 13.5, in 64 registers, with which "
        "four blocks are resident",
    ),
    "many_small_networks_sm90": (
        400,
        "32-64-64-2: 42 parameters of a thread, 32 words of a tile and 32 sums, and addresses "
        "that the compiler keeps; with Adam 58 numbers more of its averages",
    ),
    "many_networks_sm90": (
        230,
        "784-128-10: 128 weights of a thread, 48 words of a product and 32 of its sums leave "
        "less than a step needs",
    ),
    "table_networks": (
        240,
        "places that the compiler finds before the first step and reads back once in each, "
        "beside 64 words of a layer's weights that are on their way",
    ),
    "one_launch_card": (
        140,
        "784-2048-2048-2048-10: 160 of 255 registers hold low halves of weights (36.2 us a step), "
        "with 128 none spills (39.6); most where it stops by itself, and counts epochs and passes",
    ),
    "one_launch_images": (
        70,
        "a small network, 180-20-4 behind its convolutions: places that the compiler finds before "
        "the first step and reads back once in each; of LeNet-5 none spills",
    ),
    "one_launch": (
        140,
        "784-256-10 at batch 128: 104 weights of a thread, 52 words of a product and 64 of its "
        "sums in 232 registers, and 32 words of a Gram matrix of row warps in 104 (5.9 us a step "
        "without such blocks, now 4.9); with momentum: weights, velocities and sums of a "
        "gradient in 184 registers; looking ahead, in 200",
    ),
}

_SPILLS = re.compile(r"(\d+) bytes spill stores, (\d+) bytes spill loads")

pytestmark = pytest.mark.skipif(find_spec("cuda") is None, reason="cuda-core is not installed")


def test_every_kernel_file_is_asked_for() -> None:
    textbook = {"matmul_naive", "matmul_tiled"}  # rungs of the ladder
    assert VARIANTS.keys() | textbook == {path.stem for path in jit.KERNELS.rglob("*.cu")}


def variant_of(name: str, arch: str) -> dict[str, str]:
    """Return one variant, of a dtype that is not the same for all kernels and architectures."""
    of_dtypes: dict[tuple[str | None, str | None], dict[str, str]] = {}
    for defines in VARIANTS[name]:
        if is_supported(name, defines, arch):
            of_dtypes.setdefault((defines.get("DTYPE"), defines.get("OUT")), defines)
    found = list(of_dtypes.values())
    number = jit.ARCHITECTURES.index(arch) + list(VARIANTS).index(name)
    return found[number % len(found)]


def assert_compiles(name: str, defines: dict[str, str], arch: str) -> None:
    code, log = jit.compile_kernel(name, tuple(defines.items()), arch, verbose=True)
    assert code.startswith(b"\x7fELF")
    assert_keeps_numbers_in_registers(log, name, defines, arch)


def assert_keeps_numbers_in_registers(
    log: str, name: str, defines: dict[str, str], arch: str
) -> None:
    spilled = [max(map(int, pair)) for pair in _SPILLS.findall(log)]
    assert spilled, log
    if arch == "sm_90a":
        allowed, _ = MAY_SPILL.get(name, (0, ""))
        assert max(spilled) <= allowed, f"{defines}: {log}"
        assert "serialized" not in log, (
            f"{defines}: {log}"
        )  # products of warpgroups, one waited for after another


# Of the instruction HGMMA, a product of a warpgroup, whichever operands come from registers.
HGMMA, OF_OPCODE = 0x1F0, 0x1FF


def compiled(name: str, defines: dict[str, str], arch: str, *wanted: str) -> list[bytes]:
    """Return what is wanted of one compilation. cuda-core gives PTX only with a driver."""
    from cuda.bindings import nvrtc

    settings = tuple(defines.items())
    unit = jit.unit_of(name, jit.source_of(name), settings)
    _, program = nvrtc.nvrtcCreateProgram(unit.encode(), b"kernel.cu", 0, [], [])
    flags = [f"-arch={arch}", "-std=c++17", "-default-device", f"-I{jit.KERNELS}"]
    flags += ["--ptxas-options=-v"]
    flags += [f"-D{key}={value}" for key, value in jit.macros_of(name, settings)]
    (error,) = nvrtc.nvrtcCompileProgram(program, len(flags), [flag.encode() for flag in flags])
    assert int(error) == 0
    found = []
    for what in wanted:
        _, size = getattr(nvrtc, f"nvrtcGet{what}Size")(program)
        found.append(b" " * size)
        getattr(nvrtc, f"nvrtcGet{what}")(program, found[-1])
    nvrtc.nvrtcDestroyProgram(program)
    return found


_REGISTER = re.compile(r"%f\d+")


def num_undefined_sums(ptx: str) -> int:
    """Return how many registers are first named as sums that a product of warpgroups adds to."""
    known: set[str] = set()
    undefined = 0
    for line in ptx.splitlines():
        if "wgmma.mma_async" in line:
            sums = line.split("{")[2].split("}")[0]
            undefined += len(set(_REGISTER.findall(sums)) - known)
        known.update(_REGISTER.findall(line))
    return undefined


def num_products(cubin: bytes) -> int:
    """Return how many products of warpgroups the sections with instructions have."""
    first, entry_bytes, count = *unpack_from("<Q", cubin, 0x28), *unpack_from("<HH", cubin, 0x3A)
    found = 0
    for idx in range(count):
        flags, _, offset, size = unpack_from("<QQQQ", cubin, first + idx * entry_bytes + 8)
        if flags & 4:  # SHF_EXECINSTR
            words = np.frombuffer(cubin, "<u8", size // 8, offset)[::2]
            found += int((words & OF_OPCODE == HGMMA).sum())
    return found


# Those whose sums of warpgroups tensor cores add up; that of gradients adds up what is kept.
ON_HOPPER = [
    name for name in VARIANTS if name.endswith("_sm90") and name != "member_gradients_sm90"
]


# Where a kernel lets a product begin with undefined sums, the compiler may take it for another one,
# and leave it out.
def assert_has_all_products(name: str, defines: dict[str, str]) -> None:
    ptx, code, log = compiled(name, defines, "sm_90a", "PTX", "CUBIN", "ProgramLog")
    assert num_products(code) >= ptx.count(b"wgmma.mma_async") > 0, defines
    assert num_undefined_sums(ptx.decode()) == 0, defines
    assert_keeps_numbers_in_registers(log.decode(), name, defines, "sm_90a")


@pytest.mark.slow
@pytest.mark.parametrize("name", ON_HOPPER)
def test_the_machine_code_has_all_products_of_warpgroups_and_no_spills(name: str) -> None:
    for defines in VARIANTS[name]:
        assert_has_all_products(name, defines)


@pytest.mark.in_turns(9)
@pytest.mark.parametrize("name", ON_HOPPER)
def test_one_variant_has_all_products_of_warpgroups_and_no_spills(name: str) -> None:
    assert_has_all_products(name, variant_of(name, "sm_90a"))


OLDEST_NEWEST_AND_THIS = (jit.ARCHITECTURES[0], jit.ARCHITECTURES[-1], "sm_90a")


def assert_reads(name: str, defines: dict[str, str], arch: str) -> None:
    settings = tuple(defines.items())
    unit = jit.unit_of(name, jit.source_of(name), settings)
    flags = [f"-D{key}={value}" for key, value in jit.macros_of(name, settings)]
    assert errors_in(unit, arch, *flags) == "", f"{defines} for {arch}"


def errors_in(unit: str, arch: str, *flags: str) -> str:
    """Return what the compiler says where it only reads a kernel, a tenth of its work, and finds
    errors.
    """
    from cuda.bindings import nvrtc

    _, program = nvrtc.nvrtcCreateProgram(unit.encode(), b"kernel.cu", 0, [], [])
    options = [f"-arch={arch}", *jit.compiler_options(), f"-I{jit.KERNELS}", *flags]
    options.append("--fdevice-syntax-only")
    (error,) = nvrtc.nvrtcCompileProgram(program, len(options), [o.encode() for o in options])
    _, size = nvrtc.nvrtcGetProgramLogSize(program)
    log = bytearray(size)  # bytes of length 1 are shared by all of Python
    nvrtc.nvrtcGetProgramLog(program, log)
    nvrtc.nvrtcDestroyProgram(program)
    return log.decode() if int(error) else ""


@pytest.mark.in_turns(2)
@pytest.mark.parametrize("name", VARIANTS)
def test_the_compiler_reads_it(name: str) -> None:
    archs = [
        arch
        for arch in OLDEST_NEWEST_AND_THIS
        if any(is_supported(name, defines, arch) for defines in VARIANTS[name])
    ]
    arch = archs[list(VARIANTS).index(name) // 2 % len(archs)]
    assert_reads(name, variant_of(name, arch), arch)


def test_a_reader_finds_what_is_wrong() -> None:
    wrong = "template <class T> __device__ T f(T x) { return x.missing; }\n"
    wrong += 'extern "C" __global__ void kernel(float* x) { *x = f(*x); }\n'
    assert "expression must have class type" in errors_in(wrong, "sm_90a")


def is_in_turn(name: str, arch: str) -> bool:
    """Return whether every run compiles a kernel to its end: for the GPU at hand one whose numbers
    only just fit into registers, and of the others one in twelve; for other architectures one in
    32.
    """
    kernel, other = list(VARIANTS).index(name), OLDEST_NEWEST_AND_THIS.index(arch)
    if arch == "sm_90a":
        return name == "one_launch" or (name not in MAY_SPILL and kernel % 12 == 0)
    return name not in MAY_SPILL and (kernel + 16 * other) % 32 == 0


# Those on Hopper are compiled above.
@pytest.mark.parametrize(
    ("name", "arch"),
    [
        pytest.param(name, arch, marks=() if is_in_turn(name, arch) else pytest.mark.slow)
        for name in VARIANTS
        if name not in ON_HOPPER
        for arch in OLDEST_NEWEST_AND_THIS
        if any(is_supported(name, defines, arch) for defines in VARIANTS[name])
    ],
)
def test_compiles_without_spills(name: str, arch: str) -> None:
    assert_compiles(name, variant_of(name, arch), arch)


@pytest.mark.slow
@pytest.mark.parametrize("arch", jit.ARCHITECTURES)
@pytest.mark.parametrize("name", VARIANTS)
def test_all_variants_compile_without_spills(name: str, arch: str) -> None:
    for defines in VARIANTS[name]:
        if is_supported(name, defines, arch):
            assert_compiles(name, defines, arch)


@pytest.mark.in_turns(12)
@pytest.mark.parametrize("name", ["matmul_naive", "matmul_tiled"])
@pytest.mark.parametrize("dtype", DEVICE_FLOATS)
@pytest.mark.parametrize(
    "arch",
    [
        arch if arch in OLDEST_NEWEST_AND_THIS else pytest.param(arch, marks=pytest.mark.slow)
        for arch in jit.ARCHITECTURES
    ],
)
def test_textbook_products_compile_without_spills(name: str, dtype: str, arch: str) -> None:
    assert_compiles(name, {"DTYPE": dtype, "TRANSPOSE_A": "0", "TRANSPOSE_B": "1"}, arch)


AT_ONCE = """
from concurrent.futures import ThreadPoolExecutor

from warpfit.backends.cuda import jit

with ThreadPoolExecutor(8) as threads:
    made = threads.map(lambda _: jit.compile_kernel("all_finite", DEFINES, "sm_80"), range(8))
    print(len({code for code, _ in made}))
"""


@pytest.mark.slow
def test_threads_of_a_new_process_compile_at_once() -> None:
    program = AT_ONCE.replace("DEFINES", repr((("DTYPE", "float32"),)))
    done = run([sys.executable, "-c", program], env=ENVIRONMENT, capture_output=True, text=True)
    assert (done.stdout, done.stderr) == ("1\n", "")
