"""Arguments reach a kernel as its signature has them: packed, aligned, checked."""

from __future__ import annotations

import ctypes
import struct
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import nullcontext
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from conftest import on_emulator
from emulator.build import build
from warpfit.backends.cuda import DeviceArray, jit
from warpfit.backends.cuda.arguments import FORMATS
from warpfit.backends.cuda.launch import Kernel, Kernels, parameter_formats, scalar
from warpfit.backends.cuda.signatures import SIGNATURES
from warpfit.errors import CompileError, DTypeError, ShapeError

# What C makes of every declaration that a kernel may have, and numbers to try it with.
SCALARS: dict[str, tuple[Any, st.SearchStrategy[Any]]] = {
    "int": (ctypes.c_int, st.integers(-(2**31), 2**31 - 1)),
    "unsigned": (ctypes.c_uint, st.integers(0, 2**32 - 1)),
    "int64": (ctypes.c_longlong, st.integers(-(2**63), 2**63 - 1)),
    "uint64": (ctypes.c_ulonglong, st.integers(0, 2**64 - 1)),
    "float": (ctypes.c_float, st.floats(width=32, allow_nan=False)),
    "double": (ctypes.c_double, st.floats(allow_nan=False)),
    "const T*": (ctypes.c_void_p, st.integers(1, 2**47)),
    "float*": (ctypes.c_void_p, st.integers(1, 2**47)),
    "Layout": (ctypes.c_char * 136, st.binary(min_size=136, max_size=136)),
    "TensorMap": (ctypes.c_char * 128, st.binary(min_size=128, max_size=128)),
    "TensorList": (ctypes.c_char * 3848, st.binary(min_size=3848, max_size=3848)),
}
ALIGNMENT_OF_STRUCTS = 8


class ReadingDevice:
    """A runtime whose launches read the arguments as a kernel with parameters of these C types
    would.
    """

    watcher = None

    def __init__(self, kinds: list[Any]) -> None:
        self.kinds = kinds
        self.launches: list[SimpleNamespace] = []

    def load(self, name: str, defines: jit.Defines) -> str:
        return name

    def launch(
        self, function: str, grid: Any, block: Any, shared_bytes: int, parameters: int
    ) -> None:
        places = (ctypes.c_void_p * len(self.kinds)).from_address(parameters)
        values = []
        for place, kind in zip(places, self.kinds, strict=True):
            is_struct = issubclass(kind, ctypes.Array)
            assert place % (ALIGNMENT_OF_STRUCTS if is_struct else ctypes.alignment(kind)) == 0
            value = kind.from_address(place)
            values.append(value.raw if is_struct else value.value)
        self.launches.append(
            SimpleNamespace(grid=grid, block=block, shared_bytes=shared_bytes, values=values)
        )

    def launch_cluster(self, *settings: Any) -> None:
        *others, cluster, is_cooperative = settings
        self.launch(*others)
        self.launches[-1].together = (cluster, is_cooperative)


@pytest.fixture(autouse=True)
def forget_formats() -> Iterator[None]:
    yield
    parameter_formats.cache_clear()


def probe(monkeypatch: pytest.MonkeyPatch, kinds: list[str]) -> tuple[Kernel, ReadingDevice]:
    """Return a kernel with parameters of these kinds, and the device that reads them."""
    monkeypatch.setitem(SIGNATURES, "probe", ", ".join(kinds))
    parameter_formats.cache_clear()
    device = ReadingDevice([SCALARS[kind][0] for kind in kinds])
    return Kernel(device, "probe", ()), device


# -- packing
# -------------------------------------------------------------------------------------------------


@given(data=st.data(), kinds=st.lists(st.sampled_from(list(SCALARS)), max_size=12))
def test_arguments_are_where_c_looks_for_them(data: st.DataObject, kinds: list[str]) -> None:
    with pytest.MonkeyPatch.context() as monkeypatch:
        kernel, device = probe(monkeypatch, kinds)
        for _ in range(2):
            values = [data.draw(SCALARS[kind][1]) for kind in kinds]
            kernel(1, 1, *values)
            assert device.launches[-1].values == values


def test_arrays_are_passed_by_address_and_none_as_null(monkeypatch: pytest.MonkeyPatch) -> None:
    kernel, device = probe(monkeypatch, ["const T*", "int", "const T*"])
    array = DeviceArray(None, None, 4096, (3,), np.dtype("float32"))
    kernel(1, 1, array, 5, None)
    assert device.launches[0].values == [4096, 5, None]


@pytest.mark.parametrize(
    ("given_size", "three"),
    [(7, (7, 1, 1)), ((7,), (7, 1, 1)), ((7, 2), (7, 2, 1)), ((7, 2, 3), (7, 2, 3))],
)
def test_sizes_have_three_parts(
    monkeypatch: pytest.MonkeyPatch, given_size: Any, three: Any
) -> None:
    kernel, device = probe(monkeypatch, [])
    kernel(given_size, given_size, shared_bytes=64)
    (launched,) = device.launches
    assert (launched.grid, launched.block, launched.shared_bytes) == (three, three, 64)


@pytest.mark.parametrize("together", [(8, False), (1, True), (2, True)])
def test_blocks_that_wait_for_each_other(
    monkeypatch: pytest.MonkeyPatch, together: tuple[int, bool]
) -> None:
    kernel, device = probe(monkeypatch, ["int"])
    cluster, is_cooperative = together
    kernel(16, 32, 5, cluster=cluster, is_cooperative=is_cooperative)
    (launched,) = device.launches
    assert (launched.grid, launched.values, launched.together) == ((16, 1, 1), [5], together)


@pytest.mark.parametrize(
    ("kind", "value"),
    [
        ("int", 2**31),
        ("unsigned", -1),
        ("int64", 2**63),
        ("uint64", -1),
        ("int", 1.5),
        ("double", "1"),
        ("const T*", 2**64),
        ("const T*", "address"),
        ("Layout", 3),
    ],
)
def test_what_a_parameter_cannot_hold_is_refused(
    monkeypatch: pytest.MonkeyPatch, kind: str, value: Any
) -> None:
    kernel, device = probe(monkeypatch, [kind])
    with pytest.raises(ShapeError, match=r"^probe: "):
        kernel(1, 1, value)
    assert not device.launches


@pytest.mark.parametrize("values", [(), (1,), (1, 2, 3)])
def test_as_many_arguments_as_parameters(
    monkeypatch: pytest.MonkeyPatch, values: tuple[int, ...]
) -> None:
    kernel, device = probe(monkeypatch, ["int", "int"])
    with pytest.raises(ShapeError, match=r"^probe: "):
        kernel(1, 1, *values)
    assert not device.launches


def test_threads_do_not_mix_their_arguments(monkeypatch: pytest.MonkeyPatch) -> None:
    kernel, device = probe(monkeypatch, ["int64"] * 8)
    with ThreadPoolExecutor(4) as threads:
        list(threads.map(lambda number: kernel(1, 1, *[number] * 8), range(2000)))
    assert sorted(launched.values for launched in device.launches) == [[n] * 8 for n in range(2000)]


# -- signatures
# ----------------------------------------------------------------------------------------------


def test_a_kernel_that_nobody_has_declared() -> None:
    with pytest.raises(
        CompileError, match=r"kernel nowhere: expected its parameters in signatures.py, got none"
    ):
        parameter_formats("nowhere")


SOURCE = """#include "ops/arrays/strided.cuh"
extern "C" __global__ void probe(
    const float* __restrict__ x, const __grid_constant__ Layout layout, int n) {}
"""


@on_emulator
@pytest.mark.parametrize(
    ("signature", "size", "fits"),
    [
        ("const float*, Layout, int", "0q136s", True),
        ("const float*, Layout, unsigned", "0q136s", False),
        ("float*, Layout, int", "0q136s", False),
        ("const float*, Layout", "0q136s", False),
        ("const float*, Layout, int", "0q144s", False),
    ],
)
def test_the_compiler_holds_an_entry_to_its_signature(
    signature: str, size: str, fits: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(SIGNATURES, "probe", signature)
    monkeypatch.setitem(FORMATS, "Layout", size)
    path = tmp_path / "probe.cu"
    path.write_text(SOURCE)
    with (
        nullcontext()
        if fits
        else pytest.raises(CompileError, match="the host packs other arguments")
    ):
        build(path, "probe", {})


def test_a_scalar_is_a_number_or_its_place(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(SIGNATURES, "probe", "int, Scalar, Scalar, int")
    parameter_formats.cache_clear()
    words = ctypes.c_char * 16
    device = ReadingDevice([ctypes.c_int, words, words, ctypes.c_int])
    place = DeviceArray(device, None, 4096, (), np.dtype("float64"))
    Kernel(device, "probe", ())(1, 1, 1, *scalar(0.1), *scalar(place), 2)
    before, x, y, after = device.launches[0].values
    assert (before, after) == (1, 2)
    assert [struct.unpack("Pd", raw) for raw in (x, y)] == [(0, 0.1), (4096, 0.0)]


@pytest.mark.parametrize(("shape", "dtype"), [((1,), "float64"), ((), "float32")])
def test_what_is_no_place_of_a_number(shape: tuple[int, ...], dtype: str) -> None:
    with pytest.raises(DTypeError, match=r"expected a number of shape \(\) and float64, got"):
        scalar(DeviceArray(None, None, 4096, shape, np.dtype(dtype)))


@pytest.mark.parametrize("name", sorted(path.stem for path in jit.KERNELS.rglob("*.cu")))
def test_every_kernel_can_be_launched(name: str) -> None:
    formats = parameter_formats(name)
    assert formats
    # The driver takes at most 4096 bytes of parameters on the oldest architectures.
    assert len(Kernel(ReadingDevice([]), name, ())._buffer) <= 4096


# -- kernels of a device
# -------------------------------------------------------------------------------------


def test_kernels_are_loaded_once_for_each_choice_of_defines(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setitem(SIGNATURES, "probe", "int")
    monkeypatch.setitem(SIGNATURES, "other", "int")
    loaded: list[tuple[str, jit.Defines]] = []

    class Device(ReadingDevice):
        def load(self, name: str, defines: jit.Defines) -> str:
            loaded.append((name, defines))
            return name

    device = Device([])
    monkeypatch.setattr(Kernels, "_of_runtime", {})
    kernels = Kernels.of(device)
    assert Kernels.of(device) is kernels
    first = kernels.get("probe", DTYPE="float32", BIAS=1)
    assert kernels.get("probe", DTYPE="float32", BIAS=1) is first
    assert kernels.get("probe", DTYPE="float32", BIAS=0) is not first
    assert kernels.get("other", DTYPE="float32", BIAS=1) is not first
    assert loaded == [
        ("probe", (("DTYPE", "float32"), ("BIAS", "1"))),
        ("probe", (("DTYPE", "float32"), ("BIAS", "0"))),
        ("other", (("DTYPE", "float32"), ("BIAS", "1"))),
    ]
    assert repr(first) == "Kernel(probe, DTYPE=float32, BIAS=1)"
    assert Kernels.of(Device([])) is not kernels
